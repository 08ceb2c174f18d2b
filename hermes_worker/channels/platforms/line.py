"""LINE Messaging API (developers.line.biz/en/reference/messaging-api)."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace

from hermes_worker.channels.errors import SendErrorKind
from hermes_worker.channels.exchange import (
    Exchange,
    Outcome,
    Part,
    Receipt,
    build_bearer_header,
    encode_path_segment,
    failure,
    is_success,
    join_service_url,
    json_object,
    json_request,
    shorten_key,
)
from hermes_worker.channels.file_addresses import Downloading, FileSource
from hermes_worker.channels.targets import Target
from hermes_worker.core.chat_buttons import fit_buttons
from hermes_worker.core.inbound import MediaRef
from hermes_worker.core.json_values import read_id, read_list, read_mapping
from hermes_worker.net.http import HttpRequest, HttpResponse

_QUICK_REPLIES_MAX, _LABEL_CHARS_MAX = 13, 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    token: str = field(repr=False)
    base_url: str = "https://api.line.me"
    data_url: str = "https://api-data.line.me"
    """The address of the server that has the files."""


def build(part: Part, target: Target, credentials: Credentials) -> HttpRequest:
    """Build the request. Files have to be on a public server and are left out. Raises ``Unsendable`` for a setting that
    cannot be used."""
    message: dict[str, object] = {"type": "text", "text": part.text}
    if part.reply_to:
        message["quoteToken"] = part.reply_to
    if replies := _build_quick_replies(part):
        message["quickReply"] = {"items": replies}
    payload = {"to": target.chat, "messages": [message]}
    key = str(uuid.UUID(hex=shorten_key(part.idempotency_key, 32)))
    headers = build_bearer_header(credentials.token) | {"X-Line-Retry-Key": key}
    return json_request("POST", join_service_url(credentials.base_url, "v2/bot/message/push"), payload, headers=headers)


def classify(response: HttpResponse) -> Outcome:
    answer = json_object(response)
    sent = read_list(answer.get("sentMessages"))
    was_accepted_before = response.status == 409 and "x-line-accepted-request-id" in response.headers
    if is_success(response) or was_accepted_before:
        return Receipt(message_id=read_id(read_mapping(sent[0]).get("id")) or None if sent else None)
    said = read_id(answer.get("message"))
    # A person who blocked the account, or an id that never was one: LINE says no more than this.
    kind = SendErrorKind.NOT_FOUND if response.status == 400 and "'to'" in said else None
    return failure(response, said, kind=kind)


def _build_quick_replies(part: Part) -> list[dict[str, object]]:
    """Build quick replies. They stand only below the newest message, so they disappear by themselves. A pressed one is
    shown as the person's words."""
    return [
        {
            "type": "action",
            "action": {"type": "postback", "label": one.label, "data": one.value, "displayText": one.label},
        }
        for one in fit_buttons(part.buttons, chars_max=_LABEL_CHARS_MAX, count_max=_QUICK_REPLIES_MAX)
    ]


def send(part: Part, target: Target, credentials: Credentials) -> Exchange:
    """Send a part. A message that cannot be quoted any more is answered without the quotation."""
    response = yield build(part, target, credentials)
    if response.status == 400 and part.reply_to and b"quote" in response.body.lower():
        response = yield build(replace(part, reply_to=""), target, credentials)
    return classify(response)


def download(media: MediaRef, credentials: Credentials) -> Downloading:
    """Download the content of a message ("Get content"). LINE answers 202 while it still prepares a video or a
    sound."""
    yield from ()
    url = join_service_url(credentials.data_url, f"v2/bot/message/{encode_path_segment(media.id)}/content")
    return FileSource(
        request=HttpRequest(method="GET", url=url, headers=build_bearer_header(credentials.token), delivers=False)
    )
