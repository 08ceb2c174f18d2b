"""Inbound messages and presses of buttons over Discord's gateway, a websocket
(docs.discord.com/developers/events/gateway, API 10, 2026-11).

The cursor is the session and the number of the last event in it. With it a new connection, of any process, continues
where the last one ended, for as long as Discord keeps the session (a few minutes). Messages written while there was no
session are not fetched.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any

from hermes_worker.channels.errors import DeliveryError, SendErrorKind
from hermes_worker.channels.exchange import (
    header_value,
    json_object,
    json_request,
    path_segment,
    preparing,
    service_url,
)
from hermes_worker.channels.inbound.discord import (
    Credentials,
    confirmation,
    kind_of_channel,
    made_at,
    read,
    sender_of,
)
from hermes_worker.channels.inbound.proofs import event_key
from hermes_worker.channels.inbound.receiving import (
    Addressing,
    Following,
    HeardFrame,
    SocketAddress,
    SocketTalk,
    websocket_at,
)
from hermes_worker.channels.platforms.discord import api_headers, classify
from hermes_worker.core.inbound import Inbound, InboundChat, InboundEdit, InboundMessage, MediaRef
from hermes_worker.core.json_values import id_of, list_of, mapping_of, number_of, object_in, size_of, text_of
from hermes_worker.net.http import HttpRequest

INTENTS = (1 << 9) | (1 << 12) | (1 << 15)
"""Messages of servers, direct messages, and their content; the last one is turned on in the settings of the app."""
_HEARTBEAT, _IDENTIFY, _RESUME = 1, 2, 6
_PEOPLE = frozenset({0, 19})
"""Types of messages that people wrote; the others tell of the channel."""
_BEAT_S = (1.0, 120.0)
_IDENTIFY_EVERY_S = 5.0
_SESSION_IS_OVER = frozenset({4003, 4007, 4009})
_IS_WRONG: Mapping[int, str] = {
    4004: "Discord refuses the token; check DISCORD_BOT_TOKEN",
    4010: "Discord refuses the shard",
    4011: "the bot is in too many servers for one connection",
    4012: "Discord does not know this version of its API any more",
    4013: "Discord refuses what it is asked to send",
    4014: "turn on the Message Content Intent in the settings of the app",
}
"""Close codes of errors that do not pass by themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Session:
    """A session that can be resumed."""

    id: str = ""
    url: str = field(default="", repr=False)
    seq: int | None = None
    me: str = ""
    """The id of the account."""

    @property
    def is_open(self) -> bool:
        return bool(self.id) and bool(self.url) and self.seq is not None

    @property
    def cursor(self) -> str:
        return json.dumps(asdict(self)) if self.is_open else ""


def _session_in(cursor: str) -> _Session:
    said = object_in(cursor)
    return _Session(
        id=text_of(said.get("id")),
        url=text_of(said.get("url")),
        seq=size_of(said.get("seq")),
        me=text_of(said.get("me")),
    )


