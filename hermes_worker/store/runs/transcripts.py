"""Transcripts as they are sent to the model, cached in the worker's memory between the iterations of a session.

Rows are never rewritten, so a cached beginning stays right for as long as its last row is still the stored one. That
row is read again each time and compared: the cache saves reading, and correctness does not depend on it.

The cache is bounded by characters, for long transcripts, and by sessions, for many short ones: a worker that served
thousands of runs holds as much as one that served two hundred.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from hermes_worker.core.errors import HermesError
from hermes_worker.core.messages import Message
from hermes_worker.store.engine.database import Database
from hermes_worker.store.rows import load_messages

SESSIONS_KEPT = 192
"""Sessions of which a process keeps anything in memory: their transcripts here, the beginning of their prompts in
``runs``. A session that was dropped costs its next iteration one more statement and the reading of all its rows: 0.03
ms of CPU for 10 rows, 0.2 ms for 100 rows of 1 kB, on either database."""


class CorruptTranscript(HermesError):
    """A row of a transcript is missing; the message says which."""


@dataclass(slots=True)
class _CachedTranscript:
    rows: list[Message]
    chars: int


class Transcripts:
    """Reads transcripts through a cache of at most ``chars_max`` characters and ``sessions_max`` sessions.
    Thread-safe."""

    def __init__(self, database: Database, *, chars_max: int = 64_000_000, sessions_max: int = SESSIONS_KEPT) -> None:
        self._database = database
        self._chars_max = chars_max
        self._sessions_max = sessions_max
        self._chars = 0
        self._kept: OrderedDict[int, _CachedTranscript] = OrderedDict()
        self._lock = threading.Lock()

    def load(self, session_pk: int, last: int) -> Sequence[Message]:
        """Return rows 1 to ``last`` of a session. Raises ``CorruptTranscript`` when one of them is missing."""
        rows = self._get_cached(session_pk, last)
        first = rows[-1].seq if rows else 1
        with self._database.read() as connection:
            fresh = load_messages(connection, session_pk, first, last)
        if rows and (not fresh or fresh[0] != rows[-1]):
            with self._database.read() as connection:
                rows, fresh = [], load_messages(connection, session_pk, 1, last)
        complete = [*rows[:-1], *fresh]
        if [row.seq for row in complete] != list(range(1, last + 1)):
            missing = sorted(set(range(1, last + 1)) - {row.seq for row in complete})
            raise CorruptTranscript(f"rows {missing[:5]} of the transcript are missing (it should have {last})")
        self._put_cached(session_pk, complete)
        return complete

    def _get_cached(self, session_pk: int, last: int) -> list[Message]:
        with self._lock:
            kept = self._kept.get(session_pk)
            if kept is None or len(kept.rows) > last:
                return []
            self._kept.move_to_end(session_pk)
            return kept.rows

    def _put_cached(self, session_pk: int, rows: list[Message]) -> None:
        chars = sum(len(row.body) for row in rows)
        with self._lock:
            old = self._kept.pop(session_pk, None)
            self._chars += chars - (old.chars if old else 0)
            self._kept[session_pk] = _CachedTranscript(rows, chars)
            while self._is_full() and len(self._kept) > 1:
                _, dropped = self._kept.popitem(last=False)
                self._chars -= dropped.chars

    def _is_full(self) -> bool:
        return self._chars > self._chars_max or len(self._kept) > self._sessions_max
