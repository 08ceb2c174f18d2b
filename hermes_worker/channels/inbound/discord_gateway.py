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
    encode_path_segment,
    join_service_url,
    json_object,
    json_request,
    mark_as_preparing,
    require_header_value,
)
from hermes_worker.channels.inbound.discord import (
    Credentials,
    build_confirmation,
    build_sender,
    judge_channel_kind,
    read,
    read_time,
)
from hermes_worker.channels.inbound.proofs import make_event_key
from hermes_worker.channels.inbound.receiving import (
    Addressing,
    Following,
    FrameOutcome,
    SocketAddress,
    SocketTalk,
    build_websocket_address,
)
from hermes_worker.channels.platforms.discord import build_headers, classify
from hermes_worker.core.inbound import Inbound, InboundChat, InboundEdit, InboundMessage, MediaRef
from hermes_worker.core.json_values import (
    parse_object,
    read_id,
    read_list,
    read_mapping,
    read_number,
    read_size,
    read_text,
)
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


def _parse_session(cursor: str) -> _Session:
    said = parse_object(cursor)
    return _Session(
        id=read_text(said.get("id")),
        url=read_text(said.get("url")),
        seq=read_size(said.get("seq")),
        me=read_text(said.get("me")),
    )


class Socket(SocketTalk):
    """One connection."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._session = _Session()
        self._is_acknowledged = True

    def find_address(self, cursor: str, at: datetime) -> Addressing:
        """Begin the exchange for the address: an open session has one of its own; else Discord is asked."""
        self._session = _parse_session(cursor)
        if self._session.is_open:
            return SocketAddress(url=_with_version(self._session.url))
        url = join_service_url(self._credentials.base_url, "gateway/bot")
        headers = build_headers(self._credentials.token)
        response = yield HttpRequest(method="GET", url=url, headers=headers, delivers=False)
        outcome = classify(response)
        if isinstance(outcome, DeliveryError):
            return outcome
        answer = json_object(response)
        limit = read_mapping(answer.get("session_start_limit"))
        if limit.get("remaining") == 0:
            wait_s = (read_number(limit.get("reset_after")) or 60_000) / 1000
            said = "Discord allows no more connections for now"
            return DeliveryError(kind=SendErrorKind.RATE_LIMITED, message=said, retry_after_s=wait_s)
        address = build_websocket_address(read_text(answer.get("url")), "Discord")
        if isinstance(address, DeliveryError):
            return address
        return replace(address, url=_with_version(address.url))

    def on_frame(self, frame: str, at: datetime) -> FrameOutcome:
        said = parse_object(frame)
        data = said.get("d")
        match said.get("op"):
            case 0:
                return self._on_dispatch(read_text(said.get("t")), read_size(said.get("s")), read_mapping(data))
            case 1:
                return FrameOutcome(replies=(self._build_heartbeat(),))
            case 7:
                return FrameOutcome(is_over=True)
            case 9:
                return self._on_invalid_session(is_resumable=data is True)
            case 10:
                return self._on_hello(read_mapping(data))
            case 11:
                self._is_acknowledged = True
        return FrameOutcome()

    def on_beat(self, at: datetime) -> FrameOutcome:
        """Send a heartbeat. A connection on which the last one was not acknowledged is dead."""
        if not self._is_acknowledged:
            return FrameOutcome(is_over=True)
        self._is_acknowledged = False
        return FrameOutcome(replies=(self._build_heartbeat(),))

    def on_close(self, code: int) -> FrameOutcome:
        if code in _IS_WRONG:
            return FrameOutcome(cursor="", error=DeliveryError(kind=SendErrorKind.AUTH, message=_IS_WRONG[code]))
        if code == 4008:
            said = "Discord was sent too much"
            error = DeliveryError(kind=SendErrorKind.RATE_LIMITED, message=said, retry_after_s=60.0)
            return FrameOutcome(error=error)
        return FrameOutcome(cursor="") if code in _SESSION_IS_OVER else FrameOutcome()

    def _on_hello(self, data: Mapping[str, Any]) -> FrameOutcome:
        interval_ms = read_number(data.get("heartbeat_interval")) or 41_250.0
        beat_s = min(max(interval_ms / 1000, _BEAT_S[0]), _BEAT_S[1])
        token = require_header_value(self._credentials.token)
        if self._session.is_open:
            known = {"token": token, "session_id": self._session.id, "seq": self._session.seq}
            return FrameOutcome(replies=(json.dumps({"op": _RESUME, "d": known}),), beat_s=beat_s)
        properties = {"os": sys.platform, "browser": "hermes-worker", "device": "hermes-worker"}
        asked = {"token": token, "intents": INTENTS, "properties": properties}
        return FrameOutcome(replies=(json.dumps({"op": _IDENTIFY, "d": asked}),), beat_s=beat_s)

    def _on_invalid_session(self, *, is_resumable: bool) -> FrameOutcome:
        """Handle a session that cannot be resumed, or not now."""
        said = "Discord ended the session"
        error = DeliveryError(kind=SendErrorKind.RATE_LIMITED, message=said, retry_after_s=_IDENTIFY_EVERY_S)
        return FrameOutcome(is_over=True, error=error, cursor=None if is_resumable else "")

    def _build_heartbeat(self) -> str:
        return json.dumps({"op": _HEARTBEAT, "d": self._session.seq})

    def _on_dispatch(self, name: str, seq: int | None, data: Mapping[str, Any]) -> FrameOutcome:
        if seq is not None:
            self._session = replace(self._session, seq=seq)
        if name == "READY":
            self._session = replace(
                self._session,
                id=read_text(data.get("session_id")),
                url=read_text(data.get("resume_gateway_url")),
                me=read_id(read_mapping(data.get("user")).get("id")),
            )
        heard = FrameOutcome(cursor=self._session.cursor or None)
        match name:
            case "MESSAGE_CREATE" | "MESSAGE_UPDATE":
                return replace(heard, inbound=read_message(data, self._session.me, is_edit=name == "MESSAGE_UPDATE"))
            case "INTERACTION_CREATE" if inbound := read(data):
                return replace(heard, inbound=inbound, then=self._confirm(data))
        return heard

    def _confirm(self, interaction: Mapping[str, Any]) -> Following:
        """Confirm an interaction: without that within three seconds, Discord shows the person a failure."""
        number, token = read_id(interaction.get("id")), read_id(interaction.get("token"))
        if token:
            path = f"interactions/{encode_path_segment(number)}/{encode_path_segment(token)}/callback"
            url = join_service_url(self._credentials.base_url, path)
            headers = build_headers(self._credentials.token)
            yield mark_as_preparing(json_request("POST", url, build_confirmation(interaction), headers=headers))
        return FrameOutcome()


def read_message(message: Mapping[str, Any], me: str, *, is_edit: bool = False) -> tuple[Inbound, ...]:
    """Read a message that a person wrote or changed. Total. Empty for our own, and for messages about the channel."""
    number, chat = read_id(message.get("id")), read_id(message.get("channel_id"))
    author, member = read_mapping(message.get("author")), read_mapping(message.get("member"))
    is_ours = bool(me) and read_id(author.get("id")) == me
    if (
        not number
        or not chat
        or not read_id(author.get("id"))
        or is_ours
        or read_size(message.get("type")) not in _PEOPLE
    ):
        return ()
    sender = build_sender(author, member)
    server = read_id(message.get("guild_id"))
    common: dict[str, Any] = {
        "chat": InboundChat(
            id=chat,
            kind=judge_channel_kind(message.get("channel_type"), is_of_server=bool(server)),
            scope=server,
        ),
        "sender": replace(sender, is_bot=sender.is_bot or bool(read_id(message.get("webhook_id")))),
        "message_id": number,
        "sent_at": read_time(number),
    }
    text = read_text(message.get("content"))
    if is_edit:
        changed = read_text(message.get("edited_timestamp"))
        # A link that is shown with a picture changes a message, but not its text.
        return (InboundEdit(event_key=make_event_key(number, "edit", changed), text=text, **common),) if changed else ()
    answered = read_mapping(message.get("referenced_message"))
    named = [read_id(read_mapping(user).get("id")) for user in read_list(message.get("mentions"))]
    is_answer = bool(me) and read_id(read_mapping(answered.get("author")).get("id")) == me
    return (
        InboundMessage(
            event_key=make_event_key(number),
            text=re.sub(rf"\A\s*<@!?{re.escape(me)}>[\s:,]*", "", text) if me else text,
            media=tuple(_list_files(message)),
            reply_to=read_id(answered.get("id")),
            reply_to_text=read_text(answered.get("content")),
            is_addressed=is_answer or (bool(me) and me in named),
            **common,
        ),
    )


def _list_files(message: Mapping[str, Any]) -> list[MediaRef]:
    return [
        MediaRef.from_platform(
            url, media_type=file.get("content_type"), name=file.get("filename"), size=file.get("size")
        )
        for file in map(read_mapping, read_list(message.get("attachments")))
        if (url := read_text(file.get("url")))
    ]


def _with_version(url: str) -> str:
    return f"{url.partition('?')[0].rstrip('/')}/?v=10&encoding=json"
