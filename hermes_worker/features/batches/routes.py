"""Many runs in one request: submit them, stop them, wait for them. And retry a run that ended."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import Field, StringConstraints, ValidationError

from hermes_worker.api import schema
from hermes_worker.api.auth import READS, WRITES, Caller
from hermes_worker.api.bodies import JsonRoute
from hermes_worker.api.context import Context
from hermes_worker.api.cursors import CURSOR, make_cursor, read_cursor
from hermes_worker.api.errors import ApiError, RouteRefusal, answer_errors, run_not_found, submission_error, wrong_field
from hermes_worker.api.formats import NO_NUL
from hermes_worker.api.owners import OwnRun
from hermes_worker.api.routes.runs import (
    build_run_filter,
    build_started_run,
    build_submission,
    require_deliverable,
    require_enabled,
)
from hermes_worker.api.schema import RequestBody
from hermes_worker.api.stopping import stop
from hermes_worker.core.principals import Principal
from hermes_worker.core.run import TERMINAL, RunKind, RunStatus
from hermes_worker.features.batches.service import BATCH_MAX, Outcome, accept_all, announce_all, retry
from hermes_worker.schemas.runs import (
    BatchResult,
    BatchResults,
    ErrorDetail,
    JoinedRuns,
    StartedRun,
    StoppedRuns,
    WaitedRun,
)
from hermes_worker.services.submission import Submission, announce
from hermes_worker.store.runs.listing import Listing, RunFilter
from hermes_worker.store.runs.rerun import NotRepeatable
from hermes_worker.store.runs.runs import Created
from hermes_worker.store.runs.views import LastStatus

router = APIRouter(
    prefix="/v1",
    tags=["runs"],
    route_class=answer_errors(
        {
            NotRepeatable: RouteRefusal(409, "run_not_repeatable"),
        },
        JsonRoute,
    ),
    responses=schema.declare_errors(503),
)

WAIT_S_MAX = 60.0
_PAGES_MAX = 10
"""Most pages of the list that one request reads (``store.runs.listing`` bounds each)."""
_RunId = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=NO_NUL)]


class _BatchItem(schema.CreateRun):
    idempotency_key: Annotated[str, StringConstraints(max_length=256)] | None = None


class SubmitBatch(RequestBody):
    """Runs to be made."""

    runs: list[Any] = Field(
        min_length=1,
        max_length=BATCH_MAX,
        description="Each an object, as the body of POST /v1/runs. What is none is refused by itself. "
        "'idempotency_key' stands for the header of that name.",
    )
    dry_run: bool = Field(False, description="Accept none of them: only say what is wrong with the form of each.")


@router.post(
    "/batch/runs",
    response_model=BatchResults,
    response_model_exclude_none=True,
    responses=schema.declare_errors(408),
    dependencies=[WRITES],
)
async def submit_batch(context: Context, caller: Caller, body: SubmitBatch) -> BatchResults:
    """Accept up to a thousand runs. Each is accepted or refused by itself; the answer says which, one by one. Runs
    without 'session_id' and 'idempotency_key' are written a hundred at a time."""
    senders = await context.call_store(context.client.workers.list_senders)
    read = [read_item(document, caller, senders) for document in body.runs]
    if body.dry_run:
        said = [
            _build_result(n, each) if isinstance(each, ApiError) else BatchResult(index=n)
            for n, each in enumerate(read)
        ]
        wrong = sum(each.error is not None for each in said)
        return BatchResults(data=said, accepted=len(said) - wrong, refused=wrong)
    if caller.operates:
        await context.call_store(require_enabled, context, caller)
    asked = [context.adapt_to_stack(each) for each in read if isinstance(each, Submission)]
    outcomes = await context.call_store(accept_all, context.client, asked)
    context.spawn(context.tell_broker(announce_all, context.client, outcomes))
    left = iter(outcomes)
    data = [_build_result(n, each if isinstance(each, ApiError) else next(left)) for n, each in enumerate(read)]
    refused = sum(each.error is not None for each in data)
    return BatchResults(data=data, accepted=len(data) - refused, refused=refused)


def read_item(document: Any, caller: Principal, senders: Collection[Collection[str]]) -> Submission | ApiError:
    """Read one submission of several, or the error that refuses it. ``senders`` are the variables of each worker that
    delivers."""
    if not isinstance(document, dict):
        return ApiError(400, "A run must be a JSON object.", code="invalid_type", param="body")
    try:
        item = _BatchItem.model_validate(document)
        plain = schema.CreateRun.model_construct(item.model_fields_set, **dict(item))
        submission = build_submission(plain, caller, item.idempotency_key)
        require_deliverable(senders, submission)
        return submission
    except ValidationError as error:
        return wrong_field(error)
    except ApiError as error:
        return error


def _build_result(index: int, outcome: Outcome | ApiError) -> BatchResult:
    if isinstance(outcome, Created):
        said = build_started_run(outcome)
        return BatchResult(
            index=index,
            run_id=said.run_id,
            session_id=outcome.session_id,
            status=said.status,
            not_before=said.not_before,
        )
    error = outcome if isinstance(outcome, ApiError) else submission_error(outcome)
    return BatchResult(index=index, error=ErrorDetail(**error.document["error"]))


# --- stop ------------------------------------------------------------------------------------------------------------


class StopMatching(schema.RunFilters, RequestBody):
    """Which runs to stop: the open ones for which all of this holds."""

    status: list[Annotated[RunStatus, Field(strict=False)]] = Field([], max_length=12, description="Any of these.")
    kind: list[Annotated[RunKind, Field(strict=False)]] = Field(
        [], max_length=len(RunKind), description="Any of these."
    )
    dry_run: bool = Field(False, description="Only say which runs these are.")
    limit: Annotated[int, schema.WHOLE] = Field(100, ge=1, le=BATCH_MAX, description="The newest so many of them.")
    cursor: str | None = Field(None, pattern=CURSOR, description="'next_cursor' of the answer before.")


@router.post("/batch/stop", response_model=StoppedRuns, responses=schema.declare_errors(408), dependencies=[WRITES])
async def stop_matching(context: Context, caller: Caller, body: StopMatching) -> StoppedRuns:
    """Stop the open runs that match, each with all that it caused; or only say which these are. Without a filter these
    are all open runs of the tenant. Idempotent."""
    said = schema.ListRuns(**body.model_dump(exclude={"dry_run", "limit", "status", "cursor"}))
    said.status = [status for status in body.status or RunStatus if status not in TERMINAL]
    if not said.status:
        return StoppedRuns(dry_run=body.dry_run, run_ids=[], has_more=False, next_cursor=None)
    meant = build_run_filter(said, caller.tenant, caller.source)
    below = int(read_cursor(context.proofs, asdict(meant), body.cursor)) if body.cursor else None
    run_ids, below = await context.call_store(_list_newest, Listing(context.client.database), meant, body.limit, below)
    if not body.dry_run:
        for run_id in run_ids:
            await stop(context, run_id, by=caller.display_name)
    cursor = None if below is None else make_cursor(context.proofs, asdict(meant), str(below))
    return StoppedRuns(dry_run=body.dry_run, run_ids=run_ids, has_more=below is not None, next_cursor=cursor)


def _list_newest(listing: Listing, wanted: RunFilter, limit: int, below: int | None) -> tuple[list[str], int | None]:
    """List the newest runs below a row number, at most ``limit``, and the number to go on below; ``None`` at the
    end."""
    found: list[str] = []
    for _ in range(_PAGES_MAX):
        page = listing.list_page(wanted, limit=limit - len(found), below=below)
        found += [view.run_id for view in page.views]
        below = page.below
        if below is None or len(found) == limit:
            break
    return found, below


# --- wait ------------------------------------------------------------------------------------------------------------


class JoinRuns(RequestBody):
    """Runs to wait for."""

    run_ids: list[_RunId] = Field(min_length=1, max_length=BATCH_MAX)
    mode: Literal["all", "any"] = "all"
    timeout_s: float = Field(30.0, ge=0, le=WAIT_S_MAX)


@router.get(
    "/runs/{run_id}/wait",
    response_model=WaitedRun,
    response_model_exclude_none=True,
    responses=schema.declare_errors(404, 410),
    dependencies=[READS],
)
async def wait_for_run(
    context: Context,
    run_id: OwnRun,
    timeout_s: Annotated[float, Query(ge=0, le=WAIT_S_MAX, description="Seconds at most.")] = 30.0,
) -> WaitedRun:
    """Answers when the run has ended, or the time is over. Ask again to wait on."""
    ends = await context.waiting.wait_until_ended(context, [run_id], is_any=False, timeout_s=timeout_s)
    return _build_waited_run(run_id, ends.get(run_id))


@router.post(
    "/batch/wait",
    response_model=JoinedRuns,
    response_model_exclude_none=True,
    responses=schema.declare_errors(404, 408),
    dependencies=[READS],
)
async def join_runs(context: Context, caller: Caller, body: JoinRuns) -> JoinedRuns:
    """Answers when all of the runs have ended, or one of them, or the time is over."""
    theirs = await context.call_store(context.client.views.find_owned, body.run_ids, caller.tenant)
    for run_id in body.run_ids:
        if run_id not in theirs:
            raise run_not_found(run_id)
    is_any = body.mode == "any"
    ends = await context.waiting.wait_until_ended(context, body.run_ids, is_any=is_any, timeout_s=body.timeout_s)
    waited = [_build_waited_run(run_id, ends.get(run_id)) for run_id in body.run_ids]
    ended = [each.ended for each in waited]
    return JoinedRuns(done=any(ended) if is_any else all(ended), runs=waited)


def _build_waited_run(run_id: str, end: LastStatus | None) -> WaitedRun:
    if end is None:
        return WaitedRun(run_id=run_id, ended=False)
    return WaitedRun(run_id=run_id, ended=True, status=end.status, exit_reason=end.exit_reason)


# --- once more -------------------------------------------------------------------------------------------------------


@router.post(
    "/runs/{run_id}/retry",
    status_code=202,
    response_model=StartedRun,
    response_model_exclude_none=True,
    responses=schema.declare_errors(404, 409, 410, 429),
    dependencies=[WRITES],
)
async def retry_run(context: Context, run_id: OwnRun, caller: Caller) -> StartedRun:
    """Accept a new run with the submission of one that has ended, in the same session. What that run did stands in the
    transcript, and nothing of it is done again. The new run is linked to it ('retry_of')."""
    created = await context.call_store(retry, context.client, run_id, caller)
    context.spawn(context.tell_broker(announce, context.client, created))
    return build_started_run(created)
