"""Trees of runs on real workers: a thousand children, depth five, and workers that die in the middle."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.rig import Rig, rig_on, sink_call, until

from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.core.run import RunStatus
from hermes_worker.lab.plan import FleetRole
from hermes_worker.local.valkey import EmbeddedValkey

pytestmark = pytest.mark.faults
DELEGATION = {"HERMES_MAX_CONCURRENT_CHILDREN": "50", "HERMES_MAX_SPAWN_DEPTH": "6"}


@pytest.fixture
def trees(tmp_path: Path, database_url: str, own_valkey: EmbeddedValkey) -> Iterator[Rig]:
    """One worker of each role; once on each kind of database."""
    with rig_on(
        tmp_path, database_url=database_url, broker_url=own_valkey.url, workers_per_role=1, more_environ=DELEGATION
    ) as rig:
        yield rig


@pytest.fixture
def postgres_trees(tmp_path: Path, postgres_url: str, own_valkey: EmbeddedValkey) -> Iterator[Rig]:
    """Two workers of each role on PostgreSQL."""
    with rig_on(tmp_path, database_url=postgres_url, broker_url=own_valkey.url, more_environ=DELEGATION) as rig:
        yield rig


def script(*steps: Mapping[str, Any], final: str = "done") -> str:
    """A goal that is a script itself, for the scripted model of the child."""
    return f"scripted: {dump_canonical_json({'steps': list(steps), 'final': final})}"


def delegate(*goals: str, role: str = "leaf") -> dict[str, Any]:
    return {"name": "delegate_task", "arguments": {"tasks": [{"goal": goal, "role": role} for goal in goals]}}


def reports(rig: Rig, run_id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.JSONDecoder().raw_decode(rig.tool_rows(run_id)[0]["content"])[0]["results"]
    return found


def test_children_work_and_their_answers_come_back_in_order(trees: Rig) -> None:
    goals = [script({"calls": [sink_call("keyed", f"child {n}")]}, final=f"answer {n}") for n in range(5)]
    run_id = trees.submit([{"calls": [delegate(*goals)]}])
    [run] = trees.ended(run_id)
    assert (run.status, run.output) == (RunStatus.COMPLETED, "done")
    assert [entry["summary"] for entry in reports(trees, run_id)] == [f"answer {n}" for n in range(5)]
    assert {effect.mark for effect in trees.effects()} == {f"child {n}" for n in range(5)}
    assert trees.statuses() == {"completed": 6}


def test_depth_five_on_real_workers(trees: Rig) -> None:
    goal = script(final="the bottom")
    for level in range(4):
        goal = script({"calls": [delegate(goal, role="orchestrator")]}, final=f"level {level}")
    run_id = trees.submit([{"calls": [delegate(goal, role="orchestrator")]}])
    [run] = trees.ended(run_id)
    assert run.status is RunStatus.COMPLETED
    assert reports(trees, run_id)[0]["summary"] == "level 3"
    assert trees.statuses() == {"completed": 6}


def test_the_answers_of_background_children_begin_a_turn_while_workers_die(postgres_trees: Rig) -> None:
    rig = postgres_trees
    rig.ended(rig.submit([]))
    for worker in rig.fleet.workers:
        plan = "iterate.after_commit=kill@2" if worker.role is FleetRole.MODEL else "call_tool.after_settle=kill@1"
        rig.fleet.arm(worker, plan)
    sent = delegate(*[script({"calls": [sink_call("keyed", f"b{n}")]}, final=f"answer {n}") for n in range(3)])
    sent["arguments"]["background"] = True
    run_id = rig.submit([{"calls": [sent]}], final="on their way", session_id="s")

    def second_turn() -> str | None:
        for worker in list(rig.fleet.workers):
            if not rig.fleet.is_alive(worker):
                rig.fleet.replace(worker)
        views = rig.client.views.list_runs(session_id="s")
        return views[0].run_id if len(views) == 2 and all(view.status.is_terminal for view in views) else None

    later = until(second_turn, "the turn of the answers to end")
    assert rig.view(run_id).output == "on their way"
    said = [json.loads(row.body)["content"] for row in rig.client.views.load_transcript(later)]
    told = [text for text in said if text and text.startswith("[BACKGROUND RESULT")]
    assert len(told) == 1
    assert all(f"answer {n}" in told[0] for n in range(3))
    assert rig.broken_invariants() == []


def test_a_leaf_that_tries_to_delegate_is_told_no(trees: Rig) -> None:
    run_id = trees.submit([{"calls": [delegate(script({"calls": [delegate(script())]}, final="alone"))]}])
    trees.ended(run_id)
    assert reports(trees, run_id)[0]["tool_trace"] == [{"tool": "delegate_task", "status": "failed"}]
    assert trees.statuses() == {"completed": 2}


def test_workers_that_die_at_every_point_of_a_tree_change_nothing_but_time(postgres_trees: Rig) -> None:
    rig = postgres_trees
    rig.ended(rig.submit([]))
    goals = [script({"calls": [sink_call("keyed", f"m{n}")]}, final=f"answer {n}") for n in range(20)]
    plans = {
        FleetRole.TOOLS: ("call_tool.after_run=kill@1", "call_tool.after_settle=kill@1"),
        FleetRole.MODEL: ("iterate.after_reply=kill@3", "iterate.after_commit=kill@3"),
    }
    for role, faults in plans.items():
        workers = [worker for worker in rig.fleet.workers if worker.role is role]
        for worker, plan in zip(workers, faults, strict=True):
            rig.fleet.arm(worker, plan)
    run_id = rig.submit([{"calls": [delegate(*goals)]}])
    deaths = 0

    def ended() -> bool | None:
        nonlocal deaths
        for worker in list(rig.fleet.workers):
            if not rig.fleet.is_alive(worker):
                deaths += 1
                rig.fleet.replace(worker)
        return True if rig.view(run_id).status.is_terminal else None

    until(ended, "the tree to end")
    assert deaths >= 3
    assert rig.view(run_id).status is RunStatus.COMPLETED
    assert [entry["summary"] for entry in reports(rig, run_id)] == [f"answer {n}" for n in range(20)]
    assert {effect.mark for effect in rig.effects()} == {f"m{n}" for n in range(20)}
    assert rig.broken_invariants() == []


@pytest.mark.slow
def test_a_thousand_children_of_one_root(postgres_trees: Rig) -> None:
    rig = postgres_trees
    goals = [script(final=f"answer {n}") for n in range(1_000)]
    run_id = rig.submit([{"calls": [delegate(*goals)]}], iterations_max=2_000)
    [run] = rig.ended(run_id)
    assert run.status is RunStatus.COMPLETED
    assert [entry["summary"] for entry in reports(rig, run_id)] == [f"answer {n}" for n in range(1_000)]
    assert rig.statuses() == {"completed": 1_001}
    assert rig.broken_invariants() == []


@pytest.fixture
def crowded(tmp_path: Path, postgres_url: str, own_valkey: EmbeddedValkey) -> Iterator[Rig]:
    """As ``postgres_trees``, where two hundred children of one run may work at once."""
    more = {**DELEGATION, "HERMES_MAX_CONCURRENT_CHILDREN": "200"}
    with rig_on(tmp_path, database_url=postgres_url, broker_url=own_valkey.url, more_environ=more) as rig:
        yield rig


@pytest.mark.parametrize(("children", "allowed"), [(10, 40), pytest.param(200, 300, marks=[pytest.mark.slow])])
def test_a_tree_spends_its_roots_model_calls_and_no_more_while_workers_die(
    crowded: Rig, children: int, allowed: int
) -> None:
    rig = crowded
    rig.ended(rig.submit([]))
    workers = [worker for worker in rig.fleet.workers if worker.role is FleetRole.MODEL]
    for worker, plan in zip(workers, ("iterate.after_claim=kill@5", "iterate.after_commit=kill@9"), strict=True):
        rig.fleet.arm(worker, plan)
    greedy = script({"calls": [sink_call("pure", "again")], "repeat": 100})
    run_id = rig.submit([{"calls": [delegate(*[greedy] * children)]}], iterations_max=allowed)

    def ended() -> bool | None:
        for worker in list(rig.fleet.workers):
            if not rig.fleet.is_alive(worker):
                rig.fleet.replace(worker)
        return True if rig.view(run_id).status.is_terminal else None

    until(ended, "the tree to end")
    views = rig.client.views.list_runs(limit=children + 1)
    assert sum(view.iteration for view in views) == allowed
    assert {entry["exit_reason"] for entry in reports(rig, run_id)} == {"max_iterations"}
    assert rig.broken_invariants() == []
