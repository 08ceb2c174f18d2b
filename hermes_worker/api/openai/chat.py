"""``POST /v1/chat/completions``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Request
from fastapi.responses import JSONResponse, Response
from pydantic import WithJsonSchema

from hermes_worker.api import schema
from hermes_worker.api.auth import WRITES, Caller
from hermes_worker.api.bodies import read_object, validate_body
from hermes_worker.api.context import ApiContext, Context
from hermes_worker.api.errors import ApiError
from hermes_worker.api.messages import Conversation
from hermes_worker.api.openai import chat_schema
from hermes_worker.api.openai.brought_files import bring_files
from hermes_worker.api.openai.chat_messages import parse_conversation, parse_rows, read_results
from hermes_worker.api.openai.client_tools import (
    BroughtResult,
    build_chat_calls,
    read_tools,
    take_results,
    tell_taken,
    tools_differ,
)
from hermes_worker.api.openai.models import choose_model
from hermes_worker.api.openai.outcome import RunOutcome, build_chat_usage, build_handover_outcome, build_outcome
from hermes_worker.api.openai.session_matching import accept_conversation
from hermes_worker.api.openai.structured import read_chat_schema
from hermes_worker.api.openai.waiting import (
    AnswerStream,
    AnswerTeller,
    ClientLeft,
    load_ended_run,
    require_reader_room,
    server_stops,
    wait_for_end,
)
from hermes_worker.api.run_reader import announce_reader, follow, read_stream_start
from hermes_worker.api.stopping import stop_abandoned
from hermes_worker.core.client_tools import HandedReply, HandoverWatch
from hermes_worker.core.messages import NO_USAGE, Usage, dump_canonical_json
from hermes_worker.core.principals import Principal
from hermes_worker.core.run_events import RunEventName, StoredEvent
from hermes_worker.core.run_views import RunView
from hermes_worker.extension import NO_TOOLS
from hermes_worker.services.client_tools import has_other_tools, list_client_tool_names
from hermes_worker.services.submission import DEFAULT_MODEL_ALIAS, Submission, accept, announce
from hermes_worker.store.runs.runs import Created
from hermes_worker.stream import sse
from hermes_worker.stream.followers import Feed
from hermes_worker.stream.live import LiveEntry
from hermes_worker.stream.readers import TooManyReaders
from hermes_worker.stream.wire_events import MESSAGE_DELTA, WireEvent

router = APIRouter(prefix="/v1/chat/completions", tags=["openai"], responses=schema.declare_errors(503))

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
    """The digest of the request, which an idempotency key stands for."""


async def _parse_chat(request: Request) -> _ParsedChat:
    document = await read_object(request)
    body = validate_body(document, chat_schema.ChatRequest)
    kept = {name: value for name, value in document.items() if name != "stream"}
    return _ParsedChat(body, dump_canonical_json({"chat.completions": kept}))


IdempotencyKey = Annotated[str, WithJsonSchema({"type": "string", "pattern": r"^(?=.*[!-~])[\x20-\x7e]{1,256}$"})]
_Session = Annotated[str, WithJsonSchema({"type": "string", "pattern": chat_schema.SESSION})]


@dataclass(frozen=True, slots=True)
class _AskedChat:
    """A request, and the run that was made for it or that continues with the results that it brings."""

    body: chat_schema.ChatRequest
    run_id: str
    headers: dict[str, str]
    stops_for: str | None
    """The principal's name to stop the run with when the client leaves; ``None`` where the request may come again and
    ask for this run."""
    start: HandedReply | None = None
    """The reply behind which its part of the run begins; ``None`` for a run's first part."""

    @property
    def chat_id(self) -> str:
        return f"chatcmpl-{self.run_id.removeprefix('run_')}"

    @property
    def model(self) -> str:
        """The model that the request names; which model works is ours to say."""
        return self.body.model or DEFAULT_MODEL_ALIAS


