"""Build the host of MCP servers from the settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hermes_worker.core.row_sources import is_row_source
from hermes_worker.settings import Settings
from hermes_worker.store.engine.database import Database
from hermes_worker.workspaces.build import build_copy_rule, build_sandbox

if TYPE_CHECKING:
    from hermes_worker.hosting.host import ResourceHost
    from hermes_worker.mcp.bridge import FindServer
    from hermes_worker.mcp.servers import McpServer
    from hermes_worker.store.resources import ResourceView


def build_server_host(
    settings: Settings, database: Database, find_row: FindServer, *, name: str, alive_file: Path | None
) -> ResourceHost:
    """Build the host of the MCP servers that have a command. ``find_row`` finds one that a tenant keeps as a row.
    Raises ``ConfigurationError``, ``OSError``.
    """
    from hermes_worker.hosting.host import HostOptions, find_advertised_host
    from hermes_worker.hosting.program import NotStarted
    from hermes_worker.mcp.bridge import McpBridge, build_mcp_host
    from hermes_worker.mcp.servers import load_servers, name_token_variable
    from hermes_worker.store.resources import Resources
    from hermes_worker.workspaces.base import WorkspaceError

    chosen, servers = settings.mcp, load_servers(settings.home)

    rule = build_copy_rule(settings, database)

    def find_server(resource: ResourceView) -> tuple[McpServer, str | None] | None:
        if is_row_source(resource.name):
            return find_row(resource)
        token = settings.variables.get(name_token_variable(resource.name), "").strip() or None
        if resource.name not in servers:
            return None
        try:
            for path in servers[resource.name].writes:
                rule.require_own_folder(path)
        except WorkspaceError as error:
            raise NotStarted(str(error)) from error
        return servers[resource.name], token

    options = HostOptions(
        name=name,
        hosted_max=chosen.processes_max,
        idle_s=chosen.idle_s,
        ttl_s=settings.lease.ttl_s,
        folder=settings.home / "mcp-servers",
        alive_file=alive_file,
    )
    return build_mcp_host(
        Resources(database),
        find_server,
        build_sandbox(settings),
        options,
        lambda may_use: McpBridge(chosen.host.strip("[]"), find_advertised_host(chosen.host, chosen.address), may_use),
    )
