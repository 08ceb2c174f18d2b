"""From a call as the model wrote it to a result, whatever happens in between."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from hermes_worker.core.repair import ArgumentsOutcome, assess_arguments
from hermes_worker.tools.arguments import coerce, violations
from hermes_worker.tools.base import Tool, ToolContext, ToolResult
from hermes_worker.tools.results import ResultLimits, error_result, exception_result, limited
from hermes_worker.workspace.base import WorkspaceError

log = structlog.get_logger()


Gate = Callable[[Tool, Mapping[str, Any]], ToolResult | None]
"""Looks at a call before it runs; a result it gives stands in for the call."""


def run_tool(
    tool: Tool,
    arguments_json: str,
    context: ToolContext,
    *,
    limits: ResultLimits | None = None,
    gate: Gate | None = None,
) -> ToolResult:
    """Run one call and return its result; what goes wrong is an error result and never an exception.

    A call that was cancelled before it started does nothing. The result's size is within ``limits``.
    """
    arguments = _arguments(tool, arguments_json)
    if isinstance(arguments, ToolResult):
        return arguments
    if context.cancelled.is_set():
        return error_result(f"{tool.spec.name} was cancelled before it started; nothing was done")
    held_up = gate(tool, arguments) if gate is not None else None
    if held_up is not None:
        return held_up
    outcome = _outcome(tool, arguments, context)
    if outcome.question is not None:
        return outcome
    return limited(
        outcome,
        chars_max=tool.spec.result_chars_max,
        call_key=context.idempotency_key,
        workspace=context.workspace,
        limits=limits or ResultLimits(),
    )


def _arguments(tool: Tool, arguments_json: str) -> dict[str, Any] | ToolResult:
    """The call's arguments, or the error result that says what is wrong with them."""
    assessment = assess_arguments(arguments_json)
    if assessment.outcome is not ArgumentsOutcome.OK:
        return error_result(
            f"the arguments of {tool.spec.name} are not valid JSON ({assessment.outcome}); send the whole call again"
        )
    value = json.loads(assessment.arguments)
    if value is None:
        value = {}
    if not isinstance(value, dict):
        return error_result(f"the arguments of {tool.spec.name} must be one JSON object")
    arguments = coerce(value, tool.spec.parameters)
    problems = violations(arguments, tool.spec.parameters)
    if problems:
        return error_result(f"{tool.spec.name} was not run: {'; '.join(problems)}")
    return arguments


def _outcome(tool: Tool, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
    try:
        return tool.run(arguments, context)
    except WorkspaceError as error:
        return error_result(str(error))
    except Exception as error:
        # The entry point of tools: whatever one of them does wrong must reach the model as a result, because a call
        # without a result would hold its run for ever.
        log.warning("tool_call.raised", tool=tool.spec.name, exc_info=error)
        return exception_result(error)
