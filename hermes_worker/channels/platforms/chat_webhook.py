"""Any other platform: a signed POST to the address of the operator's program, which shows the answer in its chat.

    {"event": "answer", "id": "<idempotency key>", "chat": "...", "text": "..."}

It is made and signed like a delivery to ``webhook:<url>`` (``platforms.webhook``), under
``CHAT_WEBHOOK_ANSWER_SECRET``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from hermes_worker.channels.exchange import Exchange, Part, Unsendable
from hermes_worker.channels.platforms import webhook
from hermes_worker.channels.targets import Target
from hermes_worker.net.http import HttpRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    answer_url: str = field(repr=False)
    answer_secret: str = field(repr=False)


def build(part: Part, target: Target, credentials: Credentials, *, at: datetime) -> HttpRequest:
    """Build the signed POST; ``at`` is the time that is signed. Raises ``Unsendable`` for a file that is too large, or
    a setting that cannot be used."""
    if not credentials.answer_url.startswith(("https://", "http://")):
        raise Unsendable("CHAT_WEBHOOK_ANSWER_URL is an address that begins with https://")
    payload = {**webhook.build_payload(part), "event": "answer", "chat": target.chat}
    return webhook.build_signed_request(payload, part, credentials.answer_url, credentials.answer_secret, at)


def send(part: Part, target: Target, credentials: Credentials, *, at: datetime) -> Exchange:
    return webhook.classify((yield build(part, target, credentials, at=at)))
