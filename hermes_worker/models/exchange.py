"""The parts of a model call that every wire shares: one exchange of bytes that can be cut off, and a reply that is
assembled from it.

A wire brings its request body, a way to post it, and an ``Assembler`` that knows its events. Here is the rest: the
abort, the patience, the bytes, the ends that streams come to, and the translation of everything that can go wrong.
"""

from __future__ import annotations

import codecs
import contextlib
import itertools
import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar, cast

import httpx2

from hermes_worker.core.errors import FailureKind, ModelCallError
from hermes_worker.core.messages import ModelReply, ModelRequest, dump_canonical_json
from hermes_worker.core.rate_limits import parse_rate_limits
from hermes_worker.core.recovery.classify import RequestSize
from hermes_worker.models.base import Abort
from hermes_worker.models.catalog import silence_s
from hermes_worker.models.connections import Line, use_line
from hermes_worker.models.endpoint import Endpoint
from hermes_worker.models.errors import CallPlace, redact, translate_error
from hermes_worker.models.wires.chat_reply import CutShort, MalformedReply, StreamedError
from hermes_worker.models.wires.sse import EventTooLarge, iterate_event_data

REPLY_BYTES_MAX = 64 * 1024 * 1024
AFTER_END_S = 0.2
"""How many seconds to wait for the end of a stream whose last event has come. A slower server costs a new connection;
waiting for it would cost the whole read timeout.
"""
STALE_FACTOR = 1.5
"""A server that sends only comments or blank lines may go on for this many times the limit of a silent one
(180 s and 120 s)."""

_Dialect = TypeVar("_Dialect")


class Assembler(Protocol):
    """Puts one reply together."""

    @property
    def is_over(self) -> bool:
        """Whether the event that ends a stream has come."""

    @property
    def has_content(self) -> bool: ...

    def feed(self, document: object) -> None:
        """Take one event of a stream. Raises ``MalformedReply`` or ``StreamedError``."""

    def feed_whole(self, document: object) -> None:
        """Take a reply that was not streamed. Raises ``StreamedError``, and ``MalformedReply`` when it is no reply."""

    def finish(self, *, was_cut_short: bool = False) -> ModelReply:
        """Return the reply. Raises ``CutShort`` when it broke off before any text of it had come."""


class Post(Protocol):
    """Sends a request's body and gives the response, its body unread. Raises what the SDK raises."""

    def __call__(self, body: bytes, *, read_timeout_s: float) -> httpx2.Response: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One attempt at a model call."""

    endpoint: Endpoint
    model: str
    messages: int
    """How many messages were sent; tells a refusal of something small from one of something big."""
    body: bytes
    post: Post
    assembler: Assembler
    sdk_error: type[Exception]
    """Base class of what ``post`` raises, beside the errors of the HTTP client."""
    reply_name: str
    """This wire's name for its reply, for messages: ``a chat completion``."""
    frames: Callable[[Iterable[bytes]], Iterator[object]] | None = None
    """Reads the events of a stream that is not made of server-sent events: documents, in order. A stream of frames
    begins with a zero byte, which no text does."""

    @property
    def place(self) -> CallPlace:
        return CallPlace(
            base_url=self.endpoint.plain_url,
            provider=self.endpoint.provider,
            model=self.model,
            secrets=self.endpoint.secrets,
        )


class DialectLearner(Generic[_Dialect]):
    """Asks a server in the dialect that it was found to understand, and in another one when it refuses the dialect.

    What it learns is kept for the process.
    """

    def __init__(self, first: _Dialect) -> None:
        self._dialect = first
        self._lock = threading.Lock()

    def ask(
        self,
        attempt: Callable[[_Dialect, Line], ModelReply],
        adapt: Callable[[_Dialect, ModelCallError], _Dialect | None],
        abort: Abort,
    ) -> ModelReply:
        """Make the call, changing the dialect as often as the server's refusals say. ``adapt`` answers a refusal with a
        better dialect, or ``None`` when it was about something else; each trait may change once, so asking again comes
        to an end.

        Raises ``ModelCallError``, with kind ``interrupted`` when ``abort`` was set.
        """
        line = Line()
        abort.on_abort(line.cut)
        while True:
            dialect = self._dialect
            try:
                reply = attempt(dialect, line)
            except ModelCallError as error:
                if line.is_cut:
                    raise _build_interruption(may_be_billed=error.may_be_billed) from error
                better = adapt(dialect, error)
                if better is None:
                    raise
                self._adopt(better, instead_of=dialect)
            else:
                if line.is_cut:
                    raise _build_interruption(may_be_billed=True)
                return reply

    def _adopt(self, better: _Dialect, *, instead_of: _Dialect) -> None:
        with self._lock:
            if self._dialect == instead_of:  # otherwise another call has just learned something
                self._dialect = better


