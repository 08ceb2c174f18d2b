"""The events of a run's stream that are rows: numbered per run, without gaps, replayable.

The names are the reference's (around §3.6). What lives elsewhere is stored by reference: a text that is already in
the transcript is named by its ``message_seq`` and filled in by whoever reads the stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class RunEventName(StrEnum):
    MESSAGE_COMPLETED = "message.completed"
    """Ours: the reply of an iteration is committed. ``iteration``, ``message_seq``."""
    TOOL_STARTED = "tool.started"
    TOOL_COMPLETED = "tool.completed"
    STOP_REQUESTED = "run.stopping"
    """Ours."""
    WAITING = "run.waiting"
    """Ours: the run is parked; ``status`` says for what, ``until`` until when."""
    STEP_RETRIED = "step.retried"
    """Ours: a worker vanished and its step is tried again; ``step``, ``attempt``."""
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
