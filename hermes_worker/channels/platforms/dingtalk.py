"""DingTalk group robots (open.dingtalk.com, custom robots). The address of the robot is its chat."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import quote, urlsplit

from hermes_worker.channels.errors import SendErrorKind
from hermes_worker.channels.exchange import (
    Exchange,
    Outcome,
    Part,
    Receipt,
    Unsendable,
    build_failure_of_code,
    failure,
    is_success,
    join_service_url,
    json_object,
    json_request,
    mark_as_preparing,
    require_header_value,
)
from hermes_worker.channels.file_addresses import Downloading, build_source
from hermes_worker.channels.targets import Target
from hermes_worker.core.inbound import MediaRef
from hermes_worker.core.json_values import read_id
from hermes_worker.net.http import HttpRequest, HttpResponse
from hermes_worker.net.urls import UnsafeUrl, parse_http_url

TITLE_CHARS_MAX = 60
_FILES = (".aliyuncs.com", ".dingtalk.com")

_KINDS: Mapping[int, SendErrorKind] = {
    -1: SendErrorKind.TRANSIENT,
    90018: SendErrorKind.RATE_LIMITED,
    90030: SendErrorKind.RATE_LIMITED,
    130101: SendErrorKind.RATE_LIMITED,
    410100: SendErrorKind.RATE_LIMITED,
    # 310000: keyword, signature or source address do not match what the robot requires.
    310000: SendErrorKind.AUTH,
    300001: SendErrorKind.AUTH,
    40014: SendErrorKind.AUTH,
    400101: SendErrorKind.AUTH,
    400102: SendErrorKind.AUTH,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    webhook_url: str = field(repr=False)
    """The robot's address, with its access token."""
    secret: str | None = field(default=None, repr=False)
    """Signs the request when the robot asks for signatures (``SEC...``)."""
    app_key: str = ""
    """The app whose robot it is, with ``app_secret``: files that people send are fetched with them."""
    app_secret: str = field(default="", repr=False)
    api_url: str = "https://api.dingtalk.com"


def build(part: Part, target: Target, credentials: Credentials, *, at: datetime) -> HttpRequest:
    """Build the request; ``at`` is the time that is signed. Files cannot be sent to a robot and are left out. Raises
    ``Unsendable``."""
    title = " ".join((part.title or part.text).split())[:TITLE_CHARS_MAX] or "Hermes"
    payload: dict[str, object] = {"msgtype": "markdown", "markdown": {"title": title, "text": part.text}}
    if part.is_plain:
        payload = {"msgtype": "text", "text": {"content": part.text}}
    return json_request("POST", _sign_url(credentials, at), payload)


def classify(response: HttpResponse) -> Outcome:
    answer = json_object(response)
    code = answer.get("errcode")
    if is_success(response) and code == 0:
        return Receipt()
    return build_failure_of_code(response, code, read_id(answer.get("errmsg")), _KINDS)


def send(part: Part, target: Target, credentials: Credentials, *, at: datetime) -> Exchange:
    return classify((yield build(part, target, credentials, at=at)))


def _sign_url(credentials: Credentials, at: datetime) -> str:
    try:
        url = parse_http_url(credentials.webhook_url).url
    except UnsafeUrl as error:
        raise Unsendable(f"The address of the robot cannot be used: {error}") from None
    if not credentials.secret:
        return url
    timestamp = str(int(at.timestamp() * 1000))
    message = f"{timestamp}\n{credentials.secret}".encode()
    digest = hmac.new(credentials.secret.encode(), message, hashlib.sha256).digest()
    signature = quote(base64.b64encode(digest).decode(), safe="")
    return f"{url}{'&' if '?' in url else '?'}timestamp={timestamp}&sign={signature}"


def download(media: MediaRef, credentials: Credentials) -> Downloading:
    """Get the signed address of a file for its code ("Download the content of a message that a robot received")."""
    if not credentials.app_key or not credentials.app_secret:
        raise Unsendable("DingTalk gives files for DINGTALK_APP_KEY and DINGTALK_APP_SECRET; set them.")
    identity = {"appKey": credentials.app_key, "appSecret": credentials.app_secret}
    url = join_service_url(credentials.api_url, "v1.0/oauth2/accessToken")
    granted = yield mark_as_preparing(json_request("POST", url, identity))
    token = read_id(json_object(granted).get("accessToken"))
    if not token:
        return failure(granted, read_id(json_object(granted).get("message")) or "no token was granted")
    asked = {"downloadCode": media.id, "robotCode": credentials.app_key}
    headers = {"x-acs-dingtalk-access-token": require_header_value(token)}
    url = join_service_url(credentials.api_url, "v1.0/robot/messageFiles/download")
    found = yield mark_as_preparing(json_request("POST", url, asked, headers=headers))
    place = read_id(json_object(found).get("downloadUrl"))
    if not place:
        return failure(found, read_id(json_object(found).get("message")) or "the file has no address")
    if urlsplit(place).hostname != urlsplit(credentials.api_url).hostname:
        place = re.sub(r"\Ahttp:", "https:", place)  # so it is written in the documentation
    return build_source(place, own=credentials.api_url, hosts=_FILES)
