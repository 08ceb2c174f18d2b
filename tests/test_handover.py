"""Secrets by descriptor, and a program that keeps its files, its memory and its environment to itself. With real
processes, of a plain user where this machine lets us be one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.patience import PATIENCE_S

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.settings.secret_transfer import SECRETS_FD, STARTED_UMASK, Handover, open_sealed, take_handover

NOBODY = 65534
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no /proc")
ENVIRON = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "PYTHONPATH": f"{Path.cwd()}:{Path(yaml.__file__).parent.parent}",
    "PYTHONDONTWRITEBYTECODE": "1",
}
BEGUN = (
    "import os; from hermes_worker.settings import secret_transfer as handover; from hermes_worker import settings; "
    "handover.begin_program()\n"
)


@cache
def interpreter() -> tuple[str, dict[str, Any]]:
    """A Python that a plain user can run, and the options to be one. Ours may lie where only root can enter."""
    if os.geteuid() != 0:
        return sys.executable, {}
    plain = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    for candidate in (sys.executable, "/usr/bin/python3"):
        command = [candidate, "-c", "import hermes_worker.settings, yaml"]
        with suppress(OSError):
            if subprocess.run(command, env=ENVIRON, stderr=subprocess.DEVNULL, check=False, **plain).returncode == 0:
                return candidate, plain
    pytest.skip("no Python here can be run by a plain user")


def python(code: str, environ: Mapping[str, str] | None = None, **options: Any) -> subprocess.Popen[str]:
    """A program of a plain user."""
    program, user = interpreter()
    return subprocess.Popen(
        [program, "-c", code],
        env={**ENVIRON, **(environ or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **user,
        **options,
    )


def said_by(code: str, environ: Mapping[str, str] | None = None, **options: Any) -> dict[str, object]:
    process = python(f"import json\n{BEGUN}{code}", environ, **options)
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    document = json.loads(out)
    assert isinstance(document, dict)
    return document


def test_what_is_handed_over_is_read_once_and_leaves_nothing_behind() -> None:
    given = Handover(variables={"A": "secret ü \udc80"}, is_complete=True, withheld=frozenset({"server.key"}))
    with open_sealed(given.to_bytes()) as descriptor:
        number = os.dup(descriptor)
        environ = {SECRETS_FD: str(number), "PATH": "/bin"}
        assert take_handover(environ) == given
    assert environ == {"PATH": "/bin"}
    assert take_handover(environ) is None
    with pytest.raises(OSError):
        os.fstat(number)


@LINUX
def test_nobody_can_change_what_is_handed_over_and_programs_do_not_inherit_it() -> None:
    with open_sealed(b"secret") as descriptor:
        assert not os.get_inheritable(descriptor)
        for change in (lambda: os.pwrite(descriptor, b"other!", 0), lambda: os.ftruncate(descriptor, 0)):
            with pytest.raises(PermissionError):
                change()


@pytest.mark.parametrize("number", ["77777", "x", "-1"])
def test_a_descriptor_that_is_none_of_ours_is_one_sentence(number: str) -> None:
    with pytest.raises(ConfigurationError, match="remove it from the environment"):
        take_handover({SECRETS_FD: number})


@LINUX
def test_a_program_starts_again_without_the_secrets_of_its_environment_and_still_has_them() -> None:
    shown = """
