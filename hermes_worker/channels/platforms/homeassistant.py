"""Home Assistant notifications (developers.home-assistant.io/docs/api/rest)."""

from __future__ import annotations

from dataclasses import dataclass, field

from hermes_worker.channels.errors import SendErrorKind
from hermes_worker.channels.exchange import (
    Exchange,
    Outcome,
    Part,
    Receipt,
    bearer,
    failure,
    is_success,
    json_object,
    json_request,
    key_token,
    path_segment,
    service_url,
)
from hermes_worker.channels.file_addresses import Downloading, file_at
from hermes_worker.channels.targets import Target
from hermes_worker.core.inbound import MediaRef
from hermes_worker.core.json_values import id_of
from hermes_worker.net.http import HttpRequest, HttpResponse

PERSISTENT = "persistent_notification"


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    base_url: str
    token: str = field(repr=False)


def build(part: Part, target: Target, credentials: Credentials) -> HttpRequest:
    """Build the call of a ``notify`` service, or a persistent notification. Files are left out. Raises
    ``Unsendable``."""
    payload: dict[str, object] = {"message": part.text}
    if part.title:
        payload["title"] = " ".join(part.title.split())
    service = target.chat.removeprefix("notify.")
    path = f"notify/{path_segment(service)}"
    if service == PERSISTENT:
        # The id makes a repetition replace the notification instead of adding one.
        payload["notification_id"] = f"hermes_{key_token(part.idempotency_key, 32)}"
        path = f"{PERSISTENT}/create"
    url = service_url(credentials.base_url, f"api/services/{path}")
    return json_request("POST", url, payload, headers=bearer(credentials.token))


def classify(response: HttpResponse) -> Outcome:
    if is_success(response):
        return Receipt()
    said = id_of(json_object(response).get("message"))
    # A service that does not exist is a 400, like every other mistake in a call.
    is_unknown = response.status == 400 and "not found" in said.lower()
    return failure(response, said, kind=SendErrorKind.NOT_FOUND if is_unknown else None)


def send(part: Part, target: Target, credentials: Credentials) -> Exchange:
    return classify((yield build(part, target, credentials)))


def download(media: MediaRef, credentials: Credentials) -> Downloading:
    """Download what an automation names: a path of Home Assistant's, such as that of a camera's picture."""
    yield from ()
    url = media.id if "://" in media.id else service_url(credentials.base_url, media.id)
    return file_at(url, own=credentials.base_url, headers=bearer(credentials.token))
