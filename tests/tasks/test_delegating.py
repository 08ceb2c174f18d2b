"""What children a call gets: their model, their limits, their tools, and who may answer for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.store import Store, asks, opened
from support.turns import Turns, change_parts, do_calls

from hermes_worker.agent.source_tools import render_client_definition
from hermes_worker.agent.tools.catalog import build_default_catalog
from hermes_worker.core.budget import BudgetMode
from hermes_worker.core.client_tools import ClientTool
from hermes_worker.core.delegation import ChildRole, ChildTask, DelegationPolicy
from hermes_worker.core.messages import ModelReply, ToolRequest
from hermes_worker.core.replay import Replay
from hermes_worker.core.spec import RunSpec
from hermes_worker.safety.approvals import UnattendedMode
from hermes_worker.settings import ApprovalSettings, Settings
from hermes_worker.store.tables import blobs, budgets, run_inputs, runs, sessions
from hermes_worker.tasks.build import build_approval_rules
from hermes_worker.tasks.calls.delegating import delegate
from hermes_worker.tasks.iteration.planning import plan_calls, read_tool_names
from hermes_worker.workspaces.opening import OpeningOptions, open_workspace
from hermes_worker.workspaces.ref import WorkspaceKind, WorkspaceRef
from hermes_worker.workspaces.sandbox.backends import Sandbox
from hermes_worker.workspaces.sandbox.bubblewrap import BubblewrapRung
from hermes_worker.workspaces.sandbox.policy import SandboxMode, SandboxPolicy

_CATALOG = build_default_catalog()
TOOLS = f"[{','.join(_CATALOG.render_definitions(_CATALOG.names))}]"


@pytest.fixture
def turns(tmp_path: Path) -> Iterator[Turns]:
    with opened(f"sqlite:///{tmp_path / 'test.db'}") as store:
        yield Turns.over(store, "http://127.0.0.1:1/v1")


def child_of(
    turns: Turns,
    *,
    tools: str = TOOLS,
    role: ChildRole = ChildRole.LEAF,
    policy: DelegationPolicy | None = None,
    **spec: Any,
) -> Any:
    """The row of the child that a run with ``spec`` gets, with what it was asked for."""
    store = turns.store
    root = store.with_tools(Replay.PURE, tools=tools, **spec)
    parts = change_parts(turns.parts, delegation=policy or DelegationPolicy())
    delegate(parts, store.call(root), [ChildTask(goal="g", context="c", role=role)], is_background=False)
    with store.database.read() as connection:
        return connection.execute(
            sa.select(runs, run_inputs.c.spec)
            .join(run_inputs, run_inputs.c.run_pk == runs.c.pk)
            .where(runs.c.parent_pk.is_not(None))
        ).one()


@pytest.mark.parametrize("is_background", [False, True])
def test_a_childs_command_is_refused_where_a_sandbox_is_required_and_nothing_confines(
    turns: Turns, tmp_path: Path, is_background: bool
) -> None:
    store = turns.store
    sandbox = Sandbox(SandboxMode.REQUIRE, SandboxPolicy(), [BubblewrapRung([])])
    parts = change_parts(
        turns.parts,
        delegation=DelegationPolicy(),
        workspace=lambda ref: open_workspace(
            WorkspaceRef.from_json(ref), OpeningOptions(base_env={"PATH": "/usr/bin:/bin"}, sandbox=sandbox)
        ),
    )
    (tmp_path / "work").mkdir()
    workspace = WorkspaceRef(kind=WorkspaceKind.LOCAL, root=str(tmp_path / "work")).to_json()
    root = store.with_tools(Replay.PURE, tools=TOOLS, workspace=workspace)
    delegate(parts, store.call(root), [ChildTask(goal="g")], is_background=is_background)
    with store.database.read() as connection:
        child = connection.execute(sa.select(runs.c.run_id).where(runs.c.run_id != root)).scalar_one()

    request = ToolRequest(id="c1", name="terminal", arguments='{"command": "touch ran"}')
    reply, calls = plan_calls(ModelReply(text="", tool_requests=(request,)), parts.catalog)
    store.runs.commit_reply(store.turn(child), reply, calls)
    do_calls(parts, store, child)

    (said,) = store.results(child)
    assert "commands must be confined (terminal.sandbox is require), but bubblewrap is not installed" in said
    assert list((tmp_path / "work").iterdir()) == []


def names_of(store: Store, row: Any) -> frozenset[str]:
    return read_tool_names(store.runs.load_session_context(row.session_pk).tools)


@pytest.mark.parametrize(("override", "model"), [(None, "parents-own"), ("childrens-own", "childrens-own")])
def test_a_child_has_its_parents_model_or_that_of_children_and_its_own_task(
    turns: Turns, override: str | None, model: str
) -> None:
    row = child_of(turns, model="parents-own", policy=DelegationPolicy(model=override))
    spec = RunSpec.from_json(row.spec)
    assert (row.model, spec.source, spec.input) == (model, "delegation", "g\n\nContext:\nc")


def test_a_leaf_gets_its_parents_tools_without_those_that_are_not_for_children(turns: Turns) -> None:
    assert names_of(turns.store, child_of(turns)) == _CATALOG.names - {
        "clarify",
        "cronjob",
        "delegate_task",
        "memory",
        "execute_code",
        "send_message",
    }


def test_an_orchestrator_may_delegate_where_the_depth_allows_it(turns: Turns) -> None:
    policy = DelegationPolicy(depth_max=2)
    assert "delegate_task" in names_of(turns.store, child_of(turns, role=ChildRole.ORCHESTRATOR, policy=policy))


@pytest.mark.parametrize(
    ("mode", "iterations_max", "has_budget"),
    [("shared", 90, 1), ("mixed", 50, 1), ("independent", 50, 2), (None, 50, 1)],
)
def test_the_submission_says_how_children_share_its_limits(
    turns: Turns, mode: str | None, iterations_max: int, has_budget: int
) -> None:
    policy = DelegationPolicy(budget=BudgetMode.MIXED)
    row = child_of(turns, policy=policy, budget=mode, tokens_max=700, nano_usd_max=5)
    assert (row.iterations_max, row.has_budget) == (iterations_max, has_budget)
    assert RunSpec.from_json(row.spec).budget == mode
    with turns.store.database.read() as connection:
        kept = connection.execute(sa.select(budgets.c.tokens_max, budgets.c.nano_usd_max)).all()
    assert [tuple(one) for one in kept] == [(700, 5)] * (2 if mode == "independent" else 1)


def test_a_childs_time_is_its_own_limit_or_its_parents_deadline(turns: Turns) -> None:
    row = child_of(turns, policy=DelegationPolicy(timeout_s=40.0), wall_s_max=1_000.0)
    assert row.deadline_at - row.created_at == pytest.approx(40, abs=1)


def test_a_run_that_is_too_deep_is_told_so(turns: Turns) -> None:
    store = turns.store
    row = child_of(turns)
    store.ask_tools(row.run_id, asks(Replay.PURE))
    delegate(turns.parts, store.call(row.run_id), [ChildTask(goal="g")], is_background=False)
    assert "1 level(s) deep" in json.loads(store.results(row.run_id)[0])["error"]


def test_scheduled_runs_and_children_wait_for_what_they_send_into_the_background(turns: Turns) -> None:
    store = turns.store
    root = store.with_tools(Replay.PURE, tools=TOOLS, source="cron")
    delegate(turns.parts, store.call(root), [ChildTask(goal="g")], is_background=True)
    assert store.status(root).value == "waiting_for_children"


def test_nobody_answers_for_children_unless_the_installation_says_so() -> None:
    rules = build_approval_rules(Settings(home=Path("/nowhere")))
    assert rules.by_source["delegation"] is UnattendedMode.DENY
    asking = Settings(home=Path("/nowhere"), approvals=ApprovalSettings(delegation="approve"))
    assert build_approval_rules(asking).by_source["delegation"] is UnattendedMode.APPROVE


def test_a_child_has_no_tools_of_a_client_and_their_calls_come_last(turns: Turns) -> None:
    tool = ClientTool(name="get_weather", description="", parameters={"type": "object"})
    tools = f"{TOOLS[:-1]},{render_client_definition(tool, 60.0)}]"
    names = ("get_weather", "read_file", "get_weather", "terminal")
    requests = [ToolRequest(id=f"c{n}", name=name, arguments=f'{{"path":"{n}"}}') for n, name in enumerate(names)]
    _, calls = plan_calls(ModelReply(text="", tool_requests=tuple(requests)), _CATALOG.for_session(tools))
    assert [call.segment for call in calls] == [2, 0, 2, 1]
    child = child_of(turns, tools=tools)
    with turns.store.database.read() as connection:
        wanted = sa.select(blobs.c.body).join(sessions, sessions.c.tools_hash == blobs.c.hash)
        stored = connection.execute(wanted.where(sessions.c.pk == child.session_pk)).scalar_one()
    assert "get_weather" not in read_tool_names(stored)
    assert "read_file" in read_tool_names(stored)
