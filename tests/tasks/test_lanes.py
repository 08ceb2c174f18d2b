"""Lanes: who starts them, how many, and what their parent says of their ends."""

from __future__ import annotations

import fcntl
import os
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa
from support.rig import until
from support.store import Store, opened

from hermes_worker import settings as settings_module
from hermes_worker.broker.queue import STANDING_QUEUES, QueueName, build_message, list_lane_queues
from hermes_worker.core.effects import Iterate, RunTool
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.settings import Settings
from hermes_worker.store.rows import Hint
from hermes_worker.store.tables import workers
from hermes_worker.tasks.build import WorkerOptions
from hermes_worker.worker import lanes as lanes_module
from hermes_worker.worker.lanes import _LaneParent
from hermes_worker.worker.main import WorkerPool, run_worker


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(f"sqlite:///{tmp_path / 'lanes.db'}") as store:
        yield store


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    environ = {"HOME": str(tmp_path), "HERMES_DATABASE_URL": f"sqlite:///{tmp_path / 'lanes.db'}"}
    return settings_module.load_settings({**environ, "HERMES_LANES_MAX": "2", "HERMES_LEASE_TTL_S": "1"})


class Parent:
    """A parent of lanes in a process of its own, whose lanes do what a test wants."""

    def __init__(self, settings: Settings, directory: Path, live: Callable[[], int]) -> None:
        self._directory = directory
        reader, self._writer = os.pipe()

        def be_parent() -> None:
            os.close(self._writer)
            _LaneParent(settings, self._starting(live), "w", _above_1023(reader)).run()

        self.pid = lanes_module._fork(be_parent)
        os.close(reader)

    def _starting(self, live: Callable[[], int]) -> Callable[[str], int]:
        def start(name: str) -> int:
            (self._directory / name).touch()

            return lanes_module._fork(live)

        return start

    def say(self, orders: bytes) -> None:
        os.write(self._writer, orders)

    def names(self) -> list[str]:
        return sorted(path.name for path in self._directory.glob("w:lane-*"))

    def lanes(self) -> list[psutil.Process]:
        return psutil.Process(self.pid).children()

    def end(self) -> int:
        os.close(self._writer)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _above_1023(descriptor: int) -> int:
    """As that of a worker which holds much; ``select`` takes none of these."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD, 1_100)


def sleeping() -> int:
    time.sleep(600)
    return 0


def state_of(store: Store, name: str) -> str:
    with store.database.read() as connection:
        return connection.execute(sa.select(workers.c.state).where(workers.c.name == name)).scalar_one()


def test_a_lane_that_ends_by_itself_is_entered_as_crashed(store: Store, settings: Settings, tmp_path: Path) -> None:
    parent = Parent(settings, tmp_path, sleeping)
    parent.say(b"+")
    [name] = until(lambda: parent.names() or None, "a lane")
    store.worker(name)
    [lane] = until(lambda: parent.lanes() or None, "its process")

    lane.kill()

    until(lambda: state_of(store, name) == "crashed" or None, "the parent to report it")
    assert parent.end() == 0


def test_a_lane_that_is_told_to_leave_is_not_said_to_have_crashed(
    store: Store, settings: Settings, tmp_path: Path
) -> None:
    parent = Parent(settings, tmp_path, sleeping)  # SIGTERM kills it, as it does one that has only just begun
    parent.say(b"+")
    [name] = until(lambda: parent.names() or None, "a lane")
    store.worker(name)
    until(lambda: parent.lanes() or None, "its process")

    parent.say(b"q")

    assert os.waitstatus_to_exitcode(os.waitpid(parent.pid, 0)[1]) == 0
    assert state_of(store, name) == "alive"


def test_the_end_of_a_worker_is_the_end_of_its_lanes(settings: Settings, tmp_path: Path) -> None:
    parent = Parent(settings, tmp_path, sleeping)
    parent.say(b"+")
    [lane] = until(lambda: parent.lanes() or None, "a lane")

    assert parent.end() == 0
    assert not lane.is_running()


def test_no_more_lanes_are_started_than_there_may_be(settings: Settings, tmp_path: Path) -> None:
    parent = Parent(settings, tmp_path, sleeping)
    for wanted in (1, 2):
        parent.say(b"+")
        until(lambda wanted=wanted: len(parent.names()) == wanted or None, "a lane more")
    parent.say(b"+")
    parent.say(b"q")
    os.waitpid(parent.pid, 0)
    assert len(parent.names()) == 2


def test_no_process_waits_for_suspects_before_there_are_any(store: Store, settings: Settings) -> None:
    before = set(psutil.Process().children())
    pool = lanes_module.open_lanes(settings, WorkerOptions(name="w", queues=("tools",)))
    assert pool is not None
    try:
        assert set(psutil.Process().children()) == before

        pool.request_lane()

        parent = until(lambda: next(iter({*psutil.Process().children()} - before), None), "the parent of its lanes")
        # Its lane, which finds no broker here, may be over before it is seen.
        until(lambda: "lane starter of w" in " ".join(parent.cmdline()) or None, "its title")
    finally:
        pool.drain_lanes()
        pool.wait(60)
    assert not parent.is_running()


def test_a_worker_that_leaves_without_suspects_has_started_no_process(settings: Settings) -> None:
    before = set(psutil.Process().children())
    pool = lanes_module.open_lanes(settings, WorkerOptions(name="w", queues=("tools",)))
    assert pool is not None
    pool.drain_lanes()
    pool.wait(60)
    assert set(psutil.Process().children()) == before


def test_each_worker_has_lanes_for_its_own_kind_of_work() -> None:
    assert list_lane_queues(["model", "system"]) == (QueueName.SUSPECT_MODEL,)
    assert list_lane_queues(["tools", "delivery"]) == (QueueName.SUSPECT_TOOLS, QueueName.SUSPECT_DELIVERY)
    assert list_lane_queues(["suspect_model"]) == list_lane_queues(["system"]) == ()
    assert not any(queue.is_for_lanes for queue in STANDING_QUEUES)


def test_the_message_of_a_suspect_goes_where_only_lanes_take_it() -> None:
    ask = Iterate(run_id="r", iteration=1, attempt=2, is_suspect=True)
    call = RunTool(run_id="r", iteration=1, position=0, attempt=2, is_suspect=True)
    assert build_message(Hint(effect=ask, at=1.0))[1:] == (QueueName.SUSPECT_MODEL, ["r", 1, 2, 1.0])
    assert build_message(Hint(effect=call, at=1.0))[1:] == (QueueName.SUSPECT_TOOLS, ["r", 1, 0, 2, 1.0])


@pytest.mark.parametrize(
    ("queues", "pool", "concurrency"),
    [
        (("suspect_tools", "tools"), WorkerPool.THREADS, 1),
        (("suspect_tools",), WorkerPool.PREFORK, 1),
        (("suspect_tools",), WorkerPool.THREADS, 2),
    ],
)
def test_a_worker_that_would_try_suspects_in_company_does_not_start(
    settings: Settings, queues: tuple[str, ...], pool: WorkerPool, concurrency: int
) -> None:
    with pytest.raises(ConfigurationError, match="one at a time"):
        run_worker(settings, WorkerOptions(queues=queues), pool=pool, concurrency=concurrency)
