"""Inbound messages of the Telegram Bot API: webhooks and getUpdates (core.telegram.org/bots/api, 2026-11)."""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from hermes_worker.channels.errors import DeliveryError
from hermes_worker.channels.exchange import (
    Unsendable,
    encode_path_segment,
    is_success,
    join_service_url,
    json_object,
    json_request,
)
from hermes_worker.channels.inbound.receiving import (
    Acknowledging,
    Forged,
    Identifying,
    Polled,
    Polling,
    UnreadableInbound,
    WebhookAnswer,
    WebhookRequest,
)
from hermes_worker.channels.platforms.telegram import classify
from hermes_worker.core.inbound import (
    ChatKind,
    Inbound,
    InboundButton,
    InboundChat,
    InboundEdit,
    InboundMessage,
    InboundMove,
    InboundSender,
    MediaRef,
)
from hermes_worker.core.json_values import (
    parse_object,
    read_id,
    read_list,
    read_mapping,
    read_number,
    read_size,
    read_stripped_text,
    read_text,
)
from hermes_worker.core.media_kinds import MediaKind
from hermes_worker.net.http import HttpResponse

POLL_HOLD_S_MAX = 45
"""Most seconds that Telegram is asked to hold a poll without updates."""
UPDATES_MAX = 100
_ALLOWED = ("message", "edited_message", "channel_post", "callback_query")
_KINDS = {
    "private": ChatKind.DIRECT,
    "group": ChatKind.GROUP,
    "supergroup": ChatKind.GROUP,
    "channel": ChatKind.CHANNEL,
}
_FILES = {
    "voice": MediaKind.VOICE,
    "audio": MediaKind.AUDIO,
    "video": MediaKind.VIDEO,
    "video_note": MediaKind.VIDEO,
    "animation": MediaKind.VIDEO,
    "document": MediaKind.DOCUMENT,
    "sticker": MediaKind.IMAGE,
}
_SECRET = re.compile(r"[A-Za-z0-9_-]{1,256}")
"""The form that setWebhook requires of ``secret_token``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    token: str = field(default="", repr=False)
    base_url: str = "https://api.telegram.org"
    webhook_secret: str = field(default="", repr=False)
    bot_name: str = ""
    """The bot's user name. In groups a message that names it is addressed to it."""

    @property
    def bot_id(self) -> str:
        """The bot's own id, which is the part of the token before the colon."""
        return self.token.partition(":")[0] if ":" in self.token else ""


def receive(request: WebhookRequest, credentials: Credentials, at: datetime) -> tuple[Inbound, ...]:
    """Verify and read an update that Telegram sends with the secret of ``setWebhook`` in a header."""
    given = request.require_header("x-telegram-bot-api-secret-token")
    if not _SECRET.fullmatch(credentials.webhook_secret):
        raise Forged("TELEGRAM_WEBHOOK_SECRET is not 1 to 256 letters, digits, '_' and '-'")
    if not hmac.compare_digest(given.encode("utf-8", "replace"), credentials.webhook_secret.encode()):
        raise Forged("the secret token is another")
    try:
        update = json.loads(request.body)
    except (ValueError, RecursionError):
        raise UnreadableInbound("the update is not JSON") from None
    if not isinstance(update, Mapping):
        raise UnreadableInbound("the update is not an object")
    return read(update, credentials)


def poll(cursor: str, credentials: Credentials, at: datetime, hold_s: float) -> Polling:
    """Poll with getUpdates. The cursor is the offset: Telegram forgets the updates behind it."""
    fields: dict[str, object] = {
        "timeout": min(int(hold_s), POLL_HOLD_S_MAX),
        "limit": UPDATES_MAX,
        "allowed_updates": list(_ALLOWED),
    }
    if cursor:
        fields["offset"] = int(cursor)
    response = yield json_request("POST", _build_method_url("getUpdates", credentials), fields)
    answer = json_object(response)
    if not is_success(response) or answer.get("ok") is not True:
        return _build_failure(response)
    found: list[Inbound] = []
    following = cursor
    for item in read_list(answer.get("result")):
        update = read_mapping(item)
        number = update.get("update_id")
        if not isinstance(number, int):
            continue
        found += read(update, credentials)
        following = str(max(number + 1, int(following or 0)))
    return Polled(inbound=tuple(found), cursor=following)


def answer(request: WebhookRequest, credentials: Credentials, at: datetime) -> WebhookAnswer | None:
    """Acknowledge a press in the answer to the webhook, as a method call; the API does not have the token."""
    press = read_id(read_mapping(parse_object(request.body).get("callback_query")).get("id"))
    if not press:
        return None
    called = {"method": "answerCallbackQuery", "callback_query_id": press}
    return WebhookAnswer(body=json.dumps(called).encode())


def acknowledge(press: InboundButton, credentials: Credentials) -> Acknowledging:
    """Acknowledge a press: until then people see the button as still pressed."""
    yield json_request(
        "POST", _build_method_url("answerCallbackQuery", credentials), {"callback_query_id": press.press_id}
    )


def identify(credentials: Credentials) -> Identifying:
    """Ask getMe; it takes nothing from a poll."""
    response = yield json_request("POST", _build_method_url("getMe", credentials), {})
    answer = json_object(response)
    if not is_success(response) or answer.get("ok") is not True:
        return _build_failure(response)
    me = read_mapping(answer.get("result"))
    return f"@{read_text(me.get('username'))} ({read_id(me.get('id'))})"


