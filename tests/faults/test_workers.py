"""What happens to a run when something happens to the process that works on it."""

from __future__ import annotations

import json

import pytest
from support.rig import Rig, sink_call, until

from hermes_worker.core.notices import OUTCOME_UNKNOWN
from hermes_worker.core.pricing import CostStatus
from hermes_worker.core.run import CallStatus, RunStatus
from hermes_worker.lab.plan import FleetRole
from hermes_worker.store.worker_claims import load_workers

pytestmark = pytest.mark.faults


def arm_all(rig: Rig, role: FleetRole, plan: str) -> None:
    """Arm every worker of a role, but let only one of them act."""
    latch = rig.directory / "latch"
    for worker in rig.fleet.workers:
        if worker.role is role:
            rig.fleet.arm(worker, f"{plan}!{latch}")


def one_died(rig: Rig) -> None:
    until(
        lambda: next((worker for worker in rig.fleet.workers if not rig.fleet.is_alive(worker)), None),
        "a worker to kill itself",
    )


def awake(rig: Rig) -> None:
    """Workers take signals once they consume."""
    run_id = rig.submit([])
    rig.ended(run_id)
    until(lambda: True if len(rig.client.workers.list_alive()) >= len(rig.fleet.workers) else None, "all workers")


def test_a_worker_killed_between_reply_and_commit_costs_nothing_but_time(rig: Rig) -> None:
    awake(rig)
    arm_all(rig, FleetRole.MODEL, "iterate.after_reply=kill@1")
    run_id = rig.submit([{"calls": [sink_call("keyed", "a")]}])
    one_died(rig)
    [run] = rig.ended(run_id)
    assert (run.status, run.output, run.iteration) == (RunStatus.COMPLETED, "done", 2)
    assert rig.broken_invariants() == []


def test_a_worker_that_is_asked_to_leave_over_its_row_drains_and_ends(rig: Rig) -> None:
    awake(rig)
    asked = next(view for view in load_workers(rig.client.database) if "model" in view.queues)
    rig.client.workers.drain(asked.worker_id)
    run_id = rig.submit([{"calls": [sink_call("once", "a")]}])
    one_died(rig)
    assert asked.worker_id not in [view.worker_id for view in load_workers(rig.client.database)]
    [run] = rig.ended(run_id)
    assert (run.status, run.output) == (RunStatus.COMPLETED, "done")
    assert [effect.mark for effect in rig.effects()] == ["a"]
    assert rig.broken_invariants() == []


def test_every_reply_that_died_with_its_worker_stands_in_the_usage(rig: Rig) -> None:
    """The model's server counts as the provider's bill does."""
    awake(rig)
    asked_before = rig.model.requests.completions
    arm_all(rig, FleetRole.MODEL, "iterate.after_reply=kill@1")
    run_id = rig.submit([{"calls": [sink_call("keyed", "a")]}])
    one_died(rig)
    [run] = rig.ended(run_id)
    assert run.status is RunStatus.COMPLETED
    assert run.usage.unknown_attempts == 1
    assert run.usage.unknown_input > 0
    assert run.usage.unknown_output > 0
    # Nobody fails here and nothing is asked again, so the replies are the iterations.
    assert rig.model.requests.completions - asked_before == run.iteration + run.usage.unknown_attempts
    assert (run.cost_usd, run.cost_status, run.doubtful_cost_usd) == (0, CostStatus.UNKNOWN, 0), "nobody knows a price"
    assert rig.broken_invariants() == []


def test_a_worker_killed_between_commit_and_send_costs_nothing_but_time(rig: Rig) -> None:
    awake(rig)
    arm_all(rig, FleetRole.MODEL, "iterate.after_commit=kill@1")
    run_id = rig.submit([{"calls": [sink_call("once", "a"), sink_call("pure", "b")]}])
    one_died(rig)
    [run] = rig.ended(run_id)
    assert run.status is RunStatus.COMPLETED
    assert [effect.mark for effect in rig.effects()] == ["a", "b"]
    assert rig.broken_invariants() == []


def test_a_once_call_whose_worker_died_after_the_effect_is_unknown_and_never_run_again(rig: Rig) -> None:
    awake(rig)
    arm_all(rig, FleetRole.TOOLS, "call_tool.after_run=kill@1")
    run_id = rig.submit([{"calls": [sink_call("once", "a")]}])
    one_died(rig)
    [run] = rig.ended(run_id)
    assert run.status is RunStatus.COMPLETED
    assert [row["content"] for row in rig.tool_rows(run_id)] == [OUTCOME_UNKNOWN]
    assert [call.status for call in rig.client.views.list_calls(run_id)] == [CallStatus.UNKNOWN]
    assert [effect.mark for effect in rig.effects()] == ["a"]


