"""MCP servers that tenants keep as rows (``features.mcp_servers.rows``): their tools, and the threads that list them.

A row is written by an administrator of a tenant, and not by the operator of the installation. So an address of a row is
judged as one of a model is, a command has to be one that the operator wrote down, word for word, and a row names no
directory and no variable but the one of its token. A token is never sent to another address than the one it was given
for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hermes_worker.agent.source_tools import build_definitions
from hermes_worker.agent.tools.base import ToolContext, ToolResult
from hermes_worker.agent.tools.results import build_error_result
from hermes_worker.agent.tools.sources import ToolGone
from hermes_worker.core.errors import UnavailableError
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.core.remote_tasks import RemoteTask
from hermes_worker.core.row_sources import format_source, format_source_with_tenant, parse_source
from hermes_worker.extension import ToolSpec
from hermes_worker.features.mcp_servers.rows import McpServers, McpServerWithToken
from hermes_worker.hosting.program import NotStarted
from hermes_worker.mcp.protocol import McpError, OfferedTools
from hermes_worker.mcp.requests import list_tools, negotiate_protocol
from hermes_worker.mcp.servers import KEPT_CHARS_MAX, McpServer, extract_told_parts, is_allowed
from hermes_worker.mcp.source import McpSource, RowPlace
from hermes_worker.mcp.stdio import list_tools_of_process
from hermes_worker.net.urls import UrlPolicy
from hermes_worker.observe import count, log, poll_forever
from hermes_worker.store.engine.sealing import TextTampered
from hermes_worker.store.resources import Resources, ResourceView
from hermes_worker.system.own_folders import temporary_folder
from hermes_worker.workspaces.sandbox.backends import Sandbox

LOOK_S: Final = 15.0
"""How many seconds a server of a tenant has to list its tools: another tenant's waits behind it."""
_LOOK_EVERY_S: Final = 1.0
_REFRESH_S: Final = 300.0
_AGAIN_S: Final = 30.0
"""How many seconds after a look that brought nothing the next one is made."""
_AT_ONCE: Final = 8
_NOT_ALLOWED: Final = "its command is none of mcp.row_commands (HERMES_MCP_ROW_COMMANDS) of the host"

AskServer = Callable[[McpServerWithToken, McpServer], tuple[McpServer, OfferedTools]]
"""Returns the server with the revision that it speaks, and the tools that it offers. Raises ``McpError``."""


@dataclass(frozen=True, slots=True)
class RowServers:
    """Makes the tool source of a row, in a worker for tools."""

    rows: McpServers
    resources: Resources
    policy: UrlPolicy

    def __call__(self, source: str) -> RowSource:
        """``source`` is the name of the source, with the tenant behind it or without."""
        name, tenant = parse_source(source)
        return RowSource(self, name, tenant)


