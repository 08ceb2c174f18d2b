"""PostgreSQL on a disk that gets full under a fleet (a small tmpfs): what docs/operations.md says of it."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from support.rig import Rig, rig_on, sink_call, until

from hermes_worker.core.errors import UnavailableError
from hermes_worker.core.run import RunStatus
from hermes_worker.local.postgres import EmbeddedPostgres

pytestmark = pytest.mark.machine

RUNS = 24
_PIECE = b"x" * 4096


class SmallDisk:
    """A tmpfs, and a file on it that takes all room."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self) -> None:
        descriptor = os.open(self._ballast, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            while True:
                os.write(descriptor, _PIECE)
        except OSError:
            os.close(descriptor)

    def make_room(self) -> None:
        self._ballast.unlink()


@pytest.fixture
def directory() -> Iterator[Path]:
    """One that the server's account may enter."""
    found = Path(tempfile.mkdtemp(prefix="hermes-full-"))
    found.chmod(0o711)
    yield found
    shutil.rmtree(found, ignore_errors=True)


@contextmanager
def small_disk(path: Path, megabytes: int) -> Iterator[SmallDisk]:
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0711", "none", str(path)]
    done = subprocess.run(mount, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"a small disk needs the right to mount one: {done.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@contextmanager
def started(server: EmbeddedPostgres) -> Iterator[EmbeddedPostgres]:
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def at_work(directory: Path, database_url: str, broker_url: str) -> Iterator[Rig]:
    """A fleet whose runs all have a tool at work, which takes a second."""
    (directory / "rig").mkdir()
    with rig_on(directory / "rig", database_url=database_url, broker_url=broker_url, work_s=1.0) as rig:
        for number in range(RUNS):
            rig.submit([{"calls": [sink_call("once", f"{number}")]}], final="x" * 2000)
        until(lambda: len(rig.effects()) >= 4 or None, "tools to work")
        yield rig


def refusal(rig: Rig) -> str | None:
    """Why a submission is refused now; ``None`` for one that is accepted."""
    try:
        rig.submit([], final=os.urandom(8000).hex())
    except UnavailableError as error:
        return str(error)
    return None


def ends_well(rig: Rig) -> None:
    """Every accepted run ended, and nothing happened twice."""
    assert {view.status for view in rig.ended()} == {RunStatus.COMPLETED}
    assert rig.broken_invariants() == []
    assert rig.log_text().count("worker.started") == 4, "nobody was started again"


@contextmanager
def database_on(disk: SmallDisk, kind: str) -> Iterator[str]:
    if kind == "sqlite":
        yield f"sqlite:///{disk.path / 'state.db'}"
        return
    with started(EmbeddedPostgres(disk.path / "server", is_durable=False)) as server:
        yield server.create_database("hermes")


@pytest.mark.parametrize(
    ("kind", "reason"), [("postgresql", "could not extend file"), ("sqlite", "database or disk is full")]
)
def test_a_database_that_finds_no_room_refuses_and_goes_on(
    directory: Path, broker_url: str, kind: str, reason: str
) -> None:
    with (
        small_disk(directory / "disk", 128) as disk,
        database_on(disk, kind) as database_url,
        at_work(directory, database_url, broker_url) as rig,
    ):
        disk.fill()
        said = until(lambda: refusal(rig), "a submission to be refused")
        assert said.startswith(f"the database cannot write; make room on its disk: {reason}")
        until(lambda: "make room on its disk" in rig.log_text() or None, "a worker to say so")
        disk.make_room()
        ends_well(rig)


def test_a_server_that_stopped_for_want_of_room_for_its_log_is_only_started_again(
    directory: Path, broker_url: str
) -> None:
    with small_disk(directory / "disk", 24) as disk:
        server = EmbeddedPostgres(directory / "server", is_durable=False)
        server.initialise()
        log = server.directory / "data" / "pg_wal"
        shutil.move(log, disk.path / "pg_wal")
        log.symlink_to(disk.path / "pg_wal")
        account = pwd.getpwuid((server.directory / "data").stat().st_uid)
        for path in [disk.path / "pg_wal", *(disk.path / "pg_wal").rglob("*")]:
            os.chown(path, account.pw_uid, account.pw_gid)
        with (
            started(server),
            at_work(directory, server.create_database("hermes"), broker_url) as rig,
        ):
            disk.fill()
            until(lambda: _has_stopped(server), "the server to stop")
            assert refusal(rig) is not None
            disk.make_room()
            server.start()
            ends_well(rig)


def _has_stopped(server: EmbeddedPostgres) -> bool | None:
    """Use up the log that there is room for; whether the server has stopped."""
    try:
        with psycopg.connect(server.build_url().replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute("create table if not exists filler (number integer)")
            connection.execute("insert into filler select generate_series(1, 1000)")
            connection.execute("select pg_switch_wal()")
    except psycopg.Error:
        pass
    return True if server.pid is None or not Path(f"/proc/{server.pid}").exists() else None
