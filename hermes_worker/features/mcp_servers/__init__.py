"""MCP servers kept as rows."""

from __future__ import annotations

from hermes_worker.extension import CommandDeclaration, Extension, RouterDeclaration, UpkeepDeclaration

EXTENSION = Extension(
    name="hermes-mcp-servers",
    version="1",
    summary="MCP servers kept as rows",
    routers=(
        RouterDeclaration(
            name="mcp_servers",
            implementation="hermes_worker.features.mcp_servers.routes:router",
            paths=(
                "/v1/mcp-servers",
                "/v1/mcp-servers/{mcp_server}",
                "/v1/mcp-servers/{mcp_server}/approve",
                "/v1/mcp-servers/{mcp_server}/test",
            ),
        ),
    ),
    commands=(
        CommandDeclaration(
            name="mcp",
            summary="Add, list, test, approve and remove MCP servers whose tools agents may call.",
            implementation="hermes_worker.features.mcp_servers.verbs:mcp",
            section="Develop",
        ),
    ),
    upkeep=(
        UpkeepDeclaration(
            name="mcp_servers",
            list_checks="hermes_worker.features.mcp_servers.checks:list_checks",
        ),
    ),
)
