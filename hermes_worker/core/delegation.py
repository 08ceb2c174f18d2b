"""Delegation as data: what a model may ask for, and what it is told when its children
ended. Pure.

The tool parses, the worker uses ``require_allowed`` and ``select_child_tools`` to decide what to create, the store
composes the result with ``build_report``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from hermes_worker.core.budget import Budget, BudgetMode, find_lacking_dimension, get_unit
from hermes_worker.core.json_values import read_stripped_text
from hermes_worker.core.messages import Usage, dump_canonical_json
from hermes_worker.core.run import ExitReason, RunStatus

DELEGATE_TOOL = "delegate_task"
BLOCKED_TOOLS = frozenset({"clarify", "memory", "send_message", "execute_code", "cronjob"})
"""Tools that children never get: they would speak to the user, or change what is the parent's."""
CHILD_TIMEOUT_S_MIN = 30.0
SUMMARY_CHARS_MAX = 24_000
_SUMMARY_CHARS_LEAST = 200
TURNS_MAX = 20
"""Turns of a session that background answers may begin before a person speaks again."""
_REPORT_CHARS_MAX = 400_000
"""Half of what a window of 200,000 tokens holds: all summaries of one call together stay below it."""
_HEAD = 0.75
_TRACE_CHILDREN_MAX = 20
"""With more children than this their tool traces are left out, because they would be most of the text."""


class ChildRole(StrEnum):
    LEAF = "leaf"
    ORCHESTRATOR = "orchestrator"
    """May delegate in turn, where the depth allows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationPolicy:
    """The limits of delegation in an installation."""

    children_max: int = 3
    """Children of one run that work at the same time; more are queued."""
    tasks_max: int = 1_000
    """Tasks of one call; more are refused."""
    depth_max: int = 1
    """Levels below the top of the tree; 1 means that children do not delegate."""
    iterations_max: int = 50
    """Model calls of a child, unless the tree's budget is all there is."""
    budget: BudgetMode = BudgetMode.SHARED
    timeout_s: float | None = None
    """Seconds from its creation after which a child expires; ``None`` for the parent's deadline only."""
    model: str | None = None
    """The children's model; ``None`` for the parent's."""
    turns_max: int = TURNS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildTask:
    """One task, as the model wrote it."""

    goal: str
    context: str = ""
    role: ChildRole = ChildRole.LEAF

    @property
    def message(self) -> str:
        """The user's message of the child. Everything that differs between siblings stands here and not in the system
        prompt, so that they share the provider's cache."""
        return f"{self.goal}\n\nContext:\n{self.context}" if self.context else self.goal


class InvalidDelegation(ValueError):
    """The call asks for nothing, or for what is not allowed; the message is for the model."""


def parse_tasks(arguments: Mapping[str, Any]) -> tuple[ChildTask, ...]:
    """Parse the tasks of a call whose arguments match the tool's schema. Raises ``InvalidDelegation``."""
    common, role = read_stripped_text(arguments.get("context")), _parse_role(arguments.get("role"))
    asked = arguments.get("tasks") or ()
    if not asked:
        goal = read_stripped_text(arguments.get("goal"))
        if not goal:
            raise InvalidDelegation("nothing was delegated: give a 'goal', or a list of 'tasks' that each have one")
        return (ChildTask(goal=goal, context=common, role=role),)
    tasks = []
    for number, task in enumerate(asked, start=1):
        goal = read_stripped_text(task.get("goal"))
        if not goal:
            raise InvalidDelegation(f"nothing was delegated: task {number} has no 'goal'")
        own = read_stripped_text(task.get("context")) or common
        tasks.append(ChildTask(goal=goal, context=own, role=_parse_role(task.get("role")) if "role" in task else role))
    return tuple(tasks)


