"""Where platforms send what people write to an account (docs/gateway.md).

The platform's proof is what lets them in, and nothing is parsed before it is known to be right. Any replica takes any
event: its key makes it cause one thing, however often and wherever it comes.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from hermes_worker.api.context import ApiContext, Context
from hermes_worker.api.errors import FlatRefusal
from hermes_worker.api.limits import JSON, whole_body
from hermes_worker.api.schema import EITHER_ERROR, FlatError, errors
from hermes_worker.channels.inbound.receiving import (
    WEBHOOK_BYTES_MAX,
    Forged,
    UnreadableInbound,
    WebhookRequest,
)
from hermes_worker.channels.receivers import Receiver, at_webhooks
from hermes_worker.core.inbound import Inbound
from hermes_worker.gateway.taking import Arrival, Taker
from hermes_worker.observe import count, log

router = APIRouter(prefix="/inbound", tags=["inbound"])


class InboundTaken(BaseModel):
    """What was sent is written down, now or before."""

    status: Literal["ok"] = "ok"


_EVENT = {"type": "object", "description": "What happened, as the platform writes it."}
_TAKES: dict[str, Any] = {
    "response_model": None,
    "openapi_extra": {"requestBody": {"required": True, "content": {JSON: {"schema": _EVENT}}}},
    "responses": {
        200: {"model": InboundTaken},
        **errors(401, 404, shape=FlatError),
        **errors(403, 408, 415, 503),
        **errors(400, 413, shape=EITHER_ERROR),
    },
}


@router.post("/{platform}", **_TAKES)
async def take(context: Context, platform: str, request: Request) -> JSONResponse:
    """Take what a platform sends."""
    try:
        for event in await _genuine(context, platform, request):
            await context.store(Taker(context.client).take, Arrival(platform=platform, event=event))
    except FlatRefusal as refused:
        return refused.response
    return JSONResponse(InboundTaken().model_dump())


async def _genuine(context: ApiContext, platform: str, request: Request) -> tuple[Inbound, ...]:
    """What the platform has sent. Raises ``FlatRefusal``."""
    settings = context.client.settings
    values = settings.variables
    receiver = at_webhooks(values).get(platform) if settings.gateway.is_enabled else None
    if receiver is None:
        raise FlatRefusal(404, "Unknown platform")
    came = WebhookRequest(
        method=request.method,
        url=str(request.url),
        headers=tuple((name.lower(), value) for name, value in request.headers.items()),
        body=await whole_body(request, WEBHOOK_BYTES_MAX),
    )
    return _read(receiver, came, receiver.credentials(values))


def _read(receiver: Receiver, came: WebhookRequest, credentials: Any) -> tuple[Inbound, ...]:
    try:
        return receiver.receive(came, credentials, datetime.now(UTC))
    except Forged as error:
        count("inbound.refused")
        log.warning("inbound.refused", platform=receiver.platform, reason=str(error))
        raise FlatRefusal(401, "Invalid signature") from None
    except UnreadableInbound as error:
        raise FlatRefusal(400, str(error)) from None
