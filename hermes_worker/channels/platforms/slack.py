"""Slack Web API (docs.slack.dev/reference/methods). Errors come with status 200 and ``ok: false``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hermes_worker.channels.catalog import ChatForm
from hermes_worker.channels.errors import DeliveryError, SendErrorKind
from hermes_worker.channels.exchange import (
    Attachment,
    Exchange,
    Outcome,
    Part,
    Receipt,
    build_bearer_header,
    build_form_request,
    failure,
    is_success,
    join_service_url,
    json_object,
    json_request,
    mark_as_preparing,
)
from hermes_worker.channels.file_addresses import Downloading, build_source
from hermes_worker.channels.markup import render_slack_mrkdwn
from hermes_worker.channels.splitting import cut_pieces
from hermes_worker.channels.targets import Target
from hermes_worker.core.chat_buttons import fit_buttons
from hermes_worker.core.inbound import MediaRef
from hermes_worker.core.json_values import read_id, read_list, read_mapping
from hermes_worker.core.media_kinds import guess_type_of_name
from hermes_worker.net.http import HttpRequest, HttpResponse

_FILES = ("files.slack.com",)
_KINDS: Mapping[str, SendErrorKind] = {
    "msg_too_long": SendErrorKind.TOO_LONG,
    "invalid_blocks": SendErrorKind.BAD_FORMAT,
    "no_text": SendErrorKind.BAD_FORMAT,
    "channel_not_found": SendErrorKind.NOT_FOUND,
    "message_not_found": SendErrorKind.NOT_FOUND,
    "user_not_found": SendErrorKind.NOT_FOUND,
    "thread_not_found": SendErrorKind.NOT_FOUND,
    "invalid_thread_ts": SendErrorKind.NOT_FOUND,
    "file_not_found": SendErrorKind.NOT_FOUND,
    "file_deleted": SendErrorKind.NOT_FOUND,
    "is_archived": SendErrorKind.FORBIDDEN,
    "not_in_channel": SendErrorKind.FORBIDDEN,
    "cannot_dm_bot": SendErrorKind.FORBIDDEN,
    "user_disabled": SendErrorKind.FORBIDDEN,
    "restricted_action": SendErrorKind.FORBIDDEN,
    "ratelimited": SendErrorKind.RATE_LIMITED,
    "rate_limited": SendErrorKind.RATE_LIMITED,
    "message_limit_exceeded": SendErrorKind.RATE_LIMITED,
    "internal_error": SendErrorKind.TRANSIENT,
    "fatal_error": SendErrorKind.AMBIGUOUS,
    "service_unavailable": SendErrorKind.TRANSIENT,
    "request_timeout": SendErrorKind.TRANSIENT,
    "invalid_auth": SendErrorKind.AUTH,
    "not_authed": SendErrorKind.AUTH,
    "account_inactive": SendErrorKind.AUTH,
    "token_revoked": SendErrorKind.AUTH,
    "token_expired": SendErrorKind.AUTH,
    "missing_scope": SendErrorKind.AUTH,
    "not_allowed_token_type": SendErrorKind.AUTH,
}


_SECTION_CHARS_MAX = 3_000
_SECTION_ROOM = 1_500
"""Longest text of a section. Room is left for what markup adds."""
_BUTTON_CHARS_MAX, _BUTTONS_MAX = 75, 25
"""Longest text of a button, and most buttons in a block (docs.slack.dev/reference/block-kit)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    token: str = field(repr=False)
    base_url: str = "https://slack.com/api"


def build(part: Part, target: Target, credentials: Credentials) -> HttpRequest:
    """Build the request for a text. Raises ``Unsendable`` for a setting that cannot be used."""
    payload: dict[str, object] = {
        "channel": target.chat,
        "text": part.text if part.is_plain else render_slack_mrkdwn(part.text),
        "mrkdwn": not part.is_plain,
        "unfurl_links": False,
        "unfurl_media": False,
    }
    if blocks := _build_blocks(part):
        payload["blocks"] = blocks
    if target.thread is not None:
        payload["thread_ts"] = target.thread
    return _call("chat.postMessage", payload, credentials)


def _build_blocks(part: Part) -> list[dict[str, object]]:
    """Build the text and the buttons below it as blocks; none for a message without buttons. Where there are blocks,
    Slack shows them and not the text of the message."""
    shown = fit_buttons(part.buttons, chars_max=_BUTTON_CHARS_MAX, count_max=_BUTTONS_MAX)
    texts = cut_pieces(part.text, _SECTION_ROOM)
    kind = "plain_text" if part.is_plain else "mrkdwn"
    written = texts if part.is_plain else [render_slack_mrkdwn(text) for text in texts]
    if not shown or any(len(text) > _SECTION_CHARS_MAX for text in written):
        return []
    actions: list[dict[str, object]] = [
        {
            "type": "button",
            "action_id": f"answer_{number}",
            "text": {"type": "plain_text", "text": button.label},
            "value": button.value,
        }
        for number, button in enumerate(shown, 1)
    ]
    sections: list[dict[str, object]] = [{"type": "section", "text": {"type": kind, "text": text}} for text in written]
    return [*sections, {"type": "actions", "elements": actions}]