def require_allowed(policy: DelegationPolicy, tasks: Sequence[ChildTask], *, depth: int) -> None:
    """Require that a run at ``depth`` may delegate these tasks. Raises ``InvalidDelegation``."""
    if depth >= policy.depth_max:
        raise InvalidDelegation(
            f"nothing was delegated: tasks may be handed down {policy.depth_max} level(s) deep and this is level "
            f"{depth}; do the work yourself"
        )
    if len(tasks) > policy.tasks_max:
        raise InvalidDelegation(
            f"nothing was delegated: {len(tasks)} tasks in one call, at most {policy.tasks_max} are allowed"
        )


def select_child_tools(
    names: Iterable[str], policy: DelegationPolicy, role: ChildRole, *, depth: int
) -> frozenset[str]:
    """Select the tools of a child at ``depth`` whose parent has ``names``. An orchestrator that may not delegate is a
    leaf."""
    allowed = frozenset(names) - BLOCKED_TOOLS
    may_delegate = role is ChildRole.ORCHESTRATOR and depth < policy.depth_max
    return allowed if may_delegate else allowed - {DELEGATE_TOOL}


def _parse_role(value: object) -> ChildRole:
    return ChildRole.ORCHESTRATOR if value == ChildRole.ORCHESTRATOR.value else ChildRole.LEAF


# ---------------------------------------------------------------------------------------------------------- background


def may_be_background(*, depth: int, source: str) -> bool:
    """Whether a later answer can still be received: a child's parent has gone on by
    then, and a scheduled run delivers only one answer."""
    return depth == 0 and source != "cron"


def explain_background_refusal(budget: Budget, *, turns: int, turns_max: int, is_shared: bool) -> str | None:
    """Why a call may not delegate into the background, in words for the model; ``None`` when it may.

    The answer of background children begins another run, so this check is what ends a chain. ``budget`` is the chain's;
    it must have room for the answer of the present run, for a model call of the children if they draw from it
    (``is_shared``), and for the answer of the run they begin. ``turns`` runs were begun or promised by the chain so
    far.
    """
    if turns >= turns_max:
        return (
            f"nothing was delegated: what the user asked for may go on by itself for {turns_max} turn(s), begun by the "
            "answers of background subagents, and they are all used or under way. Delegate without 'background' and "
            "wait for the answer, or do the work yourself and finish your answer"
        )
    lacks = find_lacking_dimension(budget, calls=2 + int(is_shared))
    if lacks is None:
        return None
    return (
        f"nothing was delegated: of the {get_unit(lacks)} that what the user asked for may take, too "
        "little is left for "
        "subagents and for a turn that begins with their answer. Finish your answer with what you have"
    )


def build_refusal_note(refusal: str) -> str:
    """The result of a call that was refused to delegate."""
    return dump_canonical_json({"error": refusal})


def derive_delegation_id(call_key: str) -> str:
    """Derive a name for a delegation, equal for every delivery of the call."""
    return f"deleg_{hashlib.sha256(call_key.encode()).hexdigest()[:8]}"


_GOALS_SHOWN = 20
_GOAL_CHARS = 200


def build_dispatch_note(call_key: str, tasks: Sequence[ChildTask]) -> str:
    """The result of a call whose children work in the background."""
    return dump_canonical_json(
        {
            "status": "dispatched",
            "mode": "background",
            "count": len(tasks),
            "delegation_id": derive_delegation_id(call_key),
            "goals": [task.goal[:_GOAL_CHARS] for task in tasks[:_GOALS_SHOWN]],
            "note": "The subagents are at work. Do not wait for them and do not do their work: finish your answer, say "
            "what is under way, and you will get what they report as a message of its own.",
        }
    )


def build_background_message(call_key: str, outcomes: Sequence[ChildOutcome]) -> str:
    """The message that begins the run in which a session learns what its background children left."""
    return (
        f"[BACKGROUND RESULT {derive_delegation_id(call_key)}: the subagents you sent have ended. "
        "This message comes from the "
        "system, not from the user; tell the user what matters of it.]\n"
        f"{build_report(outcomes)}"
    )


