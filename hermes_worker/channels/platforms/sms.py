"""SMS through Twilio (www.twilio.com/docs/messaging/api/message-resource)."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hermes_worker.channels.errors import SendErrorKind
from hermes_worker.channels.exchange import (
    Exchange,
    Outcome,
    Part,
    Receipt,
    build_failure_of_code,
    build_form_request,
    encode_path_segment,
    is_success,
    join_service_url,
    json_object,
)
from hermes_worker.channels.file_addresses import Downloading, build_source
from hermes_worker.channels.targets import Target
from hermes_worker.core.inbound import MediaRef
from hermes_worker.core.json_values import read_id
from hermes_worker.net.http import HttpRequest, HttpResponse

_API = ("api.twilio.com",)
_KEPT = ("mms.twiliocdn.com", "media.twiliocdn.com", "s3-external-1.amazonaws.com")
_KINDS: Mapping[int, SendErrorKind] = {
    20003: SendErrorKind.AUTH,
    20429: SendErrorKind.RATE_LIMITED,
    14107: SendErrorKind.RATE_LIMITED,
    21211: SendErrorKind.NOT_FOUND,
    21214: SendErrorKind.NOT_FOUND,
    21217: SendErrorKind.NOT_FOUND,
    21408: SendErrorKind.FORBIDDEN,
    21608: SendErrorKind.FORBIDDEN,
    21610: SendErrorKind.FORBIDDEN,
    21614: SendErrorKind.NOT_FOUND,
    21617: SendErrorKind.TOO_LONG,
    21606: SendErrorKind.AUTH,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    account_sid: str
    auth_token: str = field(repr=False)
    sender: str
    """A number of the account (``+15551234567``), or the id of a messaging service (``MG...``)."""
    base_url: str = "https://api.twilio.com"


def build(part: Part, target: Target, credentials: Credentials) -> HttpRequest:
    """Build the request. Files cannot be sent and are left out. Raises ``Unsendable`` for a setting that cannot be
    used."""
    sender_field = "MessagingServiceSid" if credentials.sender.startswith("MG") else "From"
    fields = {"To": target.chat, sender_field: credentials.sender, "Body": part.text}
    path = f"2010-04-01/Accounts/{encode_path_segment(credentials.account_sid)}/Messages.json"
    return build_form_request(
        join_service_url(credentials.base_url, path), fields, headers=_build_authorization(credentials)
    )


def classify(response: HttpResponse) -> Outcome:
    answer = json_object(response)
    if is_success(response):
        return Receipt(message_id=read_id(answer.get("sid")) or None)
    return build_failure_of_code(response, answer.get("code"), read_id(answer.get("message")), _KINDS)


def send(part: Part, target: Target, credentials: Credentials) -> Exchange:
    return classify((yield build(part, target, credentials)))


def download(media: MediaRef, credentials: Credentials) -> Downloading:
    """Download a file of an MMS from the API, which redirects to where Twilio keeps it ("Media resource")."""
    yield from ()
    source = build_source(media.id, own=credentials.base_url, hosts=_API, headers=_build_authorization(credentials))
    return replace(source, moves_to=_KEPT)


def _build_authorization(credentials: Credentials) -> dict[str, str]:
    pair = base64.b64encode(f"{credentials.account_sid}:{credentials.auth_token}".encode()).decode()
    return {"Authorization": f"Basic {pair}"}
