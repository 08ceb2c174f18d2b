"""Inbound messages of any other platform: a program of the operator's brings them as JSON that it signed.

The signature is that of our own webhooks (``channels.signature``, scheme V2): the time is signed with the body.
Settings say where in the JSON each value stands. Answers leave through ``platforms.chat_webhook``, under another
secret: what we signed must not be good enough to come in again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from hermes_worker.channels.inbound.proofs import (
    check_fresh,
    check_same,
    compute_hex_hmac,
    encode_secret,
    make_event_key,
    parse_json,
)
from hermes_worker.channels.inbound.receiving import UnreadableInbound, WebhookRequest
from hermes_worker.channels.signature import SIGNATURE_HEADER, TIMESTAMP_HEADER
from hermes_worker.core.inbound import ChatKind, Inbound, InboundChat, InboundMessage, InboundSender
from hermes_worker.core.json_paths import find_at_path
from hermes_worker.core.json_values import read_id, read_text

_CHAT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@+=-]{0,127}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    secret: str = field(default="", repr=False)
    text_path: str = "text"
    """Paths in the JSON: names of objects and numbers of lists, with dots between them."""
    id_path: str = "id"
    chat_path: str = "chat"
    sender_path: str = "sender"
    name_path: str = "name"
    bot_path: str = "is_bot"


def receive(request: WebhookRequest, credentials: Credentials, at: datetime) -> tuple[Inbound, ...]:
    """Verify and read a message that the operator's program signed."""
    secret = encode_secret(credentials.secret, "CHAT_WEBHOOK_SECRET")
    given, stamp = request.require_header(SIGNATURE_HEADER.lower()), request.require_header(TIMESTAMP_HEADER.lower())
    check_fresh(stamp, at)
    check_same(given, compute_hex_hmac(secret, stamp.encode() + b"." + request.body))
    return read(parse_json(request.body), credentials)


def read(payload: Mapping[str, Any], credentials: Credentials) -> tuple[Inbound, ...]:
    """Read a message; without a chat it was written to us alone. Raises ``UnreadableInbound`` for one without an id or
    a sender, so that the program that brings it gets an error."""
    number, sender = (read_id(find_at_path(payload, path)) for path in (credentials.id_path, credentials.sender_path))
    chat = read_id(find_at_path(payload, credentials.chat_path)) or sender
    if not number or not sender:
        raise UnreadableInbound(f"{credentials.id_path!r} or {credentials.sender_path!r} is missing")
    if not _CHAT.fullmatch(chat):
        raise UnreadableInbound("a chat has 1 to 128 letters, digits, '_', '.', '@', '+', '=' and '-'")
    return (
        InboundMessage(
            event_key=make_event_key(number),
            chat=InboundChat(id=chat, kind=ChatKind.DIRECT if chat == sender else ChatKind.GROUP),
            sender=InboundSender(
                id=sender,
                name=read_text(find_at_path(payload, credentials.name_path)),
                is_bot=find_at_path(payload, credentials.bot_path) is True,
            ),
            message_id=number,
            text=read_text(find_at_path(payload, credentials.text_path)),
            is_addressed=True,  # it was brought here on purpose
        ),
    )
