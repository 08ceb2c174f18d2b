"""An adapter's conversation with a platform, as values: requests out, responses in.

An adapter never opens a connection. It is a generator that yields ``HttpRequest`` values, is sent the ``HttpResponse``
to each, and returns a ``Receipt`` or a ``DeliveryError``; most have one request, some upload a file or open a chat
first. Its driver (``perform``) resolves names, checks addresses, does not follow redirects and keeps time, so that
these rules exist once. *See* ``httpx.Auth.auth_flow``, which has the same shape.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import quote

from hermes_worker.channels.errors import DeliveryError, SendErrorKind, classify_status
from hermes_worker.core.chat_buttons import ChatButton
from hermes_worker.core.errors import HermesError
from hermes_worker.core.json_values import parse_object, read_id
from hermes_worker.core.media_kinds import MediaKind, guess_type_of_name
from hermes_worker.net.http import HttpRequest, HttpResponse, NoAnswer
from hermes_worker.net.urls import PrivateUrl, UnsafeUrl, parse_http_url

USER_AGENT = "hermes-worker"
REASON_CHARS_MAX = 300
_JSON_BYTES_MAX = 4_000_000
_ALLOWS_PRIVATE = "HERMES_DELIVERY_ALLOW_PRIVATE_URLS=true where the workers that deliver start"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A file to send, already read."""

    name: str
    kind: MediaKind
    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One message of a delivery: a text, or a file with the text as its caption. The text fits the platform's limit."""

    text: str = field(repr=False)
    idempotency_key: str
    """The key: the same for every attempt of this part, and different for every other part."""
    title: str = ""
    """For platforms that have a place for one: the subject of a mail, the heading of a notification."""
    may_be_duplicate: bool = False
    """Whether an earlier attempt may have arrived. The key tells the platform; a request that cannot carry one says it
    in words."""
    is_plain: bool = False
    """Whether to send it without formatting: the platform did not understand the formatting the first time."""
    attachment: Attachment | None = None
    buttons: tuple[ChatButton, ...] = ()
    """Buttons below the message, where the platform has them."""
    reply_to: str = ""
    """The platform's id of the message that it answers; not every platform has replies."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Facts about the run, for programs that receive the message; people are not shown them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The platform took the message."""

    message_id: str | None = None
    """The platform's id of it; ``None`` where there is none."""


Outcome = Receipt | DeliveryError
Exchange = Generator[HttpRequest, HttpResponse, Outcome]
T = TypeVar("T")


class Unsendable(HermesError):
    """A setting or a target cannot be used in a request; nothing was sent."""


def perform(
    exchange: Generator[HttpRequest, HttpResponse, T | DeliveryError], send: Callable[[HttpRequest], HttpResponse]
) -> T | DeliveryError:
    """Drive an exchange to its end: a delivery, a poll, or another question to a platform.

    ``send`` makes one request without following redirects and raises ``NoAnswer`` or ``UnsafeUrl``; these, and
    ``Unsendable`` from the adapter, become the failure they mean.
    """
    request: HttpRequest | None = None
    try:
        request = next(exchange)
        while True:
            request = exchange.send(send(request))
    except StopIteration as end:
        return _judge_ambiguity(end.value, request)
    except NoAnswer as error:
        kind = SendErrorKind.AMBIGUOUS if error.was_sent else SendErrorKind.TRANSIENT
        return _judge_ambiguity(DeliveryError(kind=kind, message=flatten_text(error.reason)), request)
    except (Unsendable, UnsafeUrl) as error:
        allows = f" {_ALLOWS_PRIVATE} allows it." if isinstance(error, PrivateUrl) else ""
        return DeliveryError(kind=SendErrorKind.REFUSED, message=f"{flatten_text(str(error))}{allows}")


def _judge_ambiguity(outcome: T | DeliveryError, last: HttpRequest | None) -> T | DeliveryError:
    """Make an ambiguous failure transient when the last request only prepares: then no message can have arrived."""
    if not isinstance(outcome, DeliveryError) or outcome.kind is not SendErrorKind.AMBIGUOUS:
        return outcome
    if last is None or last.delivers:
        return outcome
    return replace(outcome, kind=SendErrorKind.TRANSIENT)


# --- building --------------------------------------------------------------------------------------------------------


def json_request(method: str, url: str, payload: object, *, headers: Mapping[str, str] | None = None) -> HttpRequest:
    """Build a request with a JSON body."""
    body = json.dumps(payload, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return HttpRequest(
        method=method,
        url=url,
        headers={"Content-Type": "application/json", "User-Agent": USER_AGENT} | dict(headers or {}),
        body=body.encode("utf-8", "replace"),
    )


def build_form_request(url: str, fields: Mapping[str, str], *, headers: Mapping[str, str] | None = None) -> HttpRequest:
    """Build a POST of form fields."""
    body = "&".join(f"{name}={quote(value, safe='', errors='replace')}" for name, value in fields.items())
    own = {"Content-Type": "application/x-www-form-urlencoded", "User-Agent": USER_AGENT}
    return HttpRequest(method="POST", url=url, headers=own | dict(headers or {}), body=body.encode())


def build_multipart_request(
    url: str,
    fields: Mapping[str, str],
    file_field: str,
    attachment: Attachment,
    *,
    headers: Mapping[str, str] | None = None,
) -> HttpRequest:
    """Build a POST of form fields and one file (RFC 7578). The boundary is computed from the content, so a repetition
    has the same bytes."""
    boundary = f"hermes-{hashlib.sha256(attachment.content).hexdigest()[:32]}"
    chunks = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode("utf-8", "replace")
        for name, value in fields.items()
    ]
    disposition = f'form-data; name="{file_field}"; filename="{encode_filename(attachment.name)}"'
    head = (
        f"--{boundary}\r\nContent-Disposition: {disposition}\r\nContent-Type: "
        f"{guess_type_of_name(attachment.name)}\r\n\r\n"
    )
    chunks += [head.encode("utf-8", "replace"), attachment.content, f"\r\n--{boundary}--\r\n".encode()]
    own = {"Content-Type": f"multipart/form-data; boundary={boundary}", "User-Agent": USER_AGENT}
    return HttpRequest(method="POST", url=url, headers=own | dict(headers or {}), body=b"".join(chunks))


