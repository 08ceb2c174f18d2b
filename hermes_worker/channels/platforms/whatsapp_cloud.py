"""WhatsApp Cloud API (developers.facebook.com/docs/whatsapp/cloud-api)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hermes_worker.channels.errors import DeliveryError, SendErrorKind
from hermes_worker.channels.exchange import (
    Exchange,
    Outcome,
    Part,
    Receipt,
    build_bearer_header,
    build_failure_of_code,
    build_multipart_request,
    encode_path_segment,
    failure,
    is_success,
    join_service_url,
    json_object,
    json_request,
    mark_as_preparing,
)
from hermes_worker.channels.file_addresses import Downloading, build_source
from hermes_worker.channels.targets import Target
from hermes_worker.core.chat_buttons import fit_buttons
from hermes_worker.core.inbound import MediaRef
from hermes_worker.core.json_values import read_id, read_list, read_mapping
from hermes_worker.core.media_kinds import MediaKind, guess_type_of_name
from hermes_worker.net.http import HttpRequest, HttpResponse

CAPTION_CHARS_MAX = 1024
_FILES = ("lookaside.fbsbx.com",)
_BUTTONS_MAX, _BUTTON_CHARS_MAX, _BUTTON_TEXT_CHARS_MAX = 3, 20, 1024
_ROWS_MAX, _ROW_CHARS_MAX = 10, 24
"""Most rows of a list, and longest text of one, in characters."""

_KINDS: Mapping[int, SendErrorKind] = {
    0: SendErrorKind.AUTH,
    3: SendErrorKind.AUTH,
    4: SendErrorKind.RATE_LIMITED,
    10: SendErrorKind.AUTH,
    100: SendErrorKind.BAD_FORMAT,
    190: SendErrorKind.AUTH,
    368: SendErrorKind.AUTH,
    80007: SendErrorKind.RATE_LIMITED,
    130429: SendErrorKind.RATE_LIMITED,
    131000: SendErrorKind.TRANSIENT,
    131005: SendErrorKind.AUTH,
    131016: SendErrorKind.TRANSIENT,
    131026: SendErrorKind.NOT_FOUND,
    131030: SendErrorKind.FORBIDDEN,
    131031: SendErrorKind.AUTH,
    # More than 24 hours since the person last wrote. They may write again, so the chat is not dead.
    131047: SendErrorKind.UNKNOWN,
    131048: SendErrorKind.RATE_LIMITED,
    131056: SendErrorKind.RATE_LIMITED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    phone_number_id: str
    token: str = field(repr=False)
    base_url: str = "https://graph.facebook.com/v23.0"


def build(part: Part, target: Target, credentials: Credentials) -> HttpRequest:
    """Build the request for a text. Raises ``Unsendable`` for a setting that cannot be used."""
    content: dict[str, object] = {"type": "text", "text": {"body": part.text, "preview_url": False}}
    if part.buttons and (choices := _build_choices(part)):
        content = {"type": "interactive", "interactive": {"body": {"text": part.text}, **choices}}
    if part.reply_to:
        content["context"] = {"message_id": part.reply_to}
    return _build_message(content, target, credentials)


def _build_choices(part: Part) -> dict[str, object]:
    """Build reply buttons, or a list where the buttons are too many or the text is too long for them; empty where a
    list has no room either."""
    buttons = fit_buttons(part.buttons, chars_max=_BUTTON_CHARS_MAX, count_max=_BUTTONS_MAX)
    if buttons and len(part.text) <= _BUTTON_TEXT_CHARS_MAX:
        replies = [{"type": "reply", "reply": {"id": one.value, "title": one.label}} for one in buttons]
        return {"type": "button", "action": {"buttons": replies}}
    rows = [
        {"id": one.value, "title": one.label}
        for one in fit_buttons(part.buttons, chars_max=_ROW_CHARS_MAX, count_max=_ROWS_MAX)
    ]
    return {"type": "list", "action": {"button": "Answer", "sections": [{"rows": rows}]}} if rows else {}


def classify(response: HttpResponse) -> Outcome:
    answer = json_object(response)
    messages = read_list(answer.get("messages"))
    if is_success(response) and messages:
        return Receipt(message_id=read_id(read_mapping(messages[0]).get("id")) or None)
    error = read_mapping(answer.get("error"))
    details = read_id(read_mapping(error.get("error_data")).get("details")) or read_id(error.get("message"))
    return build_failure_of_code(response, error.get("code"), details, _KINDS)


def send(part: Part, target: Target, credentials: Credentials) -> Exchange:
    """Send a part. A file is uploaded first and sent by its id."""
    attachment = part.attachment
    if attachment is None:
        return classify((yield build(part, target, credentials)))
    fields = {"messaging_product": "whatsapp", "type": guess_type_of_name(attachment.name)}
    url = _build_url("media", credentials)
    uploaded = yield mark_as_preparing(
        build_multipart_request(url, fields, "file", attachment, headers=build_bearer_header(credentials.token))
    )
    media_id = read_id(json_object(uploaded).get("id"))
    if not media_id:
        return classify(uploaded)
    kind = {MediaKind.VOICE: "audio"}.get(attachment.kind, attachment.kind.value)
    file: dict[str, object] = {"id": media_id}
    if part.text and kind != "audio":
        file["caption"] = part.text[:CAPTION_CHARS_MAX]
    if kind == "document":
        file["filename"] = attachment.name
    return classify((yield _build_message({"type": kind, kind: file}, target, credentials)))


def _build_message(content: dict[str, object], target: Target, credentials: Credentials) -> HttpRequest:
    head: dict[str, object] = {
        "messaging_product": "whatsapp",
        "recipient_type": "individual",
        "to": target.chat.lstrip("+"),
    }
    return json_request(
        "POST", _build_url("messages", credentials), head | content, headers=build_bearer_header(credentials.token)
    )


def _build_url(method: str, credentials: Credentials) -> str:
    return join_service_url(credentials.base_url, f"{encode_path_segment(credentials.phone_number_id)}/{method}")


def download(media: MediaRef, credentials: Credentials) -> Downloading:
    """Ask for a file's address, which is valid for five minutes and needs the same token
    (cloud-api/reference/media)."""
    headers = build_bearer_header(credentials.token)
    url = join_service_url(credentials.base_url, encode_path_segment(media.id))
    response = yield HttpRequest(method="GET", url=url, headers=headers, delivers=False)
    place = read_id(json_object(response).get("url"))
    if not is_success(response) or not place:
        outcome = classify(response)
        return outcome if isinstance(outcome, DeliveryError) else failure(response, "the file has no address")
    return build_source(place, own=credentials.base_url, hosts=_FILES, headers=headers)
