"""The approved tools of one MCP server, as a ``ToolSource``. Imported by workers for tools and by nobody else."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hermes_worker.agent.tools.base import ToolContext, ToolResult
from hermes_worker.agent.tools.results import error_result
from hermes_worker.agent.tools.sources import ToolGone
from hermes_worker.core.replay import Replay
from hermes_worker.extension import ToolSpec
from hermes_worker.mcp.protocol import McpError, UnknownOutcome
from hermes_worker.mcp.requests import McpExchange, McpSession, call_tool, list_tools
from hermes_worker.mcp.servers import STATELESS, McpServer, changed, tool_name
from hermes_worker.observe import log

_MARGIN_S = 5.0
"""A call's request ends this long before its worker would cancel it."""


class McpSource:
    """Thread-safe; holds no connection."""

    def __init__(self, name: str, server: McpServer, token: str | None) -> None:
        self._name = name
        self._server = server
        self._token = token
        self._session_key = f"mcp-session:{name}"
        self._originals = {tool_name(name, tool): tool for tool in sorted(server.tools)}

    def list_tools(self) -> Sequence[ToolSpec]:
        """What it offers and the operator approved. Raises ``McpError``."""
        offered = list_tools(self._server, self._token)
        waiting = set(changed(self._server, offered))
        if waiting:
            log.warning("mcp.unapproved", mcp_server=self._name, tools=sorted(waiting)[:20])
        return [self._spec(one) for one in offered if one["name"] not in waiting]

    def call(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """One request, or what its revision takes. Whatever goes wrong costs this call only."""
        if name not in self._originals:
            raise ToolGone("it is not approved any more")
        ends_at = time.monotonic() + self._server.timeout_s
        session = McpSession.kept(context.session.get(self._session_key), self._server)
        asking = McpExchange(server=self._server, token=self._token, ends_at=ends_at, session=session)
        result = self._called(asking, name, arguments, context)
        return replace(result, session_updates={self._session_key: session.document}) if session.is_new else result

    def _called(self, asking: McpExchange, name: str, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        try:
            answer = call_tool(asking, self._originals[name], arguments, context.idempotency_key, context.cancelled)
        except UnknownOutcome as error:
            said = error_result(f"{error}. It may have acted all the same: look before you repeat the call")
            return replace(said, is_unknown=True)
        except McpError as error:
            return error_result(f"{error}; nothing was done")
        return ToolResult(text=answer.text, is_error=answer.is_error)

    def _spec(self, tool: Mapping[str, Any]) -> ToolSpec:
        return ToolSpec(
            name=tool_name(self._name, tool["name"]),
            description=tool.get("description") or "",
            parameters=tool["inputSchema"],
            toolset=self._name,
            replay=_replay(tool, is_trusted=self._server.trusted),
            is_untrusted=True,
            timeout_s=self._server.timeout_s + _MARGIN_S,
            session_keys=() if self._server.protocol == STATELESS else (self._session_key,),
        )


def _replay(tool: Mapping[str, Any], *, is_trusted: bool) -> Replay:
    """A stranger's word about its own tools is no reason to repeat one."""
    said = tool.get("annotations")
    if not is_trusted or not isinstance(said, dict):
        return Replay.ONCE
    if said.get("readOnlyHint") is True:
        return Replay.PURE
    return Replay.KEYED if said.get("idempotentHint") is True else Replay.ONCE
