"""Runs that are to begin later: nobody begins them before their time, and the sweeper does then."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from support.store import Store, check

from hermes_worker.core.effects import Iterate
from hermes_worker.core.run import RunStatus
from hermes_worker.core.spec import Multitask
from hermes_worker.store.backlog import read_backlog
from hermes_worker.store.runs.control import Control
from hermes_worker.store.runs.runs import SESSION_QUEUE_MAX
from hermes_worker.store.tables import runs


def pass_time(store: Store, run_id: str) -> None:
    """The moment comes for which a run was put off."""
    with store.database.write() as connection:
        connection.execute(
            sa.update(runs).where(runs.c.run_id == run_id).values(not_before=store.database.read_clock() - 1)
        )


def due(store: Store) -> int:
    return sum(queue.due for queue in read_backlog(store.database))


def test_a_run_that_is_put_off_waits_without_a_hint(store: Store) -> None:
    created = store.submit(delay_s=3600.0)

    swept = store.sweep()

    assert (created.hints, swept.hints, store.due(created.run_id)) == ([], (), [])
    assert created.not_before == pytest.approx(store.database.read_clock() + 3600, abs=30)
    assert store.status(created.run_id) is RunStatus.QUEUED
    assert due(store) == 0
    check(store)


def test_the_sweeper_begins_it_when_its_time_has_come(store: Store) -> None:
    run_id = store.submit(not_before=store.database.read_clock() + 3600, session_id="s", input="now").run_id
    pass_time(store, run_id)

    swept = store.sweep()

    assert [hint.effect for hint in swept.hints] == [Iterate(run_id=run_id, iteration=1, attempt=1)]
    assert due(store) == 1
    assert store.sweep().hints == ()
    store.answer(run_id)
    assert store.bodies(run_id)[0] == {"role": "user", "content": "now"}
    check(store)


def test_a_time_that_has_passed_is_none(store: Store) -> None:
    created = store.submit(not_before=store.database.read_clock() - 10)

    assert (len(created.hints), created.not_before) == (1, None)


def test_it_waits_for_its_turn_in_its_session_and_nobody_waits_for_it(store: Store) -> None:
    first = store.submit(session_id="s").run_id
    later = store.submit(session_id="s", delay_s=3600.0).run_id
    last = store.submit(session_id="s").run_id

    store.answer(first)
    assert store.due(last) != [], "the one that is put off is passed over"
    pass_time(store, later)
    assert store.sweep().hints == (), "the session is at work"
    store.answer(last)
    assert [effect.run_id for effect in store.due(later)] == [later]
    check(store)


def test_its_time_counts_from_when_it_may_begin(store: Store) -> None:
    run_id = store.submit(delay_s=86_400.0, wall_s_max=600.0).run_id
    with store.database.read() as connection:
        row = connection.execute(sa.select(runs.c.deadline_at, runs.c.not_before)).one()
    assert row.deadline_at - row.not_before == pytest.approx(600.0, abs=0.1)

    pass_time(store, run_id)
    store.sweep()
    assert store.turn(run_id).loaded.run.exhausted is None, "it is not told to sum up at once"


def test_a_deadline_ends_it_before_its_time_if_it_comes_first(store: Store) -> None:
    now = store.database.read_clock()
    run_id = store.submit(delay_s=100.0, deadline=now + 200.0).run_id
    with store.database.write() as connection:
        kept = connection.execute(sa.select(runs.c.deadline_at)).scalar_one()
        connection.execute(sa.update(runs).values(deadline_at=now - 1))
    assert kept == pytest.approx(now + 200.0)

    store.sweep()

    assert store.status(run_id) is RunStatus.EXPIRED
    check(store)


def test_a_pause_does_not_make_it_begin_early(store: Store) -> None:
    run_id = store.submit(delay_s=3600.0, session_id="s").run_id
    control = Control(store.database)

    control.pause(run_id)
    status, hints = control.resume(run_id)

    assert (status, hints, store.due(run_id)) == (RunStatus.QUEUED, [], [])
    control.pause(run_id)
    pass_time(store, run_id)
    assert store.sweep().hints == (), "it is paused"
    assert len(control.resume(run_id)[1]) == 1
    check(store)


def test_what_is_put_off_does_not_fill_the_session(store: Store) -> None:
    store.submit(session_id="s")
    for _ in range(SESSION_QUEUE_MAX + 1):
        store.submit(session_id="s", delay_s=3600.0)

    store.submit(session_id="s")


def test_a_stop_ends_it(store: Store) -> None:
    run_id = store.submit(delay_s=3600.0).run_id

    store.runs.stop_tree(run_id)

    assert store.status(run_id) is RunStatus.CANCELLED
    pass_time(store, run_id)
    assert store.sweep().hints == ()


def test_the_session_as_it_is_now_says_nothing_of_it(store: Store) -> None:
    store.submit(session_id="s")

    created = store.submit(session_id="s", delay_s=3600.0, multitask=Multitask.REJECT)

    assert created.not_before is not None


def test_a_repeated_request_is_told_the_same_time(store: Store) -> None:
    first = store.submit(delay_s=3600.0, idempotency_key="k", fingerprint="f")
    again = store.submit(delay_s=3600.0, idempotency_key="k", fingerprint="f")

    assert (again.was_replayed, again.run_id, again.not_before) == (True, first.run_id, first.not_before)
