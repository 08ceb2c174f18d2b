"""A fleet goes from the version before the newest schema to this one, with a hundred runs at work."""

from __future__ import annotations

import re
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.commandline import CommandLine, Running, call, script, wait_for
from support.patience import PATIENCE_S
from support.previous import previous_program

from hermes_worker.store.engine.database import Database
from hermes_worker.store.revisions import MIGRATIONS, find_newest, list_revisions
from hermes_worker.store.tables import runs, tool_calls, workers

pytestmark = pytest.mark.machine

_TASK = script(*({**call("todo"), "delay_s": 0.2, "text": "On."} for _ in range(6)), final="Done.")
_SUBMIT = """
import sys
from hermes_worker.cli.entry import main
for _ in range(int(sys.argv[1])):
    try:
        main(["submit", sys.argv[2]])
    except SystemExit as ended:
        if ended.code: raise
"""
_ROLES = (
    ("worker", "--queues", "model", "--concurrency", "16"),
    ("worker", "--queues", "tools,system,delivery", "--concurrency", "8"),
)


class Fleet:
    """The commands of one version, and its workers while they run."""

    def __init__(self, hermes: CommandLine, folder: Path, python: Path | None = None) -> None:
        """``python`` is that of the version before. It works in ``folder``: in a checkout it would import that."""
        self._hermes = hermes
        self._folder = folder
        self._python = python
        self._running: list[Running] = []

    def start(self, stack: ExitStack) -> None:
        self._running = [stack.enter_context(self._hermes.started(*role, cwd=self._folder)) for role in _ROLES]
        for worker in self._running:
            worker.wait_for_line("worker.started")

    def leave(self) -> None:
        """As Kubernetes ends a pod."""
        for worker in self._running:
            worker._process.send_signal(signal.SIGTERM)
        for worker in self._running:
            assert worker.wait(PATIENCE_S) == 0, worker.output
            assert "Traceback" not in worker.output

    def submit(self, count: int) -> None:
        if self._python is None:
            for _ in range(count):
                assert self._hermes.inline("submit", _TASK).code == 0
            return
        argv = [str(self._python), "-c", _SUBMIT, str(count), _TASK]
        done = subprocess.run(
            argv, env=self._hermes.environ, cwd=self._folder, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr


@pytest.fixture
def environ(tmp_path: Path, empty_postgres_url: str, broker_url: str) -> Iterator[dict[str, str]]:
    environ = {"HERMES_DATABASE_URL": empty_postgres_url, "HERMES_BROKER_URL": broker_url, "HERMES_DRAIN_S": "10"}
    with CommandLine(tmp_path / "home", environ).started("scripted-model", "--port", "0") as model:
        url = model.wait_for_line(r"(http://\S+/v1)")[1]
        yield {**environ, "HERMES_BASE_URL": url, "HERMES_MODEL": "scripted"}


@contextmanager
def looking_at(url: str) -> Iterator[sa.Connection]:
    database = Database(url)
    try:
        with database.read() as connection:
            yield connection
    finally:
        database.close()


def open_runs(url: str) -> int:
    with looking_at(url) as connection:
        return int(connection.scalar(sa.select(sa.func.count()).where(runs.c.finished_at.is_(None))) or 0)


def test_a_hundred_runs_survive_an_upgrade(tmp_path: Path, environ: dict[str, str]) -> None:
    python = previous_program(tmp_path)
    program = (str(python), "-m", "hermes_worker")
    before = CommandLine(tmp_path / "home", environ, program=program)
    old = Fleet(before, tmp_path, python)
    new = Fleet(CommandLine(tmp_path / "home", environ), tmp_path)
    url = environ["HERMES_DATABASE_URL"]
    migrated = before("migrate", cwd=tmp_path)
    assert migrated.code == 0, migrated.said
    assert find_newest() not in migrated.out, "this is not the version before"

    with ExitStack() as stack:
        old.start(stack)
        old.submit(60)
        assert CommandLine(tmp_path / "home", environ).inline("migrate").code == 0
        new.start(stack)
        new.submit(40)
        wait_for(lambda: _versions(url)[find_newest()] == len(_ROLES))
        assert open_runs(url) > 0, "the fleets never worked side by side"
        old.leave()
        wait_for(lambda: open_runs(url) == 0, within_s=120)
        new.leave()
    late = before("runs", "list", cwd=tmp_path)
    if _works_with_the_version_before():
        assert late.code == 0, late.said
    else:
        assert late.code != 0 and find_newest() in late.said

    with looking_at(url) as connection:
        ended = Counter(connection.execute(sa.select(runs.c.status, runs.c.exit_reason)).tuples())
        called = Counter(connection.execute(sa.select(tool_calls.c.status)).scalars())
    assert ended == {("completed", "text_response"): 100}
    assert called == {"succeeded": 600}


def _works_with_the_version_before() -> bool:
    """Whether the newest revision only expands: docs/migrations.md."""
    (newest,) = (MIGRATIONS / "versions").glob(f"{find_newest()}_*.py")
    found = re.search(r'^works_with = "(\d+)"', newest.read_text(encoding="utf-8"), re.MULTILINE)
    return found is not None and found[1] <= max(list_revisions() - {find_newest()})


def _versions(url: str) -> Counter[str]:
    """How many live workers are written for which revision."""
    with looking_at(url) as connection:
        alive = connection.execute(sa.select(workers.c.version).where(workers.c.state == "alive")).scalars()
        return Counter((version or "/").rpartition("/")[2] for version in alive)
