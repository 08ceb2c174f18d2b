"""Signal, through the HTTP interface of a signal-cli daemon (signal-cli-jsonrpc(5))."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

from hermes_worker.channels.errors import SendErrorKind, classify_text
from hermes_worker.channels.exchange import (
    Attachment,
    Exchange,
    Outcome,
    Part,
    Receipt,
    failure,
    is_success,
    json_object,
    json_request,
    preparing,
    service_url,
)
from hermes_worker.channels.file_addresses import Downloading, FileSource
from hermes_worker.channels.targets import Target
from hermes_worker.core.inbound import MediaRef
from hermes_worker.core.json_values import id_of, list_of, mapping_of, object_in
from hermes_worker.core.media_kinds import type_of_name
from hermes_worker.net.http import HttpRequest, HttpResponse

_RESULT_KINDS: Mapping[str, SendErrorKind] = {
    "NETWORK_FAILURE": SendErrorKind.TRANSIENT,
    "UNREGISTERED_FAILURE": SendErrorKind.NOT_FOUND,
    "IDENTITY_FAILURE": SendErrorKind.FORBIDDEN,
    "RATE_LIMIT_FAILURE": SendErrorKind.RATE_LIMITED,
    "PROOF_REQUIRED_FAILURE": SendErrorKind.RATE_LIMITED,
}
_ERROR_KINDS: Mapping[int, SendErrorKind] = {
    -3: SendErrorKind.TRANSIENT,
    -4: SendErrorKind.FORBIDDEN,
    -5: SendErrorKind.RATE_LIMITED,
    -32602: SendErrorKind.BAD_FORMAT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    base_url: str
    """The address of the daemon, such as ``http://signal:8080``."""
    account: str
    """The phone number that messages come from."""


def build(part: Part, target: Target, credentials: Credentials) -> HttpRequest:
    """Build the request. Raises ``Unsendable`` for a setting that cannot be used."""
    params: dict[str, object] = {"account": credentials.account, "message": part.text} | _chat_of(target)
    params |= _quote(part.reply_to)
    if part.attachment is not None:
        params["attachments"] = [_data_uri(part.attachment)]
    call = {"jsonrpc": "2.0", "method": "send", "id": part.idempotency_key, "params": params}
    return json_request("POST", service_url(credentials.base_url, "api/v1/rpc"), call)


def quoted_as(stamp: str, author: str) -> str:
    """Write the reference to a quoted message: signal-cli also needs its author."""
    return f"{stamp}@{author}"


def _quote(message: str) -> dict[str, object]:
    stamp, _, author = message.partition("@")
    is_one = stamp.isascii() and stamp.isdigit() and len(stamp) <= 15 and bool(author)
    return {"quoteTimestamp": int(stamp), "quoteAuthor": author} if is_one else {}


def classify(response: HttpResponse) -> Outcome:
    answer = json_object(response)
    error = mapping_of(answer.get("error"))
    if error or not is_success(response):
        code, said = error.get("code"), id_of(error.get("message"))
        kind = _ERROR_KINDS.get(code) if isinstance(code, int) else None
        if kind is None and is_success(response):
            kind = classify_text(said)
        return failure(response, said, kind=kind)
    result = mapping_of(answer.get("result"))
    outcomes = [id_of(mapping_of(item).get("type")) for item in list_of(result.get("results"))]
    # A group message that reached at least one person was delivered; the rest will see it when they can.
    if result and (not outcomes or "SUCCESS" in outcomes):
        return Receipt(message_id=id_of(result.get("timestamp")) or None)
    said = outcomes[0] if outcomes else "no answer of signal-cli's"
    return failure(response, said, kind=_RESULT_KINDS.get(said, SendErrorKind.UNKNOWN))


def send(part: Part, target: Target, credentials: Credentials) -> Exchange:
    return classify((yield build(part, target, credentials)))


def show_typing(target: Target, credentials: Credentials) -> Exchange:
    """Send ``sendTyping`` of signal-cli: it is shown for some fifteen seconds."""
    params = {"account": credentials.account} | _chat_of(target)
    call = {"jsonrpc": "2.0", "method": "sendTyping", "id": "typing", "params": params}
    return classify((yield json_request("POST", service_url(credentials.base_url, "api/v1/rpc"), call)))


def _chat_of(target: Target) -> dict[str, object]:
    if target.chat.startswith("group:"):
        return {"groupId": target.chat.removeprefix("group:")}
    return {"recipient": [target.chat]}


def _data_uri(attachment: Attachment) -> str:
    name, content = quote(attachment.name, safe="", errors="replace"), base64.b64encode(attachment.content).decode()
    return f"data:{type_of_name(attachment.name)};filename={name};base64,{content}"


def download(media: MediaRef, credentials: Credentials) -> Downloading:
    """Download with ``getAttachment`` of signal-cli, which gives a file as base64 in its JSON."""
    yield from ()
    params = {"account": credentials.account, "id": media.id}
    call = {"jsonrpc": "2.0", "method": "getAttachment", "id": "attachment", "params": params}
    request = preparing(json_request("POST", service_url(credentials.base_url, "api/v1/rpc"), call))
    return FileSource(request=request, unpacked=_attachment_in)


def _attachment_in(body: bytes) -> bytes | None:
    """Find the file in the answer: versions of signal-cli differ in whether the data has a name."""
    result = object_in(body).get("result")
    data = result if isinstance(result, str) else mapping_of(result).get("data")
    try:
        return base64.b64decode(data, validate=True) if isinstance(data, str) else None
    except ValueError:
        return None
