"""Look up what people write for an id: its beginning, while it is the only one that begins so, a name or a title."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel

from hermes_worker.api import schema
from hermes_worker.api.auth import READS, Caller, require_scope
from hermes_worker.api.context import Context
from hermes_worker.api.errors import ApiError, RouteRefusal, answer_errors
from hermes_worker.api.formats import NO_NUL
from hermes_worker.core.principals import KeyScope
from hermes_worker.core.short_ids import PREFIXES, AmbiguousId, ShortKind, is_whole_id
from hermes_worker.store.jobs.jobs import AmbiguousJob, JobNotFound, Jobs
from hermes_worker.store.outbox.deliveries import Deliveries
from hermes_worker.store.runs.runs import SessionNotFound
from hermes_worker.store.sessions import Sessions

_AMBIGUOUS = RouteRefusal(409, "ambiguous_id", "begins")
router = APIRouter(
    prefix="/v1/ids",
    tags=["runs"],
    route_class=answer_errors({AmbiguousId: _AMBIGUOUS, AmbiguousJob: _AMBIGUOUS}),
    responses=schema.declare_errors(404, 409, 503),
)


class WholeId(BaseModel):
    """What a run, a delivery, a session or a job is called in other requests."""

    id: str


@router.get("", response_model=WholeId, dependencies=[READS])
async def whole_id(
    context: Context,
    caller: Caller,
    kind: ShortKind,
    begins: Annotated[
        str,
        Query(
            min_length=1,
            max_length=256,
            pattern=NO_NUL,
            description="The beginning of an id, with its prefix or without; also the name of a job, and the name or "
            "the title of a session.",
        ),
    ],
) -> WholeId:
    """The one thing of that kind that is meant."""
    database = context.client.database
    if kind == "job":
        require_scope(caller, KeyScope.JOBS)
    known: Mapping[ShortKind, Callable[[str], str]] = {
        "run": partial(context.client.views.complete_id, tenant=caller.tenant),
        "delivery": partial(Deliveries(database).complete_id, tenant=caller.tenant),
        "session": Sessions(database, caller.tenant, caller.source).complete_reference,
        "job": Jobs(database, caller.tenant).complete_reference,
    }
    missing = ApiError(404, f"There is no {kind} {begins!r}.", code="id_not_found", param="begins")
    try:
        found = await context.call_store(known[kind], begins)
    except (SessionNotFound, JobNotFound):
        raise missing from None
    if kind in PREFIXES and not is_whole_id(found, kind):
        raise missing
    return WholeId(id=found)
