"""Two at once on PostgreSQL: interleavings made on purpose, and then by the thousand."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest
import sqlalchemy as sa
from support.patience import PATIENCE_S
from support.samples import sample_seeds
from support.store import (
    ANSWER,
    EMPTY,
    FULL,
    Store,
    asks,
    check,
    deadlocks,
    is_blocked,
    prepared,
    settlement,
    wait_until_blocked,
)

from hermes_worker.core import events as ev
from hermes_worker.core.effects import Iterate, RunTool
from hermes_worker.core.errors import InvalidTransition, LeaseLost
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import RunStatus
from hermes_worker.core.step import apply_event
from hermes_worker.store import rows
from hermes_worker.store.rows import lock_run
from hermes_worker.store.runs.calls import CallClaim
from hermes_worker.store.runs.runs import IterationClaim, SessionBusy, _build_reply_output, find_run
from hermes_worker.store.runs.step_writer import save_step
from hermes_worker.store.tables import runs, sessions
from hermes_worker.store.workers import Registration


@contextmanager
def stop_in_progress(store: Store, run_id: str) -> Iterator[None]:
    """A stop that has written everything and commits when the block ends."""
    with store.database.write() as connection:
        loaded = lock_run(connection, find_run(connection, run_id))
        assert loaded is not None
        save_step(connection, loaded, apply_event(loaded.run, ev.StopRequested()))
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
    hints = answered.result(timeout=PATIENCE_S)

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

    assert len(second.result(timeout=PATIENCE_S).hints) == 1
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

    hints = answered.result(timeout=PATIENCE_S)
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
                    assert stop_goes_on.wait(PATIENCE_S)
            return lock_calls.all(connection, values)

    monkeypatch.setattr(rows, "_LOCK_CALLS", Watched())
    stopped: Future[Any] = Future()
    with store.database.write() as connection:
        # The reply is written and not committed; the stop has seen iteration 0 and waits for the run's lock.
        after = apply_event(claim.loaded.run, ev.ModelReplied(calls=asked.calls))
        additions = _build_reply_output(claim.loaded, asked.reply, ev.ModelReplied(calls=asked.calls))
        save_step(connection, claim.loaded, after, additions)
        threading.Thread(
            target=lambda: stopped.set_result(store.runs.request_stop(run_id)), name="stop", daemon=True
        ).start()
        wait_until_blocked(store)
    assert tool_claimed.wait(PATIENCE_S)  # the stop is about to lock the calls of iteration 1
    call = store.calls.claim(RunTool(run_id=run_id, iteration=1, position=0, attempt=1), store.owner)
    assert call is not None
    settled = in_thread(lambda: store.calls.settle(call, settlement()))
    while not settled.done() and not is_blocked(store):
        time.sleep(0.005)
    stop_goes_on.set()
    settled.result(timeout=PATIENCE_S)

    assert stopped.result(timeout=PATIENCE_S)[0] in (RunStatus.CANCELLED, RunStatus.STOPPING)
    assert passes == [0, 1]
    assert deadlocks(store) == 0
    check(store)


# --- anything at once ------------------------------------------------------------------------------------------------


_HAVING_TURN = prepared(sa.select(runs.c.run_id).join(sessions, sessions.c.active_run_pk == runs.c.pk))


class Crowd:
    """Workers, users and sweepers that do whatever a random number tells them to the same few runs."""

    def __init__(self, store: Store, seed: int) -> None:
        self.store = store
        self.seed = seed
        self.run_ids: list[str] = []
        self.refused = 0
        self.done: Counter[str] = Counter()

    def member(self, number: int) -> None:
        random = Random(self.seed * 1_000 + number)
        worker = self.store.worker(f"w{number}")
        kept: list[CallClaim | IterationClaim] = []
        for _ in range(80):
            move = random.choice(self.MOVES)
            try:
                worker = move(self, random, worker, kept) or worker
                self.done[move.__name__] += 1
            except LeaseLost:
                self.refused += 1
            except InvalidTransition:
                assert move is Crowd.give_back  # a once call, which must not be handed back

    def active(self) -> list[str]:
        with self.store.database.read() as connection:
            return [run.run_id for run in _HAVING_TURN.all(connection, {})]

    def submit(self, random: Random, worker: Registration, kept: list[Any]) -> None:
        try:
            created = self.store.submit(session_id=f"s{random.randrange(12)}", attempts_max=5, iterations_max=6)
        except SessionBusy:
            return
        self.run_ids.append(created.run_id)

    def take(self, random: Random, worker: Registration, kept: list[Any]) -> None:
        run_id = random.choice(self.active() or [""])
        for effect in self.store.due(run_id) if run_id else ():
            if isinstance(effect, Iterate):
                claim: CallClaim | IterationClaim | None = self.store.runs.claim_iteration(effect, worker.pk)
            else:
                claim = self.store.calls.claim(effect, worker.pk)
            if claim is not None:
                kept.append(claim)

    def give(self, random: Random, worker: Registration, kept: list[Any]) -> None:
        if not kept:
            return
        claim = kept.pop(random.randrange(len(kept)))
        if isinstance(claim, CallClaim):
            self.store.calls.settle(claim, settlement("x" * 20_000 if random.random() < 0.1 else "ok", cwd="/x"))
        elif random.random() < 0.1:
            self.store.runs.commit_reply(claim, ANSWER, ())
        else:
            replays = [random.choice(list(Replay)) for _ in range(random.randint(1, 6))]
            asked = asks(*replays, segments=sorted(random.randrange(3) for _ in replays))
            self.store.runs.commit_reply(claim, asked.reply, asked.calls)

    def give_back(self, random: Random, worker: Registration, kept: list[Any]) -> None:
        if not kept:
            return
        claim = kept.pop(random.randrange(len(kept)))
        if isinstance(claim, CallClaim):
            self.store.calls.release(claim)
        else:
            self.store.runs.release_iteration(claim)

    def forget(self, random: Random, worker: Registration, kept: list[Any]) -> None:
        del kept[:1]

    def vanish(self, random: Random, worker: Registration, kept: list[Any]) -> Registration:
        """What it kept it still tries to write, as a zombie, once the sweeper was there."""
        self.store.vanish(worker)
        self.store.sweeper.sweep(FULL)
        return self.store.worker("reborn")

    def let_go(self, random: Random, worker: Registration, kept: list[Any]) -> None:
        held = {claim.token for claim in kept}
        self.store.workers.release_stray_claims(worker, except_for=held, older_than_s=-1.0)

    def stop(self, random: Random, worker: Registration, kept: list[Any]) -> None:
        if random.random() < 0.5:
            self.store.runs.request_stop(random.choice(self.active() or self.run_ids))

    def fail(self, random: Random, worker: Registration, kept: list[Any]) -> None:
        run_id = random.choice(self.active() or self.run_ids)
        for effect in self.store.due(run_id)[: random.randrange(2)]:
            self.store.runs.end_broken_step(effect, worker.pk, "a defect")

    def sweep(self, random: Random, worker: Registration, kept: list[Any]) -> None:
        self.store.sweeper.sweep(random.choice([EMPTY, FULL, None]))

    MOVES = (*[take] * 9, *[give] * 9, *[sweep] * 2, submit, give_back, forget, *[vanish] * 3, let_go, stop, fail)


@pytest.mark.parametrize("seed", sample_seeds(1, 3))
def test_sixteen_threads_that_do_anything_to_the_same_runs_never_deadlock_and_break_nothing(
    postgres_store: Store, seed: int
) -> None:
    store = postgres_store
    crowd = Crowd(store, seed)
    crowd.run_ids = [store.submit(session_id=f"s{number % 12}", attempts_max=5).run_id for number in range(24)]

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(crowd.member, range(16)))

    assert deadlocks(store) == 0
    check(store)
    assert crowd.refused > 10
    assert all(crowd.done[move.__name__] for move in Crowd.MOVES)
    finish_everything(store, crowd.run_ids)
    check(store)


def finish_everything(store: Store, run_ids: list[str]) -> None:
    """Everybody is gone; the sweeper and one good worker bring every run to its end."""
    with store.database.write() as connection:
        connection.execute(sa.text("update workers set expires_at = 1 where name <> 'default'"))
    assert store.owner
    for _ in range(200):
        store.sweep(EMPTY)
        open_runs = [run_id for run_id in run_ids if not store.status(run_id).is_terminal]
        if not open_runs:
            return
        for run_id in open_runs:
            for effect in store.due(run_id):
                if isinstance(effect, Iterate):
                    store.answer(run_id)
                else:
                    store.settle(run_id, effect.position)
    raise AssertionError(f"these runs never end: {open_runs}")
