"""Inbound messages of Mattermost: its websocket, and posts over REST for what was written while nothing was connected
(developers.mattermost.com/api-documentation, "WebSocket", 2026-11).

The cursor is the time of the newest post, in milliseconds of the server's clock. Once a connection is open, posts since
then are fetched, with an overlap, because servers of a cluster have clocks of their own; a post that comes twice has
the same key. Events of a connection are numbered: where a number is missing, the server dropped events, and the
connection is replaced.

Presses of buttons come to the API instead (``receive``): the server brings what ``platforms.mattermost`` put into the
button, and with it the proof that we made it for this chat.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from hermes_worker.channels.errors import DeliveryError, SendErrorKind
from hermes_worker.channels.exchange import (
    build_bearer_header,
    failure,
    is_success,
    join_service_url,
    json_object,
    json_request,
)
from hermes_worker.channels.inbound.proofs import check_same, encode_secret, make_event_key
from hermes_worker.channels.inbound.receiving import (
    Addressing,
    Following,
    FrameOutcome,
    SocketAddress,
    SocketTalk,
    WebhookAnswer,
    WebhookRequest,
)
from hermes_worker.channels.platforms.mattermost import classify
from hermes_worker.channels.signature import sign_button
from hermes_worker.core.inbound import (
    ChatKind,
    Inbound,
    InboundButton,
    InboundChat,
    InboundEdit,
    InboundMessage,
    InboundSender,
    MediaRef,
)
from hermes_worker.core.json_values import (
    parse_json,
    parse_object,
    read_id,
    read_list,
    read_mapping,
    read_number,
    read_size,
    read_text,
)
from hermes_worker.net.http import HttpRequest, HttpResponse

OVERLAP_MS = 10_000
"""Milliseconds by which the fetched posts go back behind the cursor."""
CHANNELS_MAX = 200
"""Most channels that are caught up with after one connection; those with the newest posts come first."""
_USERS_MAX = 100
_KINDS = {"D": ChatKind.DIRECT, "G": ChatKind.GROUP, "P": ChatKind.GROUP}


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    base_url: str = ""
    token: str = field(default="", repr=False)
    actions_secret: str = field(default="", repr=False)
    """The key that signs our buttons."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Account:
    """Our own account."""

    id: str
    name: str


def receive(request: WebhookRequest, credentials: Credentials, at: datetime) -> tuple[Inbound, ...]:
    """Verify and read a press of a button (developers.mattermost.com, "Interactive messages"). The proof is in the
    JSON, so that is parsed first. The server, which alone knows the context of a button, says whose press it is."""
    encode_secret(credentials.actions_secret, "MATTERMOST_ACTIONS_SECRET")
    said = parse_object(request.body)
    context, chat = read_mapping(said.get("context")), read_id(said.get("channel_id"))
    value, thread = read_text(context.get("value")), read_text(context.get("thread"))
    check_same(read_text(context.get("proof")), sign_button(credentials.actions_secret, chat, thread, value))
    key = read_id(said.get("trigger_id"))
    if not key or not chat:
        return ()
    return (
        InboundButton(
            # A trigger is longer than a key may be.
            event_key=make_event_key("press", hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()),
            chat=InboundChat(id=chat, kind=ChatKind.CHANNEL, thread=thread, scope=read_id(said.get("team_id"))),
            may_be=(ChatKind.CHANNEL, ChatKind.GROUP, ChatKind.DIRECT),
            sender=InboundSender(id=read_id(said.get("user_id")), alt_id=read_text(said.get("user_name"))),
            message_id=read_id(said.get("post_id")),
            value=value,
        ),
    )


def answer(request: WebhookRequest, credentials: Credentials, at: datetime) -> WebhookAnswer | None:
    """Answer with an empty object: the reply is a message of ours, and the post is left as it is."""
    return WebhookAnswer(body=b"{}")


