"""Run a call as the model wrote it and return a result, even when something fails in between."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hermes_worker.agent.tools.arguments import coerce, find_violations
from hermes_worker.agent.tools.base import ConsultingTool, Tool, ToolContext, ToolResult
from hermes_worker.agent.tools.env_secrets import find_workspace_secrets
from hermes_worker.agent.tools.hints import add_hints
from hermes_worker.agent.tools.interruptible import ToolInterrupted, run_interruptibly
from hermes_worker.agent.tools.results import ResultLimits, build_error_result, build_exception_result, limit_result
from hermes_worker.agent.tools.schema_time_limit import UnusableSchema
from hermes_worker.core.auxiliary import AnsweredConsultation, AuxiliaryAnswer
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.core.notices import OUTCOME_UNKNOWN
from hermes_worker.core.recovery.repair import ArgumentsOutcome, assess_arguments
from hermes_worker.core.replay import Replay
from hermes_worker.core.tool_schemas import UnfitDefinition, fit_schema
from hermes_worker.observe import count, log
from hermes_worker.safety.redaction import holds_marker, prints_configuration
from hermes_worker.safety.untrusted import wrap_untrusted
from hermes_worker.workspaces.base import HostLost, WorkspaceError

_QUICKLY_READ_CHARS = 20_000
"""How many characters of a result are searched for secrets in no time."""

NOT_ASKED = "not_asked"
"""The reason why a tool's question to a model has no answer within a script."""

Gate = Callable[[Tool, Mapping[str, Any]], ToolResult | None]
"""Looks at a call before it runs; a result it gives stands in for the call."""
Revise = Callable[[ToolResult], ToolResult]
"""Looks at a tool's result, in which secrets are hidden; what it gives is read for secrets again."""


def run_tool(
    tool: Tool,
    arguments_json: str,
    context: ToolContext,
    *,
    limits: ResultLimits | None = None,
    gate: Gate | None = None,
    consulted: AnsweredConsultation | None = None,
    revise: Revise | None = None,
) -> ToolResult:
    """Run one call and return its result; what goes wrong is an error result and never an exception.

    ``revise`` may put another result in the place of the tool's own. With ``consulted``, what the tool asked of models
    in an earlier claim, the call goes on from there. A call that was cancelled before it started does nothing. The
    result's size is within ``limits``, and secrets are hidden in it: whatever becomes of a result, a row, an event, a
    file or a prompt, is made from what this returns.
    """
    arguments = _read_arguments(tool, arguments_json)
    if isinstance(arguments, ToolResult):
        return _redact_result(arguments, context)
    refused = _find_refusal(tool, arguments, context) or (gate(tool, arguments) if gate is not None else None)
    outcome = refused or _call_tool(tool, arguments, context, consulted)
    if outcome.question is not None or outcome.consultation is not None or outcome.task is not None:
        return outcome
    clean = _redact_file_secrets(tool, outcome, context)
    clean = _redact_result(clean, context, is_configuration=_reads_configuration(tool, arguments))
    if revise is not None and refused is None and not outcome.delegated and not context.cancelled.is_set():
        clean = _redact_result(revise(clean), context)
    shown = limit_result(
        clean,
        chars_max=tool.spec.result_chars_max,
        workspace=context.workspace,
        limits=limits or ResultLimits(),
    )
    # Last, so that the closing line is never cut off; and never around words of ours.
    if refused is not None:
        return shown
    final = _wrap_untrusted(tool, shown) if tool.spec.is_untrusted or shown.is_untrusted else shown
    is_over = not final.delegated and not context.cancelled.is_set()
    return add_hints(tool, arguments, context, final) if context.finds_hints and is_over else final


_TASK_OF_SCRIPT = (
    "the server made a task of {tool}, and nobody waits for one from a script. It may act all the same: look before "
    "you repeat the call, and call {tool} without a script"
)


def run_inner(
    tool: Tool,
    arguments_json: str,
    context: ToolContext,
    *,
    gate: Gate,
    revise: Revise | None = None,
) -> ToolResult:
    """Run a call that a script makes: as ``run_tool``, but its result is a program's to read and not a model's, so it
    is neither shortened nor put into the wrapper of untrusted text. A call that would have to wait for a person does
    not run; where a model would be asked, the result is what it is without an answer.
    """
    arguments = _read_arguments(tool, arguments_json)
    if isinstance(arguments, ToolResult):
        return _redact_result(arguments, context)
    outcome = _find_refusal(tool, arguments, context) or gate(tool, arguments)
    if outcome is None:
        outcome = _call_tool(tool, arguments, context, None)
        if outcome.consultation is not None and isinstance(tool, ConsultingTool):
            asked = outcome.consultation
            unanswered = [AuxiliaryAnswer(failure=NOT_ASKED) for _ in asked.questions]
            outcome = tool.finish(asked.material, unanswered)
        if outcome.task is not None:
            outcome = replace(build_error_result(_TASK_OF_SCRIPT.format(tool=tool.spec.name)), is_unknown=True)
        clean = _redact_file_secrets(tool, outcome, context)
        clean = _redact_result(clean, context, is_configuration=_reads_configuration(tool, arguments))
        if revise is not None and not context.cancelled.is_set():
            clean = _redact_result(revise(clean), context)
        return clean
    if outcome.question is not None or outcome.consultation is not None:
        return build_error_result(
            f"{tool.spec.name} was not run: it needs somebody's permission; call it without a script"
        )
    return _redact_result(outcome, context)


