"""``/v1/responses``."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.responses import JSONResponse, Response

from hermes_worker.api import schema
from hermes_worker.api.auth import READS, WRITES, Caller
from hermes_worker.api.bodies import read_object, validate_body
from hermes_worker.api.context import ApiContext, Context
from hermes_worker.api.errors import ApiError
from hermes_worker.api.openai import response_schema
from hermes_worker.api.openai.brought_files import bring_files
from hermes_worker.api.openai.chat import IdempotencyKey
from hermes_worker.api.openai.chat_messages import read_results
from hermes_worker.api.openai.client_tools import (
    BroughtResult,
    TakenResults,
    read_tools,
    refuse_unknown,
    take_results,
    tell_taken,
    tools_differ,
)
from hermes_worker.api.openai.conversation_objects import conversation_not_found, read_session_name
from hermes_worker.api.openai.models import choose_model
from hermes_worker.api.openai.response_input import parse_conversation_rows, parse_input
from hermes_worker.api.openai.response_objects import (
    PartName,
    build_input_items,
    build_response,
    list_output_items,
    make_response_id,
)
from hermes_worker.api.openai.response_stream import LAST, ResponseEvent, ResponseTeller
from hermes_worker.api.openai.structured import read_response_schema
from hermes_worker.api.openai.waiting import (
    AnswerStream,
    AnswerTeller,
    ClientLeft,
    load_ended_run,
    require_reader_room,
    wait_for_end,
)
from hermes_worker.api.run_reader import announce_reader, follow, read_stream_start
from hermes_worker.api.stopping import stop, stop_abandoned
from hermes_worker.core.client_tools import HandedReply
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.core.principals import Principal
from hermes_worker.services.client_tools import has_other_tools, list_client_tool_names
from hermes_worker.services.submission import Submission, accept, announce
from hermes_worker.store.kept_conversations import KeptConversations
from hermes_worker.store.runs.responses import BROUGHT_TOOLS, Responses, TurnRecord
from hermes_worker.store.runs.runs import Created, RunNotFound, SessionMoved
from hermes_worker.stream import sse
from hermes_worker.stream.followers import Feed
from hermes_worker.stream.readers import TooManyReaders

router = APIRouter(prefix="/v1/responses", tags=["openai"], responses=schema.declare_errors(503))


# --- the request -----------------------------------------------------------------------------------------------------


_LastSeen = Annotated[int | None, Query(ge=0, le=2**53 - 1, description="With stream: the last number seen.")]
_PassedOver = Query(description="Passed over.")


@dataclass(frozen=True, slots=True)
class _ParsedResponse:
    body: response_schema.ResponseRequest
    digest: str
    """The digest of the request, which an idempotency key stands for."""


async def _parse_response(request: Request) -> _ParsedResponse:
    document = await read_object(request)
    body = validate_body(document, response_schema.ResponseRequest)
    response_schema.require_possible(body)
    kept = {name: value for name, value in document.items() if name != "stream"}
    return _ParsedResponse(body, dump_canonical_json({"responses": kept}))


@dataclass(frozen=True, slots=True, kw_only=True)
class _AskedPart:
    """The part of a run that answers a request."""

    of: PartName
    headers: Mapping[str, str] = field(default_factory=dict)
    stops_for: str | None = None
    """The principal's name to stop the run with when the client leaves; ``None`` where the run goes on."""
    before: HandedReply | None = None
    """The reply behind which the part begins; ``None`` for a run's first part."""


@router.post(
    "",
    response_model=None,
    openapi_extra=response_schema.BODY,
    responses=response_schema.ANSWERS | schema.declare_errors(404, 408, 409, 429),
    dependencies=[WRITES],
)
async def create_response(
    context: Context,
    caller: Caller,
    request: Request,
    parsed: Annotated[_ParsedResponse, Depends(_parse_response)],
    idempotency_key: Annotated[IdempotencyKey | None, Header()] = None,
) -> Response:
    """Let the agent answer. The response is kept unless ``store`` is false, and goes on when its client leaves;
    ``background`` answers at once."""
    body = parsed.body
    if not body.background:
        require_reader_room(context)
    given = await bring_files(context, caller, body.input, "input")
    rows = parse_input(given, await bring_files(context, caller, body.conversation_history, "conversation_history"))
    leaver = caller.display_name if idempotency_key is None and not body.is_stored else None
    if brought := read_results(rows, "input"):
        asked = await _continue_run(context, caller, body, brought, leaver)
    else:
        submission = replace(
            _build_submission(context, caller, body, rows), idempotency_key=idempotency_key, request=parsed.digest
        )
        created = await context.call_store(_accept, context, submission, body)
        if not created.was_replayed:
            context.spawn(context.tell_broker(announce, context.client, created))
        asked = _AskedPart(
            of=PartName(run_id=created.run_id, part=0), headers=_build_headers(created), stops_for=leaver
        )
    if body.is_streamed:
        return await _stream(context, asked)
    return await _answer_whole(context, request, asked, is_waited_for=not body.background)


