"""Inbound messages of the LINE Messaging API (developers.line.biz/en/reference/messaging-api, webhook events,
2026-11)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from hermes_worker.channels.inbound.proofs import base64_hmac, check_same, event_key, json_of, secret_bytes
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
from hermes_worker.core.json_values import id_of, list_of, mapping_of, number_of, size_of, text_of
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
    given = request.header("x-line-signature")
    secret = secret_bytes(credentials.channel_secret, "LINE_CHANNEL_SECRET")
    check_same(given, base64_hmac(secret, request.body))
    events = map(mapping_of, list_of(json_of(request.body).get("events")))
    return tuple(found for event in events if (found := read(event)) is not None)


def read(event: Mapping[str, Any]) -> Inbound | None:
    """Read an event; ``None`` for one that is no message of a person. Total."""
    message, kind = mapping_of(event.get("message")), event.get("type")
    key = id_of(event.get("webhookEventId")) or id_of(message.get("id"))
    chat = _chat(mapping_of(event.get("source")))
    # A channel whose module is on standby gets events that another one answers.
    if not key or not chat.id or event.get("mode") == "standby":
        return None
    stamp = number_of(event.get("timestamp"))
    common: dict[str, Any] = {
        "event_key": event_key(key),
        "chat": chat,
        "sender": InboundSender(id=id_of(mapping_of(event.get("source")).get("userId"))),
        "message_id": id_of(message.get("id")),
        "sent_at": None if stamp is None else stamp / 1000,
    }
    if kind == "postback":
        return InboundButton(value=text_of(mapping_of(event.get("postback")).get("data")), **common)
    if kind != "message":
        return None
    mentioned = list_of(mapping_of(message.get("mention")).get("mentionees"))
    return InboundMessage(
        text=text_of(message.get("text")),
        media=_media(message),
        reply_to=id_of(message.get("quotedMessageId")),
        quoted_as=text_of(message.get("quoteToken")),
        is_addressed=any(mapping_of(one).get("isSelf") is True for one in mentioned),
        **common,
    )


def _chat(source: Mapping[str, Any]) -> InboundChat:
    for name in ("groupId", "roomId"):
        if found := id_of(source.get(name)):
            return InboundChat(id=found, kind=ChatKind.GROUP)
    return InboundChat(id=id_of(source.get("userId")), kind=ChatKind.DIRECT)


def _media(message: Mapping[str, Any]) -> tuple[MediaRef, ...]:
    kind, found = _FILES.get(text_of(message.get("type"))), id_of(message.get("id"))
    provider = mapping_of(message.get("contentProvider")).get("type")
    if kind is None or not found or provider == "external":
        return ()  # what an app shows from an address of its own is not at LINE
    name = text_of(message.get("fileName"))
    return (MediaRef(kind=kind, id=found, name=name, size_bytes=size_of(message.get("fileSize"))),)
