"""Two at once on PostgreSQL: interleavings made on purpose, and then by the thousand."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from support.store import ANSWER, Store, asks, check, deadlocks, is_blocked, settlement, wait_until_blocked

from hermes_worker.core import events as ev
from hermes_worker.core.effects import RunTool
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import RunStatus
from hermes_worker.core.step import apply
from hermes_worker.store import rows
from hermes_worker.store.rows import lock_run
from hermes_worker.store.runs import find
from hermes_worker.store.transitions import save


@contextmanager
def stop_in_progress(store: Store, run_id: str) -> Iterator[None]:
    """A stop that has written everything and commits when the block ends."""
    with store.database.write() as connection:
        loaded = lock_run(connection, find(connection, run_id))
        assert loaded is not None
        save(connection, loaded, apply(loaded.run, ev.StopRequested()))
        yield


def in_thread(work: Callable[[], Any]) -> Future[Any]:
    future: Future[Any] = Future()

    def body() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=body, daemon=True).start()
    return future


def test_a_waiting_run_that_is_being_stopped_is_not_given_the_turn(postgres_store: Store) -> None:
    """The end of the run before it used to fail on it, and with it that run's answer was lost."""
    store = postgres_store
    first, second, third = (store.submit(session_id="s").run_id for _ in range(3))
    claim = store.turn(first)

    with stop_in_progress(store, second):
        answered = in_thread(lambda: store.runs.commit_reply(claim, ANSWER, ()))
        wait_until_blocked(store)
    hints = answered.result(timeout=20)

    assert store.status(first) is RunStatus.COMPLETED
    assert store.status(second) is RunStatus.CANCELLED
    assert [hint.effect.run_id for hint in hints] == [third]
    check(store)


def test_a_run_that_joins_a_session_while_its_last_run_ends_gets_its_turn(postgres_store: Store) -> None:
    store = postgres_store
    first = store.submit(session_id="s").run_id

    with stop_in_progress(store, first):
        second = in_thread(lambda: store.submit(session_id="s"))
        wait_until_blocked(store)

    assert len(second.result(timeout=20).hints) == 1
    check(store)


def test_a_run_that_joins_a_session_first_is_found_by_the_run_that_ends(postgres_store: Store) -> None:
    store = postgres_store
    first = store.submit(session_id="s").run_id
    claim = store.turn(first)

    with store.database.write() as connection:
        connection.execute(sa.text("select pk from sessions for update"))
        answered = in_thread(lambda: store.runs.commit_reply(claim, ANSWER, ()))
        wait_until_blocked(store)
    second = store.submit(session_id="s")

    hints = answered.result(timeout=20)
    assert len(hints) + len(second.hints) == 1
    check(store)


def test_a_stop_that_waits_while_the_run_moves_on_locks_in_the_agreed_order(
    postgres_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lets go of the run before it locks the new iteration's calls, or a settle and it wait for each other."""
    store = postgres_store
    run_id = store.submit().run_id
    claim = store.turn(run_id)
    asked = asks(Replay.PURE, Replay.PURE)
    tool_claimed, stop_goes_on = threading.Event(), threading.Event()
    lock_calls = rows._LOCK_CALLS
    passes: list[int] = []

    class Watched:
        def all(self, connection: Any, values: Any) -> Any:
            if threading.current_thread().name == "stop":
                passes.append(values["iteration"])
                if len(passes) == 2:
                    tool_claimed.set()
                    assert stop_goes_on.wait(20)
            return lock_calls.all(connection, values)

    monkeypatch.setattr(rows, "_LOCK_CALLS", Watched())
    stopped: Future[Any] = Future()
    with store.database.write() as connection:
        # The reply is written and not committed; the stop has seen iteration 0 and waits for the run's lock.
        after = apply(claim.loaded.run, ev.ModelReplied(calls=asked.calls))
        from hermes_worker.store.runs import _reply_additions

        additions = _reply_additions(claim.loaded, asked.reply, ev.ModelReplied(calls=asked.calls))
        save(connection, claim.loaded, after, additions)
        threading.Thread(
            target=lambda: stopped.set_result(store.runs.request_stop(run_id)), name="stop", daemon=True
        ).start()
        wait_until_blocked(store)
    assert tool_claimed.wait(20)  # the stop is about to lock the calls of iteration 1
    call = store.calls.claim(RunTool(run_id=run_id, iteration=1, position=0, attempt=1), store.owner)
    assert call is not None
    settled = in_thread(lambda: store.calls.settle(call, settlement()))
    while not settled.done() and not is_blocked(store):
        time.sleep(0.005)
    stop_goes_on.set()
    settled.result(timeout=20)

    assert stopped.result(timeout=20)[0] in (RunStatus.CANCELLED, RunStatus.STOPPING)
    assert passes == [0, 1]
    assert deadlocks(store) == 0
    check(store)
