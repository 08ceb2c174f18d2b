"""What a run causes has one bill and one off switch: its children, the turns of their answers, and what these cause."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from support.plans import statements
from support.store import ANSWER, Store, asks, check, deadlocks, new_children, settlement

from hermes_worker.core.questions import Refusal, RefusedBy
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import CallStatus, RunStatus
from hermes_worker.core.spec import Multitask
from hermes_worker.store.runs.control import Control, NotAtWork
from hermes_worker.store.runs.families import Families
from hermes_worker.store.runs.trees import Trees
from hermes_worker.store.tables import budgets, runs

NOTE = '{"status":"dispatched"}'


def turns(store: Store) -> list[str]:
    """The runs of the session, oldest first."""
    return [view.run_id for view in reversed(store.views.list_runs(session_id="s"))]


def sends(store: Store, run_id: str, count: int = 1, *, turns_max: int = 20, **more: bool) -> list[str]:
    """Let a run's model send children into the background; their ids, or none when the call was refused."""
    store.ask_tools(run_id, asks(Replay.PURE))
    new = new_children(count, iterations_max=100_000)
    store.calls.delegate(store.call(run_id), new, children_max=10, note=NOTE, turns_max=turns_max, **more)
    known = {view.run_id for view in store.views.list_runs(limit=1_000)}
    return [child.run_id for child in new if child.run_id in known]


def next_turn(store: Store, run_id: str) -> str:
    """A run that sends a child, and ends; the child's answer begins the turn that is returned."""
    [child] = sends(store, run_id)
    store.answer(run_id)
    store.answer(child)
    return turns(store)[-1]


def row(store: Store, run_id: str) -> sa.Row[tuple[object, ...]]:
    with store.database.read() as connection:
        return connection.execute(sa.select(runs).where(runs.c.run_id == run_id)).one()


def open_runs(store: Store) -> list[str]:
    return [view.run_id for view in store.views.list_runs(limit=1_000) if not view.status.is_terminal]


# -------------------------------------------------------------------------------------------------------------- family


def refused(store: Store, run_id: str) -> None:
    """A run asks for a tool that the rules forbid."""
    store.ask_tools(run_id, asks(Replay.ONCE))
    refusal = Refusal(by=RefusedBy.RULES, reason="no")
    store.calls.settle(store.call(run_id), replace(settlement("no", status=CallStatus.FAILED), refusal=refusal))


def test_what_is_refused_below_a_later_turn_is_shown_at_the_root_once(store: Store) -> None:
    root = store.submit(session_id="s").run_id
    later = next_turn(store, root)
    [child] = sends(store, later)
    families = Families(store.database)
    first = families.load_news(root, {})
    assert not first.refusals
    refused(store, child)
    assert [each.run_id for each in families.list_refusals(root)] == [child]
    with statements(store.database) as seen:
        news = families.load_news(root, first.told)
    assert [each.run_id for each in news.refusals] == [child]
    with statements(store.database) as unchanged:
        assert not families.load_news(root, news.told).refusals
    # The run, its children, how far each run below it is; and once the events of those that went on.
    assert (len(reads(seen)), len(reads(unchanged))) == (4, 3)
    refused(store, child)
    refused(store, later)
    again = families.load_news(root, news.told)
    assert [each.run_id for each in again.refusals] == [child, later]
    assert [each.run_id for each in families.list_refusals(root)] == [child, child, later]


def reads(seen: list[tuple[str, Any]]) -> list[str]:
    return [statement for statement, _ in seen if statement.lstrip().lower().startswith(("select", "with"))]


# ----------------------------------------------------------------------------------------------------------------- bill


@pytest.mark.parametrize("is_budget_shared", [True, False], ids=["shared", "independent"])
def test_a_run_that_sends_children_in_every_turn_ends_within_its_own_limit(
    store: Store, is_budget_shared: bool
) -> None:
    root = current = store.submit(session_id="s", iterations_max=9).run_id
    for _ in range(20):
        children = sends(store, current, is_budget_shared=is_budget_shared)
        if not children:
            break
        store.answer(current)
        store.answer(children[0])
        current = turns(store)[-1]
    assert store.results(current)[-1].startswith('{"error":"nothing was delegated: of the model calls')
    store.answer(current)
    assert open_runs(store) == []
    with store.database.read() as connection:
        [budget] = connection.execute(sa.select(budgets)).all()
    counted = [
        view.iteration for view in store.views.list_runs(limit=100, session_id=None if is_budget_shared else "s")
    ]
    assert budget.root_pk == row(store, root).pk
    assert budget.iterations_spent == sum(counted) <= 9
    assert budget.iterations_reserved == 0
    check(store)


