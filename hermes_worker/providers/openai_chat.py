"""The chat-completions wire, through the official ``openai`` SDK.

The SDK is given bytes and gives bytes back (design D13): its typed parameters are validated again on every call, which
at 100 messages costs 49 ms of CPU, and its typed stream 225 us per chunk. It keeps what it is good at: base URLs,
query, headers, timeouts and the classes of errors. Retries are off; the loop owns them.

One ``OpenAIChat`` serves every call of a process to one endpoint. Each call runs on its caller's thread and can be
aborted from any other (``connections``).
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import httpx2
import openai

from hermes_worker.core.classify import RequestSize
from hermes_worker.core.errors import FailureKind, ModelCallError
from hermes_worker.core.messages import ModelReply, ModelRequest, canonical_json
from hermes_worker.providers.base import Abort, OnDelta
from hermes_worker.providers.catalog import output_cap_parameter, silence_s
from hermes_worker.providers.chat_reply import CutShort, MalformedReply, ReplyAssembler, StreamedError
from hermes_worker.providers.connections import CuttableTransport, Line, using
from hermes_worker.providers.endpoint import Endpoint, checked
from hermes_worker.providers.errors import TRANSLATED, CallPlace, redact, translate
from hermes_worker.providers.sse import EventTooLarge, event_data

REPLY_BYTES_MAX = 64 * 1024 * 1024
WRITE_TIMEOUT_S = 60.0
AFTER_DONE_S = 0.2
"""How long we wait for the end of a stream whose ``[DONE]`` has come. A server that is slower than this costs a new
connection; one that is waited for would cost the whole read timeout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """What this endpoint has been found to understand. Learned from its refusals, kept for the process."""

    streams: bool = True
    takes_stream_options: bool = True
    output_cap: str | None = None
    """The parameter for the output limit, once the server named it; ``None`` goes by host and model."""


