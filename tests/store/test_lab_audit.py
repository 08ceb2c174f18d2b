"""The crash lab's audit sees what it must see, and calls nothing lost that is only slow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.store import Store

from hermes_worker.core.replay import Replay
from hermes_worker.lab.audit import check_invariants, is_at_rest, list_unfinished
from hermes_worker.lab.audit_outside import OutsideFacts
from hermes_worker.store.outbox.deliveries import enqueue_deliveries
from hermes_worker.store.tables import budgets, deliveries, messages, runs, tool_calls


def broken(store: Store, tmp_path: Path, *run_ids: str, **more: Any) -> set[str]:
    found = check_invariants(
        store.database, tmp_path / "sink", submitted=run_ids, expected={}, model_requests=0, **more
    )
    return {finding.invariant for finding in found if finding.broken}


def test_a_run_that_something_will_move_on_is_slow_and_one_that_nothing_will_is_lost(
    store: Store, tmp_path: Path
) -> None:
    run_id = store.submit().run_id
    assert broken(store, tmp_path, run_id) == set()
    with store.database.read() as connection:
        assert list_unfinished(connection) == [run_id] and not is_at_rest(connection)
    store.change(runs, run_id, hinted_at=None)
    assert broken(store, tmp_path, run_id) == {"runs lost"}
    with store.database.read() as connection:
        assert list_unfinished(connection) == [] and is_at_rest(connection)
    assert broken(store, tmp_path, "run_never_there") == {"runs lost"}


def test_a_run_that_waits_for_its_children_is_not_lost(store: Store, tmp_path: Path) -> None:
    run_id = store.with_tools(Replay.PURE)
    store.delegate(run_id, 3, children_max=1)
    assert "runs lost" not in broken(store, tmp_path, run_id)


@pytest.mark.parametrize("column", ["tokens_spent", "nano_usd_spent", "tool_calls_spent", "iterations_spent"])
def test_what_a_budget_was_charged_and_nobody_used_is_seen(store: Store, tmp_path: Path, column: str) -> None:
    run_id = store.submit(tokens_max=10_000).run_id
    store.answer(run_id)
    assert broken(store, tmp_path, run_id) == set()
    with store.database.write() as connection:
        connection.execute(sa.update(budgets).values({column: budgets.c[column] + 1}))
    assert broken(store, tmp_path, run_id) == {"budgets that do not add up"}


def test_a_reservation_that_no_claim_holds_is_seen(store: Store, tmp_path: Path) -> None:
    run_id = store.submit(tokens_max=10_000).run_id
    store.turn(run_id)
    assert broken(store, tmp_path, run_id) == set()
    with store.database.write() as connection:
        connection.execute(sa.update(budgets).values(tokens_reserved=budgets.c.tokens_reserved + 1))
    assert broken(store, tmp_path, run_id) == {"reservations that nobody holds"}


def test_a_lost_request_whose_tokens_nobody_booked_is_seen(store: Store, tmp_path: Path) -> None:
    run_id = store.submit().run_id
    store.change(runs, run_id, unknown_attempts=1)
    assert broken(store, tmp_path, run_id) == {"requests of unknown outcome for nothing"}
    store.change(runs, run_id, unknown_input_tokens=7)
    assert broken(store, tmp_path, run_id) == set()


def test_a_run_that_replies_between_replies_of_another_one_of_its_session_is_seen(store: Store, tmp_path: Path) -> None:
    first = store.with_tools(Replay.PURE, session_id="s")
    store.settle(first)
    store.answer(first)
    store.answer(store.submit(session_id="s").run_id)
    assert broken(store, tmp_path, first) == set()
    replies = messages.c.role == "assistant"
    with store.database.write() as connection:
        rows = connection.execute(sa.select(messages.c.seq, messages.c.run_pk).where(replies).order_by("seq")).all()
        for (seq, _), (_, run_pk) in zip(rows[1:], rows[:0:-1], strict=True):
            connection.execute(sa.update(messages).where(messages.c.seq == seq).values(run_pk=run_pk))
    assert "runs of one session at work at once" in broken(store, tmp_path, first)


def test_a_call_that_did_not_wait_for_its_children_is_seen(store: Store, tmp_path: Path) -> None:
    run_id = store.with_tools(Replay.PURE)
    store.delegate(run_id, 2)
    wanted = "children that their parent did not wait for"
    assert wanted not in broken(store, tmp_path, run_id)
    with store.database.write() as connection:
        connection.execute(sa.update(tool_calls).values(status="succeeded", waits_for=None, settled_at=1.0))
    assert wanted in broken(store, tmp_path, run_id)


def test_tokens_that_the_provider_did_not_count_are_seen(store: Store, tmp_path: Path) -> None:
    run_id = store.submit(input="count me").run_id
    store.answer(run_id)
    used = store.views.load_run(run_id).usage
    count = {("count me", 0): {(used.total - used.output, used.output)}}
    assert "tokens that the provider did not count" not in broken(store, tmp_path, run_id, usage=count)
    twice = {place: {(2 * read, 2 * written) for read, written in each} for place, each in count.items()}
    assert "tokens that the provider did not count" in broken(store, tmp_path, run_id, usage=twice)


def test_deliveries_are_judged_by_what_was_taken_under_their_keys(store: Store, tmp_path: Path) -> None:
    run_id = store.submit().run_id
    store.answer(run_id)
    with store.database.write() as connection:
        pk = connection.execute(sa.select(runs.c.pk)).scalar_one()
        [hint] = enqueue_deliveries(connection, ["local"], run=(pk, run_id))
        over = {"state": "delivered", "settled_at": 1.0, "hinted_at": None, "attempts": 1}
        connection.execute(sa.update(deliveries).values(**over))
    key = f"{hint.effect.delivery_id}:0"  # type: ignore[union-attr]

    def judge(taken: dict[str, list[str]], **more: Any) -> set[str]:
        return broken(store, tmp_path, run_id, outside=OutsideFacts(taken=taken, **more))

    assert judge({key: ["a"]}) == set()
    assert judge({}) == {"deliveries lost"}
    assert judge({key: ["a", "a"]}) == judge({key: ["a"], "other": ["b"]}) == {"deliveries repeated"}
    assert judge({key: ["a"]}, frozen_before_sending={run_id}) == {"deliveries repeated"}
    with store.database.write() as connection:
        connection.execute(sa.update(deliveries).values(attempts=2))
    assert judge({key: ["a", "a"]}) == {"deliveries repeated"}, "no attempt was lost, so one could send"
    with store.database.write() as connection:
        connection.execute(sa.update(deliveries).values(error_kind="ambiguous"))
    assert judge({key: ["a", "a"]}) == set()


def test_a_run_of_a_job_without_its_slot_is_seen(store: Store, tmp_path: Path) -> None:
    run_id = store.submit(source="cron").run_id
    store.answer(run_id)
    assert broken(store, tmp_path, run_id, outside=OutsideFacts()) == {"slots that began twice"}
