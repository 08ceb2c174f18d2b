"""Sessions: list, open, read, rename, fork."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request

from hermes_worker.api import schema
from hermes_worker.api.auth import READS, WRITES, Caller
from hermes_worker.api.bodies import BodyModel, read_object, validate_body
from hermes_worker.api.context import Context
from hermes_worker.api.cursors import make_cursor, read_cursor
from hermes_worker.api.errors import ApiError, RouteRefusal, answer_errors, invalid
from hermes_worker.api.owners import OwnSession
from hermes_worker.api.wire.session_objects import (
    CreateSession,
    ForkSession,
    ImportSession,
    ListMessages,
    ListSessions,
    PatchSession,
    build_message_object,
    build_session_object,
)
from hermes_worker.core.principals import Principal
from hermes_worker.core.session_imports import InvalidImport
from hermes_worker.schemas.sessions import MessageList, OneSession, SessionList
from hermes_worker.services.session_imports import import_session
from hermes_worker.services.submission import InvalidSubmission, Submission, prepare_run
from hermes_worker.store.runs.runs import SessionNotFound, create_run_id
from hermes_worker.store.sessions import (
    InvalidFork,
    SessionChanges,
    SessionExists,
    SessionPage,
    SessionPlace,
    Sessions,
    SessionView,
    TitleTaken,
)
from hermes_worker.wiring import Client

router = APIRouter(
    prefix="/api/sessions",
    tags=["sessions"],
    route_class=answer_errors(
        {
            TitleTaken: RouteRefusal(400, "invalid_title", "title", "Invalid 'title': {error}."),
            InvalidFork: RouteRefusal(400, "invalid_value", "message_id", "Invalid 'message_id': {error}."),
            InvalidImport: RouteRefusal(400, "invalid_session", "session", "Invalid 'session': {error}."),
            SessionExists: RouteRefusal(409, "session_exists", "id"),
        }
    ),
    responses=schema.declare_errors(503),
)
_CODES = {"id": "invalid_session_id", "session_id": "invalid_session_id"}
"""Hermes Agent's error codes of two fields; an error about another field has the field's own name in its code."""


def make_session_reader(kind: type[BodyModel]) -> Callable[[Request], Awaitable[BodyModel]]:
    """Make the dependency of a route that reads its body as ``kind``, or an empty object where there is none. It raises
    ``ApiError``, with Hermes Agent's codes."""

    async def read_body(request: Request) -> BodyModel:
        document = await read_object(request, without_body={})
        try:
            return validate_body(document, kind)
        except ApiError as refusal:
            if refusal.code == "unknown_parameter":
                raise invalid(str(refusal.param), refusal.message, "unsupported_session_field") from None
            field = str(refusal.param).partition(".")[0]
            raise invalid(str(refusal.param), refusal.message, _CODES.get(field, f"invalid_{field}")) from None

    return read_body


@router.get("", response_model=SessionList, dependencies=[READS])
async def list_sessions(context: Context, caller: Caller, wanted: Annotated[ListSessions, Query()]) -> SessionList:
    """Sessions, the one with the newest activity first."""
    known = Sessions(context.client.database, caller.tenant, caller.source)
    if wanted.title is not None:
        called = await context.call_store(known.find_by_title, wanted.title, limit=wanted.limit)
        data = [build_session_object(view, caller.source) for view in called]
        return SessionList(data=data, limit=wanted.limit, offset=0, has_more=False)
    filters = {"tenant": caller.tenant, **wanted.model_dump(include={"source", "include_children", "archived"})}
    below = read_cursor(context.proofs, filters, wanted.cursor) if wanted.cursor else None
    page = SessionPage(
        limit=wanted.limit + 1,
        below=None if below is None else SessionPlace(*json.loads(below)),
        before=wanted.before,
        offset=wanted.offset,
        source=wanted.source,
        has_children=wanted.include_children,
        is_archived=wanted.archived,
    )
    try:
        views = await context.call_store(known.list_page, page)
    except SessionNotFound:
        message = f"Invalid 'before': there is no session {wanted.before!r}."
        raise invalid("before", message, "session_not_found") from None
    data = [build_session_object(view, caller.source) for view in views[: wanted.limit]]
    has_more = len(views) > wanted.limit
    place = json.dumps(views[wanted.limit - 1].place) if has_more else ""
    return SessionList(
        data=data,
        limit=wanted.limit,
        offset=wanted.offset,
        has_more=has_more,
        next_cursor=make_cursor(context.proofs, filters, place) if has_more else None,
    )


