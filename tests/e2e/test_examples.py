"""The example applications, each copied by ``dev new`` and started as its README says, without a key."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.commandline import CommandLine
from support.documents import find_programs
from support.patience import PATIENCE_S

from hermes_worker.cli.stack import find_free_port

pytestmark = [pytest.mark.e2e]
ROOT = Path(__file__).resolve().parents[2]
PORT = re.compile(r"\b(?:8642|89[0-9]{2})\b")
"""The ports of READMEs and programs; each test has others."""
PATIENT = PATIENCE_S * 4
"""For a stack that starts, works and is drained."""


class Example:
    """A copy of an example, whose ports are free ones."""

    def __init__(self, name: str, folder: Path) -> None:
        self.directory, self.home = folder / name, folder / name / "home"
        copied = CommandLine(folder / "unused")("dev", "new", str(self.directory), "--example", name)
        assert copied.code == 0, copied.said
        self.ports: dict[str, str] = {}
        for path in self.directory.rglob("*"):
            if path.suffix in (".md", ".py"):
                path.write_text(PORT.sub(self._choose_port, path.read_text()))
        self.environ = {
            **{name: os.environ[name] for name in ("LANG", "LC_ALL", "TMPDIR") if name in os.environ},
            "PATH": f"{find_programs()}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join([str(self.directory), *sys.path]),
            "HOME": str(folder),
            "HERMES_SERVER_PORT": self._choose_port(re.match("8642", "8642")),
        }

    def _choose_port(self, found: re.Match[str] | None) -> str:
        assert found is not None
        return self.ports.setdefault(found[0], str(find_free_port()))

    @property
    def commands(self) -> str:
        return (self.directory / "README.md").read_text().partition("```sh\n")[2].partition("```")[0]

    def play(self) -> str:
        """Play the commands of the README to their end, and return what they say."""
        said = self.directory.parent / "said.txt"  # what is left behind may hold a pipe open
        with said.open("wb") as out:
            process = subprocess.Popen(
                ["bash", "-euc", self.commands], cwd=self.directory, env=self.environ, stdin=subprocess.DEVNULL,
                stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
        try:
            assert process.wait(PATIENT) == 0, said.read_text()
            return said.read_text()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            CommandLine(self.home)("down", "--home", str(self.home))

    def list_runs(self) -> list[dict[str, Any]]:
        told = CommandLine(self.home).inline("runs", "list", "--all", "--json")
        return [json.loads(line) for line in told.out.splitlines()]


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[Any]:
    yield lambda name: Example(name, tmp_path)


def test_the_coding_agent_mends_the_program(copy: Any) -> None:
    example = copy("coding-agent")
    tests = [sys.executable, "-m", "unittest", "discover", "-q", "-s", "project"]
    assert subprocess.run(tests, cwd=example.directory, capture_output=True).returncode == 1

    example.play()

    assert subprocess.run(tests, cwd=example.directory, capture_output=True).returncode == 0


@pytest.mark.nightly
def test_the_research_fans_out_within_one_budget(copy: Any) -> None:
    example = copy("research")
    said = example.play()
    assert "| stream | 14,000 | another worker claims it |" in said, said
    runs = example.list_runs()
    assert {run["status"] for run in runs} == {"completed"}
    assert len(runs) == 4


@pytest.mark.nightly
def test_the_nightly_report_reaches_the_chat_and_the_mailbox(copy: Any) -> None:
    said = copy("nightly-report").play()
    assert "--- chat ops" in said
    assert "--- mail to ann@example.org" in said
    assert said.count("214 orders") >= 2


def test_the_support_inbox_asks_before_it_pays(copy: Any) -> None:
    example = copy("support-inbox")
    said = example.play()
    told = [said.find(words) for words in ("pay back order 17", "ada: /approve", "Order 17 is paid back.")]
    assert -1 < told[0] < told[1] < told[2], said
    [booked] = [json.loads(path.read_text()) for path in (example.home / "refunds").iterdir()]
    assert booked == {"order": 17, "cents": 4_200}


@pytest.mark.nightly
def test_an_order_of_the_fastapi_shop_and_its_run_are_one_transaction(copy: Any) -> None:
    example = copy("fastapi-shop")
    said = example.play()
    assert "order 1, a lamp, is packed by run_" in said
    assert "there is no nothing" in said
    assert "no order, and no run" in said
    [run] = example.list_runs()
    assert run["status"] == "completed"


@pytest.mark.nightly
def test_an_order_of_the_celery_shop_is_packed(copy: Any) -> None:
    example = copy("celery-shop")
    assert "order 17 is packed" in example.play()
    [run] = example.list_runs()
    assert run["status"] == "completed"


# --- the fleet -------------------------------------------------------------------------------------------------------


class Fleet:
    """Stands in for Docker: the services of the compose file that are ours, each as a process of this machine, and the
    tests' own PostgreSQL and Valkey in the place of the others."""

    def __init__(self, example: Example, hosts: Mapping[str, str], stack: ExitStack) -> None:
        self._example, self._hosts, self._stack = example, hosts, stack
        self._services = yaml.safe_load((example.directory / "compose.yaml").read_text())["services"]
        self._running: dict[str, list[Any]] = {}
        self.killed = 0

    def call(self, words: list[str]) -> str:
        """Do what ``docker compose`` does with these words."""
        match words:
            case ["up", "--detach", "--scale", scale]:
                name, _, count = scale.partition("=")
                assert self._command("migrate", *self._services["migrate"]["command"]).code == 0
                for service in ("scripted", "api", "model", "tools", "beat"):
                    self._start(service, int(count) if service == name else 1)
                return ""
            case ["exec", service, "hermes-worker", *arguments]:
                done = self._command(service, *arguments)
                assert done.code == 0, done.said
                return done.out
            case ["kill", service]:
                for running in self._running.pop(service):
                    running.kill()
                    self.killed += 1
                return ""
            case ["down"]:
                for running in [each for some in self._running.values() for each in some]:
                    running.interrupt()
                assert all(running.wait(PATIENT) == 0 for some in self._running.values() for running in some)
                return ""
        raise AssertionError(f"the README says docker compose {' '.join(words)}")

    def _start(self, service: str, count: int) -> None:
        there = self._running.setdefault(service, [])
        while len(there) < count:
            command = [self._fill(word) for word in self._services[service]["command"]]
            if service == "api":
                command += ["--port", self._example.ports["8642"]]
            there.append(self._stack.enter_context(self._line(service).started(*command)))

    def _command(self, service: str, *arguments: str) -> Any:
        return self._line(service)(*arguments)

    def _line(self, service: str) -> CommandLine:
        given = {name: self._fill(value) for name, value in self._services[service]["environment"].items()}
        # A sandbox and a home are the machine's own.
        given |= {"HERMES_HOME": str(self._example.home), "HERMES_SANDBOX": "auto", "HERMES_METRICS_PORT": "0"}
        return CommandLine(self._example.home, {**given, **self._hosts} if "HERMES_DATABASE_URL" in given else given)

    def _fill(self, value: str) -> str:
        dotenv = dict(line.split("=", 1) for line in (self._example.directory / ".env").read_text().splitlines())
        filled = re.sub(r"\$\{(\w+)(?::?[-?]([^}]*))?\}", lambda found: dotenv.get(found[1]) or found[2] or "", value)
        return filled.replace("8900", self._example.ports.setdefault("8900", str(find_free_port())))


