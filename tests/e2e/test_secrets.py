"""Nothing secret stands where other processes can read it, in any role of a stack that really runs."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from support.commandline import CommandLine, Running, call, script

from hermes_worker import installed
from hermes_worker.settings.role_secrets import DELIVERY_SECRETS, READ_BY_LIBRARIES, SECRET_SETTINGS, ProcessRole

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(sys.platform != "linux", reason="other systems have no /proc")]

MARK = "PLANTED"
HANDED_ON = ("model", "tools", "beat", "api")


def planted() -> dict[str, str]:
    """Every secret there is, but for the places of servers, which have to be real ones."""
    settings = [name for row in SECRET_SETTINGS if not row.key.endswith(".url") for name in row.variables]
    others = [*DELIVERY_SECRETS, "GROQ_API_KEY", "GROQ_API_KEY_2", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD"]
    secrets = {name: f"{MARK}-{name}-0123456789" for name in (*settings, *others)}
    secrets["HERMES_TENANT_KEYS"] = f"acme/openai={secrets['HERMES_TENANT_KEYS']}"
    proxies = dict.fromkeys(READ_BY_LIBRARIES - {"PGPASSWORD"}, f"http://user:{MARK}@127.0.0.1:9")
    return secrets | proxies | {"SOME_SERVICE": f"https://user:{MARK}@127.0.0.1:9/"}


def everybody(running: Running) -> Iterator[psutil.Process]:
    root = psutil.Process(running.pid)
    yield root
    yield from root.children(recursive=True)


NEEDED = {
    "HERMES_PROVIDER": "custom",
    "HERMES_MODEL": "m",
    "HERMES_BASE_URL": "http://127.0.0.1:9/v1",
    "HERMES_TOKEN_URL": "http://127.0.0.1:9/token",
}
IN_MEMORY = re.compile(rf"{MARK}-(\w+)-0123456789".encode())


def held_by(process: psutil.Process) -> set[str]:
    """The planted secrets that a process has in its memory, by name."""
    names: set[str] = set()
    folder = Path("/proc", str(process.pid))
    with (folder / "mem").open("rb", buffering=0) as memory:
        for line in (folder / "maps").read_text().splitlines():
            start, end = (int(word, 16) for word in line.split()[0].split("-"))
            if line.split()[1].startswith("rw"):
                memory.seek(start)
                names |= {name.decode() for name in IN_MEMORY.findall(memory.read(end - start))}
    return names


def allowed_to(*roles: ProcessRole) -> set[str]:
    settings = {name for row in SECRET_SETTINGS if row.roles & set(roles) for name in row.variables}
    models = {"GROQ_API_KEY", "GROQ_API_KEY_2"} if ProcessRole.MODEL in roles else set()
    # What a platform signs its webhooks with, whoever else needs it.
    declared = {name for name, whose in installed.get_installed().secret_variables.items() if set(whose) & set(roles)}
    sends = set(DELIVERY_SECRETS) if ProcessRole.DELIVERY in roles else set()
    return settings | models | declared | sends | {"PGPASSWORD"}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A stack that was given every secret, two of them in a file and the others in its environment."""
    home = tmp_path_factory.mktemp("secrets") / "home"
    home.mkdir(mode=0o700)
    in_file = {name: planted()[name] for name in ("HERMES_API_KEY", "TELEGRAM_BOT_TOKEN")}
    (home / ".env").write_text("".join(f"{name}={value}\n" for name, value in in_file.items()))
    rest = {name: value for name, value in planted().items() if name not in in_file}
    with CommandLine(home, {**rest, **NEEDED}, is_installed=True).up() as running:
        yield running


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look into the memory of our processes")
def test_no_role_has_the_secrets_of_another_in_its_memory(up: Running) -> None:
    expected = {
        "tools": allowed_to(ProcessRole.TOOLS),
        "api": allowed_to(ProcessRole.API),
        "model": allowed_to(ProcessRole.MODEL, ProcessRole.DELIVERY, ProcessRole.SYSTEM, ProcessRole.BEAT),
        "zygote": set[str](),
    }
    found = {role: [p for p in everybody(up) if f": {_TITLES[role]}" in " ".join(p.cmdline())] for role in expected}
    assert all(found.values())
    for role, processes in found.items():
        for process in processes:
            assert held_by(process) <= expected[role], role
    # What is looked for can be found: the model worker needs its key.
    assert "HERMES_API_KEY" in held_by(up.child("model"))


_TITLES = {"tools": "worker tools", "api": "api", "model": "worker model", "zygote": "fork server"}


def test_no_role_shows_a_secret_or_holds_the_descriptor_it_came_by(up: Running) -> None:
    seen = set()
    for process in everybody(up):
        folder = Path("/proc", str(process.pid))
        assert MARK.encode() not in (folder / "cmdline").read_bytes(), process
        held = []
        # Who is not root is refused; that is another wall, and another test's.
        with suppress(PermissionError):
            assert MARK.encode() not in (folder / "environ").read_bytes(), process
            held = [str(link.readlink()) for link in (folder / "fd").iterdir()]
        assert not [name for name in held if "hermes-secrets" in name], process
        seen |= {name for name in (*HANDED_ON, "valkey") if name in " ".join(process.cmdline())}
    assert seen == {*HANDED_ON, "valkey"}
    assert MARK not in up.output


def test_a_stack_works_with_secrets_from_the_environment_and_from_files(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    (home / ".env").write_text(f"HERMES_SERVER_KEY={MARK}-0123456789\n")
    (home / "config.yaml").write_text("agent: {max_turns: 5}\n")
    project = tmp_path / "project"
    project.mkdir()
    hermes = CommandLine(home, {"TELEGRAM_BOT_TOKEN": f"1:{MARK}"})
    with hermes.up() as up:
        watched = hermes.inline(
            "submit",
            script(call("terminal", command="touch made"), final="Done."),
            "--workspace",
            str(project),
            "--watch",
        )
        assert watched.code == 0, watched.said + up.output
        assert hermes.inline("doctor").code == 0
    assert (project / "made").stat().st_mode & 0o777 == 0o644
    private = [path for path in home.rglob("*") if "workspaces" not in path.parts and not path.is_symlink()]
    assert home.stat().st_mode & 0o777 == 0o700
    assert not [path for path in private if path.stat().st_mode & 0o077]
    assert MARK not in up.output


def test_who_runs_it_as_root_is_told_so_once(tmp_path: Path) -> None:
    hermes = CommandLine(tmp_path / "home")
    is_root = os.geteuid() == 0
    with hermes.up() as up:
        if is_root:
            up.wait_for_line("runs as root")
        assert ("runs as root" in hermes.inline("doctor").out) == is_root
    assert up.output.count("runs as root") == int(is_root)
