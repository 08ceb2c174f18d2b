"""Look up ids by their beginning: it stands for the id as long as it is the only one that begins so."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel

from hermes_worker.api import schema
from hermes_worker.api.auth import READS, Caller
from hermes_worker.api.context import Context
from hermes_worker.api.errors import ApiError
from hermes_worker.core.short_ids import AmbiguousId, ShortKind, is_whole_id
from hermes_worker.store.outbox.deliveries import Deliveries

router = APIRouter(prefix="/v1/ids", tags=["runs"], responses=schema.declare_errors(404, 409, 503))


class WholeId(BaseModel):
    """The id of a run or a delivery."""

    id: str


@router.get("", response_model=WholeId, dependencies=[READS])
async def whole_id(
    context: Context,
    caller: Caller,
    kind: ShortKind,
    begins: Annotated[str, Query(pattern="^((run|dlv)_)?[0-9a-f]{1,32}$", description="With its prefix or without.")],
) -> WholeId:
    """The one id of that kind that begins so."""
    client = context.client
    known = client.views if kind == "run" else Deliveries(client.database)
    try:
        found = await context.call_store(known.complete_id, begins, tenant=caller.tenant)
    except AmbiguousId as error:
        raise ApiError(409, f"{error}.", code="ambiguous_id", param="begins") from None
    if not is_whole_id(found, kind):
        raise ApiError(404, f"No {kind} has an id that begins with {begins!r}.", code="id_not_found", param="begins")
    return WholeId(id=found)