def test_tokens_and_tool_calls_of_a_chain_are_counted_together(store: Store) -> None:
    root = store.submit(session_id="s", tokens_max=10_000, tool_calls_max=50).run_id
    later = next_turn(store, next_turn(store, root))
    store.answer(later)
    spent = Trees(store.database).load_budget(later).budget.spent
    assert spent.tool_calls == 2
    assert spent.tokens == sum(view.usage.total for view in store.views.list_runs())


def test_a_turn_that_follows_ends_by_the_deadline_of_the_first_run_and_leaves_time_for_an_answer(store: Store) -> None:
    root = store.submit(session_id="s", wall_s_max=100.0).run_id
    [child] = sends(store, root)
    store.answer(root)
    store.answer(child)
    later = turns(store)[-1]
    assert row(store, later).deadline_at == row(store, root).deadline_at
    assert row(store, child).deadline_at == pytest.approx(row(store, root).deadline_at - 5.0, abs=0.01)


def test_a_chain_has_no_more_turns_than_the_setting_allows_and_the_model_is_told(store: Store) -> None:
    current = store.submit(session_id="s").run_id
    for _ in range(2):
        [child] = sends(store, current, turns_max=2)
        store.answer(current)
        store.answer(child)
        current = turns(store)[-1]
    assert sends(store, current, turns_max=2) == []
    assert "for 2 turn(s)" in json.loads(store.results(current)[-1])["error"]
    assert store.event_names(current)[-1] == "tool.completed"
    store.answer(current)
    assert (len(turns(store)), open_runs(store)) == (3, [])
    check(store)


def test_a_turn_that_is_promised_counts_before_it_has_begun(store: Store) -> None:
    """Two calls of one reply: the second would begin one turn too many."""
    root = store.with_tools(Replay.PURE, Replay.PURE, session_id="s")
    for position in range(2):
        claim = store.call(root, position)
        store.calls.delegate(claim, new_children(1), children_max=10, note=NOTE, turns_max=1)
    first, second = store.results(root)
    assert first == NOTE
    assert "error" in json.loads(second)
    check(store)


def test_what_a_person_says_begins_a_chain_of_its_own(store: Store) -> None:
    root = store.submit(session_id="s", iterations_max=6).run_id
    later = next_turn(store, root)
    said = store.submit(session_id="s", iterations_max=6).run_id
    store.answer(later)
    [child] = sends(store, said)
    store.answer(said)
    store.answer(child)
    trees = Trees(store.database)
    assert trees.load_budget(turns(store)[-1]).owner_run_id == said
    assert trees.load_budget(later).owner_run_id == root
    assert trees.load_budget(said).budget.spent.iterations == 3


# ----------------------------------------------------------------------------------------------------------- off switch


@pytest.mark.parametrize("link", [0, 1, 2], ids=["first", "middle", "last"])
def test_stopping_any_run_of_a_chain_stops_what_it_caused_also_when_it_has_ended(store: Store, link: int) -> None:
    root = store.submit(session_id="s").run_id
    second = next_turn(store, root)
    third = next_turn(store, second)
    children = sends(store, third, 2)
    store.answer(third)
    store.answer(children[0])
    stopped = store.runs.stop_tree((root, second, third)[link])
    assert stopped.status is RunStatus.COMPLETED
    assert list(stopped.caused_run_ids) == [children[1]]
    assert store.status(children[1]) is RunStatus.CANCELLED
    assert store.sweep().hints == ()
    assert (turns(store), open_runs(store)) == ([root, second, third], [])
    assert not store.runs.stop_tree(root).caused_run_ids
    check(store)


def test_stopping_the_first_run_stops_the_turn_at_work_and_the_one_that_waits(store: Store) -> None:
    root = store.submit(session_id="s").run_id
    later = next_turn(store, root)
    [child] = sends(store, later)
    store.answer(child)
    waiting = turns(store)[-1]
    claim = store.turn(later)
    stopped = store.runs.stop_tree(root)
    assert set(stopped.caused_run_ids) == {later, waiting}
    assert store.status(waiting) is RunStatus.CANCELLED
    store.runs.commit_reply(claim, ANSWER, ())
    assert store.status(later) is RunStatus.CANCELLED
    assert open_runs(store) == []
    check(store)


def test_what_was_caused_before_a_link_goes_on_when_the_link_is_stopped(store: Store) -> None:
    root = store.submit(session_id="s").run_id
    first, second = sends(store, root), sends(store, root)
    store.answer(root)
    store.answer(first[0])
    later = turns(store)[-1]
    assert not store.runs.stop_tree(later).caused_run_ids
    store.answer(second[0])
    assert store.status(turns(store)[-1]) is RunStatus.QUEUED
    check(store)


