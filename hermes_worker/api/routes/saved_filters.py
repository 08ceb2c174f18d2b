"""Named filters that the holder of a key saved for the page's list of runs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from hermes_worker.api import schema
from hermes_worker.api.auth import READS, Caller
from hermes_worker.api.bodies import JsonRoute
from hermes_worker.api.context import Context
from hermes_worker.api.errors import RouteRefusal, answer_errors
from hermes_worker.api.schema import RequestBody
from hermes_worker.core.principals import Principal
from hermes_worker.schemas.page import SavedFilterList
from hermes_worker.store.access.saved_filters import FilterNotFound, FiltersFull, SavedFilters

router = APIRouter(
    prefix="/v1/page/filters",
    tags=["page"],
    route_class=answer_errors(
        {
            FilterNotFound: RouteRefusal(404, "filter_not_found", "name"),
            FiltersFull: RouteRefusal(409, "filters_full", "name"),
        },
        JsonRoute,
    ),
    responses=schema.declare_errors(503),
)

_NAME_FORM = r"^[^\x00-\x1f\x7f]{1,60}$"
_QUERY_FORM = r"^[!-~]{0,2000}$"


class SaveFilter(RequestBody):
    """A filter and its name."""

    name: str = Field(max_length=60, pattern=_NAME_FORM)
    query: str = Field(
        max_length=2_000,
        pattern=_QUERY_FORM,
        description="As it stands in the address of the list, status=failed&tag=nightly.",
    )


@router.get("", response_model=SavedFilterList, dependencies=[READS])
async def list_saved_filters(context: Context, caller: Caller) -> SavedFilterList:
    """The filters that the caller saved. They belong to the holder, whichever of the holder's keys was sent."""
    return await context.call_store(_read, SavedFilters(context.client.database), caller)


def _read(filters: SavedFilters, caller: Principal) -> SavedFilterList:
    return SavedFilterList.model_validate({"data": filters.list(caller)}, from_attributes=True)


@router.put("", response_model=SavedFilterList, responses=schema.declare_errors(408, 409), dependencies=[READS])
async def save_filter(context: Context, caller: Caller, body: SaveFilter) -> SavedFilterList:
    """Save a filter under a name, in place of what was saved under it. Up to a hundred. Idempotent."""
    filters = SavedFilters(context.client.database)
    await context.call_store(filters.save, caller, body.name, body.query)
    return await context.call_store(_read, filters, caller)


@router.delete("", status_code=204, responses=schema.declare_errors(404), dependencies=[READS])
async def remove_saved_filter(
    context: Context, caller: Caller, name: Annotated[str, Query(max_length=60, pattern=_NAME_FORM)]
) -> None:
    """Remove a filter of the caller."""
    await context.call_store(SavedFilters(context.client.database).remove, caller, name)
