"""What is said of runs while real workers have them, and runs that real sweepers begin."""

from __future__ import annotations

from typing import Any

import pytest
from support.rig import Rig, until

from hermes_worker.core.explanations import ExplainedReason, Explanation
from hermes_worker.core.run import RunStatus
from hermes_worker.store.runs.explanations import Explanations

pytestmark = pytest.mark.faults


def command(text: str) -> dict[str, Any]:
    return {"calls": [{"name": "terminal", "arguments": {"command": text}}]}


def told(rig: Rig, run_id: str, because: ExplainedReason) -> Explanation:
    """Once it is said of the run."""
    explanations = Explanations(rig.client.database)

    def found() -> Explanation | None:
        said = explanations.explain_run(run_id)
        return said if said.because is because else None

    return until(found, f"{run_id} to be {because}")


def test_a_run_at_work_names_its_worker_and_the_one_behind_it_names_the_run(rig: Rig) -> None:
    go = rig.directory / "workspace" / "go"
    first = rig.submit([command(f"while [ ! -e {go} ]; do sleep 0.1; done")], session_id="s")
    second = rig.submit([], session_id="s")
    later = rig.submit([], delay_s=3_600.0)

    at_work = told(rig, first, ExplainedReason.CALLING_TOOLS)
    assert at_work.facts["tools"] == "terminal"
    assert at_work.facts["worker"]
    assert told(rig, second, ExplainedReason.SESSION_AT_WORK).facts["active_run"] == first
    assert told(rig, later, ExplainedReason.NOT_BEFORE).until is not None
    go.parent.mkdir(parents=True, exist_ok=True)  # a call that is claimed has not got its workspace yet
    go.touch()
    rig.ended(first)
    assert rig.ended(second)[0].status is RunStatus.COMPLETED
    assert told(rig, second, ExplainedReason.ENDED).facts["exit_reason"] == "text_response"


def test_a_run_that_is_put_off_is_begun_by_a_sweeper_and_not_before(rig: Rig) -> None:
    run_id = rig.submit([], delay_s=2.0)

    [run] = rig.ended(run_id)

    assert run.status is RunStatus.COMPLETED
    assert run.not_before is not None
    assert run.started_at is not None
    assert run.started_at >= run.not_before