class RowSource:
    """The tools of the server of this name, for the tenant of each call. The row is read at each call, so a change of
    it needs no restart. Thread-safe.
    """

    def __init__(self, servers: RowServers, name: str, tenant: str | None) -> None:
        self._servers = servers
        self._name = name
        self._tenant = tenant

    def list_tools(self) -> Sequence[ToolSpec]:
        """Always empty: the threads that look at rows write the tools of each tenant."""
        return ()

    def call(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Call a tool of the tenant's server. Raises ``ToolGone``, ``UnavailableError``."""
        try:
            source = self._build_tenant_source(context.origin.tenant)
        except TextTampered as error:
            return build_error_result(f"the server's row cannot be read: {error}; nothing was done")
        return source.call(name, arguments, context)

    def cancel_task(self, task: RemoteTask) -> None:
        """Tell the server that the task's result is not wanted any more. Raises ``McpError``, ``ToolGone``,
        ``TextTampered``.
        """
        self._build_tenant_source(self._tenant).cancel_task(task)

    def _build_tenant_source(self, tenant: str | None) -> McpSource:
        held = None if tenant is None else self._servers.rows.load_with_token(tenant, self._name)
        if held is None:
            raise ToolGone("its server was removed")
        return build_source(held, self._servers.policy, self._servers.resources)


def build_source(held: McpServerWithToken, policy: UrlPolicy, resources: Resources | None = None) -> McpSource:
    """The server of a row as a tool source."""
    row = held.row
    place = RowPlace(
        called=format_source(row.name), task_source=format_source_with_tenant(row.name, row.tenant), policy=policy
    )
    server = McpServer.model_validate_json(row.server)
    return McpSource(row.name, server, held.token, resources if server.is_process else None, row=place)


def find_row_process(
    rows: McpServers, resource: ResourceView, allowed: Collection[str]
) -> tuple[McpServer, str | None] | None:
    """The server to start for a resource that is a row's server; ``None`` where there is no such row. Raises
    ``NotStarted`` for a command that the operator does not allow, ``UnavailableError``.
    """
    name, _ = parse_source(resource.name)
    held = rows.load_with_token(resource.tenant, name)
    if held is None:
        return None
    server = McpServer.model_validate_json(held.row.server)
    if server.is_process and not is_allowed(server.command, allowed):
        raise NotStarted(_NOT_ALLOWED)
    return server, held.token


def make_address_asker(policy: UrlPolicy) -> AskServer:
    """Build the function by which a worker for tools asks servers that have an address."""

    def ask(held: McpServerWithToken, server: McpServer) -> tuple[McpServer, OfferedTools]:
        if held.row.offered is None:
            return negotiate_protocol(server, held.token, None, policy)
        return server, list_tools(server, held.token, None, policy)

    return ask


def make_process_asker(sandbox: Sandbox, allowed: Collection[str]) -> AskServer:
    """Build the function by which a host starts servers that have a command, asks them, and ends them again."""

    def ask(held: McpServerWithToken, server: McpServer) -> tuple[McpServer, OfferedTools]:
        if not is_allowed(server.command, allowed):
            raise McpError(_NOT_ALLOWED)
        with temporary_folder("mcp-") as folder:
            try:
                return server, list_tools_of_process(server, held.token, Path(folder) / "home", sandbox)
            except NotStarted as error:
                raise McpError(f"it cannot be started: {error}") from error

    return ask


class ServerLister:
    """Asks the servers of due rows for their tools, in a thread. While a server hangs or fails, its tools stay as they
    are.
    """

    def __init__(self, rows: McpServers, ask: AskServer, taken: Collection[str], *, is_process: bool) -> None:
        """``taken`` are the names of tools that exist without servers."""
        self._rows = rows
        self._ask = ask
        self._taken = frozenset(taken)
        self._is_process = is_process
        self._end = threading.Event()
        self._asking: list[threading.Thread] = []

    def start(self) -> None:
        threading.Thread(target=self._run, name="hermes_mcp_rows", daemon=True).start()

    def stop(self) -> None:
        """Stop asking. Idempotent; does not wait."""
        self._end.set()

    def _run(self) -> None:
        poll_forever(self._end, _LOOK_EVERY_S, self.poll_once, event="mcp.rows_unwatched")

    def poll_once(self) -> Sequence[threading.Thread]:
        """Start a thread for each server that is due, and return those threads. Raises ``UnavailableError``."""
        self._asking = [one for one in self._asking if one.is_alive()]
        begun = []
        while len(self._asking) < _AT_ONCE and (due := self._rows.claim_due(is_process=self._is_process)) is not None:
            begun.append(threading.Thread(target=self._list_server, args=due, name=f"mcp-{due[1]}", daemon=True))
            self._asking.append(begun[-1])
            begun[-1].start()
        return begun

    def _list_server(self, tenant: str, name: str) -> None:
        try:
            held = self._rows.load_with_token(tenant, name)
            if held is not None:
                self._list_held_server(held)
        except UnavailableError as error:
            log.debug("mcp.rows_unwatched", reason=str(error))
        except Exception as error:
            log.error("mcp.rows_unwatched", mcp_server=name, reason=f"{type(error).__name__}: {error}", exc_info=error)

    def _list_held_server(self, held: McpServerWithToken) -> None:
        row = held.row
        try:
            server = McpServer.model_validate_json(row.server)
            brief = server.model_copy(update={"timeout_s": min(server.timeout_s, LOOK_S)})
            spoke, offered = self._ask(held, brief)
            kept = extract_told_parts(offered)
            if len(kept_text := dump_canonical_json(kept)) > KEPT_CHARS_MAX:
                raise McpError(f"the definitions of its tools have more than {KEPT_CHARS_MAX:,} characters")
            found = build_source(held, UrlPolicy()).filter_approved(offered)
            definitions, untaken = build_definitions(format_source(row.name), found, self._taken)
        except (McpError, ValueError) as error:
            count("tool_source.failed")
            log.warning("tool_source.failed", tool_source=format_source(row.name), tenant=row.tenant, reason=str(error))
            self._rows.record_problem(row, str(error), again_s=_AGAIN_S)
            return
        for one in untaken:
            log.warning("tool_source.left_out", tool_source=format_source(row.name), reason=str(one))
        left_out = (*offered.left_out, *untaken)
        server = server.model_copy(update={"protocol": spoke.protocol, "left_out": left_out})
        self._rows.record_offer(
            row, offered=kept_text, server=server.model_dump_json(), definitions=definitions, again_s=_REFRESH_S
        )
