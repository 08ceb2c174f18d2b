"""Mattermost REST API v4 (developers.mattermost.com/api-documentation)."""

from __future__ import annotations

from dataclasses import dataclass, field

from hermes_worker.channels.errors import SendErrorKind
from hermes_worker.channels.exchange import (
    Exchange,
    Outcome,
    Part,
    Receipt,
    bearer,
    failure,
    is_success,
    json_object,
    json_request,
    multipart_request,
    path_segment,
    preparing,
    service_url,
)
from hermes_worker.channels.file_addresses import Downloading, FileSource
from hermes_worker.channels.targets import Target
from hermes_worker.core.inbound import MediaRef
from hermes_worker.core.json_values import id_of, list_of, mapping_of
from hermes_worker.net.http import HttpRequest, HttpResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    base_url: str
    token: str = field(repr=False)


def build(part: Part, target: Target, credentials: Credentials, *, file_ids: tuple[str, ...] = ()) -> HttpRequest:
    """Mattermost renders Markdown itself. Raises ``Unsendable`` for a setting that cannot be used."""
    payload: dict[str, object] = {"channel_id": target.chat, "message": part.text}
    if target.thread is not None:
        payload["root_id"] = target.thread
    if file_ids:
        payload["file_ids"] = list(file_ids)
    return json_request("POST", _url("posts", credentials), payload, headers=bearer(credentials.token))


def classify(response: HttpResponse) -> Outcome:
    answer = json_object(response)
    if is_success(response):
        return Receipt(message_id=id_of(answer.get("id")) or None)
    identifier = id_of(answer.get("id"))
    is_thread_missing = "root_id" in identifier or "parent_id" in identifier
    kind = SendErrorKind.NOT_FOUND if is_thread_missing else None
    if "too_long" in identifier or "msg_too_long" in identifier:
        kind = SendErrorKind.TOO_LONG
    return failure(response, id_of(answer.get("message")), kind=kind, is_thread_missing=is_thread_missing)


def send(part: Part, target: Target, credentials: Credentials) -> Exchange:
    """A file is uploaded first and then named in the post."""
    if part.attachment is None:
        return classify((yield build(part, target, credentials)))
    url, fields = _url("files", credentials), {"channel_id": target.chat}
    upload = multipart_request(url, fields, "files", part.attachment, headers=bearer(credentials.token))
    uploaded = yield preparing(upload)
    infos = list_of(json_object(uploaded).get("file_infos"))
    file_id = id_of(mapping_of(infos[0]).get("id")) if infos else ""
    if not file_id:
        return classify(uploaded) if not is_success(uploaded) else failure(uploaded, "the upload has no id")
    return classify((yield build(part, target, credentials, file_ids=(file_id,))))


def show_typing(target: Target, credentials: Credentials) -> Exchange:
    """Publish a user typing event (api.mattermost.com)."""
    place = {"channel_id": target.chat, "parent_id": target.thread or ""}
    url = _url("users/me/typing", credentials)
    return classify((yield json_request("POST", url, place, headers=bearer(credentials.token))))


def _url(path: str, credentials: Credentials) -> str:
    return service_url(credentials.base_url, f"api/v4/{path}")


def download(media: MediaRef, credentials: Credentials) -> Downloading:
    """Get a file (api.mattermost.com)."""
    yield from ()
    url = _url(f"files/{path_segment(media.id)}", credentials)
    return FileSource(request=HttpRequest(method="GET", url=url, headers=bearer(credentials.token), delivers=False))
