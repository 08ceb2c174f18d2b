"""Inbound messages of DingTalk: what people say to a group's robot, over HTTP (open.dingtalk.com, "Receive messages of
a robot", 2026-11).

DingTalk signs the time and not the message, so a request that a stranger got hold of is valid for five minutes; its id
keeps it from taking effect twice. Answers leave through the address of one robot, which stands for one group: only what
is written in that group is taken, so that no answer stands in another chat.
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
    compute_base64_hmac,
    encode_secret,
    make_event_key,
    parse_json,
)
from hermes_worker.channels.inbound.receiving import Forged, WebhookRequest
from hermes_worker.core.inbound import ChatKind, Inbound, InboundChat, InboundMessage, InboundSender, MediaRef
from hermes_worker.core.json_values import read_id, read_list, read_mapping, read_stripped_text, read_text
from hermes_worker.core.media_kinds import MediaKind

_MILLISECONDS = re.compile(r"[0-9]{4,15}", re.ASCII)
_GROUP = "2"
_FILES = {"picture": MediaKind.IMAGE, "audio": MediaKind.VOICE, "video": MediaKind.VIDEO}


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    app_secret: str = field(default="", repr=False)
    conversation_id: str = ""
    """The id of the group whose robot sends our answers."""


def receive(request: WebhookRequest, credentials: Credentials, at: datetime) -> tuple[Inbound, ...]:
    """Verify and read a message that DingTalk signed with the app's secret."""
    secret = encode_secret(credentials.app_secret, "DINGTALK_APP_SECRET")
    given, stamp = request.require_header("sign"), request.require_header("timestamp")
    if not _MILLISECONDS.fullmatch(stamp):
        raise Forged("the time is no number of milliseconds")
    check_fresh(stamp[:-3], at)
    check_same(given, compute_base64_hmac(secret, stamp.encode() + b"\n" + secret))
    return read(parse_json(request.body), credentials)


def read(message: Mapping[str, Any], credentials: Credentials) -> tuple[Inbound, ...]:
    """Read a message; empty for one of another group, or of a direct chat. Total."""
    number, conversation = read_id(message.get("msgId")), read_id(message.get("conversationId"))
    is_ours = bool(conversation) and conversation == credentials.conversation_id
    if not number or not is_ours or read_id(message.get("conversationType")) != _GROUP:
        return ()
    stamp = read_id(message.get("createAt"))
    return (
        InboundMessage(
            event_key=make_event_key(number),
            chat=InboundChat(
                id=make_chat_id(conversation),
                kind=ChatKind.GROUP,
                name=read_stripped_text(message.get("conversationTitle")),
            ),
            sender=InboundSender(
                id=read_id(message.get("senderStaffId")) or read_id(message.get("senderId")),
                other_id=read_id(message.get("senderId")),
                name=read_stripped_text(message.get("senderNick")),
                is_bot=bool(read_id(message.get("senderId")))
                and read_id(message.get("senderId")) == read_id(message.get("chatbotUserId")),
            ),
            message_id=number,
            sent_at=int(stamp) / 1000 if _MILLISECONDS.fullmatch(stamp) else None,
            text=_read_message_text(message),
            media=tuple(_list_files(message)),
            is_addressed=message.get("isInAtList") is True,
        ),
    )


def _read_message_text(message: Mapping[str, Any]) -> str:
    said = read_stripped_text(read_mapping(message.get("text")).get("content"))
    return said or "".join(read_text(part.get("text")) for part in _list_parts(message)).strip()


def _list_parts(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """List the parts of a text with pictures in it."""
    return [read_mapping(part) for part in read_list(read_mapping(message.get("content")).get("richText"))]


def _list_files(message: Mapping[str, Any]) -> list[MediaRef]:
    """List the files that have a code to download them with."""
    whole = {"type": message.get("msgtype"), **read_mapping(message.get("content"))}
    return [
        MediaRef(
            kind=_FILES.get(read_text(file.get("type")), MediaKind.DOCUMENT),
            id=code,
            name=read_text(file.get("fileName")),
        )
        for file in (whole, *_list_parts(message))
        if (code := read_id(file.get("downloadCode")))
    ]


def make_chat_id(conversation: str) -> str:
    """Write a conversation's id as a target can name it: letters, digits, ``_`` and ``-``."""
    return re.sub(r"[^A-Za-z0-9_-]", "", conversation.replace("/", "_").replace("+", "-"))[:64]
