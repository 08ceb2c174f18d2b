"""A tool call that somebody else works on: a task of a server, looked at now and then until it has ended; or that a
server answers with questions, and that is sent once more with the answers. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from hermes_worker.core.messages import canonical_json

INTERVAL_S_MAX: Final = 60.0
"""Nobody waits longer for a task that has ended."""
_INTERVAL_S_MIN: Final = 1.0
_GROWTH: Final = 1.4
FAILURES_MAX: Final = 12
"""Looks in a row that may bring nothing, about ten minutes of them, before a task counts as lost."""
AGE_S_MAX: Final = 7 * 86_400.0
"""A task that is older counts as lost."""
ROUNDS_MAX: Final = 8
"""How often a server may answer one call with questions."""
IS_TASKS: Final = "is_of_task"
"""In the request of a wait: its answer is handed on to a task, and is not the result of the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteTask:
    """What is kept of it between two looks."""

    source: str
    """The tool source that began it, and looks at it."""
    task_id: str = field(repr=False)
    """Empty for a call that was answered with questions: the server knows of nothing that it could be asked about."""
    tool: str
    begun_at: float
    """Epoch seconds by the database's clock."""
    wished_s: float = 0.0
    """How often the server wants to be asked; 0 when it said nothing."""
    looks: int = 0
    failures: int = 0
    """Looks in a row that brought nothing."""
    asked: Mapping[str, Any] | None = field(default=None, repr=False)
    """What the server asks a person, by its key."""
    answer: str | None = field(default=None, repr=False)
    """What a person answered to that."""
    unasked: Mapping[str, Any] | None = field(default=None, repr=False)
    """Beside ``asked``, of a call that is sent once more: what else the server asks, by its keys."""
    responses: Mapping[str, Any] | None = field(default=None, repr=False)
    """What the server will be told, by the keys of its questions."""
    server_state: str | None = field(default=None, repr=False)
    """What the server wants to have back with it."""

    @property
    def interval_s(self) -> float:
        """Seconds until the next look: each is longer than the one before, and none shorter than the server wishes."""
        first = max(self.wished_s, _INTERVAL_S_MIN)
        return min(first * _GROWTH ** min(self.looks + self.failures, 40), max(INTERVAL_S_MAX, min(first, 600.0)))

    def to_json(self) -> str:
        """Without what is not there, so that a worker of the version before can read it."""
        said = {name: getattr(self, name) for name in self.__slots__}
        return canonical_json({name: value for name, value in said.items() if value is not None})

    @classmethod
    def from_json(cls, text: str) -> RemoteTask:
        """Raises ``ValueError``, ``TypeError`` for a text that ``to_json`` did not write."""
        return cls(**json.loads(text))
