"""Deliver by a plain HTTP POST to an address of the user's: JSON, signed, with an idempotency key. Hermes Agent has no
such target.

    {"event": "delivery", "id": "<idempotency key>", "title": "...", "text": "...",
     "run": {"id": "...", "status": "completed", "session_id": "..."}}

A receiver checks the signature (``hermes_worker.channels.signature``; any verifier of Standard Webhooks does), drops
ids that it has seen, and answers with any status of 200 to 299.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from hermes_worker.channels.exchange import (
    Exchange,
    Outcome,
    Part,
    Receipt,
    Unsendable,
    failure,
    is_success,
    json_object,
    json_request,
    require_header_value,
)
from hermes_worker.channels.signature import sign
from hermes_worker.channels.targets import Target
from hermes_worker.core.cloud_events import CLOUD_EVENTS, CLOUD_EVENTS_TYPE, wrap_in_cloud_event
from hermes_worker.core.json_values import read_id
from hermes_worker.core.media_kinds import guess_type_of_name
from hermes_worker.net.http import HttpRequest, HttpResponse

ATTACHMENT_BYTES_MAX = 5_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    secret: str | None = field(default=None, repr=False)
    """Signs the request; ``None`` sends it unsigned."""
    format: str = "json"
    """``cloudevents`` sends each message as a CloudEvent."""


def build(part: Part, target: Target, credentials: Credentials, *, at: datetime) -> HttpRequest:
    """Build the signed request; ``at`` is the time that is signed. The address was checked when the target was parsed,
    and the connection checks it again, with what it resolves to. Raises ``Unsendable`` for a file that is too large."""
    payload, kind = build_payload(part), "application/json"
    if credentials.format == CLOUD_EVENTS:
        run = str(part.facts.get("id", "")) if part.facts else ""
        payload, kind = wrap_in_cloud_event(payload, "delivery", part.idempotency_key, run), CLOUD_EVENTS_TYPE
    elif credentials.format != "json":
        raise Unsendable(f"WEBHOOK_DELIVERY_FORMAT is 'json' or 'cloudevents', not {credentials.format[:40]!r}")
    return build_signed_request(payload, part, target.chat, credentials.secret, at, media_type=kind)


def build_payload(part: Part) -> dict[str, object]:
    """Build the JSON payload of a part. Raises ``Unsendable`` for a file that is too large."""
    payload: dict[str, object] = {"event": "delivery", "id": part.idempotency_key, "text": part.text}
    if part.title:
        payload["title"] = part.title
    if part.facts:
        payload["run"] = dict(part.facts)
    if part.attachment is not None:
        if len(part.attachment.content) > ATTACHMENT_BYTES_MAX:
            raise Unsendable(f"a file for a webhook has at most {ATTACHMENT_BYTES_MAX} bytes")
        payload["file"] = {
            "name": part.attachment.name,
            "media_type": guess_type_of_name(part.attachment.name),
            "content_base64": base64.b64encode(part.attachment.content).decode(),
        }
    return payload


def build_signed_request(
    payload: Mapping[str, object],
    part: Part,
    url: str,
    secret: str | None,
    at: datetime,
    *,
    media_type: str = "application/json",
) -> HttpRequest:
    """Build the request with its key and, where there is a secret, its signature."""
    own = {"Idempotency-Key": require_header_value(part.idempotency_key), "Content-Type": media_type}
    request = json_request("POST", url, payload, headers=own)
    if not secret:
        return request
    headers = dict(request.headers) | sign(request.body, secret, at, message_id=part.idempotency_key)
    return HttpRequest(method="POST", url=url, headers=headers, body=request.body)


def classify(response: HttpResponse) -> Outcome:
    answer = json_object(response)
    if is_success(response):
        return Receipt(message_id=read_id(answer.get("id")) or None)
    # A foreign server's words are not repeated: they may be anything, addressed to anyone.
    return failure(response)


def send(part: Part, target: Target, credentials: Credentials, *, at: datetime) -> Exchange:
    return classify((yield build(part, target, credentials, at=at)))