@router.post(
    "",
    status_code=201,
    response_model=OneSession,
    openapi_extra=schema.declare_body(CreateSession),
    responses=schema.declare_errors(408, 409),
    dependencies=[WRITES],
)
async def create_session(
    context: Context, caller: Caller, body: Annotated[CreateSession, Depends(make_session_reader(CreateSession))]
) -> OneSession:
    """Open a session without a run."""
    if body.id is not None and body.session_id is not None and body.id != body.session_id:
        raise invalid("session_id", "Invalid 'session_id': it is not 'id'; name one of them.", "invalid_session_id")
    name = body.id or body.session_id or create_run_id()
    try:
        view = await context.call_store(_open, context.client, caller, name, body)
    except InvalidSubmission as error:
        param = {"session_id": "id", "instructions": "system_prompt"}.get(error.field, error.field)
        raise invalid(param, f"Invalid {param!r}: {error}.", _CODES.get(param, f"invalid_{param}")) from None
    return OneSession(session=build_session_object(view, caller.source))


def _open(client: Client, caller: Principal, name: str, body: CreateSession) -> SessionView:
    """Open a session as its first turn would: its prompt is built for a run, which is not created."""
    first = Submission(
        input="-",
        session_id=name,
        instructions=body.system_prompt,
        model=body.model,
        principal=caller,
        source=caller.source,
    )
    new = prepare_run(client, first)
    return Sessions(client.database, caller.tenant, caller.source).open(new, title=body.title or None, model=body.model)


@router.post(
    "/import",
    status_code=201,
    response_model=OneSession,
    openapi_extra=schema.declare_body(ImportSession, is_required=True),
    responses=schema.declare_errors(408, 409),
    dependencies=[WRITES],
)
async def take_in_session(
    context: Context, caller: Caller, body: Annotated[ImportSession, Depends(make_session_reader(ImportSession))]
) -> OneSession:
    """Make a session of a conversation from elsewhere. Its id is its name here; system prompts are left out."""
    try:
        view = await context.call_store(import_session, context.client, caller, body.session, source=caller.source)
    except SessionExists as error:
        raise ApiError(409, f"{error}.", code="session_exists", param="session") from None
    return OneSession(session=build_session_object(view, caller.source))


@router.get("/{session_id}", response_model=OneSession, responses=schema.declare_errors(404), dependencies=[READS])
async def get_session(context: Context, caller: Caller, session_id: OwnSession) -> OneSession:
    """A session and what its runs come to."""
    view = await context.call_store(Sessions(context.client.database, caller.tenant, caller.source).get, session_id)
    return OneSession(session=build_session_object(view, caller.source))


@router.patch(
    "/{session_id}",
    response_model=OneSession,
    openapi_extra=schema.declare_body(PatchSession),
    responses=schema.declare_errors(404, 408),
    dependencies=[WRITES],
)
async def change_session(
    context: Context,
    caller: Caller,
    session_id: OwnSession,
    body: Annotated[PatchSession, Depends(make_session_reader(PatchSession))],
) -> OneSession:
    """Change its title, note that it is over, or put it away. No other session may be called so."""
    given = body.model_fields_set
    changes = SessionChanges(
        title=(body.title or "") if "title" in given else None,
        end_reason=(body.end_reason or "") if "end_reason" in given else None,
        is_archived=body.archived,
    )
    view = await context.call_store(
        Sessions(context.client.database, caller.tenant, caller.source).change, session_id, changes
    )
    return OneSession(session=build_session_object(view, caller.source))


@router.get(
    "/{session_id}/messages", response_model=MessageList, responses=schema.declare_errors(404), dependencies=[READS]
)
async def list_messages(
    context: Context, caller: Caller, session_id: OwnSession, wanted: Annotated[ListMessages, Query()]
) -> MessageList:
    """The transcript, oldest first."""
    sessions = Sessions(context.client.database, caller.tenant, caller.source)
    views = await context.call_store(sessions.list_messages, session_id, after=wanted.after, limit=wanted.limit + 1)
    data = [build_message_object(view, session_id) for view in views[: wanted.limit]]
    return MessageList(session_id=session_id, data=data, has_more=len(views) > wanted.limit)


@router.post(
    "/{session_id}/fork",
    status_code=201,
    response_model=OneSession,
    openapi_extra=schema.declare_body(ForkSession),
    responses=schema.declare_errors(404, 408, 409),
    dependencies=[WRITES],
)
async def fork_session(
    context: Context,
    caller: Caller,
    session_id: OwnSession,
    body: Annotated[ForkSession, Depends(make_session_reader(ForkSession))],
) -> OneSession:
    """Open a session that begins with a copy of this one's transcript."""
    fork = Sessions(context.client.database, caller.tenant, caller.source).fork
    view = await context.call_store(fork, session_id, name=body.id, title=body.title or None, last=body.message_id)
    return OneSession(session=build_session_object(view, caller.source))
