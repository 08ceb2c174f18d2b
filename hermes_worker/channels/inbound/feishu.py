"""Inbound messages of Feishu (Lark): event subscriptions and presses of buttons over HTTP (open.feishu.cn, "Configure
event subscription" and "Card callback", 2026-11).

Events are encrypted with the Encrypt Key (AES-256-CBC) and signed with it. The question whether the address is ours is
encrypted and carries the Verification Token, and no signature.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.padding import PKCS7

from hermes_worker.channels.inbound.proofs import check_fresh, check_same, encode_secret, make_event_key, parse_json
from hermes_worker.channels.inbound.receiving import Forged, UnreadableInbound, WebhookAnswer, WebhookRequest
from hermes_worker.channels.platforms.feishu import ANSWER
from hermes_worker.core.inbound import (
    ChatKind,
    Inbound,
    InboundButton,
    InboundChat,
    InboundMessage,
    InboundSender,
    MediaRef,
)
from hermes_worker.core.json_values import parse_object, read_id, read_list, read_mapping, read_text
from hermes_worker.core.media_kinds import MediaKind

_SIGNATURE = "x-lark-signature"
_BLOCK = 16
_KINDS = {
    "image": MediaKind.IMAGE,
    "file": MediaKind.DOCUMENT,
    "audio": MediaKind.VOICE,
    "media": MediaKind.VIDEO,
}
_MENTION = re.compile(r"(@_user_\d{1,6})(\s?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    encrypt_key: str = field(default="", repr=False)
    verification_token: str = field(default="", repr=False)
    bot_open_id: str = ""
    """The id of the app's bot: in groups a message that names it is addressed to it."""


def receive(request: WebhookRequest, credentials: Credentials, at: datetime) -> tuple[Inbound, ...]:
    """Verify and read an event that Feishu signed and encrypted with the app's key."""
    key = encode_secret(credentials.encrypt_key, "FEISHU_ENCRYPT_KEY")
    if not any(name == _SIGNATURE for name, _ in request.headers):
        _challenge(request, credentials)
        return ()
    given = request.require_header(_SIGNATURE)
    stamp, nonce = request.require_header("x-lark-request-timestamp"), request.require_header("x-lark-request-nonce")
    check_fresh(stamp, at)
    signed = stamp.encode() + nonce.encode("utf-8", "replace") + key + request.body
    check_same(given, hashlib.sha256(signed).hexdigest())
    return read(_decrypt(request.body, key), credentials)


def answer(request: WebhookRequest, credentials: Credentials, at: datetime) -> WebhookAnswer | None:
    """Answer the question whether the address is ours with its challenge."""
    if any(name == _SIGNATURE for name, _ in request.headers):
        return WebhookAnswer(body=b"{}")
    return WebhookAnswer(body=json.dumps({"challenge": _challenge(request, credentials)}).encode())


def read(payload: Mapping[str, Any], credentials: Credentials) -> tuple[Inbound, ...]:
    """Read an event. Total."""
    header, event = read_mapping(payload.get("header")), read_mapping(payload.get("event"))
    message, writer = read_mapping(event.get("message")), read_mapping(event.get("sender"))
    number, chat = read_id(message.get("message_id")), read_id(message.get("chat_id"))
    if header.get("event_type") == "card.action.trigger":
        return _read_press(header, event)
    if header.get("event_type") != "im.message.receive_v1" or not (number and chat):
        return ()
    names = {read_id(one.get("key")): one for one in map(read_mapping, read_list(message.get("mentions")))}
    ours = {key for key, one in names.items() if _is_of(one, credentials.bot_open_id)}
    who = read_mapping(writer.get("sender_id"))
    stamp = read_id(message.get("create_time"))
    return (
        InboundMessage(
            event_key=make_event_key(number),
            chat=InboundChat(id=chat, kind=ChatKind.DIRECT if message.get("chat_type") == "p2p" else ChatKind.GROUP),
            sender=InboundSender(
                id=read_id(who.get("open_id")),
                other_id=read_id(who.get("union_id")) or read_id(who.get("user_id")),
                is_bot=writer.get("sender_type") != "user",
            ),
            message_id=number,
            sent_at=int(stamp) / 1000 if re.fullmatch(r"[0-9]{1,14}", stamp) else None,
            media=tuple(_list_files(message, number)),
            text=_MENTION.sub(
                lambda found: "" if found[1] in ours else _replace_placeholder(found, names), _render_text(message)
            ).strip(),
            reply_to=read_id(message.get("parent_id")),
            is_addressed=bool(ours),
        ),
    )


