"""Requests to Mem0, as ``MemoryClient`` of its package ``mem0ai`` 2.2.1 makes them. Not tried live."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final

from hermes_worker.addons.asking import AddonFailed, json_post, rows_of, text_of
from hermes_worker.addons.memory_mem0.settings import Mem0
from hermes_worker.addons.recalling import RECALL_S, SYNC_S, asked, listed, said, whose
from hermes_worker.agent.tools.base import ToolContext
from hermes_worker.agent.tools.functions import ToolFailed, tool
from hermes_worker.core.hooks import HookEvent
from hermes_worker.setting_groups import filled

_SERVICE: Final = "Mem0"
_QUERY_CHARS_MAX: Final = 8_000
_SEARCH_S: Final = 20.0


def recall(event: HookEvent) -> str | None:
    """What Mem0 knows about the subject of the user's message. Raises ``AddonFailed``."""
    [query] = said(event, "user_message")
    if not query.strip():
        return None
    return listed(_found(filled(Mem0, event.values), event.payload["tenant"], query, total_s=RECALL_S))


def keep_turn(event: HookEvent) -> None:
    """Send a turn's question and answer to Mem0. Raises ``AddonFailed``."""
    asked_for, answered = said(event, "user_message", "assistant_response")
    _keep(event, (("user", asked_for), ("assistant", answered)))


def keep_delegation(event: HookEvent) -> None:
    """Send a delegated task and its result to Mem0. Raises ``AddonFailed``."""
    goal, summary = said(event, "child_goal", "child_summary")
    _keep(event, (("assistant", f"Delegated: {goal}\nResult: {summary}"),))


@tool(replay="pure", toolset="memory")
def mem0_search(query: Annotated[str, "What to look for."], settings: Mem0, context: ToolContext) -> list[str]:
    """Search what was remembered of the user in earlier conversations."""
    try:
        return list(_found(settings, context.origin.tenant, query, total_s=_SEARCH_S))
    except AddonFailed as failed:
        raise ToolFailed(str(failed)) from None


def _found(settings: Mem0, tenant: str, query: str, *, total_s: float) -> Iterable[str]:
    wanted = {
        "query": query[:_QUERY_CHARS_MAX],
        "filters": {"user_id": whose(tenant, settings.user)},
        "top_k": settings.memories_max,
    }
    answer = asked(
        _SERVICE, json_post(f"{_base(settings)}/v3/memories/search/", wanted, _auth(settings)), total_s=total_s
    )
    return (text_of(row.get("memory")) for row in rows_of(answer, "results"))


def _keep(event: HookEvent, rows: Iterable[tuple[str, str]]) -> None:
    settings = filled(Mem0, event.values)
    messages = [{"role": role, "content": text} for role, text in rows if text.strip()]
    if not messages:
        return
    told: Mapping[str, Any] = {
        "messages": messages,
        "user_id": whose(event.payload["tenant"], settings.user),
        "metadata": {"event_id": event.id},
    }
    asked(_SERVICE, json_post(f"{_base(settings)}/v3/memories/add/", told, _auth(settings)), total_s=SYNC_S)


def _base(settings: Mem0) -> str:
    return settings.url.rstrip("/")


def _auth(settings: Mem0) -> Mapping[str, str]:
    return {"Authorization": f"Token {settings.key}"}
