"""Telegram Bot API (core.telegram.org/bots/api)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from hermes_worker.channels.catalog import TextUnit
from hermes_worker.channels.errors import DeliveryError, SendErrorKind, classify_text
from hermes_worker.channels.exchange import (
    Attachment,
    Exchange,
    Outcome,
    Part,
    Receipt,
    Unsendable,
    build_multipart_request,
    encode_path_segment,
    failure,
    is_success,
    join_service_url,
    json_object,
    json_request,
)
from hermes_worker.channels.file_addresses import Downloading, FileSource
from hermes_worker.channels.markup import render_telegram_html
from hermes_worker.channels.splitting import measure
from hermes_worker.channels.targets import Target
from hermes_worker.core.chat_buttons import fit_buttons
from hermes_worker.core.inbound import MediaRef
from hermes_worker.core.json_values import read_id, read_mapping, read_number
from hermes_worker.core.media_kinds import MediaKind
from hermes_worker.net.http import HttpRequest, HttpResponse

CAPTION_SIZE_MAX = 1024
"""Longest caption, in UTF-16 units."""
PHOTO_BYTES_MAX = 10_000_000
GENERAL_TOPIC = "1"
"""The general topic of a forum: sending to it by its number is an error (tdlib/telegram-bot-api issue 798)."""

_METHODS = {
    MediaKind.IMAGE: ("sendPhoto", "photo"),
    MediaKind.VOICE: ("sendVoice", "voice"),
    MediaKind.AUDIO: ("sendAudio", "audio"),
    MediaKind.VIDEO: ("sendVideo", "video"),
    MediaKind.DOCUMENT: ("sendDocument", "document"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    token: str = field(repr=False)
    base_url: str = "https://api.telegram.org"


def build(part: Part, target: Target, credentials: Credentials) -> HttpRequest:
    """Build the request. Raises ``Unsendable`` for a setting that cannot be used."""
    fields: dict[str, object] = {"chat_id": target.chat}
    if target.thread is not None and target.thread != GENERAL_TOPIC:
        fields["message_thread_id"] = _parse_topic(target.thread)
    if part.reply_to.isascii() and part.reply_to.isdigit():
        # The person who asked may have deleted the question meanwhile.
        fields["reply_parameters"] = {"message_id": int(part.reply_to), "allow_sending_without_reply": True}
    if part.attachment is not None:
        return _build_file(part.attachment, part, fields, credentials)
    fields |= _format_text("text", part)
    if part.buttons:
        shown = fit_buttons(part.buttons, chars_max=64, count_max=100)
        rows = [[{"text": button.label, "callback_data": button.value}] for button in shown]
        fields["reply_markup"] = {"inline_keyboard": rows}
    return json_request("POST", _build_method_url("sendMessage", credentials), fields)


def classify(response: HttpResponse) -> Outcome:
    answer = json_object(response)
    if is_success(response) and answer.get("ok") is True:
        return Receipt(message_id=read_id(read_mapping(answer.get("result")).get("message_id")) or None)
    said = read_id(answer.get("description"))
    parameters = read_mapping(answer.get("parameters"))
    kind = classify_text(said) if said else SendErrorKind.UNKNOWN
    if migrated := read_id(parameters.get("migrate_to_chat_id")):
        said, kind = f"{said} (the chat is now {migrated}; change the target)", SendErrorKind.NOT_FOUND
    return failure(
        response,
        said,
        # "Unauthorized" means the token is wrong; "Not Found" without more, that it is no token.
        kind=SendErrorKind.AUTH if said in ("Unauthorized", "Not Found") else _drop_unknown(kind),
        retry_after_s=read_number(parameters.get("retry_after")),
        is_thread_missing="thread not found" in said.lower() or "topic_closed" in said.lower(),
    )


def send(part: Part, target: Target, credentials: Credentials) -> Exchange:
    return classify((yield build(part, target, credentials)))


def edit(part: Part, message_id: str, target: Target, credentials: Credentials) -> Exchange:
    """Edit a message with editMessageText. A text that stands there already is an error to Telegram, and none to us."""
    fields = _build_message_fields(message_id, target)
    fields |= _format_text("text", part)
    outcome = classify((yield json_request("POST", _build_method_url("editMessageText", credentials), fields)))
    if isinstance(outcome, DeliveryError) and "message is not modified" in outcome.message.lower():
        return Receipt(message_id=message_id)
    return outcome


def remove(message_id: str, target: Target, credentials: Credentials) -> Exchange:
    """Delete a message with deleteMessage. One that is gone already counts as deleted."""
    fields = _build_message_fields(message_id, target)
    response = yield json_request("POST", _build_method_url("deleteMessage", credentials), fields)
    outcome = classify(response)
    is_gone = isinstance(outcome, DeliveryError) and "message to delete not found" in outcome.message.lower()
    return Receipt(message_id=message_id) if is_gone else outcome


def show_typing(target: Target, credentials: Credentials) -> Exchange:
    """Send sendChatAction: it is shown for five seconds, or until a message comes."""
    fields: dict[str, object] = {"chat_id": target.chat, "action": "typing"}
    if target.thread is not None and target.thread != GENERAL_TOPIC:
        fields["message_thread_id"] = _parse_topic(target.thread)
    return classify((yield json_request("POST", _build_method_url("sendChatAction", credentials), fields)))


def _build_message_fields(message_id: str, target: Target) -> dict[str, object]:
    if not (message_id.isascii() and message_id.isdigit()):
        raise Unsendable(f"A message of Telegram has a number, not {message_id[:40]!r}.")
    return {"chat_id": target.chat, "message_id": int(message_id)}


def _format_text(name: str, part: Part) -> dict[str, str]:
    return {name: part.text} if part.is_plain else {name: render_telegram_html(part.text), "parse_mode": "HTML"}


def _build_file(attachment: Attachment, part: Part, fields: dict[str, object], credentials: Credentials) -> HttpRequest:
    is_large_photo = attachment.kind is MediaKind.IMAGE and len(attachment.content) > PHOTO_BYTES_MAX
    method, name = _METHODS[MediaKind.DOCUMENT if is_large_photo else attachment.kind]
    form = {key: json.dumps(value) if isinstance(value, dict) else str(value) for key, value in fields.items()}
    if part.text and measure(part.text, TextUnit.UTF16) <= CAPTION_SIZE_MAX:
        form |= _format_text("caption", part)
    return build_multipart_request(_build_method_url(method, credentials), form, name, attachment)


def _parse_topic(thread: str) -> int:
    if not (thread.isascii() and thread.isdigit()):
        raise Unsendable(f"A topic of Telegram is a number, not {thread[:40]!r}; change the target.")
    return int(thread)


def _encode_token(credentials: Credentials) -> str:
    return encode_path_segment(credentials.token).replace("%3A", ":")


def _build_method_url(method: str, credentials: Credentials) -> str:
    return join_service_url(credentials.base_url, f"bot{_encode_token(credentials)}/{method}")


def _drop_unknown(kind: SendErrorKind) -> SendErrorKind | None:
    return kind if kind is not SendErrorKind.UNKNOWN else None


def download(media: MediaRef, credentials: Credentials) -> Downloading:
    """Ask getFile for the address of a file. Telegram gives bots files of at most 20 MB."""
    response = yield json_request("POST", _build_method_url("getFile", credentials), {"file_id": media.id})
    path = read_id(read_mapping(json_object(response).get("result")).get("file_path"))
    if not is_success(response) or not path:
        outcome = classify(response)
        return outcome if isinstance(outcome, DeliveryError) else failure(response, "getFile named no path")
    steps = "/".join(encode_path_segment(step) for step in path.split("/"))
    url = join_service_url(credentials.base_url, f"file/bot{_encode_token(credentials)}/{steps}")
    return FileSource(request=HttpRequest(method="GET", url=url, delivers=False))
