"""Auxiliary calls with real workers that are killed in the middle of one: the answer is neither lost nor paid twice."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

import pytest
from PIL import Image
from support.inside import inside
from support.rig import Rig, until

from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.core.run import RunStatus
from hermes_worker.lab.plan import FleetRole

pytestmark = pytest.mark.faults

MODEL, TOOLS = FleetRole.MODEL, FleetRole.TOOLS
_REPLIES = 3
"""Of the conversations: of the first run, and the one that asks for the tool and the last of the second."""


def awake(rig: Rig) -> None:
    """Workers take signals once they consume."""
    rig.ended(rig.submit([]))
    until(lambda: True if len(rig.client.workers.list_alive()) >= len(rig.fleet.workers) else None, "all workers")


def looks_at(name: str, *, final: str) -> Sequence[dict[str, Any]]:
    """The scripted model answers the question about the image by the script in it."""
    question = f"colour?\nscripted: {dump_canonical_json({'steps': [], 'final': final})}"
    return [{"calls": [{"name": "vision_analyze", "arguments": {"image_url": name, "question": question}}]}]


@pytest.mark.parametrize(
    ("role", "plan", "unknown", "asked"),
    [
        (MODEL, "ask_auxiliary.after_claim=kill", 1, 1),
        pytest.param(MODEL, "ask_auxiliary.after_reply=kill", 1, 2, marks=pytest.mark.nightly),
        pytest.param(MODEL, "ask_auxiliary.after_commit=kill", 0, 1, marks=pytest.mark.nightly),
        pytest.param(TOOLS, "call_tool.after_run=kill@1", 0, 1, marks=pytest.mark.nightly),
        pytest.param(TOOLS, "call_tool.after_settle=kill@1", 0, 1, marks=pytest.mark.nightly),
        pytest.param(TOOLS, "call_tool.after_run=kill@2", 0, 1, marks=pytest.mark.nightly),
    ],
)
def test_a_worker_that_dies_leaves_the_answer_to_others(
    rig: Rig, role: FleetRole, plan: str, unknown: int, asked: int
) -> None:
    out = io.BytesIO()
    Image.new("RGB", (5, 5), "red").save(out, "PNG")
    workspace = rig.directory / "workspace"
    workspace.mkdir()
    (workspace / "a.png").write_bytes(out.getvalue())
    awake(rig)
    latch = rig.directory / "latch"
    spared, *others = [worker for worker in rig.fleet.workers if worker.role is role]
    if "@" in plan:
        for worker in others:  # both halves are to meet the same process
            rig.fleet.kill(worker)
    for worker in [spared] if "@" in plan else [spared, *others]:
        rig.fleet.arm(worker, f"{plan}!{latch}")

    run_id = rig.submit(looks_at("a.png", final="a red square"))
    until(lambda: latch.exists() or None, "the worker to die")
    for worker in list(rig.fleet.workers):
        if not rig.fleet.is_alive(worker):
            rig.fleet.replace(worker)

    [run] = rig.ended(run_id)
    assert run.status is RunStatus.COMPLETED
    [result] = rig.tool_rows(run_id)
    assert json.loads(inside(result["content"]))["analysis"] == "a red square"
    assert run.usage.unknown_attempts == unknown
    assert rig.model.requests.completions == _REPLIES + asked
