"""Search the messages of sessions, and read the lineage of a session (docs/sessions.md)."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from hermes_worker.api import schema
from hermes_worker.api.auth import READS, Caller
from hermes_worker.api.context import Context
from hermes_worker.api.errors import ApiError
from hermes_worker.api.owners import OwnSession
from hermes_worker.api.wire.session_objects import SearchMessages, build_found_object, build_session_object
from hermes_worker.schemas.search import FoundMessages
from hermes_worker.schemas.sessions import SessionFamily
from hermes_worker.store.runs.runs import SessionNotFound
from hermes_worker.store.search.finding import MessageSearch, Search, SearchOrder
from hermes_worker.store.sessions import Sessions

router = APIRouter(prefix="/api/sessions", tags=["sessions"], responses=schema.declare_errors(503))


@router.get("/search", response_model=FoundMessages, responses=schema.declare_errors(404), dependencies=[READS])
async def search_sessions(
    context: Context, caller: Caller, wanted: Annotated[SearchMessages, Query()]
) -> FoundMessages:
    """Messages that match, in all sessions or in one. Not for those that a run works in as a child, unless asked."""
    asked = MessageSearch(
        text=wanted.q,
        roles=wanted.list_searched_roles(),
        order=SearchOrder(wanted.sort),
        limit=wanted.limit,
        session=wanted.session_id,
        has_children=wanted.include_children,
    )
    try:
        result = await context.call_store(Search(context.client.database, caller.tenant, caller.source).find, asked)
    except SessionNotFound:
        message = f"Invalid 'session_id': there is no session {wanted.session_id!r}."
        raise ApiError(404, message, code="session_not_found", param="session_id") from None
    data = [build_found_object(each, caller.source) for each in result.found]
    return FoundMessages(query=wanted.q, data=data, is_complete=result.is_complete)


@router.get(
    "/{session_id}/lineage", response_model=SessionFamily, responses=schema.declare_errors(404), dependencies=[READS]
)
async def session_lineage(context: Context, caller: Caller, session_id: OwnSession) -> SessionFamily:
    """The session, what it was forked from, and every fork of those, oldest first; ``parent_session_id`` joins them."""
    views = await context.call_store(
        Sessions(context.client.database, caller.tenant, caller.source).list_family, session_id
    )
    return SessionFamily(session_id=session_id, data=[build_session_object(view, caller.source) for view in views])