class OpenAIChat:
    """``Provider`` for any server that speaks OpenAI's chat completions."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Raises ``ConfigurationError`` when the endpoint cannot be used. Connects to nothing yet."""
        self._endpoint = checked(endpoint)
        self._client = _Client(self._endpoint)
        self._dialect = Dialect(takes_stream_options=endpoint.sends_stream_options)
        self._dialect_lock = threading.Lock()

    def close(self) -> None:
        """Close idle connections. Calls in flight are not touched."""
        self._client.close()

    def ask(self, request: ModelRequest, *, on_delta: OnDelta, abort: Abort) -> ModelReply:
        """See ``Provider``. A refusal that only concerns how we ask is answered inside, by asking differently."""
        line = Line()
        abort.on_abort(line.cut)
        while True:
            dialect = self._dialect
            try:
                reply = self._attempt(request, dialect, on_delta, line)
            except ModelCallError as error:
                if line.is_cut:
                    raise _interrupted() from error
                if not self._learn(dialect, error):
                    raise
            else:
                if line.is_cut:
                    raise _interrupted()
                return reply

    def _attempt(self, request: ModelRequest, dialect: Dialect, on_delta: OnDelta, line: Line) -> ModelReply:
        body = request_body(request, self._endpoint, dialect)
        place = CallPlace(
            base_url=self._endpoint.plain_url,
            provider=self._endpoint.provider,
            model=request.model,
            secrets=(self._endpoint.api_key,),
        )
        # A rough size is enough: it only tells a refusal of something small from one of something big.
        size = RequestSize(tokens=len(body) // 4, messages=len(request.messages))
        patience_s = max(self._endpoint.read_timeout_s, silence_s(request.model))
        assembler = ReplyAssembler(on_delta)
        try:
            with using(line), contextlib.closing(self._client.send(body, read_timeout_s=patience_s)) as response:
                return _read_reply(response, assembler, line, place)
        except (*TRANSLATED, StreamedError) as error:
            # Text that has been shown is kept, cut short; anything less is asked for again (reference, loop §11.2).
            with contextlib.suppress(CutShort):
                if isinstance(error, httpx2.HTTPError) and not line.is_cut:
                    return assembler.finish(was_cut_short=True)
            raise translate(error, place, size) from error

    def _learn(self, tried: Dialect, error: ModelCallError) -> bool:
        """Whether to ask again because the refusal was about the way of asking. True at most once per trait."""
        better = adapted(tried, error)
        if better is None:
            return False
        with self._dialect_lock:
            if self._dialect == tried:  # otherwise another call has just learned something
                self._dialect = better
        return True


class _Client(openai.OpenAI):
    """The SDK's client for one endpoint, deaf to the environment.

    Left to itself it adds organisation, project and custom headers from ``OPENAI_*`` variables to requests that go to
    any server at all.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._fixed_headers = _headers(endpoint)
        # The SDK insists on a credential unless its header is explicitly left out of the call.
        self._call_headers = {} if "Authorization" in self._fixed_headers else {"Authorization": openai.omit}
        self._timeout = httpx2.Timeout(
            connect=endpoint.connect_timeout_s, read=endpoint.read_timeout_s, write=WRITE_TIMEOUT_S, pool=None
        )
        super().__init__(
            api_key="none",  # the real one is among the fixed headers
            admin_api_key="",
            organization="",
            project="",
            webhook_secret="",
            base_url=endpoint.plain_url,
            default_query=endpoint.query,
            max_retries=0,
            timeout=self._timeout,
            http_client=httpx2.Client(
                transport=CuttableTransport(proxy_url=endpoint.proxy_url), trust_env=False, follow_redirects=False
            ),
        )

    @property
    def default_headers(self) -> dict[str, str | openai.Omit]:
        return self._fixed_headers

    def send(self, body: bytes, *, read_timeout_s: float) -> httpx2.Response:
        """Post a chat completion; the response's body is still unread. Raises what the SDK raises."""
        timeout = self._timeout
        if read_timeout_s != timeout.read:
            timeout = httpx2.Timeout(timeout, read=read_timeout_s)
        response: object = self.post(
            "/chat/completions",
            content=body,
            cast_to=httpx2.Response,
            options={"headers": self._call_headers, "timeout": timeout},
            stream=True,
            stream_cls=openai.Stream[Any],
        )
        assert isinstance(response, httpx2.Response)  # what ``cast_to`` asks for; the SDK's types cannot say so
        return response


def _headers(endpoint: Endpoint) -> dict[str, str | openai.Omit]:
    headers: dict[str, str | openai.Omit] = {
        "Accept": "text/event-stream, application/json",
        "Accept-Encoding": "identity",  # small events gain nothing from compression and are held back by it
        "Content-Type": "application/json",
        "User-Agent": "hermes-worker",
        **endpoint.headers,
    }
    if endpoint.api_key:
        is_bearer = endpoint.key_header.lower() == "authorization"
        name = "Authorization" if is_bearer else endpoint.key_header
        headers[name] = f"Bearer {endpoint.api_key}" if is_bearer else endpoint.api_key
    return headers


def request_body(request: ModelRequest, endpoint: Endpoint, dialect: Dialect) -> bytes:
    """The JSON of a request: compact, keys sorted, so that equal prompts are equal bytes (invariant I7).

    ``extra_body`` adds fields and cannot replace the ones that are built here.
    """
    fields = {name: canonical_json(value) for name, value in request.extra_body.items()}
    if request.output_tokens_max is not None:
        cap = dialect.output_cap or output_cap_parameter(endpoint.base_url, request.model)
        fields[cap] = str(request.output_tokens_max)
    if endpoint.sends_cache_key and request.session_id:
        fields["prompt_cache_key"] = canonical_json(_cache_key(request.session_id))
    if request.tools:
        fields["tools"] = f"[{','.join(request.tools)}]"
    if dialect.streams and dialect.takes_stream_options:
        fields["stream_options"] = '{"include_usage":true}'
    fields["stream"] = "true" if dialect.streams else "false"
    fields["model"] = canonical_json(request.model)
    fields["messages"] = f"[{','.join(request.messages)}]"
    return f"{{{','.join(f'{canonical_json(name)}:{text}' for name, text in sorted(fields.items()))}}}".encode()


def _cache_key(session_id: str) -> str:
    """OpenAI takes at most 64 characters."""
    return session_id if len(session_id) <= 64 else hashlib.sha256(session_id.encode()).hexdigest()


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


def adapted(tried: Dialect, error: ModelCallError) -> Dialect | None:
    """How to ask after this refusal; ``None`` when it was not about the way of asking.

    Each trait changes at most once, so asking again comes to an end.
    """
    if error.status not in (400, 422):
        return None
    text = error.message.lower()
    if tried.streams and tried.takes_stream_options and "stream_options" in text:
        return replace(tried, takes_stream_options=False)
    if not any(word in text for word in _REFUSED):
        return None
    if tried.output_cap is None and ("max_tokens" in text or "max_completion_tokens" in text):
        return replace(tried, output_cap=_other_cap(text))
    if tried.streams and "stream" in text:
        return replace(tried, streams=False)
    return None


def _other_cap(text: str) -> str:
    """The one the server did not complain of. OpenAI names both, the unwanted one first."""
    old = text.find("max_tokens")
    new = text.find("max_completion_tokens")
    return "max_completion_tokens" if old >= 0 and (new < 0 or old < new) else "max_tokens"


def _read_reply(response: httpx2.Response, assembler: ReplyAssembler, line: Line, place: CallPlace) -> ModelReply:
    """Consume the response, streamed or not: some servers ignore ``stream`` and answer in one piece."""
    chunks = _limited(_body_of(response))
    try:
        first = next((chunk for chunk in chunks if chunk.strip()), b"")  # DeepSeek sends blank lines while it waits
        body = itertools.chain([first], chunks)
        if first.lstrip()[:1] == b"{":
            assembler.feed(_parsed(b"".join(body)))
            if not assembler.has_choice:
                raise MalformedReply("the reply has no choices")
            return assembler.finish()
        is_done = _feed_events(body, assembler, line)
    except (MalformedReply, EventTooLarge) as error:
        raise _not_a_completion(str(error), place) from error
    if first and not first.lstrip().startswith(_EVENT_FIELDS):
        raise _not_a_completion(f"it begins with {first[:60]!r}", place)
    try:
        return assembler.finish(was_cut_short=not (is_done and assembler.has_content))
    except CutShort as error:
        raise ModelCallError(
            FailureKind.TIMEOUT, f"The stream from {place.base_url} ended before any text of the reply had come."
        ) from error


_EVENT_FIELDS = (b":", b"data", b"event", b"id", b"retry")


def _parsed(data: bytes) -> object:
    try:
        return json.loads(data.decode())  # told bytes, it first guesses their encoding
    except (ValueError, RecursionError) as error:
        raise MalformedReply(f"{data[:60]!r} is not JSON") from error


def _feed_events(chunks: Iterator[bytes], assembler: ReplyAssembler, line: Line) -> bool:
    """Feed every event; tells whether the stream came to its regular end."""
    for data in event_data(chunks):
        if data == b"[DONE]":
            _drain(chunks, line)
            return True
        assembler.feed(_parsed(data))
        if line.is_cut:
            return False
    return False


def _drain(chunks: Iterator[bytes], line: Line) -> None:
    """Read what little follows the last event, for only a response read to its end leaves its connection reusable."""
    line.limit_reads(AFTER_DONE_S)
    with contextlib.suppress(httpx2.HTTPError):  # the reply is complete; a broken end only costs the connection
        for _ in itertools.islice(chunks, 8):
            pass


def _body_of(response: httpx2.Response) -> Iterable[bytes]:
    """The response's bytes. Nothing is compressed as a rule, and then the layers that would undo it are left out."""
    stream = response.stream
    if "content-encoding" in response.headers or not isinstance(stream, httpx2.SyncByteStream):
        return response.iter_bytes()
    return stream


def _limited(chunks: Iterable[bytes]) -> Iterator[bytes]:
    received = 0
    for chunk in chunks:
        received += len(chunk)
        if received > REPLY_BYTES_MAX:
            raise MalformedReply(f"the reply exceeds {REPLY_BYTES_MAX} bytes")
        yield chunk


def _not_a_completion(reason: str, place: CallPlace) -> ModelCallError:
    message = (
        f"{place.base_url} answered with something that is not a chat completion: {reason}. "
        "If this is not passing trouble, check HERMES_BASE_URL (model.base_url); for most servers it ends in /v1."
    )
    return ModelCallError(FailureKind.SERVER_ERROR, redact(message, place.secrets))


def _interrupted() -> ModelCallError:
    return ModelCallError(FailureKind.INTERRUPTED, "The model call was aborted.")
