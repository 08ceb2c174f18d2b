"""Inbound events, slash commands and buttons of Slack (docs.slack.dev/apis/events-api, 2026-11), over a webhook or, in
Socket Mode, over a websocket (docs.slack.dev/apis/events-api/using-socket-mode).

A message that names the app comes as two events, ``message`` and ``app_mention``, with ids of their own. So the key of
an event is that of its message: the channel and the time, which Slack promises to be unique together.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from hermes_worker.channels.errors import DeliveryError, SendErrorKind
from hermes_worker.channels.exchange import (
    build_bearer_header,
    build_form_request,
    join_service_url,
    json_object,
    mark_as_preparing,
)
from hermes_worker.channels.inbound.proofs import (
    check_fresh,
    check_same,
    compute_hex_hmac,
    encode_secret,
    make_event_key,
    parse_form,
    parse_json,
)
from hermes_worker.channels.inbound.receiving import (
    Addressing,
    FrameOutcome,
    SocketTalk,
    WebhookAnswer,
    WebhookRequest,
    build_websocket_address,
)
from hermes_worker.channels.platforms.slack import classify
from hermes_worker.core.inbound import (
    ChatKind,
    Inbound,
    InboundButton,
    InboundChat,
    InboundCommand,
    InboundEdit,
    InboundMessage,
    InboundSender,
    MediaRef,
)
from hermes_worker.core.json_values import parse_object, read_id, read_list, read_mapping, read_text
from hermes_worker.core.media_kinds import MediaKind

_PEOPLE = frozenset({"", "file_share", "thread_broadcast", "me_message", "bot_message"})
"""Subtypes of messages that people wrote; the others tell of the channel."""
_KINDS = {"im": ChatKind.DIRECT, "mpim": ChatKind.GROUP, "group": ChatKind.GROUP, "channel": ChatKind.CHANNEL}
_ENTITY = re.compile(r"<([^<>|]{1,3000})(?:\|([^<>]{0,3000}))?>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    signing_secret: str = field(default="", repr=False)
    app_token: str = field(default="", repr=False)
    """The token of the app (``xapp-``), for Socket Mode."""
    base_url: str = "https://slack.com/api"


def receive(request: WebhookRequest, credentials: Credentials, at: datetime) -> tuple[Inbound, ...]:
    """Verify and read a request that Slack signed: an event, a slash command or a button."""
    timestamp, given = request.require_header("x-slack-request-timestamp"), request.require_header("x-slack-signature")
    secret = encode_secret(credentials.signing_secret, "SLACK_SIGNING_SECRET")
    check_fresh(timestamp, at)
    check_same(given, f"v0={compute_hex_hmac(secret, b'v0:' + timestamp.encode() + b':' + request.body)}")
    return read(_parse_payload(request))


def answer(request: WebhookRequest, credentials: Credentials, at: datetime) -> WebhookAnswer | None:
    """Answer the challenge by which Slack asks whether the address is ours. The answer to a command or a press would be
    shown to people, so it is empty."""
    if _is_form(request):
        return WebhookAnswer()
    payload = parse_json(request.body)
    if payload.get("type") != "url_verification":
        return None
    return WebhookAnswer(body=json.dumps({"challenge": read_id(payload.get("challenge"))}).encode())


def read(payload: Mapping[str, Any]) -> tuple[Inbound, ...]:
    """Read a payload. Total."""
    if read_text(payload.get("command")):
        return _read_command(payload)
    if payload.get("type") == "block_actions":
        return _read_buttons(payload)
    if payload.get("type") != "event_callback":
        return ()
    event = read_mapping(payload.get("event"))
    me = read_id(read_mapping(next(iter(read_list(payload.get("authorizations"))), None)).get("user_id"))
    team = read_id(payload.get("team_id"))
    if event.get("type") not in ("message", "app_mention") or not read_id(event.get("channel")):
        return ()
    subtype = read_text(event.get("subtype"))
    if subtype == "message_changed":
        return _edit(event, team, me)
    return (_read_message(event, team, me),) if subtype in _PEOPLE and read_id(event.get("ts")) else ()


class Socket(SocketTalk):
    """Socket Mode: each payload comes in an envelope and comes again, over this connection or another, until it is
    acknowledged. So there is no cursor. Slack pings by itself."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def find_address(self, cursor: str, at: datetime) -> Addressing:
        url = join_service_url(self._credentials.base_url, "apps.connections.open")
        response = yield mark_as_preparing(
            build_form_request(url, {}, headers=build_bearer_header(self._credentials.app_token))
        )
        outcome = classify(response)
        if isinstance(outcome, DeliveryError):
            return outcome
        return build_websocket_address(read_text(json_object(response).get("url")), "Slack")

    def on_frame(self, frame: str, at: datetime) -> FrameOutcome:
        envelope = parse_object(frame)
        if envelope.get("type") == "disconnect":
            return self._on_disconnect(read_text(envelope.get("reason")))
        number = read_id(envelope.get("envelope_id"))
        if not number:
            return FrameOutcome()
        # An envelope that has no message for us is acknowledged as well, or it would come again.
        return FrameOutcome(
            inbound=read(read_mapping(envelope.get("payload"))),
            acknowledgements=(json.dumps({"envelope_id": number}),),
        )

    @staticmethod
    def _on_disconnect(reason: str) -> FrameOutcome:
        """Judge the end of a connection: Slack replaces each every few hours, and says so before."""
        if reason != "link_disabled":
            return FrameOutcome(is_over=True)
        said = "Socket Mode is turned off in the settings of the app"
        return FrameOutcome(is_over=True, error=DeliveryError(kind=SendErrorKind.AUTH, message=said))


