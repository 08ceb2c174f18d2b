"""Handing tasks to child runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hermes_worker.agent.tools.base import ToolContext, ToolResult
from hermes_worker.agent.tools.builtin import DELEGATE_TASK
from hermes_worker.agent.tools.results import build_error_result
from hermes_worker.core.delegation import InvalidDelegation, parse_tasks


class DelegateTool:
    """``delegate_task``: turns the arguments into tasks; the worker makes runs of them."""

    spec: Final = DELEGATE_TASK

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        try:
            tasks = parse_tasks(arguments)
            return ToolResult(text="", delegated=tasks, is_background=bool(arguments.get("background")))
        except InvalidDelegation as error:
            return build_error_result(str(error))
