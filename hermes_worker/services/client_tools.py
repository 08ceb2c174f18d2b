"""The tools that clients brought to sessions (``core.client_tools``)."""

from __future__ import annotations

import json
from collections.abc import Sequence

from hermes_worker.agent.sourced import client_tools
from hermes_worker.core.client_tools import ClientTool
from hermes_worker.core.principals import Principal
from hermes_worker.store.runs.client_calls import ClientCalls
from hermes_worker.wiring import Client

__all__ = ["brought_tools", "client_tool_names", "has_other_tools", "session_tool_names"]


def client_tool_names(client: Client, run_id: str) -> frozenset[str]:
    """Of the session of a run. Raises ``RunNotFound``."""
    stored = ClientCalls(client.database).tools_of_run(run_id)
    return frozenset(tool.name for tool in client_tools(stored))


def brought_tools(stored: str) -> tuple[ClientTool, ...]:
    """Those of its client among the stored tool definitions of a session, by name."""
    return client_tools(stored)


def session_tool_names(client: Client, tenant: str, session: str) -> tuple[frozenset[str], frozenset[str]]:
    """Of the agent and of its client, in a session that a caller of the API calls so; none where there is none."""
    stored = ClientCalls(client.database).tools_of_session(tenant, "api", session) or "[]"
    of_client = frozenset(tool.name for tool in client_tools(stored))
    return frozenset(str(tool["function"]["name"]) for tool in json.loads(stored)) - of_client, of_client


def has_other_tools(client: Client, caller: Principal, session: str, tools: Sequence[ClientTool]) -> bool:
    """Whether a session has other tools of its client than these: they never change. ``session`` is as a caller of the
    API calls it; one that is not there yet has no others."""
    stored = ClientCalls(client.database).tools_of_session(caller.tenant, "api", session)
    return stored is not None and client_tools(stored) != tuple(sorted(tools, key=lambda tool: tool.name))
