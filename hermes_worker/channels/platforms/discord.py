"""Discord REST API v10 (discord.com/developers/docs)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

from hermes_worker.channels.errors import DUPLICATE_REMARK, SendErrorKind
from hermes_worker.channels.exchange import (
    Exchange,
    Outcome,
    Part,
    Receipt,
    build_multipart_request,
    encode_path_segment,
    failure,
    is_success,
    join_service_url,
    json_object,
    json_request,
    require_header_value,
    shorten_key,
)
from hermes_worker.channels.file_addresses import Downloading, build_source
from hermes_worker.channels.targets import Target
from hermes_worker.core.chat_buttons import fit_buttons
from hermes_worker.core.inbound import MediaRef
from hermes_worker.core.json_values import read_id, read_number
from hermes_worker.net.http import HttpRequest, HttpResponse

NONCE_CHARS_MAX = 25
_ROWS_MAX, _ROW_BUTTONS_MAX, _BUTTON_CHARS_MAX = 5, 5, 80
_ACTION_ROW, _BUTTON, _SECONDARY = 1, 2, 2
"""The types of the components used, and the style of a button (docs.discord.com/developers/components/reference)."""
THREAD_NAME_CHARS_MAX = 100

_USER_AGENT = "DiscordBot (https://hermes-worker.invalid, 1)"
_NOT_A_TEXT_CHANNEL = 50008
_UNKNOWN_MESSAGE = 10008
_CDN = ("cdn.discordapp.com", "media.discordapp.net")

_KIND_OF_CODE = {
    10003: SendErrorKind.NOT_FOUND,
    10004: SendErrorKind.NOT_FOUND,
    10008: SendErrorKind.NOT_FOUND,
    10013: SendErrorKind.NOT_FOUND,
    40001: SendErrorKind.AUTH,
    40005: SendErrorKind.TOO_LONG,
    50001: SendErrorKind.FORBIDDEN,
    50007: SendErrorKind.FORBIDDEN,
    50013: SendErrorKind.FORBIDDEN,
    50014: SendErrorKind.AUTH,
    50035: SendErrorKind.BAD_FORMAT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    token: str = field(repr=False)
    base_url: str = "https://discord.com/api/v10"


def build(part: Part, target: Target, credentials: Credentials) -> HttpRequest:
    """Build the request for a part. Raises ``Unsendable`` for a setting that cannot be used."""
    channel = encode_path_segment(target.thread or target.chat)
    url = join_service_url(credentials.base_url, f"channels/{channel}/messages")
    payload = _build_message(part) | {
        "nonce": shorten_key(part.idempotency_key, NONCE_CHARS_MAX),
        "enforce_nonce": True,
    }
    if part.reply_to.isascii() and part.reply_to.isdigit():
        payload["message_reference"] = {"message_id": part.reply_to, "fail_if_not_exists": False}
    if part.attachment is None:
        return json_request("POST", url, payload, headers=build_headers(credentials.token))
    form = {"payload_json": json.dumps(payload, ensure_ascii=False)}
    return build_multipart_request(url, form, "files[0]", part.attachment, headers=build_headers(credentials.token))


def classify(response: HttpResponse) -> Outcome:
    answer = json_object(response)
    if is_success(response):
        return Receipt(message_id=read_id(answer.get("id")) or None)
    code = answer.get("code")
    kind = _KIND_OF_CODE.get(code) if isinstance(code, int) else None
    return failure(
        response, read_id(answer.get("message")), kind=kind, retry_after_s=read_number(answer.get("retry_after"))
    )


def send(part: Part, target: Target, credentials: Credentials) -> Exchange:
    """Send a part. A forum takes no messages, only threads: when a channel turns out to be one, a thread is opened."""
    response = yield build(part, target, credentials)
    is_forum = target.thread is None and json_object(response).get("code") == _NOT_A_TEXT_CHANNEL
    if not is_forum or part.attachment is not None:
        return classify(response)
    return classify((yield _build_thread(part, target, credentials)))


def edit(part: Part, message_id: str, target: Target, credentials: Credentials) -> Exchange:
    """Edit Message: https://discord.com/developers/docs/resources/message."""
    url = _build_message_url(message_id, target, credentials)
    bare = {"components": [], **_build_message(part)}
    return classify((yield json_request("PATCH", url, bare, headers=build_headers(credentials.token))))


def remove(message_id: str, target: Target, credentials: Credentials) -> Exchange:
    """Delete a message. One that is gone already (10008) counts as deleted."""
    url = _build_message_url(message_id, target, credentials)
    response = yield HttpRequest(method="DELETE", url=url, headers=build_headers(credentials.token))
    is_gone = json_object(response).get("code") == _UNKNOWN_MESSAGE
    return Receipt(message_id=message_id) if is_gone else classify(response)


def show_typing(target: Target, credentials: Credentials) -> Exchange:
    """Trigger Typing Indicator: it is shown for ten seconds, or until a message comes."""
    channel = encode_path_segment(target.thread or target.chat)
    url = join_service_url(credentials.base_url, f"channels/{channel}/typing")
    return classify((yield HttpRequest(method="POST", url=url, headers=build_headers(credentials.token))))


def _build_message_url(message_id: str, target: Target, credentials: Credentials) -> str:
    channel = encode_path_segment(target.thread or target.chat)
    return join_service_url(credentials.base_url, f"channels/{channel}/messages/{encode_path_segment(message_id)}")


def _build_thread(part: Part, target: Target, credentials: Credentials) -> HttpRequest:
    url = join_service_url(credentials.base_url, f"channels/{encode_path_segment(target.chat)}/threads")
    name = " ".join((part.title or part.text).split())[:THREAD_NAME_CHARS_MAX] or "Hermes"
    # A new thread has no nonce: only words can tell that it is the second.
    if part.may_be_duplicate:
        part = replace(part, text=f"{DUPLICATE_REMARK}\n\n{part.text}")
    return json_request(
        "POST", url, {"name": name, "message": _build_message(part)}, headers=build_headers(credentials.token)
    )


def _build_message(part: Part) -> dict[str, object]:
    # Discord renders Markdown itself. What a model writes notifies no person: no @everyone, no roles, no users.
    message: dict[str, object] = {"content": part.text, "allowed_mentions": {"parse": []}}
    buttons = [
        {"type": _BUTTON, "style": _SECONDARY, "label": button.label, "custom_id": button.value}
        for button in fit_buttons(part.buttons, chars_max=_BUTTON_CHARS_MAX, count_max=_ROWS_MAX * _ROW_BUTTONS_MAX)
    ]
    rows = [buttons[start : start + _ROW_BUTTONS_MAX] for start in range(0, len(buttons), _ROW_BUTTONS_MAX)]
    return message | ({"components": [{"type": _ACTION_ROW, "components": row} for row in rows]} if rows else {})


def build_headers(token: str) -> dict[str, str]:
    """Build the headers of every request. Raises ``Unsendable``."""
    return {"Authorization": f"Bot {require_header_value(token)}", "User-Agent": _USER_AGENT}


def download(media: MediaRef, credentials: Credentials) -> Downloading:
    """Download an attachment at its signed address of Discord's CDN, which is valid for a day ("Signed Attachment CDN
    URLs")."""
    yield from ()
    return build_source(media.id, own="", hosts=_CDN)
