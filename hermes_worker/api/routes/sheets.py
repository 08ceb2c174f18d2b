"""Runs with all that their rows say, for ``hermes-worker --server``, which has no database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel

from hermes_worker.api import schema
from hermes_worker.api.auth import READS, Caller
from hermes_worker.api.context import Context
from hermes_worker.api.cursors import below_of, cursor_of
from hermes_worker.api.errors import invalid
from hermes_worker.api.owners import OwnRun, tenant_to_list
from hermes_worker.api.routes.runs import run_filter
from hermes_worker.safety.redaction import redact
from hermes_worker.services.results import training_sample
from hermes_worker.services.sheets import RunNews, RunSheet, news_of, sheet_of, shown_to_others
from hermes_worker.store.hooks.calls import HookCalls, HookCallView
from hermes_worker.store.runs.listing import Listing
from hermes_worker.store.runs.runs import RunNotFound
from hermes_worker.store.runs.views import RunView

router = APIRouter(prefix="/v1/sheets", tags=["runs"], responses=schema.errors(503))


class SheetList(BaseModel):
    """A page of runs, newest first, as ``GET /v1/runs`` pages them."""

    object: Literal["list"] = "list"
    data: Sequence[RunView]
    has_more: bool
    next_cursor: str | None = None


class HookCallList(BaseModel):
    """The hook calls of a run, newest first."""

    object: Literal["list"] = "list"
    data: Sequence[HookCallView]


class TrajectoryObject(BaseModel):
    """A run as a training sample (ShareGPT), without what looks like a credential."""

    conversations: Sequence[Mapping[str, str]]
    timestamp: str
    """When it ended, ISO 8601."""
    model: str
    completed: bool


@router.get("", response_model=SheetList, responses=schema.errors(404), dependencies=[READS])
async def list_sheets(context: Context, caller: Caller, wanted: Annotated[schema.ListRuns, Query()]) -> SheetList:
    """Runs, newest first, with all that their rows say."""
    meant = run_filter(wanted, await tenant_to_list(context, caller, wanted.tenant), caller.source)
    below = below_of(context.proofs, meant, wanted.cursor) if wanted.cursor else None
    if below is not None and wanted.before is not None:
        raise invalid("before", "Invalid 'before': 'cursor' says where to go on.", "invalid_value")
    listing = Listing(context.client.database)
    try:
        page = await context.store(listing.page, meant, limit=wanted.limit, below=below, before=wanted.before)
    except RunNotFound:
        raise invalid("before", f"Invalid 'before': there is no run {wanted.before!r}.", "run_not_found") from None
    return SheetList(
        data=[view if caller.operates else shown_to_others(view) for view in page.views],
        has_more=page.below is not None,
        next_cursor=None if page.below is None else cursor_of(context.proofs, meant, page.below),
    )


@router.get("/{run_id}", response_model=RunSheet, responses=schema.errors(404, 410), dependencies=[READS])
async def get_sheet(context: Context, caller: Caller, run_id: OwnRun) -> Any:
    """Everything about one run at this moment: its row, calls, answers, open questions, children and budget."""
    sheet = await context.store(sheet_of, context.client.database, run_id)
    return sheet if caller.operates else replace(sheet, view=shown_to_others(sheet.view))


@router.get("/{run_id}/news", response_model=RunNews, responses=schema.errors(404, 410), dependencies=[READS])
async def get_news(context: Context, run_id: OwnRun) -> RunNews:
    """What a follower of a run learns beside its events."""
    return await context.store(news_of, context.client.database, run_id)


@router.get("/{run_id}/hooks", response_model=HookCallList, responses=schema.errors(404, 410), dependencies=[READS])
async def list_hook_calls(
    context: Context, run_id: OwnRun, limit: Annotated[int, Query(ge=1, le=1_000), schema.WHOLE] = 100
) -> HookCallList:
    """The calls of hooks for one run, and their results."""
    found = await context.store(HookCalls(context.client.database).list, run_id=run_id, limit=limit)
    return HookCallList(data=[replace(call, reason=redact(call.reason) if call.reason else None) for call in found])


@router.get(
    "/{run_id}/trajectory", response_model=TrajectoryObject, responses=schema.errors(404, 410), dependencies=[READS]
)
async def get_trajectory(context: Context, run_id: OwnRun) -> Any:
    """One run as a training sample."""
    return await context.store(training_sample, context.client.views, run_id)
