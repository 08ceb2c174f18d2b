"""Make the child runs that carry out the tasks of a ``delegate_task`` call."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from hermes_worker import __version__
from hermes_worker.agent.prompt.children import build_child_prompt
from hermes_worker.agent.source_tools import read_client_tools
from hermes_worker.agent.tools.results import build_error_result
from hermes_worker.core.budget import BudgetMode
from hermes_worker.core.delegation import (
    ChildTask,
    DelegationPolicy,
    InvalidDelegation,
    build_dispatch_note,
    may_be_background,
    require_allowed,
    select_child_tools,
)
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.core.run import CallStatus
from hermes_worker.core.spec import RunSpec
from hermes_worker.observe import count
from hermes_worker.store.rows import Hint
from hermes_worker.store.runs.calls import CallClaim, Settlement
from hermes_worker.store.runs.new_children import NewChild
from hermes_worker.store.runs.runs import SessionContext, create_run_id
from hermes_worker.tasks.context import WorkerContext
from hermes_worker.tasks.iteration.planning import read_tool_names

_NO_LIMIT = 100_000
_FOREVER_S = 31 * 86_400.0
"""The limit of a child without a limit of its own, in seconds; the parent's deadline comes earlier."""


def delegate(parts: WorkerContext, claim: CallClaim, tasks: Sequence[ChildTask], *, is_background: bool) -> list[Hint]:
    """Make the children of a claimed call and let go of it. Raises ``LeaseLost``.

    Where a later answer could not be delivered, the call waits for its children even in the background.
    """
    policy = parts.rules.delegation
    depth = claim.loaded.depth
    try:
        require_allowed(policy, tasks, depth=depth)
    except InvalidDelegation as refusal:
        text = build_error_result(str(refusal)).text
        settlement = Settlement(status=CallStatus.FAILED, text=text, duration_s=0.0, session_updates={})
        return parts.rows.calls.settle(claim, settlement)
    session = parts.rows.runs.load_session_context(claim.session_pk)
    asked = parts.rows.calls.load_spec(claim.run_pk)
    policy = replace(policy, budget=BudgetMode(asked.budget) if asked.budget else policy.budget)
    new = [_build_child(policy, claim, asked, session, task) for task in tasks]
    is_background = is_background and may_be_background(depth=depth, source=asked.source_kind)
    hints = parts.rows.calls.delegate(
        claim,
        new,
        children_max=policy.children_max,
        is_budget_shared=policy.budget.is_shared,
        note=build_dispatch_note(claim.idempotency_key, tasks) if is_background else None,
        turns_max=policy.turns_max,
    )
    count("run.delegated", len(new))
    return hints


def _build_child(
    policy: DelegationPolicy, claim: CallClaim, asked: RunSpec, session: SessionContext, task: ChildTask
) -> NewChild:
    """Build one child. ``asked`` is the parent's own spec: its limits hold for the whole tree, or for each child as
    well.
    """
    own = read_tool_names(session.tools) - {
        tool.name for tool in read_client_tools(session.tools)
    }  # a child has no client
    names = select_child_tools(own, policy, task.role, depth=claim.loaded.depth + 1)
    return NewChild(
        run_id=create_run_id(),
        spec=RunSpec(
            input=task.message,
            model=policy.model or claim.loaded.model,
            endpoint=claim.loaded.endpoint,
            toolsets=(),
            # With a shared budget the store bounds this by the parent's own limit.
            iterations_max=_NO_LIMIT if policy.budget is BudgetMode.SHARED else policy.iterations_max,
            wall_s_max=policy.timeout_s or _FOREVER_S,
            tokens_max=asked.tokens_max,
            tool_calls_max=asked.tool_calls_max,
            nano_usd_max=asked.nano_usd_max,
            budget=asked.budget,
            source="delegation",
            program=__version__,
            configuration=asked.configuration,
            layers=asked.layers,
            overrides=asked.overrides,
            overridden_by=asked.overridden_by,
        ),
        system_prompt=build_child_prompt(session.workspace, names),
        tools=_filter_tools(session.tools, names),
        workspace=session.workspace,
    )


@lru_cache(maxsize=256)
def _filter_tools(tools: str, names: frozenset[str]) -> str:
    """The parent's tool definitions without those a child does not get, in their bytes."""
    kept = [definition for definition in json.loads(tools) if definition["function"]["name"] in names]
    return dump_canonical_json(kept)