class Socket(SocketTalk):
    """One connection."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._session = _Session()
        self._is_acknowledged = True

    def address(self, cursor: str, at: datetime) -> Addressing:
        """Begin the exchange for the address: an open session has one of its own; else Discord is asked."""
        self._session = _session_in(cursor)
        if self._session.is_open:
            return SocketAddress(url=_with_version(self._session.url))
        url = service_url(self._credentials.base_url, "gateway/bot")
        headers = api_headers(self._credentials.token)
        response = yield HttpRequest(method="GET", url=url, headers=headers, delivers=False)
        outcome = classify(response)
        if isinstance(outcome, DeliveryError):
            return outcome
        answer = json_object(response)
        limit = mapping_of(answer.get("session_start_limit"))
        if limit.get("remaining") == 0:
            wait_s = (number_of(limit.get("reset_after")) or 60_000) / 1000
            said = "Discord allows no more connections for now"
            return DeliveryError(kind=SendErrorKind.RATE_LIMITED, message=said, retry_after_s=wait_s)
        address = websocket_at(text_of(answer.get("url")), "Discord")
        if isinstance(address, DeliveryError):
            return address
        return replace(address, url=_with_version(address.url))

    def hear(self, frame: str, at: datetime) -> HeardFrame:
        said = object_in(frame)
        data = said.get("d")
        match said.get("op"):
            case 0:
                return self._dispatched(text_of(said.get("t")), size_of(said.get("s")), mapping_of(data))
            case 1:
                return HeardFrame(replies=(self._heartbeat(),))
            case 7:
                return HeardFrame(is_over=True)
            case 9:
                return self._invalid(is_resumable=data is True)
            case 10:
                return self._hello(mapping_of(data))
            case 11:
                self._is_acknowledged = True
        return HeardFrame()

    def beat(self, at: datetime) -> HeardFrame:
        """Send a heartbeat. A connection on which the last one was not acknowledged is dead."""
        if not self._is_acknowledged:
            return HeardFrame(is_over=True)
        self._is_acknowledged = False
        return HeardFrame(replies=(self._heartbeat(),))

    def closed(self, code: int) -> HeardFrame:
        if code in _IS_WRONG:
            return HeardFrame(cursor="", error=DeliveryError(kind=SendErrorKind.AUTH, message=_IS_WRONG[code]))
        if code == 4008:
            said = "Discord was sent too much"
            error = DeliveryError(kind=SendErrorKind.RATE_LIMITED, message=said, retry_after_s=60.0)
            return HeardFrame(error=error)
        return HeardFrame(cursor="") if code in _SESSION_IS_OVER else HeardFrame()

    def _hello(self, data: Mapping[str, Any]) -> HeardFrame:
        interval_ms = number_of(data.get("heartbeat_interval")) or 41_250.0
        beat_s = min(max(interval_ms / 1000, _BEAT_S[0]), _BEAT_S[1])
        token = header_value(self._credentials.token)
        if self._session.is_open:
            known = {"token": token, "session_id": self._session.id, "seq": self._session.seq}
            return HeardFrame(replies=(json.dumps({"op": _RESUME, "d": known}),), beat_s=beat_s)
        properties = {"os": sys.platform, "browser": "hermes-worker", "device": "hermes-worker"}
        asked = {"token": token, "intents": INTENTS, "properties": properties}
        return HeardFrame(replies=(json.dumps({"op": _IDENTIFY, "d": asked}),), beat_s=beat_s)

    def _invalid(self, *, is_resumable: bool) -> HeardFrame:
        """Handle a session that cannot be resumed, or not now."""
        said = "Discord ended the session"
        error = DeliveryError(kind=SendErrorKind.RATE_LIMITED, message=said, retry_after_s=_IDENTIFY_EVERY_S)
        return HeardFrame(is_over=True, error=error, cursor=None if is_resumable else "")

    def _heartbeat(self) -> str:
        return json.dumps({"op": _HEARTBEAT, "d": self._session.seq})

    def _dispatched(self, name: str, seq: int | None, data: Mapping[str, Any]) -> HeardFrame:
        if seq is not None:
            self._session = replace(self._session, seq=seq)
        if name == "READY":
            self._session = replace(
                self._session,
                id=text_of(data.get("session_id")),
                url=text_of(data.get("resume_gateway_url")),
                me=id_of(mapping_of(data.get("user")).get("id")),
            )
        heard = HeardFrame(cursor=self._session.cursor or None)
        match name:
            case "MESSAGE_CREATE" | "MESSAGE_UPDATE":
                return replace(heard, inbound=read_message(data, self._session.me, is_edit=name == "MESSAGE_UPDATE"))
            case "INTERACTION_CREATE" if inbound := read(data):
                return replace(heard, inbound=inbound, then=self._confirmed(data))
        return heard

    def _confirmed(self, interaction: Mapping[str, Any]) -> Following:
        """Confirm an interaction: without that within three seconds, Discord shows the person a failure."""
        number, token = id_of(interaction.get("id")), id_of(interaction.get("token"))
        if token:
            path = f"interactions/{path_segment(number)}/{path_segment(token)}/callback"
            url = service_url(self._credentials.base_url, path)
            headers = api_headers(self._credentials.token)
            yield preparing(json_request("POST", url, confirmation(interaction), headers=headers))
        return HeardFrame()


def read_message(message: Mapping[str, Any], me: str, *, is_edit: bool = False) -> tuple[Inbound, ...]:
    """Read a message that a person wrote or changed. Total. Empty for our own, and for messages about the channel."""
    number, chat = id_of(message.get("id")), id_of(message.get("channel_id"))
    author, member = mapping_of(message.get("author")), mapping_of(message.get("member"))
    is_ours = bool(me) and id_of(author.get("id")) == me
    if not number or not chat or not id_of(author.get("id")) or is_ours or size_of(message.get("type")) not in _PEOPLE:
        return ()
    sender = sender_of(author, member)
    server = id_of(message.get("guild_id"))
    common: dict[str, Any] = {
        "chat": InboundChat(
            id=chat,
            kind=kind_of_channel(message.get("channel_type"), is_of_server=bool(server)),
            scope=server,
        ),
        "sender": replace(sender, is_bot=sender.is_bot or bool(id_of(message.get("webhook_id")))),
        "message_id": number,
        "sent_at": made_at(number),
    }
    text = text_of(message.get("content"))
    if is_edit:
        changed = text_of(message.get("edited_timestamp"))
        # A link that is shown with a picture changes a message, but not its text.
        return (InboundEdit(event_key=event_key(number, "edit", changed), text=text, **common),) if changed else ()
    answered = mapping_of(message.get("referenced_message"))
    named = [id_of(mapping_of(user).get("id")) for user in list_of(message.get("mentions"))]
    is_answer = bool(me) and id_of(mapping_of(answered.get("author")).get("id")) == me
    return (
        InboundMessage(
            event_key=event_key(number),
            text=re.sub(rf"\A\s*<@!?{re.escape(me)}>[\s:,]*", "", text) if me else text,
            media=tuple(_files(message)),
            reply_to=id_of(answered.get("id")),
            reply_to_text=text_of(answered.get("content")),
            is_addressed=is_answer or (bool(me) and me in named),
            **common,
        ),
    )


def _files(message: Mapping[str, Any]) -> list[MediaRef]:
    return [
        MediaRef.told(url, media_type=file.get("content_type"), name=file.get("filename"), size=file.get("size"))
        for file in map(mapping_of, list_of(message.get("attachments")))
        if (url := text_of(file.get("url")))
    ]


def _with_version(url: str) -> str:
    return f"{url.partition('?')[0].rstrip('/')}/?v=10&encoding=json"