class Socket(SocketTalk):
    """One connection. The server pings by itself."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._me = _Account(id="", name="")
        self._cursor = ""
        self._next = 0

    def find_address(self, cursor: str, at: datetime) -> Addressing:
        self._cursor = cursor
        response = yield _get("users/me", self._credentials)
        me = json_object(response)
        if not is_success(response) or not read_id(me.get("id")):
            return _build_failure(response)
        self._me = _Account(id=read_id(me.get("id")), name=read_text(me.get("username")))
        url = join_service_url(self._credentials.base_url, "api/v4/websocket")
        challenge = {"seq": 1, "action": "authentication_challenge", "data": {"token": self._credentials.token}}
        return SocketAddress(url=f"ws{url.removeprefix('http')}", greeting=(json.dumps(challenge),))

    def on_frame(self, frame: str, at: datetime) -> FrameOutcome:
        said = parse_object(frame)
        if said.get("status") == "FAIL":
            reason = read_text(read_mapping(said.get("error")).get("message"))[:200]
            return FrameOutcome(is_over=True, error=DeliveryError(kind=SendErrorKind.AUTH, message=reason or "refused"))
        event = said.get("event")
        if not isinstance(event, str):
            return FrameOutcome()
        if read_size(said.get("seq")) != self._next:
            return FrameOutcome(is_over=True)
        self._next += 1
        if event == "hello":
            return FrameOutcome(then=self._catch_up())
        if event not in ("posted", "post_edited"):
            return FrameOutcome()
        return self._on_post(event, read_mapping(said.get("data")))

    def _on_post(self, event: str, data: Mapping[str, Any]) -> FrameOutcome:
        post = parse_object(read_text(data.get("post")))
        channel = {
            "id": post.get("channel_id"),
            "type": data.get("channel_type"),
            "display_name": data.get("channel_display_name"),
            "team_id": data.get("team_id"),
        }
        name = read_text(data.get("sender_name")).removeprefix("@")
        mentioned = self._me.id in read_list(parse_json(read_text(data.get("mentions"))))
        if event == "post_edited":
            return FrameOutcome(inbound=_edit(post, channel, name, self._me))
        return FrameOutcome(inbound=_read(post, channel, name, self._me, mentioned), cursor=self._advance_cursor(post))

    def _advance_cursor(self, post: Mapping[str, Any]) -> str | None:
        """Move the cursor behind a post; ``None`` where it does not move."""
        made = read_size(post.get("create_at"))
        if made is None or made <= _parse_milliseconds(self._cursor) or not read_id(post.get("id")):
            return None
        self._cursor = str(made)
        return self._cursor

    def _catch_up(self) -> Following:
        response = yield _get(f"users/{self._me.id}/channels", self._credentials)
        if not is_success(response):
            return _build_failure(response)
        channels = [
            channel
            for channel in map(read_mapping, read_list(parse_json(response.body)))
            if _read_last_post_ms(channel)
        ]
        newest = max(map(_read_last_post_ms, channels), default=0)
        if not self._cursor:
            # What was said before we first came is not answered, so the overlap does not go behind it.
            self._cursor = str(newest + OVERLAP_MS) if newest else ""
            return FrameOutcome(cursor=self._cursor or None)
        since = _parse_milliseconds(self._cursor) - OVERLAP_MS
        missed = sorted(
            (one for one in channels if _read_last_post_ms(one) > since), key=_read_last_post_ms, reverse=True
        )
        found: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = []
        for channel in missed[:CHANNELS_MAX]:
            response = yield _get(f"channels/{_read_segment(channel)}/posts?since={max(0, since)}", self._credentials)
            if response.status in (403, 404):
                continue  # we were taken out of it meanwhile
            if not is_success(response):
                return _build_failure(response)
            found += [(post, channel) for post in _list_posts_since(json_object(response), since)]
        found.sort(key=lambda one: read_size(one[0].get("create_at")) or 0)
        users = yield from _look_up_users({read_id(post.get("user_id")) for post, _ in found}, self._credentials)
        if isinstance(users, DeliveryError):
            return users
        inbound = [event for post, channel in found for event in self._read_missed(post, channel, users)]
        for post, _ in found:
            self._advance_cursor(post)
        return FrameOutcome(inbound=tuple(inbound), cursor=self._cursor)

    def _read_missed(
        self, post: Mapping[str, Any], channel: Mapping[str, Any], users: Mapping[str, Mapping[str, Any]]
    ) -> tuple[Inbound, ...]:
        user = users.get(read_id(post.get("user_id")), {})
        name = read_text(user.get("username"))
        return _read(post, channel, name, self._me, is_mentioned=False, is_bot=user.get("is_bot") is True)


def _read(
    post: Mapping[str, Any],
    channel: Mapping[str, Any],
    name: str,
    me: _Account,
    is_mentioned: bool,
    is_bot: bool = False,
) -> tuple[Inbound, ...]:
    """Read a post that a person wrote. Empty for our own, and for posts about the channel."""
    number = read_id(post.get("id"))
    if not _is_of_people(post, me):
        return ()
    text = read_text(post.get("message"))
    own = re.compile(rf"(?<![\w@.-])@{re.escape(me.name)}(?![\w-])", re.IGNORECASE) if me.name else None
    is_named = own is not None and own.search(text) is not None
    start = own.match(text.lstrip()) if own is not None else None
    common = _read_common(post, channel, name, is_bot)
    return (
        InboundMessage(
            event_key=make_event_key(number),
            text=text.lstrip()[start.end() :].lstrip(" ,:") if start is not None else text,
            media=tuple(_list_files(post)),
            is_addressed=is_mentioned or is_named,
            **common,
        ),
    )


def _edit(post: Mapping[str, Any], channel: Mapping[str, Any], name: str, me: _Account) -> tuple[Inbound, ...]:
    if not _is_of_people(post, me):
        return ()
    key = make_event_key(read_id(post.get("id")), "edit", read_id(post.get("edit_at")))
    return (
        InboundEdit(event_key=key, text=read_text(post.get("message")), **_read_common(post, channel, name, False)),
    )


def _is_of_people(post: Mapping[str, Any], me: _Account) -> bool:
    is_complete = all(read_id(post.get(name)) for name in ("id", "channel_id", "user_id"))
    is_said = read_text(post.get("type")) in ("", "me", "slack_attachment")
    return is_complete and is_said and not read_size(post.get("delete_at")) and post.get("user_id") != me.id


def _read_common(post: Mapping[str, Any], channel: Mapping[str, Any], name: str, is_bot: bool) -> dict[str, Any]:
    made = read_number(post.get("create_at"))
    props = read_mapping(post.get("props"))
    return {
        "chat": InboundChat(
            id=read_id(post.get("channel_id")),
            kind=_KINDS.get(read_text(channel.get("type")), ChatKind.CHANNEL),
            thread=read_id(post.get("root_id")),
            scope=read_id(channel.get("team_id")),
            name=read_text(channel.get("display_name")),
        ),
        "sender": InboundSender(
            id=read_id(post.get("user_id")),
            alt_id=name,
            name=name,
            is_bot=is_bot or any(props.get(word) in ("true", True) for word in ("from_bot", "from_webhook")),
        ),
        "message_id": read_id(post.get("id")),
        "sent_at": None if made is None else made / 1000,
    }


def _list_files(post: Mapping[str, Any]) -> list[MediaRef]:
    known = {read_id(file.get("id")): file for file in map(read_mapping, read_list(_read_metadata(post).get("files")))}
    numbers = [read_id(number) for number in read_list(post.get("file_ids"))]
    return [_build_file(number, known.get(number, {})) for number in dict.fromkeys((*numbers, *known)) if number]


def _build_file(number: str, file: Mapping[str, Any]) -> MediaRef:
    return MediaRef.from_platform(
        number, media_type=file.get("mime_type"), name=file.get("name"), size=file.get("size")
    )


def _read_metadata(post: Mapping[str, Any]) -> Mapping[str, Any]:
    return read_mapping(post.get("metadata"))


def _list_posts_since(answer: Mapping[str, Any], since: int) -> list[Mapping[str, Any]]:
    """List the posts that were made since; the answer also holds those that were changed since."""
    posts = map(read_mapping, read_mapping(answer.get("posts")).values())
    return [post for post in posts if (read_size(post.get("create_at")) or 0) > since]


def _look_up_users(
    numbers: Iterable[str], credentials: Credentials
) -> Generator[HttpRequest, HttpResponse, dict[str, Mapping[str, Any]] | DeliveryError]:
    """Look up who wrote, by id: their names, and whether they are programs."""
    found: dict[str, Mapping[str, Any]] = {}
    wanted = sorted(filter(None, numbers))
    for start in range(0, len(wanted), _USERS_MAX):
        url = join_service_url(credentials.base_url, "api/v4/users/ids")
        response = yield json_request(
            "POST", url, wanted[start : start + _USERS_MAX], headers=build_bearer_header(credentials.token)
        )
        if not is_success(response):
            return _build_failure(response)
        found |= {read_id(user.get("id")): user for user in map(read_mapping, read_list(parse_json(response.body)))}
    return found


def _read_last_post_ms(channel: Mapping[str, Any]) -> int:
    return read_size(channel.get("last_post_at")) or 0


def _read_segment(channel: Mapping[str, Any]) -> str:
    number = read_id(channel.get("id"))
    return number if re.fullmatch(r"[A-Za-z0-9]{1,64}", number) else "unknown"


def _parse_milliseconds(cursor: str) -> int:
    return int(cursor) if cursor.isascii() and cursor.isdigit() and len(cursor) <= 15 else 0


def _get(path: str, credentials: Credentials) -> HttpRequest:
    url = join_service_url(credentials.base_url, f"api/v4/{path}")
    return HttpRequest(method="GET", url=url, headers=build_bearer_header(credentials.token), delivers=False)


def _build_failure(response: HttpResponse) -> DeliveryError:
    outcome = classify(response)
    if isinstance(outcome, DeliveryError):
        return outcome
    return failure(response, "the server answered what Mattermost does not", kind=SendErrorKind.TRANSIENT)
