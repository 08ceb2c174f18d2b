"""How a message is sent to a pager. Imported by the worker that delivers and by nobody else."""

from __future__ import annotations

from dataclasses import dataclass, field

from hermes_worker.extending import Exchange, Part, Receipt, Target, failure, is_success, json_object, json_request


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
