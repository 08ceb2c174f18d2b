"""Home Assistant notifications (developers.home-assistant.io/docs/api/rest)."""

from __future__ import annotations

from dataclasses import dataclass, field

from hermes_worker.channels.errors import SendErrorKind
from hermes_worker.channels.exchange import (
    Exchange,
    Outcome,
    Part,
    Receipt,
    build_bearer_header,
    encode_path_segment,
    failure,
    is_success,
    join_service_url,
    json_object,
    json_request,
    shorten_key,
)
from hermes_worker.channels.file_addresses import Downloading, build_source
from hermes_worker.channels.targets import Target
from hermes_worker.core.inbound import MediaRef
from hermes_worker.core.json_values import read_id
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
    path = f"notify/{encode_path_segment(service)}"
    if service == PERSISTENT:
        # The id makes a repetition replace the notification instead of adding one.
        payload["notification_id"] = f"hermes_{shorten_key(part.idempotency_key, 32)}"
        path = f"{PERSISTENT}/create"
    url = join_service_url(credentials.base_url, f"api/services/{path}")
    return json_request("POST", url, payload, headers=build_bearer_header(credentials.token))


def classify(response: HttpResponse) -> Outcome:
    if is_success(response):
        return Receipt()
    said = read_id(json_object(response).get("message"))
    # A service that does not exist is a 400, like every other mistake in a call.
    is_unknown = response.status == 400 and "not found" in said.lower()
    return failure(response, said, kind=SendErrorKind.NOT_FOUND if is_unknown else None)


def send(part: Part, target: Target, credentials: Credentials) -> Exchange:
    return classify((yield build(part, target, credentials)))


def download(media: MediaRef, credentials: Credentials) -> Downloading:
    """Download what an automation names: a path of Home Assistant's, such as that of a camera's picture."""
    yield from ()
    url = media.id if "://" in media.id else join_service_url(credentials.base_url, media.id)
    return build_source(url, own=credentials.base_url, headers=build_bearer_header(credentials.token))
