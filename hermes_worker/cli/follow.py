"""Follow a run: its rows from SQL and, between them, the live preview from the broker, merged into one order.

It survives a database or broker that is away for a time, a stack that is stopped and started again (its broker may then
be another one), and a worker that dies in the middle of a reply.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import redis

from hermes_worker.broker.queue import CONTROL_CHANNEL, build_redis_client, is_refusal
from hermes_worker.cli.event_notices import Notice
from hermes_worker.core.errors import HermesError, UnavailableError, format_reason
from hermes_worker.core.local_rate_limits import Allowance
from hermes_worker.store.runs.runs import Runs
from hermes_worker.store.runs.views import Views
from hermes_worker.stream.live import LiveEntry, delete_stream, is_possible, make_stream_key, parse_entry
from hermes_worker.stream.sse import Cursor, Merge, StreamStart
from hermes_worker.stream.wire_events import WireEvent

_LOOK_EVERY_S = 1.0
"""Seconds between two reads of rows that no live entry announced."""
_READS_AT_ONCE = 4
"""Most reads in one second for entries that announce rows which are not there."""
_BLOCK_MS = 500
_WATCH_FOR_S = 30.0
_ENTRIES = 500
_NOTHING = Cursor()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The sources that a run is read from."""

    views: Views
    runs: Runs
    broker_url: Callable[[], str | None]
    """Finds the broker again whenever it is away, because an embedded one may come back elsewhere."""


def follow(
    sources: Sources,
    run_id: str,
    *,
    told: Cursor = _NOTHING,
    on_idle: Callable[[], str | None] = lambda: None,
    news: Callable[[], Sequence[str]] = tuple,
) -> Iterator[WireEvent | Notice]:
    """Iterate over everything that happened to a run after ``told`` and that happens, in order, until it has ended.

    ``on_idle`` is called about once a second; its result is passed on as a notice when it changes. Each line that
    ``news`` returns is passed on, too. Raises ``RunNotFound``.
    """
    merge = _begin_merge(sources.views, run_id, told)
    preview = _Preview(sources, run_id)
    reads = Allowance(at_once=_READS_AT_ONCE, per_s=_READS_AT_ONCE)
    said: str | None = None
    look_at = 0.0
    while not merge.is_over:
        try:
            if time.monotonic() >= look_at:
                preview.keep_watching()
                seq = merge.cursor.seq
                yield from _read_rows(sources.views, run_id, merge)
                if merge.cursor.seq > seq:
                    reads.return_one()
                look_at = time.monotonic() + _LOOK_EVERY_S
                yield from (Notice(text=line) for line in news())
                notice = on_idle()
            if merge.is_over:
                return
            for entry, at in preview.read():
                if entry.kind == "row" and reads.take_one(time.monotonic()):
                    look_at = 0.0
                yield from merge.translate_live(entry, at)
        except UnavailableError as error:
            notice = f"{format_reason(error)}; waiting for it to come back"
            time.sleep(_LOOK_EVERY_S)
        if notice != said:
            said = notice
            if notice:
                yield Notice(text=notice)


def _begin_merge(views: Views, run_id: str, told: Cursor) -> Merge:
    """Begin the merge for a reader who comes now; see ``StreamStart`` for the order of the reads."""
    view = views.load_run(run_id)
    calls = views.list_calls(run_id)
    settled = {call.position for call in calls if call.iteration == view.iteration and call.status.is_settled}
    return Merge(told, StreamStart(seq=_find_last_seq(views, run_id), iteration=view.iteration, settled=settled))


def _find_last_seq(views: Views, run_id: str) -> int:
    seq = 0
    while rows := views.list_events_after(run_id, seq):
        seq = rows[-1].seq
    return seq


def _read_rows(views: Views, run_id: str, merge: Merge) -> Iterator[WireEvent]:
    while rows := views.list_events_after(run_id, merge.cursor.seq):
        yield from merge.translate_rows(rows, views.load_run(run_id).usage)


class _Preview:
    """The live side: what it lacks, the rows give a little later."""

    def __init__(self, sources: Sources, run_id: str) -> None:
        self._sources = sources
        self._run_id = run_id
        self._client: redis.Redis | None = None
        self._url: str | None = None
        self._last_id = "0"
        self._watched_until = 0.0

    def keep_watching(self) -> None:
        """Ask the workers to write the preview. Raises ``UnavailableError``."""
        now = time.monotonic()
        if now < self._watched_until - _WATCH_FOR_S / 2:
            return
        self._sources.runs.mark_watched(self._run_id, _WATCH_FOR_S)
        self._watched_until = now + _WATCH_FOR_S

    def read(self) -> list[tuple[LiveEntry, float]]:
        """Read new entries and when they were written (epoch seconds); waits half a second for the first."""
        client = self._connect()
        if client is None:
            time.sleep(_BLOCK_MS / 1000)
            return []
        try:
            found: Any = client.xread({make_stream_key(self._run_id): self._last_id}, count=_ENTRIES, block=_BLOCK_MS)
            entries = _find_entries(found)
            if entries and not is_possible(entries[-1][0]):
                delete_stream(client, self._run_id, "an entry from the future")
                return []
        except (redis.RedisError, OSError) as error:
            self._delete_broken(client, error)
            self._disconnect()
            time.sleep(_BLOCK_MS / 1000)
            return []
        if entries:
            self._last_id = entries[-1][0]
        return [(parse_entry(fields), int(entry_id.partition("-")[0]) / 1000) for entry_id, fields in entries]

    def _delete_broken(self, client: redis.Redis, error: Exception) -> None:
        """Delete a key that is no stream; the next entry begins one."""
        if isinstance(error, redis.ResponseError) and not is_refusal(error):
            with contextlib.suppress(redis.RedisError, OSError):  # the next read finds out and waits
                delete_stream(client, self._run_id, str(error))

    def _connect(self) -> redis.Redis | None:
        if self._client is None:
            try:
                url = self._sources.broker_url()
            except HermesError:
                return None
            if url is None:
                return None
            if url != self._url:
                self._url, self._last_id = url, "0"
            self._client = build_redis_client(url)
            self._nudge(self._client)
        return self._client

    def _nudge(self, client: redis.Redis) -> None:
        """Ask workers to send: a model call in flight may have been claimed while the run had no readers."""
        try:
            client.publish(CONTROL_CHANNEL, f"watch {self._run_id}")
        except (redis.RedisError, OSError):
            return  # the next read finds out and waits

    def _disconnect(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def _find_entries(found: Any) -> list[tuple[str, dict[str, str]]]:
    """Find the single stream's entries, in either protocol's form: RESP2 gives pairs, RESP3 a mapping to a list of
    lists."""
    if not found:
        return []
    if isinstance(found, dict):
        (lists,) = found.values()
        return [entry for part in lists for entry in part]
    return list(found[0][1])
