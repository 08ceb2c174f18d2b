"""Inbound messages of Matrix: ``/sync`` of the client-server API (spec.matrix.org/v1.16/client-server-api, 2026-11).

The cursor is ``next_batch``. The first poll only learns where the account stands: what was said before is not answered.
When a room had more events than a poll shows, the rest is fetched, back to where the last poll ended. Invitations are
accepted; who may speak is decided elsewhere. Encrypted rooms cannot be read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from hermes_worker.channels.errors import DeliveryError
from hermes_worker.channels.exchange import (
    Unsendable,
    build_bearer_header,
    encode_path_segment,
    is_success,
    join_service_url,
    json_object,
    json_request,
)
from hermes_worker.channels.inbound.receiving import Identifying, Polled, Polling
from hermes_worker.channels.platforms.matrix import MXC, classify
from hermes_worker.core.inbound import (
    EVENT_KEY_CHARS_MAX,
    ChatKind,
    Inbound,
    InboundChat,
    InboundEdit,
    InboundMessage,
    InboundSender,
    MediaRef,
)
from hermes_worker.core.json_values import read_list, read_mapping, read_number, read_text
from hermes_worker.core.media_kinds import MediaKind
from hermes_worker.net.http import HttpRequest, HttpResponse

HOLD_S_MAX = 20
"""Most seconds that the server is asked to hold a poll without events."""
EVENTS_MAX = 50
"""Most events of a room in one poll."""
PAGES_MAX = 10
"""Most pages of events, in a room, that are fetched where a poll left events out."""
JOINS_MAX = 10
_FILES = {
    "m.image": MediaKind.IMAGE,
    "m.audio": MediaKind.AUDIO,
    "m.video": MediaKind.VIDEO,
    "m.file": MediaKind.DOCUMENT,
}
_FILTER = {
    "presence": {"types": []},
    "account_data": {"types": []},
    "room": {
        "ephemeral": {"types": []},
        "account_data": {"types": []},
        "state": {"types": []},
        "timeline": {"limit": EVENTS_MAX, "types": ["m.room.message", "m.room.member"]},
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    homeserver: str
    access_token: str = field(repr=False)


def poll(cursor: str, credentials: Credentials, at: datetime, hold_s: float) -> Polling:
    """Poll once, and ask about the rooms in which somebody wrote."""
    hold_ms = int(min(hold_s, HOLD_S_MAX) * 1000) if cursor else 0
    fields = {"timeout": str(hold_ms), "filter": json.dumps(_FILTER)}
    response = yield _get("v3/sync", fields | ({"since": cursor} if cursor else {}), credentials)
    answer = json_object(response)
    following = read_text(answer.get("next_batch"))
    if not is_success(response) or not following:
        return _build_failure(response)
    rooms = read_mapping(answer.get("rooms"))
    for room in list(read_mapping(rooms.get("invite")))[:JOINS_MAX]:
        response = yield _request("POST", f"v3/rooms/{encode_path_segment(room)}/join", credentials)
        # A poll shows an invitation once. One that was withdrawn meanwhile is nothing to wait for.
        if response.status == 429 or response.status >= 500:
            return _build_failure(response)
    found: list[Inbound] = []
    me = ""
    for room, news in read_mapping(rooms.get("join")).items() if cursor else ():
        timeline = read_mapping(read_mapping(news).get("timeline"))
        if not _list_messages(read_list(timeline.get("events"))) and timeline.get("limited") is not True:
            continue
        if not me:
            response = yield _get("v3/account/whoami", {}, credentials)
            me = read_text(json_object(response).get("user_id"))
            if not me:
                return _build_failure(response)
        events = yield from _read_events(room, timeline, cursor, credentials)
        if isinstance(events, HttpResponse):
            return _build_failure(events)
        messages = _list_messages(_drop_before_join(events, me))
        if messages:
            response = yield _get(f"v3/rooms/{encode_path_segment(room)}/joined_members", {}, credentials)
            # After we left the room meanwhile we may not ask: then it counts as a group, where little is taken.
            members = read_mapping(json_object(response).get("joined"))
            found += [one for event in messages for one in read(event, room, members, me)]
    return Polled(inbound=tuple(found), cursor=following)


def read(event: Mapping[str, Any], room: str, members: Mapping[str, Any], me: str) -> tuple[Inbound, ...]:
    """Read a message; empty for one of ours. Total."""
    key, writer = read_text(event.get("event_id")), read_text(event.get("sender"))
    content = read_mapping(event.get("content"))
    relation = read_mapping(content.get("m.relates_to"))
    answered = read_text(read_mapping(relation.get("m.in_reply_to")).get("event_id"))
    is_thread = relation.get("rel_type") == "m.thread"
    if not key or len(key) > EVENT_KEY_CHARS_MAX or not writer or writer == me:
        return ()
    stamp = read_number(event.get("origin_server_ts"))
    common: dict[str, Any] = {
        "event_key": key,
        "chat": InboundChat(
            id=room,
            kind=ChatKind.DIRECT if len(members) == 2 else ChatKind.GROUP,
            thread=read_text(relation.get("event_id")) if is_thread else "",
        ),
        # By the specification a notice is what a program says, and is not answered.
        "sender": InboundSender(
            id=writer,
            name=read_text(read_mapping(members.get(writer)).get("display_name")),
            is_bot=content.get("msgtype") == "m.notice",
        ),
        "sent_at": None if stamp is None else stamp / 1000,
    }
    if relation.get("rel_type") == "m.replace":
        edited = read_text(relation.get("event_id"))
        text = read_text(read_mapping(content.get("m.new_content")).get("body"))
        return (InboundEdit(message_id=edited, text=text, **common),) if edited else ()
    body = read_text(content.get("body"))
    media = _list_media(content)
    if media and read_text(content.get("filename")) in ("", body):
        body = ""  # it is the name of the file, and not a caption
    mentioned = read_list(read_mapping(content.get("m.mentions")).get("user_ids"))
    return (
        InboundMessage(
            message_id=key,
            text=_remove_quote(body) if answered else body,
            media=media,
            reply_to="" if is_thread and relation.get("is_falling_back") is True else answered,
            is_addressed=me in mentioned or _is_named_in(body, me),
            **common,
        ),
    )


def _list_media(content: Mapping[str, Any]) -> tuple[MediaRef, ...]:
    """List the file of a message. An encrypted one has no ``url``, and counts as none."""
    kind, place = _FILES.get(read_text(content.get("msgtype"))), read_text(content.get("url"))
    if kind is None or not MXC.fullmatch(place):
        return ()
    info = read_mapping(content.get("info"))
    name = read_text(content.get("filename")) or read_text(content.get("body"))
    told = MediaRef.from_platform(place, media_type=info.get("mimetype"), name=name, size=info.get("size"))
    is_voice = kind is MediaKind.AUDIO and "org.matrix.msc3245.voice" in content
    return (replace(told, kind=MediaKind.VOICE if is_voice else kind),)


def _read_events(
    room: str, timeline: Mapping[str, Any], since: str, credentials: Credentials
) -> Generator[HttpRequest, HttpResponse, list[Any] | HttpResponse]:
    """Read the events of a room since the last poll, the oldest first; the server's answer where it refuses."""
    events = list(read_list(timeline.get("events")))
    page = read_text(timeline.get("prev_batch"))
    if timeline.get("limited") is not True:
        return events
    for _ in range(PAGES_MAX):
        fields = {"dir": "b", "from": page, "to": since, "limit": str(EVENTS_MAX)}
        response = yield _get(f"v3/rooms/{encode_path_segment(room)}/messages", fields, credentials)
        if not is_success(response):
            return response
        older = read_list(json_object(response).get("chunk"))
        events = [*reversed(older), *events]
        following = read_text(json_object(response).get("end"))
        if not older or not following or following == page:
            break
        page = following
    return events