_REFUSED = (
    "not support",
    "unsupported",
    "not allowed",
    "not permitted",
    "unknown",
    "unrecognized",
    "extra",
    "disabled",
)


def read_refusal_text(error: ModelCallError) -> str | None:
    """The text of a refusal of the request itself, in lower case, when it is about something that is not understood;
    else ``None``.
    """
    text = error.message.lower()
    return text if error.status in (400, 422) and any(word in text for word in _REFUSED) else None


def compute_patience_s(endpoint: Endpoint, request: ModelRequest) -> float:
    """The longest silence to bear, in seconds: the endpoint's, or the model's if that thinks longer."""
    return max(endpoint.read_timeout_s, silence_s(request.model))


def build_extra_fields(request: ModelRequest, endpoint: Endpoint) -> dict[str, str]:
    """Fields that a wire does not build itself, as JSON: the endpoint's, and before them the request's."""
    tier = {"service_tier": endpoint.service_tier} if endpoint.service_tier else {}
    return {name: dump_canonical_json(value) for name, value in {**endpoint.body, **tier, **request.extra_body}.items()}


def build_json_body(fields: Mapping[str, str], conversation: str, rows: Iterable[str]) -> bytes:
    """The JSON of a request from ``fields`` that are JSON already: compact, keys sorted, so that equal prompts are
    equal bytes (invariant I7); the rows of the ``conversation`` last, so that the next request begins like this one.
    """
    head = "".join(f"{dump_canonical_json(name)}:{text}," for name, text in sorted(fields.items()))
    return f"{{{head}{dump_canonical_json(conversation)}:[{','.join(rows)}]}}".encode()