def mark_as_preparing(request: HttpRequest) -> HttpRequest:
    """Mark a request as one that does not deliver by itself."""
    return replace(request, delivers=False)


def encode_filename(name: str) -> str:
    """Encode a file's name for a header: quotes and line ends are percent-encoded (RFC 7578 §2)."""
    return re.sub(r"[\x00-\x1f\x7f\"\\/]", lambda match: f"%{ord(match[0]):02X}", name)[:200] or "file"


def build_bearer_header(token: str) -> dict[str, str]:
    """Build the header of a bearer token. Raises ``Unsendable`` for one that could add headers."""
    return {"Authorization": f"Bearer {require_header_value(token)}"}


def require_header_value(value: str) -> str:
    """Return ``value`` if it may stand in a header. Raises ``Unsendable``."""
    if not value.isascii() or not value.isprintable():
        raise Unsendable("A credential contains characters that cannot be sent in a header; check the setting.")
    return value


def join_service_url(base: str, path: str) -> str:
    """Join ``path`` to the configured address of a service. Raises ``Unsendable`` for an address that is no URL;
    whether it may be connected to is decided later."""
    try:
        parse_http_url(base)
    except UnsafeUrl as error:
        raise Unsendable(f"The address of the service cannot be used: {error}") from None
    return f"{base.rstrip('/')}/{path.lstrip('/')}"


def encode_path_segment(value: str) -> str:
    """Encode ``value`` as one segment of a path, so that it cannot leave its place. Raises ``Unsendable`` for a step
    up."""
    if value in ("", ".", ".."):
        raise Unsendable("An id of the target is empty or a step in a path; check the target.")
    return quote(value, safe="", errors="replace")


def shorten_key(key: str, length: int) -> str:
    """Shorten an idempotency key for platforms that limit its length: hexadecimal, at most 64 characters."""
    return hashlib.sha256(key.encode()).hexdigest()[:length]


# --- reading ---------------------------------------------------------------------------------------------------------


def json_object(response: HttpResponse) -> Mapping[str, Any]:
    """Parse the body as a JSON object; empty for anything else, so that a proxy's HTML page is not an exception."""
    return {} if len(response.body) > _JSON_BYTES_MAX else parse_object(response.body)


def is_success(response: HttpResponse) -> bool:
    return 200 <= response.status < 300


def failure(
    response: HttpResponse,
    said: str = "",
    *,
    kind: SendErrorKind | None = None,
    retry_after_s: float | None = None,
    is_thread_missing: bool = False,
) -> DeliveryError:
    """Build the failure that a response stands for. ``said`` is the platform's own explanation; without ``kind`` the
    status decides the kind."""
    message = f"HTTP {response.status}" + (f": {flatten_text(said)}" if said else "")
    if 300 <= response.status < 400:
        kind, message = SendErrorKind.REFUSED, f"{message}: redirects are not followed; write the final address"
    return DeliveryError(
        kind=kind or classify_status(response.status),
        message=message,
        status=response.status,
        retry_after_s=retry_after_s if retry_after_s is not None else read_retry_after(response),
        is_thread_missing=is_thread_missing,
    )


def build_failure_of_code(
    response: HttpResponse, code: object, said: str, kinds: Mapping[int, SendErrorKind]
) -> DeliveryError:
    """Build the failure of a platform that answers with error numbers, often under status 200."""
    kind = kinds.get(code) if isinstance(code, int) else None
    if kind is None and is_success(response):
        kind = SendErrorKind.UNKNOWN
    return failure(response, " ".join(word for word in (read_id(code), said) if word), kind=kind)


def read_retry_after(response: HttpResponse) -> float | None:
    """Read the seconds that the server asks us to wait, from a number or a date; ``None`` without the header. A date is
    read against the server's own clock."""
    value = response.headers.get("retry-after", "").strip()
    if re.fullmatch(r"[0-9]{1,9}(?:\.[0-9]{1,6})?", value):
        return float(value)
    try:
        until = parsedate_to_datetime(value)
        return max(0.0, (until - parsedate_to_datetime(response.headers.get("date", ""))).total_seconds())
    except (ValueError, TypeError):
        return None


def flatten_text(text: str) -> str:
    """Make foreign text fit for a message of ours: printable, on one line, short."""
    printable = "".join(character if character.isprintable() else " " for character in text[: REASON_CHARS_MAX * 4])
    words = " ".join(printable.split())
    return words if len(words) <= REASON_CHARS_MAX else words[: REASON_CHARS_MAX - 1] + "…"
