"""Sessions: list, open, read, rename, fork."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request

from hermes_worker.api import schema
from hermes_worker.api.auth import READS, WRITES, Caller
from hermes_worker.api.bodies import BodyModel, read_object, validate_body
from hermes_worker.api.context import Context
from hermes_worker.api.errors import ApiError, invalid
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
from hermes_worker.store.runs.runs import SessionNotFound
from hermes_worker.store.sessions import (
    InvalidFork,
    SessionChanges,
    SessionExists,
    SessionPage,
    Sessions,
    SessionView,
    TitleTaken,
)
from hermes_worker.wiring import Client

router = APIRouter(prefix="/api/sessions", tags=["sessions"], responses=schema.declare_errors(503))
_CODES = {"id": "invalid_session_id", "session_id": "invalid_session_id"}
"""Hermes Agent's error codes of two fields; an error about another field has the field's own name in its code."""


async def read_body(request: Request, kind: type[BodyModel]) -> BodyModel:
    """Validate the body, or an empty object where there is none. Raises ``ApiError``, with Hermes Agent's codes."""
    document = await read_object(request, without_body={})
    try:
        return validate_body(document, kind)
    except ApiError as refusal:
        if refusal.code == "unknown_parameter":
            raise invalid(str(refusal.param), refusal.message, "unsupported_session_field") from None
        field = str(refusal.param).partition(".")[0]
        raise invalid(str(refusal.param), refusal.message, _CODES.get(field, f"invalid_{field}")) from None


async def _create(request: Request) -> CreateSession:
    return await read_body(request, CreateSession)


async def _patch(request: Request) -> PatchSession:
    return await read_body(request, PatchSession)


async def _fork(request: Request) -> ForkSession:
    return await read_body(request, ForkSession)


def make_name() -> str:
    """Make a name for a session that was given none, in Hermes Agent's form."""
    return f"api_{int(time.time())}_{secrets.token_hex(4)}"


@router.get("", response_model=SessionList, dependencies=[READS])
async def list_sessions(context: Context, caller: Caller, wanted: Annotated[ListSessions, Query()]) -> SessionList:
    """Sessions, newest first."""
    known = Sessions(context.client.database, caller.tenant, caller.source)
    if wanted.title is not None:
        called = await context.call_store(known.find_by_title, wanted.title, limit=wanted.limit)
        data = [build_session_object(view, caller.source) for view in called]
        return SessionList(data=data, limit=wanted.limit, offset=0, has_more=False)
    page = SessionPage(
        limit=wanted.limit + 1,
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
    return SessionList(data=data, limit=wanted.limit, offset=wanted.offset, has_more=len(views) > wanted.limit)


@router.post(
    "",
    status_code=201,
    response_model=OneSession,
    openapi_extra=schema.declare_body(CreateSession),
    responses=schema.declare_errors(408, 409),
    dependencies=[WRITES],
)
async def create_session(
    context: Context, caller: Caller, body: Annotated[CreateSession, Depends(_create)]
) -> OneSession:
    """Open a session without a run."""
    if body.id is not None and body.session_id is not None and body.id != body.session_id:
        raise invalid("session_id", "Invalid 'session_id': it is not 'id'; name one of them.", "invalid_session_id")
    name = body.id or body.session_id or make_name()
    try:
        with _translate_title_errors():
            view = await context.call_store(_open, context.client, caller, name, body)
    except InvalidSubmission as error:
        param = {"session_id": "id", "instructions": "system_prompt"}.get(error.field, error.field)
        raise invalid(param, f"Invalid {param!r}: {error}.", _CODES.get(param, f"invalid_{param}")) from None
    except SessionExists as error:
        raise ApiError(409, f"{error}.", code="session_exists", param="id") from None
    return OneSession(session=build_session_object(view, caller.source))


@contextmanager
def _translate_title_errors() -> Iterator[None]:
    """Turn the error for a title that another session has into ``ApiError`` with Hermes Agent's code."""
    try:
        yield
    except TitleTaken as error:
        raise invalid("title", f"Invalid 'title': {error}.", "invalid_title") from None


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


async def _import(request: Request) -> ImportSession:
    return await read_body(request, ImportSession)


@router.post(
    "/import",
    status_code=201,
    response_model=OneSession,
    openapi_extra=schema.declare_body(ImportSession, is_required=True),
    responses=schema.declare_errors(408, 409),
    dependencies=[WRITES],
)
async def take_in_session(
    context: Context, caller: Caller, body: Annotated[ImportSession, Depends(_import)]
) -> OneSession:
    """Make a session of a conversation from elsewhere. Its id is its name here; system prompts are left out."""
    try:
        view = await context.call_store(import_session, context.client, caller, body.session, source=caller.source)
    except InvalidImport as error:
        raise invalid("session", f"Invalid 'session': {error}.", "invalid_session") from None
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
    context: Context, caller: Caller, session_id: OwnSession, body: Annotated[PatchSession, Depends(_patch)]
) -> OneSession:
    """Change its title, note that it is over, or put it away. No other session may be called so."""
    given = body.model_fields_set
    changes = SessionChanges(
        title=(body.title or "") if "title" in given else None,
        end_reason=(body.end_reason or "") if "end_reason" in given else None,
        is_archived=body.archived,
    )
    with _translate_title_errors():
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
    context: Context, caller: Caller, session_id: OwnSession, body: Annotated[ForkSession, Depends(_fork)]
) -> OneSession:
    """Open a session that begins with a copy of this one's transcript."""
    fork = Sessions(context.client.database, caller.tenant, caller.source).fork
    name = body.id or make_name()
    try:
        with _translate_title_errors():
            view = await context.call_store(fork, session_id, name=name, title=body.title or None, last=body.message_id)
    except SessionExists as error:
        raise ApiError(409, f"{error}.", code="session_exists", param="id") from None
    except InvalidFork as error:
        raise invalid("message_id", f"Invalid 'message_id': {error}.") from None
    return OneSession(session=build_session_object(view, caller.source))
