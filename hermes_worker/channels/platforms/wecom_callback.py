"""Messages of a self-built app of WeCom to a person (developer.work.weixin.qq.com, "Sending application messages",
2026-11)."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

from hermes_worker.channels.errors import DeliveryError, SendErrorKind
from hermes_worker.channels.exchange import (
    Exchange,
    Outcome,
    Part,
    Receipt,
    Unsendable,
    build_failure_of_code,
    build_multipart_request,
    is_success,
    join_service_url,
    json_object,
    json_request,
    mark_as_preparing,
)
from hermes_worker.channels.file_addresses import Downloading, FileSource
from hermes_worker.channels.targets import Target
from hermes_worker.core.inbound import MediaRef
from hermes_worker.core.json_values import read_id
from hermes_worker.net.http import HttpRequest, HttpResponse

_KINDS: Mapping[int, SendErrorKind] = {
    -1: SendErrorKind.TRANSIENT,
    40001: SendErrorKind.AUTH,
    40013: SendErrorKind.AUTH,
    40014: SendErrorKind.AUTH,
    41001: SendErrorKind.AUTH,
    42001: SendErrorKind.AUTH,
    40056: SendErrorKind.AUTH,
    40058: SendErrorKind.BAD_FORMAT,
    44004: SendErrorKind.BAD_FORMAT,
    45002: SendErrorKind.TOO_LONG,
    45009: SendErrorKind.RATE_LIMITED,
    45033: SendErrorKind.RATE_LIMITED,
    60011: SendErrorKind.FORBIDDEN,
    60020: SendErrorKind.FORBIDDEN,
    81013: SendErrorKind.NOT_FOUND,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    corp_id: str
    corp_secret: str = field(repr=False)
    """The secret of the app."""
    agent_id: str
    base_url: str = "https://qyapi.weixin.qq.com"


def build(part: Part, target: Target, credentials: Credentials, *, token: str) -> HttpRequest:
    """Build the request for a text, with a token. Raises ``Unsendable`` for a setting that cannot be used."""
    kind = "text" if part.is_plain else "markdown"
    return _build_message(kind, {"content": part.text}, target, credentials, token)


def classify(response: HttpResponse) -> Outcome:
    """Judge a response: a person who cannot be reached is named in an answer that is otherwise a success."""
    answer = json_object(response)
    code = answer.get("errcode")
    if not is_success(response) or code != 0:
        return build_failure_of_code(response, code, read_id(answer.get("errmsg")), _KINDS)
    if read_id(answer.get("invaliduser")):
        return DeliveryError(
            kind=SendErrorKind.NOT_FOUND, message="the app may not write to that person", status=response.status
        )
    return Receipt(message_id=read_id(answer.get("msgid")) or None)


def send(part: Part, target: Target, credentials: Credentials) -> Exchange:
    """Get a token, upload a file if there is one, and send."""
    token = yield from _get_token(credentials)
    if not isinstance(token, str):
        return token
    if part.attachment is None:
        return classify((yield build(part, target, credentials, token=token)))
    url = _build_url("media/upload", credentials, token) + "&type=file"
    uploaded = yield mark_as_preparing(build_multipart_request(url, {}, "media", part.attachment))
    media_id = read_id(json_object(uploaded).get("media_id"))
    if not media_id:
        return classify(uploaded)
    return classify((yield _build_message("file", {"media_id": media_id}, target, credentials, token)))


def download(media: MediaRef, credentials: Credentials) -> Downloading:
    """Download a file, which WeCom keeps for three days ("Get temporary material"). An answer without a file name in
    its head is JSON about a failure."""
    token = yield from _get_token(credentials)
    if not isinstance(token, str):
        said = "no token was granted"
        return token if isinstance(token, DeliveryError) else DeliveryError(kind=SendErrorKind.AUTH, message=said)
    url = f"{_build_url('media/get', credentials, token)}&media_id={quote(media.id, safe='')}"
    return FileSource(request=HttpRequest(method="GET", url=url, delivers=False), refusal=_find_failure)


def _find_failure(head: HttpResponse) -> DeliveryError | None:
    if "content-disposition" in head.headers:
        return None
    return DeliveryError(kind=SendErrorKind.NOT_FOUND, message="WeCom does not know the file", status=head.status)


def _get_token(credentials: Credentials) -> Generator[HttpRequest, HttpResponse, str | Outcome]:
    """Get the token of the app."""
    identity = f"corpid={quote(credentials.corp_id, safe='')}&corpsecret={quote(credentials.corp_secret, safe='')}"
    granted = yield mark_as_preparing(
        HttpRequest(method="GET", url=join_service_url(credentials.base_url, f"cgi-bin/gettoken?{identity}"))
    )
    return read_id(json_object(granted).get("access_token")) or classify(granted)


def _build_message(
    kind: str, content: Mapping[str, str], target: Target, credentials: Credentials, token: str
) -> HttpRequest:
    if not (credentials.agent_id.isascii() and credentials.agent_id.isdigit()):
        raise Unsendable("WECOM_CALLBACK_AGENT_ID is a number")
    payload = {"touser": target.chat, "msgtype": kind, "agentid": int(credentials.agent_id), kind: content}
    return json_request("POST", _build_url("message/send", credentials, token), payload)


def _build_url(method: str, credentials: Credentials, token: str) -> str:
    return join_service_url(credentials.base_url, f"cgi-bin/{method}?access_token={quote(token, safe='')}")
