"""A channel: how a message is sent to a pager."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from types import MappingProxyType

from hermes_worker.extending import (
    ChatShape,
    Exchange,
    Part,
    Platform,
    Receipt,
    Sending,
    Target,
    TextLimit,
    failure,
    is_success,
    json_object,
    json_request,
)

PAGER = Platform(
    name="pager",
    limit=TextLimit(size_max=500),
    home_variable="PAGER_HOME_CHANNEL",
    shapes=(ChatShape(re.compile(r"(?P<chat>[a-z][a-z0-9-]{0,31})")),),
    sending=Sending(
        send="hermes_acme.pager:send",
        credentials="hermes_acme.pager:Credentials",
        variables=MappingProxyType({"base_url": "PAGER_URL", "token": "PAGER_TOKEN"}),
        secrets=("token",),
        takes_files=False,
        key_kept_s=3600.0,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    base_url: str
    token: str = field(repr=False)


def send(part: Part, target: Target, credentials: Credentials) -> Exchange:
    """Yield a request, get its response, return what became of the message."""
    message = {"to": target.chat, "text": part.text, "id": part.idempotency_key}
    headers = {"Authorization": f"Bearer {credentials.token}"}
    response = yield json_request("POST", f"{credentials.base_url.rstrip('/')}/pages", message, headers=headers)
    if is_success(response):
        return Receipt(message_id=str(json_object(response).get("id") or "") or None)
    return failure(response, str(json_object(response).get("error") or ""))
