"""One case for each platform that is listened to: credentials, and requests as the platform would make them.

The contract suite (``tests/inbound/test_receiving_contract.py``) asks every platform of the catalogue for a case here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from hermes_worker.channels.inbound.receiving import WebhookRequest

AT = datetime(2026, 11, 25, 12, 0, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class InboundCase:
    """A platform, and what it sends. All of it as documented by the vendor."""

    values: Mapping[str, str]
    """Variables of the account."""
    webhook: Callable[[bytes], WebhookRequest] | None = None
    """A request with this body, signed with the account's secrets at ``AT``; ``None`` without a webhook."""
    message: Any = None
    """A body (bytes, or JSON) with one message ``hello`` of a person in a direct chat."""
    proofs: tuple[str, ...] = ()
    """The headers that prove a request. Each is taken away, doubled and changed."""
    signs_body: bool = True
    """Whether a changed byte of the body is noticed."""
    signs_time: bool = False
    """Whether a request is too old after 301 s."""
    page: Mapping[str, Any] | None = None
    """What ``poll`` is answered: an answer with two messages, ``first`` and ``second``."""
    chat: str = ""
    """The id of the chat that ``message`` was written in."""
    sender: str = ""
    odd: tuple[Any, ...] = field(default=())
    """More bodies that must not raise anything but ``UnreadableInbound``."""


def telegram_update(number: int, text: str, **more: Any) -> dict[str, Any]:
    """An update as core.telegram.org/bots/api describes it."""
    chat = {"id": 4242, "type": "private", "first_name": "Ada"}
    writer = {"id": 4242, "is_bot": False, "first_name": "Ada", "last_name": "L", "username": "ada"}
    message = {"message_id": 900 + number, "date": 1_795_600_000, "chat": chat, "from": writer, "text": text}
    return {"update_id": number, "message": message | more}


def _telegram(body: bytes) -> WebhookRequest:
    headers = (("content-type", "application/json"), ("x-telegram-bot-api-secret-token", "s3cret_of-webhook"))
    return WebhookRequest(method="POST", url="https://h.example/inbound/telegram", headers=headers, body=body)


CASES: dict[str, InboundCase] = {
    "telegram": InboundCase(
        values={"TELEGRAM_BOT_TOKEN": "77:abc", "TELEGRAM_WEBHOOK_SECRET": "s3cret_of-webhook"},
        webhook=_telegram,
        message=telegram_update(31, "hello"),
        proofs=("x-telegram-bot-api-secret-token",),
        signs_body=False,
        page={"ok": True, "result": [telegram_update(7, "first"), telegram_update(8, "second")]},
        chat="4242",
        sender="4242",
    )
}


def without(request: WebhookRequest, name: str) -> WebhookRequest:
    return replace(request, headers=tuple(pair for pair in request.headers if pair[0] != name))


def doubled(request: WebhookRequest, name: str) -> WebhookRequest:
    return replace(request, headers=(*request.headers, (name, request.header(name))))


def changed(request: WebhookRequest, name: str) -> WebhookRequest:
    """With one character of the header's value changed."""
    value = request.header(name)
    other = "B" if value[len(value) // 2] != "B" else "C"
    altered = value[: len(value) // 2] + other + value[len(value) // 2 + 1 :]
    return replace(without(request, name), headers=(*without(request, name).headers, (name, altered)))
