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

from hermes_worker.channels.exchange import join_service_url
from hermes_worker.channels.inbound.proofs import make_event_key
from hermes_worker.channels.inbound.receiving import Addressing, FrameOutcome, SocketAddress, SocketTalk
from hermes_worker.channels.platforms.signal import write_quote_reference
from hermes_worker.core.inbound import (
    ChatKind,
    Inbound,
    InboundChat,
    InboundEdit,
    InboundMessage,
    InboundSender,
    MediaRef,
)
from hermes_worker.core.json_values import (
    parse_object,
    read_id,
    read_list,
    read_mapping,
    read_number,
    read_size,
    read_text,
)

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

    def find_address(self, cursor: str, at: datetime) -> Addressing:
        yield from ()
        path = f"api/v1/events?account={quote(self._credentials.account, safe='')}"
        return SocketAddress(url=join_service_url(self._credentials.base_url, path))

    def on_frame(self, frame: str, at: datetime) -> FrameOutcome:
        said = parse_object(frame)
        told = read_mapping(said.get("params")) or said
        return FrameOutcome(inbound=read(read_mapping(told.get("envelope")), self._credentials.account))


def read(envelope: Mapping[str, Any], me: str) -> tuple[Inbound, ...]:
    """Read an envelope. Total. Empty for receipts, for signs of typing, and for what we sent."""
    number, lasting = read_id(envelope.get("sourceNumber")), read_id(envelope.get("sourceUuid"))
    edited = read_mapping(envelope.get("editMessage"))
    said = read_mapping(edited.get("dataMessage")) or read_mapping(envelope.get("dataMessage"))
    stamp = read_size(said.get("timestamp")) or read_size(envelope.get("timestamp"))
    if not (number or lasting) or stamp is None or not said or me in (number, lasting):
        return ()
    group = read_id(read_mapping(said.get("groupInfo")).get("groupId"))
    common: dict[str, Any] = {
        "event_key": make_event_key(lasting or number, str(stamp)),
        "chat": InboundChat(
            id=f"group:{group}" if group else number or lasting,
            kind=ChatKind.GROUP if group else ChatKind.DIRECT,
            name=read_text(read_mapping(said.get("groupInfo")).get("groupName")),
        ),
        "sender": InboundSender(id=lasting or number, other_id=number, name=read_text(envelope.get("sourceName"))),
        "sent_at": (read_number(stamp) or 0.0) / 1000 or None,
    }
    mentions = [read_mapping(one) for one in read_list(said.get("mentions"))]
    text = _render_plain(read_text(said.get("message")), mentions, me)
    if edited:
        return (InboundEdit(message_id=read_id(edited.get("targetSentTimestamp")), text=text, **common),)
    quoted = read_mapping(said.get("quote"))
    files = tuple(_list_files(said))
    if not text and not files:
        return ()  # a reaction, a change of the group
    return (
        InboundMessage(
            message_id=str(stamp),
            quoted_as=write_quote_reference(str(stamp), number or lasting),
            text=text,
            media=files,
            reply_to=read_id(quoted.get("id")),
            reply_to_text=read_text(quoted.get("text")),
            is_addressed=any(_is_me(one, me) for one in mentions) or read_id(quoted.get("authorNumber")) == me,
            **common,
        ),
    )


def _render_plain(text: str, mentions: list[Mapping[str, Any]], me: str) -> str:
    """Write names in place of their placeholders; our own name at the beginning is removed, since it is not part of the
    question."""
    for one in sorted(mentions, key=lambda one: read_size(one.get("start")) or 0):
        is_first = text.lstrip().startswith(_NAMED)
        name = "" if is_first and _is_me(one, me) else f"@{read_text(one.get('name')) or read_id(one.get('number'))}"
        text = text.replace(_NAMED, name, 1)
        text = text if name else text.lstrip(" ,:")
    return text


def _is_me(mention: Mapping[str, Any], me: str) -> bool:
    return me in (read_id(mention.get("number")), read_id(mention.get("uuid")))


def _list_files(said: Mapping[str, Any]) -> list[MediaRef]:
    return [
        MediaRef.from_platform(
            number, media_type=file.get("contentType"), name=file.get("filename"), size=file.get("size")
        )
        for file in map(read_mapping, read_list(said.get("attachments")))
        if (number := read_id(file.get("id")))
    ]
