"""Guardrails over every wire, through the real task bodies: remarks stand below results, blocked calls do not run, and
what is kept for them is never sent."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from dialects import API_MODE, RULES, Said, ToolUse
from strict_server import StrictServer
from support.store import Store, check
from support.turns import Turns, change_parts, do_calls

from hermes_worker.core.guardrails import GUARD_FIELD, GuardrailRules
from hermes_worker.core.run import ExitReason, RunStatus
from hermes_worker.workspaces.opening import OpeningOptions, open_workspace
from hermes_worker.workspaces.ref import WorkspaceKind, WorkspaceRef


@pytest.fixture(params=RULES)
def turns(store: Store, server: StrictServer, tmp_path: Path, request: pytest.FixtureRequest) -> Turns:
    turns = Turns.over(store, server.base_url, api_mode=API_MODE[request.param])
    opening = OpeningOptions(base_env={"PATH": "/usr/bin:/bin"}, hermes_home="")
    turns.parts = replace(turns.parts, workspace=lambda ref: open_workspace(WorkspaceRef.from_json(ref), opening))
    return turns


def ended(turns: Turns, folder: Path) -> str:
    """A run that was brought to its end, its calls for real."""
    folder.mkdir()
    tools = f"[{','.join(turns.parts.catalog.render_definitions(['read_file']))}]"
    workspace = WorkspaceRef(kind=WorkspaceKind.LOCAL, root=str(folder)).to_json()
    run_id = turns.submit(tools=tools, workspace=workspace)
    while not turns.store.status(run_id).is_terminal:
        do_calls(turns.parts, turns.store, run_id)
        turns.step(run_id)
    check(turns.store)
    return run_id


def reading(count: int) -> list[Said]:
    return [
        Said(calls=(ToolUse(id=f"call_{n}", name="read_file", arguments='{"path": "missing.txt"}'),))
        for n in range(count)
    ]


def test_a_call_that_fails_again_is_remarked_upon(turns: Turns, server: StrictServer, tmp_path: Path) -> None:
    server.says(*reading(3), Said(text="I give up"))

    run_id = ended(turns, tmp_path / "workspace")

    remarks = [text.partition("[Guardrail: ")[2] for text in turns.store.results(run_id)]
    assert [text[:28] for text in remarks] == ["", "this call has failed 2 times", "this call has failed 3 times"]
    assert turns.store.views.load_run(run_id).status is RunStatus.COMPLETED
    assert server.refusals == []
    assert any(GUARD_FIELD in row for row in turns.store.bodies(run_id))
    assert GUARD_FIELD not in json.dumps(server.accepted)


def test_a_call_that_fails_for_ever_is_blocked_and_its_turn_ends(
    turns: Turns, server: StrictServer, tmp_path: Path
) -> None:
    turns.parts = change_parts(turns.parts, guardrails=GuardrailRules(stops=True))
    server.says(*reading(9))

    run_id = ended(turns, tmp_path / "workspace")

    view = turns.store.views.load_run(run_id)
    assert (view.status, view.exit_reason) == (RunStatus.FAILED, ExitReason.GUARDRAIL_HALT)
    results = turns.store.results(run_id)
    assert len(results) == 6
    assert json.loads(results[-1])["guardrail"] == {"action": "block", "code": "exact_failure", "count": 5}
    assert len(server.accepted) == 6
