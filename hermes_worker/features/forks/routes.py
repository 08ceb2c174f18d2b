"""Fork a run over the API, compare two, and read what replays found."""

from __future__ import annotations

import json
from typing import Annotated, Literal

from fastapi import APIRouter, BackgroundTasks, Header, Path, Query, Response
from pydantic import BaseModel, Field, StringConstraints, WithJsonSchema

from hermes_worker.api import schema
from hermes_worker.api.auth import READS, WRITES, Caller
from hermes_worker.api.bodies import JsonRoute
from hermes_worker.api.context import Context
from hermes_worker.api.errors import ApiError, RouteRefusal, answer_errors, invalid
from hermes_worker.api.formats import NO_NUL, NOT_BLANK
from hermes_worker.api.owners import ActsFor, OwnRun, require_own_run
from hermes_worker.api.routes.runs import require_enabled
from hermes_worker.api.schema import RequestBody
from hermes_worker.core.forks import REPLAY_FORM, ForkMatch, ForkTools
from hermes_worker.features.forks.replay_rules import describe_reply, find_difference
from hermes_worker.features.forks.rows import (
    NotForkable,
    list_calls_of_reply,
    list_replays,
    load_reply_rows,
    write_grades,
)
from hermes_worker.features.forks.schema import ComparisonObject, ForkObject, ReplayObject, ReplaySummary
from hermes_worker.features.forks.service import ForkRequest, build_replay, fork_run
from hermes_worker.services.submission import announce

router = APIRouter(
    prefix="/v1/runs",
    tags=["runs"],
    route_class=answer_errors(
        {
            NotForkable: RouteRefusal(409, "run_not_forkable", "at"),
        },
        JsonRoute,
    ),
    responses=schema.declare_errors(404, 408, 409, 410, 429, 503),
)
comparisons = APIRouter(prefix="/v1/runs", tags=["runs"], responses=schema.declare_errors(404, 410, 503))
replays = APIRouter(prefix="/v1/replays", tags=["runs"], route_class=JsonRoute, responses=schema.declare_errors(503))
_RUNS_MAX, _GRADERS_MAX = 1_000, 20
_Name = Annotated[str, Path(pattern=REPLAY_FORM)]
_RunId = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=NO_NUL)]
_Grader = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=NO_NUL)]
_Key = Annotated[str, WithJsonSchema({"type": "string", "pattern": schema.KEY_FORM})]


class Fork(BaseModel, extra="forbid", strict=True, json_schema_extra={"example": {"at": 2, "tools": "recorded"}}):
    """Where a fork begins, and what it does otherwise than its original."""

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
    replay: Annotated[str, Field(pattern=REPLAY_FORM)] | None = Field(
        None, description="The replay that the fork is part of, by a name of yours. Not with 'live'."
    )
    max_iterations: Annotated[int, Field(ge=1, le=100_000), schema.WHOLE] | None = None
    max_total_tokens: Annotated[int, Field(ge=1, le=10**12), schema.WHOLE] | None = None
    max_cost_usd: float | None = Field(None, gt=0, le=1_000_000, allow_inf_nan=False)


@comparisons.get("/{run_id}/comparison", response_model=ComparisonObject, dependencies=[READS])
async def compare(
    context: Context,
    run_id: OwnRun,
    caller: Caller,
    wanted: Annotated[str, Query(alias="with", description="The id of the other run.")],
) -> ComparisonObject:
    """The first step in which this run and another one did not do the same: they said something else, or called
    something else. Ids of calls, and the order of keys in arguments, do not count."""
    other = await require_own_run(context, caller, wanted)
    ids, database = (run_id, other), context.client.database
    rows = [await context.call_store(load_reply_rows, database, each) for each in ids]
    mine, theirs = [[json.loads(row.body) for row in its] for its in rows]
    at = find_difference(mine, theirs)
    sides: list[tuple[str | None, list[str]]] = [(None, []), (None, [])]
    if at is not None:
        for number, (each, its, bodies) in enumerate(zip(ids, rows, (mine, theirs), strict=True)):
            if at <= len(its):
                calls = await context.call_store(list_calls_of_reply, database, each, its[at - 1].seq)
                sides[number] = (describe_reply(bodies[at - 1]), calls)
    (does, calls), (other_does, other_calls) = sides
    return ComparisonObject(
        run_id=run_id,
        other_run_id=other,
        differs_at=at,
        does=does,
        other_does=other_does,
        calls=calls,
        other_calls=other_calls,
        steps=len(mine),
        other_steps=len(theirs),
    )


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
    if body.replay is not None and body.tools == "live":
        raise invalid("replay", "Invalid 'replay': what runs its tools is no evaluation.", "invalid_value")
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
        replay=body.replay,
        idempotency_key=idempotency_key,
    )
    created = await context.call_store(fork_run, context.client, asked, caller)
    if created.was_replayed:
        response.headers["Idempotent-Replayed"] = "true"
    else:
        later.add_task(context.tell_broker, announce, context.client, created)
    return ForkObject(
        run_id=created.run_id, session_id=created.session_id, forked_from=run_id, step=body.at, tools=body.tools
    )


class ReplayList(BaseModel):
    """Replays, newest first."""

    object: Literal["list"] = "list"
    data: list[ReplaySummary]


class GradeReplay(RequestBody):
    """What graders found."""

    grades: dict[_RunId, Annotated[dict[_Grader, bool], Field(max_length=_GRADERS_MAX)]] = Field(
        max_length=_RUNS_MAX, description="For each run of the replay whether each grader, by its name, finds it good."
    )


@replays.get("", response_model=ReplayList, dependencies=[READS])
async def list_all_replays(
    context: Context, tenant: ActsFor, limit: Annotated[int, Query(ge=1, le=1_000)] = 100
) -> ReplayList:
    """The replays, newest first."""
    found = await context.call_store(list_replays, context.client.database, tenant, limit=limit)
    return ReplayList(data=[ReplaySummary(**row._asdict()) for row in found])


@replays.get("/{replay}", response_model=ReplayObject, responses=schema.declare_errors(404), dependencies=[READS])
async def get_replay(context: Context, tenant: ActsFor, replay: _Name) -> ReplayObject:
    """The report of a replay: where each run first differs from its original, its answers, its cost and its grades."""
    found = await context.call_store(build_replay, context.client, tenant, replay)
    if found is None:
        raise _replay_not_found(replay)
    return found


@replays.put("/{replay}/grades", status_code=204, responses=schema.declare_errors(404), dependencies=[WRITES])
async def grade_replay(context: Context, tenant: ActsFor, replay: _Name, body: GradeReplay) -> None:
    """Keep what graders found of the answers of a replay, beside what was found before. Other runs are left out."""
    if not await context.call_store(write_grades, context.client.database, tenant, replay, body.grades):
        raise _replay_not_found(replay)


def _replay_not_found(name: str) -> ApiError:
    return ApiError(404, f"there is no replay {name!r}.", code="replay_not_found", param="replay")
