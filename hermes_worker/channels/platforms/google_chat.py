"""Google Chat (developers.google.com/workspace/chat/api/reference/rest/v1/spaces.messages/create)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlencode, urlsplit

from hermes_worker.channels.errors import SendErrorKind
from hermes_worker.channels.exchange import (
    Exchange,
    Outcome,
    Part,
    Receipt,
    Unsendable,
    build_bearer_header,
    encode_path_segment,
    failure,
    is_success,
    join_service_url,
    json_object,
    json_request,
    shorten_key,
)
from hermes_worker.channels.file_addresses import Downloading, FileSource
from hermes_worker.channels.targets import Target
from hermes_worker.core.chat_buttons import fit_buttons
from hermes_worker.core.inbound import MediaRef
from hermes_worker.core.json_values import read_id, read_mapping
from hermes_worker.net.http import HttpRequest, HttpResponse

_SPACE = re.compile(r"spaces/[A-Za-z0-9_-]{1,128}")
_MESSAGE = re.compile(r"spaces/[A-Za-z0-9_-]{1,128}/messages/[A-Za-z0-9_.-]{1,128}")
ANSWER = "answer"
"""The function that a press calls, and the name of its parameter."""

_KINDS: Mapping[str, SendErrorKind] = {
    "INVALID_ARGUMENT": SendErrorKind.BAD_FORMAT,
    "UNAUTHENTICATED": SendErrorKind.AUTH,
    "PERMISSION_DENIED": SendErrorKind.FORBIDDEN,
    "NOT_FOUND": SendErrorKind.NOT_FOUND,
    "RESOURCE_EXHAUSTED": SendErrorKind.RATE_LIMITED,
    "UNAVAILABLE": SendErrorKind.TRANSIENT,
    "DEADLINE_EXCEEDED": SendErrorKind.AMBIGUOUS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """A token of the app, or the incoming webhook of one space."""

    access_token: str | None = field(default=None, repr=False)
    webhook_url: str | None = field(default=None, repr=False)
    base_url: str = "https://chat.googleapis.com"


def build(part: Part, target: Target, credentials: Credentials) -> HttpRequest:
    """Build the request. Files are left out: uploading needs the token of a person. Raises ``Unsendable``."""
    query = {"requestId": shorten_key(part.idempotency_key, 40)}
    payload: dict[str, object] = {"text": part.text}
    if cards := _build_cards(part):
        payload["cardsV2"] = cards
    if target.thread is not None:
        query["messageReplyOption"] = "REPLY_MESSAGE_FALLBACK_TO_NEW_THREAD"
        payload["thread"] = {"name": f"{target.chat}/{target.thread}"}
    if credentials.webhook_url:
        parts = urlsplit(credentials.webhook_url)
        base = join_service_url(f"{parts.scheme}://{parts.netloc}", parts.path)
        return json_request("POST", f"{base}?{parts.query}&{urlencode(query)}", payload)
    if not credentials.access_token:
        raise Unsendable("Google Chat needs an access token or the webhook of a space; none is set.")
    if not _SPACE.fullmatch(target.chat):
        raise Unsendable(f"A space of Google Chat is written 'spaces/<id>', not {target.chat[:40]!r}.")
    url = join_service_url(credentials.base_url, f"v1/{target.chat}/messages?{urlencode(query)}")
    return json_request("POST", url, payload, headers=build_bearer_header(credentials.access_token))


def _build_cards(part: Part) -> list[dict[str, object]]:
    """Build a card with buttons below the text (developers.google.com/workspace/chat/api/reference/rest/v1/cards)."""
    buttons = [
        {
            "text": one.label,
            "onClick": {"action": {"function": ANSWER, "parameters": [{"key": ANSWER, "value": one.value}]}},
        }
        for one in fit_buttons(part.buttons, chars_max=60, count_max=20)
    ]
    card = {"sections": [{"widgets": [{"buttonList": {"buttons": buttons}}]}]}
    return [{"cardId": ANSWER, "card": card}] if buttons else []


def classify(response: HttpResponse) -> Outcome:
    answer = json_object(response)
    if is_success(response):
        return Receipt(message_id=read_id(answer.get("name")) or None)
    error = read_mapping(answer.get("error"))
    return failure(response, read_id(error.get("message")), kind=_KINDS.get(read_id(error.get("status"))))


def send(part: Part, target: Target, credentials: Credentials) -> Exchange:
    return classify((yield build(part, target, credentials)))


def download(media: MediaRef, credentials: Credentials) -> Downloading:
    """Download a file that was uploaded to the chat, with ``media.download``; the app may not read a file on Drive."""
    yield from ()
    if not credentials.access_token:
        raise Unsendable("Google Chat gives files for an access token; none is set.")
    name = "/".join(encode_path_segment(step) for step in media.id.split("/"))
    url = join_service_url(credentials.base_url, f"v1/media/{name}?alt=media")
    headers = build_bearer_header(credentials.access_token)
    return FileSource(request=HttpRequest(method="GET", url=url, headers=headers, delivers=False))


def edit(part: Part, message_id: str, target: Target, credentials: Credentials) -> Exchange:
    """Edit a message with ``spaces.messages.patch``: only with the app's token, and only messages of the app."""
    if not credentials.access_token or not _MESSAGE.fullmatch(message_id):
        raise Unsendable("A message of Google Chat is changed with GOOGLE_CHAT_ACCESS_TOKEN, by its name.")
    url = join_service_url(credentials.base_url, f"v1/{message_id}?updateMask=text,cardsV2")
    bare: dict[str, object] = {"text": part.text, "cardsV2": []}
    return classify((yield json_request("PATCH", url, bare, headers=build_bearer_header(credentials.access_token))))