def test_a_stop_whose_process_died_half_way_is_finished_by_the_sweeper(store: Store) -> None:
    """Only the first run, which had ended, knows of it."""
    root = store.submit(session_id="s").run_id
    later = next_turn(store, root)
    [child] = sends(store, later)
    store.runs.request_stop(root)
    assert set(open_runs(store)) == {later, child}
    store.sweep()
    assert open_runs(store) == []
    assert row(store, root).halt == "stopped"
    check(store)


def test_an_answer_that_comes_after_the_stop_of_an_ended_run_begins_nothing(store: Store) -> None:
    root = store.submit(session_id="s").run_id
    [child] = sends(store, root)
    store.answer(root)
    store.runs.request_stop(root)
    store.answer(child)
    assert (turns(store), open_runs(store)) == ([root], [])
    check(store)


def test_a_message_that_interrupts_a_turn_ends_what_that_turn_caused(store: Store) -> None:
    root = store.submit(session_id="s").run_id
    [child] = sends(store, root)
    store.answer(child)
    waiting = turns(store)[-1]
    said = store.submit(session_id="s", multitask=Multitask.INTERRUPT)
    assert said.interrupted == root
    store.sweep()
    assert store.status(waiting) is RunStatus.CANCELLED
    assert open_runs(store) == [said.run_id]
    check(store)


def test_a_pause_of_a_run_that_has_ended_holds_what_it_caused_and_its_end_lets_it_go_on(store: Store) -> None:
    control = Control(store.database)
    root = store.submit(session_id="s").run_id
    children = sends(store, root, 2)
    store.answer(root)
    in_flight = [store.turn(child) for child in children]
    assert control.pause(root) is RunStatus.PAUSED
    for claim in in_flight:
        store.runs.commit_reply(claim, ANSWER, ())
    later = turns(store)[-1]
    assert later != root
    assert (store.status(later), store.due(later)) == (RunStatus.PAUSED, [])
    assert store.sweep().hints == ()
    status, [hint] = control.resume(root)
    assert (status, hint.effect.run_id) == (RunStatus.RUNNING, later)
    store.answer(later)
    with pytest.raises(NotAtWork):
        control.pause(root)
    check(store)


def test_a_pause_passes_turns_that_have_ended(store: Store) -> None:
    control = Control(store.database)
    root = store.submit(session_id="s").run_id
    later = next_turn(store, next_turn(store, root))
    assert control.pause(root) is RunStatus.PAUSED
    assert store.status(later) is RunStatus.PAUSED
    control.resume(root)
    store.answer(later)
    assert open_runs(store) == []
    check(store)


def test_a_stop_at_any_moment_of_a_chain_leaves_nothing_open(postgres_store: Store) -> None:
    store = postgres_store
    for number in range(8):
        session = f"s{number}"
        root = store.submit(session_id=session).run_id
        store.ask_tools(root, asks(Replay.PURE, Replay.PURE, Replay.PURE))
        children = []
        for position in range(3):
            new = new_children(2)
            store.calls.delegate(store.call(root, position), new, children_max=10, note=NOTE)
            children += [child.run_id for child in new]
        store.answer(root)
        claims = [store.turn(child) for child in children]
        work = [lambda claim=claim: store.runs.commit_reply(claim, ANSWER, ()) for claim in claims]
        work[number:number] = [lambda root=root: store.runs.stop_tree(root)]
        with ThreadPoolExecutor(7) as pool:
            for done in [pool.submit(one) for one in work]:
                done.result()
        store.sweep()
        assert open_runs(store) == []
    assert deadlocks(store) == 0
    check(store)


# ----------------------------------------------------------------------------------------------------------------- view


def test_a_tree_is_over_when_its_chain_is_and_its_events_tell_who_began_what(store: Store) -> None:
    trees = Trees(store.database)
    root = store.submit(session_id="s").run_id
    later = next_turn(store, root)
    assert not trees.is_over(root)
    store.answer(later)
    assert trees.is_over(root)
    told = {event.run_id: event for event in trees.list_events_after(root, 0)}
    assert set(told) == {view.run_id for view in store.views.list_runs()}
    assert (told[later].parent_run_id, told[later].depth) == (root, 0)
    assert trees.list_events_after(later, 0) == trees.list_events_after(root, 0)


def test_the_shares_of_a_tree_add_up_to_what_its_budget_has_spent(store: Store) -> None:
    root = store.submit(session_id="s").run_id
    second = next_turn(store, root)
    third = next_turn(store, second)
    store.answer(third)
    told = Trees(store.database).load_budget(root)
    assert [share.index for share in told.children] == [0, None]
    assert told.children[1].run_id == second
    assert told.children_total == 2
    used = [told.own, *told.children]
    assert sum(share.spent.iterations for share in used) == told.budget.spent.iterations == 7
    assert sum(share.spent.tokens for share in used) == told.budget.spent.tokens
