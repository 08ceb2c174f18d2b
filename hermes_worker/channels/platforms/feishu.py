"""Feishu and Lark (open.feishu.cn/document/server-docs/im-v1/message/create)."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace

from hermes_worker.channels.errors import DeliveryError, SendErrorKind
from hermes_worker.channels.exchange import (
    Attachment,
    Exchange,
    Outcome,
    Part,
    Receipt,
    build_bearer_header,
    build_failure_of_code,
    build_multipart_request,
    encode_path_segment,
    failure,
    is_success,
    join_service_url,
    json_object,
    json_request,
    mark_as_preparing,
    shorten_key,
)
from hermes_worker.channels.file_addresses import Downloading, FileSource
from hermes_worker.channels.targets import Target
from hermes_worker.core.chat_buttons import ChatButton, fit_buttons
from hermes_worker.core.inbound import MediaRef
from hermes_worker.core.json_values import read_id, read_mapping
from hermes_worker.core.media_kinds import MediaKind
from hermes_worker.net.http import HttpRequest, HttpResponse

UUID_CHARS_MAX = 50

ANSWER = "hermes_answer"
"""The field in which a press brings its value."""
_GONE = frozenset({230011, 230019, 230050, 231003})
"""Codes for a question message that was withdrawn, or cannot be seen (any more)."""

_ID_TYPES = {"ou": "open_id", "on": "union_id"}

_KINDS: Mapping[int, SendErrorKind] = {
    10003: SendErrorKind.AUTH,
    10014: SendErrorKind.AUTH,
    230001: SendErrorKind.BAD_FORMAT,
    230002: SendErrorKind.FORBIDDEN,
    230006: SendErrorKind.AUTH,
    230013: SendErrorKind.FORBIDDEN,
    230018: SendErrorKind.FORBIDDEN,
    230020: SendErrorKind.RATE_LIMITED,
    230025: SendErrorKind.TOO_LONG,
    230027: SendErrorKind.AUTH,
    230034: SendErrorKind.NOT_FOUND,
    11232: SendErrorKind.RATE_LIMITED,
    99991400: SendErrorKind.RATE_LIMITED,
    99991661: SendErrorKind.AUTH,
    99991663: SendErrorKind.AUTH,
    99991664: SendErrorKind.AUTH,
    99991672: SendErrorKind.AUTH,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    app_id: str
    app_secret: str = field(repr=False)
    base_url: str = "https://open.feishu.cn"
    """``https://open.larksuite.com`` for Lark."""


def build(part: Part, target: Target, credentials: Credentials, *, token: str) -> HttpRequest:
    """Build the request for a text, with the token of the tenant. Raises ``Unsendable`` for a setting that cannot be
    used."""
    kind, content = _build_content(part)
    return _build_message(kind, content, part, target, credentials, token=token)


def _build_content(part: Part) -> tuple[str, Mapping[str, object]]:
    buttons = fit_buttons(part.buttons, chars_max=60, count_max=20)
    if not buttons:
        return "text", {"text": part.text}
    return "interactive", _build_card(part.text, {"tag": "action", "actions": [_build_button(one) for one in buttons]})


def _build_card(text: str, *below: Mapping[str, object]) -> Mapping[str, object]:
    """Build a message card that can be changed later (open.feishu.cn, "Message card structure")."""
    said = {"tag": "div", "text": {"tag": "plain_text", "content": text}}
    return {"config": {"wide_screen_mode": True, "update_multi": True}, "elements": [said, *below]}


def _build_button(button: ChatButton) -> Mapping[str, object]:
    text = {"tag": "plain_text", "content": button.label}
    return {"tag": "button", "text": text, "type": "default", "value": {ANSWER: button.value}}


def classify(response: HttpResponse) -> Outcome:
    answer = json_object(response)
    if is_success(response) and answer.get("code") == 0:
        return Receipt(message_id=read_id(read_mapping(answer.get("data")).get("message_id")) or None)
    return build_failure_of_code(response, answer.get("code"), read_id(answer.get("msg")), _KINDS)


