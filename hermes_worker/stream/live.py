"""The live side of a run's stream: deltas that exist only while the run has readers, in a capped Redis stream per run.

The rows in SQL are the record; this is the preview of the row that is being written. Everything here may be lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import redis

from hermes_worker.broker.queue import KEY_PREFIX, is_refusal
from hermes_worker.core.messages import Delta
from hermes_worker.observe import log

FLUSH_EVERY_S = 0.05
"""Seconds between two writes: at most 20 a second and run (design D6)."""
_KEPT_ENTRIES = 2_000
_KEPT_S = 600


def make_stream_key(run_id: str) -> str:
    return f"{KEY_PREFIX}live:{run_id}"


def delete_previews(client: redis.Redis, run_ids: Sequence[str]) -> int:
    """Delete the previews of runs that are gone. Returns how many there were. Raises what the client raises."""
    return sum(int(client.delete(make_stream_key(run_id))) for run_id in run_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveEntry:
    """An entry of a live stream. ``kind`` is ``text``, ``reasoning``, ``tool`` (a name seen in the reply's stream),
    ``tool_started`` (``text`` is the data of the ``tool.started`` row to come, ``offset`` the call's position),
    ``tool_progress`` (``text`` is the tool's report of its progress, as JSON) or ``row`` (look at SQL)."""

    kind: str
    text: str
    iteration: int
    attempt: int
    offset: int
    """Characters of this kind that this attempt had sent before."""


_KINDS = frozenset({"text", "reasoning", "tool", "tool_started", "tool_progress", "row"})
PROGRESS_CHARS_MAX = 1_000
"""Longest report of a tool's progress."""
_TEXT_CHARS_MAX = 2_000_000
"""Longer than any reply: a reader that comes in the middle gets what was written until then in one lump."""
_NUMBER_MAX = 2**31


NOT_OURS = LiveEntry(kind="", text="", iteration=0, attempt=0, offset=0)
"""Stands for an entry that no worker wrote: it has a place in the stream, and says nothing."""


def parse_entry(fields: Mapping[str, str]) -> LiveEntry:
    """Parse an entry of a stream; ``NOT_OURS`` for one that no worker wrote: anyone who reaches the broker can write
    anything."""
    text = fields.get("text", "")
    try:
        iteration, attempt, offset = (int(fields[name]) for name in ("iteration", "attempt", "offset"))
    except (KeyError, ValueError):
        return NOT_OURS
    is_ours = fields.get("kind") in _KINDS and len(text) <= _TEXT_CHARS_MAX
    if not is_ours or not all(0 <= number < _NUMBER_MAX for number in (iteration, attempt, offset)):
        return NOT_OURS
    return LiveEntry(kind=fields["kind"], text=text, iteration=iteration, attempt=attempt, offset=offset)


def is_possible(entry_id: str) -> bool:
    """Whether a worker can have written an entry with this id, which begins with its time in milliseconds.

    Readers would wait for ever for what comes after one from the future; the last possible id closes a stream.
    """
    return int(entry_id.partition("-")[0]) < (time.time() + _CLOCKS_APART_S) * 1000


_CLOCKS_APART_S = 86_400.0


def delete_stream(client: redis.Redis, run_id: str, why: str) -> None:
    """Delete a preview that no worker wrote; the next entry begins it anew. Raises what the client raises."""
    client.delete(make_stream_key(run_id))
    log.warning("broker.state_forgotten", key=make_stream_key(run_id), error=why[:200])


class Live:
    """Writes previews. Thread-safe; never raises for a broker that is away."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def append(self, run_id: str, entry: LiveEntry) -> None:
        try:
            try:
                self._write(run_id, entry)
            except redis.ResponseError as error:
                if is_refusal(error):
                    return
                delete_stream(self._client, run_id, str(error))
                self._write(run_id, entry)
        except (redis.RedisError, OSError):
            return  # the preview is lost to readers; the row follows

    def _write(self, run_id: str, entry: LiveEntry) -> None:
        key = make_stream_key(run_id)
        pipe = self._client.pipeline(transaction=False)
        fields = {
            "kind": entry.kind,
            # A lone surrogate in a delta must not fail the model call that it belongs to.
            "text": entry.text.encode("utf-8", "replace").decode("utf-8"),
            "iteration": entry.iteration,
            "attempt": entry.attempt,
            "offset": entry.offset,
        }
        pipe.xadd(key, fields, maxlen=_KEPT_ENTRIES, approximate=True)  # type: ignore[arg-type]
        pipe.expire(key, _KEPT_S)
        pipe.execute()

    def nudge(self, run_id: str) -> None:
        """Announce that rows of this run were committed: readers of the stream should read them."""
        self.append(run_id, LiveEntry(kind="row", text="", iteration=0, attempt=0, offset=0))


def read_reply_text(client: redis.Redis, run_id: str) -> str:
    """Read what the newest model call of a run has written until now, as far as it was sent to readers; empty where
    there is nothing. Never raises for a broker that is away."""
    try:
        found: Any = client.xrevrange(make_stream_key(run_id), count=_KEPT_ENTRIES)
    except (redis.RedisError, OSError):
        return ""
    pieces: list[str] = []
    newest: tuple[int, int] | None = None
    for _, fields in found:
        entry = parse_entry(fields)
        if entry.kind != "text":
            continue
        reply = (entry.iteration, entry.attempt)
        newest = newest or reply
        if reply != newest:
            break
        pieces.append(entry.text)
        if entry.offset == 0:
            break
    return "".join(reversed(pieces))


class DeltaBuffer:
    """Collects the deltas of one model call and sends them in lumps. Used by one thread."""

    def __init__(
        self, live: Live, run_id: str, *, iteration: int, attempt: int, is_watched: Callable[[], bool]
    ) -> None:
        self._live = live
        self._run_id = run_id
        self._iteration = iteration
        self._attempt = attempt
        self._is_watched = is_watched
        self._sent = {"text": 0, "reasoning": 0}
        self._pending: dict[str, list[str]] = {"text": [], "reasoning": []}
        self._next_flush = time.monotonic() + FLUSH_EVERY_S

    def __call__(self, delta: Delta) -> None:
        if delta.text:
            self._pending["text"].append(delta.text)
        if delta.reasoning:
            self._pending["reasoning"].append(delta.reasoning)
        if delta.tool_name and self._is_watched():
            self._append("tool", delta.tool_name, 0)
        if time.monotonic() >= self._next_flush:
            self.flush()

    def flush(self) -> None:
        """Send what is pending, if the run has readers. A reader that comes in the middle gets it from the
        beginning."""
        if self._is_watched():
            for kind, pieces in self._pending.items():
                if pieces:
                    text = "".join(pieces)
                    self._append(kind, text, self._sent[kind])
                    self._sent[kind] += len(text)
                    pieces.clear()
        self._next_flush = time.monotonic() + FLUSH_EVERY_S

    def _append(self, kind: str, text: str, offset: int) -> None:
        entry = LiveEntry(kind=kind, text=text, iteration=self._iteration, attempt=self._attempt, offset=offset)
        self._live.append(self._run_id, entry)