def carry_out(exchange: Exchange, line: Line, *, read_timeout_s: float) -> ModelReply:
    """Send the request and read the reply. Raises ``ModelCallError``.

    Text that has been shown is kept when the network fails, cut short; anything less is asked for again by the loop.
    """
    line.has_sent = False
    try:
        with (
            use_line(line),
            contextlib.closing(exchange.post(exchange.body, read_timeout_s=read_timeout_s)) as response,
        ):
            reply = _read_reply(response, exchange, line, _Progress(STALE_FACTOR * read_timeout_s))
            limits = parse_rate_limits(response.headers.raw)
            return replace(reply, limits=limits) if limits else reply
    except (exchange.sdk_error, httpx2.HTTPError, StreamedError) as error:
        with contextlib.suppress(CutShort):
            if isinstance(error, httpx2.HTTPError) and not line.is_cut:
                return exchange.assembler.finish(was_cut_short=True)
        # A rough size is enough: it only tells a refusal of something small from one of something big.
        size = RequestSize(tokens=len(exchange.body) // 4, messages=exchange.messages)
        failure = translate_error(error, exchange.place, size)
        # An answer with an error says that nothing is billed; whether an error inside a stream does, its text tells.
        failure.may_be_billed = line.has_sent and failure.status is None and not isinstance(error, StreamedError)
        raise failure from error


class _Progress:
    """Tells a stream that gets somewhere from one that is only kept open."""

    __slots__ = ("_heard_s", "_stale_after_s")

    def __init__(self, stale_after_s: float) -> None:
        self._stale_after_s = stale_after_s
        self._heard_s = time.monotonic()

    def note_event(self) -> None:
        """Note that an event came."""
        self._heard_s = time.monotonic()

    def watch_chunks(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            yield chunk
            # Only now its events, if it held any, have been heard.
            if time.monotonic() - self._heard_s > self._stale_after_s:
                raise httpx2.ReadTimeout(f"no event came for {self._stale_after_s:g} s, only signs of life")


def _read_reply(response: httpx2.Response, exchange: Exchange, line: Line, progress: _Progress) -> ModelReply:
    """Consume the response, streamed or not: some servers ignore ``stream`` and answer in one piece."""
    chunks = _limit_bytes(_iterate_body(response))
    assembler, place = exchange.assembler, exchange.place
    try:
        watched = progress.watch_chunks(chunks)
        first = _read_beginning(watched)
        if first[:1] == b"{":
            assembler.feed_whole(_parse_json(first + b"".join(chunks)))
            return assembler.finish()
        if first and not first.startswith(_EVENT_FIELDS if exchange.frames is None else _FRAME):
            raise MalformedReply(f"it begins with {first[:60]!r}")
        beginning = itertools.chain([first], watched)
        if exchange.frames is None:
            is_done = _feed_events(beginning, assembler, line, progress)
        else:
            is_done = _feed_frames(exchange.frames(beginning), beginning, assembler, line, progress)
    except (MalformedReply, EventTooLarge) as error:
        raise _not_a_reply(str(error), exchange) from error
    try:
        return assembler.finish(was_cut_short=not (is_done and assembler.has_content))
    except CutShort as error:
        raise ModelCallError(
            FailureKind.TIMEOUT,
            f"The stream from {place.base_url} ended before any text of the reply had come.",
            may_be_billed=True,
        ) from error


_EVENT_FIELDS = (b":", b"data", b"event", b"id", b"retry")
_FRAME = b"\0"
"""The first of the four bytes of a length: no frame has 16 MB."""
_TELLING_BYTES = 5
"""How many bytes tell a frame from anything else."""


def _read_beginning(chunks: Iterator[bytes]) -> bytes:
    """The first bytes, as many as tell what follows; a network may cut them anywhere. Blank lines in front are left
    out: DeepSeek sends them while it waits. So is a byte order mark, which some gateways put there."""
    first = b""
    for chunk in chunks:
        first = (first + chunk).lstrip().removeprefix(codecs.BOM_UTF8).lstrip()
        if len(first) >= _TELLING_BYTES:
            break
    return first


def _parse_finite(digits: str) -> float | str:
    """Convert a number; one beyond the range of JSON (``1e400``) stays its text. No row can hold infinity, and the
    reader of the arguments in which it stands can then say what is wrong with them.
    """
    number = float(digits)
    return number if math.isfinite(number) else digits


_raw_decode = json.JSONDecoder(parse_float=_parse_finite, parse_constant=str).raw_decode
"""``json.loads`` without what it does around this: to guess an encoding, and to look for white space with regular
expressions, which takes as long as to parse an event."""


def _parse_json(data: bytes) -> object:
    try:
        text = data.decode().strip(" \t\n\r")
        document, end = _raw_decode(text)
    except (ValueError, RecursionError) as error:
        raise MalformedReply(f"{data[:60]!r} is not JSON") from error
    if end != len(text):
        raise MalformedReply(f"{data[:60]!r} is more than JSON")
    return cast(object, document)


def _feed_events(chunks: Iterator[bytes], assembler: Assembler, line: Line, progress: _Progress) -> bool:
    """Feed every event; return whether the stream came to its regular end."""
    events = iterate_event_data(chunks)
    for data in events:
        progress.note_event()
        if data != b"[DONE]":
            try:
                document = _parse_json(data)
            except MalformedReply:
                if next(events, None) is None:
                    return False  # half an event: the stream broke off inside it
                raise
            assembler.feed(document)
            if line.is_cut:
                return False
            if not assembler.is_over:
                continue
        _drain_body(chunks, line)
        return True
    return False


def _feed_frames(
    documents: Iterator[object], chunks: Iterator[bytes], assembler: Assembler, line: Line, progress: _Progress
) -> bool:
    """Feed every document of a stream of frames; return whether the stream came to its regular end."""
    for document in documents:
        progress.note_event()
        assembler.feed(document)
        if line.is_cut:
            return False
        if assembler.is_over:
            _drain_body(chunks, line)
            return True
    return False


def _drain_body(chunks: Iterator[bytes], line: Line) -> None:
    """Read what little follows the last event, for only a response read to its end leaves its connection reusable."""
    line.limit_reads(AFTER_END_S)
    with contextlib.suppress(httpx2.HTTPError):  # the reply is complete; a broken end only costs the connection
        for _ in itertools.islice(chunks, 8):
            pass


def _iterate_body(response: httpx2.Response) -> Iterable[bytes]:
    """The response's bytes. Nothing is compressed as a rule, and then the layers that would undo it are left out."""
    stream = response.stream
    if "content-encoding" in response.headers or not isinstance(stream, httpx2.SyncByteStream):
        return response.iter_bytes()
    return stream


def _limit_bytes(chunks: Iterable[bytes]) -> Iterator[bytes]:
    received = 0
    for chunk in chunks:
        received += len(chunk)
        if received > REPLY_BYTES_MAX:
            raise MalformedReply(f"the reply exceeds {REPLY_BYTES_MAX} bytes")
        yield chunk


def _not_a_reply(reason: str, exchange: Exchange) -> ModelCallError:
    message = (
        f"{exchange.place.base_url} answered with something that is not {exchange.reply_name}: {reason}. "
        "If this is not passing trouble, check HERMES_BASE_URL (model.base_url)."
    )
    return ModelCallError(FailureKind.SERVER_ERROR, redact(message, exchange.place.secrets))


def _build_interruption(*, may_be_billed: bool) -> ModelCallError:
    return ModelCallError(FailureKind.INTERRUPTED, "The model call was aborted.", may_be_billed=may_be_billed)
