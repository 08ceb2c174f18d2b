"""Inbound messages of Google Chat: events of an app with an HTTP endpoint (developers.google.com/workspace/chat,
2026-11).

In spaces an app only gets messages that name it. A token proves the app either by its project's number or by its
endpoint's address, as Google's console is configured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from hermes_worker.channels.inbound.proofs import check_same, make_event_key, parse_json
from hermes_worker.channels.inbound.receiving import KeysExchange, WebhookAnswer, WebhookRequest
from hermes_worker.channels.inbound.tokens import fetch_keys, verify_token
from hermes_worker.channels.platforms.google_chat import ANSWER
from hermes_worker.core.inbound import (
    ChatKind,
    Inbound,
    InboundButton,
    InboundChat,
    InboundMessage,
    InboundSender,
    MediaRef,
)
from hermes_worker.core.json_values import read_epoch, read_id, read_list, read_mapping, read_text

CHAT = "chat@system.gserviceaccount.com"
_GOOGLE = ("https://accounts.google.com", "accounts.google.com")
_DIRECT = ("DIRECT_MESSAGE", "DM")


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    audience: str = ""
    """The number of the project, or the address of the endpoint, as the app's configuration says."""
    keys_url: str = ""
    """The address of the keys; empty for Google's."""

    @property
    def is_by_project(self) -> bool:
        return self.audience.isdigit()


def fetch_signing_keys(credentials: Credentials) -> KeysExchange:
    of_chat = f"https://www.googleapis.com/service_accounts/v1/jwk/{CHAT}"
    of_google = "https://www.googleapis.com/oauth2/v3/certs"
    return fetch_keys(credentials.keys_url or (of_chat if credentials.is_by_project else of_google))


def receive(request: WebhookRequest, credentials: Credentials, at: datetime) -> tuple[Inbound, ...]:
    """Verify and read an event that has a token of Google Chat for our app."""
    issuers = (CHAT,) if credentials.is_by_project else _GOOGLE
    claims = verify_token(request, issuers=issuers, audience=credentials.audience, at=at)
    if not credentials.is_by_project:
        check_same(read_text(claims.get("email")) if claims.get("email_verified") is True else "", CHAT)
    return read(parse_json(request.body))


def answer(request: WebhookRequest, credentials: Credentials, at: datetime) -> WebhookAnswer | None:
    """Answer with an empty object: the reply is a message of ours."""
    return WebhookAnswer(body=b"{}")


def read(event: Mapping[str, Any]) -> tuple[Inbound, ...]:
    """Read an event. Total."""
    message = read_mapping(event.get("message"))
    space = read_mapping(event.get("space")) or read_mapping(message.get("space"))
    name, chat, kind = read_id(message.get("name")), read_id(space.get("name")), event.get("type")
    if kind not in ("MESSAGE", "CARD_CLICKED") or not (name and chat):
        return ()
    is_direct = space.get("spaceType") in _DIRECT or space.get("type") in _DIRECT
    thread = read_id(read_mapping(message.get("thread")).get("name"))
    writer = read_mapping(event.get("user")) or read_mapping(message.get("sender"))
    common: dict[str, Any] = {
        "chat": InboundChat(
            id=chat,
            kind=ChatKind.DIRECT if is_direct else ChatKind.GROUP,
            thread="" if is_direct else thread.removeprefix(f"{chat}/"),
            name=read_text(space.get("displayName")),
        ),
        "sender": InboundSender(
            id=read_id(writer.get("name")),
            other_id=read_text(writer.get("email")),
            name=read_text(writer.get("displayName")),
            is_bot=writer.get("type") == "BOT",
        ),
        "message_id": name,
        "sent_at": read_epoch(event.get("eventTime")),
    }
    if kind == "CARD_CLICKED":
        given = map(read_mapping, read_list(read_mapping(event.get("action")).get("parameters")))
        pressed = next((read_text(one.get("value")) for one in given if one.get("key") == ANSWER), "")
        key = make_event_key(name, "press", read_text(event.get("eventTime")))
        return (InboundButton(event_key=key, value=pressed, **common),)
    said = read_text(message.get("argumentText")) or read_text(message.get("text"))
    files = tuple(_list_files(message))
    return (
        InboundMessage(event_key=make_event_key(name), text=said.strip(), media=files, is_addressed=True, **common),
    )


def _list_files(message: Mapping[str, Any]) -> list[MediaRef]:
    """List the files that were uploaded. A file on Drive has no resource."""
    return [
        MediaRef.from_platform(resource, media_type=file.get("contentType"), name=file.get("contentName"), size=None)
        for file in map(read_mapping, read_list(message.get("attachment")))
        if (resource := read_id(read_mapping(file.get("attachmentDataRef")).get("resourceName")))
    ]
