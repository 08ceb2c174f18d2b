"""The operations of the API about MCP servers of a tenant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hermes_worker.features.mcp_servers.schema import McpServerObject
from hermes_worker.operation import ApiRequest, build_get, build_post, make_reader, read_nothing


def mcp_servers() -> ApiRequest[list[McpServerObject]]:
    """The MCP servers that the tenant keeps, without their tokens. None is asked."""
    return build_get("/v1/mcp-servers", make_reader(list[McpServerObject], "data"))


def mcp_server(name: str) -> ApiRequest[McpServerObject]:
    """An MCP server, with the tools that it offered when it was last asked, and the name of that ``offer``."""
    return build_get("/v1/mcp-servers/{mcp_server}", make_reader(McpServerObject), {"mcp_server": name})


def add_mcp_server(
    name: str,
    *,
    url: str = "",
    command: Sequence[str] = (),
    token: str | None = None,
    replaces: bool = False,
    **fields: Any,
) -> ApiRequest[McpServerObject]:
    """Keep a server, or change the one of its name. Without a ``token`` the one that it has stays, if the server stays
    where it is. ``fields`` are further fields of the body of ``POST /v1/mcp-servers``."""
    body = {"name": name, "url": url, "command": list(command), "token": token, "replace": replaces, **fields}
    return build_post("/v1/mcp-servers", make_reader(McpServerObject), body=body)


def approve_mcp_server(name: str, offer: str) -> ApiRequest[McpServerObject]:
    """Approve all that a server offered when ``offer`` was looked at. Idempotent."""
    template = "/v1/mcp-servers/{mcp_server}/approve"
    return build_post(template, make_reader(McpServerObject), {"mcp_server": name}, body={"offer": offer})


def test_mcp_server(name: str) -> ApiRequest[McpServerObject]:
    """Have a server be asked at once what it offers; ``looked_at`` of a later ``mcp_server`` says when it was."""
    return build_post("/v1/mcp-servers/{mcp_server}/test", make_reader(McpServerObject), {"mcp_server": name})


def remove_mcp_server(name: str) -> ApiRequest[None]:
    """Remove a server, with its token; its processes are ended."""
    template = "/v1/mcp-servers/{mcp_server}"
    return ApiRequest(method="DELETE", template=template, read=read_nothing, names={"mcp_server": name})