@router.post(
    "",
    response_model=None,
    openapi_extra=chat_schema.BODY,
    responses=chat_schema.ANSWERS | schema.declare_errors(408, 409, 429),
    dependencies=[WRITES],
)
async def create_chat_completion(
    context: Context,
    caller: Caller,
    request: Request,
    parsed: Annotated[_ParsedChat, Depends(_parse_chat)],
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
    require_reader_room(context)
    rows = parse_rows(await bring_files(context, caller, body.messages, "messages"))
    leaver = _name_leaver(caller, idempotency_key)
    if brought := read_results(rows):
        asked = await _continue_run(context, caller, body, brought, leaver)
    else:
        said = parse_conversation(rows)
        submission = _build_submission(context, caller, body, said, x_hermes_session_key)
        submission = replace(
            submission, session_id=x_hermes_session_id, idempotency_key=idempotency_key, request=parsed.digest
        )
        if body.choices > 1:
            return await _answer_whole(context, request, *await _begin_choices(context, body, submission, leaver))
        created = await context.call_store(_accept, context, submission, said)
        if not created.was_replayed:
            context.spawn(context.tell_broker(announce, context.client, created))
        asked = _AskedChat(body, created.run_id, _build_headers(created, x_hermes_session_key), leaver)
    return await (_stream(context, asked) if body.is_streamed else _answer_whole(context, request, asked))


def _build_submission(
    context: ApiContext, caller: Principal, body: chat_schema.ChatRequest, said: Conversation, session_key: str | None
) -> Submission:
    brought = read_tools(body.tools, body.tool_choice, nested=True)
    return Submission(
        input=said.input,
        history=said.history,
        instructions="\n".join(text for text in said.instructions if text.strip()) or None,
        model=choose_model(context, body.model),
        principal=caller,
        metadata=_build_metadata(body, session_key),
        output_schema=read_chat_schema(body.response_format),
        client_tools=brought.tools,
        forced_tools=brought.forced,
    )


def _accept(context: ApiContext, submission: Submission, said: Conversation) -> Created:
    """Commit a run of the session that the request names, or of the one to which the conversation belongs."""
    if submission.session_id is None:
        return accept_conversation(context, submission, said)
    tools = submission.client_tools
    if tools and has_other_tools(context.client, submission.principal, submission.session_id, tools):
        raise tools_differ("tools")
    return accept(context.client, submission)


async def _begin_choices(
    context: ApiContext, body: chat_schema.ChatRequest, submission: Submission, leaver: str | None
) -> list[_AskedChat]:
    """Commit a run without tools for each choice, in a session of its own. Raises what
    ``submission.submit`` raises, after stopping the runs that were begun without a key to ask for them again."""
    chat_schema.require_choosable(body, submission)
    begun: list[_AskedChat] = []
    for number in range(body.choices):
        one = replace(submission, toolsets=(NO_TOOLS,), idempotency_key=_derive_choice_key(submission, number))
        try:
            created = await context.call_store(accept, context.client, one)
        except Exception:
            _stop_all(context, begun)
            raise
        if not created.was_replayed:
            context.spawn(context.tell_broker(announce, context.client, created))
        begun.append(_AskedChat(body, created.run_id, {"X-Hermes-Run-Id": created.run_id}, leaver))
    begun[0].headers["X-Hermes-Run-Id"] = ", ".join(one.run_id for one in begun)
    return begun


def _derive_choice_key(submission: Submission, number: int) -> str | None:
    """Derive the idempotency key of a choice from that of the request, which is the first one's."""
    key = submission.idempotency_key
    return f"choice-{number}-{hashlib.sha256(key.encode()).hexdigest()}" if key and number else key


def _stop_all(context: ApiContext, asked: Iterable[_AskedChat]) -> None:
    for one in asked:
        if one.stops_for is not None:
            context.spawn(stop_abandoned(context, one.run_id, by=one.stops_for))


async def _continue_run(
    context: ApiContext,
    caller: Principal,
    body: chat_schema.ChatRequest,
    brought: Sequence[BroughtResult],
    leaver: str | None,
) -> _AskedChat:
    """Continue a run with the results of the client's tools that a request brings."""
    forced = read_tools(body.tools, body.tool_choice, nested=True).forced
    taken = await context.call_store(take_results, context, caller, brought, forced)
    if taken.hints:
        context.spawn(context.tell_broker(tell_taken, context, taken))
    headers = {"X-Hermes-Session-Id": taken.session_id, "X-Hermes-Run-Id": taken.run_id}
    return _AskedChat(body, taken.run_id, headers, leaver, taken.start)


def _build_metadata(body: chat_schema.ChatRequest, session_key: str | None) -> dict[str, str]:
    return {**(body.metadata or {}), **({"session_key": session_key} if session_key else {})}


def _build_headers(created: Created, session_key: str | None) -> dict[str, str]:
    headers = {"X-Hermes-Session-Id": created.session_id, "X-Hermes-Run-Id": created.run_id}
    if created.was_replayed:
        headers["Idempotent-Replayed"] = "true"
    if session_key is not None:
        headers["X-Hermes-Session-Key"] = session_key
    return headers


def _name_leaver(caller: Principal, idempotency_key: str | None) -> str | None:
    return caller.display_name if idempotency_key is None else None


# --- the whole answer ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _ToldChoice:
    """A run that has ended, or was handed over to its client."""

    view: RunView
    outcome: RunOutcome
    calls: Sequence[Mapping[str, Any]]


async def _answer_whole(context: ApiContext, request: Request, *asked: _AskedChat) -> Response:
    """Wait for the runs, and answer with a choice for each."""
    try:
        told = [await _wait(context, request, one) for one in asked]
    except (ClientLeft, TooManyReaders, ApiError) as error:
        _stop_all(context, asked)
        if isinstance(error, ClientLeft):
            return Response(status_code=499)  # the client has left
        raise
    worst = next((one.outcome for one in told if not one.outcome.is_whole), told[0].outcome)
    headers = {**asked[0].headers, **worst.headers}
    if not any(one.outcome.is_answer for one in told):
        return JSONResponse(describe_incomplete(worst), status_code=502, headers={**headers, "X-Should-Retry": "false"})
    return JSONResponse(_build_completion(asked[0], told, worst), headers=headers)


async def _wait(context: ApiContext, request: Request, asked: _AskedChat) -> _ToldChoice:
    teller = AnswerTeller(asked.start.event_seq if asked.start else 0)
    view = await wait_for_end(context, request, asked.run_id, teller)
    return _ToldChoice(
        view=view, outcome=_find_outcome(view, teller.handover), calls=_list_calls(asked, teller.handover)
    )


def _find_outcome(view: RunView, handover: HandoverWatch) -> RunOutcome:
    return build_handover_outcome(handover.text) if handover.is_handed_over else build_outcome(view)


def _report_usage(usage: Usage, outcome: RunOutcome) -> Mapping[str, Any] | None:
    """The usage of the whole run, given once at its end: a client that adds up the parts gets the right sum."""
    return None if outcome.finish_reason == "tool_calls" else build_chat_usage(usage)


def _list_calls(asked: _AskedChat, handover: HandoverWatch) -> list[dict[str, Any]]:
    """The calls that the client is to do."""
    return build_chat_calls(asked.run_id, handover.iteration, handover.handed_calls) if handover.is_handed_over else []


def describe_incomplete(outcome: RunOutcome) -> dict[str, Any]:
    """Describe the error of a run that ended without an answer."""
    error = ApiError(502, outcome.error or "The run ended without an answer.", code="agent_incomplete")
    told = {name: outcome.hermes[name] for name in ("completed", "partial", "failed")}
    return {"error": {**error.document["error"], "hermes": told}}


def _build_completion(asked: _AskedChat, told: Sequence[_ToldChoice], worst: RunOutcome) -> dict[str, Any]:
    document = {
        "id": asked.chat_id,
        "object": "chat.completion",
        "created": int(told[0].view.created_at),
        "model": asked.model,
        "choices": [_build_choice(index, one) for index, one in enumerate(told)],
        "usage": _report_usage(sum((one.view.usage for one in told), NO_USAGE), told[0].outcome),
    }
    return document if worst.is_whole else {**document, "hermes": worst.hermes}


def _build_choice(index: int, told: _ToldChoice) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": told.outcome.text, "refusal": None}
    if told.calls:
        message |= {"content": told.outcome.text or None, "tool_calls": told.calls}
    return {"index": index, "message": message, "finish_reason": told.outcome.finish_reason, "logprobs": None}


# --- the stream ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToolNote:
    """A tool that the agent started or finished."""

    fields: Mapping[str, Any]


class ChatTeller(sse.MergedView):
    """Makes texts and notes about tools from the events of a run."""

    def __init__(self, merge: sse.Merge, *, tells_texts: bool = True, of_client: Collection[str] = ()) -> None:
        """Without ``tells_texts`` only tool notes are made: whether a text fits its schema is known at the end.
        ``of_client`` names tools that the client learns of in another way."""
        super().__init__(merge)
        self.handover = HandoverWatch()
        self._tells_texts = tells_texts
        self._of_client = of_client
        self.has_said = False
        """Whether some text went out."""
        self._is_new_reply = False

    @property
    def is_over(self) -> bool:
        return self.handover.is_handed_over or self.merge.is_over

    def translate_rows(self, rows: Iterable[StoredEvent], usage: Usage) -> Sequence[str | ToolNote]:
        told: list[str | ToolNote] = []
        for row in rows:
            if not self.is_over:
                told += self._translate(self.merge.translate_rows([row], usage))
                self.handover.add_event(row)
        return told

    def translate_live(self, entry: LiveEntry, at: float) -> Sequence[str | ToolNote]:
        return () if self.is_over else [*self._translate(self.merge.translate_live(entry, at))]

    def _translate(self, events: Iterable[WireEvent]) -> Iterator[str | ToolNote]:
        for event in events:
            match event.name:
                case name if name == MESSAGE_DELTA and not self._tells_texts:
                    continue
                case name if name == MESSAGE_DELTA:
                    yield self._separate_text(event.fields["delta"])
                case RunEventName.MESSAGE_COMPLETED | RunEventName.REPLY_DISCARDED:
                    self._is_new_reply = True
                case RunEventName.TOOL_STARTED | RunEventName.TOOL_COMPLETED if self._is_shown(event.fields["tool"]):
                    yield ToolNote(_build_progress_fields(event))

    def _is_shown(self, tool: str) -> bool:
        return tool[:1] != "_" and tool not in self._of_client

    def _separate_text(self, delta: str) -> str:
        """Keep replies apart: one sentence must not run into the next."""
        between = _BETWEEN_REPLIES if self._is_new_reply and self.has_said else ""
        self._is_new_reply, self.has_said = False, True
        return between + delta


def _build_progress_fields(event: WireEvent) -> dict[str, Any]:
    tool = event.fields["tool"]
    named = {"tool": tool, "toolCallId": event.fields.get("tool_call_id")}
    if event.name == RunEventName.TOOL_COMPLETED:
        return {**named, "status": "completed"}
    return {**named, "emoji": _EMOJIS.get(tool, _ANY_TOOL), "label": event.fields["preview"], "status": "running"}


async def _stream(context: ApiContext, asked: _AskedChat) -> Response:
    run_id = asked.run_id
    view = await context.call_store(context.client.views.load_run, run_id)
    start = await context.call_store(read_stream_start, context.client.views, run_id)
    is_plain = read_chat_schema(asked.body.response_format) is None
    of_client = await context.call_store(list_client_tool_names, context.client, run_id)
    told = sse.Cursor(seq=asked.start.event_seq, iteration=asked.start.iteration) if asked.start else sse.Cursor()
    teller = ChatTeller(sse.Merge(told, start), tells_texts=is_plain, of_client=of_client)
    return AnswerStream(
        context,
        run_id,
        partial(_stream_frames, context, asked, teller, int(view.created_at)),
        headers=asked.headers,
        stops_for=asked.stops_for,
        is_over=lambda: teller.is_over,
    )


async def _stream_frames(
    context: ApiContext, asked: _AskedChat, teller: ChatTeller, created: int, feed: Feed
) -> AsyncIterator[bytes]:
    chunks = _ChatChunks(asked, created)
    yield chunks.frame_delta({"role": "assistant", "content": ""})
    async with announce_reader(context, asked.run_id, teller):
        async for told in follow(context, asked.run_id, teller, feed):
            yield b"".join(chunks.write(one) for one in told) if told else sse.KEEPALIVE
    if not teller.is_over:
        yield chunks.frame(server_stops().document)
        return
    view = await load_ended_run(context, asked.run_id)
    outcome = _find_outcome(view, teller.handover)
    if outcome.text and not teller.has_said:
        yield chunks.frame_delta({"content": outcome.text})
    if calls := _list_calls(asked, teller.handover):
        yield chunks.frame_delta({"tool_calls": [{"index": number, **call} for number, call in enumerate(calls)]})
    for frame in chunks.end(view, outcome):
        yield frame
    yield DONE


class _ChatChunks:
    """Writes the chunks of one stream."""

    def __init__(self, asked: _AskedChat, created: int) -> None:
        self._counts_apart = asked.body.counts_apart
        self._common = {
            "id": asked.chat_id,
            "object": "chat.completion.chunk",
            "created": created,
            "model": asked.model,
        }

    def write(self, one: str | ToolNote) -> bytes:
        if isinstance(one, str):
            return self.frame_delta({"content": one})
        # A client that ignores the names of events takes it for a chunk in which nothing is said.
        return self.frame({**self._build_chunk({}), **one.fields}, event="hermes.tool.progress")

    def frame_delta(self, delta: Mapping[str, Any]) -> bytes:
        return self.frame(self._build_chunk(delta))

    def end(self, view: RunView, outcome: RunOutcome) -> Iterator[bytes]:
        last = self._build_chunk({}, finish_reason=outcome.finish_reason)
        usage = _report_usage(view.usage, outcome)
        if not self._counts_apart:
            last["usage"] = usage
        if not outcome.is_whole:
            last["hermes"] = outcome.hermes
        yield self.frame(last)
        if self._counts_apart and usage is not None:
            yield self.frame({**self._common, "choices": [], "usage": usage})
        if outcome.finish_reason == "error":
            yield self.frame(describe_incomplete(outcome))

    def _build_chunk(self, delta: Mapping[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": dict(delta), "finish_reason": finish_reason, "logprobs": None}
        return {**self._common, "choices": [choice], **({"usage": None} if self._counts_apart else {})}

    def frame(self, document: Mapping[str, Any], event: str | None = None) -> bytes:
        line = json.dumps(document, separators=(",", ":"))  # in ASCII: some clients end lines at U+2028, too
        named = f"event: {event}\n" if event else ""
        return f"{named}data: {line}\n\n".encode("ascii")
