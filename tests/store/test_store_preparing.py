"""The step before a session's first model call, by its real body: a workspace is read, the prompt is completed, and
every worker sends the same bytes."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import cast

import pytest
from support.store import Store
from support.turns import Turns, change_parts

from hermes_worker.agent.prompt.system import PromptParts, assemble_prompt
from hermes_worker.core.effects import Iterate, Prepare
from hermes_worker.core.prompt_places import PromptPlace
from hermes_worker.core.recovery_state import RecoveryState
from hermes_worker.models.base import Provider
from hermes_worker.models.catalog import Wire
from hermes_worker.models.chain import ModelRoute
from hermes_worker.store.runs.runs import Runs
from hermes_worker.system.faults import FaultAction, FaultInjected, FaultPoint, arm_faults, disarm_faults
from hermes_worker.tasks.context import WorkerContext
from hermes_worker.tasks.iteration.requests import ModelOptions, build_request
from hermes_worker.tasks.prepare import UNREAD, prepare
from hermes_worker.workspaces.base import Workspace, WorkspaceAway
from hermes_worker.workspaces.opening import OpeningOptions, open_workspace
from hermes_worker.workspaces.ref import WorkspaceKind, WorkspaceRef

ROUTE = ModelRoute(
    provider=cast(Provider, None), name="custom", model="strict", host="", wire=Wire.CHAT_COMPLETIONS, credential=""
)


def opened_here(ref: str) -> Workspace:
    return open_workspace(WorkspaceRef.from_json(ref), OpeningOptions(base_env={}))


def worker(store: Store) -> WorkerContext:
    """Another process over the same rows, which has seen nothing yet."""
    return change_parts(Turns.over(store).parts, runs=Runs(store.database), workspace=opened_here)


def begun(store: Store, root: Path) -> str:
    prompt = assemble_prompt(
        PromptParts(today=date(2026, 11, 24), tools=frozenset({"read_file"}), model="strict", provider="x")
    )
    blocks = {
        PromptPlace.SKILLS: "# Skills\n<available_skills/>",
        PromptPlace.MEMORY: "MEMORY (your personal notes)\nShe likes tea.",
        PromptPlace.USER: "USER PROFILE\nHer name is Ada.",
    }
    return store.submit(
        system_prompt=prompt.text,
        gaps=prompt.gaps,
        prepares=True,
        blocks=lambda connection: blocks,
        workspace=WorkspaceRef(kind=WorkspaceKind.LOCAL, root=str(root)).to_json(),
    ).run_id


def system_row(parts: WorkerContext, store: Store, run_id: str) -> str:
    """The first bytes of the request that this worker would send."""
    session = parts.rows.runs.load_session_context(1)
    rows = store.transcripts.load(1, 1)
    request = build_request(session, rows, ROUTE, RecoveryState(), is_summary=False, options=ModelOptions())
    return request.messages[0]


def test_every_worker_sends_the_bytes_of_one_reading(store: Store, tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("Run the tests with make. token=sk-proj-abcdefghijklmnopqrstuvwxyz0123456789")
    run_id = begun(store, tmp_path)
    first, second, third = (worker(store) for _ in range(3))
    prepare(first, Prepare(run_id=run_id, attempt=1), 0.0)
    (tmp_path / "AGENTS.md").write_text("Something else by now.")
    prepare(second, Prepare(run_id=run_id, attempt=1), 0.0)
    rows = {system_row(parts, store, run_id) for parts in (first, second, third)}
    assert len(rows) == 1
    [row] = rows
    said = ["# Skills", "# Project context\\n\\n## AGENTS.md\\nRun the tests with make.", "MEMORY (", "Ada", "Today: "]
    places = [row.index(text) for text in said]
    assert places == sorted(places)
    assert "abcdefghijklmnop" not in row, "secrets are hidden"
    assert store.due(run_id) == [Iterate(run_id=run_id, iteration=1, attempt=1)]


@pytest.mark.parametrize("point", [FaultPoint.PREPARE_AFTER_CLAIM, FaultPoint.PREPARE_AFTER_READ])
def test_who_dies_in_the_middle_leaves_it_to_another(store: Store, tmp_path: Path, point: FaultPoint) -> None:
    (tmp_path / "AGENTS.md").write_text("Run the tests with make.")
    run_id = begun(store, tmp_path)
    dying, other = worker(store), worker(store)
    arm_faults(f"{point.value}={FaultAction.RAISE.value}")
    with pytest.raises(FaultInjected):
        prepare(dying, Prepare(run_id=run_id, attempt=1), 0.0)
    disarm_faults()
    dying.leases.retire()
    store.sweep()
    prepare(other, Prepare(run_id=run_id, attempt=2), 0.0)
    assert "Run the tests with make." in system_row(worker(store), store, run_id)


def test_a_workspace_that_is_away_leaves_the_run_to_go_on_and_says_so(store: Store, tmp_path: Path) -> None:
    run_id = begun(store, tmp_path)

    def away(ref: str) -> Workspace:
        raise WorkspaceAway("the host does not answer")

    prepare(replace(worker(store), workspace=away), Prepare(run_id=run_id, attempt=1), 0.0)
    assert UNREAD.splitlines()[-1] in system_row(worker(store), store, run_id)
    assert store.due(run_id) == [Iterate(run_id=run_id, iteration=1, attempt=1)]
