"""Inbound messages of WeCom: the callback of a self-built app (developer.work.weixin.qq.com, "Callback configuration"
and "Message formats", 2026-11).

A request is XML with an encrypted message in it. WeCom signs that message, its time and a nonce with the callback's
token; the message carries the company's id. Nothing else of the body is signed, so nothing else of it is read.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from xml.parsers import expat

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.padding import PKCS7

from hermes_worker.channels.inbound.proofs import check_fresh, check_same, encode_secret, make_event_key
from hermes_worker.channels.inbound.receiving import (
    Forged,
    UnreadableInbound,
    WebhookAnswer,
    WebhookRequest,
    read_parameter,
)
from hermes_worker.core.inbound import ChatKind, Inbound, InboundChat, InboundMessage, InboundSender, MediaRef
from hermes_worker.core.media_kinds import MediaKind

_ENCRYPTED = re.compile(rb"<Encrypt>\s*(?:<!\[CDATA\[)?([A-Za-z0-9+/=]+)(?:\]\]>)?\s*</Encrypt>")
_BLOCK_BITS = 256
_RANDOM_BYTES = 16
_LENGTH_BYTES = 4
_FILES = {
    "image": MediaKind.IMAGE,
    "voice": MediaKind.VOICE,
    "video": MediaKind.VIDEO,
    "shortvideo": MediaKind.VIDEO,
    "file": MediaKind.DOCUMENT,
}
_NUMBER = re.compile(r"[0-9]{1,20}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    token: str = field(default="", repr=False)
    encoding_aes_key: str = field(default="", repr=False)
    corp_id: str = ""
    agent_id: str = ""
    """The app's id. Where it is set, messages to another app of the company are ignored."""


def receive(request: WebhookRequest, credentials: Credentials, at: datetime) -> tuple[Inbound, ...]:
    """Verify and read a message that WeCom signed and encrypted for the company's app; a GET asks whether the address
    is ours."""
    content = _verify_and_decrypt(request, credentials, at)
    return () if request.method == "GET" else read(_parse_fields(content), credentials)


def answer(request: WebhookRequest, credentials: Credentials, at: datetime) -> WebhookAnswer | None:
    """Answer a GET with what it brought, decrypted; a message with an empty body, since answers are sent by
    themselves."""
    content = _verify_and_decrypt(request, credentials, at) if request.method == "GET" else b""
    return WebhookAnswer(body=content, media_type="text/plain")


def read(message: Mapping[str, str], credentials: Credentials) -> tuple[Inbound, ...]:
    """Read a message. Total. Empty for events, which are no messages."""
    number, writer, kind = message.get("MsgId", ""), message.get("FromUserName", ""), message.get("MsgType", "")
    is_ours = not credentials.agent_id or message.get("AgentID") == credentials.agent_id
    if not (number and writer and is_ours) or kind == "event":
        return ()
    stamp, file = message.get("CreateTime", ""), message.get("MediaId", "")
    media = (MediaRef(kind=_FILES[kind], id=file, name=message.get("FileName", "")),) if file and kind in _FILES else ()
    return (
        InboundMessage(
            event_key=make_event_key(number),
            chat=InboundChat(id=writer, kind=ChatKind.DIRECT),
            sender=InboundSender(id=writer),
            message_id=number,
            sent_at=float(stamp) if _NUMBER.fullmatch(stamp) and len(stamp) <= 11 else None,
            text=message.get("Content", ""),
            media=media,
        ),
    )


def _verify_and_decrypt(request: WebhookRequest, credentials: Credentials, at: datetime) -> bytes:
    """Verify a request and decrypt its message. Raises ``Forged``, ``UnreadableInbound``."""
    token = encode_secret(credentials.token, "WECOM_CALLBACK_TOKEN").decode()
    given, stamp, nonce = (read_parameter(request, name) for name in ("msg_signature", "timestamp", "nonce"))
    check_fresh(stamp, at)
    sealed = read_parameter(request, "echostr") if request.method == "GET" else _find_sealed(request.body)
    signed = "".join(sorted((token, stamp, nonce, sealed)))
    check_same(given, hashlib.sha1(signed.encode("utf-8", "replace")).hexdigest())
    return _decrypt(sealed, credentials)


def _find_sealed(body: bytes) -> str:
    """Find the encrypted message, without parsing the XML around it. Raises ``Forged``."""
    found = _ENCRYPTED.findall(body)
    if len(found) != 1:
        raise Forged(f"there are {len(found)} encrypted messages")
    sealed: bytes = found[0]
    return sealed.decode("ascii")


def _decrypt(sealed: str, credentials: Credentials) -> bytes:
    """Decrypt a message: AES-256-CBC over 16 random bytes, the length, the message and the company's id, padded to 32
    bytes. Raises ``Forged`` for a message to another company, and ``UnreadableInbound``."""
    try:
        key = base64.b64decode(f"{credentials.encoding_aes_key}=", validate=True)
        decryptor = Cipher(algorithms.AES256(key), modes.CBC(key[:16])).decryptor()
        unpadder = PKCS7(_BLOCK_BITS).unpadder()
        padded = decryptor.update(base64.b64decode(sealed, validate=True)) + decryptor.finalize()
        plain = unpadder.update(padded) + unpadder.finalize()
    except ValueError:
        raise UnreadableInbound("the message is not encrypted with WECOM_CALLBACK_ENCODING_AES_KEY") from None
    begin = _RANDOM_BYTES + _LENGTH_BYTES
    end = begin + int.from_bytes(plain[_RANDOM_BYTES:begin], "big")
    check_same(plain[end:].decode("utf-8", "replace"), credentials.corp_id)
    return plain[begin:end]


class _Entities(Exception):
    """The XML declares a document type, and with that maybe entities."""


def _parse_fields(content: bytes) -> dict[str, str]:
    """Parse the texts of the elements right below the root, by name. Raises ``UnreadableInbound``."""
    found: dict[str, str] = {}
    path: list[str] = []

    def refuse(*_: object) -> None:
        raise _Entities

    def add(text: str) -> None:
        if len(path) == 2:
            found[path[1]] = found.get(path[1], "") + text

    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler = lambda name, _: path.append(name)
    parser.EndElementHandler = lambda _: path.pop()
    parser.CharacterDataHandler = add
    try:
        parser.Parse(content, True)
    except (expat.ExpatError, ValueError, _Entities):
        raise UnreadableInbound("the message is no XML as WeCom writes it") from None
    return found