def test_a_keyed_call_runs_again_under_the_same_key(rig: Rig) -> None:
    awake(rig)
    arm_all(rig, FleetRole.TOOLS, "call_tool.after_run=kill@1")
    run_id = rig.submit([{"calls": [sink_call("keyed", "a")]}])
    one_died(rig)
    rig.ended(run_id)
    effects = rig.effects()
    assert [effect.attempt for effect in effects] == [1, 2]
    assert {effect.key for effect in effects} == {f"{run_id}.1.0"}
    assert json.loads(rig.tool_rows(run_id)[0]["content"]) == {"written": "a"}


def test_a_frozen_worker_that_wakes_up_late_is_refused(postgres_rig: Rig) -> None:
    """It still has the reply of a model call that somebody else has made meanwhile.

    On PostgreSQL only: a process frozen while one of its threads holds SQLite's write lock stops everybody else until
    it is thawed, so "let others finish first" cannot be promised there. The crash lab freezes workers on SQLite too.
    """
    rig = postgres_rig
    awake(rig)
    arm_all(rig, FleetRole.MODEL, "iterate.after_reply=stop@1")
    run_id = rig.submit([{"calls": [sink_call("keyed", "a")]}])
    [run] = rig.ended(run_id)
    for worker in rig.fleet.workers:
        rig.fleet.thaw(worker)
    until(lambda: "iteration.refused" in rig.log_text() or None, "the late reply to be refused")
    assert run.status is RunStatus.COMPLETED
    assert rig.view(run_id) == run
    assert rig.broken_invariants() == []


def test_the_late_result_of_a_frozen_tool_is_refused(postgres_rig: Rig) -> None:
    rig = postgres_rig
    awake(rig)
    arm_all(rig, FleetRole.TOOLS, "call_tool.after_run=stop@1")
    run_id = rig.submit([{"calls": [sink_call("once", "a"), sink_call("keyed", "b")]}])
    [run] = rig.ended(run_id)
    for worker in rig.fleet.workers:
        rig.fleet.thaw(worker)
    until(lambda: "tool_call.refused" in rig.log_text() or None, "the late result to be refused")
    assert rig.view(run_id) == run
    assert [row["content"] == OUTCOME_UNKNOWN for row in rig.tool_rows(run_id)] == [True, False]
    assert [effect.mark for effect in rig.effects()].count("a") == 1


def test_an_orderly_leave_hands_work_over_and_repeats_nothing(postgres_rig: Rig) -> None:
    rig = postgres_rig
    awake(rig)
    steps = [{"calls": [sink_call("once", f"r{{i}}-{n}") for n in range(2)], "delay_s": 0.05, "repeat": 10}]
    for number in range(10):
        script = [{**steps[0], "calls": [sink_call("once", f"{number}.{{i}}.{n}") for n in range(2)]}]
        rig.submit(script)
    for _ in range(2):
        for worker in list(rig.fleet.workers):
            rig.fleet.terminate(worker)
            until(lambda worker=worker: None if rig.fleet.is_alive(worker) else True, "a worker to leave")
            rig.fleet.replace(worker)
    runs = rig.ended()
    assert {run.status for run in runs} == {RunStatus.COMPLETED}
    marks = [effect.mark for effect in rig.effects()]
    assert len(marks) == len(set(marks)) == 200
    assert not [call for run in runs for call in rig.client.views.list_calls(run.run_id) if call.status == "unknown"]
    assert rig.broken_invariants() == []


def test_a_leaving_worker_waits_for_a_call_that_must_not_run_twice(postgres_rig: Rig) -> None:
    """The drain period of the rig is 2 s; the command takes 4."""
    rig = postgres_rig
    awake(rig)
    slow = {"name": "terminal", "arguments": {"command": "echo began > began; sleep 4; echo survived"}}
    run_id = rig.submit([{"calls": [slow]}])
    until(lambda: (rig.directory / "workspace" / "began").exists() or None, "the command to run")
    for worker in rig.fleet.workers:
        if worker.role is FleetRole.TOOLS:
            rig.fleet.terminate(worker)
    [run] = rig.ended(run_id)
    assert run.status is RunStatus.COMPLETED
    assert "survived" in rig.tool_rows(run_id)[0]["content"]