def classify(response: HttpResponse) -> Outcome:
    answer = json_object(response)
    if is_success(response) and answer.get("ok") is True:
        return Receipt(message_id=read_id(answer.get("ts")) or None)
    return _classify_refusal(response)


def send(part: Part, target: Target, credentials: Credentials) -> Exchange:
    """Send a part. To a person: open the conversation first. A file: ask for an address, upload, publish."""
    if target.form is ChatForm.USER:
        opened = yield mark_as_preparing(_call("conversations.open", {"users": target.chat}, credentials))
        channel = read_id(read_mapping(json_object(opened).get("channel")).get("id"))
        if not channel:
            return _classify_refusal(opened)
        target = Target(platform=target.platform, chat=channel, thread=target.thread)
    if part.attachment is None:
        return classify((yield build(part, target, credentials)))
    return (yield from _send_file(part, part.attachment, target, credentials))


def edit(part: Part, message_id: str, target: Target, credentials: Credentials) -> Exchange:
    """Edit a message with chat.update, by its ``ts``. A channel is named by its id."""
    payload: dict[str, object] = {
        "channel": target.chat,
        "ts": message_id,
        "text": part.text if part.is_plain else render_slack_mrkdwn(part.text),
        "blocks": [],
    }
    return classify((yield _call("chat.update", payload, credentials)))


def remove(message_id: str, target: Target, credentials: Credentials) -> Exchange:
    """Delete a message with chat.delete. One that is gone already counts as deleted."""
    response = yield _call("chat.delete", {"channel": target.chat, "ts": message_id}, credentials)
    is_gone = read_id(json_object(response).get("error")) == "message_not_found"
    return Receipt(message_id=message_id) if is_gone else classify(response)


def _send_file(part: Part, attachment: Attachment, target: Target, credentials: Credentials) -> Exchange:
    fields = {"filename": attachment.name[:200], "length": str(len(attachment.content))}
    url = join_service_url(credentials.base_url, "files.getUploadURLExternal")
    offered = yield mark_as_preparing(build_form_request(url, fields, headers=build_bearer_header(credentials.token)))
    answer = json_object(offered)
    upload_url, file_id = read_id(answer.get("upload_url")), read_id(answer.get("file_id"))
    if not upload_url or not file_id:
        return _classify_refusal(offered)
    uploaded = yield HttpRequest(
        method="POST",
        url=upload_url,
        headers={"Content-Type": guess_type_of_name(attachment.name)},
        body=attachment.content,
        delivers=False,
    )
    if not is_success(uploaded):
        return failure(uploaded, "the file could not be uploaded")
    payload: dict[str, object] = {"files": [{"id": file_id, "title": attachment.name}], "channel_id": target.chat}
    if part.text:
        payload["initial_comment"] = render_slack_mrkdwn(part.text)
    if target.thread is not None:
        payload["thread_ts"] = target.thread
    completed = yield _call("files.completeUploadExternal", payload, credentials)
    published = read_list(json_object(completed).get("files"))
    if json_object(completed).get("ok") is not True:
        return _classify_refusal(completed)
    return Receipt(message_id=read_id(read_mapping(published[0]).get("id")) if published else None)


def _classify_refusal(response: HttpResponse) -> DeliveryError:
    error = read_id(json_object(response).get("error"))
    kind = _KINDS.get(error)
    if kind is None and is_success(response):
        kind = SendErrorKind.UNKNOWN
    is_thread_missing = error in ("thread_not_found", "invalid_thread_ts")
    return failure(response, error or "no answer of Slack's", kind=kind, is_thread_missing=is_thread_missing)


def _call(method: str, payload: Mapping[str, object], credentials: Credentials) -> HttpRequest:
    headers = build_bearer_header(credentials.token) | {"Content-Type": "application/json; charset=utf-8"}
    return json_request("POST", join_service_url(credentials.base_url, method), payload, headers=headers)


def download(media: MediaRef, credentials: Credentials) -> Downloading:
    """Download ``url_private_download`` with the bot's token (docs.slack.dev/reference/objects/file-object). A file of
    a channel that is shared with others has no address in its event (``file_access: check_file_info``): the address is
    asked for."""
    url = media.id
    if not url.startswith("https:") and not url.startswith("http:"):
        asked = join_service_url(credentials.base_url, "files.info")
        response = yield mark_as_preparing(
            build_form_request(asked, {"file": media.id}, headers=build_bearer_header(credentials.token))
        )
        file = read_mapping(json_object(response).get("file"))
        url = read_id(file.get("url_private_download"))
        if not url:
            return _classify_refusal(response)

    def find_refusal(head: HttpResponse) -> DeliveryError | None:
        """Find a refusal in an answer: a token that may not read files gets a page on which people log in."""
        is_page = "text/html" in head.headers.get("content-type", "") and "html" not in media.media_type
        said = "the token has no scope files:read"
        return DeliveryError(kind=SendErrorKind.AUTH, message=said, status=head.status) if is_page else None

    source = build_source(url, own=credentials.base_url, hosts=_FILES, headers=build_bearer_header(credentials.token))
    return replace(source, refusal=find_refusal)
