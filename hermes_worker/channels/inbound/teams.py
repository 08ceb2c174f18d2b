"""Inbound messages of Microsoft Teams: activities of the Bot Connector (learn.microsoft.com, "Bot Connector API",
2026-11).

The connector's token is made out to our app, and names the service through which the activity says it came.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from hermes_worker.channels.inbound.proofs import check_same, event_key, json_of
from hermes_worker.channels.inbound.receiving import KeysExchange, WebhookRequest
from hermes_worker.channels.inbound.tokens import keys_named_by, verified_claims
from hermes_worker.channels.platforms.teams import ANSWER
from hermes_worker.core.inbound import (
    ChatKind,
    Inbound,
    InboundButton,
    InboundChat,
    InboundEdit,
    InboundMessage,
    InboundSender,
    MediaRef,
)
from hermes_worker.core.json_values import epoch_of, id_of, list_of, mapping_of, text_of

ISSUER = "https://api.botframework.com"
_SENT_FILE = "application/vnd.microsoft.teams.file.download.info"
_KINDS = {"personal": ChatKind.DIRECT, "groupChat": ChatKind.GROUP, "channel": ChatKind.CHANNEL}
_MENTION = re.compile(r"<at(?: [^<>]{0,200})?>([^<>]{0,200})</at>\s?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    app_id: str = ""
    metadata_url: str = "https://login.botframework.com/v1/.well-known/openidconfiguration"


def signing_keys(credentials: Credentials) -> KeysExchange:
    return keys_named_by(credentials.metadata_url)


def receive(request: WebhookRequest, credentials: Credentials, at: datetime) -> tuple[Inbound, ...]:
    """Verify and read an activity that has a token of the connector for our app."""
    claims = verified_claims(request, issuers=(ISSUER,), audience=credentials.app_id, at=at)
    activity = json_of(request.body)
    check_same(text_of(activity.get("serviceUrl")), text_of(claims.get("serviceurl")))
    return read(activity)


def read(activity: Mapping[str, Any]) -> tuple[Inbound, ...]:
    """Read an activity. Total."""
    conversation, writer = mapping_of(activity.get("conversation")), mapping_of(activity.get("from"))
    number, chat, kind = id_of(activity.get("id")), id_of(conversation.get("id")), activity.get("type")
    me = id_of(mapping_of(activity.get("recipient")).get("id"))
    if kind not in ("message", "messageUpdate") or not (number and chat):
        return ()
    common: dict[str, Any] = {
        "chat": InboundChat(
            id=chat,
            kind=_KINDS.get(text_of(conversation.get("conversationType")), ChatKind.GROUP),
            name=text_of(conversation.get("name")),
        ),
        "sender": InboundSender(
            id=id_of(writer.get("aadObjectId")) or id_of(writer.get("id")),
            other_id=id_of(writer.get("id")),
            name=text_of(writer.get("name")),
            is_bot=writer.get("role") == "bot" or (bool(me) and id_of(writer.get("id")) == me),
        ),
        "message_id": number,
        "sent_at": epoch_of(activity.get("timestamp")),
    }
    if kind == "message" and (pressed := text_of(mapping_of(activity.get("value")).get(ANSWER))):
        # A press on a card is a message without a text, which names the card.
        common |= {"message_id": id_of(activity.get("replyToId"))}
        return (InboundButton(event_key=event_key(chat, number), value=pressed, **common),)
    text = _MENTION.sub(r"\1 ", text_of(activity.get("text"))).strip()
    if kind == "messageUpdate":
        key = event_key(chat, number, "edit", text_of(activity.get("timestamp")))
        return (InboundEdit(event_key=key, text=text, **common),)
    mentioned = {id_of(mapping_of(one.get("mentioned")).get("id")) for one in _mentions(activity)}
    own_name = next((_said(one) for one in _mentions(activity) if _is_of(one, me)), "")
    return (
        InboundMessage(
            event_key=event_key(chat, number),
            text=text.removeprefix(own_name).strip() if own_name else text,
            media=tuple(_files(activity)),
            reply_to=id_of(activity.get("replyToId")),
            is_addressed=bool(me) and me in mentioned,
            **common,
        ),
    )


def _files(activity: Mapping[str, Any]) -> list[MediaRef]:
    """List pictures, and what was sent as a file. Formatted text comes as an attachment too, and is none."""
    found = []
    for file in map(mapping_of, list_of(activity.get("attachments"))):
        kind, name = text_of(file.get("contentType")), text_of(file.get("name"))
        place = text_of(file.get("contentUrl"))
        if kind == _SENT_FILE:
            place, kind = text_of(mapping_of(file.get("content")).get("downloadUrl")), ""
        elif not kind.startswith(("image/", "audio/", "video/")):
            continue
        if place:
            found.append(MediaRef.told(place, media_type=kind, name=name, size=None))
    return found


def _mentions(activity: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [one for one in map(mapping_of, list_of(activity.get("entities"))) if one.get("type") == "mention"]


def _is_of(mention: Mapping[str, Any], who: str) -> bool:
    return bool(who) and id_of(mapping_of(mention.get("mentioned")).get("id")) == who


def _said(mention: Mapping[str, Any]) -> str:
    return _MENTION.sub(r"\1 ", text_of(mention.get("text"))).strip()
