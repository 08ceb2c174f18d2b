"""Mattermost REST API v4 (developers.mattermost.com/api-documentation)."""

from __future__ import annotations

from dataclasses import dataclass, field

from hermes_worker.channels.errors import SendErrorKind
from hermes_worker.channels.exchange import (
    Exchange,
    Outcome,
    Part,
    Receipt,
    build_bearer_header,
    build_multipart_request,
    encode_path_segment,
    failure,
    is_success,
    join_service_url,
    json_object,
    json_request,
    mark_as_preparing,
)
from hermes_worker.channels.file_addresses import Downloading, FileSource
from hermes_worker.channels.signature import sign_button
from hermes_worker.channels.targets import Target
from hermes_worker.core.chat_buttons import fit_buttons
from hermes_worker.core.inbound import MediaRef
from hermes_worker.core.json_values import read_id, read_list, read_mapping
from hermes_worker.net.http import HttpRequest, HttpResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    base_url: str
    token: str = field(repr=False)
    actions_url: str = ""
    """Where the server brings presses of buttons: ``/inbound/mattermost`` of the API, at an address that the server
    reaches."""
    actions_secret: str = field(default="", repr=False)
    """The key that signs buttons. Without both settings there are no buttons."""


def build(part: Part, target: Target, credentials: Credentials, *, file_ids: tuple[str, ...] = ()) -> HttpRequest:
    """Build the request; Mattermost renders Markdown itself. Raises ``Unsendable`` for a setting that cannot be
    used."""
    payload: dict[str, object] = {"channel_id": target.chat, "message": part.text}
    if target.thread is not None:
        payload["root_id"] = target.thread
    if file_ids:
        payload["file_ids"] = list(file_ids)
    if actions := _build_actions(part, target, credentials):
        payload["props"] = {"attachments": [{"fallback": "", "actions": actions}]}
    return json_request(
        "POST", _build_url("posts", credentials), payload, headers=build_bearer_header(credentials.token)
    )


def classify(response: HttpResponse) -> Outcome:
    answer = json_object(response)
    if is_success(response):
        return Receipt(message_id=read_id(answer.get("id")) or None)
    identifier = read_id(answer.get("id"))
    is_thread_missing = "root_id" in identifier or "parent_id" in identifier
    kind = SendErrorKind.NOT_FOUND if is_thread_missing else None
    if "too_long" in identifier or "msg_too_long" in identifier:
        kind = SendErrorKind.TOO_LONG
    return failure(response, read_id(answer.get("message")), kind=kind, is_thread_missing=is_thread_missing)


def send(part: Part, target: Target, credentials: Credentials) -> Exchange:
    """Send a part. A file is uploaded first and then named in the post."""
    if part.attachment is None:
        return classify((yield build(part, target, credentials)))
    url, fields = _build_url("files", credentials), {"channel_id": target.chat}
    upload = build_multipart_request(
        url, fields, "files", part.attachment, headers=build_bearer_header(credentials.token)
    )
    uploaded = yield mark_as_preparing(upload)
    infos = read_list(json_object(uploaded).get("file_infos"))
    file_id = read_id(read_mapping(infos[0]).get("id")) if infos else ""
    if not file_id:
        return classify(uploaded) if not is_success(uploaded) else failure(uploaded, "the upload has no id")
    return classify((yield build(part, target, credentials, file_ids=(file_id,))))


def _build_actions(part: Part, target: Target, credentials: Credentials) -> list[dict[str, object]]:
    """Build interactive message buttons (developers.mattermost.com/integrate/plugins/interactive-messages). The server
    keeps ``integration`` to itself and brings the context with a press: it names the button's chat, because a press
    alone does not fully, and carries the proof that we made the button."""
    if not (credentials.actions_url and credentials.actions_secret):
        return []
    url = join_service_url(credentials.actions_url, "").rstrip("/")
    thread = target.thread or ""
    return [
        {
            "id": f"answer{number}",
            "type": "button",
            "name": button.label,
            "integration": {
                "url": url,
                "context": {
                    "value": button.value,
                    "thread": thread,
                    "proof": sign_button(credentials.actions_secret, target.chat, thread, button.value),
                },
            },
        }
        for number, button in enumerate(fit_buttons(part.buttons, chars_max=60, count_max=20), 1)
    ]


def edit(part: Part, message_id: str, target: Target, credentials: Credentials) -> Exchange:
    """Patch a post (api.mattermost.com)."""
    patch = {"message": part.text, "props": {}}
    url = _build_url(f"posts/{encode_path_segment(message_id)}/patch", credentials)
    return classify((yield json_request("PUT", url, patch, headers=build_bearer_header(credentials.token))))


def show_typing(target: Target, credentials: Credentials) -> Exchange:
    """Publish a user typing event (api.mattermost.com)."""
    place = {"channel_id": target.chat, "parent_id": target.thread or ""}
    url = _build_url("users/me/typing", credentials)
    return classify((yield json_request("POST", url, place, headers=build_bearer_header(credentials.token))))


def _build_url(path: str, credentials: Credentials) -> str:
    return join_service_url(credentials.base_url, f"api/v4/{path}")


def download(media: MediaRef, credentials: Credentials) -> Downloading:
    """Get a file (api.mattermost.com)."""
    yield from ()
    url = _build_url(f"files/{encode_path_segment(media.id)}", credentials)
    return FileSource(
        request=HttpRequest(method="GET", url=url, headers=build_bearer_header(credentials.token), delivers=False)
    )
