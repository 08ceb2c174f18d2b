"""DingTalk, coming in: what a robot of a group is told over HTTP (open.dingtalk.com, "Receive messages of a robot",
2026-11).

DingTalk signs the time and not the message, so a request that somebody got hold of is as good as new for five minutes;
its id makes it cause nothing twice. Answers leave through the address of one robot, which stands for one group: only
what is written in that group is taken, so nobody's answer stands in another chat.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from hermes_worker.channels.inbound.proofs import (
    base64_hmac,
    check_fresh,
    check_same,
    event_key,
    json_of,
    secret_bytes,
)
from hermes_worker.channels.inbound.receiving import Forged, WebhookRequest
from hermes_worker.core.inbound import ChatKind, Inbound, InboundChat, InboundMessage, InboundSender
from hermes_worker.core.json_values import id_of, mapping_of, stripped_of, text_of

_MILLISECONDS = re.compile(r"[0-9]{4,15}", re.ASCII)
_GROUP = "2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    app_secret: str = field(default="", repr=False)
    conversation_id: str = ""
    """Of the group whose robot sends our answers."""


def receive(request: WebhookRequest, credentials: Credentials, at: datetime) -> tuple[Inbound, ...]:
    """A message that DingTalk brought with the app's secret."""
    secret = secret_bytes(credentials.app_secret, "DINGTALK_APP_SECRET")
    given, stamp = request.header("sign"), request.header("timestamp")
    if not _MILLISECONDS.fullmatch(stamp):
        raise Forged("the time is no number of milliseconds")
    check_fresh(stamp[:-3], at)
    check_same(given, base64_hmac(secret, stamp.encode() + b"\n" + secret))
    return read(json_of(request.body), credentials)


def read(message: Mapping[str, Any], credentials: Credentials) -> tuple[Inbound, ...]:
    """What a message says; nothing for one of another group, or between two. Total."""
    number, conversation = id_of(message.get("msgId")), id_of(message.get("conversationId"))
    is_ours = bool(conversation) and conversation == credentials.conversation_id
    if not number or not is_ours or id_of(message.get("conversationType")) != _GROUP:
        return ()
    stamp = id_of(message.get("createAt"))
    return (
        InboundMessage(
            event_key=event_key(number),
            chat=InboundChat(
                id=chat_of(conversation), kind=ChatKind.GROUP, name=stripped_of(message.get("conversationTitle"))
            ),
            sender=InboundSender(
                id=id_of(message.get("senderStaffId")) or id_of(message.get("senderId")),
                alt_id=id_of(message.get("senderId")),
                name=stripped_of(message.get("senderNick")),
                is_bot=bool(id_of(message.get("senderId")))
                and id_of(message.get("senderId")) == id_of(message.get("chatbotUserId")),
            ),
            message_id=number,
            sent_at=int(stamp) / 1000 if _MILLISECONDS.fullmatch(stamp) else None,
            text=text_of(mapping_of(message.get("text")).get("content")).strip(),
            is_addressed=message.get("isInAtList") is True,
        ),
    )


def chat_of(conversation: str) -> str:
    """A conversation as a target names it: letters, digits, ``_`` and ``-``."""
    return re.sub(r"[^A-Za-z0-9_-]", "", conversation.replace("/", "_").replace("+", "-"))[:64]
