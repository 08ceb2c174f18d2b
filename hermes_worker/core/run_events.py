"""The events of a run's stream that are rows: numbered per run, without gaps, replayable.

The names are the original's. Texts that are stored elsewhere are referenced: a
text of the transcript is named by its ``message_seq`` and filled in when the stream is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class RunEventName(StrEnum):
    MESSAGE_COMPLETED = "message.completed"
    """Ours: the reply of an iteration is committed. ``iteration``, ``message_seq``."""
    REPLY_DISCARDED = "reply.discarded"
    """Ours: the reply of an iteration was cut short or empty, and the model is asked again. ``iteration``,
    ``finish_reason``."""
    COMPACTED = "session.compress"
    """The older part of the conversation was replaced by a summary. ``rows`` that it stands for, ``compression_count``
    in this turn, ``message_seq`` of the summary."""
    TOOL_STARTED = "tool.started"
    TOOL_COMPLETED = "tool.completed"
    """A call that was not allowed has ``refused_by`` (``rules``, ``person`` or ``timeout``) and ``reason``."""
    STOP_REQUESTED = "run.stopping"
    """Ours. This and the next two have the field ``by``, the principal, when a person asked for it."""
    WAITING = "run.waiting"
    """Ours: the run is parked; ``status`` says for what, ``until`` until when."""
    RESUMED = "run.resumed"
    """Ours: an operator let a paused run go on, or the time for which the provider asked us to wait is over."""
    BUDGET_EXHAUSTED = "budget.exhausted"
    """Ours: a limit is reached, and the next model call is the last one: a summary. ``dimension``."""
    STEERED = "run.steered"
    """Ours: the user said something to the run at work; ``text``."""
    APPROVAL_REQUESTED = "approval.request"
    """``wait_id``, ``command`` (redacted), ``description``, ``pattern_key``, ``pattern_keys``, ``choices``,
    ``expires_at``; the call's place."""
    APPROVAL_ANSWERED = "approval.responded"
    """``wait_id``, ``choice``, ``resolved``, ``by`` whom (``principals``), perhaps ``changed_arguments``; the call's
    place."""
    INPUT_REQUESTED = "input.request"
    """Ours: ``wait_id``, ``question``, ``choices``, ``expires_at``; the call's place."""
    INPUT_ANSWERED = "input.responded"
    """Ours: ``wait_id``, ``resolved``, ``by``; the call's place. The answer is the call's result."""
    STEP_RETRIED = "step.retried"
    """Ours: a worker vanished and its step is tried again; ``step``, ``attempt``. ``deaths`` says that this happens
    apart from all other work, and how often the step has taken a worker down alone, which at first is 0."""
    HOOK_FAILED = "hook.failed"
    """Ours: ``hook`` was to act on ``hook_event`` and did not; the run goes on as if it were not there. ``reason``."""
    RUN_COMPLETED = "run.completed"
    RUN_FAILED = "run.failed"
    RUN_CANCELLED = "run.cancelled"


TERMINAL_EVENTS = frozenset({RunEventName.RUN_COMPLETED, RunEventName.RUN_FAILED, RunEventName.RUN_CANCELLED})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent:
    name: RunEventName
    data: Mapping[str, Any] = field(default_factory=dict)
    at: float | None = None
    """When it happened, in epoch seconds; ``None`` for now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvent:
    """An event as read back: ``at`` is epoch seconds."""

    seq: int
    at: float
    name: str
    data: Mapping[str, Any]
