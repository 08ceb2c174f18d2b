"""Microsoft Teams through the Bot Framework (learn.microsoft.com, Bot Connector REST API)."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace

from hermes_worker.channels.errors import DeliveryError, SendErrorKind
from hermes_worker.channels.exchange import (
    Exchange,
    Outcome,
    Part,
    Receipt,
    build_bearer_header,
    build_form_request,
    encode_path_segment,
    failure,
    is_success,
    join_service_url,
    json_object,
    json_request,
    mark_as_preparing,
)
from hermes_worker.channels.file_addresses import Downloading, build_source, is_allowed_host
from hermes_worker.channels.targets import Target
from hermes_worker.core.chat_buttons import fit_buttons
from hermes_worker.core.inbound import MediaRef
from hermes_worker.core.json_values import read_id, read_mapping
from hermes_worker.net.http import HttpRequest, HttpResponse

_SHARED = (".sharepoint.com", ".sharepoint.us", ".sharepoint.cn")
_CONNECTORS = ("smba.trafficmanager.net", ".smba.trafficmanager.net")
_KINDS = {
    "ConversationNotFound": SendErrorKind.NOT_FOUND,
    "BotNotInConversationRoster": SendErrorKind.FORBIDDEN,
    "MessageWritesBlocked": SendErrorKind.FORBIDDEN,
    "ConversationBlockedByUser": SendErrorKind.FORBIDDEN,
    "MessageSizeTooBig": SendErrorKind.TOO_LONG,
    "BadSyntax": SendErrorKind.BAD_FORMAT,
}


_ACTIONS_MAX, _TITLE_CHARS_MAX = 6, 60
ANSWER = "hermes_answer"
"""The field in which a press brings its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    app_id: str
    app_password: str = field(repr=False)
    tenant: str = "botframework.com"
    """For a bot of a single tenant: the id of the tenant."""
    service_url: str = "https://smba.trafficmanager.net/teams"
    login_url: str = "https://login.microsoftonline.com"


def build(part: Part, target: Target, credentials: Credentials, *, token: str) -> HttpRequest:
    """Build the request. Files are left out: Teams asks the person to agree first. Raises ``Unsendable``."""
    path = f"v3/conversations/{encode_path_segment(target.chat)}/activities"
    activity = _build_activity(part)
    if part.reply_to:
        path, activity["replyToId"] = f"{path}/{encode_path_segment(part.reply_to)}", part.reply_to
    return json_request(
        "POST", join_service_url(credentials.service_url, path), activity, headers=build_bearer_header(token)
    )


def _build_activity(part: Part) -> dict[str, object]:
    shown = fit_buttons(part.buttons, chars_max=_TITLE_CHARS_MAX, count_max=_ACTIONS_MAX)
    if not shown:
        return {"type": "message", "text": part.text, "textFormat": "plain" if part.is_plain else "markdown"}
    card = {
        "type": "AdaptiveCard",
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "version": "1.4",
        "body": [{"type": "TextBlock", "text": part.text, "wrap": True}],
        "actions": [{"type": "Action.Submit", "title": one.label, "data": {ANSWER: one.value}} for one in shown],
    }
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "content": card}
    return {"type": "message", "attachments": [attachment]}


def classify(response: HttpResponse) -> Outcome:
    answer = json_object(response)
    if is_success(response):
        return Receipt(message_id=read_id(answer.get("id")) or None)
    error = read_mapping(answer.get("error"))
    return failure(response, read_id(error.get("message")), kind=_KINDS.get(read_id(error.get("code"))))


def send(part: Part, target: Target, credentials: Credentials) -> Exchange:
    """Get a token, then send. Where the message to reply to is gone, the part is sent without the reference."""
    token = yield from _request_token(credentials)
    if isinstance(token, DeliveryError):
        return token
    response = yield build(part, target, credentials, token=token)
    if response.status == 404 and part.reply_to:
        response = yield build(replace(part, reply_to=""), target, credentials, token=token)
    return classify(response)


def edit(part: Part, message_id: str, target: Target, credentials: Credentials) -> Exchange:
    """Update an activity."""
    token = yield from _request_token(credentials)
    if isinstance(token, DeliveryError):
        return token
    path = f"v3/conversations/{encode_path_segment(target.chat)}/activities/{encode_path_segment(message_id)}"
    url = join_service_url(credentials.service_url, path)
    return classify((yield json_request("PUT", url, _build_activity(part), headers=build_bearer_header(token))))


def download(media: MediaRef, credentials: Credentials) -> Downloading:
    """Download a file. One on SharePoint has a signed address ("Receive files in personal chat"); a picture is at the
    connector, which wants the bot's token ("Receive attachments")."""
    if is_allowed_host(media.id, _SHARED):
        return build_source(media.id, own="", hosts=_SHARED)
    at_connector = build_source(media.id, own=credentials.service_url, hosts=_CONNECTORS)
    token = yield from _request_token(credentials)
    if isinstance(token, DeliveryError):
        return token
    return replace(at_connector, request=replace(at_connector.request, headers=build_bearer_header(token)))


def _request_token(credentials: Credentials) -> Generator[HttpRequest, HttpResponse, str | DeliveryError]:
    fields = {
        "grant_type": "client_credentials",
        "client_id": credentials.app_id,
        "client_secret": credentials.app_password,
        "scope": "https://api.botframework.com/.default",
    }
    path = f"{encode_path_segment(credentials.tenant)}/oauth2/v2.0/token"
    granted = yield mark_as_preparing(build_form_request(join_service_url(credentials.login_url, path), fields))
    token = read_id(json_object(granted).get("access_token"))
    if not token:
        said = read_id(json_object(granted).get("error")) or "no token was granted"
        is_refused = is_success(granted) or granted.status in (400, 401)
        return failure(granted, said, kind=SendErrorKind.AUTH if is_refused else None)
    return token
