"""DingTalk group robots (open.dingtalk.com, custom robots). The address of the robot is its chat."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import quote

from hermes_worker.channels.errors import SendErrorKind
from hermes_worker.channels.exchange import (
    Exchange,
    Outcome,
    Part,
    Receipt,
    Unsendable,
    failure_of_code,
    is_success,
    json_object,
    json_request,
)
from hermes_worker.channels.targets import Target
from hermes_worker.core.json_values import id_of
from hermes_worker.net.http import HttpRequest, HttpResponse
from hermes_worker.net.urls import UnsafeUrl, UrlPolicy, parse_http_url

TITLE_CHARS_MAX = 60

_KINDS: Mapping[int, SendErrorKind] = {
    -1: SendErrorKind.TRANSIENT,
    90018: SendErrorKind.RATE_LIMITED,
    90030: SendErrorKind.RATE_LIMITED,
    130101: SendErrorKind.RATE_LIMITED,
    410100: SendErrorKind.RATE_LIMITED,
    # 310000: keyword, signature or source address do not match what the robot asks for.
    310000: SendErrorKind.AUTH,
    300001: SendErrorKind.AUTH,
    40014: SendErrorKind.AUTH,
    400101: SendErrorKind.AUTH,
    400102: SendErrorKind.AUTH,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    webhook_url: str = field(repr=False)
    """With its access token."""
    secret: str | None = field(default=None, repr=False)
    """Signs the request when the robot asks for signatures (``SEC...``)."""


def build(part: Part, target: Target, credentials: Credentials, *, at: datetime) -> HttpRequest:
    """``at`` is the time that is signed. Files cannot be sent to a robot and are left out. Raises ``Unsendable``."""
    title = " ".join((part.title or part.text).split())[:TITLE_CHARS_MAX] or "Hermes"
    payload: dict[str, object] = {"msgtype": "markdown", "markdown": {"title": title, "text": part.text}}
    if part.is_plain:
        payload = {"msgtype": "text", "text": {"content": part.text}}
    return json_request("POST", _signed_url(credentials, at), payload)


def classify(response: HttpResponse) -> Outcome:
    answer = json_object(response)
    code = answer.get("errcode")
    if is_success(response) and code == 0:
        return Receipt()
    return failure_of_code(response, code, id_of(answer.get("errmsg")), _KINDS)


def send(part: Part, target: Target, credentials: Credentials, *, at: datetime) -> Exchange:
    return classify((yield build(part, target, credentials, at=at)))


def _signed_url(credentials: Credentials, at: datetime) -> str:
    try:
        url = parse_http_url(credentials.webhook_url, UrlPolicy(allows_private=True)).url
    except UnsafeUrl as error:
        raise Unsendable(f"The address of the robot cannot be used: {error}") from None
    if not credentials.secret:
        return url
    timestamp = str(int(at.timestamp() * 1000))
    message = f"{timestamp}\n{credentials.secret}".encode()
    digest = hmac.new(credentials.secret.encode(), message, hashlib.sha256).digest()
    signature = quote(base64.b64encode(digest).decode(), safe="")
    return f"{url}{'&' if '?' in url else '?'}timestamp={timestamp}&sign={signature}"
