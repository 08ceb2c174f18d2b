"""Stopping runs on real workers: before, during and after everything a run can be doing."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from support.rig import Rig, rig_on, sink_call, until

from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.core.run import CallStatus, RunStatus
from hermes_worker.local.valkey import EmbeddedValkey

pytestmark = pytest.mark.faults

ABORTED_WITHIN_S = 0.2
"""Issue 4.8: from the request until the run has ended, which includes the stop, the abort and the commit of the end.

On a machine that is busy with other things, no longer than ``RUNS_MEANWHILE`` whole runs that were made just before:
the same processes take them by the same ways, and have more to do for one."""
RUNS_MEANWHILE = 2


def stop(rig: Rig, run_id: str) -> float:
    """Ask as the API does; returns when."""
    at = time.monotonic()
    _, hints = rig.client.runs.request_stop(run_id)
    rig.client.publisher.nudge("stop", run_id)
    rig.client.publisher.send(hints)
    return at


def roles(rig: Rig, run_id: str) -> list[str]:
    return [json.loads(row.body)["role"] for row in rig.client.views.load_transcript(run_id)]


def is_valid(rig: Rig, run_id: str) -> bool:
    """Every call has its one result, in order, and the turn does not end with a result."""
    rows: list[dict[str, Any]] = [json.loads(row.body) for row in rig.client.views.load_transcript(run_id)]
    asked = [call["id"] for row in rows for call in row.get("tool_calls") or ()]
    answered = [row["tool_call_id"] for row in rows if row["role"] == "tool"]
    return asked == answered and rows[-1]["role"] != "tool"


def command(text: str) -> dict[str, Any]:
    return {"calls": [{"name": "terminal", "arguments": {"command": text}}]}


def consuming(rig: Rig) -> float:
    """Have a run made that does nothing; returns how long that took."""
    began = time.monotonic()
    rig.ended(rig.submit([]))
    return time.monotonic() - began


def test_a_run_that_is_stopped_before_it_starts_makes_no_model_call(rig: Rig) -> None:
    consuming(rig)
    before = rig.model.requests.completions
    run_id = rig.submit([], publish=False, session_id="held")
    stop(rig, run_id)
    [run] = rig.ended(run_id)
    assert run.status is RunStatus.CANCELLED
    stop(rig, run_id)
    assert rig.view(run_id) == run
    assert rig.model.requests.completions == before


@pytest.mark.parametrize("pace", [{"delay_s": 8}, {"chunks": 40, "chunk_gap_s": 0.2}], ids=["silent", "streaming"])
def test_a_model_call_in_flight_is_aborted_at_once_and_its_words_are_not_kept(rig: Rig, pace: dict[str, float]) -> None:
    consuming(rig)
    took_s = []
    for _ in range(3):  # the machine may be busy; what the product needs is the least of them
        beside_s = consuming(rig)
        asked = rig.model.requests.completions
        run_id = rig.submit([{"text": "half a thought " * 20, **pace, "calls": [sink_call("pure", "a")]}])
        until(lambda asked=asked: rig.model.requests.completions > asked or None, "the model to have the request")
        asked_at = stop(rig, run_id)
        [run] = rig.ended(run_id)
        took_s.append((time.monotonic() - asked_at, beside_s))
        assert run.status is RunStatus.CANCELLED
        assert roles(rig, run_id) == ["user"]
    assert rig.effects() == []
    assert any(took < max(ABORTED_WITHIN_S, RUNS_MEANWHILE * beside) for took, beside in took_s), took_s


def test_a_command_that_runs_is_ended_with_everything_it_started(rig: Rig) -> None:
    consuming(rig)
    mark = rig.directory / "workspace" / "began"
    run_id = rig.submit([command(f"trap '' TERM; touch {mark}; sleep 60 & wait; sleep 60; touch {mark}.over")])
    until(lambda: mark.exists() or None, "the command to begin")
    stop(rig, run_id)
    stop(rig, run_id)
    [run] = rig.ended(run_id)
    assert run.status is RunStatus.CANCELLED
    assert is_valid(rig, run_id)
    assert not mark.with_name("began.over").exists()


def test_calls_of_one_reply_all_end_and_none_follows(rig: Rig) -> None:
    consuming(rig)
    calls = [sink_call("pure", f"p{n}") for n in range(3)]
    waiting = {"name": "terminal", "arguments": {"command": "sleep 60"}}
    run_id = rig.submit([{"calls": [*calls, waiting, sink_call("once", "never")]}])

    def is_running() -> bool | None:
        found = rig.client.views.list_calls(run_id)
        return (len(found) == 5 and found[3].status is CallStatus.RUNNING) or None

    until(is_running, "the command to run")
    stop(rig, run_id)
    [run] = rig.ended(run_id)
    assert run.status is RunStatus.CANCELLED
    assert is_valid(rig, run_id)
    assert "never" not in {effect.mark for effect in rig.effects()}


def test_stopping_a_run_that_has_ended_changes_nothing(rig: Rig) -> None:
    run_id = rig.submit([])
    [run] = rig.ended(run_id)
    stop(rig, run_id)
    assert rig.view(run_id) == run


def test_a_stop_reaches_model_calls_and_commands_of_every_descendant(
    tmp_path: Path, own_valkey: EmbeddedValkey, postgres_url: str
) -> None:
    """Three levels, two workers of each role: a grandchild in a model call, another in a command."""
    depth = {"HERMES_MAX_SPAWN_DEPTH": "3", "HERMES_MAX_CONCURRENT_CHILDREN": "8"}
    with rig_on(tmp_path, database_url=postgres_url, broker_url=own_valkey.url, more_environ=depth) as rig:
        consuming(rig)
        mark = rig.directory / "workspace" / "began"
        thinking = {"text": "half a thought", "delay_s": 60}
        working = command(f"touch {mark}; sleep 60")
        middle = script(delegation([script(thinking), script(working)]))
        run_id = rig.submit([delegation([middle, middle])])
        until(lambda: (len(rig.client.views.list_runs()) == 8 and mark.exists()) or None, "the tree to be at work")
        for _ in range(2):
            stopped = rig.client.runs.stop_tree(run_id)
            rig.client.publisher.publish_stops(stopped.run_ids, stopped.hints)
        until(lambda: rig.statuses() == {"completed": 1, "cancelled": 7} or None, "all of them to end")
        for view in rig.client.views.list_runs():
            assert is_valid(rig, view.run_id)
        assert rig.broken_invariants() == []


def script(*steps: dict[str, Any]) -> str:
    return f"scripted: {dump_canonical_json({'steps': list(steps), 'final': 'done'})}"


def delegation(goals: list[str]) -> dict[str, Any]:
    tasks = [{"goal": goal, "role": "orchestrator"} for goal in goals]
    return {"calls": [{"name": "delegate_task", "arguments": {"tasks": tasks}}]}
