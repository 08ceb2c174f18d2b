"""Submit runs, list them, read one, stop one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Annotated, Literal

from fastapi import APIRouter, BackgroundTasks, Depends, Header, Query, Response
from fastapi.responses import JSONResponse
from pydantic import WithJsonSchema

from hermes_worker.api import schema
from hermes_worker.api.auth import READS, WRITES, Caller
from hermes_worker.api.bodies import make_body_reader
from hermes_worker.api.context import ApiContext, Context
from hermes_worker.api.cursors import make_cursor, read_cursor
from hermes_worker.api.errors import ApiError, invalid
from hermes_worker.api.messages import parse_conversation
from hermes_worker.api.owners import OwnRun, choose_listed_tenant
from hermes_worker.api.stopping import stop
from hermes_worker.channels.readiness import explain_undeliverable
from hermes_worker.channels.targets import TargetError
from hermes_worker.core.budget import BudgetMode
from hermes_worker.core.principals import USER_HEADER, Principal
from hermes_worker.core.priority import Priority
from hermes_worker.core.run_views import RunView
from hermes_worker.core.spec import Multitask
from hermes_worker.safety.redaction import redact
from hermes_worker.schemas.runs import (
    BeganWithObject,
    CallSummary,
    ExplanationObject,
    RunList,
    RunObject,
    StartedRun,
    Stopping,
    TurnResult,
    UndeliveredObject,
)
from hermes_worker.services.results import build_turn_result
from hermes_worker.services.sheets import redact_deliveries
from hermes_worker.services.submission_rules import Submission
from hermes_worker.store.access.principals import TenantDisabled
from hermes_worker.store.runs.explanations import Explanations
from hermes_worker.store.runs.listing import Listing, RunFilter, RunPage
from hermes_worker.store.runs.runs import Created, RunNotFound
from hermes_worker.wiring import Client

router = APIRouter(prefix="/v1/runs", tags=["runs"], responses=schema.declare_errors(503))

_ATTENTION_MAX = 100
_Key = Annotated[str, WithJsonSchema({"type": "string", "pattern": schema.KEY_FORM})]


# --- submit ----------------------------------------------------------------------------------------------------------


def require_enabled(context: ApiContext, caller: Principal) -> None:
    """Raise ``ApiError`` when the caller's tenant is disabled: nothing new begins for it, even for an operator."""
    try:
        context.tenants.require_enabled(caller.tenant)
    except TenantDisabled as error:
        raise ApiError(403, f"Refused: {error}.", code="tenant_disabled") from None


def build_submission(body: schema.CreateRun, caller: Principal, idempotency_key: str | None) -> Submission:
    """Build the submission that the body of a request asks for. Raises ``ApiError``."""
    if body.previous_response_id is not None:
        message = "'previous_response_id' is not supported here yet; continue a conversation with 'session_id'."
        raise invalid("previous_response_id", message, "unsupported_parameter")
    if body.workspace is not None and not caller.operates:
        message = f"Only the person at the machine names a directory of it: with {USER_HEADER!r}."
        raise ApiError(403, message, code="not_the_installations_key", param="workspace")
    said = parse_conversation(body.input, body.conversation_history)
    instructions = [text for text in (*said.instructions, body.instructions or "") if text.strip()]
    plain = {_NAMES.get(name, name): value for name, value in body if value is not None and name not in _READ_APART}
    return Submission(
        **plain,
        input=said.input,
        instructions="\n\n".join(instructions) or None,
        history=said.history,
        budget=BudgetMode(body.budget_mode) if body.budget_mode else None,
        principal=caller,
        source=caller.source,
        priority=Priority.from_word(body.priority) if body.priority else None,
        deliver=_deliver(body),
        multitask=Multitask(body.multitask),
        idempotency_key=idempotency_key,
    )


_NAMES = {
    "workspace": "directory",
    "max_iterations": "iterations_max",
    "max_wall_s": "wall_s_max",
    "max_total_tokens": "tokens_max",
    "max_tool_calls": "tool_calls_max",
    "max_cost_usd": "cost_usd_max",
}
"""Fields of a body that have another name in ``Submission``."""
_READ_APART = {
    "input",
    "instructions",
    "conversation_history",
    "budget_mode",
    "priority",
    "deliver",
    "webhook",
    "multitask",
}
"""Fields of a body that are converted; all others are copied by their name."""


def _deliver(body: schema.CreateRun) -> list[str]:
    targets = [body.deliver] if isinstance(body.deliver, str) else list(body.deliver or ())
    return [*targets, f"webhook:{body.webhook}"] if body.webhook else targets


_BODY_SCHEMA = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": schema.CreateRun.model_json_schema()}},
    }
}


