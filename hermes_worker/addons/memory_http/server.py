"""The protocol: one POST for each event, with the event as JSON; the answer to a question is ``{"text": ...}``."""

from __future__ import annotations

from hermes_worker.addons.asking import AddonFailed, json_post
from hermes_worker.addons.recalling import RECALL_S, SYNC_S, asked, setting_of
from hermes_worker.core.hooks import HookEvent
from hermes_worker.net.http import HttpRequest

_SERVICE = "the memory server"


def recall(event: HookEvent) -> str | None:
    """The text that the server recalls. Raises ``AddonFailed``."""
    answer = asked(_SERVICE, _request(event), total_s=RECALL_S)
    if answer is None:
        return None
    text = answer.get("text") if isinstance(answer, dict) else answer
    if text is None or isinstance(text, str):
        return text
    raise AddonFailed(f"{_SERVICE} answered with no text")


def tell(event: HookEvent) -> None:
    """Tell the server what happened. Raises ``AddonFailed``."""
    asked(_SERVICE, _request(event), total_s=SYNC_S)


def _request(event: HookEvent) -> HttpRequest:
    token = setting_of(event.values, "token")
    headers = {"Idempotency-Key": event.id, **({"Authorization": f"Bearer {token}"} if token else {})}
    told = {"id": event.id, "event": event.name, "payload": dict(event.payload)}
    return json_post(setting_of(event.values, "url"), told, headers)
