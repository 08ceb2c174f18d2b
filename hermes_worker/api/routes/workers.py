"""The worker processes of the installation: what they hold, and how to drain one."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from hermes_worker.api import schema
from hermes_worker.api.auth import FOR_OPERATORS, FOR_SCALERS
from hermes_worker.api.context import Context
from hermes_worker.api.errors import RouteRefusal, answer_errors
from hermes_worker.schemas.fleet import Draining, WorkerList
from hermes_worker.store.worker_claims import load_workers
from hermes_worker.store.workers import WorkerNotFound

router = APIRouter(
    prefix="/v1/workers",
    tags=["health"],
    route_class=answer_errors(
        {
            WorkerNotFound: RouteRefusal(404, "worker_not_found", "worker_id"),
        }
    ),
    responses=schema.declare_errors(503),
)


@router.get("", response_model=WorkerList, dependencies=[FOR_SCALERS])
async def list_workers(context: Context) -> WorkerList:
    """The worker processes of the whole installation, and what each of them holds."""
    return WorkerList(data=await context.call_store(load_workers, context.client.database))


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
    await context.call_store(context.client.workers.drain, worker_id)
    return Draining(worker_id=worker_id)
