"""How a run ended, in OpenAI's words and in those that Hermes Agent adds to them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hermes_worker.core.messages import Usage
from hermes_worker.core.run import ExitReason, RunStatus
from hermes_worker.core.run_views import RunView
from hermes_worker.safety.redaction import redact

_CUT = frozenset({ExitReason.TRUNCATED, ExitReason.MAX_ITERATIONS_REACHED, ExitReason.BUDGET_EXHAUSTED})
"""Exit reasons of answers that are shorter than they would have been without a limit."""
_HEADER_CHARS_MAX = 200
_ERROR_CHARS_MAX = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """The end of a run, for a client that asked for an answer."""

    text: str
    is_whole: bool
    """Whether the model came to an end by itself."""
    is_partial: bool
    is_failed: bool
    error: str | None
    """What went wrong, without secrets."""
    finish_reason: str
    """``stop``, ``length``, ``content_filter``, ``tool_calls`` or ``error``."""

    @property
    def is_answer(self) -> bool:
        """Whether there is something to show."""
        return self.is_whole or bool(self.text)

    @property
    def hermes(self) -> dict[str, Any]:
        """The fields ``hermes`` that Hermes Agent adds to an answer that is not whole: whether it was completed, and
        why not."""
        code = "output_truncated" if self.finish_reason == "length" else "agent_error"
        return {
            "completed": self.is_whole,
            "partial": self.is_partial,
            "failed": self.is_failed,
            "error": self.error,
            "error_code": code,
        }

    @property
    def headers(self) -> dict[str, str]:
        """The headers that say whether and why an answer is not whole, for clients that read only headers; empty for a
        whole answer."""
        if self.is_whole:
            return {}
        said = {"X-Hermes-Completed": "false", "X-Hermes-Partial": str(self.is_partial).lower()}
        if self.error:
            printable = "".join(char if " " <= char <= "~" else " " for char in self.error)
            said["X-Hermes-Error"] = printable[:_HEADER_CHARS_MAX].strip()
        return said


def build_outcome(view: RunView) -> RunOutcome:
    """Build the outcome of a run that has ended."""
    text = view.output or ""
    is_whole = view.is_completed and view.exit_reason not in _CUT
    reason = "stop" if is_whole else "length" if view.exit_reason in _CUT else "error"
    if view.exit_reason == ExitReason.CONTENT_POLICY_BLOCKED:
        reason = "content_filter"
    return RunOutcome(
        text=text,
        is_whole=is_whole,
        is_partial=not is_whole and bool(text),
        is_failed=view.is_failed,
        error=None if is_whole else _explain_error(view),
        finish_reason=reason,
    )


def build_handover_outcome(text: str) -> RunOutcome:
    """Build the outcome of a part of a run that ends with calls of its client's tools, beside which the model said
    ``text``."""
    return RunOutcome(
        text=text, is_whole=True, is_partial=False, is_failed=False, error=None, finish_reason="tool_calls"
    )


def _explain_error(view: RunView) -> str:
    if view.error:
        return redact(view.error)[:_ERROR_CHARS_MAX]
    if view.status is RunStatus.CANCELLED:
        return "The run was stopped."
    return f"The run ended: {view.exit_text or view.status.value}."


def build_chat_usage(usage: Usage) -> Mapping[str, Any]:
    """Count tokens as chat completions do."""
    read = usage.input + usage.cache_read + usage.cache_write
    return {
        "prompt_tokens": read,
        "completion_tokens": usage.output,
        "total_tokens": read + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }
