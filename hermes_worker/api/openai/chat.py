"""``POST /v1/chat/completions`` (docs/behaviour.md, "Chat completions")."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Request
from fastapi.responses import JSONResponse, Response
from pydantic import ValidationError, WithJsonSchema

from hermes_worker.api import schema
from hermes_worker.api.auth import WRITES, Caller
from hermes_worker.api.bodies import read_json
from hermes_worker.api.context import ApiContext, Context
from hermes_worker.api.errors import ApiError, invalid, wrong_field
from hermes_worker.api.following import follow, stream_start, watched
from hermes_worker.api.openai import chat_schema
from hermes_worker.api.openai.chat_messages import conversation_of
from hermes_worker.api.openai.continuing import accept_conversation
from hermes_worker.api.openai.models import served_as
from hermes_worker.api.openai.outcome import RunOutcome, chat_usage, outcome_of
from hermes_worker.api.openai.structured import chat_schema_of
from hermes_worker.api.openai.waiting import (
    AnswerStream,
    ClientLeft,
    ended,
    going_away,
    has_room,
    wait_for_end,
)
from hermes_worker.api.stopping import stop_abandoned
from hermes_worker.core.messages import Usage, canonical_json
from hermes_worker.core.principals import Principal
from hermes_worker.core.run_events import RunEventName, StoredEvent
from hermes_worker.services.submission import DEFAULT_MODEL_ALIAS, Submission, accept, announce
from hermes_worker.store.runs.runs import Created
from hermes_worker.store.runs.views import RunView
from hermes_worker.stream import sse
from hermes_worker.stream.events import MESSAGE_DELTA
from hermes_worker.stream.followers import Feed, TooManyReaders
from hermes_worker.stream.live import LiveEntry

router = APIRouter(prefix="/v1/chat/completions", tags=["openai"], responses=schema.errors(503))

DONE = b"data: [DONE]\n\n"
_BETWEEN_REPLIES = "\n\n"
_EMOJIS = {
    "terminal": "\N{DESKTOP COMPUTER}",
    "read_file": "\N{OPEN BOOK}",
    "write_file": "\N{MEMO}",
    "patch": "\N{WRENCH}",
    "search_files": "\N{LEFT-POINTING MAGNIFYING GLASS}",
    "web_search": "\N{GLOBE WITH MERIDIANS}",
    "web_extract": "\N{PAGE FACING UP}",
    "delegate_task": "\N{TWISTED RIGHTWARDS ARROWS}",
}
_ANY_TOOL = "\N{GEAR}"


# --- the request -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _ParsedChat:
    body: chat_schema.ChatRequest
    digest: str
    """What an idempotency key stands for."""


async def _parsed_chat(request: Request) -> _ParsedChat:
    document = await read_json(request)
    if not isinstance(document, dict):
        raise invalid("body", "The request body must be a JSON object.", "invalid_type")
    try:
        body = chat_schema.ChatRequest.model_validate(document)
    except ValidationError as error:
        raise wrong_field(error) from None
    kept = {name: value for name, value in document.items() if name != "stream"}
    return _ParsedChat(body, canonical_json({"chat.completions": kept}))


IdempotencyKey = Annotated[str, WithJsonSchema({"type": "string", "pattern": r"^(?=.*[!-~])[\x20-\x7e]{1,256}$"})]
_Session = Annotated[str, WithJsonSchema({"type": "string", "pattern": chat_schema.SESSION})]


@dataclass(frozen=True, slots=True)
class _AskedChat:
    """A request, and the run that was made for it."""

    body: chat_schema.ChatRequest
    created: Created
    headers: dict[str, str]
    stops_for: str | None
    """Who leaves when the client does; ``None`` where the request may come again and ask for this run."""

    @property
    def chat_id(self) -> str:
        return f"chatcmpl-{self.created.run_id.removeprefix('run_')}"

    @property
    def model(self) -> str:
        """What was asked for; which model works is ours to say."""
        return self.body.model or DEFAULT_MODEL_ALIAS


@router.post(
    "",
    response_model=None,
    openapi_extra=chat_schema.BODY,
    responses=chat_schema.ANSWERS | schema.errors(408, 409, 429),
    dependencies=[WRITES],
)
async def create_chat_completion(
    context: Context,
    caller: Caller,
    request: Request,
    parsed: Annotated[_ParsedChat, Depends(_parsed_chat)],
    idempotency_key: Annotated[IdempotencyKey | None, Header()] = None,
    x_hermes_session_id: Annotated[_Session | None, Header()] = None,
    x_hermes_session_key: Annotated[_Session | None, Header()] = None,
) -> Response:
    """Answer a conversation. The agent works on the server, with its own tools; the answer comes when it is done, or
    as it is written (``stream``). A client that leaves stops the run, unless it sent an ``Idempotency-Key``."""
    body = parsed.body
    chat_schema.require_possible(body)
    for name, given in (("X-Hermes-Session-Id", x_hermes_session_id), ("X-Hermes-Session-Key", x_hermes_session_key)):
        chat_schema.require_session_name(name, given)
    has_room(context)
    said = conversation_of(body.messages)
    submission = Submission(
        input=said.input,
        history=said.history,
        instructions="\n".join(text for text in said.instructions if text.strip()) or None,
        session_id=x_hermes_session_id,
        model=served_as(context, body.model),
        principal=caller,
        metadata=_metadata(body, x_hermes_session_key),
        output_schema=chat_schema_of(body.response_format),
        idempotency_key=idempotency_key,
        request=parsed.digest,
    )
    if x_hermes_session_id is None:
        created = await context.store(accept_conversation, context, submission, said)
    else:
        created = await context.store(accept, context.client, submission)
    if not created.was_replayed:
        context.spawn(context.tell_broker(announce, context.client, created))
    asked = _AskedChat(body, created, _headers(created, x_hermes_session_key), _leaver(caller, idempotency_key))
    return await (_stream(context, asked) if body.is_streamed else _whole(context, request, asked))


def _metadata(body: chat_schema.ChatRequest, session_key: str | None) -> dict[str, str]:
    return {**(body.metadata or {}), **({"session_key": session_key} if session_key else {})}


def _headers(created: Created, session_key: str | None) -> dict[str, str]:
    headers = {"X-Hermes-Session-Id": created.session_id, "X-Hermes-Run-Id": created.run_id}
    if created.was_replayed:
        headers["Idempotent-Replayed"] = "true"
    if session_key is not None:
        headers["X-Hermes-Session-Key"] = session_key
    return headers


def _leaver(caller: Principal, idempotency_key: str | None) -> str | None:
    return caller.known_as if idempotency_key is None else None


# --- the whole answer ------------------------------------------------------------------------------------------------


async def _whole(context: ApiContext, request: Request, asked: _AskedChat) -> Response:
    try:
        view = await wait_for_end(context, request, asked.created.run_id)
    except (ClientLeft, TooManyReaders, ApiError) as error:
        if asked.stops_for is not None:
            context.spawn(stop_abandoned(context, asked.created.run_id, by=asked.stops_for))
        if isinstance(error, ClientLeft):
            return Response(status_code=499)  # nobody reads it
        raise
    outcome = outcome_of(view)
    headers = {**asked.headers, **outcome.headers}
    if not outcome.is_answer:
        return JSONResponse(incomplete(outcome), status_code=502, headers={**headers, "X-Should-Retry": "false"})
    return JSONResponse(_completion(asked, view, outcome), headers=headers)


def incomplete(outcome: RunOutcome) -> dict[str, Any]:
    """The error of a run that ended without an answer."""
    error = ApiError(502, outcome.error or "The run ended without an answer.", code="agent_incomplete")
    told = {name: outcome.hermes[name] for name in ("completed", "partial", "failed")}
    return {"error": {**error.document["error"], "hermes": told}}


def _completion(asked: _AskedChat, view: RunView, outcome: RunOutcome) -> dict[str, Any]:
    message = {"role": "assistant", "content": outcome.text, "refusal": None}
    choice = {"index": 0, "message": message, "finish_reason": outcome.finish_reason, "logprobs": None}
    document = {
        "id": asked.chat_id,
        "object": "chat.completion",
        "created": int(view.created_at),
        "model": asked.model,
        "choices": [choice],
        "usage": chat_usage(view.usage),
    }
    return document if outcome.is_whole else {**document, "hermes": outcome.hermes}


# --- the stream ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToolNote:
    """What an agent does with a tool."""

    fields: Mapping[str, Any]


class ChatTeller:
    """Makes texts and notes about tools of what happens to a run."""

    def __init__(self, merge: sse.Merge, *, tells_texts: bool = True) -> None:
        """Without ``tells_texts`` only tools are told of: what of a text fits its schema is known at the end."""
        self._merge = merge
        self._tells_texts = tells_texts
        self.has_said = False
        """Some text went out."""
        self._is_new_reply = False

    @property
    def seq(self) -> int:
        return self._merge.seq

    @property
    def is_over(self) -> bool:
        return self._merge.is_over

    @property
    def wants_rows(self) -> bool:
        return self._merge.wants_rows

    def rows(self, rows: Iterable[StoredEvent], usage: Usage) -> Sequence[str | ToolNote]:
        return [*self._told(self._merge.rows(rows, usage))]

    def live(self, entry: LiveEntry, at: float) -> Sequence[str | ToolNote]:
        return [*self._told(self._merge.live(entry, at))]

    def _told(self, events: Iterable[sse.WireEvent]) -> Iterator[str | ToolNote]:
        for event in events:
            match event.name:
                case name if name == MESSAGE_DELTA and not self._tells_texts:
                    continue
                case name if name == MESSAGE_DELTA:
                    yield self._text(event.fields["delta"])
                case RunEventName.MESSAGE_COMPLETED | RunEventName.REPLY_DISCARDED:
                    self._is_new_reply = True
                case RunEventName.TOOL_STARTED | RunEventName.TOOL_COMPLETED if event.fields["tool"][:1] != "_":
                    yield ToolNote(_progress_fields(event))

    def _text(self, delta: str) -> str:
        """Replies are kept apart: one sentence must not run into the next."""
        between = _BETWEEN_REPLIES if self._is_new_reply and self.has_said else ""
        self._is_new_reply, self.has_said = False, True
        return between + delta


def _progress_fields(event: sse.WireEvent) -> dict[str, Any]:
    tool = event.fields["tool"]
    named = {"tool": tool, "toolCallId": event.fields.get("tool_call_id")}
    if event.name == RunEventName.TOOL_COMPLETED:
        return {**named, "status": "completed"}
    return {**named, "emoji": _EMOJIS.get(tool, _ANY_TOOL), "label": event.fields["preview"], "status": "running"}


async def _stream(context: ApiContext, asked: _AskedChat) -> Response:
    run_id = asked.created.run_id
    view = await context.store(context.client.views.run, run_id)
    start = await context.store(stream_start, context.client.views, run_id)
    is_plain = chat_schema_of(asked.body.response_format) is None
    teller = ChatTeller(sse.Merge(sse.Cursor(), start), tells_texts=is_plain)
    return AnswerStream(
        context,
        run_id,
        partial(_frames, context, asked, teller, int(view.created_at)),
        headers=asked.headers,
        stops_for=asked.stops_for,
        is_over=lambda: teller.is_over,
    )


async def _frames(
    context: ApiContext, asked: _AskedChat, teller: ChatTeller, created: int, feed: Feed
) -> AsyncIterator[bytes]:
    chunks = _ChatChunks(asked, created)
    yield chunks.delta({"role": "assistant", "content": ""})
    async with watched(context, asked.created.run_id, teller):
        async for told in follow(context, asked.created.run_id, teller, feed):
            yield b"".join(chunks.told(one) for one in told) if told else sse.KEEPALIVE
    if not teller.is_over:
        yield chunks.frame(going_away().document)
        return
    view = await ended(context, asked.created.run_id)
    outcome = outcome_of(view)
    if outcome.text and not teller.has_said:
        yield chunks.delta({"content": outcome.text})
    for frame in chunks.end(view, outcome):
        yield frame
    yield DONE


class _ChatChunks:
    """Writes one stream."""

    def __init__(self, asked: _AskedChat, created: int) -> None:
        self._counts_apart = asked.body.counts_apart
        self._common = {
            "id": asked.chat_id,
            "object": "chat.completion.chunk",
            "created": created,
            "model": asked.model,
        }

    def told(self, one: str | ToolNote) -> bytes:
        if isinstance(one, str):
            return self.delta({"content": one})
        # Whoever passes over the names of events takes it for a chunk in which nothing is said.
        return self.frame({**self._chunk({}), **one.fields}, event="hermes.tool.progress")

    def delta(self, delta: Mapping[str, Any]) -> bytes:
        return self.frame(self._chunk(delta))

    def end(self, view: RunView, outcome: RunOutcome) -> Iterator[bytes]:
        last = self._chunk({}, finish_reason=outcome.finish_reason)
        usage = chat_usage(view.usage)
        if not self._counts_apart:
            last["usage"] = usage
        if not outcome.is_whole:
            last["hermes"] = outcome.hermes
        yield self.frame(last)
        if self._counts_apart:
            yield self.frame({**self._common, "choices": [], "usage": usage})
        if outcome.finish_reason == "error":
            yield self.frame(incomplete(outcome))

    def _chunk(self, delta: Mapping[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": dict(delta), "finish_reason": finish_reason, "logprobs": None}
        return {**self._common, "choices": [choice], **({"usage": None} if self._counts_apart else {})}

    def frame(self, document: Mapping[str, Any], event: str | None = None) -> bytes:
        line = json.dumps(document, separators=(",", ":"))  # in ASCII: some clients end lines at U+2028, too
        named = f"event: {event}\n" if event else ""
        return f"{named}data: {line}\n\n".encode("ascii")
