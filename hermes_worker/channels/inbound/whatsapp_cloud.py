"""Inbound messages of the WhatsApp Cloud API (developers.facebook.com/docs/whatsapp/cloud-api/webhooks, v23.0,
2026-11)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from hermes_worker.channels.inbound.hub_signature import check_hub_signature
from hermes_worker.channels.inbound.proofs import check_same, encode_secret, make_event_key, parse_json
from hermes_worker.channels.inbound.receiving import WebhookAnswer, WebhookRequest, read_parameter
from hermes_worker.core.inbound import (
    ChatKind,
    Inbound,
    InboundButton,
    InboundChat,
    InboundMessage,
    InboundSender,
    MediaRef,
)
from hermes_worker.core.json_values import read_id, read_list, read_mapping, read_text
from hermes_worker.core.media_kinds import MediaKind

_FILES = {
    "image": MediaKind.IMAGE,
    "sticker": MediaKind.IMAGE,
    "audio": MediaKind.AUDIO,
    "video": MediaKind.VIDEO,
    "document": MediaKind.DOCUMENT,
}
_CHALLENGE_CHARS_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    app_secret: str = field(default="", repr=False)
    verify_token: str = field(default="", repr=False)
    phone_number_id: str = ""
    """Our phone number's id. Where it is set, messages to another number of the app are ignored."""


def receive(request: WebhookRequest, credentials: Credentials, at: datetime) -> tuple[Inbound, ...]:
    """Verify and read messages that Meta signed with the app's secret; a GET asks with the verify token whether the
    address is ours."""
    if request.method == "GET":
        encode_secret(credentials.verify_token, "WHATSAPP_CLOUD_VERIFY_TOKEN")
        check_same(read_parameter(request, "hub.verify_token"), credentials.verify_token)
        return ()
    check_hub_signature(request, credentials.app_secret, "WHATSAPP_CLOUD_APP_SECRET")
    return tuple(read(parse_json(request.body), credentials))


def answer(request: WebhookRequest, credentials: Credentials, at: datetime) -> WebhookAnswer | None:
    """Answer a GET with its challenge."""
    if request.method != "GET":
        return None
    challenge = read_parameter(request, "hub.challenge")[:_CHALLENGE_CHARS_MAX]
    return WebhookAnswer(body=challenge.encode("utf-8", "replace"), media_type="text/plain")


def read(payload: Mapping[str, Any], credentials: Credentials) -> Iterator[Inbound]:
    """Read a notification. Total."""
    changes = (
        read_mapping(read_mapping(change).get("value"))
        for entry in read_list(payload.get("entry"))
        for change in read_list(read_mapping(entry).get("changes"))
    )
    for value in changes:
        number = read_id(read_mapping(value.get("metadata")).get("phone_number_id"))
        if credentials.phone_number_id and number != credentials.phone_number_id:
            continue
        names = {
            read_id(contact.get("wa_id")): read_text(read_mapping(contact.get("profile")).get("name"))
            for contact in map(read_mapping, read_list(value.get("contacts")))
        }
        for message in map(read_mapping, read_list(value.get("messages"))):
            if read_id(message.get("id")) and read_id(message.get("from")):
                yield _read_message(message, names)


def _read_message(message: Mapping[str, Any], names: Mapping[str, str]) -> Inbound:
    writer, kind = read_id(message.get("from")), read_text(message.get("type"))
    number = f"+{writer.removeprefix('+')}"
    stamp = read_id(message.get("timestamp"))
    content = read_mapping(message.get(kind))
    common: dict[str, Any] = {
        "event_key": make_event_key(read_id(message.get("id"))),
        "chat": InboundChat(id=number, kind=ChatKind.DIRECT),
        "sender": InboundSender(id=number, other_id=writer, name=names.get(writer, "")),
        "message_id": read_id(message.get("id")),
        "sent_at": float(stamp) if stamp.isascii() and stamp.isdigit() and len(stamp) <= 11 else None,
    }
    if kind == "interactive":
        pressed = read_mapping(content.get("button_reply")) or read_mapping(content.get("list_reply"))
        return InboundButton(value=read_id(pressed.get("id")), **common)
    return InboundMessage(
        text=read_text(content.get("body")) or read_text(content.get("caption")) or read_text(content.get("text")),
        media=_list_media(kind, content),
        reply_to=read_id(read_mapping(message.get("context")).get("id")),
        **common,
    )


def _list_media(kind: str, content: Mapping[str, Any]) -> tuple[MediaRef, ...]:
    found = read_id(content.get("id"))
    if kind not in _FILES or not found:
        return ()
    shown = MediaKind.VOICE if content.get("voice") is True else _FILES[kind]
    name, media_type = read_text(content.get("filename")), read_text(content.get("mime_type"))
    return (MediaRef(kind=shown, id=found, name=name, media_type=media_type),)
