"""Callbacks with Hermes Agent's names, called for the events of a run's stream. Nothing here sends anything: the answer
of a callback is returned as the request that would send it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hermes_worker.client import operations
from hermes_worker.client.events import (
    ApprovalRequested,
    Event,
    InputRequested,
    MessageCompleted,
    MessageDelta,
    ReasoningDelta,
    ReplyDiscarded,
    RunEnded,
    RunStatusChanged,
    ToolCompleted,
    ToolGenerating,
    ToolStarted,
)
from hermes_worker.operation import ApiRequest

if TYPE_CHECKING:
    from hermes_worker.schemas.approvals import AnsweredQuestion

_NOBODY_ANSWERED = "The model is asked again: its reply was cut short or empty."


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks:
    """All optional. An exception of a callback is logged, and the run is followed further."""

    stream_delta_callback: Callable[[str | None], object] | None = None
    """Text of a reply; ``None`` where a reply ends."""
    stream_callback: Callable[[str], object] | None = None
    interim_assistant_callback: Callable[[str, bool], object] | None = None
    """Text that stood beside tool calls, and whether it was streamed already."""
    reasoning_callback: Callable[[str], object] | None = None
    thinking_callback: Callable[[str], object] | None = None
    """A word for a spinner while the model works on its reply; empty when the reply begins."""
    tool_gen_callback: Callable[[str], object] | None = None
    tool_start_callback: Callable[[str, str, str], object] | None = None
    """Id and name of a call, and a preview of its arguments."""
    tool_complete_callback: Callable[[str, str, str, str], object] | None = None
    """Id and name of a call, a preview of its arguments, and its outcome: ``ok``, ``error`` or ``unknown``."""
    tool_progress_callback: Callable[..., object] | None = None
    """``(event, name, preview, None)``; with ``duration`` and ``is_error`` for ``tool.completed``."""
    step_callback: Callable[[int, list[str]], object] | None = None
    """The number of an iteration that begins, and the tools of the one before."""
    clarify_callback: Callable[[str, Sequence[str]], str | None] | None = None
    """Gives the answer to a question of the model; ``None`` leaves it to others."""
    approval_callback: Callable[[str, str], str | None] | None = None
    """Command and description; gives ``once``, ``session``, ``always`` or ``deny``; ``None`` leaves it to others."""
    status_callback: Callable[[str, str], object] | None = None
    """``lifecycle`` or ``warn``, and a sentence."""
    event_callback: Callable[[str, Event], object] | None = None
    """Every event."""


class CallbackDispatcher:
    """Turns the events of one run into calls of callbacks."""

    def __init__(self, run_id: str, callbacks: Callbacks) -> None:
        self._run_id = run_id
        self._to = callbacks
        self._iteration = 0
        self._is_begun = False
        self._has_streamed = False
        self._tools: list[str] = []
        self._previews: dict[str, str] = {}

    def handle_event(self, event: Event) -> ApiRequest[AnsweredQuestion] | None:
        """Call back. Returns the request that sends the answer, if a callback gave one. The server may refuse it,
        because another answer was faster."""
        _call(self._to.event_callback, event.kind, event)
        match event:
            case MessageDelta():
                self._begin()
                self._has_streamed = True
                _call(self._to.stream_delta_callback, event.text)
                _call(self._to.stream_callback, event.text)
            case ReasoningDelta():
                self._begin()
                _call(self._to.reasoning_callback, event.text)
                _call(self._to.tool_progress_callback, "reasoning.available", "_thinking", event.text, None)
            case ToolGenerating():
                self._begin()
                _call(self._to.tool_gen_callback, event.tool)
            case MessageCompleted():
                self._begin()
                self._complete(event)
            case ReplyDiscarded():
                self._is_begun = self._has_streamed = False
                _call(self._to.stream_delta_callback, None)
                _call(self._to.status_callback, "warn", _NOBODY_ANSWERED)
            case ToolStarted():
                self._previews[event.call_id] = event.preview
                _call(self._to.tool_start_callback, event.call_id, event.tool, event.preview)
                _call(self._to.tool_progress_callback, "tool.started", event.tool, event.preview, None)
            case ToolCompleted():
                self._finish_tool(event)
            case InputRequested():
                return self._answer_clarify(event)
            case ApprovalRequested():
                return self._ask_permission(event)
            case RunStatusChanged():
                kind = "warn" if event.name == "step.retried" else "lifecycle"
                _call(self._to.status_callback, kind, event.message)
            case RunEnded():
                _call(self._to.thinking_callback, "")
        return None

    def _begin(self) -> None:
        """Note the first sign of an iteration's reply."""
        if self._is_begun:
            return
        self._is_begun = True
        _call(self._to.step_callback, self._iteration + 1, self._tools)
        _call(self._to.thinking_callback, "")
        self._tools = []

    def _complete(self, event: MessageCompleted) -> None:
        _call(self._to.stream_delta_callback, None)
        if event.finish_reason == "tool_calls" and event.text:
            _call(self._to.interim_assistant_callback, event.text, self._has_streamed)
        self._iteration, self._is_begun, self._has_streamed = event.iteration, False, False

    def _finish_tool(self, event: ToolCompleted) -> None:
        self._tools.append(event.tool)
        outcome = event.outcome or ("error" if event.is_error else "ok")
        preview = self._previews.pop(event.call_id, "")
        _call(self._to.tool_complete_callback, event.call_id, event.tool, preview, outcome)
        if self._to.tool_progress_callback:
            facts = {"duration": event.duration_s, "is_error": event.is_error}
            _call(self._to.tool_progress_callback, "tool.completed", event.tool, None, None, **facts)
        _call(self._to.thinking_callback, "thinking")

    def _answer_clarify(self, event: InputRequested) -> ApiRequest[AnsweredQuestion] | None:
        answer = _call(self._to.clarify_callback, event.question, event.choices)
        return None if answer is None else operations.answer(self._run_id, str(answer), wait_id=event.wait_id)

    def _ask_permission(self, event: ApprovalRequested) -> ApiRequest[AnsweredQuestion] | None:
        choice = _call(self._to.approval_callback, event.command, event.description)
        return None if choice is None else operations.approve(self._run_id, str(choice), wait_id=event.wait_id)


def _call(callback: Callable[..., Any] | None, *arguments: Any, **facts: Any) -> Any:
    """Call a callback and return its result; ``None`` when there is none or it raised: foreign code must not end the
    following."""
    if callback is None:
        return None
    try:
        return callback(*arguments, **facts)
    except Exception as error:
        _log_failure(getattr(callback, "__name__", "?"), error)
        return None


def _log_failure(callback: str, error: Exception) -> None:
    try:
        from hermes_worker.observe import log
    except ImportError:  # the thin client has no log of the product's
        logging.getLogger(__name__).warning("the callback %s failed: %r", callback, error)
    else:
        log.warning("callback.failed", callback=callback, error=repr(error))
