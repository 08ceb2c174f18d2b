"""Followers: the readers of runs in this process, and news for them.

Theory of operation. Two threads serve all readers, however many there are:

    broker     one XREAD over all followed runs       live entries    } mailbox (``Feed``) of each reader,
    database   once a second: newest row numbers      "rows are due"  } in the event loop

The first waits at the broker for live entries, and for an entry in a stream of its own that ends the wait when a reader
comes. The second asks the database which followed runs have new rows, and renews the marks that tell workers which runs
have readers. Without a broker the second thread is all there is, and asks more often.

A run's Redis stream is read by all its readers together, so one position is kept per run (``_Positions``). A new reader
needs the stream from its beginning: it sets the position back, and its older siblings skip what they have heard
(``Feed.take_entries``). An XREAD that began before a reader came must not move the position past what that reader
needs, so ``advance`` compares where the read began with where the position is now, and does nothing where they differ.

Threads never touch a mailbox: they post a callback to the event loop. A mailbox that is not emptied keeps up to
``_UNREAD_MAX`` entries; what is dropped is in rows.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import redis

from hermes_worker.broker.queue import is_refusal, log_broker_failure
from hermes_worker.core.errors import UnavailableError
from hermes_worker.core.local_rate_limits import Allowance
from hermes_worker.observe import broker_outage, database_outage
from hermes_worker.store.runs.runs import Runs
from hermes_worker.store.runs.views import Views
from hermes_worker.stream.live import LiveEntry, delete_stream, is_possible, make_stream_key, parse_entry
from hermes_worker.stream.readers import ReadersOf, TooManyReaders

_BLOCK_MS = 150
"""Milliseconds for which a read waits, and so for which a new reader is not seen where a wake is lost."""
_PAUSE_OF_EACH_S = 0.001
_PAUSE_S = 0.02
"""Seconds between two reads that found something, for each followed run and at most: one read then collects what many
runs say, and a single one is heard at once."""
_WAKE_KEPT_S = 600
_ENTRIES = 500
"""Most entries of one stream in one read."""
_UNREAD_MAX = 5_000
"""Most entries kept for a reader that does not take them; rows tell it the rest."""
_READS_AT_ONCE = 4
"""Reads of rows that entries may cause where the announced rows are not there, and as many more each second: anyone who
reaches the broker can write such entries. Rows that do come are read as often as they are announced, and looked for in
any case."""
_RUNS_PER_QUERY = 500
_LOOKS_SOON_S = 0.05
"""Seconds after which rows are looked for once more for a new reader. A step that began before the run had readers may
end in the meantime, and its worker announces nothing."""
_RETRY_S = 0.5

EntryId = tuple[int, int]
"""The place of an entry in a Redis stream: milliseconds and a number."""
_BEGINNING: EntryId = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowPolicy:
    """How often things happen, in seconds."""

    keepalive_s: float = 15.0
    """A silent stream sends a sign of life this often (Hermes Agent: 30)."""
    rows_every_s: float = 1.0
    """How often rows are looked for that no live entry announced."""
    rows_every_without_broker_s: float = 0.5
    watch_for_s: float = 30.0
    """How long a run counts as having readers after the last one was seen."""
    watch_every_s: float = 20.0
    readers_of_run_max: int = 200
    """Most readers of one run, which has a few people and programs as readers. Each holds a connection, up to 5,000
    unread entries and a share of every event; more than this is a client that does not close its streams."""
    readers_max: int = 5_000
    """Most readers of this process, which asks for 65,536 open files: the rest is for requests, the database and the
    broker."""


@dataclass(frozen=True, slots=True)
class ReceivedEntry:
    """A live entry, and when it was written (epoch seconds)."""

    id: EntryId
    entry: LiveEntry

    @property
    def at(self) -> float:
        return self.id[0] / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    entries: Sequence[ReceivedEntry]
    are_rows_due: bool
    """Whether there may be rows that this reader has not read."""


class Feed:
    """One reader's mailbox. Belongs to the event loop; threads never touch it."""

    def __init__(self) -> None:
        self.rows_read = 0
        """Number of the last row the reader has read; kept up to date by the reader."""
        self.since = time.time()
        """When the reader came, in epoch seconds."""
        self._reads = Allowance(at_once=_READS_AT_ONCE, per_s=_READS_AT_ONCE)
        self._entries: list[ReceivedEntry] = []
        self._heard_to = _BEGINNING
        self._are_rows_due = False
        self._is_closing = False
        self._wake = asyncio.Event()

    @property
    def is_closing(self) -> bool:
        """Whether the server stops."""
        return self._is_closing

    async def wait_for_news(self, timeout_s: float) -> News | None:
        """Wait for what came since the last call; ``None`` when nothing did for ``timeout_s`` seconds."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            return None
        self._wake.clear()
        news = News(entries=self._entries, are_rows_due=self._are_rows_due)
        self._entries, self._are_rows_due = [], False
        return news

    def take_entries(self, start: EntryId, heard: Sequence[ReceivedEntry]) -> None:
        """Take entries that follow ``start`` without a gap. What was taken before is left out."""
        if start > self._heard_to:
            return  # a read that began before this reader came; one from the beginning is under way
        fresh = [one for one in heard if one.id > self._heard_to]
        if not fresh:
            return
        self._heard_to = fresh[-1].id
        if any(one.entry.kind == "row" for one in fresh):
            self._are_rows_due |= self.may_read()
        if len(self._entries) < _UNREAD_MAX:
            self._entries += fresh
        self._wake.set()

    def note_rows(self, seq: int) -> None:
        """Note that the newest row of the run has this number."""
        if seq > self.rows_read:
            self._are_rows_due = True
            self._wake.set()

    def may_read(self) -> bool:
        """Whether rows are read now because the broker announced them."""
        return self._reads.take_one(time.monotonic())

    def confirm_rows(self, seq: int) -> None:
        """Note that new rows up to this number were read: the announcement was true."""
        self.rows_read = seq
        self._reads.return_one()

    def look_again(self) -> None:
        """Note that due rows could not be read."""
        self._are_rows_due = True
        self._wake.set()

    def close(self) -> None:
        self._is_closing = True
        self._wake.set()


@dataclass(slots=True)
class _Positions:
    """How far the stream of each followed run has been read. Shared by the event loop and the reading thread."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _heard_to: dict[str, EntryId] = field(default_factory=dict)
    _readers: Counter[str] = field(default_factory=Counter)
    changed: threading.Event = field(default_factory=threading.Event)

    def join(self, run_id: str) -> None:
        """Note a new reader: read the run's stream from its beginning, which its other readers skip."""
        with self._lock:
            self._readers[run_id] += 1
            self._heard_to[run_id] = _BEGINNING
        self.changed.set()

    def leave(self, run_id: str) -> None:
        with self._lock:
            self._readers[run_id] -= 1
            if self._readers[run_id] <= 0:
                del self._readers[run_id], self._heard_to[run_id]

    def copy_all(self) -> dict[str, EntryId]:
        with self._lock:
            return dict(self._heard_to)

    def advance(self, run_id: str, start: EntryId, end: EntryId) -> None:
        """Note that everything after ``start`` up to ``end`` was read; does nothing if a reader came in the
        meantime."""
        with self._lock:
            if self._heard_to.get(run_id) == start:
                self._heard_to[run_id] = end


