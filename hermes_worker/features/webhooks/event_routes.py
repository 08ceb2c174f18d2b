"""Webhooks of chat platforms: a platform sends here what people write to an account (docs/gateway.md).

A request is let in by the platform's proof, and nothing is parsed before the proof is verified. Any replica takes any
event: its key makes it take effect once, however often and wherever it comes.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel

from hermes_worker.api.context import ApiContext, Context
from hermes_worker.api.errors import FlatRefusal
from hermes_worker.api.limits import JSON, read_whole_body
from hermes_worker.api.schema import EITHER_ERROR, FlatError, declare_errors
from hermes_worker.channels.inbound.declaration import InboundMode
from hermes_worker.channels.inbound.receiving import (
    WEBHOOK_BYTES_MAX,
    Forged,
    UnreadableInbound,
    WebhookRequest,
)
from hermes_worker.channels.receivers import ConfiguredAccount, Receiver, find_webhook_account
from hermes_worker.core.inbound import Inbound
from hermes_worker.gateway.inbound import InboundHandler
from hermes_worker.gateway.received import ReceivedEvent
from hermes_worker.observe import count, log
from hermes_worker.settings import Settings

router = APIRouter(prefix="/inbound", tags=["inbound"])


class InboundTaken(BaseModel):
    """The platform's request was stored, now or before."""

    status: Literal["ok"] = "ok"


TEXT, XML = "text/plain", "text/xml"
_EVENT = {
    "type": "object",
    "description": "What happened, as the platform writes it. Slack's commands and Twilio's messages are forms.",
}
_TAKEN: dict[str, Any] = {
    "model": InboundTaken,
    "description": "It is written down, now or before. Some platforms are told something in a form of their own.",
    "content": {TEXT: {}, XML: {}},
}


@router.get(
    "/{platform}",
    response_model=None,
    responses={200: _TAKEN, **declare_errors(401, 404, shape=FlatError)},
)
async def confirm(context: Context, platform: str, request: Request) -> Response:
    """Tell a platform that this address is its account's, where it asks that with a secret in the query."""
    return await _receive(context, platform, request)


@router.post(
    "/{platform}",
    response_model=None,
    responses={
        200: _TAKEN,
        **declare_errors(401, 404, shape=FlatError),
        **declare_errors(403, 408, 415, 503),
        **declare_errors(400, 413, shape=EITHER_ERROR),
    },
    openapi_extra={"requestBody": {"required": True, "content": {JSON: {"schema": _EVENT}}}},
)
async def take(context: Context, platform: str, request: Request) -> Response:
    """Take what a platform sends."""
    return await _receive(context, platform, request)


async def _receive(context: ApiContext, platform: str, request: Request) -> Response:
    try:
        account = _find_account(context.client.settings, platform, request.method)
        receiver, credentials = account.receiver, account.receiver.build_credentials(account.values)
        came = WebhookRequest(
            method=request.method,
            url=str(request.url),
            headers=tuple((name.lower(), value) for name, value in request.headers.items()),
            body=b"" if request.method == "GET" else await read_whole_body(request, WEBHOOK_BYTES_MAX),
        )
        if came.method == "POST":
            came = replace(came, keys=await context.call_store(context.signing_keys.get_keys, receiver, credentials))
        for event in _read(receiver, came, credentials):
            is_beside = account.mode is not InboundMode.WEBHOOK
            received = ReceivedEvent(
                platform=receiver.platform, account_name=account.name, event=event, is_beside=is_beside
            )
            await context.call_store(InboundHandler(context.client).handle, received)
    except FlatRefusal as refused:
        return refused.response
    told = receiver.answer(came, credentials, datetime.now(UTC))
    if told is None:
        return JSONResponse(InboundTaken().model_dump())
    return Response(told.body, told.status, media_type=told.media_type)


def _find_account(settings: Settings, address: str, method: str) -> ConfiguredAccount:
    """Find the account of an address. Raises ``FlatRefusal``."""
    said = settings.gateway
    found = find_webhook_account(settings.variables, said.accounts, address) if said.is_enabled else None
    if found is None or (method == "GET" and not found.receiver.receiving.asks_by_get):
        raise FlatRefusal(404, "Unknown platform")
    return found


def _read(receiver: Receiver, came: WebhookRequest, credentials: Any) -> tuple[Inbound, ...]:
    """Verify and parse what the platform sent. Raises ``FlatRefusal``."""
    try:
        return receiver.receive(came, credentials, datetime.now(UTC))
    except Forged as error:
        count("inbound.refused")
        log.warning("inbound.refused", platform=receiver.platform, reason=str(error))
        raise FlatRefusal(401, "Invalid signature") from None
    except UnreadableInbound as error:
        raise FlatRefusal(400, str(error)) from None
