"""One request of a tool to the service that the operator chose, and what to tell a model when it fails."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any, Final

from hermes_worker.core.errors import HermesError
from hermes_worker.core.json_values import parse_object, read_text
from hermes_worker.net.http import HttpRequest, HttpResponse, NoAnswer
from hermes_worker.net.urls import UnsafeUrl, UrlPolicy
from hermes_worker.net.wire import send

USER_AGENT: Final = "hermes-worker"
_SAID_CHARS_MAX: Final = 300


class AddonFailed(HermesError):
    """A service did not do what was asked of it. The message may be shown to a model; it holds no key."""

    def __init__(
        self, message: str, *, may_have_acted: bool = False, is_refusal: bool = False, status: int | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        """The HTTP status of the answer, where that is what failed."""
        self.may_have_acted = may_have_acted
        """The request went out and no answer came."""
        self.is_refusal = is_refusal
        """The service says that our key, its limit or its money is the reason: another one may answer."""


def request_service(
    service: str, request: HttpRequest, *, total_s: float, body_bytes_max: int, allows_private: bool = False
) -> HttpResponse:
    """The answer of a service, when it is a success. ``allows_private`` is for addresses that an operator wrote down.
    Redirects are not followed. Raises ``AddonFailed``."""
    headers = {"User-Agent": USER_AGENT, "Accept-Encoding": "identity", **request.headers}
    prepared = HttpRequest(method=request.method, url=request.url, headers=headers, body=request.body)
    try:
        answer = send(
            prepared, UrlPolicy(allows_private=allows_private), total_s=total_s, body_bytes_max=body_bytes_max + 1
        )
    except NoAnswer as error:
        raise AddonFailed(f"{service}: {error.reason}", may_have_acted=error.was_sent) from None
    except (UnsafeUrl, ValueError) as error:
        raise AddonFailed(f"{service} cannot be asked: {error}") from None
    if not 200 <= answer.status < 300:
        raise AddonFailed(
            f"{service} answered HTTP {answer.status}{_format_reason(answer)}",
            is_refusal=answer.status in (401, 402, 403, 429),
            status=answer.status,
        )
    if len(answer.body) > body_bytes_max:
        raise AddonFailed(f"{service} answered with more than {body_bytes_max} bytes", may_have_acted=True)
    return answer


def build_json_post(url: str, document: Mapping[str, Any], headers: Mapping[str, str]) -> HttpRequest:
    """A request with a JSON body."""
    body = json.dumps(document, separators=(",", ":")).encode()
    return HttpRequest(method="POST", url=url, headers={"Content-Type": "application/json", **headers}, body=body)


def build_form_post(
    url: str,
    fields: Mapping[str, str],
    files: Mapping[str, tuple[tuple[str, str, bytes], ...]],
    headers: Mapping[str, str],
) -> HttpRequest:
    """A request with a ``multipart/form-data`` body (RFC 7578). ``files`` holds name, media type and content; the
    names are ours and need no quoting."""
    boundary = uuid.uuid4().hex
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields.items()
    ]
    for field, contents in files.items():
        for name, media_type, content in contents:
            head = f'--{boundary}\r\nContent-Disposition: form-data; name="{field}"; filename="{name}"\r\n'
            parts.append(f"{head}Content-Type: {media_type}\r\n\r\n".encode() + content + b"\r\n")
    body = b"".join((*parts, f"--{boundary}--\r\n".encode()))
    media_type = f"multipart/form-data; boundary={boundary}"
    return HttpRequest(method="POST", url=url, headers={"Content-Type": media_type, **headers}, body=body)


def parse_json(service: str, answer: HttpResponse) -> Any:
    """The document of an answer. Raises ``AddonFailed``."""
    try:
        return json.loads(answer.body)
    except (ValueError, RecursionError):
        raise AddonFailed(f"{service} answered with what is no JSON") from None


def find_rows(document: Any, *path: str) -> list[Mapping[str, Any]]:
    """The objects of the list at ``path``; none where there is no such list."""
    for name in path:
        document = document.get(name) if isinstance(document, dict) else None
    return [row for row in document if isinstance(row, dict)] if isinstance(document, list) else []


def _format_reason(answer: HttpResponse) -> str:
    """The service's own words about a failure, in short."""
    document = parse_object(answer.body)
    found = document.get("error", document.get("detail", document.get("message", "")))
    if isinstance(found, dict):
        found = found.get("message", found.get("detail", found.get("error")))
    said = " ".join(read_text(found).split())[:_SAID_CHARS_MAX]
    return f": {said}" if said else ""
