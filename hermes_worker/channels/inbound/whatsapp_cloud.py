"""Inbound messages of the WhatsApp Cloud API (developers.facebook.com/docs/whatsapp/cloud-api/webhooks, v23.0,
2026-11)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

from hermes_worker.channels.inbound.hub_signature import check_hub_signature
from hermes_worker.channels.inbound.proofs import check_same, event_key, json_of, secret_bytes
from hermes_worker.channels.inbound.receiving import Forged, WebhookAnswer, WebhookRequest
from hermes_worker.core.inbound import (
    ChatKind,
    Inbound,
    InboundButton,
    InboundChat,
    InboundMessage,
    InboundSender,
    MediaRef,
)
from hermes_worker.core.json_values import id_of, list_of, mapping_of, text_of
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
        secret_bytes(credentials.verify_token, "WHATSAPP_CLOUD_VERIFY_TOKEN")
        check_same(_queried(request, "hub.verify_token"), credentials.verify_token)
        return ()
    check_hub_signature(request, credentials.app_secret, "WHATSAPP_CLOUD_APP_SECRET")
    return tuple(read(json_of(request.body), credentials))


def answer(request: WebhookRequest, credentials: Credentials, at: datetime) -> WebhookAnswer | None:
    """Answer a GET with its challenge."""
    if request.method != "GET":
        return None
    challenge = _queried(request, "hub.challenge")[:_CHALLENGE_CHARS_MAX]
    return WebhookAnswer(body=challenge.encode("utf-8", "replace"), media_type="text/plain")


def read(payload: Mapping[str, Any], credentials: Credentials) -> Iterator[Inbound]:
    """Read a notification. Total."""
    changes = (
        mapping_of(mapping_of(change).get("value"))
        for entry in list_of(payload.get("entry"))
        for change in list_of(mapping_of(entry).get("changes"))
    )
    for value in changes:
        number = id_of(mapping_of(value.get("metadata")).get("phone_number_id"))
        if credentials.phone_number_id and number != credentials.phone_number_id:
            continue
        names = {
            id_of(contact.get("wa_id")): text_of(mapping_of(contact.get("profile")).get("name"))
            for contact in map(mapping_of, list_of(value.get("contacts")))
        }
        for message in map(mapping_of, list_of(value.get("messages"))):
            if id_of(message.get("id")) and id_of(message.get("from")):
                yield _message(message, names)


def _message(message: Mapping[str, Any], names: Mapping[str, str]) -> Inbound:
    writer, kind = id_of(message.get("from")), text_of(message.get("type"))
    number = f"+{writer.removeprefix('+')}"
    stamp = id_of(message.get("timestamp"))
    content = mapping_of(message.get(kind))
    common: dict[str, Any] = {
        "event_key": event_key(id_of(message.get("id"))),
        "chat": InboundChat(id=number, kind=ChatKind.DIRECT),
        "sender": InboundSender(id=number, other_id=writer, name=names.get(writer, "")),
        "message_id": id_of(message.get("id")),
        "sent_at": float(stamp) if stamp.isascii() and stamp.isdigit() and len(stamp) <= 11 else None,
    }
    if kind == "interactive":
        pressed = mapping_of(content.get("button_reply")) or mapping_of(content.get("list_reply"))
        return InboundButton(value=id_of(pressed.get("id")), **common)
    return InboundMessage(
        text=text_of(content.get("body")) or text_of(content.get("caption")) or text_of(content.get("text")),
        media=_media(kind, content),
        reply_to=id_of(mapping_of(message.get("context")).get("id")),
        **common,
    )


def _media(kind: str, content: Mapping[str, Any]) -> tuple[MediaRef, ...]:
    found = id_of(content.get("id"))
    if kind not in _FILES or not found:
        return ()
    shown = MediaKind.VOICE if content.get("voice") is True else _FILES[kind]
    name, media_type = text_of(content.get("filename")), text_of(content.get("mime_type"))
    return (MediaRef(kind=shown, id=found, name=name, media_type=media_type),)


def _queried(request: WebhookRequest, name: str) -> str:
    """Read the single value of a parameter of the query. Raises ``Forged``."""
    try:
        values = parse_qs(urlsplit(request.url).query, keep_blank_values=True, max_num_fields=20).get(name, [])
    except ValueError:
        raise Forged("the query cannot be read") from None
    if len(values) != 1:
        raise Forged(f"the parameter {name!r} is there {len(values)} times")
    return values[0]
