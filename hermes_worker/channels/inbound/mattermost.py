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
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from hermes_worker.channels.errors import DeliveryError, SendErrorKind
from hermes_worker.channels.exchange import (
    bearer,
    failure,
    is_success,
    json_object,
    json_request,
    service_url,
)
from hermes_worker.channels.inbound.proofs import check_same, event_key, secret_bytes
from hermes_worker.channels.inbound.receiving import (
    Addressing,
    Following,
    HeardFrame,
    SocketAddress,
    SocketTalk,
    WebhookAnswer,
    WebhookRequest,
)
from hermes_worker.channels.platforms.mattermost import classify
from hermes_worker.channels.signature import pressed_proof
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
from hermes_worker.core.json_values import id_of, list_of, mapping_of, number_of, object_in, size_of, text_of
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
    secret_bytes(credentials.actions_secret, "MATTERMOST_ACTIONS_SECRET")
    said = object_in(request.body)
    context, chat = mapping_of(said.get("context")), id_of(said.get("channel_id"))
    value, thread = text_of(context.get("value")), text_of(context.get("thread"))
    check_same(text_of(context.get("proof")), pressed_proof(credentials.actions_secret, chat, thread, value))
    key = id_of(said.get("trigger_id"))
    if not key or not chat:
        return ()
    return (
        InboundButton(
            # A trigger is longer than a key may be.
            event_key=event_key("press", hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()),
            chat=InboundChat(id=chat, kind=ChatKind.CHANNEL, thread=thread, scope=id_of(said.get("team_id"))),
            may_be=(ChatKind.CHANNEL, ChatKind.GROUP, ChatKind.DIRECT),
            sender=InboundSender(id=id_of(said.get("user_id")), alt_id=text_of(said.get("user_name"))),
            message_id=id_of(said.get("post_id")),
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

    def address(self, cursor: str, at: datetime) -> Addressing:
        self._cursor = cursor
        response = yield _get("users/me", self._credentials)
        me = json_object(response)
        if not is_success(response) or not id_of(me.get("id")):
            return _failed(response)
        self._me = _Account(id=id_of(me.get("id")), name=text_of(me.get("username")))
        url = service_url(self._credentials.base_url, "api/v4/websocket")
        challenge = {"seq": 1, "action": "authentication_challenge", "data": {"token": self._credentials.token}}
        return SocketAddress(url=f"ws{url.removeprefix('http')}", greeting=(json.dumps(challenge),))

    def hear(self, frame: str, at: datetime) -> HeardFrame:
        said = object_in(frame)
        if said.get("status") == "FAIL":
            reason = text_of(mapping_of(said.get("error")).get("message"))[:200]
            return HeardFrame(is_over=True, error=DeliveryError(kind=SendErrorKind.AUTH, message=reason or "refused"))
        event = said.get("event")
        if not isinstance(event, str):
            return HeardFrame()
        if size_of(said.get("seq")) != self._next:
            return HeardFrame(is_over=True)
        self._next += 1
        if event == "hello":
            return HeardFrame(then=self._caught_up())
        if event not in ("posted", "post_edited"):
            return HeardFrame()
        return self._posted(event, mapping_of(said.get("data")))

    def _posted(self, event: str, data: Mapping[str, Any]) -> HeardFrame:
        post = object_in(text_of(data.get("post")))
        channel = {
            "id": post.get("channel_id"),
            "type": data.get("channel_type"),
            "display_name": data.get("channel_display_name"),
            "team_id": data.get("team_id"),
        }
        name = text_of(data.get("sender_name")).removeprefix("@")
        mentioned = self._me.id in list_of(_array_in(text_of(data.get("mentions"))))
        if event == "post_edited":
            return HeardFrame(inbound=_edit(post, channel, name, self._me))
        return HeardFrame(inbound=_read(post, channel, name, self._me, mentioned), cursor=self._later(post))

    def _later(self, post: Mapping[str, Any]) -> str | None:
        """Move the cursor behind a post; ``None`` where it does not move."""
        made = size_of(post.get("create_at"))
        if made is None or made <= _milliseconds(self._cursor) or not id_of(post.get("id")):
            return None
        self._cursor = str(made)
        return self._cursor

    def _caught_up(self) -> Following:
        response = yield _get(f"users/{self._me.id}/channels", self._credentials)
        if not is_success(response):
            return _failed(response)
        channels = [channel for channel in map(mapping_of, _array_in(response.body)) if _written_at(channel)]
        newest = max(map(_written_at, channels), default=0)
        if not self._cursor:
            # What was said before we first came is not answered, so the overlap does not go behind it.
            self._cursor = str(newest + OVERLAP_MS) if newest else ""
            return HeardFrame(cursor=self._cursor or None)
        since = _milliseconds(self._cursor) - OVERLAP_MS
        missed = sorted((one for one in channels if _written_at(one) > since), key=_written_at, reverse=True)
        found: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = []
        for channel in missed[:CHANNELS_MAX]:
            response = yield _get(f"channels/{_segment(channel)}/posts?since={max(0, since)}", self._credentials)
            if response.status in (403, 404):
                continue  # we were taken out of it meanwhile
            if not is_success(response):
                return _failed(response)
            found += [(post, channel) for post in _posts_since(json_object(response), since)]
        found.sort(key=lambda one: size_of(one[0].get("create_at")) or 0)
        users = yield from _users({id_of(post.get("user_id")) for post, _ in found}, self._credentials)
        if isinstance(users, DeliveryError):
            return users
        inbound = [event for post, channel in found for event in self._missed(post, channel, users)]
        for post, _ in found:
            self._later(post)
        return HeardFrame(inbound=tuple(inbound), cursor=self._cursor)

    def _missed(
        self, post: Mapping[str, Any], channel: Mapping[str, Any], users: Mapping[str, Mapping[str, Any]]
    ) -> tuple[Inbound, ...]:
        user = users.get(id_of(post.get("user_id")), {})
        name = text_of(user.get("username"))
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
    number = id_of(post.get("id"))
    if not _is_of_people(post, me):
        return ()
    text = text_of(post.get("message"))
    own = re.compile(rf"(?<![\w@.-])@{re.escape(me.name)}(?![\w-])", re.IGNORECASE) if me.name else None
    is_named = own is not None and own.search(text) is not None
    start = own.match(text.lstrip()) if own is not None else None
    common = _common(post, channel, name, is_bot)
    return (
        InboundMessage(
            event_key=event_key(number),
            text=text.lstrip()[start.end() :].lstrip(" ,:") if start is not None else text,
            media=tuple(_files(post)),
            is_addressed=is_mentioned or is_named,
            **common,
        ),
    )


def _edit(post: Mapping[str, Any], channel: Mapping[str, Any], name: str, me: _Account) -> tuple[Inbound, ...]:
    if not _is_of_people(post, me):
        return ()
    key = event_key(id_of(post.get("id")), "edit", id_of(post.get("edit_at")))
    return (InboundEdit(event_key=key, text=text_of(post.get("message")), **_common(post, channel, name, False)),)


def _is_of_people(post: Mapping[str, Any], me: _Account) -> bool:
    is_complete = all(id_of(post.get(name)) for name in ("id", "channel_id", "user_id"))
    is_said = text_of(post.get("type")) in ("", "me", "slack_attachment")
    return is_complete and is_said and not size_of(post.get("delete_at")) and post.get("user_id") != me.id


def _common(post: Mapping[str, Any], channel: Mapping[str, Any], name: str, is_bot: bool) -> dict[str, Any]:
    made = number_of(post.get("create_at"))
    props = mapping_of(post.get("props"))
    return {
        "chat": InboundChat(
            id=id_of(post.get("channel_id")),
            kind=_KINDS.get(text_of(channel.get("type")), ChatKind.CHANNEL),
            thread=id_of(post.get("root_id")),
            scope=id_of(channel.get("team_id")),
            name=text_of(channel.get("display_name")),
        ),
        "sender": InboundSender(
            id=id_of(post.get("user_id")),
            alt_id=name,
            name=name,
            is_bot=is_bot or any(props.get(word) in ("true", True) for word in ("from_bot", "from_webhook")),
        ),
        "message_id": id_of(post.get("id")),
        "sent_at": None if made is None else made / 1000,
    }


def _files(post: Mapping[str, Any]) -> list[MediaRef]:
    known = {id_of(file.get("id")): file for file in map(mapping_of, list_of(_metadata(post).get("files")))}
    numbers = [id_of(number) for number in list_of(post.get("file_ids"))]
    return [_file(number, known.get(number, {})) for number in dict.fromkeys((*numbers, *known)) if number]


def _file(number: str, file: Mapping[str, Any]) -> MediaRef:
    return MediaRef.told(number, media_type=file.get("mime_type"), name=file.get("name"), size=file.get("size"))


def _metadata(post: Mapping[str, Any]) -> Mapping[str, Any]:
    return mapping_of(post.get("metadata"))


def _posts_since(answer: Mapping[str, Any], since: int) -> list[Mapping[str, Any]]:
    """List the posts that were made since; the answer also holds those that were changed since."""
    posts = map(mapping_of, mapping_of(answer.get("posts")).values())
    return [post for post in posts if (size_of(post.get("create_at")) or 0) > since]


def _users(
    numbers: Iterable[str], credentials: Credentials
) -> Generator[HttpRequest, HttpResponse, dict[str, Mapping[str, Any]] | DeliveryError]:
    """Look up who wrote, by id: their names, and whether they are programs."""
    found: dict[str, Mapping[str, Any]] = {}
    wanted = sorted(filter(None, numbers))
    for start in range(0, len(wanted), _USERS_MAX):
        url = service_url(credentials.base_url, "api/v4/users/ids")
        response = yield json_request(
            "POST", url, wanted[start : start + _USERS_MAX], headers=bearer(credentials.token)
        )
        if not is_success(response):
            return _failed(response)
        found |= {id_of(user.get("id")): user for user in map(mapping_of, _array_in(response.body))}
    return found


def _written_at(channel: Mapping[str, Any]) -> int:
    return size_of(channel.get("last_post_at")) or 0


def _segment(channel: Mapping[str, Any]) -> str:
    number = id_of(channel.get("id"))
    return number if re.fullmatch(r"[A-Za-z0-9]{1,64}", number) else "unknown"


def _milliseconds(cursor: str) -> int:
    return int(cursor) if cursor.isascii() and cursor.isdigit() and len(cursor) <= 15 else 0


def _array_in(text: str | bytes) -> Sequence[Any]:
    try:
        return list_of(json.loads(text))
    except (ValueError, RecursionError):
        return ()


def _get(path: str, credentials: Credentials) -> HttpRequest:
    url = service_url(credentials.base_url, f"api/v4/{path}")
    return HttpRequest(method="GET", url=url, headers=bearer(credentials.token), delivers=False)


def _failed(response: HttpResponse) -> DeliveryError:
    outcome = classify(response)
    if isinstance(outcome, DeliveryError):
        return outcome
    return failure(response, "the server answered what Mattermost does not", kind=SendErrorKind.TRANSIENT)
