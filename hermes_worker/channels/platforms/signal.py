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
    join_service_url,
    json_object,
    json_request,
    mark_as_preparing,
)
from hermes_worker.channels.file_addresses import Downloading, FileSource
from hermes_worker.channels.targets import Target
from hermes_worker.core.inbound import MediaRef
from hermes_worker.core.json_values import parse_object, read_id, read_list, read_mapping
from hermes_worker.core.media_kinds import guess_type_of_name
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
    params: dict[str, object] = {"account": credentials.account, "message": part.text} | _build_chat(target)
    params |= _quote(part.reply_to)
    if part.attachment is not None:
        params["attachments"] = [_build_data_uri(part.attachment)]
    call = {"jsonrpc": "2.0", "method": "send", "id": part.idempotency_key, "params": params}
    return json_request("POST", join_service_url(credentials.base_url, "api/v1/rpc"), call)


def write_quote_reference(stamp: str, author: str) -> str:
    """Write the reference to a quoted message: signal-cli also needs its author."""
    return f"{stamp}@{author}"


def _quote(message: str) -> dict[str, object]:
    stamp, _, author = message.partition("@")
    is_one = stamp.isascii() and stamp.isdigit() and len(stamp) <= 15 and bool(author)
    return {"quoteTimestamp": int(stamp), "quoteAuthor": author} if is_one else {}


def classify(response: HttpResponse) -> Outcome:
    answer = json_object(response)
    error = read_mapping(answer.get("error"))
    if error or not is_success(response):
        code, said = error.get("code"), read_id(error.get("message"))
        kind = _ERROR_KINDS.get(code) if isinstance(code, int) else None
        if kind is None and is_success(response):
            kind = classify_text(said)
        return failure(response, said, kind=kind)
    result = read_mapping(answer.get("result"))
    outcomes = [read_id(read_mapping(item).get("type")) for item in read_list(result.get("results"))]
    # A group message that reached at least one person was delivered; the rest will see it when they can.
    if result and (not outcomes or "SUCCESS" in outcomes):
        return Receipt(message_id=read_id(result.get("timestamp")) or None)
    said = outcomes[0] if outcomes else "no answer of signal-cli's"
    return failure(response, said, kind=_RESULT_KINDS.get(said, SendErrorKind.UNKNOWN))


def send(part: Part, target: Target, credentials: Credentials) -> Exchange:
    return classify((yield build(part, target, credentials)))


def show_typing(target: Target, credentials: Credentials) -> Exchange:
    """Send ``sendTyping`` of signal-cli: it is shown for some fifteen seconds."""
    params = {"account": credentials.account} | _build_chat(target)
    call = {"jsonrpc": "2.0", "method": "sendTyping", "id": "typing", "params": params}
    return classify((yield json_request("POST", join_service_url(credentials.base_url, "api/v1/rpc"), call)))


def _build_chat(target: Target) -> dict[str, object]:
    if target.chat.startswith("group:"):
        return {"groupId": target.chat.removeprefix("group:")}
    return {"recipient": [target.chat]}


def _build_data_uri(attachment: Attachment) -> str:
    name, content = quote(attachment.name, safe="", errors="replace"), base64.b64encode(attachment.content).decode()
    return f"data:{guess_type_of_name(attachment.name)};filename={name};base64,{content}"


def download(media: MediaRef, credentials: Credentials) -> Downloading:
    """Download with ``getAttachment`` of signal-cli, which gives a file as base64 in its JSON."""
    yield from ()
    params = {"account": credentials.account, "id": media.id}
    call = {"jsonrpc": "2.0", "method": "getAttachment", "id": "attachment", "params": params}
    request = mark_as_preparing(json_request("POST", join_service_url(credentials.base_url, "api/v1/rpc"), call))
    return FileSource(request=request, unpacked=_find_attachment)


def _find_attachment(body: bytes) -> bytes | None:
    """Find the file in the answer: versions of signal-cli differ in whether the data has a name."""
    result = parse_object(body).get("result")
    data = result if isinstance(result, str) else read_mapping(result).get("data")
    try:
        return base64.b64decode(data, validate=True) if isinstance(data, str) else None
    except ValueError:
        return None
