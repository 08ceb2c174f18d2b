"""Inbound messages of the LINE Messaging API (developers.line.biz/en/reference/messaging-api, webhook events,
2026-11)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from hermes_worker.channels.inbound.proofs import (
    check_same,
    compute_base64_hmac,
    encode_secret,
    make_event_key,
    parse_json,
)
from hermes_worker.channels.inbound.receiving import WebhookRequest
from hermes_worker.core.inbound import (
    ChatKind,
    Inbound,
    InboundButton,
    InboundChat,
    InboundMessage,
    InboundSender,
    MediaRef,
)
from hermes_worker.core.json_values import read_id, read_list, read_mapping, read_number, read_size, read_text
from hermes_worker.core.media_kinds import MediaKind

_FILES = {
    "image": MediaKind.IMAGE,
    "video": MediaKind.VIDEO,
    "audio": MediaKind.AUDIO,
    "file": MediaKind.DOCUMENT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    channel_secret: str = field(default="", repr=False)


def receive(request: WebhookRequest, credentials: Credentials, at: datetime) -> tuple[Inbound, ...]:
    """Verify and read events that LINE signed with the channel's secret. A repeated one has the id of the first."""
    given = request.require_header("x-line-signature")
    secret = encode_secret(credentials.channel_secret, "LINE_CHANNEL_SECRET")
    check_same(given, compute_base64_hmac(secret, request.body))
    events = map(read_mapping, read_list(parse_json(request.body).get("events")))
    return tuple(found for event in events if (found := read(event)) is not None)


def read(event: Mapping[str, Any]) -> Inbound | None:
    """Read an event; ``None`` for one that is no message of a person. Total."""
    message, kind = read_mapping(event.get("message")), event.get("type")
    key = read_id(event.get("webhookEventId")) or read_id(message.get("id"))
    chat = _read_chat(read_mapping(event.get("source")))
    # A channel whose module is on standby gets events that another one answers.
    if not key or not chat.id or event.get("mode") == "standby":
        return None
    stamp = read_number(event.get("timestamp"))
    common: dict[str, Any] = {
        "event_key": make_event_key(key),
        "chat": chat,
        "sender": InboundSender(id=read_id(read_mapping(event.get("source")).get("userId"))),
        "message_id": read_id(message.get("id")),
        "sent_at": None if stamp is None else stamp / 1000,
    }
    if kind == "postback":
        return InboundButton(value=read_text(read_mapping(event.get("postback")).get("data")), **common)
    if kind != "message":
        return None
    mentioned = read_list(read_mapping(message.get("mention")).get("mentionees"))
    return InboundMessage(
        text=read_text(message.get("text")),
        media=_list_media(message),
        reply_to=read_id(message.get("quotedMessageId")),
        quoted_as=read_text(message.get("quoteToken")),
        is_addressed=any(read_mapping(one).get("isSelf") is True for one in mentioned),
        **common,
    )


def _read_chat(source: Mapping[str, Any]) -> InboundChat:
    for name in ("groupId", "roomId"):
        if found := read_id(source.get(name)):
            return InboundChat(id=found, kind=ChatKind.GROUP)
    return InboundChat(id=read_id(source.get("userId")), kind=ChatKind.DIRECT)


def _list_media(message: Mapping[str, Any]) -> tuple[MediaRef, ...]:
    kind, found = _FILES.get(read_text(message.get("type"))), read_id(message.get("id"))
    provider = read_mapping(message.get("contentProvider")).get("type")
    if kind is None or not found or provider == "external":
        return ()  # what an app shows from an address of its own is not at LINE
    name = read_text(message.get("fileName"))
    return (MediaRef(kind=kind, id=found, name=name, size_bytes=read_size(message.get("fileSize"))),)
