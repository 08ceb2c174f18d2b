"""How tool sources are called that are MCP servers of a tenant's own, which stand in rows.

No other source can have such a name, because those that are declared hold no colon. The toolset of their tools is
called the same.
"""

from __future__ import annotations

from typing import Final

_PREFIX: Final = "mcp:"
_OF: Final = "@"


def source_of_row(server: str) -> str:
    """The source, and the toolset, of a tenant's MCP server."""
    return f"{_PREFIX}{server}"


def is_row_source(source: str) -> bool:
    """Whether a source is a tenant's MCP server."""
    return source.startswith(_PREFIX)


def source_with_tenant(server: str, tenant: str) -> str:
    """The same for whoever knows of no tenant: what is kept with a task of the server."""
    return f"{source_of_row(server)}{_OF}{tenant}"


def server_of_source(source: str) -> tuple[str, str | None]:
    """The server's name, and whose it is where the source says so."""
    name, _, tenant = source.removeprefix(_PREFIX).partition(_OF)
    return name, tenant or None
