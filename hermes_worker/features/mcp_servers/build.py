"""Build what lists and calls tenants' MCP servers from the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes_worker import installed
from hermes_worker.broker.queue import QueueName
from hermes_worker.settings import Settings
from hermes_worker.store.engine.database import Database
from hermes_worker.tasks.build import SharedParts
from hermes_worker.workspaces.build import build_sandbox

if TYPE_CHECKING:
    from hermes_worker.features.mcp_servers.work import ServerLister
    from hermes_worker.mcp.bridge import FindServer
    from hermes_worker.net.urls import UrlPolicy


def build_row_services(shared: SharedParts, policy: UrlPolicy) -> dict[str, object]:
    """The services that make tool sources of tenants' MCP servers; empty where there are none."""
    if not shared.settings.mcp.has_rows:
        return {}
    from hermes_worker.features.mcp_servers.rows import McpServers
    from hermes_worker.features.mcp_servers.work import RowServers
    from hermes_worker.store.resources import Resources

    database = shared.database
    return {"row_sources": RowServers(McpServers(database), Resources(database), policy)}


def build_row_finder(settings: Settings, database: Database) -> FindServer:
    """Build the function that finds the server of a row for a host; it finds none where tenants have none."""
    from hermes_worker.features.mcp_servers.rows import McpServers
    from hermes_worker.features.mcp_servers.work import find_row_process

    chosen, rows = settings.mcp, McpServers(database)
    return lambda resource: find_row_process(rows, resource, chosen.row_commands) if chosen.has_rows else None


def build_process_lister(settings: Settings, database: Database) -> ServerLister | None:
    """Build the lister of tenants' MCP servers that have a command; ``None`` where the operator allows no commands."""
    if not (settings.mcp.has_rows and settings.mcp.row_commands):
        return None
    from hermes_worker.features.mcp_servers.rows import McpServers
    from hermes_worker.features.mcp_servers.work import ServerLister, make_process_asker

    ask = make_process_asker(build_sandbox(settings), settings.mcp.row_commands)
    return ServerLister(McpServers(database), ask, installed.get_installed().tools, is_process=True)


def build_address_lister(shared: SharedParts) -> ServerLister | None:
    """Build the lister of tenants' MCP servers that have an address; ``None`` unless this is a worker for tools and
    tenants have any.
    """
    settings = shared.settings
    if not settings.mcp.has_rows or QueueName.TOOLS not in shared.options.queues:
        return None
    from hermes_worker.features.mcp_servers.rows import McpServers
    from hermes_worker.features.mcp_servers.work import ServerLister, make_address_asker
    from hermes_worker.net.urls import UrlPolicy

    ask = make_address_asker(UrlPolicy(allows_private=settings.agent.allow_private_urls))
    return ServerLister(McpServers(shared.database), ask, installed.get_installed().tools, is_process=False)
