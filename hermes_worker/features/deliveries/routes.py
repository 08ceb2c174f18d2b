"""Deliveries: list them, send a message, and send one again."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, BackgroundTasks, Query
from pydantic import Field

from hermes_worker.api import formats, schema
from hermes_worker.api.auth import READS, WRITES, Caller
from hermes_worker.api.bodies import JsonRoute
from hermes_worker.api.context import Context
from hermes_worker.api.errors import RouteRefusal, answer_errors, invalid
from hermes_worker.api.owners import OwnDelivery
from hermes_worker.api.schema import RequestBody
from hermes_worker.channels.targets import redact_target
from hermes_worker.core.effects import SendDelivery
from hermes_worker.features.deliveries.schema import (
    DeadTargetList,
    DeadTargetObject,
    DeliveryList,
    DeliveryObject,
    DeliveryRetryObject,
)
from hermes_worker.safety.redaction import redact
from hermes_worker.services.submission import InvalidSubmission, list_targets
from hermes_worker.store.access.audit import Act, AuditLog
from hermes_worker.store.outbox.deliveries import Deliveries, DeliveryNotFound, DeliveryView

router = APIRouter(
    tags=["deliveries"],
    route_class=answer_errors({InvalidSubmission: RouteRefusal(400, "invalid_value", "target", "{error}")}, JsonRoute),
    responses=schema.declare_errors(503),
)
_TEXT_CHARS_MAX = 100_000
_OF_JOBS = frozenset({"origin", "all", "local"})
"""Targets that only mean something for the answer of a job."""


@router.get("/v1/deliveries", response_model_exclude_none=True, dependencies=[READS])
async def list_deliveries(
    context: Context, caller: Caller, wanted: Annotated[schema.ListDeliveries, Query()]
) -> DeliveryList:
    """Deliveries, newest first."""
    try:
        views = await context.call_store(
            Deliveries(context.client.database).list,
            tenant=caller.tenant,
            limit=wanted.limit + 1,
            before=wanted.before,
            state=wanted.state,
            run_id=wanted.run_id,
        )
    except DeliveryNotFound:
        message = f"Invalid 'before': there is no delivery {wanted.before!r}."
        raise invalid("before", message, "delivery_not_found") from None
    data = [_build_delivery_object(view) for view in views[: wanted.limit]]
    return DeliveryList(data=data, has_more=len(views) > wanted.limit)


class SendMessage(RequestBody):
    """A message to people or programs outside."""

    target: Annotated[str, formats.text(formats.TextFormat.TARGETS)] = Field(
        description="Where to: 'telegram:123', 'telegram' for its home channel, 'webhook:<url>'; several with commas."
    )
    text: str = Field(
        max_length=_TEXT_CHARS_MAX,
        pattern=formats.NOT_BLANK,
        description="The text, as Markdown; long ones go in parts.",
    )


@router.post("/v1/deliveries", status_code=202, response_model_exclude_none=True, dependencies=[WRITES])
async def send_message(context: Context, caller: Caller, body: SendMessage, later: BackgroundTasks) -> DeliveryList:
    """Send a text to somebody outside, without a run: one delivery for each target."""
    targets = list_targets(body.target, caller.tenant, context.client.settings.gateway.rules)
    if not targets:
        raise invalid("target", "Invalid 'target': it names nobody; write one such as 'telegram:123'.")
    if placeless := _OF_JOBS.intersection(targets):
        message = f"Invalid 'target': {min(placeless)!r} is where answers of jobs go; name a chat or an address."
        raise invalid("target", message)
    outbox = Deliveries(context.client.database)
    hints = await context.call_store(outbox.enqueue, caller.tenant, targets, body.text)
    later.add_task(context.tell_broker, context.client.publisher.send, hints)
    ids = [hint.effect.delivery_id for hint in hints if isinstance(hint.effect, SendDelivery)]
    made = [await context.call_store(outbox.get, delivery_id) for delivery_id in ids]
    return DeliveryList(data=[_build_delivery_object(view) for view in made], has_more=False)


@router.get(
    "/v1/deliveries/{delivery_id}",
    response_model_exclude_none=True,
    responses=schema.declare_errors(404),
    dependencies=[READS],
)
async def get_delivery(context: Context, caller: Caller, delivery_id: OwnDelivery) -> DeliveryObject:
    """A delivery and what became of it."""
    database = context.client.database
    view = await context.call_store(Deliveries(database).get, delivery_id)
    retried = await context.call_store(
        AuditLog(database).list_actions,
        caller.tenant,
        act=Act.DELIVERY_RETRY.value,
        subject=delivery_id,
        since=view.created_at,
    )
    retries = [
        DeliveryRetryObject.model_validate({**each.before, "at": each.at, "by": each.actor})
        for each in retried
        if each.before
    ]
    return _build_delivery_object(view).model_copy(update={"retries": retries or None})


@router.post(
    "/v1/deliveries/{delivery_id}/retry",
    status_code=202,
    response_model_exclude_none=True,
    responses=schema.declare_errors(404, 409),
    dependencies=[WRITES],
)
async def retry_delivery(context: Context, delivery_id: OwnDelivery, later: BackgroundTasks) -> DeliveryObject:
    """Send a settled delivery once more. One that may have arrived already is sent under the same idempotency key
    where the target knows such keys, else with a remark that it may be a duplicate."""
    outbox = Deliveries(context.client.database)
    hints = await context.call_store(outbox.retry, delivery_id)
    later.add_task(context.tell_broker, context.client.publisher.send, hints)
    return _build_delivery_object(await context.call_store(outbox.get, delivery_id))


@router.get("/v1/dead-targets", response_model=DeadTargetList, dependencies=[READS])
async def list_dead_targets(context: Context, caller: Caller) -> DeadTargetList:
    """Targets of the tenant to which nothing is sent any more. A delivery that is retried and arrives makes one good
    again."""
    found = await context.call_store(Deliveries(context.client.database).list_dead_targets, tenant=caller.tenant)
    return DeadTargetList(
        data=[DeadTargetObject(key=dead.key, reason=redact(dead.reason), marked_at=dead.marked_at) for dead in found]
    )


def _build_delivery_object(view: DeliveryView) -> DeliveryObject:
    return DeliveryObject.from_record(
        view,
        target=redact_target(view.target),
        may_be_duplicate=view.is_in_doubt,
        receipt=redact(view.receipt) if view.receipt else None,
        error=redact(view.error) if view.error else None,
        is_retried=view.is_retried,
    )
