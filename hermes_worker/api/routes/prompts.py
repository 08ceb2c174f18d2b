"""The prompt of a run's model call."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from hermes_worker.api import schema
from hermes_worker.api.auth import READS
from hermes_worker.api.context import Context
from hermes_worker.api.errors import ApiError
from hermes_worker.api.owners import OwnRun
from hermes_worker.schemas.runs import PromptObject
from hermes_worker.services.model_prompts import ReplyNotFound, load_prompt

router = APIRouter(prefix="/v1/runs", tags=["runs"], responses=schema.declare_errors(503))
_REPLY_MAX = 1_000_000


@router.get(
    "/{run_id}/prompt", response_model=PromptObject, responses=schema.declare_errors(404, 410), dependencies=[READS]
)
async def get_prompt(
    context: Context,
    run_id: OwnRun,
    reply: Annotated[
        Annotated[int, Field(ge=1, le=_REPLY_MAX), schema.WHOLE] | None,
        Query(description="The prompt that led to this reply of the run; default: the newest."),
    ] = None,
) -> PromptObject:
    """The prompt of one of the run's model calls: the system prompt, the tools and the messages, long conversations as
    they were compacted. By default that of the newest reply, or of the call that is due."""
    try:
        found = await context.call_store(load_prompt, context.client.database, run_id, reply)
    except ReplyNotFound:
        raise ApiError(404, f"Reply not found: {reply}", code="reply_not_found", param="reply") from None
    return PromptObject(
        run_id=run_id,
        model=found.model,
        reply=found.reply,
        replies=found.replies,
        system=found.system,
        tools=[dict(each) for each in found.tools],
        messages=[dict(each) for each in found.messages],
    )
