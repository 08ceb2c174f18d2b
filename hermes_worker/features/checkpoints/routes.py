"""Checkpoints of a run's workspace: list, compare, restore."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from hermes_worker.api import schema
from hermes_worker.api.auth import READS, WRITES
from hermes_worker.api.bodies import JsonRoute
from hermes_worker.api.context import ApiContext, Context
from hermes_worker.api.errors import RouteRefusal, answer_errors
from hermes_worker.api.owners import OwnRun
from hermes_worker.api.schema import RequestBody
from hermes_worker.features.checkpoints.schema import CheckpointDiffObject, CheckpointList, RestoreObject
from hermes_worker.features.checkpoints.service import (
    RESTORE_FILES_MAX,
    CheckpointsAway,
    NoCheckpoint,
    RunCheckpoints,
    WorkspaceBusy,
    build_run_checkpoints,
)

router = APIRouter(
    prefix="/v1/runs",
    tags=["checkpoints"],
    route_class=answer_errors(
        {
            NoCheckpoint: RouteRefusal(404, "checkpoint_not_found", "checkpoint_id", "{error}"),
            WorkspaceBusy: RouteRefusal(409, "workspace_busy", text="{error}"),
            CheckpointsAway: RouteRefusal(409, "checkpoints_unavailable", text="{error}"),
        },
        JsonRoute,
    ),
    responses=schema.declare_errors(404, 409, 410, 503),
)
_ID = r"^[0-9a-f]{4,40}$"


class Restore(RequestBody):
    """The checkpoint, and the files to restore."""

    checkpoint_id: str = Field(pattern=_ID)
    """An id, or the beginning of one."""
    files: list[Annotated[str, Field(min_length=1, max_length=4_096)]] | None = Field(
        default=None, max_length=RESTORE_FILES_MAX
    )
    """Files and folders below the workspace; all of them where this is missing."""


def _build_checkpoints(context: ApiContext) -> RunCheckpoints:
    return build_run_checkpoints(context.client.database, context.client.settings)


@router.get("/{run_id}/checkpoints", response_model=CheckpointList, dependencies=[READS])
async def list_checkpoints(context: Context, run_id: OwnRun) -> CheckpointList:
    """The checkpoints of a run's workspace: its files before tools changed them."""
    found = await context.call_store(_build_checkpoints(context).list_all, run_id)
    return CheckpointList(run_id=run_id, data=found)


@router.get("/{run_id}/diff", response_model=CheckpointDiffObject, dependencies=[READS])
async def diff_run(
    context: Context, run_id: OwnRun, checkpoint_id: Annotated[str | None, Query(pattern=_ID)] = None
) -> CheckpointDiffObject:
    """How the files differ from what they were at a checkpoint; without one, before the run changed any."""
    return await context.call_store(_build_checkpoints(context).diff, run_id, checkpoint_id)


@router.post(
    "/{run_id}/restore", response_model=RestoreObject, responses=schema.declare_errors(408), dependencies=[WRITES]
)
async def restore_run(context: Context, run_id: OwnRun, body: Restore) -> RestoreObject:
    """Make files what they were at a checkpoint. What is there becomes one first. Refused while a run works there."""
    return await context.call_store(_build_checkpoints(context).restore, run_id, body.checkpoint_id, body.files or ())
