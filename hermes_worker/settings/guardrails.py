"""The settings of agents that repeat themselves in vain."""

from __future__ import annotations

from dataclasses import dataclass

from hermes_worker.settings.declaring import declare_setting
from hermes_worker.settings.kinds import SWITCH, integer

_TIMES = integer(2, 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardrailSettings:
    """What is said and done about an agent that repeats itself in vain."""

    warns: bool = declare_setting(
        "tool_loop_guardrails.warnings_enabled",
        "HERMES_TOOL_LOOP_WARNINGS",
        SWITCH,
        True,
        audience="operator",
        reason="the remarks mislead a model; they are made without it.",
    )
    """Whether a remark below a result tells the model that its call repeats itself in vain."""
    stops: bool = declare_setting(
        "tool_loop_guardrails.hard_stop_enabled",
        "HERMES_TOOL_LOOP_HARD_STOP",
        SWITCH,
        False,
        audience="operator",
        reason="agents burn money in loops; they are warned and never stopped without it.",
    )
    """Whether such a call is blocked in the end and its turn is ended, with the exit reason `guardrail_halt`."""
    warn_exact_failure: int = declare_setting(
        "tool_loop_guardrails.warn_after.exact_failure",
        "HERMES_TOOL_LOOP_WARN_EXACT_FAILURE",
        _TIMES,
        2,
        audience="operator",
        reason="a tool often needs more tries; the second failure is remarked on without it.",
    )
    """Failures of the same call with the same arguments before the remark."""
    warn_same_tool_failure: int = declare_setting(
        "tool_loop_guardrails.warn_after.same_tool_failure",
        "HERMES_TOOL_LOOP_WARN_SAME_TOOL",
        _TIMES,
        3,
        audience="operator",
        reason="a tool often fails at first; the third failure is remarked on without it.",
    )
    """Failures of one tool in a row before the remark."""
    warn_no_progress: int = declare_setting(
        "tool_loop_guardrails.warn_after.idempotent_no_progress",
        "HERMES_TOOL_LOOP_WARN_NO_PROGRESS",
        _TIMES,
        2,
        audience="operator",
        reason="agents poll by reading; the second equal result is remarked on without it.",
    )
    """Equal results of a call that only reads before the remark."""
    stop_exact_failure: int = declare_setting(
        "tool_loop_guardrails.hard_stop_after.exact_failure",
        "HERMES_TOOL_LOOP_STOP_EXACT_FAILURE",
        _TIMES,
        5,
        audience="operator",
        reason="a call needs more tries than five; it is blocked then without it.",
    )
    """Failures of the same call after which it is blocked."""
    stop_same_tool_failure: int = declare_setting(
        "tool_loop_guardrails.hard_stop_after.same_tool_failure",
        "HERMES_TOOL_LOOP_STOP_SAME_TOOL",
        _TIMES,
        8,
        audience="operator",
        reason="a tool fails more often in good work; the turn ends after eight without it.",
    )
    """Failures of one tool in a row after which the turn ends."""
    stop_no_progress: int = declare_setting(
        "tool_loop_guardrails.hard_stop_after.idempotent_no_progress",
        "HERMES_TOOL_LOOP_STOP_NO_PROGRESS",
        _TIMES,
        5,
        audience="operator",
        reason="agents wait by reading; the call is blocked after five without it.",
    )
    """Equal results of a call that only reads after which it is blocked."""
