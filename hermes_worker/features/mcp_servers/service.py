"""MCP servers that a tenant keeps in rows: store one, look at it, approve its tools.

Nothing here asks a server. Workers and hosts do (``features.mcp_servers.work``), and write what it offers. A person
approves the offer that was stored when the person looked: an offer has a name, and another offer has another name.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Final, Literal

from hermes_worker import installed
from hermes_worker.core.errors import ConfigurationError, HermesError
from hermes_worker.core.row_sources import format_source
from hermes_worker.features.mcp_servers.rows import McpServerExists, McpServerRow, McpServers, NewMcpServer
from hermes_worker.features.mcp_servers.schema import McpLeftOutTool, McpServerObject, McpToolObject
from hermes_worker.mcp.servers import McpServer, approve_tools, check_name, find_unapproved, is_allowed, make_server
from hermes_worker.settings import McpSettings
from hermes_worker.settings.role_secrets import is_secret

TOKEN_CHARS_MAX: Final = 4_000
_OFFER_CHARS: Final = 16


class McpRowsOff(HermesError):
    """This installation lets no tenant have MCP servers of its own."""


class McpServerInvalid(HermesError):
    """The given values cannot be an MCP server of a tenant."""


class McpOfferChanged(HermesError):
    """The server offers something else than what was looked at, or was not asked yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServerDraft:
    """A server that is to be stored."""

    url: str = ""
    command: tuple[str, ...] = ()
    token: str | None = field(default=None, repr=False)
    """``None`` keeps the stored token, if the server stays at its address."""
    token_as: str | None = None
    trusted: bool = False
    timeout_s: float = 60.0
    replaces: bool = False
    """Whether it may change the server of its name."""


def require_rows(settings: McpSettings) -> None:
    """Raise ``McpRowsOff`` where the installation has none of them."""
    if not settings.has_rows:
        raise McpRowsOff(
            "tenants have no MCP servers of their own here: the operator sets HERMES_MCP_ROWS (mcp.rows) to allow them"
        )


def store_mcp_server(
    rows: McpServers, settings: McpSettings, tenant: str, name: str, wanted: McpServerDraft
) -> McpServerObject:
    """Keep a server, or change the one of its name if it may. Nothing of it is offered before it was asked and
    approved; what was approved stays approved where the address or command stays. Raises ``McpServerExists``,
    ``McpRowsOff``, ``McpServerInvalid``, and what ``McpServers.write_server`` raises."""
    require_rows(settings)
    server = _build_server(settings, name, wanted)
    before = rows.find(tenant, name)
    if before is not None and not wanted.replaces:
        raise McpServerExists(f"there is an MCP server {name!r} already; change it with --replace")
    old = None if before is None else McpServer.model_validate_json(before.server)
    stays = old is not None and (old.url, old.command) == (server.url, server.command)
    if stays and old is not None:
        kept = {"tools": old.tools, "definitions": old.definitions, "protocol": old.protocol}
        server = server.model_copy(update=kept)
    new = NewMcpServer(
        server=server.model_dump_json(),
        is_process=server.is_process,
        token=wanted.token,
        keeps_token=stays and wanted.token is None,
        is_elsewhere=not stays,
    )
    facts = {"is_process": server.is_process, "trusted": server.trusted, "is_elsewhere": not stays}
    rows.write_server(tenant, name, new, before=before, facts=facts)
    return build_mcp_server_view(rows.require(tenant, name))