@router.post(
    "",
    status_code=202,
    response_model=StartedRun,
    response_model_exclude_none=True,
    openapi_extra=_BODY_SCHEMA,
    responses=schema.declare_errors(408, 409, 429),
    dependencies=[WRITES],
)
async def create_run(
    context: Context,
    caller: Caller,
    body: Annotated[schema.CreateRun, Depends(make_body_reader(schema.CreateRun))],
    response: Response,
    later: BackgroundTasks,
    idempotency_key: Annotated[_Key | None, Header()] = None,
) -> StartedRun:
    """Accept a run. It is committed when this answers, and starts as soon as a worker is free."""
    from hermes_worker.services.submission import accept, announce  # most commands of which this is a router only read

    submission = context.adapt_to_stack(build_submission(body, caller, idempotency_key))
    if caller.operates:
        await context.call_store(require_enabled, context, caller)
    if submission.deliver:
        senders = await context.call_store(context.client.workers.list_senders)
        require_deliverable(senders, submission)
    created = await context.call_store(accept, context.client, submission)
    if created.was_replayed:
        response.headers["Idempotent-Replayed"] = "true"
    else:
        # After the answer: it does not depend on the broker, which may be slow or away.
        later.add_task(context.tell_broker, announce, context.client, created)
    response.headers["X-Hermes-Session-Id"] = created.session_id
    return build_started_run(created)


def require_deliverable(senders: Collection[Collection[str]], submission: Submission) -> None:
    """Raise ``ApiError`` when no worker has the credentials for a target of the answer: it would be lost. ``senders``
    are the variables of each worker that delivers."""
    with suppress(TargetError):  # submitting refuses it
        if (why := explain_undeliverable(senders, submission.deliver or "local")) is not None:
            raise invalid("deliver", f"Invalid 'deliver': {why}.", "undeliverable_target")


def build_started_run(created: Created) -> StartedRun:
    """Build the answer for an accepted run."""
    if created.was_steered:
        return StartedRun(run_id=created.run_id, status="steered")
    if created.not_before is not None:
        return StartedRun(run_id=created.run_id, status="scheduled", not_before=created.not_before)
    return StartedRun(run_id=created.run_id)


# --- look ------------------------------------------------------------------------------------------------------------


@router.get(
    "",
    response_model=RunList,
    response_model_exclude_none=True,
    responses=schema.declare_errors(404),
    dependencies=[READS],
)
async def list_runs(context: Context, caller: Caller, wanted: Annotated[schema.ListRunsInShort, Query()]) -> RunList:
    """Runs, newest first."""
    page, cursor = await load_page(context, caller, wanted)
    return RunList(
        data=[_shorten(build_run_object(view, source=caller.source), wanted.output_chars) for view in page.views],
        has_more=cursor is not None,
        next_cursor=cursor,
    )


async def load_page(context: Context, caller: Caller, wanted: schema.ListRuns) -> tuple[RunPage, str | None]:
    """Load a page of the runs that a request asks for, with the cursor of the next one. Raises ``ApiError``."""
    meant = build_run_filter(wanted, await choose_listed_tenant(context, caller, wanted.tenant), caller.source)
    below = int(read_cursor(context.proofs, asdict(meant), wanted.cursor)) if wanted.cursor else None
    if below is not None and wanted.before is not None:
        raise invalid("before", "Invalid 'before': 'cursor' says where to go on.", "invalid_value")
    listing = Listing(context.client.database)
    try:
        page = await context.call_store(listing.list_page, meant, limit=wanted.limit, below=below, before=wanted.before)
    except RunNotFound:
        raise invalid("before", f"Invalid 'before': there is no run {wanted.before!r}.", "run_not_found") from None
    return page, None if page.below is None else make_cursor(context.proofs, asdict(meant), str(page.below))


def _shorten(run: RunObject, chars_max: int | None) -> RunObject:
    """Cut a run's texts to ``chars_max``, after secrets were redacted, so that no part of one is left."""
    if chars_max is not None:
        run.output = run.output and run.output[:chars_max]
        run.error = run.error and run.error[:chars_max]
    return run


def build_run_filter(wanted: schema.ListRuns, tenant: str, source: str) -> RunFilter:
    """Build the filter from the parameters of a list of a tenant's runs."""
    return RunFilter(
        tenant=tenant,
        source=source,
        statuses=tuple(sorted(set(wanted.status))),
        kinds=tuple(sorted(set(wanted.kind))),
        tags=tuple(sorted(set(wanted.tag))),
        session_id=wanted.session_id,
        job_id=wanted.job_id,
        model=wanted.model,
        origin=wanted.source,
        parent=wanted.parent_run_id,
        created_after=wanted.created_after,
        created_before=wanted.created_before,
        cost_usd_min=wanted.min_cost_usd,
        cost_usd_max=wanted.max_cost_usd,
        text=wanted.text,
    )


