"""Why a run is where it is, as rows tell it."""

from __future__ import annotations

from datetime import date

import pytest
import sqlalchemy as sa
from support.questions import DANGER
from support.store import Store

from hermes_worker.agent.prompt.system import PromptParts, assemble_prompt
from hermes_worker.core import events as ev
from hermes_worker.core.effects import Prepare
from hermes_worker.core.explanations import ExplainedReason, Explanation
from hermes_worker.core.remote_tasks import RemoteTask
from hermes_worker.core.replay import Replay
from hermes_worker.store.runs.control import Control
from hermes_worker.store.runs.explanations import Explanations
from hermes_worker.store.runs.remote_tasks import RemoteTasks
from hermes_worker.store.runs.waits import Waits
from hermes_worker.store.tables import runs


def of(store: Store, run_id: str) -> Explanation:
    return Explanations(store.database).explain_run(run_id)


def test_a_step_in_a_queue_says_how_many_are_before_it(store: Store) -> None:
    first, last = store.submit().run_id, store.submit().run_id
    assert of(store, first).because is ExplainedReason.NO_WORKER
    store.worker("here")

    with_tools = store.with_tools(Replay.ONCE, Replay.ONCE)
    found = of(store, last)

    assert (found.because, found.facts["queue"], found.facts["ahead"]) == (ExplainedReason.QUEUED, "model", 1)
    assert of(store, first).facts["ahead"] == 0
    assert of(store, with_tools).facts["queue"] == "tools"


def test_a_run_says_what_it_waits_for_before_it_begins(store: Store) -> None:
    store.worker("here")
    active = store.submit(session_id="s").run_id
    behind, later = store.submit(session_id="s").run_id, store.submit(session_id="s", delay_s=600.0).run_id

    assert of(store, behind).facts["active_run"] == active
    assert of(store, behind).because is ExplainedReason.SESSION_AT_WORK
    found = of(store, later)
    assert (found.because, found.until) == (ExplainedReason.NOT_BEFORE, found.facts["not_before"])
    Control(store.database).pause(behind)
    assert of(store, behind).because is ExplainedReason.PAUSED


def test_a_held_step_names_its_holder_until_that_is_lost(store: Store) -> None:
    run_id, worker = store.submit().run_id, store.worker("w7")
    store.turn(run_id, worker.pk)
    found = of(store, run_id)
    assert (found.because, found.facts["worker"]) == (ExplainedReason.ASKING_MODEL, "w7")
    assert found.facts["held_since"] == found.since
    lease_until = found.facts["lease_until"]
    assert isinstance(lease_until, float)
    assert lease_until > store.database.read_clock()

    store.vanish(worker)
    assert of(store, run_id).because is ExplainedReason.WORKER_LOST
    store.sweep()
    store.worker("here")
    assert of(store, run_id).because is ExplainedReason.SUSPECT
    store.runs.stop_tree(run_id)
    assert of(store, run_id).facts["exit_reason"] == "interrupted_by_user"


def test_a_parked_run_says_until_when_and_for_whom(store: Store) -> None:
    store.worker("here")
    parked, until = store.submit().run_id, store.database.read_clock() + 60
    store.runs.commit_failure(
        store.turn(parked), ev.CapacityAwaited(resume_at=until, recovery="{}", reason="the key rests")
    )
    asking = store.with_tools(Replay.ONCE)
    Waits(store.database).ask(store.call(asking), DANGER)

    found = of(store, parked)
    assert (found.because, found.until, found.facts["resume_at"]) == (ExplainedReason.PROVIDER, until, until)
    assert "the key rests" in found.text
    found = of(store, asking)
    [wait] = Waits(store.database).list_open(run_id=asking)
    assert (found.because, found.facts["wait_id"], found.facts["tool"]) == (
        ExplainedReason.APPROVAL,
        wait.wait_id,
        "tool0",
    )
    assert "scope 'approve'" in found.text


