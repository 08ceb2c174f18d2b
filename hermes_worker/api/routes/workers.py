"""The worker processes of the installation: what they hold, and how to drain one."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path
from pydantic import BaseModel

from hermes_worker.api import schema
from hermes_worker.api.auth import FOR_OPERATORS, FOR_SCALERS
from hermes_worker.api.context import Context
from hermes_worker.api.errors import ApiError
from hermes_worker.store.worker_claims import StepKind, load_workers
from hermes_worker.store.workers import WorkerNotFound

router = APIRouter(prefix="/v1/workers", tags=["health"], responses=schema.declare_errors(503))


class HeldStepObject(BaseModel):
    """A model call or a tool call that a worker is at work on."""

    kind: StepKind
    run_id: str
    tenant: str
    iteration: int
    position: int | None
    """The place of a tool call in its reply."""
    tool: str | None
    claimed_at: float
    """Epoch seconds."""


class WorkerObject(BaseModel):
    """A worker process that is alive. Times are epoch seconds."""

    object: Literal["hermes.worker"] = "hermes.worker"
    worker_id: str
    name: str
    queues: list[str]
    started_at: float
    expires_at: float
    """When its claims lapse, unless it renews them."""
    version: str | None
    """The version of its code, with the revision of the schema that it is written for."""
    slots: int | None
    """How many model calls it makes at once; ``null`` for one that makes none."""
    draining_at: float | None
    """When it began to leave, or was asked to; ``null`` while it takes work."""
    sandbox: str | None
    """The sandbox of its commands; ``null`` while it has run none."""
    held: dict[StepKind, int]
    """Claims by kind."""
    steps: list[HeldStepObject]
    """Model calls and tool calls among them, the oldest first; of a large fleet the oldest of all workers."""


class WorkerList(BaseModel):
    """Live workers, in the order in which they came."""

    object: Literal["list"] = "list"
    data: list[WorkerObject]


class Draining(BaseModel):
    """A worker that was asked to leave."""

    object: Literal["hermes.worker.draining"] = "hermes.worker.draining"
    worker_id: str


@router.get("", response_model=WorkerList, dependencies=[FOR_SCALERS])
async def list_workers(context: Context) -> WorkerList:
    """The worker processes of the whole installation, and what each of them holds."""
    found = await context.call_store(load_workers, context.client.database)
    return WorkerList(data=[WorkerObject.model_validate(view, from_attributes=True) for view in found])


@router.post(
    "/{worker_id}/drain",
    status_code=202,
    response_model=Draining,
    responses=schema.declare_errors(404),
    dependencies=[FOR_OPERATORS],
)
async def drain_worker(context: Context, worker_id: Annotated[str, Path(max_length=40)]) -> Draining:
    """Drain a worker, as SIGTERM does: it takes nothing new, finishes what it can, hands the rest over and ends. It
    learns of it with its next heartbeat; a process of a pool takes its whole pool along. The supervisor that keeps it
    running starts another. Idempotent."""
    try:
        await context.call_store(context.client.workers.drain, worker_id)
    except WorkerNotFound as error:
        raise ApiError(404, f"{error}.", code="worker_not_found", param="worker_id") from None
    return Draining(worker_id=worker_id)
