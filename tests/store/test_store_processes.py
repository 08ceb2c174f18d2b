"""Background processes as rows, and the turns that tell of them, over a host that the test plays."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.store import Store, check, deadlocks

from hermes_worker.core.errors import LeaseLost
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import RunStatus
from hermes_worker.features.retention.deleting_rows import delete_chain
from hermes_worker.safety.redaction import Redactor
from hermes_worker.store.engine.database import db_now
from hermes_worker.store.rows import Hint
from hermes_worker.store.runs.processes import RUNNING_MAX, NewProcess, Processes, ProcessReading, TooManyProcesses
from hermes_worker.store.tables import processes, runs, sessions
from hermes_worker.tasks.processes import ProcessWatcher, WatchContext
from hermes_worker.workspaces.base import HostUnreachable, PathNotFound
from hermes_worker.workspaces.processes import ProcessLook, ProcessOrder, ProcessState


class PlayedHost:
    """A workspace whose processes are what the test says."""

    def __init__(self) -> None:
        self.looks: dict[str, ProcessLook] = {}
        self.ended: list[str] = []
        self.is_away = False

    def look_at_process(self, name: str) -> ProcessLook:
        if self.is_away:
            raise HostUnreachable("it is away")
        if name not in self.looks:
            raise PathNotFound(name)
        return self.looks[name]

    def end_process(self, name: str) -> None:
        self.ended.append(name)

    def remove_process(self, name: str) -> None:
        self.looks.pop(name, None)

    def start_process(self, name: str, order: ProcessOrder) -> None:
        raise NotImplementedError

    def write_to_process(self, name: str, data: bytes, *, is_last: bool = False) -> None:
        raise NotImplementedError


class Watched:
    """A session with a process, and workers that watch it."""

    def __init__(self, store: Store, **new: Any) -> None:
        self.store, self.rows, self.host = store, Processes(store.database), PlayedHost()
        self.sent: list[Hint] = []
        self.root = store.with_tools(Replay.ONCE, session_id="s")
        claim = store.call(self.root)
        self.claim = claim
        given = {"command": "make", "lifetime_s": 100.0, "notifies": True, **new}
        self.name = self.rows.begin(claim, claim.session_pk, NewProcess(**given))
        self.rows.mark_started(self.name)
        self.plays(ProcessState.RUNNING)

    def plays(self, state: ProcessState, output: bytes = b"", **more: Any) -> None:
        self.host.looks[self.name] = ProcessLook(state=state, output=output, total=len(output), **more)

    def goes_on(self) -> None:
        """The run that started it ends."""
        self.store.calls.settle(self.claim, _ok())
        self.store.answer(self.root)

    def watcher(self) -> ProcessWatcher:
        class Sending:
            def send(inner, hints: Sequence[Hint]) -> int:
                self.sent.extend(hints)
                return len(hints)

            def count_waiting(inner) -> None:
                return None

        parts = WatchContext(
            rows=self.rows,
            calls=self.store.calls,  # type: ignore[arg-type]
            sender=Sending(),
            workspace=lambda ref: self.host,  # type: ignore[arg-type,return-value]
            processes_dir=Path("/nonexistent"),
            redactor=Redactor(),
            turns_max=8,
        )
        return ProcessWatcher(parts)

    def look(self) -> int:
        """As when it is time again."""
        self.due()
        return self.watcher().poll_once()

    def due(self) -> None:
        with self.store.database.write() as connection:
            due = sa.update(processes).where(processes.c.next_look_at.is_not(None))
            connection.execute(due.values(next_look_at=db_now() - 1.0))

    def row(self) -> Any:
        with self.store.database.read() as connection:
            return connection.execute(sa.select(processes)).one()

    def turns(self) -> list[str]:
        return [view.run_id for view in reversed(self.store.views.list_runs(session_id="s"))][1:]

    def told(self, run_id: str) -> str:
        return str(next(row["content"] for row in reversed(self.store.bodies(run_id)) if row["role"] == "user"))


def _ok() -> Any:
    from support.store import settlement

    return settlement()


def test_the_end_begins_a_turn_of_the_session_once(store: Store) -> None:
    watched = Watched(store)
    watched.goes_on()
    assert watched.look() == 1 and watched.turns() == []
    watched.plays(ProcessState.EXITED, b"it failed: TOKEN=ghp_0123456789abcdefghijABCDEFGHIJ012345\n", exit_code=2)
    watched.look()
    [turn] = watched.turns()
    assert [hint.effect.run_id for hint in watched.sent] == [turn]
    text = watched.told(turn)
    assert f"[BACKGROUND PROCESS {watched.name}: it has ended by itself with exit code 2 after" in text
    assert "it failed" in text and "ghp_0123456789" not in text and '<untrusted_tool_result source="process">' in text
    for _ in range(3):
        watched.look()
    assert watched.turns() == [turn]
    assert (watched.row().state, watched.row().is_consumed) == ("exited", 1)
    store.answer(turn)
    check(store)


def test_the_turn_waits_for_the_run_that_started_it(store: Store) -> None:
    watched = Watched(store)
    watched.plays(ProcessState.EXITED, exit_code=0)
    watched.look()
    assert watched.turns() == [] and watched.row().state == "running"
    watched.goes_on()
    watched.look()
    assert len(watched.turns()) == 1
    check(store)


def test_a_session_that_saw_the_end_is_not_told_of_it(store: Store) -> None:
    watched = Watched(store)
    watched.rows.mark_consumed(watched.name, "exited", 0)
    watched.goes_on()
    watched.plays(ProcessState.EXITED, exit_code=0)
    watched.look()
    assert watched.turns() == []
    assert (watched.row().state, watched.row().exit_code) == ("exited", 0)


def test_who_did_not_ask_is_not_told(store: Store) -> None:
    watched = Watched(store, notifies=False)
    watched.goes_on()
    watched.plays(ProcessState.EXITED, exit_code=0)
    watched.look()
    assert watched.turns() == [] and watched.row().state == "exited"


def test_of_workers_that_look_at_once_one_begins_the_turn(store: Store) -> None:
    watched = Watched(store)
    watched.goes_on()
    watched.plays(ProcessState.EXITED, exit_code=0)
    watched.due()
    [due] = watched.rows.claim_due()
    seen = ProcessReading(state="exited", exit_code=0, told="it ended", again_s=None)
    with ThreadPoolExecutor(4) as pool:
        written = list(pool.map(lambda _: watched.rows.record_look(due, seen, turns_max=8)[0], range(8)))
    assert sorted(written) == [*[False] * 7, True]
    assert len(watched.turns()) == 1
    assert store.database.is_sqlite or deadlocks(store) == 0
    check(store)


def test_of_workers_that_ask_what_is_due_one_gets_it(store: Store) -> None:
    watched = Watched(store)
    watched.due()
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda _: len(watched.rows.claim_due()), range(8)))
    assert sum(got) == 1
    # One that was killed with it leaves it to the next a minute later.
    with store.database.read() as connection:
        again = connection.execute(sa.select(processes.c.next_look_at - db_now())).scalar_one()
    assert 30 < again <= 60


def test_output_that_is_watched_for_begins_turns_within_limits(store: Store) -> None:
    watched = Watched(store, notifies=False, patterns=("ERROR", "ready"))
    watched.goes_on()
    watched.plays(ProcessState.RUNNING, b"starting\nready on port 80\nhalf an ERR")
    watched.look()
    [turn] = watched.turns()
    assert "ready on port 80" in watched.told(turn) and "starting" not in watched.told(turn)
    store.answer(turn)
    watched.plays(ProcessState.RUNNING, b"starting\nready on port 80\nhalf an ERROR here\n")
    watched.look()
    assert watched.turns() == [turn]  # too soon
    assert watched.row().suppressed == 1
    with store.database.write() as connection:
        connection.execute(sa.update(processes).values(told_at=processes.c.told_at - 20.0))
    watched.plays(ProcessState.RUNNING, b"starting\nready on port 80\nhalf an ERROR here\nERROR two\n")
    watched.look()
    [_, second] = watched.turns()
    assert "ERROR two" in watched.told(second) and "1 earlier lines matched" in watched.told(second)
    store.answer(second)
    check(store)


def test_a_flood_of_all_processes_waits(store: Store) -> None:
    watched = Watched(store, notifies=False, patterns=("x",))
    watched.goes_on()
    with store.database.write() as connection:
        row = dict(connection.execute(sa.select(processes)).mappings().one())
        for number in range(15):
            copy = {**row, "pk": None, "process_id": f"proc_{number:012x}", "told_at": db_now(), "next_look_at": None}
            del copy["pk"]
            connection.execute(sa.insert(processes).values(**copy))
    watched.plays(ProcessState.RUNNING, b"x\n")
    watched.look()
    assert watched.turns() == []
    with store.database.write() as connection:
        connection.execute(sa.update(processes).where(processes.c.told_at.is_not(None)).values(told_at=0.0))
    watched.look()
    assert len(watched.turns()) == 1


def test_a_chain_that_may_begin_no_more_turns_is_told_nothing(store: Store) -> None:
    watched = Watched(store)
    watched.goes_on()
    watched.due()
    [due] = watched.rows.claim_due()
    seen = ProcessReading(state="exited", exit_code=0, told="it ended", again_s=None)
    assert watched.rows.record_look(due, seen, turns_max=0) == (True, [])
    assert watched.turns() == []
    check(store)


def test_nothing_is_told_to_who_was_stopped(store: Store) -> None:
    watched = Watched(store)
    store.runs.request_stop(watched.root)
    watched.plays(ProcessState.EXITED, exit_code=0)
    store.sweep()
    watched.look()
    assert watched.turns() == []


def test_a_host_that_is_away_is_asked_again(store: Store) -> None:
    watched = Watched(store)
    watched.host.is_away = True
    watched.look()
    assert watched.row().state == "running" and watched.row().next_look_at is not None


def test_what_is_gone_where_it_ran_has_died(store: Store) -> None:
    watched = Watched(store)
    watched.goes_on()
    watched.host.looks.clear()
    watched.look()
    assert watched.row().state == "lost"
    assert "has died" in watched.told(watched.turns()[0])


@pytest.mark.parametrize("why", ["session_ended", "erasure", "time", "child"])
def test_what_nobody_needs_any_more_is_ended(store: Store, why: str) -> None:
    watched = Watched(store)
    with store.database.write() as connection:
        if why == "session_ended":
            connection.execute(sa.update(sessions).values(ended_at=db_now() + 1.0))
        elif why == "erasure":
            connection.execute(sa.update(sessions).values(erasure_pk=1))
        elif why == "time":
            connection.execute(sa.update(processes).values(deadline_at=db_now() - 1.0))
    if why == "child":
        [child] = _child_of(store)
        with store.database.write() as connection:
            pk = connection.execute(sa.select(runs.c.pk).where(runs.c.run_id == child)).scalar_one()
            connection.execute(sa.update(processes).values(run_pk=pk))
        watched.look()
        assert watched.host.ended == []
        store.answer(child)
    watched.look()
    assert watched.host.ended == [watched.name]


def _child_of(store: Store) -> list[str]:
    root = store.with_tools(Replay.PURE, session_id="other")
    return store.delegate(root, 1)


def test_a_session_has_so_many_at_once(store: Store) -> None:
    watched = Watched(store)
    for _ in range(RUNNING_MAX - 1):
        watched.rows.begin(watched.claim, watched.claim.session_pk, NewProcess(command="x", lifetime_s=1.0))
    with pytest.raises(TooManyProcesses):
        watched.rows.begin(watched.claim, watched.claim.session_pk, NewProcess(command="x", lifetime_s=1.0))
    watched.rows.mark_consumed(watched.name, "killed", 130)
    last = watched.rows.begin(watched.claim, watched.claim.session_pk, NewProcess(command="x", lifetime_s=1.0))
    watched.rows.mark_not_started(last)
    assert watched.rows.find(watched.claim.session_pk, last) is None
    assert len(watched.rows.list_of_session(watched.claim.session_pk)) == RUNNING_MAX


def test_who_lost_the_call_starts_nothing(store: Store) -> None:
    watched = Watched(store)
    store.calls.settle(watched.claim, _ok())
    with pytest.raises(LeaseLost):
        watched.rows.begin(watched.claim, watched.claim.session_pk, NewProcess(command="x", lifetime_s=1.0))


def test_of_one_that_ended_long_ago_nothing_is_kept_where_it_ran(store: Store) -> None:
    watched = Watched(store, notifies=False)
    watched.plays(ProcessState.EXITED, exit_code=0)
    watched.look()
    watched.look()
    assert watched.name in watched.host.looks
    with store.database.write() as connection:
        connection.execute(sa.update(processes).values(ended_at=db_now() - 2_000.0))
    watched.look()
    assert watched.host.looks == {} and watched.row().next_look_at is None
    assert (watched.row().state, watched.row().exit_code) == ("exited", 0)


def test_rows_go_with_their_chain_and_then_nobody_knows_the_process(store: Store) -> None:
    watched = Watched(store)
    watched.goes_on()
    assert watched.rows.find_known([watched.name, "proc_x"]) == {watched.name}
    with store.database.read() as connection:
        root = connection.execute(sa.select(runs.c.pk)).scalar_one()
    assert delete_chain(store.database, root, lambda connection: True) == 1
    assert watched.rows.find_known([watched.name]) == set()


def test_a_call_that_vanished_before_it_started_anything_leaves_no_process(store: Store) -> None:
    watched = Watched(store)
    name = watched.rows.begin(watched.claim, watched.claim.session_pk, NewProcess(command="x", lifetime_s=1.0))
    with store.database.write() as connection:
        connection.execute(sa.delete(processes).where(processes.c.process_id == watched.name))
    watched.look()
    assert watched.row().state == "starting"  # it may be about to start
    with store.database.write() as connection:
        connection.execute(sa.update(processes).values(started_at=db_now() - 100.0, deadline_at=db_now() + 100.0))
    watched.look()
    assert (watched.row().process_id, watched.row().state) == (name, "lost")


def test_the_new_turn_is_one_of_the_chain(store: Store) -> None:
    watched = Watched(store)
    watched.goes_on()
    watched.plays(ProcessState.EXITED, exit_code=0)
    watched.look()
    [turn] = watched.turns()
    with store.database.read() as connection:
        row = connection.execute(sa.select(runs).where(runs.c.run_id == turn)).one()
        root = connection.execute(sa.select(runs.c.pk).where(runs.c.run_id == watched.root)).scalar_one()
    assert (row.cause_pk, row.root_pk, row.has_budget) == (root, root, 1)
    assert store.status(turn) is RunStatus.RUNNING or row.status in ("queued", "running")