async def _answer_whole(context: ApiContext, request: Request, asked: _AskedPart, *, is_waited_for: bool) -> Response:
    run_id = asked.of.run_id
    teller = AnswerTeller(asked.before.event_seq if asked.before else 0)
    if is_waited_for:
        try:
            await wait_for_end(context, request, run_id, teller)
        except (ClientLeft, TooManyReaders, ApiError) as error:
            if asked.stops_for is not None:
                context.spawn(stop_abandoned(context, run_id, by=asked.stops_for))
            if isinstance(error, ClientLeft):
                return Response(status_code=499)  # the client has left
            raise
    turn = await context.call_store(Responses(context.client.database).load_turn, run_id)
    document = build_response(turn, asked.of.part, is_handed_over=teller.handover.is_handed_over)
    return JSONResponse(document, headers=dict(asked.headers))


async def _continue_run(
    context: ApiContext,
    caller: Principal,
    body: response_schema.ResponseRequest,
    brought: Sequence[BroughtResult],
    leaver: str | None,
) -> _AskedPart:
    """Continue a run with the results of the client's tools that a request brings."""
    taken = await context.call_store(_take, context, caller, body, brought)
    if taken.hints:
        context.spawn(context.tell_broker(tell_taken, context, taken))
    headers = {"X-Hermes-Session-Id": taken.session_id, "X-Hermes-Run-Id": taken.run_id}
    of = PartName(run_id=taken.run_id, part=taken.part)
    return _AskedPart(of=of, headers=headers, stops_for=leaver, before=taken.start)


def _take(
    context: ApiContext, caller: Principal, body: response_schema.ResponseRequest, brought: Sequence[BroughtResult]
) -> TakenResults:
    if body.previous_response_id is not None:
        earlier = load_response(context, caller.tenant, body.previous_response_id)
        if earlier.of.run_id.removeprefix("run_") not in brought[-1].call_id:
            refuse_unknown(brought[-1])
    forced = read_tools(body.tools, body.tool_choice, nested=False).forced
    return take_results(context, caller, brought, forced)


def _build_submission(
    context: ApiContext, caller: Principal, body: response_schema.ResponseRequest, rows: Sequence[Mapping[str, Any]]
) -> Submission:
    said = parse_conversation_rows(rows)
    brought = read_tools(body.tools, body.tool_choice, nested=False)
    instructions = [text for text in (body.instructions or "", *said.instructions) if text.strip()]
    return Submission(
        input=said.input,
        history=said.history,
        instructions="\n\n".join(instructions) or None,
        session_id=None if body.conversation_id is None else read_session_name(body.conversation_id),
        model=choose_model(context, body.model),
        principal=caller,
        metadata=body.metadata or {},
        output_schema=read_response_schema(body.text),
        echo={
            "dialect": "responses",
            "model": body.model,
            "store": body.is_stored,
            "background": bool(body.background),
            "previous_response_id": body.previous_response_id,
            "conversation": body.conversation_id,
            **({BROUGHT_TOOLS: True} if brought.tools else {}),
        },
        client_tools=brought.tools,
        forced_tools=brought.forced,
    )


