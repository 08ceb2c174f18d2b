"""Names of the tool sources that are MCP servers of tenants, stored as rows.

No other source can have such a name, because declared ones contain no colon. The toolset of their tools has the same
name.
"""

from __future__ import annotations

from typing import Final

_PREFIX: Final = "mcp:"
_OF: Final = "@"


def format_source(server: str) -> str:
    """The name of the source, and of the toolset, of a tenant's MCP server."""
    return f"{_PREFIX}{server}"


def is_row_source(source: str) -> bool:
    """Whether a source is a tenant's MCP server."""
    return source.startswith(_PREFIX)


def format_source_with_tenant(server: str, tenant: str) -> str:
    """The name of the source together with its tenant, as it is stored with a task of the server."""
    return f"{format_source(server)}{_OF}{tenant}"


def parse_source(source: str) -> tuple[str, str | None]:
    """Parse the server's name, and the tenant where the source names it, else ``None``."""
    name, _, tenant = source.removeprefix(_PREFIX).partition(_OF)
    return name, tenant or None
