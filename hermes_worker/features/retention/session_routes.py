"""The deletion of a session at its owner's request."""

from __future__ import annotations

from fastapi import APIRouter

from hermes_worker.api import schema
from hermes_worker.api.auth import WRITES, Caller
from hermes_worker.api.context import Context
from hermes_worker.api.errors import ApiError, RouteRefusal, answer_errors
from hermes_worker.api.owners import OwnSession
from hermes_worker.features.retention.erasure_rows import ErasureHeld, NotYetErased, RunsAtWork
from hermes_worker.features.retention.erasure_service import SessionOfChild, delete_session
from hermes_worker.schemas.sessions import SessionDeleted


def _answer_active(_: RunsAtWork | NotYetErased) -> ApiError:
    message = "Something is still at work in this session, and nothing new begins there. Delete it again."
    return ApiError(409, message, code="session_active", headers={"Retry-After": "1"})


router = APIRouter(
    prefix="/api/sessions",
    tags=["sessions"],
    route_class=answer_errors(
        {
            SessionOfChild: RouteRefusal(409, "session_of_child"),
            ErasureHeld: RouteRefusal(409, "session_held"),
            RunsAtWork: _answer_active,
            NotYetErased: _answer_active,
        }
    ),
    responses=schema.declare_errors(503),
)


@router.delete(
    "/{session_id}", response_model=SessionDeleted, responses=schema.declare_errors(404, 409), dependencies=[WRITES]
)
async def remove_session(context: Context, caller: Caller, session_id: OwnSession) -> SessionDeleted:
    """Delete a session with its runs and what they delegated. Their ids answer with 410 from then on."""
    await context.call_store(
        delete_session, context.client, caller.tenant, session_id, by=caller.display_name, source=caller.source
    )
    return SessionDeleted(id=session_id)
