"""Answer what runs ask: approvals and questions, and the inbox of both."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, BackgroundTasks, Query
from pydantic import BaseModel, Field, JsonValue, WithJsonSchema

from hermes_worker.api import schema
from hermes_worker.api.auth import APPROVES, READS, WRITES, Caller, require_scope
from hermes_worker.api.bodies import JsonRoute
from hermes_worker.api.context import ApiContext, Context
from hermes_worker.api.errors import ApiError, invalid
from hermes_worker.api.formats import NOT_BLANK
from hermes_worker.api.owners import OwnRun, choose_tenant_or_all
from hermes_worker.api.schema import WHOLE
from hermes_worker.core.principals import KeyScope
from hermes_worker.core.run import WaitKind
from hermes_worker.safety.approvals import CHOICE_WORDS, ApprovalChoice, parse_choice
from hermes_worker.schemas.approvals import AnsweredQuestion, DecisionList, WaitList
from hermes_worker.services import answers as answering
from hermes_worker.services.presenters import build_decision_object, build_wait_object
from hermes_worker.store.rows import Hint
from hermes_worker.store.runs.approval_history import load_decisions
from hermes_worker.store.runs.waits import NothingAsked, NotOffered, NotWaiting, Waits
from hermes_worker.stream.live import Live

router = APIRouter(prefix="/v1", tags=["approvals"], route_class=JsonRoute, responses=schema.declare_errors(503))
_ID_MAX = 2**53 - 1
"""The largest number that is the same in every JSON reader."""
_WAITS_MAX = 500
_WAIT_ID = (
    "Which question was seen: its 'id' in the list, 'wait_id' in its event. An answer that comes late is then refused "
    "instead of being taken for one to the next question."
)
_NO_WAIT_ID = (
    "Missing 'wait_id': an answer names the question that was seen. It is 'id' in GET /v1/approvals and 'wait_id' in "
    "the event {event}."
)
_NO_WAIT_IDS = (
    "Missing 'wait_ids': 'all' takes the list of the approvals that were seen, each by its 'id' in GET /v1/approvals."
)
_ALL = "Answer the approvals 'wait_ids' in the same way; without 'arguments' and 'wait_id'."
_WAIT_IDS = "With 'all': the approvals that were seen. What the run asked since is left open."
_ARGUMENTS = "Run the call with these instead; only with once, and with a key that has 'runs:write' as well."
_ONLY_ONCE: list[JsonValue] = [
    {"properties": {"arguments": {"type": "null"}}},
    {"properties": {"choice": {"enum": [word for word in CHOICE_WORDS if parse_choice(word) is ApprovalChoice.ONCE]}}},
]
"""Schemas: changed arguments are for a single call."""
_IS_ALL: dict[str, JsonValue] = {
    "anyOf": [{"properties": {name: {"const": True}}, "required": [name]} for name in ("all", "resolve_all")]
}
_NAMES_ONE: JsonValue = {"properties": {"wait_id": {"type": "integer"}}, "required": ["wait_id"]}
_OF_ALL: list[JsonValue] = [
    {
        "not": _IS_ALL,
        "properties": {"wait_id": {"type": "integer"}, "wait_ids": {"type": "null"}},
        "required": ["wait_id"],
    },
    {
        **_IS_ALL,
        "properties": {
            "arguments": {"type": "null"},
            "wait_id": {"type": "null"},
            "wait_ids": {"type": "array", "items": {}},
        },
        "required": ["wait_ids"],
    },
]
"""Schemas: either one approval is named, or a list of them."""
WaitId = Annotated[int, Field(ge=1, le=_ID_MAX), WHOLE]


class Approval(
    BaseModel, extra="forbid", strict=True, json_schema_extra={"allOf": [{"anyOf": _ONLY_ONCE}, {"anyOf": _OF_ALL}]}
):
    """An answer to a request for approval."""

    choice: Annotated[str, WithJsonSchema({"enum": list(CHOICE_WORDS)})]
    reason: str | None = Field(None, max_length=10_000, description="For the model, when it is denied.")
    arguments: dict[str, Any] | None = Field(None, description=_ARGUMENTS)
    wait_id: WaitId | None = Field(None, description=_WAIT_ID)
    wait_ids: list[WaitId] | None = Field(None, min_length=1, max_length=_WAITS_MAX, description=_WAIT_IDS)
    all: bool = Field(False, description=_ALL)
    resolve_all: bool = Field(False, description="The same as 'all'.")


class Answer(BaseModel, extra="forbid", strict=True, json_schema_extra={"allOf": [_NAMES_ONE]}):
    """An answer to a question."""

    text: str = Field(
        max_length=100_000,
        json_schema_extra={"pattern": NOT_BLANK},
        description="The number of a choice, or the answer in words.",
    )
    wait_id: WaitId | None = Field(None, description=_WAIT_ID)


class ListDecisions(BaseModel, extra="forbid"):
    """Which closed questions to list."""

    limit: int = Field(50, ge=1, le=500)
    before: int | None = Field(None, ge=1, le=_ID_MAX, description="An 'id': list what was asked before that one.")
    kind: WaitKind | None = None
    all_tenants: bool = Field(False, description="Those of all tenants; for operators.")


@router.get("/approvals", response_model=WaitList, response_model_exclude_none=True, dependencies=[READS])
async def list_waits(
    context: Context,
    caller: Caller,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    kind: WaitKind | None = None,
    all_tenants: Annotated[bool, Query(description="Those of all tenants; for operators.")] = False,
) -> WaitList:
    """The inbox: every approval and question that is open."""
    tenant = choose_tenant_or_all(caller, all_tenants=all_tenants)
    found = await context.call_store(context.client.waits.list_open, tenant=tenant, limit=limit, kind=kind)
    return WaitList(data=[build_wait_object(view, caller.source) for view in found])


@router.get("/approvals/history", response_model=DecisionList, dependencies=[READS])
async def list_decisions(context: Context, caller: Caller, wanted: Annotated[ListDecisions, Query()]) -> DecisionList:
    """Closed approvals and questions: what was asked, who answered, and what that permits from now on."""
    tenant = choose_tenant_or_all(caller, all_tenants=wanted.all_tenants)
    found = await context.call_store(
        load_decisions,
        context.client.database,
        tenant=tenant,
        kind=wanted.kind,
        before=wanted.before,
        limit=wanted.limit + 1,
    )
    return DecisionList(
        data=[build_decision_object(each, caller.source) for each in found[: wanted.limit]],
        has_more=len(found) > wanted.limit,
    )


@router.post(
    "/runs/{run_id}/approval",
    response_model=AnsweredQuestion,
    response_model_exclude_none=True,
    responses=schema.declare_errors(404, 408, 409, 410),
    dependencies=[APPROVES],
)
async def answer_approval(
    context: Context, run_id: OwnRun, body: Approval, caller: Caller, later: BackgroundTasks
) -> AnsweredQuestion:
    """Allow or deny a command that a run waits for. The first answer counts."""
    if body.arguments is not None:
        # A caller that replaces a call's arguments runs commands of its own; ``approve`` is about the agent's.
        require_scope(caller, KeyScope.RUNS_WRITE, why=", which replacing the arguments of a call needs as well")
    try:
        choice = parse_choice(body.choice)
    except ValueError:
        message = "Invalid 'choice': it must be one of once, session, always, deny."
        raise invalid("choice", message, "invalid_approval_choice") from None
    try:
        resolved, hints = await context.call_store(
            _approve, context.client.waits, run_id, choice, body, caller.display_name
        )
    except answering.InvalidAnswer as error:
        raise invalid("arguments", f"Invalid 'arguments': {error}.") from None
    except NotOffered as error:
        raise invalid("choice", f"Invalid 'choice': {error}.", "invalid_approval_choice") from None
    except NotWaiting as error:
        raise ApiError(409, str(error), code="approval_not_active") from None
    except NothingAsked as error:
        raise ApiError(409, str(error), code="approval_not_pending") from None
    later.add_task(context.tell_broker, _tell, context, run_id, hints)
    return AnsweredQuestion(
        object="hermes.run.approval_response",
        run_id=run_id,
        choice=choice.value,
        by=caller.display_name,
        resolved=resolved,
    )


def _approve(waits: Waits, run_id: str, choice: ApprovalChoice, body: Approval, by: str) -> tuple[int, list[Hint]]:
    """Answer approvals. Returns how many were answered, and the hints to send. Raises what
    ``services.answers.approve`` raises, and ``ApiError`` where the body does not say which questions were seen."""
    if not (body.all or body.resolve_all):
        if body.wait_id is None:
            raise invalid("wait_id", _NO_WAIT_ID.format(event="approval.request"), "missing_wait_id")
        if body.wait_ids is not None:
            raise invalid("wait_ids", "Invalid 'wait_ids': they go with 'all'; one approval is named by 'wait_id'.")
        of_one = partial(answering.approve, reason=body.reason, arguments=body.arguments, wait_id=body.wait_id)
        return 1, of_one(waits, run_id, choice, by=by)
    if body.arguments is not None or body.wait_id is not None:
        raise invalid("all", "Invalid 'all': 'arguments' and 'wait_id' are of one approval.")
    if body.wait_ids is None:
        raise invalid("wait_ids", _NO_WAIT_IDS, "missing_wait_ids")
    return answering.approve_all(waits, run_id, choice, wait_ids=body.wait_ids, by=by, reason=body.reason)


@router.post(
    "/runs/{run_id}/input",
    response_model=AnsweredQuestion,
    response_model_exclude_none=True,
    responses=schema.declare_errors(404, 408, 409, 410),
    dependencies=[WRITES],
)
async def answer_question(
    context: Context, run_id: OwnRun, body: Answer, caller: Caller, later: BackgroundTasks
) -> AnsweredQuestion:
    """Answer a question of a run. The first answer counts."""
    if body.wait_id is None:
        raise invalid("wait_id", _NO_WAIT_ID.format(event="input.request"), "missing_wait_id")
    try:
        waits = context.client.waits
        hints = await context.call_store(
            answering.reply, waits, run_id, body.text, by=caller.display_name, wait_id=body.wait_id
        )
    except answering.InvalidAnswer as error:
        raise invalid("text", f"Invalid 'text': {error}.") from None
    except NotWaiting as error:
        raise ApiError(409, str(error), code="input_not_active") from None
    except NothingAsked as error:
        raise ApiError(409, str(error), code="input_not_pending") from None
    later.add_task(context.tell_broker, _tell, context, run_id, hints)
    return AnsweredQuestion(object="hermes.run.input_response", run_id=run_id, by=caller.display_name)


def _tell(context: ApiContext, run_id: str, hints: list[Hint]) -> None:
    context.client.publisher.send(hints)
    Live(context.client.redis).nudge(run_id)
