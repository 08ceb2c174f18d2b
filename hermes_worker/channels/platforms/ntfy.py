"""ntfy (docs.ntfy.sh/publish)."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from email.header import Header

from hermes_worker.channels.errors import SendErrorKind
from hermes_worker.channels.exchange import (
    USER_AGENT,
    Attachment,
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
)
from hermes_worker.channels.file_addresses import Downloading, build_source
from hermes_worker.channels.targets import Target
from hermes_worker.core.inbound import MediaRef
from hermes_worker.core.json_values import read_id
from hermes_worker.net.http import HttpRequest, HttpResponse

TITLE_CHARS_MAX = 200
OWN_TAG = "hermes-worker"
"""The tag by which a listener of a topic recognises what we published there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """A token, or a user name and a password, or neither for a public topic."""

    base_url: str = "https://ntfy.sh"
    token: str | None = field(default=None, repr=False)
    username: str | None = None
    password: str | None = field(default=None, repr=False)


def build(part: Part, target: Target, credentials: Credentials) -> HttpRequest:
    """Build the request. Raises ``Unsendable`` for a setting that cannot be used."""
    if part.attachment is not None:
        return _build_file(part, part.attachment, target, credentials)
    payload: dict[str, object] = {
        "topic": target.chat,
        "message": part.text,
        "markdown": not part.is_plain,
        "tags": [OWN_TAG],
    }
    if part.title:
        payload["title"] = " ".join(part.title.split())[:TITLE_CHARS_MAX]
    # Published as JSON to the root: a header could not carry a title that is not ASCII.
    return json_request(
        "POST", join_service_url(credentials.base_url, "/"), payload, headers=_build_headers(credentials)
    )


def classify(response: HttpResponse) -> Outcome:
    answer = json_object(response)
    if is_success(response):
        return Receipt(message_id=read_id(answer.get("id")) or None)
    # Without credentials every topic is open, so a 403 is about ours and not about a chat that is closed for good.
    kind = SendErrorKind.AUTH if response.status in (401, 403) else None
    return failure(response, read_id(answer.get("error")), kind=kind)


def send(part: Part, target: Target, credentials: Credentials) -> Exchange:
    return classify((yield build(part, target, credentials)))


def _build_file(part: Part, attachment: Attachment, target: Target, credentials: Credentials) -> HttpRequest:
    headers = {"User-Agent": USER_AGENT, "Filename": _encode_header(attachment.name), "Tags": OWN_TAG} | _build_headers(
        credentials
    )
    if part.text:
        headers["Message"] = _encode_header(" ".join(part.text.split()))
    url = join_service_url(credentials.base_url, encode_path_segment(target.chat))
    return HttpRequest(method="PUT", url=url, headers=headers, body=attachment.content)


def _build_headers(credentials: Credentials) -> dict[str, str]:
    return build_authorization(credentials.token, credentials.username, credentials.password)


def build_authorization(token: str | None, username: str | None, password: str | None) -> dict[str, str]:
    """Build the header from the credentials that are set; none for a public topic. Raises ``Unsendable``."""
    if token:
        return build_bearer_header(token)
    if username and password:
        pair = base64.b64encode(f"{username}:{password}".encode()).decode()
        return {"Authorization": f"Basic {pair}"}
    return {}


def _encode_header(text: str) -> str:
    """Encode a text for a header in RFC 2047, which ntfy reads, on one line."""
    printable = "".join(character for character in text if character.isprintable())
    return printable if printable.isascii() else Header(printable, "utf-8").encode(maxlinelen=0)


def download(media: MediaRef, credentials: Credentials) -> Downloading:
    """Download an attachment from the server itself ("Attachments"); one that is elsewhere belongs to its publisher and
    is refused."""
    yield from ()
    return build_source(media.id, own=credentials.base_url, headers=_build_headers(credentials))
