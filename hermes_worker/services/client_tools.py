"""The tools that clients brought to sessions (``core.client_tools``)."""

from __future__ import annotations

import json
from collections.abc import Sequence

from hermes_worker.agent.source_tools import read_client_tools
from hermes_worker.core.client_tools import ClientTool
from hermes_worker.core.principals import Principal
from hermes_worker.store.runs.client_calls import ClientCalls
from hermes_worker.wiring import Client

__all__ = ["find_client_tools", "has_other_tools", "list_client_tool_names", "list_session_tool_names"]


def list_client_tool_names(client: Client, run_id: str) -> frozenset[str]:
    """List the names of the client tools of a run's session. Raises ``RunNotFound``."""
    stored = ClientCalls(client.database).load_run_tools(run_id)
    return frozenset(tool.name for tool in read_client_tools(stored))


def find_client_tools(stored: str) -> tuple[ClientTool, ...]:
    """Find the client's tools among the stored tool definitions of a session, by name."""
    return read_client_tools(stored)


def list_session_tool_names(client: Client, tenant: str, session: str) -> tuple[frozenset[str], frozenset[str]]:
    """List the names of the agent's tools and of the client's tools, in a session that a caller of the API names so;
    both empty where there is no such session."""
    stored = ClientCalls(client.database).load_session_tools(tenant, "api", session) or "[]"
    of_client = frozenset(tool.name for tool in read_client_tools(stored))
    return frozenset(str(tool["function"]["name"]) for tool in json.loads(stored)) - of_client, of_client


def has_other_tools(client: Client, caller: Principal, session: str, tools: Sequence[ClientTool]) -> bool:
    """Whether a session has other tools of its client than these: they never change. ``session`` is a caller's name for
    it; a session that does not exist yet has no others."""
    stored = ClientCalls(client.database).load_session_tools(caller.tenant, "api", session)
    return stored is not None and read_client_tools(stored) != tuple(sorted(tools, key=lambda tool: tool.name))
