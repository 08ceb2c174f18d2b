"""Events of a run as a client gets them, and the names of those that are no rows. Light: commands import it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hermes_worker.core.run_events import TERMINAL_EVENTS

MESSAGE_DELTA = "message.delta"
REASONING_AVAILABLE = "reasoning.available"
TOOL_PROGRESS = "tool.progress"
"""Progress that a tool reports while it runs; it is sent once and never again."""
TOOL_GENERATING = "tool.generating"
"""A hint: a reader that comes back may get it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WireEvent:
    """One event as a client gets it."""

    id: str
    name: str
    at: float
    """Epoch seconds."""
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_last(self) -> bool:
        return self.name in TERMINAL_EVENTS