found = settings.load_settings()
handover.show_memory()  # a plain user could not look at itself
print(json.dumps({
    "environ": open("/proc/self/environ").read(),
    "arguments": open("/proc/self/cmdline").read(),
    "passed on": __import__("subprocess").check_output(["/usr/bin/env"], text=True),
    "descriptors": [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if int(fd) > 2
                    and os.path.islink(f"/proc/self/fd/{fd}")],
    "bot": found.environ["TELEGRAM_BOT_TOKEN"], "key": found.model.api_key.reveal(), "pid": os.getpid(),
    "library": os.environ.get("PGPASSWORD"), "ignored": __import__("signal").getsignal(1) == 1,
}))"""
    environ = {
        "TELEGRAM_BOT_TOKEN": "PLANTED-1",
        "OPENAI_API_KEY": "PLANTED-2",
        "AWS_SECRET_ACCESS_KEY": "PLANTED-3",
        "PGPASSWORD": "for-the-library",
        "OTHER": "stays",
    }
    process = python(f"import json\n{BEGUN}{shown}", environ, preexec_fn=lambda: signal.signal(1, signal.SIG_IGN))
    out, _ = process.communicate(timeout=PATIENCE_S)
    said = json.loads(out)
    assert "PLANTED" not in said["environ"] + said["arguments"] + said["passed on"]
    assert "for-the-library" not in said["environ"]
    assert "OTHER=stays" in said["environ"]
    assert not [link for link in said["descriptors"] if "secrets" in link]
    assert (said["bot"], said["key"], said["library"]) == ("PLANTED-1", "PLANTED-2", "for-the-library")
    assert said["pid"] == process.pid
    assert said["ignored"]


@LINUX
def test_another_program_of_the_same_user_can_read_neither_environment_nor_memory() -> None:
    """Root can: it is who the program must not be."""
    victim = python(
        f"{BEGUN}found = settings.load_settings()\nprint('ready', flush=True)\ninput()", {"X_API_KEY": "PLANTED"}
    )
    assert victim.stdout is not None
    assert victim.stdout.readline() == "ready\n"
    attempts = f"""
import ctypes, json, os
def tried(what):
    try:
        what()
    except OSError:
        return "refused"
    return "done"
proc = "/proc/{victim.pid}"
print(json.dumps({{
    "environ": tried(lambda: open(proc + "/environ", "rb").read()),
    "memory": tried(lambda: open(proc + "/mem", "rb").read(1)),
    "maps": tried(lambda: open(proc + "/maps", "rb").read()),
    "descriptors": tried(lambda: os.listdir(proc + "/fd")),
    "traced": ctypes.CDLL(None).ptrace(0x4206, {victim.pid}, 0, 0),
}}))"""
    spy = python(attempts)
    out, _ = spy.communicate(timeout=PATIENCE_S)
    victim.communicate("", timeout=PATIENCE_S)
    refused = dict.fromkeys(("environ", "memory", "maps", "descriptors"), "refused")
    assert json.loads(out) == refused | {"traced": -1}


@LINUX
def test_what_is_to_be_debugged_can_be_read() -> None:
    victim = python(f"{BEGUN}handover.show_memory()\nprint('ready', flush=True)\ninput()")
    assert victim.stdout is not None
    victim.stdout.readline()
    spy = python(f"print(len(open('/proc/{victim.pid}/environ', 'rb').read()) > 0)")
    assert spy.communicate(timeout=PATIENCE_S)[0] == "True\n"
    victim.communicate("", timeout=PATIENCE_S)


def test_no_core_is_written_and_new_files_are_private() -> None:
    folder = Path(tempfile.mkdtemp(dir="/tmp"))  # pytest's own cannot be entered by others
    folder.chmod(0o777)
    said = said_by(
        f"import resource; open({str(folder / 'new')!r}, 'w').close()\n"
        "print(json.dumps({'core': resource.getrlimit(resource.RLIMIT_CORE)[0], "
        "'commands': settings.load_settings().terminal.umask, 'again': os.environ['HERMES_STARTED_UMASK']}))",
        {"X_API_KEY": "secret"},
        umask=0o027,
    )
    assert said == {"core": 0, "commands": 0o027, "again": "027"}
    assert (folder / "new").stat().st_mode & 0o777 == 0o600
    shutil.rmtree(folder)


def test_the_umask_of_commands_can_be_set() -> None:
    said = said_by(
        "print(json.dumps({'commands': settings.load_settings().terminal.umask}))",
        {"HERMES_COMMAND_UMASK": "002", STARTED_UMASK: "077"},
    )
    assert said == {"commands": 0o002}
