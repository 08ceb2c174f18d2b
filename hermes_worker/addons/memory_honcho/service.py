"""Requests to Honcho, as its package ``honcho-ai`` 2.7.0 makes them. Not tried live.

A *peer* is the user or the agent of a tenant, a *session* one of ours. A writer makes them first: Honcho returns
existing ones when they are made again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final
from urllib.parse import quote, urlencode

from hermes_worker.addons.http_json import AddonFailed, build_json_post, find_rows
from hermes_worker.addons.memory_honcho.settings import Honcho
from hermes_worker.addons.memory_requests import (
    RECALL_S,
    SYNC_S,
    clean_id,
    iterate_payload_texts,
    name_user,
    render_memories,
    request_json,
)
from hermes_worker.agent.tools.base import ToolContext
from hermes_worker.agent.tools.functions import ToolFailed, tool
from hermes_worker.core.hooks import HookEvent
from hermes_worker.core.json_values import read_list, read_mapping, read_text
from hermes_worker.net.http import HttpRequest
from hermes_worker.setting_groups import fill_group

_SERVICE: Final = "Honcho"
_QUERY_CHARS_MAX: Final = 8_000
_MESSAGE_CHARS_MAX: Final = 25_000
_SEARCH_S: Final = 20.0
_CONCLUSIONS: Final = 10


def recall(event: HookEvent) -> str | None:
    """What Honcho knows of the user, as far as it bears on their message. Raises ``AddonFailed``."""
    [query] = iterate_payload_texts(event, "user_message")
    if not query.strip():
        return None
    settings = fill_group(Honcho, event.values)
    user = quote(name_user(event.payload["tenant"], settings.user), safe="")
    wanted = urlencode({"search_query": query[:_QUERY_CHARS_MAX]})
    request = HttpRequest(
        method="GET",
        url=f"{_build_workspace_url(settings)}/peers/{user}/context?{wanted}",
        headers=_build_auth(settings),
        body=b"",
    )
    found = read_mapping(request_json(_SERVICE, request, total_s=RECALL_S))
    card = render_memories(read_text(row) for row in read_list(found.get("peer_card")))
    return "\n\n".join(part for part in (card, read_text(found.get("representation")).strip()) if part) or None


def keep_turn(event: HookEvent) -> None:
    """Send a turn's question and answer to Honcho. Raises ``AddonFailed``."""
    settings, tenant = fill_group(Honcho, event.values), event.payload["tenant"]
    asked_for, answered = iterate_payload_texts(event, "user_message", "assistant_response")
    user, agent = name_user(tenant, settings.user), name_user(tenant, settings.agent)
    _keep(settings, event, ((user, asked_for), (agent, answered)))


def keep_delegation(event: HookEvent) -> None:
    """Send a delegated task and its result to Honcho. Raises ``AddonFailed``."""
    settings = fill_group(Honcho, event.values)
    goal, summary = iterate_payload_texts(event, "child_goal", "child_summary")
    _keep(
        settings,
        event,
        ((name_user(event.payload["tenant"], settings.agent), f"Delegated: {goal}\nResult: {summary}"),),
    )


def keep_memory(event: HookEvent) -> None:
    """Have Honcho conclude what the agent wrote down of the user. Raises ``AddonFailed``."""
    settings, written = fill_group(Honcho, event.values), read_mapping(event.payload.get("args"))
    if written.get("target") != "user":
        return
    rows = [written, *(read_mapping(row) for row in read_list(written.get("operations")))]
    texts = [
        text for row in rows if row.get("action") in ("add", "replace") and (text := read_text(row.get("content")))
    ]
    if not texts:
        return
    tenant = event.payload["tenant"]
    pair = {"observer_id": name_user(tenant, settings.agent), "observed_id": name_user(tenant, settings.user)}
    _make_peers(settings, pair.values())
    _post(settings, "/conclusions", {"conclusions": [{**pair, "content": text} for text in texts]})


@tool(replay="pure", toolset="memory")
def honcho_search(query: Annotated[str, "What to look for."], settings: Honcho, context: ToolContext) -> list[str]:
    """Search what was concluded about the user in earlier conversations."""
    tenant = context.origin.tenant
    pair = {"observer_id": name_user(tenant, settings.agent), "observed_id": name_user(tenant, settings.user)}
    wanted = {"query": query[:_QUERY_CHARS_MAX], "top_k": _CONCLUSIONS, "filters": pair}
    try:
        found = _post(settings, "/conclusions/query", wanted, total_s=_SEARCH_S)
    except AddonFailed as failed:
        raise ToolFailed(str(failed)) from None
    return [read_text(row.get("content")) for row in find_rows(found)]


def _keep(settings: Honcho, event: HookEvent, rows: Sequence[tuple[str, str]]) -> None:
    messages = [
        {"peer_id": peer, "content": text[:_MESSAGE_CHARS_MAX], "metadata": {"event_id": event.id}}
        for peer, text in rows
        if text.strip()
    ]
    if not messages:
        return
    peers = list(dict.fromkeys(peer for peer, text in rows if text.strip()))
    _make_peers(settings, peers)
    session = clean_id(event.payload["session_id"])
    _post(settings, "/sessions", {"id": session, "peers": {peer: {} for peer in peers}})
    _post(settings, f"/sessions/{quote(session, safe='')}/messages", {"messages": messages})


def _make_peers(settings: Honcho, names: Iterable[str]) -> None:
    request_json(
        _SERVICE,
        build_json_post(
            f"{_build_base_url(settings)}/v3/workspaces", {"id": settings.workspace}, _build_auth(settings)
        ),
        total_s=SYNC_S,
    )
    for name in names:
        _post(settings, "/peers", {"id": name})


def _post(settings: Honcho, path: str, document: Mapping[str, Any], *, total_s: float = SYNC_S) -> Any:
    return request_json(
        _SERVICE,
        build_json_post(f"{_build_workspace_url(settings)}{path}", document, _build_auth(settings)),
        total_s=total_s,
    )


def _build_base_url(settings: Honcho) -> str:
    return settings.url.rstrip("/")


def _build_workspace_url(settings: Honcho) -> str:
    return f"{_build_base_url(settings)}/v3/workspaces/{quote(settings.workspace, safe='')}"


def _build_auth(settings: Honcho) -> Mapping[str, str]:
    return {"Authorization": f"Bearer {settings.key}"} if settings.key else {}
