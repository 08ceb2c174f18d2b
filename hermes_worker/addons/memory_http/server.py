"""The protocol: one POST for each event, with the event as JSON; the answer to a question is ``{"text": ...}``."""

from __future__ import annotations

from hermes_worker.addons.http_json import AddonFailed, build_json_post
from hermes_worker.addons.memory_requests import RECALL_S, SYNC_S, read_text_setting, request_json
from hermes_worker.core.hooks import HookEvent
from hermes_worker.net.http import HttpRequest

_SERVICE = "the memory server"


def recall(event: HookEvent) -> str | None:
    """The text that the server recalls. Raises ``AddonFailed``."""
    answer = request_json(_SERVICE, _request(event), total_s=RECALL_S)
    if answer is None:
        return None
    text = answer.get("text") if isinstance(answer, dict) else answer
    if text is None or isinstance(text, str):
        return text
    raise AddonFailed(f"{_SERVICE} answered with no text")


def send_event(event: HookEvent) -> None:
    """Tell the server what happened. Raises ``AddonFailed``."""
    request_json(_SERVICE, _request(event), total_s=SYNC_S)


def _request(event: HookEvent) -> HttpRequest:
    token = read_text_setting(event.values, "token")
    headers = {"Idempotency-Key": event.id, **({"Authorization": f"Bearer {token}"} if token else {})}
    told = {"id": event.id, "event": event.name, "payload": dict(event.payload)}
    return build_json_post(read_text_setting(event.values, "url"), told, headers)