# -------------------------------------------------------------------------------------------------------------- report


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildOutcome:
    """The outcome of a child that has ended."""

    index: int
    run_id: str
    status: RunStatus
    exit_reason: str | None
    model: str
    iterations: int
    duration_s: float
    """0 for a child that never began."""
    usage: Usage
    summary: str
    """Its answer, or, without one, the last text it wrote."""
    error: str | None
    tools: Sequence[tuple[str, str]] = field(default=())
    """Name and status of its calls, in order."""
    files: Sequence[str] = ()
    """Paths of files that it made or changed, as it named them."""
    cost_usd: float | None = None
    """The known part of its cost; ``None`` when nothing is known."""

    @property
    def verdict(self) -> str:
        """``completed``, ``failed``, ``interrupted`` or ``timeout``."""
        if self.status is RunStatus.COMPLETED:
            return "completed" if self.summary else "failed"
        return {RunStatus.CANCELLED: "interrupted", RunStatus.EXPIRED: "timeout"}.get(self.status, "failed")


_EXITS = {
    ExitReason.MAX_ITERATIONS_REACHED.value: "max_iterations",
    ExitReason.BUDGET_EXHAUSTED.value: "budget_exhausted",
}


def build_report(outcomes: Sequence[ChildOutcome]) -> str:
    """The result of a ``delegate_task`` call: its children in the order of the tasks, within a limit of characters.
    Equal outcomes give equal bytes."""
    chars = compute_summary_chars(len(outcomes))
    results = [_build_entry(outcome, chars, has_trace=len(outcomes) <= _TRACE_CHILDREN_MAX) for outcome in outcomes]
    longest = max((outcome.duration_s for outcome in outcomes), default=0.0)
    return dump_canonical_json({"results": results, "total_duration_seconds": round(longest, 2)})


def compute_summary_chars(children: int) -> int:
    """The most characters of each summary. The original's minimum holds while all of them fit together."""
    share = _REPORT_CHARS_MAX // max(1, children)
    return min(SUMMARY_CHARS_MAX, max(share, _SUMMARY_CHARS_LEAST))


def shorten_middle(text: str, chars_max: int) -> str:
    """Keep the first three quarters and the last quarter of ``chars_max`` characters, with a line between them that
    says how much is left out."""
    if len(text) <= chars_max:
        return text
    head = int(chars_max * _HEAD)
    tail = chars_max - head
    return f"{text[:head]}\n[... {len(text) - chars_max} characters left out ...]\n{text[-tail:]}"


def _build_entry(outcome: ChildOutcome, chars: int, *, has_trace: bool) -> dict[str, object]:
    reason = outcome.exit_reason or ""
    entry: dict[str, object] = {
        "task_index": outcome.index,
        "run_id": outcome.run_id,
        "status": outcome.verdict,
        "summary": shorten_middle(outcome.summary, chars),
        "api_calls": outcome.iterations,
        "duration_seconds": round(outcome.duration_s, 2),
        "model": outcome.model,
        "exit_reason": _EXITS.get(reason, "error" if outcome.verdict == "failed" else outcome.verdict),
        "tokens": {"input": outcome.usage.total - outcome.usage.output, "output": outcome.usage.output},
    }
    if outcome.usage.unknown_attempts:
        entry["unknown_attempts"] = outcome.usage.unknown_attempts
    if has_trace:
        entry["tool_trace"] = [{"tool": name, "status": status} for name, status in outcome.tools]
    if outcome.files:
        entry["files_changed"] = list(outcome.files)
    if outcome.cost_usd is not None:
        entry["cost_usd"] = round(outcome.cost_usd, 6)
    if len(outcome.summary) > chars:
        entry["summary_truncated"] = True
    error = outcome.error or ("it ended without a summary" if outcome.verdict == "failed" else None)
    if error:
        entry["error"] = error
    return entry
