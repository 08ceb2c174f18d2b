"""Tool calls that a server works on: as a task that is polled until it ends, or with questions after which the call is
sent once more with the answers. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from hermes_worker.core.messages import dump_canonical_json

INTERVAL_S_MAX: Final = 60.0
"""Most seconds between two polls."""
_INTERVAL_S_MIN: Final = 1.0
_GROWTH: Final = 1.4
FAILURES_MAX: Final = 12
"""Failed polls in a row, about ten minutes of them, after which a task counts as lost."""
AGE_S_MAX: Final = 7 * 86_400.0
"""Seconds after which a task counts as lost."""
ROUNDS_MAX: Final = 8
"""How often a server may answer one call with questions."""
IS_TASKS: Final = "is_of_task"
"""Key in the request of a wait: its answer is passed to a task, and is not the result of the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteTask:
    """The stored state of a task between two polls."""

    source: str
    """The tool source that began it, and polls it."""
    task_id: str = field(repr=False)
    """Empty for a call that was answered with questions: the server has nothing that could be polled."""
    tool: str
    begun_at: float
    """Epoch seconds by the database's clock."""
    wished_s: float = 0.0
    """Seconds between polls that the server asks for; 0 when it did not say."""
    looks: int = 0
    failures: int = 0
    """Failed polls in a row."""
    asked: Mapping[str, Any] | None = field(default=None, repr=False)
    """The question of the server that a person has to answer, with its key; ``None`` for none."""
    answer: str | None = field(default=None, repr=False)
    """The person's answer to that."""
    unasked: Mapping[str, Any] | None = field(default=None, repr=False)
    """Further questions of the server, by their keys, for a call that is sent once more."""
    responses: Mapping[str, Any] | None = field(default=None, repr=False)
    """The answers for the server, by the keys of its questions."""
    server_state: str | None = field(default=None, repr=False)
    """The server's state, which it wants back with the answers."""

    @property
    def interval_s(self) -> float:
        """Seconds until the next poll: each interval is longer than the one before, and none shorter than the server
        asks for."""
        first = max(self.wished_s, _INTERVAL_S_MIN)
        return min(first * _GROWTH ** min(self.looks + self.failures, 40), max(INTERVAL_S_MAX, min(first, 600.0)))

    def to_json(self) -> str:
        """Dump the task without empty fields, so that a worker of the version before can read it."""
        said = {name: getattr(self, name) for name in self.__slots__}
        return dump_canonical_json({name: value for name, value in said.items() if value is not None})

    @classmethod
    def from_json(cls, text: str) -> RemoteTask:
        """Parse a stored task. Raises ``ValueError``, ``TypeError`` for a text that ``to_json`` did not write."""
        return cls(**json.loads(text))