def _read_press(header: Mapping[str, Any], event: Mapping[str, Any]) -> tuple[Inbound, ...]:
    """Read a press of a card's button (open.feishu.cn, "Card callback"). It does not say what kind of chat it is in."""
    who, place = read_mapping(event.get("operator")), read_mapping(event.get("context"))
    key, chat = read_id(header.get("event_id")), read_id(place.get("open_chat_id"))
    stamp = read_id(header.get("create_time"))
    if not key or not chat:
        return ()
    return (
        InboundButton(
            event_key=make_event_key("press", key),
            chat=InboundChat(id=chat, kind=ChatKind.GROUP),
            may_be=(ChatKind.GROUP, ChatKind.DIRECT),
            sender=InboundSender(
                id=read_id(who.get("open_id")), other_id=read_id(who.get("union_id")) or read_id(who.get("user_id"))
            ),
            message_id=read_id(place.get("open_message_id")),
            sent_at=int(stamp) / 1_000_000 if re.fullmatch(r"[0-9]{16}", stamp) else None,
            value=read_text(read_mapping(read_mapping(event.get("action")).get("value")).get(ANSWER)),
        ),
    )


def _is_of(mention: Mapping[str, Any], open_id: str) -> bool:
    return bool(open_id) and read_id(read_mapping(mention.get("id")).get("open_id")) == open_id


def _replace_placeholder(found: re.Match[str], names: Mapping[str, Mapping[str, Any]]) -> str:
    """Replace Feishu's placeholder by the name of the person."""
    return f"@{read_text(read_mapping(names.get(found[1])).get('name')) or found[1][1:]}{found[2]}"


def _render_text(message: Mapping[str, Any]) -> str:
    content = parse_object(read_text(message.get("content")))
    said = [read_text(content.get("text")), read_text(content.get("title"))]
    lines = ("".join(read_text(part.get("text")) for part in line) for line in _list_lines(content))
    return "\n".join(filter(None, (*said, *lines)))


def _list_lines(content: Mapping[str, Any]) -> list[list[Mapping[str, Any]]]:
    """List the lines of a post, which is text with pictures in it."""
    return [[read_mapping(part) for part in read_list(line)] for line in read_list(content.get("content"))]


def _list_files(message: Mapping[str, Any], number: str) -> list[MediaRef]:
    """List the files. A file is known by its message, its kind and its key. Stickers cannot be downloaded."""
    content, kind = parse_object(read_text(message.get("content"))), read_text(message.get("message_type"))
    if kind == "post":
        pictures = [read_id(part.get("image_key")) for line in _list_lines(content) for part in line]
        return [MediaRef(kind=MediaKind.IMAGE, id=f"{number}:image:{key}") for key in pictures if key]
    if kind not in _KINDS:
        return []
    resource = "image" if kind == "image" else "file"
    key, name = read_id(content.get(f"{resource}_key")), read_text(content.get("file_name"))
    return [MediaRef(kind=_KINDS[kind], id=f"{number}:{resource}:{key}", name=name)] if key else []


def _challenge(request: WebhookRequest, credentials: Credentials) -> str:
    """Read the challenge. Raises ``Forged`` for a request that is not Feishu's question."""
    token = credentials.verification_token
    encode_secret(token, "FEISHU_VERIFICATION_TOKEN")
    try:
        asked = _decrypt(request.body, credentials.encrypt_key.encode())
    except UnreadableInbound:
        raise Forged("there is no signature") from None
    check_same(read_text(asked.get("token")), token)
    if asked.get("type") != "url_verification":
        raise Forged("there is no signature")
    return read_text(asked.get("challenge"))


def _decrypt(body: bytes, key: bytes) -> Mapping[str, Any]:
    """Decrypt a body. Raises ``UnreadableInbound``."""
    try:
        sealed = base64.b64decode(read_text(parse_json(body).get("encrypt")), validate=True)
        decryptor = Cipher(algorithms.AES256(hashlib.sha256(key).digest()), modes.CBC(sealed[:_BLOCK])).decryptor()
        unpadder = PKCS7(_BLOCK * 8).unpadder()
        padded = decryptor.update(sealed[_BLOCK:]) + decryptor.finalize()
        return parse_json(unpadder.update(padded) + unpadder.finalize())
    except ValueError:
        raise UnreadableInbound("the event is not encrypted with FEISHU_ENCRYPT_KEY") from None