class Followers:
    """All readers of this process. ``start`` and ``follow`` are called in the event loop."""

    def __init__(self, *, client: redis.Redis, runs: Runs, views: Views, policy: FollowPolicy) -> None:
        self._client = client
        self._runs = runs
        self._views = views
        self._policy = policy
        self._feeds: dict[str, set[Feed]] = {}
        self._positions = _Positions()
        self._wakes = f"wake-{secrets.token_hex(8)}"
        self._woken_to = "0-0"
        self._is_reading = False
        self._is_waking = False
        self._end = threading.Event()
        self._threads: list[threading.Thread] = []
        self._call_in_loop: Callable[[Callable[[], None]], object] = lambda tell: None
        self.is_broker_up = True
        """Whether the last read of live entries succeeded."""
        self.is_closing = False

    def start(self) -> None:
        """Begin, or begin anew after a ``stop``."""
        self._call_in_loop = asyncio.get_running_loop().call_soon_threadsafe
        self.is_closing = False
        self._end.clear()
        self._threads.clear()
        for target in (self._keep_reading, self._keep_looking):
            thread = threading.Thread(target=target, name=f"api{target.__name__}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def dismiss(self) -> None:
        """End every reader's stream, as the server stops. Called in the event loop; idempotent."""
        self.is_closing = True
        for feeds in self._feeds.values():
            for feed in feeds:
                feed.close()

    def stop(self) -> None:
        """End the threads; returns when they have ended, or after 2 s."""
        self._end.set()
        self._positions.changed.set()
        for thread in self._threads:
            thread.join(timeout=2)

    @property
    def count(self) -> int:
        """How many readers there are at this moment."""
        return sum(len(feeds) for feeds in self._feeds.values())

    @contextmanager
    def follow(self, run_id: str) -> Iterator[Feed]:
        """Open a mailbox for one reader, for as long as the block runs. Raises ``TooManyReaders``."""
        if len(self._feeds.get(run_id, ())) >= self._policy.readers_of_run_max:
            raise TooManyReaders(ReadersOf.RUN)
        if self.count >= self._policy.readers_max:
            raise TooManyReaders(ReadersOf.SERVER)
        feed = Feed()
        self._feeds.setdefault(run_id, set()).add(feed)
        self._positions.join(run_id)
        self._wake_reading()
        asyncio.get_running_loop().call_later(_LOOKS_SOON_S, self._look_soon, run_id)
        if self.is_closing:
            feed.close()
        try:
            yield feed
        finally:
            self._positions.leave(run_id)
            self._feeds[run_id].discard(feed)
            if not self._feeds[run_id]:
                del self._feeds[run_id]

    def _wake_reading(self) -> None:
        """Have the thread at the broker see a new reader before its read is over."""
        if self._is_reading and not self._is_waking:
            self._is_waking = True
            asyncio.get_running_loop().run_in_executor(None, self._write_wake)

    def _write_wake(self) -> None:
        self._is_waking = False  # whoever comes from now on writes another
        with suppress(redis.RedisError, OSError):
            pipe = self._client.pipeline(transaction=False)
            pipe.xadd(make_stream_key(self._wakes), {"kind": "wake"}, maxlen=1)
            pipe.expire(make_stream_key(self._wakes), _WAKE_KEPT_S)
            pipe.execute()

    # --- the thread at the broker ---

    def _keep_reading(self) -> None:
        while not self._end.is_set():
            self._is_reading = True  # before it looks who reads: a reader that it misses writes a wake that it reads
            positions = self._positions.copy_all()
            if not positions:
                self._is_reading = False
                self._positions.changed.wait()
                self._positions.changed.clear()
                continue
            try:
                found = self._read(positions)
            except (redis.RedisError, OSError) as error:
                log_broker_failure("follow", error)
                self.is_broker_up = False
                self._end.wait(_RETRY_S)
                continue
            self.is_broker_up = True
            broker_outage.note_success()
            if found:
                self._post_entries(positions, found)
                self._end.wait(min(_PAUSE_S, _PAUSE_OF_EACH_S * len(positions)))

    def _read(self, positions: Mapping[str, EntryId]) -> dict[str, list[ReceivedEntry]]:
        wakes = make_stream_key(self._wakes)
        keys = {make_stream_key(run_id): run_id for run_id in positions}
        starts: Any = {key: "{}-{}".format(*positions[run_id]) for key, run_id in keys.items()}
        keys[wakes], starts[wakes] = self._wakes, self._woken_to
        try:
            replies = self._client.xread(starts, count=_ENTRIES, block=_BLOCK_MS)
        except redis.ResponseError as error:
            if is_refusal(error) or not self._delete_broken(keys):
                raise
            return {}
        found = {}
        for key, entries in _iterate_streams(replies):
            if entries and not is_possible(entries[-1][0]):
                delete_stream(self._client, keys[key], "an entry from the future")
            elif key != wakes:
                found[keys[key]] = [*_parse_entries(entries)]
            elif entries:
                self._woken_to = entries[-1][0]
        return found

    def _delete_broken(self, keys: Mapping[str, str]) -> int:
        """Delete keys that are no streams: a single one would make every read fail. Returns how many there were."""
        pipe = self._client.pipeline(transaction=False)
        for key in keys:
            pipe.xread({key: "0"}, count=1)
        answers = zip(keys.values(), pipe.execute(raise_on_error=False), strict=True)
        broken = [(run_id, answer) for run_id, answer in answers if isinstance(answer, redis.ResponseError)]
        for run_id, answer in broken:
            delete_stream(self._client, run_id, str(answer))
        return len(broken)

    def _post_entries(self, positions: Mapping[str, EntryId], found: Mapping[str, Sequence[ReceivedEntry]]) -> None:
        for run_id, heard in found.items():
            if heard:
                self._positions.advance(run_id, positions[run_id], heard[-1].id)
        self._post(lambda: self._distribute(positions, found))

    def _distribute(self, positions: Mapping[str, EntryId], found: Mapping[str, Sequence[ReceivedEntry]]) -> None:
        for run_id, heard in found.items():
            for feed in self._feeds.get(run_id, ()):
                feed.take_entries(positions[run_id], heard)

    # --- the thread at the database ---

    def _keep_looking(self) -> None:
        watch_at = 0.0
        while not self._end.wait(self._look_every_s):
            run_ids = list(self._positions.copy_all())
            is_watch_due = time.monotonic() >= watch_at
            try:
                for begin in range(0, len(run_ids), _RUNS_PER_QUERY):
                    self._look(run_ids[begin : begin + _RUNS_PER_QUERY], is_watch_due=is_watch_due)
            except UnavailableError as error:
                database_outage.note_failure(doing="follow", error=str(error))
                continue
            if run_ids:
                database_outage.note_success()
            if is_watch_due:
                watch_at = time.monotonic() + self._policy.watch_every_s

    @property
    def _look_every_s(self) -> float:
        return self._policy.rows_every_s if self.is_broker_up else self._policy.rows_every_without_broker_s

    def _look(self, run_ids: Sequence[str], *, is_watch_due: bool = False) -> None:
        newest = self._views.load_event_seqs(run_ids)
        self._post(lambda: self._post_rows(newest))
        if is_watch_due:
            self._runs.mark_all_watched(run_ids, self._policy.watch_for_s)

    def _look_soon(self, run_id: str) -> None:
        if run_id in self._feeds:
            asyncio.get_running_loop().run_in_executor(None, self._try_to_look, run_id)

    def _try_to_look(self, run_id: str) -> None:
        with suppress(UnavailableError):  # the thread at the database tells of it
            self._look([run_id])

    def _post_rows(self, newest: Mapping[str, int]) -> None:
        for run_id, seq in newest.items():
            for feed in self._feeds.get(run_id, ()):
                feed.note_rows(seq)

    def _post(self, tell: Callable[[], None]) -> None:
        try:
            self._call_in_loop(tell)
        except RuntimeError:
            self._end.set()  # the loop is closed, and with it every reader


def _iterate_streams(replies: Any) -> Iterator[tuple[str, list[Any]]]:
    """Yield each stream and its entries, in either protocol's form: RESP2 gives pairs, RESP3 a mapping to lists of
    lists."""
    if isinstance(replies, dict):
        for key, parts in replies.items():
            yield key, [entry for part in parts for entry in part]
    else:
        yield from replies or ()


def _parse_entries(entries: Sequence[tuple[str, Mapping[str, str]]]) -> Iterator[ReceivedEntry]:
    for text, fields in entries:
        milliseconds, _, number = text.partition("-")
        yield ReceivedEntry((int(milliseconds), int(number)), parse_entry(fields))