def _accept(context: ApiContext, submission: Submission, body: response_schema.ResponseRequest) -> Created:
    """Commit a run. One that follows a response continues its session while that response is the newest there; else it
    begins a session of its own, with what was said up to that response. Raises what
    ``submission.submit`` raises, and ``ApiError``."""
    tools = submission.client_tools
    if body.previous_response_id is None:
        named = submission.session_id
        if named and KeptConversations(context.client.database, submission.principal.tenant).is_deleted(named):
            raise conversation_not_found(str(body.conversation_id))
        if named and tools and has_other_tools(context.client, submission.principal, named, tools):
            raise tools_differ("tools")
        return accept(context.client, submission)
    try:
        earlier = load_response(context, submission.principal.tenant, body.previous_response_id)
    except ApiError:
        message = f"Previous response with id {body.previous_response_id[:80]!r} not found."
        raise ApiError(404, message, code="previous_response_not_found", param="previous_response_id") from None
    if submission.history:
        return accept(context.client, submission)  # a history that is sent counts for more
    view, spec = earlier.turn.view, earlier.turn.spec
    if earlier.turn.handovers.is_waiting:
        message = "The previous response waits for the results of its tools. Bring them first, or cancel it."
        raise ApiError(400, message, code="tool_results_missing", param="previous_response_id")
    is_changed = has_other_tools(context.client, submission.principal, view.session.id, tools)
    if submission.instructions in (None, spec.instructions) and not is_changed:
        try:
            return accept(context.client, replace(submission, session_id=view.session.id, after=view.run_id))
        except SessionMoved:
            pass  # another turn came in between: the history is sent to a session of its own below
    history = [json.loads(row.body) for row in context.client.views.load_transcript(view.run_id)]
    instructions = submission.instructions or spec.instructions
    return accept(context.client, replace(submission, history=history, instructions=instructions))


def _build_headers(created: Created) -> dict[str, str]:
    headers = {"X-Hermes-Session-Id": created.session_id, "X-Hermes-Run-Id": created.run_id}
    return {**headers, "Idempotent-Replayed": "true"} if created.was_replayed else headers


# --- one that there is -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredResponse:
    """A response that exists: a part of a run, and the rows of the run."""

    of: PartName
    turn: TurnRecord


def load_response(context: ApiContext, tenant: str, response: str) -> _StoredResponse:
    """Load a response. One that is unknown, another tenant's, not stored or deleted raises the same ``ApiError``."""
    responses = Responses(context.client.database)
    named = response_schema.read_response_id(response)
    if named is None:
        raise _not_found(response)
    run_id, part = named
    try:
        context.tenants.require_run(tenant, run_id)
        turn = responses.load_turn(run_id)
    except RunNotFound:
        raise _not_found(response) from None
    is_there = part <= turn.handovers.newest and turn.spec.echo.get("store", True)
    if not is_there or responses.is_deleted(run_id):
        raise _not_found(response)
    return _StoredResponse(of=PartName(run_id=run_id, part=part), turn=turn)


def _not_found(response: str) -> ApiError:
    return ApiError(404, f"Response with id {response[:80]!r} not found.", code="response_not_found")


async def _load_own_response(context: Context, caller: Caller, response_id: str) -> _StoredResponse:
    return await context.call_store(load_response, context, caller.tenant, response_id)


_OwnResponse = Annotated[_StoredResponse, Depends(_load_own_response)]


@router.get(
    "/{response_id}",
    response_model=None,
    responses=response_schema.ANSWERS | schema.declare_errors(404, 429),
    dependencies=[READS],
)
async def get_response(
    context: Context,
    kept: _OwnResponse,
    stream: Annotated[bool, Query(description="Follow it.")] = False,
    starting_after: _LastSeen = None,
    include: Annotated[list[str] | None, _PassedOver] = None,
    include_obfuscation: Annotated[bool | None, _PassedOver] = None,
) -> Response:
    """A response, as far as it has come; every run is one. With ``stream``, everything that happened and happens."""
    if stream:
        before = kept.turn.handovers.find_reply_before(kept.of.part)
        seen = -1 if starting_after is None else starting_after
        return await _stream(context, _AskedPart(of=kept.of, before=before), seen=seen)
    return JSONResponse(build_response(kept.turn, kept.of.part))


@router.delete(
    "/{response_id}",
    response_model=response_schema.Deleted,
    responses=schema.declare_errors(404),
    dependencies=[WRITES],
)
async def delete_response(context: Context, caller: Caller, kept: _OwnResponse) -> response_schema.Deleted:
    """Forget that this run is a response; what is at work for it is stopped. The run goes when retention lets it."""
    run_id = kept.of.run_id
    await context.call_store(Responses(context.client.database).delete, run_id)
    if not kept.turn.view.status.is_terminal:
        await stop(context, run_id, by=caller.display_name)
    return response_schema.Deleted(id=make_response_id(run_id, kept.of.part))


