"""Runs with all that their rows say, for ``hermes-worker --server``, which has no database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel

from hermes_worker.api import schema
from hermes_worker.api.auth import READS, Caller
from hermes_worker.api.context import Context
from hermes_worker.api.owners import OwnRun
from hermes_worker.api.routes.runs import load_page
from hermes_worker.core.run_views import HookCallView, RunNews, RunSheet, RunView
from hermes_worker.safety.redaction import redact
from hermes_worker.schemas.runs import TrajectoryObject
from hermes_worker.services.results import build_training_sample
from hermes_worker.services.sheets import load_news, load_sheet, redact_deliveries, redact_run
from hermes_worker.store.hooks.calls import HookCalls

router = APIRouter(prefix="/v1/sheets", tags=["runs"], responses=schema.declare_errors(503))


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


@router.get("", response_model=SheetList, responses=schema.declare_errors(404), dependencies=[READS])
async def list_sheets(context: Context, caller: Caller, wanted: Annotated[schema.ListRuns, Query()]) -> SheetList:
    """Runs, newest first, with all that their rows say."""
    page, cursor = await load_page(context, caller, wanted)
    return SheetList(
        data=[redact_deliveries(view) if caller.operates else redact_run(view) for view in page.views],
        has_more=cursor is not None,
        next_cursor=cursor,
    )


@router.get("/{run_id}", response_model=RunSheet, responses=schema.declare_errors(404, 410), dependencies=[READS])
async def get_sheet(context: Context, caller: Caller, run_id: OwnRun) -> Any:
    """Everything about one run at this moment: its row, calls, answers, open questions, children and budget."""
    sheet = await context.call_store(load_sheet, context.client.database, run_id)
    return sheet if caller.operates else replace(sheet, view=redact_run(sheet.view))


@router.get("/{run_id}/news", response_model=RunNews, responses=schema.declare_errors(404, 410), dependencies=[READS])
async def get_news(context: Context, run_id: OwnRun) -> RunNews:
    """What a follower of a run learns beside its events."""
    return await context.call_store(load_news, context.client.database, run_id)


@router.get(
    "/{run_id}/hooks", response_model=HookCallList, responses=schema.declare_errors(404, 410), dependencies=[READS]
)
async def list_hook_calls(
    context: Context, run_id: OwnRun, limit: Annotated[int, Query(ge=1, le=1_000), schema.WHOLE] = 100
) -> HookCallList:
    """The calls of hooks for one run, and their results."""
    found = await context.call_store(HookCalls(context.client.database).list, run_id=run_id, limit=limit)
    return HookCallList(data=[replace(call, reason=redact(call.reason) if call.reason else None) for call in found])


@router.get(
    "/{run_id}/trajectory",
    response_model=TrajectoryObject,
    responses=schema.declare_errors(404, 410),
    dependencies=[READS],
)
async def get_trajectory(context: Context, run_id: OwnRun) -> Any:
    """One run as a training sample."""
    return await context.call_store(build_training_sample, context.client.views, run_id)