def _read_message(event: Mapping[str, Any], team: str, me: str) -> Inbound:
    raw = read_text(event.get("text"))
    stamp, thread = read_id(event.get("ts")), read_id(event.get("thread_ts"))
    is_answer = thread != stamp and bool(me) and read_id(event.get("parent_user_id")) == me
    return InboundMessage(
        event_key=make_event_key(read_id(event.get("channel")), stamp),
        text=_render_plain(raw, me),
        media=tuple(_list_files(event)),
        reply_to=thread if thread != stamp else "",
        is_addressed=event.get("type") == "app_mention" or is_answer or (bool(me) and f"<@{me}" in raw),
        **_read_common(event, event, team, me),
    )


def _edit(event: Mapping[str, Any], team: str, me: str) -> tuple[Inbound, ...]:
    message = read_mapping(event.get("message"))
    before = read_text(read_mapping(event.get("previous_message")).get("text"))
    # An unfurled link changes a message, but not its text.
    if not read_id(message.get("ts")) or read_text(message.get("text")) == before:
        return ()
    key = make_event_key(read_id(event.get("channel")), read_id(message.get("ts")), "edit", read_id(event.get("ts")))
    text = _render_plain(read_text(message.get("text")), me)
    return (InboundEdit(event_key=key, text=text, **_read_common(event, message, team, me)),)


def _read_common(event: Mapping[str, Any], message: Mapping[str, Any], team: str, me: str) -> dict[str, Any]:
    stamp, thread = read_id(message.get("ts")), read_id(message.get("thread_ts"))
    channel = read_id(event.get("channel"))
    user = read_id(message.get("user"))
    return {
        "chat": InboundChat(
            id=channel,
            kind=_KINDS.get(
                read_text(event.get("channel_type")), ChatKind.DIRECT if channel[:1] == "D" else ChatKind.CHANNEL
            ),
            thread=thread,
            scope=team,
        ),
        "sender": InboundSender(
            id=user or read_id(message.get("bot_id")),
            name=read_text(read_mapping(message.get("user_profile")).get("display_name")),
            is_bot=bool(message.get("bot_id")) or message.get("subtype") == "bot_message" or (bool(me) and user == me),
        ),
        "message_id": stamp,
        "sent_at": _parse_seconds(stamp),
    }


