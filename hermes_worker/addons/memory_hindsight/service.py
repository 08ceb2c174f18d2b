"""Requests to Hindsight, tried against its server ``hindsight-api-slim`` 1.1.0.

A *bank* holds the memories of a tenant; Hindsight makes it when something is kept there first. What is kept is a
document with the id of our event, and the same document again replaces itself: an event that is told twice is kept
once.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Any, Final
from urllib.parse import quote

from hermes_worker.addons.http_json import AddonFailed, build_json_post, find_rows
from hermes_worker.addons.memory_hindsight.settings import Hindsight
from hermes_worker.addons.memory_requests import (
    RECALL_S,
    SYNC_S,
    iterate_payload_texts,
    name_user,
    render_memories,
    request_json,
)
from hermes_worker.agent.tools.base import ToolContext
from hermes_worker.agent.tools.functions import ToolFailed, tool
from hermes_worker.core.hooks import HookEvent
from hermes_worker.core.json_values import read_text
from hermes_worker.setting_groups import fill_group

_SERVICE: Final = "Hindsight"
_QUERY_CHARS_MAX: Final = 8_000
_RECALL_TOKENS_MAX: Final = 2_000
_SEARCH_TOKENS_MAX: Final = 4_096
_SEARCH_S: Final = 20.0


def recall(event: HookEvent) -> str | None:
    """What Hindsight remembers that bears on the user's message. Raises ``AddonFailed``."""
    [query] = iterate_payload_texts(event, "user_message")
    if not query.strip():
        return None
    settings = fill_group(Hindsight, event.values)
    wanted = {"query": query, "budget": settings.budget, "max_tokens": _RECALL_TOKENS_MAX}
    return render_memories(_search_memories(settings, event.payload["tenant"], wanted, total_s=RECALL_S))


def keep_turn(event: HookEvent) -> None:
    """Send a turn's question and answer to Hindsight. Raises ``AddonFailed``."""
    asked_for, answered = iterate_payload_texts(event, "user_message", "assistant_response")
    _keep(event, [f"{who}: {text}" for who, text in (("User", asked_for), ("Assistant", answered)) if text.strip()])


def keep_delegation(event: HookEvent) -> None:
    """Send a delegated task and its result to Hindsight. Raises ``AddonFailed``."""
    goal, summary = iterate_payload_texts(event, "child_goal", "child_summary")
    _keep(event, [f"Delegated: {goal}", f"Result: {summary}"])


@tool(replay="pure", toolset="memory")
def hindsight_recall(
    query: Annotated[str, "What to look for."], settings: Hindsight, context: ToolContext
) -> list[str]:
    """Search what was remembered of earlier conversations."""
    wanted = {"query": query, "budget": "mid", "max_tokens": _SEARCH_TOKENS_MAX}
    try:
        return _search_memories(settings, context.origin.tenant, wanted, total_s=_SEARCH_S)
    except AddonFailed as failed:
        raise ToolFailed(str(failed)) from None


def _search_memories(settings: Hindsight, tenant: str, wanted: Mapping[str, Any], *, total_s: float) -> list[str]:
    shortened = {**wanted, "query": wanted["query"][:_QUERY_CHARS_MAX]}
    request = build_json_post(f"{_build_bank_url(settings, tenant)}/memories/recall", shortened, _build_auth(settings))
    try:
        rows = find_rows(request_json(_SERVICE, request, total_s=total_s), "results")
    except AddonFailed as failed:
        if failed.status == HTTPStatus.NOT_FOUND:  # nothing was kept for this tenant yet, so there is no bank
            return []
        raise
    return [text for row in rows if (text := read_text(row.get("text")).strip())]


def _keep(event: HookEvent, lines: Sequence[str]) -> None:
    if not lines:
        return
    settings = fill_group(Hindsight, event.values)
    item = {
        "content": "\n".join(lines),
        "context": "conversation with an agent",
        "document_id": event.id,
        "metadata": {"session_id": str(event.payload["session_id"])},
    }
    # Hindsight asks a model what to keep, which is not waited for here.
    told = {"items": [item], "async": True, "operation_id": str(uuid.uuid5(uuid.NAMESPACE_URL, event.id))}
    request = build_json_post(
        f"{_build_bank_url(settings, event.payload['tenant'])}/memories", told, _build_auth(settings)
    )
    request_json(_SERVICE, request, total_s=SYNC_S)


def _build_bank_url(settings: Hindsight, tenant: str) -> str:
    return f"{settings.url.rstrip('/')}/v1/default/banks/{quote(name_user(tenant, settings.bank), safe='')}"


def _build_auth(settings: Hindsight) -> Mapping[str, str]:
    return {"Authorization": f"Bearer {settings.key}"} if settings.key else {}