@pytest.mark.nightly
def test_the_fleet_works_on_after_its_tools_were_killed(copy: Any, postgres_url: str, broker_url: str) -> None:
    """In containers: unverified live."""
    example = copy("fleet")
    example.home.mkdir()
    hosts = {"HERMES_DATABASE_URL": postgres_url, "HERMES_BROKER_URL": broker_url}
    made, _, rest = example.commands.partition("done\n")
    subprocess.run(["bash", "-euc", f"{made}done"], cwd=example.directory, check=True)
    with ExitStack() as stack:
        fleet = Fleet(example, hosts, stack)
        said = [fleet.call(_split(line)) for line in rest.splitlines()]
    assert fleet.killed == 2
    assert sum("I surveyed the directory" in each for each in said) == 2
    assert "tools" in said[2]


def _split(line: str) -> list[str]:
    program, compose, *words = shlex.split(line)
    assert (program, compose) == ("docker", "compose")
    return words


# --- copying ---------------------------------------------------------------------------------------------------------


def test_every_example_is_one_that_a_test_starts(hermes: CommandLine) -> None:
    told = hermes.inline("dev", "new", "shop")
    assert told.code == 2
    listed = set(re.findall(r"[a-z]+(?:-[a-z]+)*(?=[,:])", told.err.partition("there are ")[2]))
    folders = {path.parent for path in (ROOT / "examples").glob("*/README.md")}
    assert listed == {path.name for path in folders if not (path / "pyproject.toml").exists()}, "others are packages"
    started = set(re.findall(r'copy\("([a-z-]+)"\)', Path(__file__).read_text()))
    assert listed == started


def test_a_copy_overwrites_nothing_and_takes_no_state_along(hermes: CommandLine, tmp_path: Path) -> None:
    wrong = hermes.inline("dev", "new", str(tmp_path / "x"), "--example", "fastapi-shp")
    assert (wrong.code, "Did you mean 'fastapi-shop'?" in wrong.err) == (2, True)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    refused = hermes.inline("dev", "new", str(tmp_path / "full"), "--example", "research")
    assert (refused.code, "is not empty" in refused.err) == (2, True)
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine.txt"]
    assert hermes.inline("dev", "new", str(tmp_path / "new"), "--example", "celery-shop").code == 0
    kinds = {path.suffix for path in (tmp_path / "new").rglob("*") if path.is_file()}
    assert kinds <= {".md", ".py", ".sh", ".yaml"}
