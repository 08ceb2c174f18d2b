"""Fork a run over the API."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, BackgroundTasks, Header, Response
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from hermes_worker.api import schema
from hermes_worker.api.auth import WRITES, Caller
from hermes_worker.api.bodies import JsonRoute
from hermes_worker.api.context import Context
from hermes_worker.api.errors import ApiError
from hermes_worker.api.formats import NOT_BLANK
from hermes_worker.api.owners import OwnRun
from hermes_worker.api.routes.runs import require_enabled
from hermes_worker.core.forks import ForkMatch, ForkTools
from hermes_worker.features.forks.rows import NotForkable
from hermes_worker.features.forks.schema import ForkObject
from hermes_worker.features.forks.service import ForkRequest, fork_run
from hermes_worker.services.submission import announce

router = APIRouter(
    prefix="/v1/runs",
    tags=["runs"],
    route_class=JsonRoute,
    responses=schema.declare_errors(404, 408, 409, 410, 429, 503),
)
_Key = Annotated[str, WithJsonSchema({"type": "string", "pattern": schema.KEY_FORM})]


class Fork(BaseModel):
    """Where a fork begins, and what it does otherwise than its original."""

    model_config = ConfigDict(
        extra="forbid", strict=True, json_schema_extra={"example": {"at": 2, "tools": "recorded"}}
    )

    at: Annotated[int, schema.WHOLE] = Field(
        ge=0, le=100_000, description="The iterations that stand before the fork; 0: it begins with the input alone."
    )
    model: Annotated[str, Field(pattern=schema.MODEL_FORM)] | None = Field(None, description="Default: the original's.")
    prompt: Annotated[str, Field(min_length=1, max_length=1_000_000, pattern=NOT_BLANK)] | None = Field(
        None, description="The whole system prompt. Default: the original's."
    )
    tools: Literal["recorded", "live", "deny", "offline"] = Field(
        "recorded",
        description="'recorded': calls are answered as they were in the original, and what has effects and is not "
        "recorded is refused. 'offline': whatever is not recorded is refused. 'live': the tools run, with permissions "
        "of their own. 'deny': what has effects is refused. Only 'live' counts as production.",
    )
    match: Literal["strict", "order"] = Field(
        "strict",
        description="Which recorded call answers: the one at the same position, or the next one of the same tool with "
        "equal arguments.",
    )
    max_iterations: Annotated[int, Field(ge=1, le=100_000), schema.WHOLE] | None = None
    max_total_tokens: Annotated[int, Field(ge=1, le=10**12), schema.WHOLE] | None = None
    max_cost_usd: float | None = Field(None, gt=0, le=1_000_000, allow_inf_nan=False)


@router.post("/{run_id}/fork", status_code=202, response_model=ForkObject, dependencies=[WRITES])
async def fork(
    context: Context,
    run_id: OwnRun,
    caller: Caller,
    body: Fork,
    response: Response,
    later: BackgroundTasks,
    idempotency_key: Annotated[_Key | None, Header()] = None,
) -> ForkObject:
    """Begin a run that goes on from an earlier point of this one, in a conversation of its own. The original does not
    change. Its effects are not taken back, and nothing that was allowed in it is allowed in the fork."""
    if caller.operates:
        await context.call_store(require_enabled, context, caller)
    asked = ForkRequest(
        run_id=run_id,
        step=body.at,
        model=body.model,
        prompt=body.prompt,
        tools=ForkTools(body.tools),
        match=ForkMatch(body.match),
        iterations_max=body.max_iterations,
        tokens_max=body.max_total_tokens,
        cost_usd_max=body.max_cost_usd,
        idempotency_key=idempotency_key,
    )
    try:
        created = await context.call_store(fork_run, context.client, asked, caller)
    except NotForkable as error:
        raise ApiError(409, f"{error}.", code="run_not_forkable", param="at") from None
    if created.was_replayed:
        response.headers["Idempotent-Replayed"] = "true"
    else:
        later.add_task(context.tell_broker, announce, context.client, created)
    return ForkObject(
        run_id=created.run_id, session_id=created.session_id, forked_from=run_id, step=body.at, tools=body.tools
    )
