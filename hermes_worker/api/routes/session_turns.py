"""Take a turn in a session: wait for its end, or follow it.

A client that leaves stops nothing: the turn continues, and the same request with the same ``Idempotency-Key`` finds it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Request, Response
from pydantic import WithJsonSchema

from hermes_worker.api import schema
from hermes_worker.api.auth import WRITES, Caller
from hermes_worker.api.context import ApiContext, Context
from hermes_worker.api.errors import ApiError, invalid
from hermes_worker.api.messages import parse_conversation
from hermes_worker.api.openai.waiting import ClientLeft, require_reader_room, server_stops, wait_for_end
from hermes_worker.api.owners import OwnSession
from hermes_worker.api.routes.events import EventStream
from hermes_worker.api.routes.sessions import make_session_reader
from hermes_worker.api.run_reader import announce_reader, follow, read_stream_start
from hermes_worker.api.schema import KEY_FORM
from hermes_worker.api.wire.session_objects import AssistantMessage, ChatCompletion, ChatTurn, CompressSession
from hermes_worker.api.wire.turn_stream import (
    TURN_CURSOR_FORM,
    TurnCursor,
    TurnEnd,
    TurnFacts,
    TurnTeller,
    build_item_schema,
)
from hermes_worker.core.principals import Principal
from hermes_worker.safety.redaction import redact
from hermes_worker.schemas.sessions import CompressionAccepted
from hermes_worker.services.compression import compress_session
from hermes_worker.services.submission import Submission, accept, announce
from hermes_worker.store.runs.runs import Created
from hermes_worker.store.sessions import Sessions, SessionView, list_turn_messages
from hermes_worker.stream import sse
from hermes_worker.stream.followers import Feed
from hermes_worker.stream.sse import build_usage
from hermes_worker.wiring import Client

router = APIRouter(prefix="/api/sessions", tags=["sessions"], responses=schema.declare_errors(404, 408, 409, 429, 503))
_Key = Annotated[str, WithJsonSchema({"type": "string", "pattern": KEY_FORM})]
_EventId = Annotated[str, WithJsonSchema({"type": "string", "pattern": f"^$|{TURN_CURSOR_FORM}"})]
_WHERE = "input[0].content"
_TOLD: schema.Answers = {
    200: {
        "content": {"text/event-stream": {"itemSchema": build_item_schema()}},
        "description": "The turn, as it is taken.",
    }
}


_Body = Annotated[ChatTurn, Depends(make_session_reader(ChatTurn))]


@router.post(
    "/{session_id}/chat",
    response_model=ChatCompletion,
    openapi_extra=schema.declare_body(ChatTurn, is_required=True),
    responses=schema.declare_errors(502),
    dependencies=[WRITES],
)
async def chat(
    context: Context,
    caller: Caller,
    session_id: OwnSession,
    body: _Body,
    request: Request,
    response: Response,
    idempotency_key: Annotated[_Key | None, Header()] = None,
) -> ChatCompletion:
    """Say something in a session, and wait for the answer. A turn that is stopped answers with what there is."""
    session, created = await _begin_turn(context, caller, session_id, body, idempotency_key)
    _tell_who(response, session.label.choose_reference(caller.source), created)
    if not created.was_replayed:
        # Not after the answer: this one waits for what the announcement starts.
        await context.tell_broker(announce, context.client, created)
    try:
        view = await wait_for_end(context, request, created.run_id)
    except ClientLeft:
        raise server_stops() from None  # the client has left
    if view.is_failed:
        message = redact(view.error) if view.error else f"The run ended without an answer: {view.exit_text}."
        raise ApiError(502, message, code="agent_incomplete", headers={"X-Hermes-Run-Id": created.run_id})
    return ChatCompletion(
        session_id=session.label.choose_reference(caller.source),
        run_id=created.run_id,
        message=AssistantMessage(content=view.output or ""),
        usage=build_usage(view.usage),
        completed=view.is_completed,
        partial=view.is_partial,
        interrupted=view.is_interrupted,
    )


@router.post(
    "/{session_id}/chat/stream",
    response_class=EventStream,
    openapi_extra=schema.declare_body(ChatTurn, is_required=True),
    responses=_TOLD,
    dependencies=[WRITES],
)
async def chat_stream(
    context: Context,
    caller: Caller,
    session_id: OwnSession,
    body: _Body,
    idempotency_key: Annotated[_Key | None, Header()] = None,
    last_event_id: Annotated[_EventId | None, Header()] = None,
) -> EventStream:
    """Say something in a session, and follow the turn. To go on after a broken connection, send the same again with
    the same ``Idempotency-Key``, and the ``id`` of the last event as ``Last-Event-ID``."""
    told = _read_cursor(last_event_id, idempotency_key)
    session, created = await _begin_turn(context, caller, session_id, body, idempotency_key)
    if not created.was_replayed:
        await context.tell_broker(announce, context.client, created)
    start = await context.call_store(read_stream_start, context.client.views, created.run_id)
    view = await context.call_store(context.client.views.load_run, created.run_id)
    turn = TurnFacts(
        session_id=session.label.choose_reference(caller.source),
        run_id=created.run_id,
        user_content=_parse_message(body),
        began_at=view.created_at,
    )
    stream = EventStream(context, created.run_id, partial(_stream_frames, context, turn, TurnTeller(turn, told, start)))
    _tell_who(stream, session.label.choose_reference(caller.source), created)
    return stream


@router.post(
    "/{session_id}/compress",
    status_code=202,
    response_model=CompressionAccepted,
    openapi_extra=schema.declare_body(CompressSession),
    dependencies=[WRITES],
)
async def compress(
    context: Context,
    caller: Caller,
    session_id: OwnSession,
    body: Annotated[CompressSession, Depends(make_session_reader(CompressSession))],
    response: Response,
    idempotency_key: Annotated[_Key | None, Header()] = None,
) -> CompressionAccepted:
    """Summarise the older part of a session now, whatever its length. The transcript stays as it is: from the next
    turn on a model is shown the summary in place of those messages. It begins when the session is free."""
    session, created = await context.call_store(
        partial(compress_session, source=caller.source, key=idempotency_key),
        context.client,
        session_id,
        body.focus,
        caller,
    )
    _tell_who(response, session.label.choose_reference(caller.source), created)
    if not created.was_replayed:
        await context.tell_broker(announce, context.client, created)
    return CompressionAccepted(run_id=created.run_id, session_id=session.label.choose_reference(caller.source))


def _read_cursor(last_event_id: str | None, key: str | None) -> TurnCursor:
    if not last_event_id:
        return TurnCursor()
    if key is None:
        message = "Last-Event-ID needs the Idempotency-Key of the request that began the turn."
        raise invalid("Last-Event-ID", message, "missing_required_parameter")
    try:
        return TurnCursor.parse(last_event_id)
    except ValueError:
        raise invalid("Last-Event-ID", "Invalid 'Last-Event-ID': it is not the id of an event.") from None


def _tell_who(response: Response, session_id: str, created: Created) -> None:
    response.headers["X-Hermes-Session-Id"] = session_id
    response.headers["X-Hermes-Run-Id"] = created.run_id
    if created.was_replayed:
        response.headers["Idempotent-Replayed"] = "true"


async def _begin_turn(
    context: ApiContext, caller: Principal, session_id: str, body: ChatTurn, key: str | None
) -> tuple[SessionView, Created]:
    """Accept a run in the session, and load the session. Raises ``ApiError``, ``TooManyReaders``, and as ``accept``."""
    require_reader_room(context)
    said = _prepend_instructions(_parse_message(body), body.system_message or body.instructions or "")
    return await context.call_store(_accept, context.client, caller, session_id, said, key)


def _parse_message(body: ChatTurn) -> str | Sequence[Mapping[str, Any]]:
    if "message" in body.model_fields_set and "input" in body.model_fields_set:
        raise invalid("input", "Name either 'message' or 'input'.")
    if "system_message" in body.model_fields_set and "instructions" in body.model_fields_set:
        raise invalid("instructions", "Name either 'system_message' or 'instructions'.")
    given = body.message if "message" in body.model_fields_set else body.input
    if given is None:
        raise invalid("message", "Missing required parameter: 'message'.", "missing_message")
    try:
        return parse_conversation([{"role": "user", "content": given}], None).input
    except ApiError as error:
        code = "missing_message" if error.code == "empty_message" else error.code
        raise ApiError(
            400, error.message.replace(_WHERE, "message"), code=code, param=str(error.param).replace(_WHERE, "message")
        ) from None


def _prepend_instructions(
    said: str | Sequence[Mapping[str, Any]], instructions: str
) -> str | Sequence[Mapping[str, Any]]:
    """Put instructions in front of the user's message: the prompt of a session never changes (I7), so what holds for
    one turn is said in the turn."""
    if not instructions.strip():
        return said
    if isinstance(said, str):
        return f"{instructions}\n\n{said}"
    return [{"type": "text", "text": instructions}, *said]


def _accept(
    client: Client, caller: Principal, session_id: str, said: str | Sequence[Mapping[str, Any]], key: str | None
) -> tuple[SessionView, Created]:
    session = Sessions(client.database, caller.tenant, caller.source).get(session_id)
    submission = Submission(
        input=said,
        session_id=session.label.choose_reference(caller.source),
        model=session.asks_model,
        principal=caller,
        source=caller.source,
        idempotency_key=key,
    )
    return session, accept(client, submission)


async def _stream_frames(context: ApiContext, turn: TurnFacts, teller: TurnTeller, feed: Feed) -> AsyncIterator[bytes]:
    if opening := teller.build_opening():
        yield b"".join(opening)
    async with announce_reader(context, turn.run_id, teller):
        async for told in follow(context, turn.run_id, teller, feed):
            yield b"".join(told) if told else sse.KEEPALIVE
    if not teller.is_over:
        yield sse.GOING_AWAY
        return
    yield b"".join(teller.build_closing(await context.call_store(_end, context.client, turn.run_id)))
    yield sse.CLOSED


def _end(client: Client, run_id: str) -> TurnEnd:
    view = client.views.load_run(run_id)
    error = (redact(view.error) if view.error else f"the run ended: {view.exit_text}") if view.is_failed else None
    return TurnEnd(
        at=view.finished_at or view.updated_at,
        content=view.output or "",
        completed=view.is_completed,
        partial=view.is_partial,
        interrupted=view.is_interrupted,
        error=error,
        code=view.failure_kind or view.exit_reason,
        messages=list_turn_messages(client.database, run_id),
        usage=build_usage(view.usage),
    )
