"""Matrix client-server API v3 (spec.matrix.org). Messages are sent unencrypted."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlencode

from hermes_worker.channels.catalog import ChatForm
from hermes_worker.channels.errors import SendErrorKind
from hermes_worker.channels.exchange import (
    Attachment,
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
    mark_as_preparing,
    shorten_key,
)
from hermes_worker.channels.file_addresses import Downloading, FileSource
from hermes_worker.channels.markup import render_matrix_html
from hermes_worker.channels.targets import Target
from hermes_worker.core.inbound import MediaRef
from hermes_worker.core.json_values import read_id, read_list, read_number
from hermes_worker.core.media_kinds import MediaKind, guess_type_of_name
from hermes_worker.net.http import HttpRequest, HttpResponse

FORMATTED_BYTES_MAX = 40_000
"""Longest formatted text, in bytes: an event has at most 65,536 bytes; without the formatted text the plain one always
fits."""

_MESSAGE_TYPES = {
    MediaKind.IMAGE: "m.image",
    MediaKind.AUDIO: "m.audio",
    MediaKind.VOICE: "m.audio",
    MediaKind.VIDEO: "m.video",
    MediaKind.DOCUMENT: "m.file",
}

_KINDS: Mapping[str, SendErrorKind] = {
    "M_FORBIDDEN": SendErrorKind.FORBIDDEN,
    "M_NOT_FOUND": SendErrorKind.NOT_FOUND,
    "M_TOO_LARGE": SendErrorKind.TOO_LONG,
    "M_LIMIT_EXCEEDED": SendErrorKind.RATE_LIMITED,
    "M_UNKNOWN_TOKEN": SendErrorKind.AUTH,
    "M_MISSING_TOKEN": SendErrorKind.AUTH,
    "M_USER_DEACTIVATED": SendErrorKind.AUTH,
    "M_BAD_JSON": SendErrorKind.BAD_FORMAT,
    "M_NOT_JSON": SendErrorKind.BAD_FORMAT,
}


_TYPING_MS = 6_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    homeserver: str
    access_token: str = field(repr=False)


def build(part: Part, target: Target, credentials: Credentials) -> HttpRequest:
    """Build the request for a text. Raises ``Unsendable`` for a setting that cannot be used."""
    content: dict[str, object] = {"msgtype": "m.text", "body": part.text}
    formatted = render_matrix_html(part.text)
    if not part.is_plain and len(formatted.encode("utf-8", "replace")) <= FORMATTED_BYTES_MAX:
        content |= {"format": "org.matrix.custom.html", "formatted_body": formatted}
    return _build_event(content, part, target, credentials)


def classify(response: HttpResponse) -> Outcome:
    answer = json_object(response)
    if is_success(response):
        return Receipt(message_id=read_id(answer.get("event_id")) or None)
    code = read_id(answer.get("errcode"))
    wait_ms = read_number(answer.get("retry_after_ms"))
    return failure(
        response,
        " ".join(word for word in (code, read_id(answer.get("error"))) if word),
        kind=_KINDS.get(code),
        retry_after_s=None if wait_ms is None else wait_ms / 1000,
    )


def send(part: Part, target: Target, credentials: Credentials) -> Exchange:
    """Send a part. To a person: find the direct room or open one. A file: upload it first."""
    if target.form is ChatForm.USER:
        room = yield from _find_direct_room(target.chat, credentials)
        if not isinstance(room, str):
            return classify(room)
        target = Target(platform=target.platform, chat=room)
    if part.attachment is None:
        return classify((yield build(part, target, credentials)))
    uploaded = yield _build_upload(part.attachment, credentials)
    address = read_id(json_object(uploaded).get("content_uri"))
    if not address:
        return classify(uploaded) if not is_success(uploaded) else failure(uploaded, "the upload has no address")
    content: dict[str, object] = {
        "msgtype": _MESSAGE_TYPES[part.attachment.kind],
        "body": part.text or part.attachment.name,
        "filename": part.attachment.name,
        "url": address,
        "info": {"mimetype": guess_type_of_name(part.attachment.name), "size": len(part.attachment.content)},
    }
    return classify((yield _build_event(content, part, target, credentials)))


def _build_event(content: dict[str, object], part: Part, target: Target, credentials: Credentials) -> HttpRequest:
    if target.thread is not None:
        content["m.relates_to"] = {
            "rel_type": "m.thread",
            "event_id": target.thread,
            "is_falling_back": True,
            "m.in_reply_to": {"event_id": target.thread},
        }
    elif part.reply_to:
        content["m.relates_to"] = {"m.in_reply_to": {"event_id": part.reply_to}}
    room, transaction = encode_path_segment(target.chat), shorten_key(part.idempotency_key, 40)
    return _request("PUT", f"v3/rooms/{room}/send/m.room.message/{transaction}", content, credentials)


def show_typing(target: Target, credentials: Credentials) -> Exchange:
    """Send ``m.typing`` for the account, whose id is asked of the server first."""
    me = yield mark_as_preparing(_request("GET", "v3/account/whoami", None, credentials))
    own_id = read_id(json_object(me).get("user_id"))
    if not own_id:
        return classify(me) if not is_success(me) else failure(me, "the server does not say who we are")
    path = f"v3/rooms/{encode_path_segment(target.chat)}/typing/{encode_path_segment(own_id)}"
    return classify((yield _request("PUT", path, {"typing": True, "timeout": _TYPING_MS}, credentials)))


def _build_upload(attachment: Attachment, credentials: Credentials) -> HttpRequest:
    query = urlencode({"filename": attachment.name}, errors="replace")
    return HttpRequest(
        method="POST",
        url=join_service_url(credentials.homeserver, f"_matrix/media/v3/upload?{query}"),
        headers=build_bearer_header(credentials.access_token) | {"Content-Type": guess_type_of_name(attachment.name)},
        body=attachment.content,
        delivers=False,
    )


def _find_direct_room(user: str, credentials: Credentials) -> Generator[HttpRequest, HttpResponse, str | HttpResponse]:
    """Find the id of the direct room with ``user``, or open one; the response where the server refuses. An opened room
    is noted in the account's ``m.direct``, so that the next message finds it."""
    me = yield mark_as_preparing(_request("GET", "v3/account/whoami", None, credentials))
    own_id = read_id(json_object(me).get("user_id"))
    if not own_id:
        return me
    path = f"v3/user/{encode_path_segment(own_id)}/account_data/m.direct"
    known = yield mark_as_preparing(_request("GET", path, None, credentials))
    direct = json_object(known) if is_success(known) else {}
    rooms = [read_id(room) for room in read_list(direct.get(user)) if read_id(room)]
    if rooms:
        return rooms[-1]
    invitation = {"preset": "trusted_private_chat", "is_direct": True, "invite": [user]}
    created = yield mark_as_preparing(_request("POST", "v3/createRoom", invitation, credentials))
    room_id = read_id(json_object(created).get("room_id"))
    if not room_id:
        return created
    yield mark_as_preparing(_request("PUT", path, {**direct, user: [room_id]}, credentials))
    return room_id


def _request(method: str, path: str, content: object | None, credentials: Credentials) -> HttpRequest:
    url = join_service_url(credentials.homeserver, f"_matrix/client/{path}")
    if content is None:
        return HttpRequest(method=method, url=url, headers=build_bearer_header(credentials.access_token))
    return json_request(method, url, content, headers=build_bearer_header(credentials.access_token))


MXC = re.compile(r"mxc://([^/?#\s]{1,255})/([A-Za-z0-9_-]{1,255})")
"""The address of a file: the server, and the file's id there."""


def download(media: MediaRef, credentials: Credentials) -> Downloading:
    """Download with ``GET /_matrix/client/v1/media/download/{serverName}/{mediaId}``, which needs the token since
    v1.11."""
    yield from ()
    found = MXC.fullmatch(media.id)
    if found is None:
        raise Unsendable("A file of Matrix has an address that begins with mxc://.")
    path = f"_matrix/client/v1/media/download/{encode_path_segment(found[1])}/{encode_path_segment(found[2])}"
    url, headers = join_service_url(credentials.homeserver, path), build_bearer_header(credentials.access_token)
    return FileSource(request=HttpRequest(method="GET", url=url, headers=headers, delivers=False))
