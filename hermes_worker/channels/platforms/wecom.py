"""WeCom group robots (developer.work.weixin.qq.com, group robots). The address of the robot is its chat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

from hermes_worker.channels.errors import SendErrorKind
from hermes_worker.channels.exchange import (
    Exchange,
    Outcome,
    Part,
    Receipt,
    build_failure_of_code,
    build_multipart_request,
    is_success,
    join_service_url,
    json_object,
    json_request,
    mark_as_preparing,
)
from hermes_worker.channels.targets import Target
from hermes_worker.core.json_values import read_id
from hermes_worker.net.http import HttpRequest, HttpResponse

_KINDS: Mapping[int, SendErrorKind] = {
    -1: SendErrorKind.TRANSIENT,
    40058: SendErrorKind.BAD_FORMAT,
    44004: SendErrorKind.BAD_FORMAT,
    45002: SendErrorKind.TOO_LONG,
    45009: SendErrorKind.RATE_LIMITED,
    45033: SendErrorKind.RATE_LIMITED,
    93000: SendErrorKind.AUTH,
    93008: SendErrorKind.FORBIDDEN,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    key: str = field(repr=False)
    base_url: str = "https://qyapi.weixin.qq.com"


def build(part: Part, target: Target, credentials: Credentials) -> HttpRequest:
    """Build the request for a text. Raises ``Unsendable`` for a setting that cannot be used."""
    kind = "text" if part.is_plain else "markdown"
    return json_request("POST", _build_url("send", credentials), {"msgtype": kind, kind: {"content": part.text}})


def classify(response: HttpResponse) -> Outcome:
    answer = json_object(response)
    code = answer.get("errcode")
    if is_success(response) and code == 0:
        return Receipt()
    return build_failure_of_code(response, code, read_id(answer.get("errmsg")), _KINDS)


def send(part: Part, target: Target, credentials: Credentials) -> Exchange:
    """Send a part. A file is uploaded first and sent by its id."""
    if part.attachment is None:
        return classify((yield build(part, target, credentials)))
    url = _build_url("upload_media", credentials) + "&type=file"
    uploaded = yield mark_as_preparing(build_multipart_request(url, {}, "media", part.attachment))
    media_id = read_id(json_object(uploaded).get("media_id"))
    if not media_id:
        return classify(uploaded)
    payload = {"msgtype": "file", "file": {"media_id": media_id}}
    return classify((yield json_request("POST", _build_url("send", credentials), payload)))


def _build_url(method: str, credentials: Credentials) -> str:
    return join_service_url(credentials.base_url, f"cgi-bin/webhook/{method}?key={quote(credentials.key, safe='')}")
