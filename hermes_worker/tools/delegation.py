"""Handing tasks to child runs (reference, loop §7.1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hermes_worker.core.delegation import DELEGATE_TOOL, InvalidDelegation, Role, tasks_of
from hermes_worker.core.replay import Replay
from hermes_worker.tools.base import ToolContext, ToolResult, ToolSpec
from hermes_worker.tools.results import error_result

_ROLE = {
    "type": "string",
    "enum": [role.value for role in Role],
    "description": "leaf (usual): does the work itself. orchestrator: may delegate in turn, where that is allowed.",
}

_SPEC = ToolSpec(
    name=DELEGATE_TOOL,
    description=(
        "Hand one task, or several independent ones, to subagents that work at the same time, each with a conversation "
        "of its own and your tools. Returns when all have ended, with a summary of each in the order of the tasks. A "
        "subagent knows nothing of this conversation: put everything it needs into its goal and context. It cannot ask "
        "you or the user anything. Use it for work that is large or can be split; do small things yourself. What a "
        "subagent says it did is its own account: check what matters."
    ),
    parameters={
        "type": "object",
        "properties": {
            "goal": {"type": "string", "description": "What the subagent is to achieve. Leave it out with 'tasks'."},
            "context": {
                "type": "string",
                "description": "What it must know: paths, findings, constraints, the form of the answer.",
            },
            "tasks": {
                "type": "array",
                "description": "Several tasks at once, one subagent for each.",
                "items": {
                    "type": "object",
                    "properties": {
                        "goal": {"type": "string"},
                        "context": {"type": "string"},
                        "role": _ROLE,
                    },
                    "required": ["goal"],
                },
            },
            "role": _ROLE,
            "background": {
                "type": "boolean",
                "description": "true: do not wait. You go on at once, and what the subagents report comes later as a "
                "message of its own. Only where the user can wait as well.",
            },
        },
        "required": [],
    },
    toolset="delegation",
    # The call does nothing but say what is asked for; the children are made by the transaction that parks it.
    is_untrusted=False,
    replay=Replay.PURE,
    timeout_s=60,
    is_parallel_safe=True,
)


class DelegateTool:
    """``delegate_task``: turns the arguments into tasks; the worker makes runs of them."""

    @property
    def spec(self) -> ToolSpec:
        return _SPEC

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        try:
            tasks = tasks_of(arguments)
            return ToolResult(text="", delegated=tasks, is_background=bool(arguments.get("background")))
        except InvalidDelegation as error:
            return error_result(str(error))