def _read_command(payload: Mapping[str, Any]) -> tuple[Inbound, ...]:
    trigger, channel = read_id(payload.get("trigger_id")), read_id(payload.get("channel_id"))
    if not trigger or not channel:
        return ()
    return (
        InboundCommand(
            event_key=make_event_key("command", trigger),
            chat=_build_chat(channel, read_id(payload.get("team_id")), read_text(payload.get("channel_name"))),
            sender=InboundSender(id=read_id(payload.get("user_id")), name=read_text(payload.get("user_name"))),
            name=read_text(payload.get("command")).lstrip("/").lower(),
            arguments=_render_plain(read_text(payload.get("text")), ""),
        ),
    )


def _read_buttons(payload: Mapping[str, Any]) -> tuple[Inbound, ...]:
    user, channel = read_mapping(payload.get("user")), read_mapping(payload.get("channel"))
    message = read_mapping(payload.get("message"))
    place = _build_chat(
        read_id(channel.get("id")),
        read_id(read_mapping(payload.get("team")).get("id")),
        read_text(channel.get("name")),
        thread=read_id(message.get("thread_ts")),
    )
    return tuple(
        InboundButton(
            event_key=make_event_key("button", read_id(payload.get("trigger_id")), read_id(action.get("action_ts"))),
            chat=place,
            sender=InboundSender(id=read_id(user.get("id")), name=read_text(user.get("username"))),
            message_id=read_id(message.get("ts")),
            # An event that names the app in a private channel does not say that it is one.
            may_be=() if place.kind is ChatKind.DIRECT else (ChatKind.CHANNEL, ChatKind.GROUP),
            value=read_text(action.get("value")),
        )
        for action in map(read_mapping, read_list(payload.get("actions")))
        if place.id and action.get("type") == "button"
    )


def _build_chat(channel: str, team: str, name: str, *, thread: str = "") -> InboundChat:
    is_private = name == "privategroup" or name.startswith("mpdm-")
    kind = ChatKind.DIRECT if channel[:1] == "D" else ChatKind.GROUP if is_private else ChatKind.CHANNEL
    shown = "" if name == "directmessage" or is_private else name
    return InboundChat(id=channel, kind=kind, thread=thread, scope=team, name=shown)


def _list_files(event: Mapping[str, Any]) -> list[MediaRef]:
    found = []
    for file in map(read_mapping, read_list(event.get("files"))):
        if file.get("mode") == "tombstone" or file.get("is_external") is True:
            continue  # it was deleted, or is a link to somewhere else
        place = read_text(file.get("url_private_download")) or read_id(file.get("id"))
        media = MediaRef.from_platform(
            place, media_type=file.get("mimetype"), name=file.get("name"), size=file.get("size")
        )
        found.append(replace(media, kind=MediaKind.VOICE) if file.get("subtype") == "slack_audio" else media)
    return [media for media in found if media.id]


def _render_plain(text: str, me: str) -> str:
    """Write a text as people read it: Slack escapes three characters and writes links and names between angle brackets.
    The app's own name at the beginning is removed, since it is not part of the question."""
    if me:
        text = re.sub(rf"\A\s*<@{re.escape(me)}(?:\|[^<>]*)?>[\s:,]*", "", text)
    return html.unescape(_ENTITY.sub(_render_entity, text))


def _render_entity(match: re.Match[str]) -> str:
    target, label = match[1], match[2]
    if target[0] in "@#!":
        return f"{'#' if target[0] == '#' else '@'}{label or target[1:].partition('^')[0]}"
    return f"{label} ({target})" if label and label != target else target


def _is_form(request: WebhookRequest) -> bool:
    return request.find_header("content-type").partition(";")[0].strip().lower() == "application/x-www-form-urlencoded"


def _parse_payload(request: WebhookRequest) -> Mapping[str, Any]:
    if not _is_form(request):
        return parse_json(request.body)
    fields = dict(parse_form(request.body))
    return parse_json(fields["payload"].encode("utf-8", "replace")) if "payload" in fields else fields


def _parse_seconds(stamp: str) -> float | None:
    return float(stamp) if re.fullmatch(r"[0-9]{1,11}(\.[0-9]{1,9})?", stamp) else None