def _drop_before_join(events: list[Any], me: str) -> list[Any]:
    """Drop what was said before we joined."""
    for place in range(len(events) - 1, -1, -1):
        event = read_mapping(events[place])
        before = read_mapping(read_mapping(event.get("unsigned")).get("prev_content")).get("membership")
        is_mine = event.get("type") == "m.room.member" and event.get("state_key") == me
        if is_mine and read_mapping(event.get("content")).get("membership") == "join" and before != "join":
            return events[place + 1 :]
    return events


def _list_messages(events: Any) -> list[Mapping[str, Any]]:
    return [event for event in map(read_mapping, events) if event.get("type") == "m.room.message"]


def _remove_quote(body: str) -> str:
    """Remove the quote that older clients put before the text, each line behind ``>``."""
    return re.sub(r"\A(?:> .*\n)+\n?", "", body)


def _is_named_in(body: str, me: str) -> bool:
    local = re.escape(me.removeprefix("@").partition(":")[0])
    return bool(local) and re.search(rf"(?:\A|[\s(])@?{local}\b", body, re.IGNORECASE) is not None


def identify(credentials: Credentials) -> Identifying:
    """Ask whoami; it takes nothing from a poll."""
    response = yield _get("v3/account/whoami", {}, credentials)
    me = read_text(json_object(response).get("user_id"))
    return me or _build_failure(response)


def _get(path: str, fields: Mapping[str, str], credentials: Credentials) -> HttpRequest:
    return _request("GET", f"{path}?{urlencode(fields)}" if fields else path, credentials)


def _request(method: str, path: str, credentials: Credentials) -> HttpRequest:
    url = join_service_url(credentials.homeserver, f"_matrix/client/{path}")
    headers = build_bearer_header(credentials.access_token)
    if method == "GET":
        return HttpRequest(method=method, url=url, headers=headers, delivers=False)
    return json_request(method, url, {}, headers=headers)


def _build_failure(response: HttpResponse) -> DeliveryError:
    outcome = classify(response)
    if isinstance(outcome, DeliveryError):
        return outcome
    raise Unsendable("The homeserver answered what Matrix does not; check MATRIX_HOMESERVER.")
