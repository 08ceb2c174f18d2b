"""One case for each platform that is listened to over a connection that stays open: what it answers and brings.

The contract suite (``tests/inbound/test_socket_contract.py``) asks every such platform of the catalogue for a case.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hermes_worker.core.inbound import ChatKind
from hermes_worker.net.http import HttpRequest, HttpResponse
from support.inbound_cases import slack_event

MATTERMOST_ME = "b" * 26
MATTERMOST_ADA = "a" * 26
MATTERMOST_DIRECT = "d" * 26


@dataclass(frozen=True, kw_only=True)
class SocketCase:
    """All of it as documented by the vendor."""

    answer: Any = None
    """What its REST interface answers before the connection; ``None`` where nothing is asked."""
    url: str = ""
    """Where to connect after that."""
    opening: tuple[Any, ...] = ()
    """Frames before the first message."""
    message: Any = None
    """A frame (text, or JSON) with the message ``hello`` of a person in a direct chat."""
    own: Any = None
    """The same of ours, where the platform tells us what we said."""
    bot: Any = None
    """The same of another program, where the platform tells them apart."""
    chat: str = ""
    sender: str = ""
    kind: ChatKind = ChatKind.DIRECT

    def answers(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(status=200, body=json.dumps(self.answer).encode())


def framed(frame: Any) -> str:
    return frame if isinstance(frame, str) else json.dumps(frame)


def slack_envelope(payload: Mapping[str, Any], number: str = "e1") -> dict[str, Any]:
    """docs.slack.dev/apis/events-api/using-socket-mode"""
    return {"envelope_id": number, "type": "events_api", "accepts_response_payload": False, "payload": payload}


def mattermost_post(number: int, text: str, **more: Any) -> dict[str, Any]:
    """A post of the REST interface; its id says its number."""
    post = {"id": f"{number:026d}", "create_at": 1_795_600_000_000 + 20_000 * number, "update_at": 0, "edit_at": 0}
    place = {"delete_at": 0, "user_id": MATTERMOST_ADA, "channel_id": MATTERMOST_DIRECT, "root_id": ""}
    return {**post, **place, "message": text, "type": "", "props": {}, "file_ids": [], **more}


def mattermost_posted(post: Mapping[str, Any], seq: int = 1, name: str = "@ada", **data: Any) -> dict[str, Any]:
    said = {"channel_type": "D", "channel_display_name": "@ada", "sender_name": name, "team_id": ""}
    return {
        "event": "posted",
        "data": {**said, "post": json.dumps(post), **data},
        "broadcast": {"channel_id": post["channel_id"]},
        "seq": seq,
    }


DISCORD_ME, DISCORD_ADA = "1100000000000000009", "80351110224678912"


def discord_message(number: int, text: str, **more: Any) -> dict[str, Any]:
    """A message in a direct chat, in it the author."""
    author = {"id": DISCORD_ADA, "username": "ada", "global_name": "Ada"}
    place = {"id": str(1_443_000_000_000_000_000 + number), "channel_id": "1100000000000000001", "type": 0}
    return {**place, "author": author, "content": text, "mentions": [], "attachments": [], **more}


def discord_dispatch(name: str, data: Mapping[str, Any], seq: int) -> dict[str, Any]:
    return {"op": 0, "t": name, "s": seq, "d": data}


def discord_ready(session: str, url: str, seq: int = 1) -> dict[str, Any]:
    me = {"id": DISCORD_ME, "username": "hermes", "bot": True}
    return discord_dispatch("READY", {"v": 10, "user": me, "session_id": session, "resume_gateway_url": url}, seq)


def ntfy_message(number: int, text: str, **more: Any) -> dict[str, Any]:
    """docs.ntfy.sh/subscribe/api, "JSON message format" """
    said = {"id": f"ntfy{number:08d}", "time": 1_795_600_000 + number, "event": "message", "topic": "mine"}
    return {**said, "message": text, **more}


def signal_received(number: int, text: str, **more: Any) -> dict[str, Any]:
    """signal-cli-jsonrpc(5): what a ``receive`` tells."""
    stamp = 1_795_600_000_000 + number
    source = {"source": "+15551234567", "sourceNumber": "+15551234567", "sourceUuid": SIGNAL_ADA, "sourceName": "Ada"}
    data = {"timestamp": stamp, "message": text, "expiresInSeconds": 0, "viewOnce": False}
    envelope = {**source, "sourceDevice": 1, "timestamp": stamp, "dataMessage": data | more}
    return {"envelope": envelope, "account": "+15550001111"}


def hass_event(number: int, text: str, **event: Any) -> dict[str, Any]:
    """developers.home-assistant.io/docs/api/websocket, "Subscribe to events" """
    data = {"text": text, "user": "ada", "chat": "mobile_app_phone"}
    context = {"id": f"01HASS{number:04d}", "parent_id": None, "user_id": None}
    fired = {"time_fired": "2026-11-25T12:00:00.000000+00:00", "origin": "LOCAL", "context": context}
    said = {"event_type": "hermes_worker_message", "data": data, **fired, **event}
    return {"id": 1, "type": "event", "event": said}


def irc_said(number: int, text: str, place: str = "hermes", nick: str = "Ada", **tags: str) -> str:
    """modern.ircdocs.horse, with the tags of IRCv3."""
    known = {"msgid": f"irc{number:06d}", "account": "ada"} | tags
    return f"@{';'.join(f'{name}={value}' for name, value in known.items())} :{nick}!u@host PRIVMSG {place} :{text}"


SIGNAL_ADA = "0b7a1b9e-7d1c-4a33-9a54-0c2d5d0c7a11"
SOCKET_CASES: dict[str, SocketCase] = {
    "slack": SocketCase(
        answer={"ok": True, "url": "wss://wss.slack.example/link/?ticket=t"},
        url="wss://wss.slack.example/link/?ticket=t",
        opening=({"type": "hello", "num_connections": 1},),
        message=slack_envelope(slack_event("hello")),
        own=slack_envelope(slack_event("hello", user="U0BOT")),
        bot=slack_envelope(slack_event("hello", bot_id="B1", subtype="bot_message")),
        chat="D024BE91L",
        sender="U2147483697",
    ),
    "mattermost": SocketCase(
        answer={"id": MATTERMOST_ME, "username": "hermes"},
        url="ws://service.example/api/v4/websocket",
        opening=({"status": "OK", "seq_reply": 1}, {"event": "hello", "data": {}, "broadcast": {}, "seq": 0}),
        message=mattermost_posted(mattermost_post(1, "hello")),
        own=mattermost_posted(mattermost_post(1, "hello", user_id=MATTERMOST_ME)),
        bot=mattermost_posted(mattermost_post(1, "hello", props={"from_bot": "true"})),
        chat=MATTERMOST_DIRECT,
        sender=MATTERMOST_ADA,
    ),
    "discord": SocketCase(
        answer={"url": "wss://gateway.discord.example", "session_start_limit": {"remaining": 1000}},
        url="wss://gateway.discord.example/?v=10&encoding=json",
        opening=(
            {"op": 10, "d": {"heartbeat_interval": 45000}},
            discord_ready("s1", "wss://resume.discord.example"),
        ),
        message=discord_dispatch("MESSAGE_CREATE", discord_message(1, "hello"), 2),
        own=discord_dispatch("MESSAGE_CREATE", discord_message(1, "hello", author={"id": DISCORD_ME, "bot": True}), 2),
        bot=discord_dispatch("MESSAGE_CREATE", discord_message(1, "hello", author={"id": "9", "bot": True}), 2),
        chat="1100000000000000001",
        sender=DISCORD_ADA,
    ),
    "ntfy": SocketCase(
        url="http://service.example/mine,other/json",
        opening=({"id": "o", "time": 1_795_600_000, "event": "open", "topic": "mine,other"},),
        message=ntfy_message(1, "hello"),
        own=ntfy_message(1, "hello", tags=["hermes-worker"]),
        chat="mine",
        sender="mine",
    ),
    "signal": SocketCase(
        url="http://service.example/api/v1/events?account=%2B15550001111",
        message=signal_received(1, "hello"),
        own={"envelope": signal_received(1, "hello")["envelope"] | {"sourceNumber": "+15550001111"}},
        chat="+15551234567",
        sender=SIGNAL_ADA,
    ),
    "irc": SocketCase(
        url="ircs://irc.example:6697",
        opening=(
            ":irc.example CAP * ACK :account-tag",
            ":irc.example CAP * ACK :message-tags",
            ":irc.example CAP * ACK :sasl",
            "AUTHENTICATE +",
            ":irc.example 903 hermes :SASL authentication successful",
            ":irc.example 001 hermes :Welcome",
        ),
        message=irc_said(1, "hello"),
        own=irc_said(1, "hello", nick="hermes_"),
        bot=irc_said(1, "hello", bot=""),
        chat="ada",
        sender="ada",
    ),
    "homeassistant": SocketCase(
        url="wss://house.example/api/websocket",
        opening=(
            {"type": "auth_required", "ha_version": "2026.11.1"},
            {"type": "auth_ok", "ha_version": "2026.11.1"},
            {"id": 1, "type": "result", "success": True, "result": None},
        ),
        message=hass_event(1, "hello"),
        chat="mobile_app_phone",
        sender="ada",
    ),
}