@router.post(
    "/{response_id}/cancel",
    response_model=None,
    responses=response_schema.OBJECT | schema.declare_errors(404),
    dependencies=[WRITES],
)
async def cancel_response(context: Context, caller: Caller, kept: _OwnResponse) -> Response:
    """Stop what is at work for a response. Idempotent; one that has ended stays as it ended."""
    if not kept.turn.view.status.is_terminal:
        await stop(context, kept.of.run_id, by=caller.display_name)
    after = await context.call_store(Responses(context.client.database).load_turn, kept.of.run_id)
    return JSONResponse(build_response(after, kept.of.part))


@router.get(
    "/{response_id}/input_items",
    response_model=None,
    responses=response_schema.ITEMS | schema.declare_errors(404),
    dependencies=[READS],
)
async def list_input_items(
    kept: _OwnResponse,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: response_schema.Order = "desc",
    after: Annotated[str | None, Query(max_length=64, description="The id of the last item seen.")] = None,
    include: Annotated[list[str] | None, _PassedOver] = None,
) -> Response:
    """The items that the request of a response brought."""
    items = build_input_items(kept.turn, kept.of.part)
    if order == "desc":
        items.reverse()
    names = [item["id"] for item in items]
    first = names.index(after) + 1 if after in names else 0
    page = items[first : first + limit]
    ids = {"first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None}
    return JSONResponse({"object": "list", "data": page, **ids, "has_more": len(items) > first + limit})


# --- streams ---------------------------------------------------------------------------------------------------------


async def _stream(context: ApiContext, asked: _AskedPart, *, seen: int = -1) -> Response:
    run_id = asked.of.run_id
    start = await context.call_store(read_stream_start, context.client.views, run_id)
    of_client = await context.call_store(list_client_tool_names, context.client, run_id)
    teller = ResponseTeller(asked.of, start, before=asked.before, of_client=of_client, seen=seen)
    return AnswerStream(
        context,
        run_id,
        partial(_stream_frames, context, asked.of, teller),
        headers=dict(asked.headers),
        stops_for=asked.stops_for,
        is_over=lambda: teller.is_over,
    )


async def _stream_frames(context: ApiContext, of: PartName, teller: ResponseTeller, feed: Feed) -> AsyncIterator[bytes]:
    async with announce_reader(context, of.run_id, teller):
        for event in teller.begin():
            yield await _render_frame(context, of, event)
        async for told in follow(context, of.run_id, teller, feed):
            yield b"".join([await _render_frame(context, of, event) for event in told]) if told else sse.KEEPALIVE
    if not teller.is_over:
        yield sse.GOING_AWAY


async def _render_frame(context: ApiContext, of: PartName, event: ResponseEvent) -> bytes:
    fields, kind = dict(event.fields), event.kind
    if event.wants_response or event.item_index is not None:
        await load_ended_run(context, of.run_id)  # waits for a database that is away
        turn = await context.call_store(Responses(context.client.database).load_turn, of.run_id)
        if event.item_index is not None:
            fields["item"] = list_output_items(turn, of.part)[event.item_index]
        else:
            fields["response"] = build_response(turn, of.part, is_handed_over=event.is_handover)
    if kind == LAST:
        kind = _name_last_event(fields["response"]["status"])
    elif event.wants_response:
        fields["response"] = {**fields["response"], **_BEGUN}
    document = {"type": kind, "sequence_number": event.number, **fields}
    line = json.dumps(document, separators=(",", ":"))  # in ASCII: some clients end lines at U+2028, too
    return f"event: {kind}\ndata: {line}\n\n".encode("ascii")


_BEGUN: Mapping[str, Any] = {
    "status": "in_progress",
    "output": [],
    "usage": None,
    "error": None,
    "incomplete_details": None,
    "completed_at": None,
}
"""A response in its first state: the stream begins with it, however late a reader comes."""


def _name_last_event(status: str) -> str:
    return f"response.{status}" if status in ("completed", "failed") else "response.incomplete"