def test_children_say_which_they_are_and_whom_they_wait_for(store: Store) -> None:
    store.worker("here")
    parent = store.with_tools(Replay.ONCE)
    children = store.delegate(parent, 3, children_max=1)
    found = of(store, children[2])
    assert (found.because, found.facts["child_number"], found.facts["siblings"]) == (
        ExplainedReason.CHILDREN_AT_WORK,
        3,
        3,
    )
    assert found.facts["parent_run"] == parent
    store.answer(children[0])
    found = of(store, parent)
    assert (found.because, found.facts["children_ended"], found.facts["children_total"]) == (
        ExplainedReason.CHILDREN,
        1,
        3,
    )

    with store.database.write() as connection:
        connection.execute(
            sa.update(runs).where(runs.c.run_id == parent).values(status="failed", exit_reason="x", finished_at=1.0)
        )
    assert of(store, children[1]).because is ExplainedReason.ORPHANED


def test_a_new_session_whose_workspace_is_to_be_read_waits_for_a_worker_of_tools(store: Store) -> None:
    models = store.workers.register(name="models", queues="model", ttl_s=1e9)
    prompt = assemble_prompt(PromptParts(today=date(2026, 11, 24), tools=frozenset(), model="strict", provider="x"))
    run_id, last = (store.submit(system_prompt=prompt.text, gaps=prompt.gaps, prepares=True).run_id for _ in range(2))
    found = of(store, run_id)
    assert (found.because, found.facts["queue"], found.facts["ahead"]) == (ExplainedReason.NO_WORKER, "tools", 0)
    assert "reading its workspace" in found.text

    store.worker("here")
    assert (of(store, last).because, of(store, last).facts["ahead"]) == (ExplainedReason.QUEUED, 1)
    other = store.submit().run_id
    assert of(store, other).facts["ahead"] == 0, "what waits for tools is not before it"

    [effect] = store.due(run_id)
    assert isinstance(effect, Prepare)
    claim = store.runs.claim_preparation(effect, models.pk)
    assert claim is not None
    assert (of(store, run_id).because, of(store, run_id).facts["worker"]) == (ExplainedReason.PREPARING, "models")
    store.runs.commit_preparation(claim, "", {})
    assert of(store, run_id).facts["queue"] == "model"


def test_a_task_of_a_server_is_named_with_the_time_at_which_it_is_looked_at(store: Store) -> None:
    store.worker("here")
    run_id = store.with_tools(Replay.ONCE)
    begun_at = store.database.read_clock()
    task = RemoteTask(source="mcp-desk", task_id="secret", tool="print", begun_at=begun_at, failures=2)
    RemoteTasks(store.database).park(store.call(run_id), task)

    found = of(store, run_id)

    assert (found.because, found.since) == (ExplainedReason.REMOTE_TASK, begun_at)
    assert (found.facts["server"], found.facts["tasks"], found.facts["looks_failed"]) == ("mcp-desk", 1, 2)
    looks_at = found.facts["looks_at"]
    assert isinstance(looks_at, float)
    assert looks_at > begun_at
    assert "secret" not in f"{found}"
    store.let_pass(600)
    store.sweep()
    assert (of(store, run_id).because, of(store, run_id).facts["queue"]) == (ExplainedReason.QUEUED, "tools")


@pytest.mark.parametrize("is_past", [True, False])
def test_a_deadline_is_told(store: Store, is_past: bool) -> None:
    run_id = store.submit().run_id
    at = store.database.read_clock() + (-5 if is_past else 500)
    with store.database.write() as connection:
        connection.execute(sa.update(runs).values(deadline_at=at))

    found = of(store, run_id)

    assert (found.because is ExplainedReason.OVERDUE) == is_past
    assert found.facts["deadline_at"] == at


def test_what_has_ended_says_what_is_left_to_send(store: Store) -> None:
    run_id = store.submit(deliver=("telegram:1",)).run_id
    store.answer(run_id)

    found = of(store, run_id)

    assert (found.because, found.facts["exit_reason"]) == (ExplainedReason.ENDED, "text_response")
    assert found.facts["deliveries_open"] == 1
