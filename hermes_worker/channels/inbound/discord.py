"""Inbound interactions of Discord over HTTP (docs.discord.com/developers/interactions, 2026-11).

Discord brings no messages of people this way, only commands and presses of buttons; messages come over its gateway
(``discord_gateway``). The command ``/ask`` carries what a person says; every other one is a command of ours.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from hermes_worker.channels.inbound.proofs import check_fresh, make_event_key, parse_json
from hermes_worker.channels.inbound.receiving import Forged, WebhookAnswer, WebhookRequest
from hermes_worker.core.inbound import (
    ChatKind,
    Inbound,
    InboundButton,
    InboundChat,
    InboundCommand,
    InboundMessage,
    InboundSender,
)
from hermes_worker.core.json_values import read_id, read_list, read_mapping, read_text

_PING, _COMMAND, _COMPONENT = 1, 2, 3
_PONG, _SAID, _UPDATED_LATER = 1, 4, 6
_ONLY_FOR_THEM = 64
_EPOCH_MS = 1_420_070_400_000
_ASK = "ask"
_KINDS = {1: ChatKind.DIRECT, 3: ChatKind.GROUP, 10: ChatKind.THREAD, 11: ChatKind.THREAD, 12: ChatKind.THREAD}
"""By the type of a channel; all other types are channels of a server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    public_key: str = ""
    """The public key of the application, in hex. It is no secret."""
    token: str = field(default="", repr=False)
    """The token of the bot, for the gateway."""
    base_url: str = "https://discord.com/api/v10"


def receive(request: WebhookRequest, credentials: Credentials, at: datetime) -> tuple[Inbound, ...]:
    """Verify and read an interaction that Discord signed with the key of the application."""
    timestamp, signature = (
        request.require_header("x-signature-timestamp"),
        request.require_header("x-signature-ed25519"),
    )
    check_fresh(timestamp, at)
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(credentials.public_key))
        key.verify(bytes.fromhex(signature), timestamp.encode() + request.body)
    except (InvalidSignature, ValueError):
        raise Forged("the signature is wrong, or DISCORD_PUBLIC_KEY is none") from None
    return read(parse_json(request.body))


def answer(request: WebhookRequest, credentials: Credentials, at: datetime) -> WebhookAnswer | None:
    """Answer Discord's ping with a pong. A command is confirmed to the person who gave it; its result is a message of
    ours."""
    interaction = parse_json(request.body)
    told = {"type": _PONG} if interaction.get("type") == _PING else build_confirmation(interaction)
    return WebhookAnswer(body=json.dumps(told).encode())


def build_confirmation(interaction: Mapping[str, Any]) -> dict[str, Any]:
    """Build the confirmation of a command or a press."""
    if interaction.get("type") == _COMPONENT:
        return {"type": _UPDATED_LATER}
    return {"type": _SAID, "data": {"content": "Taken.", "flags": _ONLY_FOR_THEM}}


def read(interaction: Mapping[str, Any]) -> tuple[Inbound, ...]:
    """Read an interaction. Total."""
    number = read_id(interaction.get("id"))
    channel = read_mapping(interaction.get("channel"))
    chat_id = read_id(interaction.get("channel_id")) or read_id(channel.get("id"))
    kind, data = interaction.get("type"), read_mapping(interaction.get("data"))
    member = read_mapping(interaction.get("member"))
    if not number or not chat_id or kind not in (_COMMAND, _COMPONENT):
        return ()
    common: dict[str, Any] = {
        "event_key": make_event_key(number),
        "chat": InboundChat(
            id=chat_id,
            kind=judge_channel_kind(channel.get("type"), is_of_server=bool(interaction.get("guild_id") or member)),
            scope=read_id(interaction.get("guild_id")),
            name=read_text(channel.get("name")),
        ),
        "sender": build_sender(read_mapping(member.get("user")) or read_mapping(interaction.get("user")), member),
        "sent_at": read_time(number),
    }
    if kind == _COMPONENT:
        message = read_id(read_mapping(interaction.get("message")).get("id"))
        return (InboundButton(value=read_text(data.get("custom_id")), message_id=message, **common),)
    name = read_text(data.get("name")).lower()
    said = _join_options(data.get("options"))
    if name == _ASK:
        return (InboundMessage(text=said, is_addressed=True, **common),)
    return (InboundCommand(name=name, arguments=said, **common),)


def build_sender(user: Mapping[str, Any], member: Mapping[str, Any]) -> InboundSender:
    """Build the sender from a user, with the name that they have in the server."""
    names = (read_text(who.get(name)) for who, name in ((member, "nick"), (user, "global_name"), (user, "username")))
    return InboundSender(
        id=read_id(user.get("id")),
        alt_id=read_text(user.get("username")),
        name=next(filter(None, names), ""),
        is_bot=user.get("bot") is True,
    )


def judge_channel_kind(channel_type: object, *, is_of_server: bool) -> ChatKind:
    """Judge who can write in a channel, also where its type is unknown."""
    if isinstance(channel_type, int) and channel_type in _KINDS:
        return _KINDS[channel_type]
    return ChatKind.CHANNEL if is_of_server else ChatKind.DIRECT


def _join_options(options: object) -> str:
    """Join the values of a command's options, in order."""
    values = (read_mapping(option).get("value") for option in read_list(options))
    return " ".join(filter(None, (read_id(value) for value in values)))


def read_time(snowflake: str) -> float | None:
    """Read the time in an id of Discord's, in epoch seconds; ``None`` for what is no such id."""
    if not (snowflake.isascii() and snowflake.isdigit() and len(snowflake) <= 20):
        return None
    return ((int(snowflake) >> 22) + _EPOCH_MS) / 1000