def _wrap_untrusted(tool: Tool, result: ToolResult) -> ToolResult:
    """Put text of strangers into its wrapper. This happens once: what is stored of a call is what this returns."""
    found = wrap_untrusted(result.text, tool.spec.name)
    if found.threats:
        count("untrusted.suspicious")
        log.warning("untrusted.suspicious", tool=tool.spec.name, threats=list(found.threats))
    return replace(result, text=found.text)


def _check_consultation(tool: Tool, result: ToolResult) -> ToolResult:
    """Return ``result``, or an error where it leaves a consultation that cannot be kept."""
    if result.consultation is None:
        return result
    if tool.spec.replay is Replay.ONCE:
        return build_error_result(f"{tool.spec.name} may have acted already, so it cannot ask a model any more")
    if result.consultation.is_too_large:
        return build_error_result(f"{tool.spec.name} has more to show a model than can be sent; ask for less at once")
    return result


def _find_refusal(tool: Tool, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult | None:
    if context.cancelled.is_set():
        return build_error_result(f"{tool.spec.name} was cancelled before it started; nothing was done")
    if tool.spec.refuses_markers and context.redactor.is_on and holds_marker(dump_canonical_json(arguments)):
        return build_error_result(tool.spec.refuses_markers)
    return None


def _redact_file_secrets(tool: Tool, result: ToolResult, context: ToolContext) -> ToolResult:
    """The result without the values in the workspace's environment files, however the tool came by them."""
    if not context.redactor.is_on:
        return result
    known = find_workspace_secrets(tool.spec.toolset, context.workspace)
    text = context.redactor.remove_secrets(result.text, known) if known else result.text
    return result if text == result.text else replace(result, text=text)


def _redact_result(result: ToolResult, context: ToolContext, *, is_configuration: bool = False) -> ToolResult:
    def hide() -> str:
        return context.redactor.redact_result(result.text, is_configuration=is_configuration)

    if len(result.text) <= _QUICKLY_READ_CHARS:
        text = hide()
    else:
        try:
            text = run_interruptibly(hide, context.cancelled)
        except ToolInterrupted:
            # A text that was not searched for secrets is not shown.
            return replace(
                result, text=build_error_result("the call was interrupted; its result is not shown").text, is_error=True
            )
    return result if text == result.text else replace(result, text=text)


def _reads_configuration(tool: Tool, arguments: Mapping[str, Any]) -> bool:
    names = (tool.spec.path_argument, tool.spec.command_argument, tool.spec.code_argument)
    said = (arguments.get(name) for name in names if name is not None)
    return any(prints_configuration(text) for text in said if isinstance(text, str))


def _read_arguments(tool: Tool, arguments_json: str) -> dict[str, Any] | ToolResult:
    """The call's arguments, or the error result that says what is wrong with them."""
    assessment = assess_arguments(arguments_json)
    if assessment.outcome is not ArgumentsOutcome.OK:
        return build_error_result(
            f"the arguments of {tool.spec.name} are not valid JSON ({assessment.outcome}); send the whole call again"
        )
    value = json.loads(assessment.arguments)
    if value is None:
        value = {}
    if not isinstance(value, dict):
        return build_error_result(f"the arguments of {tool.spec.name} must be one JSON object")
    try:
        arguments, problems = _judge_arguments(value, tool.spec.parameters)
    except UnusableSchema as error:
        log.warning("tool_call.unchecked", tool=tool.spec.name, reason=str(error))
        return build_error_result(
            f"{tool.spec.name} was not run: its arguments cannot be checked, for its schema {error}"
        )
    if problems:
        return build_error_result(f"{tool.spec.name} was not run: {'; '.join(problems)}")
    return arguments


def _judge_arguments(value: Mapping[str, Any], schema: Mapping[str, Any]) -> tuple[dict[str, Any], Sequence[str]]:
    """The arguments and what is wrong with them, by the schema or, where that is none, by the mended one that the model
    was sent. Raises ``UnusableSchema``.
    """
    try:
        return (arguments := coerce(value, schema)), find_violations(arguments, schema)
    except UnusableSchema:
        try:
            mended = fit_schema(schema, renames=False)
        except UnfitDefinition:
            mended = schema
        return (arguments := coerce(value, mended)), find_violations(arguments, mended)


def _call_tool(
    tool: Tool, arguments: dict[str, Any], context: ToolContext, consulted: AnsweredConsultation | None
) -> ToolResult:
    try:
        if consulted is None:
            return _check_consultation(tool, tool.run(arguments, context))
        if not isinstance(tool, ConsultingTool):
            return build_error_result(f"{tool.spec.name} cannot go on: this worker's version of it asks no model")
        return _check_consultation(tool, tool.finish(consulted.material, consulted.answers))
    except HostLost as error:
        return _build_lost_host_result(tool, arguments, error)
    except (WorkspaceError, ToolInterrupted) as error:
        return build_error_result(str(error))
    except Exception as error:
        # The entry point of tools: whatever one of them does wrong must reach the model as a result, because a call
        # without a result would hold its run for ever.
        log.warning("tool_call.raised", tool=tool.spec.name, exc_info=error)
        return build_exception_result(error)


def _build_lost_host_result(tool: Tool, arguments: Mapping[str, Any], error: HostLost) -> ToolResult:
    """A tool that may run again is called again by a model that wants to know; any other has an unknown outcome."""
    log.warning("tool_call.host_lost", tool=tool.spec.name, reason=str(error))
    if tool.spec.replay_of(arguments) is not Replay.ONCE:
        return build_error_result(f"{error}; call {tool.spec.name} again")
    return ToolResult(text=OUTCOME_UNKNOWN, is_error=True, is_unknown=True)