def send(part: Part, target: Target, credentials: Credentials) -> Exchange:
    """Get the tenant's token, upload a file if there is one, and send. Where the message to reply to is gone, the part
    is sent without the reference."""
    token = yield from _request_token(credentials)
    if isinstance(token, DeliveryError):
        return token
    kind, content = _build_content(part)
    if part.attachment is not None:
        uploaded = yield from _upload(part.attachment, credentials, token)
        if isinstance(uploaded, HttpResponse):
            return classify(uploaded)
        kind, content = uploaded
    response = yield _build_message(kind, content, part, target, credentials, token=token)
    if part.reply_to and json_object(response).get("code") in _GONE:
        part = replace(part, reply_to="")
        response = yield _build_message(kind, content, part, target, credentials, token=token)
    return classify(response)


def edit(part: Part, message_id: str, target: Target, credentials: Credentials) -> Exchange:
    """Update the card of a question with buttons (open.feishu.cn, "Update message card")."""
    token = yield from _request_token(credentials)
    if isinstance(token, DeliveryError):
        return token
    bare = {"content": json.dumps(_build_card(part.text), ensure_ascii=False)}
    url = _build_url(f"im/v1/messages/{encode_path_segment(message_id)}", credentials)
    outcome = classify((yield json_request("PATCH", url, bare, headers=build_bearer_header(token))))
    return outcome if isinstance(outcome, DeliveryError) else Receipt(message_id=message_id)


def _request_token(credentials: Credentials) -> Generator[HttpRequest, HttpResponse, str | DeliveryError]:
    identity = {"app_id": credentials.app_id, "app_secret": credentials.app_secret}
    granted = yield mark_as_preparing(
        json_request("POST", _build_url("auth/v3/tenant_access_token/internal", credentials), identity)
    )
    return read_id(json_object(granted).get("tenant_access_token")) or _build_auth_failure(granted)


def _upload(
    attachment: Attachment, credentials: Credentials, token: str
) -> Generator[HttpRequest, HttpResponse, tuple[str, dict[str, str]] | HttpResponse]:
    is_image = attachment.kind is MediaKind.IMAGE
    fields = {"image_type": "message"} if is_image else {"file_type": "stream", "file_name": attachment.name}
    kind, name = ("image", "image_key") if is_image else ("file", "file_key")
    url = _build_url("im/v1/images" if is_image else "im/v1/files", credentials)
    response = yield mark_as_preparing(
        build_multipart_request(url, fields, kind, attachment, headers=build_bearer_header(token))
    )
    key = read_id(read_mapping(json_object(response).get("data")).get(name))
    return (kind, {name: key}) if key else response


def _build_message(
    kind: str, content: Mapping[str, object], part: Part, target: Target, credentials: Credentials, *, token: str
) -> HttpRequest:
    payload: dict[str, object] = {
        "msg_type": kind,
        "content": json.dumps(content, ensure_ascii=False),
        "uuid": shorten_key(part.idempotency_key, UUID_CHARS_MAX),
    }
    if target.thread is None and part.reply_to:
        path = f"im/v1/messages/{encode_path_segment(part.reply_to)}/reply"
    elif target.thread is not None:
        path = f"im/v1/messages/{encode_path_segment(target.thread)}/reply"
        payload["reply_in_thread"] = True
    else:
        id_type = _ID_TYPES.get(target.chat.partition("_")[0], "chat_id")
        path = f"im/v1/messages?receive_id_type={id_type}"
        payload["receive_id"] = target.chat
    return json_request("POST", _build_url(path, credentials), payload, headers=build_bearer_header(token))


def download(media: MediaRef, credentials: Credentials) -> Downloading:
    """Download a file by its message, kind and key ("Obtain resource files in messages", im-v1/message-resource)."""
    message, _, rest = media.id.partition(":")
    kind, _, key = rest.partition(":")
    path = (
        f"im/v1/messages/{encode_path_segment(message)}/resources/{encode_path_segment(key)}"
        f"?type={encode_path_segment(kind)}"
    )
    url = _build_url(path, credentials)
    token = yield from _request_token(credentials)
    if isinstance(token, DeliveryError):
        return token
    return FileSource(request=HttpRequest(method="GET", url=url, headers=build_bearer_header(token), delivers=False))


def _build_auth_failure(response: HttpResponse) -> DeliveryError:
    said = read_id(json_object(response).get("msg")) or "no token was granted"
    return failure(response, said, kind=SendErrorKind.AUTH if is_success(response) else None)


def _build_url(path: str, credentials: Credentials) -> str:
    return join_service_url(credentials.base_url, f"open-apis/{path}")
