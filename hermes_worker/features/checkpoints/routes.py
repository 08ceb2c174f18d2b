"""Checkpoints of a run's workspace: list, compare, restore."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from hermes_worker.api import schema
from hermes_worker.api.auth import READS, WRITES
from hermes_worker.api.bodies import JsonRoute
from hermes_worker.api.context import ApiContext, Context
from hermes_worker.api.errors import ApiError
from hermes_worker.api.owners import OwnRun
from hermes_worker.features.checkpoints.service import (
    RESTORE_FILES_MAX,
    CheckpointsAway,
    CheckpointView,
    NoCheckpoint,
    RunCheckpoints,
    WorkspaceBusy,
    build_run_checkpoints,
)

router = APIRouter(
    prefix="/v1/runs", tags=["checkpoints"], route_class=JsonRoute, responses=schema.declare_errors(404, 409, 410, 503)
)
_ID = r"^[0-9a-f]{4,40}$"


class CheckpointObject(BaseModel):
    """The state of a workspace's files before a change."""

    object: Literal["hermes.checkpoint"] = "hermes.checkpoint"
    id: str
    created_at: float
    run_id: str
    """The run that was about to change files, or whose files were about to be put back."""
    iteration: int
    """0 for one that a restore made."""
    tool: str
    files: int
    left_out: int
    """Files that are too large, or that could not be read."""


class CheckpointList(BaseModel):
    """All checkpoints of a run's workspace, the newest first. Other runs may work there, too."""

    object: Literal["list"] = "list"
    run_id: str
    data: list[CheckpointObject]


class FileChangeObject(BaseModel):
    """A file that differs."""

    path: str
    change: str
    """`added`, `removed` or `changed`, since the checkpoint."""


class CheckpointDiffObject(BaseModel):
    """The difference between a checkpoint and the files as they are."""

    object: Literal["hermes.checkpoint_diff"] = "hermes.checkpoint_diff"
    checkpoint_id: str
    files: list[FileChangeObject]
    """The first of them, by path."""
    files_total: int
    text: str
    """A unified diff without secrets. It was written by an agent: show it as text."""
    is_cut: bool


class Restore(BaseModel):
    """The checkpoint, and the files to restore."""

    model_config = ConfigDict(extra="forbid", strict=True)

    checkpoint_id: str = Field(pattern=_ID)
    """An id, or the beginning of one."""
    files: list[Annotated[str, Field(min_length=1, max_length=4_096)]] | None = Field(
        default=None, max_length=RESTORE_FILES_MAX
    )
    """Files and folders below the workspace; all of them where this is missing."""


class RestoreObject(BaseModel):
    """The result of a restore."""

    object: Literal["hermes.restore"] = "hermes.restore"
    checkpoint_id: str
    before: str
    """The checkpoint of what was there: restore that one to undo it."""
    written: list[str]
    removed: list[str]
    failed: list[str]
    """`path: why`."""


def _checkpoints(context: ApiContext) -> RunCheckpoints:
    return build_run_checkpoints(context.client.database, context.client.settings)


@router.get("/{run_id}/checkpoints", response_model=CheckpointList, dependencies=[READS])
async def list_checkpoints(context: Context, run_id: OwnRun) -> CheckpointList:
    """The checkpoints of a run's workspace: its files before tools changed them."""
    try:
        found = await context.call_store(_checkpoints(context).list_all, run_id)
    except CheckpointsAway as error:
        raise _away(error) from None
    return CheckpointList(run_id=run_id, data=[_object(each) for each in found])


def _object(view: CheckpointView) -> CheckpointObject:
    return CheckpointObject(
        id=view.checkpoint_id,
        created_at=view.created_at,
        run_id=view.run_id,
        iteration=view.iteration,
        tool=view.tool,
        files=view.files,
        left_out=view.left_out,
    )


@router.get("/{run_id}/diff", response_model=CheckpointDiffObject, dependencies=[READS])
async def diff_run(
    context: Context, run_id: OwnRun, checkpoint_id: Annotated[str | None, Query(pattern=_ID)] = None
) -> CheckpointDiffObject:
    """How the files differ from what they were at a checkpoint; without one, before the run changed any."""
    try:
        found = await context.call_store(_checkpoints(context).diff, run_id, checkpoint_id)
    except NoCheckpoint as error:
        raise _missing(error) from None
    except CheckpointsAway as error:
        raise _away(error) from None
    return CheckpointDiffObject(
        checkpoint_id=found.checkpoint_id,
        files=[FileChangeObject(path=each.path, change=each.change) for each in found.files],
        files_total=found.files_total,
        text=found.text,
        is_cut=found.is_cut,
    )


@router.post(
    "/{run_id}/restore", response_model=RestoreObject, responses=schema.declare_errors(408), dependencies=[WRITES]
)
async def restore_run(context: Context, run_id: OwnRun, body: Restore) -> RestoreObject:
    """Make files what they were at a checkpoint. What is there becomes one first. Refused while a run works there."""
    try:
        done = await context.call_store(_checkpoints(context).restore, run_id, body.checkpoint_id, body.files or ())
    except NoCheckpoint as error:
        raise _missing(error) from None
    except WorkspaceBusy as error:
        raise ApiError(409, str(error), code="workspace_busy") from None
    except CheckpointsAway as error:
        raise _away(error) from None
    return RestoreObject(
        checkpoint_id=done.checkpoint_id,
        before=done.before,
        written=list(done.written),
        removed=list(done.removed),
        failed=list(done.failed),
    )


def _missing(error: NoCheckpoint) -> ApiError:
    return ApiError(404, str(error), param="checkpoint_id", code="checkpoint_not_found")


def _away(error: CheckpointsAway) -> ApiError:
    return ApiError(409, str(error), code="checkpoints_unavailable")
