"""Requests to Mem0, as ``MemoryClient`` of its package ``mem0ai`` 2.2.1 makes them. Not tried live."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final

from hermes_worker.addons.http_json import AddonFailed, build_json_post, find_rows
from hermes_worker.addons.memory_mem0.settings import Mem0
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

_SERVICE: Final = "Mem0"
_QUERY_CHARS_MAX: Final = 8_000
_SEARCH_S: Final = 20.0


def recall(event: HookEvent) -> str | None:
    """What Mem0 knows about the subject of the user's message. Raises ``AddonFailed``."""
    [query] = iterate_payload_texts(event, "user_message")
    if not query.strip():
        return None
    return render_memories(
        _search_memories(fill_group(Mem0, event.values), event.payload["tenant"], query, total_s=RECALL_S)
    )


def keep_turn(event: HookEvent) -> None:
    """Send a turn's question and answer to Mem0. Raises ``AddonFailed``."""
    asked_for, answered = iterate_payload_texts(event, "user_message", "assistant_response")
    _keep(event, (("user", asked_for), ("assistant", answered)))


def keep_delegation(event: HookEvent) -> None:
    """Send a delegated task and its result to Mem0. Raises ``AddonFailed``."""
    goal, summary = iterate_payload_texts(event, "child_goal", "child_summary")
    _keep(event, (("assistant", f"Delegated: {goal}\nResult: {summary}"),))


@tool(replay="pure", toolset="memory")
def mem0_search(query: Annotated[str, "What to look for."], settings: Mem0, context: ToolContext) -> list[str]:
    """Search what was remembered of the user in earlier conversations."""
    try:
        return list(_search_memories(settings, context.origin.tenant, query, total_s=_SEARCH_S))
    except AddonFailed as failed:
        raise ToolFailed(str(failed)) from None


def _search_memories(settings: Mem0, tenant: str, query: str, *, total_s: float) -> Iterable[str]:
    wanted = {
        "query": query[:_QUERY_CHARS_MAX],
        "filters": {"user_id": name_user(tenant, settings.user)},
        "top_k": settings.memories_max,
    }
    answer = request_json(
        _SERVICE,
        build_json_post(f"{_build_base_url(settings)}/v3/memories/search/", wanted, _build_auth(settings)),
        total_s=total_s,
    )
    return (read_text(row.get("memory")) for row in find_rows(answer, "results"))


def _keep(event: HookEvent, rows: Iterable[tuple[str, str]]) -> None:
    settings = fill_group(Mem0, event.values)
    messages = [{"role": role, "content": text} for role, text in rows if text.strip()]
    if not messages:
        return
    told: Mapping[str, Any] = {
        "messages": messages,
        "user_id": name_user(event.payload["tenant"], settings.user),
        "metadata": {"event_id": event.id},
    }
    request_json(
        _SERVICE,
        build_json_post(f"{_build_base_url(settings)}/v3/memories/add/", told, _build_auth(settings)),
        total_s=SYNC_S,
    )


def _build_base_url(settings: Mem0) -> str:
    return settings.url.rstrip("/")


def _build_auth(settings: Mem0) -> Mapping[str, str]:
    return {"Authorization": f"Token {settings.key}"}
