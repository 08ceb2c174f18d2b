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

from hermes_worker.channels.inbound.proofs import check_same, make_event_key, parse_json
from hermes_worker.channels.inbound.receiving import KeysExchange, WebhookRequest
from hermes_worker.channels.inbound.tokens import fetch_issuer_keys, verify_token
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
from hermes_worker.core.json_values import read_epoch, read_id, read_list, read_mapping, read_text

ISSUER = "https://api.botframework.com"
_SENT_FILE = "application/vnd.microsoft.teams.file.download.info"
_KINDS = {"personal": ChatKind.DIRECT, "groupChat": ChatKind.GROUP, "channel": ChatKind.CHANNEL}
_MENTION = re.compile(r"<at(?: [^<>]{0,200})?>([^<>]{0,200})</at>\s?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    app_id: str = ""
    metadata_url: str = "https://login.botframework.com/v1/.well-known/openidconfiguration"


def fetch_signing_keys(credentials: Credentials) -> KeysExchange:
    return fetch_issuer_keys(credentials.metadata_url)


def receive(request: WebhookRequest, credentials: Credentials, at: datetime) -> tuple[Inbound, ...]:
    """Verify and read an activity that has a token of the connector for our app."""
    claims = verify_token(request, issuers=(ISSUER,), audience=credentials.app_id, at=at)
    activity = parse_json(request.body)
    check_same(read_text(activity.get("serviceUrl")), read_text(claims.get("serviceurl")))
    return read(activity)


def read(activity: Mapping[str, Any]) -> tuple[Inbound, ...]:
    """Read an activity. Total."""
    conversation, writer = read_mapping(activity.get("conversation")), read_mapping(activity.get("from"))
    number, chat, kind = read_id(activity.get("id")), read_id(conversation.get("id")), activity.get("type")
    me = read_id(read_mapping(activity.get("recipient")).get("id"))
    if kind not in ("message", "messageUpdate") or not (number and chat):
        return ()
    common: dict[str, Any] = {
        "chat": InboundChat(
            id=chat,
            kind=_KINDS.get(read_text(conversation.get("conversationType")), ChatKind.GROUP),
            name=read_text(conversation.get("name")),
        ),
        "sender": InboundSender(
            id=read_id(writer.get("aadObjectId")) or read_id(writer.get("id")),
            other_id=read_id(writer.get("id")),
            name=read_text(writer.get("name")),
            is_bot=writer.get("role") == "bot" or (bool(me) and read_id(writer.get("id")) == me),
        ),
        "message_id": number,
        "sent_at": read_epoch(activity.get("timestamp")),
    }
    if kind == "message" and (pressed := read_text(read_mapping(activity.get("value")).get(ANSWER))):
        # A press on a card is a message without a text, which names the card.
        common |= {"message_id": read_id(activity.get("replyToId"))}
        return (InboundButton(event_key=make_event_key(chat, number), value=pressed, **common),)
    text = _MENTION.sub(r"\1 ", read_text(activity.get("text"))).strip()
    if kind == "messageUpdate":
        key = make_event_key(chat, number, "edit", read_text(activity.get("timestamp")))
        return (InboundEdit(event_key=key, text=text, **common),)
    mentioned = {read_id(read_mapping(one.get("mentioned")).get("id")) for one in _list_mentions(activity)}
    own_name = next((_read_mention(one) for one in _list_mentions(activity) if _is_of(one, me)), "")
    return (
        InboundMessage(
            event_key=make_event_key(chat, number),
            text=text.removeprefix(own_name).strip() if own_name else text,
            media=tuple(_list_files(activity)),
            reply_to=read_id(activity.get("replyToId")),
            is_addressed=bool(me) and me in mentioned,
            **common,
        ),
    )


def _list_files(activity: Mapping[str, Any]) -> list[MediaRef]:
    """List pictures, and what was sent as a file. Formatted text comes as an attachment too, and is none."""
    found = []
    for file in map(read_mapping, read_list(activity.get("attachments"))):
        kind, name = read_text(file.get("contentType")), read_text(file.get("name"))
        place = read_text(file.get("contentUrl"))
        if kind == _SENT_FILE:
            place, kind = read_text(read_mapping(file.get("content")).get("downloadUrl")), ""
        elif not kind.startswith(("image/", "audio/", "video/")):
            continue
        if place:
            found.append(MediaRef.from_platform(place, media_type=kind, name=name, size=None))
    return found


def _list_mentions(activity: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [one for one in map(read_mapping, read_list(activity.get("entities"))) if one.get("type") == "mention"]


def _is_of(mention: Mapping[str, Any], who: str) -> bool:
    return bool(who) and read_id(read_mapping(mention.get("mentioned")).get("id")) == who


def _read_mention(mention: Mapping[str, Any]) -> str:
    return _MENTION.sub(r"\1 ", read_text(mention.get("text"))).strip()
