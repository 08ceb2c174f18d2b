"""Pause a run, resume it, steer it."""

from __future__ import annotations

from fastapi import APIRouter, BackgroundTasks
from pydantic import Field

from hermes_worker.api import schema
from hermes_worker.api.auth import WRITES, Caller
from hermes_worker.api.bodies import JsonRoute
from hermes_worker.api.context import Context
from hermes_worker.api.errors import RouteRefusal, answer_errors, invalid
from hermes_worker.api.formats import NOT_BLANK
from hermes_worker.api.owners import OwnRun
from hermes_worker.api.schema import RequestBody
from hermes_worker.schemas.runs import Controlled
from hermes_worker.store.runs.control import STEER_CHARS_MAX, Control, NotAtWork
from hermes_worker.stream.live import Live

router = APIRouter(
    prefix="/v1/runs",
    tags=["runs"],
    route_class=answer_errors(
        {
            NotAtWork: RouteRefusal(409, "run_not_active", text="{error}"),
        },
        JsonRoute,
    ),
    responses=schema.declare_errors(404, 409, 410, 503),
)


class Steer(RequestBody):
    """Something to say to a run."""

    text: str = Field(max_length=STEER_CHARS_MAX, json_schema_extra={"pattern": NOT_BLANK})


@router.post("/{run_id}/pause", response_model=Controlled, dependencies=[WRITES])
async def pause_run(context: Context, run_id: OwnRun, caller: Caller) -> Controlled:
    """Begin nothing new in a run and in all that it caused; what is in flight ends as it would. Idempotent."""
    status = await context.call_store(Control(context.client.database).pause, run_id, by=caller.display_name)
    return Controlled(run_id=run_id, status=status.value)


@router.post("/{run_id}/resume", response_model=Controlled, dependencies=[WRITES])
async def resume_run(context: Context, run_id: OwnRun, caller: Caller, later: BackgroundTasks) -> Controlled:
    """Let a paused run, and all that it caused, go on where they were. Idempotent."""
    status, hints = await context.call_store(Control(context.client.database).resume, run_id, by=caller.display_name)
    later.add_task(context.tell_broker, context.client.publisher.send, hints)
    return Controlled(run_id=run_id, status=status.value)


@router.post(
    "/{run_id}/steer",
    response_model=Controlled,
    responses=schema.declare_errors(408),
    dependencies=[WRITES],
)
async def steer_run(
    context: Context, run_id: OwnRun, body: Steer, caller: Caller, later: BackgroundTasks
) -> Controlled:
    """Say something to a run at work; it reads it with its next tool result."""
    if not body.text.strip():
        raise invalid("text", "Invalid 'text': it is empty.")
    await context.call_store(Control(context.client.database).steer, run_id, body.text, by=caller.display_name)
    later.add_task(context.tell_broker, Live(context.client.redis).nudge, run_id)
    return Controlled(run_id=run_id, status="steered")
