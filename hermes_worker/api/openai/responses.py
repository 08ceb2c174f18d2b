"""``/v1/responses`` (docs/behaviour.md, "Responses")."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import ValidationError

from hermes_worker.api import schema
from hermes_worker.api.auth import READS, WRITES, Caller
from hermes_worker.api.bodies import read_json
from hermes_worker.api.context import ApiContext, Context
from hermes_worker.api.errors import ApiError, invalid, wrong_field
from hermes_worker.api.following import follow, stream_start, watched
from hermes_worker.api.openai import response_schema
from hermes_worker.api.openai.chat import IdempotencyKey
from hermes_worker.api.openai.models import served_as
from hermes_worker.api.openai.response_input import spoken
from hermes_worker.api.openai.response_objects import input_items, output_items, response_id, response_object
from hermes_worker.api.openai.response_stream import LAST, ResponseEvent, ResponseTeller
from hermes_worker.api.openai.structured import response_schema_of
from hermes_worker.api.openai.waiting import AnswerStream, ClientLeft, ended, has_room, wait_for_end
from hermes_worker.api.stopping import stop, stop_abandoned
from hermes_worker.core.messages import canonical_json
from hermes_worker.core.principals import Principal
from hermes_worker.services.submission import Submission, accept, announce
from hermes_worker.store.runs.responses import Responses, TurnRecord
from hermes_worker.store.runs.runs import Created, RunNotFound, SessionMoved
from hermes_worker.stream import sse
from hermes_worker.stream.followers import Feed, TooManyReaders

router = APIRouter(prefix="/v1/responses", tags=["openai"], responses=schema.errors(503))


# --- the request -----------------------------------------------------------------------------------------------------


_LastSeen = Annotated[int | None, Query(ge=0, le=2**53 - 1, description="With stream: the last number seen.")]
_PassedOver = Query(description="Passed over.")


@dataclass(frozen=True, slots=True)
class _ParsedResponse:
    body: response_schema.ResponseRequest
    digest: str
    """What an idempotency key stands for."""


async def _parsed_response(request: Request) -> _ParsedResponse:
    document = await read_json(request)
    if not isinstance(document, dict):
        raise invalid("body", "The request body must be a JSON object.", "invalid_type")
    try:
        body = response_schema.ResponseRequest.model_validate(document)
    except ValidationError as error:
        raise wrong_field(error) from None
    response_schema.require_possible(body)
    kept = {name: value for name, value in document.items() if name != "stream"}
    return _ParsedResponse(body, canonical_json({"responses": kept}))


@router.post(
    "",
    response_model=None,
    openapi_extra=response_schema.BODY,
    responses=response_schema.ANSWERS | schema.errors(404, 408, 409, 429),
    dependencies=[WRITES],
)
async def create_response(
    context: Context,
    caller: Caller,
    request: Request,
    parsed: Annotated[_ParsedResponse, Depends(_parsed_response)],
    idempotency_key: Annotated[IdempotencyKey | None, Header()] = None,
) -> Response:
    """Let the agent answer. The response is kept unless ``store`` is false, and goes on when its client leaves;
    ``background`` answers at once."""
    body = parsed.body
    if not body.background:
        has_room(context)
    submission = _submission(context, caller, body, parsed.digest, idempotency_key)
    created = await context.store(_accept, context, submission, body)
    if not created.was_replayed:
        context.spawn(context.tell_broker(announce, context.client, created))
    headers = _headers(created)
    leaver = caller.known_as if idempotency_key is None and not body.is_stored else None
    if body.is_streamed:
        return await _stream(context, created.run_id, headers=headers, leaver=leaver)
    if not body.background:
        try:
            await wait_for_end(context, request, created.run_id)
        except (ClientLeft, TooManyReaders, ApiError) as error:
            if leaver is not None:
                context.spawn(stop_abandoned(context, created.run_id, by=leaver))
            if isinstance(error, ClientLeft):
                return Response(status_code=499)  # nobody reads it
            raise
    turn = await context.store(Responses(context.client.database).turn, created.run_id)
    return JSONResponse(response_object(turn), headers=headers)


def _submission(
    context: ApiContext,
    caller: Principal,
    body: response_schema.ResponseRequest,
    digest: str,
    idempotency_key: str | None,
) -> Submission:
    said = spoken(body.input, body.conversation_history)
    instructions = [text for text in (body.instructions or "", *said.instructions) if text.strip()]
    return Submission(
        input=said.input,
        history=said.history,
        instructions="\n\n".join(instructions) or None,
        session_id=_session_of(body.conversation_id),
        model=served_as(context, body.model),
        principal=caller,
        metadata=body.metadata or {},
        output_schema=response_schema_of(body.text),
        echo={
            "dialect": "responses",
            "model": body.model,
            "store": body.is_stored,
            "background": bool(body.background),
            "previous_response_id": body.previous_response_id,
            "conversation": body.conversation_id,
        },
        idempotency_key=idempotency_key,
        request=digest,
    )


def _session_of(conversation: str | None) -> str | None:
    """A session by its id, or by a name."""
    if conversation is None:
        return None
    return (
        f"run_{conversation.removeprefix('conv_')}"
        if response_schema.is_conversation_id(conversation)
        else conversation
    )


def _accept(context: ApiContext, submission: Submission, body: response_schema.ResponseRequest) -> Created:
    """Commit a run. One that follows a response goes on with its session while that response is the newest there; else
    it begins a session of its own, with what was said up to that response. Raises as ``accept``, and ``ApiError``."""
    if body.previous_response_id is None:
        return accept(context.client, submission)
    try:
        earlier = _kept(context, submission.principal.tenant, body.previous_response_id)
    except ApiError:
        message = f"Previous response with id {body.previous_response_id[:80]!r} not found."
        raise ApiError(404, message, code="previous_response_not_found", param="previous_response_id") from None
    if submission.history:
        return accept(context.client, submission)  # a history that is sent counts for more
    view = earlier.view
    if submission.instructions in (None, earlier.spec.instructions):
        try:
            return accept(context.client, replace(submission, session_id=view.session.id, after=view.run_id))
        except SessionMoved:
            pass
    history = [json.loads(row.body) for row in context.client.views.transcript(view.run_id)]
    instructions = submission.instructions or earlier.spec.instructions
    return accept(context.client, replace(submission, history=history, instructions=instructions))


def _headers(created: Created) -> dict[str, str]:
    headers = {"X-Hermes-Session-Id": created.session_id, "X-Hermes-Run-Id": created.run_id}
    return {**headers, "Idempotent-Replayed": "true"} if created.was_replayed else headers


# --- one that there is -----------------------------------------------------------------------------------------------


def _kept(context: ApiContext, tenant: str, response: str) -> TurnRecord:
    """Raises ``ApiError`` for what is not there, not theirs, not stored or deleted: in the same words."""
    responses = Responses(context.client.database)
    run_id = f"run_{response.removeprefix('resp_')}"
    try:
        if not response_schema.is_response_id(response):
            raise RunNotFound(response)
        context.tenants.require_run(tenant, run_id)
        turn = responses.turn(run_id)
    except RunNotFound:
        raise _not_found(response) from None
    if not turn.spec.echo.get("store", True) or responses.is_deleted(run_id):
        raise _not_found(response)
    return turn


def _not_found(response: str) -> ApiError:
    return ApiError(404, f"Response with id {response[:80]!r} not found.", code="response_not_found")


async def _own_response(context: Context, caller: Caller, response_id: str) -> TurnRecord:
    return await context.store(_kept, context, caller.tenant, response_id)


_OwnResponse = Annotated[TurnRecord, Depends(_own_response)]


@router.get(
    "/{response_id}",
    response_model=None,
    responses=response_schema.ANSWERS | schema.errors(404, 429),
    dependencies=[READS],
)
async def get_response(
    context: Context,
    turn: _OwnResponse,
    stream: Annotated[bool, Query(description="Follow it.")] = False,
    starting_after: _LastSeen = None,
    include: Annotated[list[str] | None, _PassedOver] = None,
    include_obfuscation: Annotated[bool | None, _PassedOver] = None,
) -> Response:
    """A response, as far as it has come; any run is one. With ``stream``, everything that happened and happens."""
    if stream:
        seen = -1 if starting_after is None else starting_after
        return await _stream(context, turn.view.run_id, seen=seen)
    return JSONResponse(response_object(turn))


@router.delete(
    "/{response_id}", response_model=response_schema.Deleted, responses=schema.errors(404), dependencies=[WRITES]
)
async def delete_response(context: Context, caller: Caller, turn: _OwnResponse) -> response_schema.Deleted:
    """Forget that this run is a response; what is at work for it is stopped. The run goes when retention lets it."""
    run_id = turn.view.run_id
    await context.store(Responses(context.client.database).delete, run_id)
    if not turn.view.status.is_terminal:
        await stop(context, run_id, by=caller.known_as)
    return response_schema.Deleted(id=response_id(run_id))


@router.post(
    "/{response_id}/cancel",
    response_model=None,
    responses=response_schema.OBJECT | schema.errors(404),
    dependencies=[WRITES],
)
async def cancel_response(context: Context, caller: Caller, turn: _OwnResponse) -> Response:
    """Stop what is at work for a response. Idempotent; one that has ended stays as it ended."""
    if not turn.view.status.is_terminal:
        await stop(context, turn.view.run_id, by=caller.known_as)
    after = await context.store(Responses(context.client.database).turn, turn.view.run_id)
    return JSONResponse(response_object(after))


@router.get(
    "/{response_id}/input_items",
    response_model=None,
    responses=response_schema.ITEMS | schema.errors(404),
    dependencies=[READS],
)
async def list_input_items(
    turn: _OwnResponse,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: response_schema.Order = "desc",
    after: Annotated[str | None, Query(max_length=64, description="The id of the last item seen.")] = None,
    include: Annotated[list[str] | None, _PassedOver] = None,
) -> Response:
    """What the request of a response brought."""
    items = input_items(turn)
    if order == "desc":
        items.reverse()
    names = [item["id"] for item in items]
    first = names.index(after) + 1 if after in names else 0
    page = items[first : first + limit]
    ids = {"first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None}
    return JSONResponse({"object": "list", "data": page, **ids, "has_more": len(items) > first + limit})


# --- streams ---------------------------------------------------------------------------------------------------------


async def _stream(
    context: ApiContext,
    run_id: str,
    *,
    seen: int = -1,
    headers: Mapping[str, str] | None = None,
    leaver: str | None = None,
) -> Response:
    start = await context.store(stream_start, context.client.views, run_id)
    teller = ResponseTeller(run_id, start, seen=seen)
    return AnswerStream(
        context,
        run_id,
        partial(_frames, context, run_id, teller),
        headers=dict(headers or {}),
        stops_for=leaver,
        is_over=lambda: teller.is_over,
    )


async def _frames(context: ApiContext, run_id: str, teller: ResponseTeller, feed: Feed) -> AsyncIterator[bytes]:
    async with watched(context, run_id, teller):
        for event in teller.begin():
            yield await _frame(context, run_id, event)
        async for told in follow(context, run_id, teller, feed):
            yield b"".join([await _frame(context, run_id, event) for event in told]) if told else sse.KEEPALIVE
    if not teller.is_over:
        yield sse.GOING_AWAY


async def _frame(context: ApiContext, run_id: str, event: ResponseEvent) -> bytes:
    fields, kind = dict(event.fields), event.kind
    if event.wants_response or event.item_index is not None:
        await ended(context, run_id)  # waits for a database that is away
        turn = await context.store(Responses(context.client.database).turn, run_id)
        if event.item_index is not None:
            fields["item"] = output_items(run_id, turn.said)[event.item_index]
        else:
            fields["response"] = response_object(turn)
    if kind == LAST:
        kind = _last_kind(fields["response"]["status"])
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
"""However late somebody comes, the stream begins as it began."""


def _last_kind(status: str) -> str:
    return f"response.{status}" if status in ("completed", "failed") else "response.incomplete"