def read(update: Mapping[str, Any], credentials: Credentials) -> tuple[Inbound, ...]:
    """Read an update. Total."""
    key = read_id(update.get("update_id"))
    if not key:
        return ()
    if message := read_mapping(update.get("message") or update.get("channel_post")):
        return (_read_message(key, message, credentials),)
    if edited := read_mapping(update.get("edited_message")):
        text = read_text(edited.get("text")) or read_text(edited.get("caption"))
        return (InboundEdit(event_key=key, text=text, **_read_common(edited)),)
    if pressed := read_mapping(update.get("callback_query")):
        return _read_button(key, pressed)
    return ()


def _read_message(key: str, message: Mapping[str, Any], credentials: Credentials) -> Inbound:
    if moved := read_id(message.get("migrate_to_chat_id")):
        return InboundMove(event_key=key, to_chat=moved, **_read_common(message))
    text = read_text(message.get("text")) or read_text(message.get("caption"))
    answered = read_mapping(message.get("reply_to_message"))
    is_answer = _is_bot(read_mapping(answered.get("from")), credentials)
    # In a topic every message "answers" the one that made the topic.
    reply_to = "" if "forum_topic_created" in answered else read_id(answered.get("message_id"))
    return InboundMessage(
        event_key=key,
        text=text,
        media=_list_media(message),
        reply_to=reply_to,
        reply_to_text=(read_text(answered.get("text")) or read_text(answered.get("caption"))) if reply_to else "",
        is_addressed=is_answer or _names_bot(text, credentials.bot_name),
        album=read_id(message.get("media_group_id")),
        **_read_common(message),
    )


def _read_button(key: str, pressed: Mapping[str, Any]) -> tuple[Inbound, ...]:
    message = read_mapping(pressed.get("message"))
    if not message:
        return ()
    common = _read_common(message) | {"sender": _read_sender(read_mapping(pressed.get("from")))}
    press = read_id(pressed.get("id"))
    return (InboundButton(event_key=key, value=read_text(pressed.get("data")), press_id=press, **common),)


def _read_common(message: Mapping[str, Any]) -> dict[str, Any]:
    chat = read_mapping(message.get("chat"))
    is_topic = message.get("is_topic_message") is True
    writer = read_mapping(message.get("from")) or read_mapping(message.get("sender_chat"))
    return {
        "chat": InboundChat(
            id=read_id(chat.get("id")),
            kind=_KINDS.get(read_text(chat.get("type")), ChatKind.GROUP),
            thread=read_id(message.get("message_thread_id")) if is_topic else "",
            name=read_stripped_text(chat.get("title")) or _name(chat),
        ),
        "sender": _read_sender(writer),
        "message_id": read_id(message.get("message_id")),
        "sent_at": read_number(message.get("edit_date") or message.get("date")),
    }


def _read_sender(writer: Mapping[str, Any]) -> InboundSender:
    return InboundSender(
        id=read_id(writer.get("id")),
        alt_id=read_text(writer.get("username")),
        name=_name(writer) or read_stripped_text(writer.get("title")) or read_text(writer.get("username")),
        # A channel or an anonymous administrator writes as a chat: the person is unknown.
        is_bot=writer.get("is_bot") is True,
    )


def _name(who: Mapping[str, Any]) -> str:
    return " ".join(filter(None, (read_stripped_text(who.get("first_name")), read_stripped_text(who.get("last_name")))))


def _list_media(message: Mapping[str, Any]) -> tuple[MediaRef, ...]:
    found = []
    if photos := [read_mapping(size) for size in read_list(message.get("photo"))]:
        largest = max(photos, key=lambda size: read_number(size.get("file_size")) or 0.0)
        found.append(_build_file(MediaKind.IMAGE, largest, media_type="image/jpeg"))
    for name, kind in _FILES.items():
        # An animation comes as a document as well.
        if (file := read_mapping(message.get(name))) and not (name == "document" and "animation" in message):
            found.append(_build_file(kind, file, media_type=read_text(file.get("mime_type"))))
    return tuple(media for media in found if media.id)


def _build_file(kind: MediaKind, file: Mapping[str, Any], *, media_type: str) -> MediaRef:
    return MediaRef(
        kind=kind,
        id=read_id(file.get("file_id")),
        name=read_text(file.get("file_name")),
        media_type=media_type,
        size_bytes=read_size(file.get("file_size")),
    )


def _is_bot(writer: Mapping[str, Any], credentials: Credentials) -> bool:
    """Whether a user is this bot: by its id, or by its name where the token is not known (at the API)."""
    name = credentials.bot_name.removeprefix("@").casefold()
    is_named = bool(name) and read_text(writer.get("username")).casefold() == name
    return is_named or (bool(credentials.bot_id) and read_id(writer.get("id")) == credentials.bot_id)


def _names_bot(text: str, bot_name: str) -> bool:
    name = bot_name.removeprefix("@")
    return bool(name) and re.search(rf"@{re.escape(name)}\b", text, re.IGNORECASE) is not None


def _build_failure(response: HttpResponse) -> DeliveryError:
    outcome = classify(response)
    if isinstance(outcome, DeliveryError):
        return outcome
    raise Unsendable("Telegram answered what its Bot API never answers; check TELEGRAM_BASE_URL.")


def _build_method_url(method: str, credentials: Credentials) -> str:
    return join_service_url(
        credentials.base_url, f"bot{encode_path_segment(credentials.token).replace('%3A', ':')}/{method}"
    )