@router.get(
    "/{run_id}",
    response_model=RunObject,
    response_model_exclude_none=True,
    responses=schema.declare_errors(404, 410),
    dependencies=[READS],
)
async def get_run(context: Context, caller: Caller, run_id: OwnRun) -> RunObject:
    """A run and what became of its tool calls."""
    return await context.call_store(_inspect, context.client, run_id, caller.source)


@router.get(
    "/{run_id}/result",
    response_model=None,
    responses=schema.declare_answer(TurnResult) | schema.declare_errors(404, 410),
    dependencies=[READS],
)
async def get_result(context: Context, caller: Caller, run_id: OwnRun) -> JSONResponse:
    """The result of a run so far, under the names of Hermes Agent's result: answer, messages, usage, cost, flags."""
    result = await context.call_store(build_turn_result, context.client.views, run_id, caller.source)
    return JSONResponse(result.model_dump(exclude_unset=True))


@router.get(
    "/{run_id}/explain",
    response_model=ExplanationObject,
    response_model_exclude_none=True,
    responses=schema.declare_errors(404, 410),
    dependencies=[READS],
)
async def explain_run(context: Context, run_id: OwnRun) -> ExplanationObject:
    """Why a run is where it is: one sentence, and the facts behind it."""
    found = await context.call_store(Explanations(context.client.database).explain_run, run_id)
    return ExplanationObject(
        run_id=run_id,
        because=found.because,
        text=redact(found.text),
        since=found.since,
        until=found.until,
        facts={
            name: redact(value) if isinstance(value, str) else value
            for name, value in found.facts.items()
            if value is not None
        },
    )


def _inspect(client: Client, run_id: str, source: str) -> RunObject:
    views = client.views
    listing = Listing(client.database)
    view = replace(views.load_run(run_id), undelivered=listing.list_undelivered(run_id))
    by_status = views.count_calls(run_id)
    troubled = views.list_calls(run_id, limit=_ATTENTION_MAX, only_troubled=True)
    calls = CallSummary(
        total=sum(by_status.values()),
        by_status=by_status,
        attention=[schema.build_call_object(call) for call in troubled],
    )
    found = listing.load_notes(run_id)
    inspected = build_run_object(view.with_tags(found.tags), calls, source=source)
    if not view.status.is_terminal:
        inspected.standing = schema.build_standing_object(client.standings.find_standing(run_id))
    notes = asdict(found)
    inspected.fork_step = notes.pop("fork_step")
    begun = {name: value or None for name, value in notes.pop("began_with").items()}
    for name, value in notes.items():
        setattr(inspected, name, value or None)
    inspected.began_with = BeganWithObject.model_validate(begun)
    inspected.budget = schema.build_budget_object(client.trees.load_budget(run_id))
    return inspected


_PRIORITY: Mapping[Priority, Literal["low", "high"] | None] = {
    Priority.LOW: "low",
    Priority.NORMAL: None,
    Priority.HIGH: "high",
}


def build_run_object(view: RunView, calls: CallSummary | None = None, *, source: str = "api") -> RunObject:
    """Build a run as lists show it, with its session as a caller from ``source`` names it; with ``calls``, as it is
    shown alone."""
    has_ended = view.status.is_terminal
    return RunObject.from_record(
        view,
        session_id=view.session.choose_reference(source),
        delegated=view.delegated or None,
        tags=list(view.tags) or None,
        priority=_PRIORITY[view.priority],
        usage=schema.build_usage_object(view),
        error=redact(view.error) if view.error else None,
        exit_reason=view.exit_text,
        completed=view.is_completed if has_ended else None,
        partial=view.is_partial if has_ended else None,
        failed=view.is_failed if has_ended else None,
        interrupted=view.is_interrupted if has_ended else None,
        estimated_cost_usd=None if view.cost_usd is None else float(view.cost_usd),
        doubtful_cost_usd=float(view.doubtful_cost_usd) or None,
        undelivered=[UndeliveredObject.from_record(each) for each in redact_deliveries(view).undelivered] or None,
        tool_calls=calls,
    )


# --- stop ------------------------------------------------------------------------------------------------------------


@router.post(
    "/{run_id}/stop",
    response_model=Stopping,
    response_model_exclude_defaults=True,
    responses=schema.declare_errors(404, 410),
    dependencies=[WRITES],
)
async def stop_run(context: Context, run_id: OwnRun, caller: Caller) -> Stopping:
    """Ask a run, and all that it caused, to stop: what it delegated, and the turns that background answers began. A run
    that has ended stays as it ended; what it caused and goes on is stopped all the same. Idempotent."""
    stopped = await stop(context, run_id, by=caller.display_name)
    return Stopping(run_id=run_id, status=stopped.status.value, caused=list(stopped.caused_run_ids))