def _build_server(settings: McpSettings, name: str, wanted: McpServerDraft) -> McpServer:
    try:
        check_name(name)
        server = make_server(
            url=wanted.url,
            command=wanted.command,
            token_as=wanted.token_as,
            trusted=wanted.trusted,
            timeout_s=wanted.timeout_s,
        )
    except ConfigurationError as error:
        raise McpServerInvalid(str(error)) from None
    if name in installed.get_installed().tool_sources:
        raise McpServerInvalid(f"{name!r} is the name of tools that the installation has; choose another one")
    if server.is_process and not is_allowed(server.command, settings.row_commands):
        raise McpServerInvalid(
            "the operator allows no such command: those of HERMES_MCP_ROW_COMMANDS (mcp.row_commands) can be used, "
            "each word for word"
        )
    if server.token_as is not None and not is_secret(server.token_as, "a value"):
        raise McpServerInvalid("the variable of a token has a name that ends in _TOKEN, _SECRET, _PASSWORD or _API_KEY")
    if wanted.token is not None and not (
        wanted.token.isascii() and wanted.token.isprintable() and 0 < len(wanted.token) <= TOKEN_CHARS_MAX
    ):
        raise McpServerInvalid(f"a token has up to {TOKEN_CHARS_MAX:,} printable ASCII characters")
    return server


def approve_mcp_server(rows: McpServers, settings: McpSettings, tenant: str, name: str, offer: str) -> McpServerObject:
    """Approve all that the server offered when ``offer`` was looked at. Idempotent. Raises ``McpRowsOff``,
    ``McpServerNotFound``, ``McpOfferChanged``, ``McpServerChanged``."""
    row = rows.require(tenant, name)
    require_rows(settings)
    if row.offered is None:
        raise McpOfferChanged(f"nobody has asked the MCP server {name!r} yet what it offers; look at it again")
    if offer != _name_offer(row.offered):
        raise McpOfferChanged(f"the MCP server {name!r} offers something else by now; look at it again")
    offered = json.loads(row.offered)
    server = approve_tools(McpServer.model_validate_json(row.server), offered)
    rows.approve(row, server.model_dump_json(), facts={"offer": offer, "tools": len(offered)})
    return build_mcp_server_view(rows.require(tenant, name))


def ask_mcp_server_again(rows: McpServers, settings: McpSettings, tenant: str, name: str) -> McpServerObject:
    """Have a worker or a host ask the server at once what it offers. Raises ``McpRowsOff``, ``McpServerNotFound``."""
    rows.require(tenant, name)
    require_rows(settings)
    rows.mark_due(tenant, name)
    return build_mcp_server_view(rows.require(tenant, name))


def build_mcp_server_view(row: McpServerRow) -> McpServerObject:
    """A row for people."""
    server = McpServer.model_validate_json(row.server)
    offered = [] if row.offered is None else json.loads(row.offered)
    waiting = set(find_unapproved(server, offered))
    tools = [
        McpToolObject(
            name=one["name"],
            description=one.get("description") or "",
            input_schema=one["inputSchema"],
            annotations=one.get("annotations"),
            is_approved=one["name"] not in waiting,
        )
        for one in offered
    ]
    return McpServerObject(
        name=row.name,
        toolset=format_source(row.name),
        state=_classify_state(row, is_waiting=bool(waiting)),
        url=server.url or None,
        command=list(server.command),
        token_as=server.token_as,
        protocol="stdio" if server.is_process else server.protocol,
        trusted=server.trusted,
        timeout_s=server.timeout_s,
        has_token=row.has_token,
        offer=None if row.offered is None else _name_offer(row.offered),
        tools=tools,
        gone=sorted(server.tools.keys() - {one.name for one in tools}) if row.offered is not None else [],
        left_out=[McpLeftOutTool(name=one.name, reason=one.reason) for one in server.left_out],
        problem=row.problem,
        created_at=row.created_at,
        changed_at=row.changed_at,
        looked_at=row.looked_at,
    )


def _classify_state(row: McpServerRow, *, is_waiting: bool) -> Literal["unasked", "failing", "waiting", "ready"]:
    if row.problem is not None:
        return "failing"
    if row.offered is None:
        return "unasked"
    return "waiting" if is_waiting else "ready"


def _name_offer(offered: str) -> str:
    return hashlib.sha256(offered.encode()).hexdigest()[:_OFFER_CHARS]
