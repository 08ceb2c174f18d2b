"""Inbound messages of Signal: server-sent events of a signal-cli daemon (signal-cli-jsonrpc(5), "HTTP", 2026-11).

The daemon keeps no message that it could not send on: what comes while no gateway is connected is lost, unless it was
started with ``--receive-mode on-connection``; then Signal keeps it. So there is no cursor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote

from hermes_worker.channels.exchange import service_url
from hermes_worker.channels.inbound.proofs import event_key
from hermes_worker.channels.inbound.receiving import Addressing, HeardFrame, SocketAddress, SocketTalk
from hermes_worker.channels.platforms.signal import quoted_as
from hermes_worker.core.inbound import (
    ChatKind,
    Inbound,
    InboundChat,
    InboundEdit,
    InboundMessage,
    InboundSender,
    MediaRef,
)
from hermes_worker.core.json_values import id_of, list_of, mapping_of, number_of, object_in, size_of, text_of

_NAMED = "\ufffc"
"""Stands in a text in the place of a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    base_url: str
    """The address of the daemon, such as ``http://signal:8080``."""
    account: str
    """The phone number that messages come to."""


class Socket(SocketTalk):
    """One stream of events."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def address(self, cursor: str, at: datetime) -> Addressing:
        yield from ()
        path = f"api/v1/events?account={quote(self._credentials.account, safe='')}"
        return SocketAddress(url=service_url(self._credentials.base_url, path))

    def hear(self, frame: str, at: datetime) -> HeardFrame:
        said = object_in(frame)
        told = mapping_of(said.get("params")) or said
        return HeardFrame(inbound=read(mapping_of(told.get("envelope")), self._credentials.account))


def read(envelope: Mapping[str, Any], me: str) -> tuple[Inbound, ...]:
    """Read an envelope. Total. Empty for receipts, for signs of typing, and for what we sent."""
    number, lasting = id_of(envelope.get("sourceNumber")), id_of(envelope.get("sourceUuid"))
    edited = mapping_of(envelope.get("editMessage"))
    said = mapping_of(edited.get("dataMessage")) or mapping_of(envelope.get("dataMessage"))
    stamp = size_of(said.get("timestamp")) or size_of(envelope.get("timestamp"))
    if not (number or lasting) or stamp is None or not said or me in (number, lasting):
        return ()
    group = id_of(mapping_of(said.get("groupInfo")).get("groupId"))
    common: dict[str, Any] = {
        "event_key": event_key(lasting or number, str(stamp)),
        "chat": InboundChat(
            id=f"group:{group}" if group else number or lasting,
            kind=ChatKind.GROUP if group else ChatKind.DIRECT,
            name=text_of(mapping_of(said.get("groupInfo")).get("groupName")),
        ),
        "sender": InboundSender(id=lasting or number, other_id=number, name=text_of(envelope.get("sourceName"))),
        "sent_at": (number_of(stamp) or 0.0) / 1000 or None,
    }
    mentions = [mapping_of(one) for one in list_of(said.get("mentions"))]
    text = _plain(text_of(said.get("message")), mentions, me)
    if edited:
        return (InboundEdit(message_id=id_of(edited.get("targetSentTimestamp")), text=text, **common),)
    quoted = mapping_of(said.get("quote"))
    files = tuple(_files(said))
    if not text and not files:
        return ()  # a reaction, a change of the group
    return (
        InboundMessage(
            message_id=str(stamp),
            quoted_as=quoted_as(str(stamp), number or lasting),
            text=text,
            media=files,
            reply_to=id_of(quoted.get("id")),
            reply_to_text=text_of(quoted.get("text")),
            is_addressed=any(_is_me(one, me) for one in mentions) or id_of(quoted.get("authorNumber")) == me,
            **common,
        ),
    )


def _plain(text: str, mentions: list[Mapping[str, Any]], me: str) -> str:
    """Write names in place of their placeholders; our own name at the beginning is removed, since it is not part of the
    question."""
    for one in sorted(mentions, key=lambda one: size_of(one.get("start")) or 0):
        is_first = text.lstrip().startswith(_NAMED)
        name = "" if is_first and _is_me(one, me) else f"@{text_of(one.get('name')) or id_of(one.get('number'))}"
        text = text.replace(_NAMED, name, 1)
        text = text if name else text.lstrip(" ,:")
    return text


def _is_me(mention: Mapping[str, Any], me: str) -> bool:
    return me in (id_of(mention.get("number")), id_of(mention.get("uuid")))


def _files(said: Mapping[str, Any]) -> list[MediaRef]:
    return [
        MediaRef.told(number, media_type=file.get("contentType"), name=file.get("filename"), size=file.get("size"))
        for file in map(mapping_of, list_of(said.get("attachments")))
        if (number := id_of(file.get("id")))
    ]
