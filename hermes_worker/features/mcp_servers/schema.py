"""The MCP servers of a tenant, as the API answers them, the client returns them and commands print them."""

from __future__ import annotations

from typing import Any, Literal

from hermes_worker.resource import ListOf, Resource


class McpToolObject(Resource):
    """A tool as its server defined it when it was last asked: text of strangers."""

    name: str
    description: str
    input_schema: dict[str, Any]
    annotations: dict[str, Any] | None
    is_approved: bool


class McpLeftOutTool(Resource):
    """A tool that its server has to mend before agents can have it: text of strangers."""

    name: str
    """Empty for a tool without a name."""
    reason: str
    """Completes the sentence that begins with the name."""


class McpServerObject(Resource):
    """A server without its token. Times are epoch seconds."""

    object: Literal["hermes.mcp_server"] = "hermes.mcp_server"
    name: str
    toolset: str
    """The toolset of its tools."""
    state: Literal["unasked", "failing", "waiting", "ready"]
    """``unasked``: nobody has asked it yet; ``waiting``: a tool waits for approval."""
    url: str | None
    command: list[str]
    token_as: str | None
    protocol: str
    trusted: bool
    timeout_s: float
    has_token: bool
    offer: str | None
    """What is to be named when its tools are approved; ``null`` before it was asked."""
    tools: list[McpToolObject]
    gone: list[str]
    """Approved tools that it does not offer any more."""
    left_out: list[McpLeftOutTool]
    """Tools that it offered when it was last asked and that agents cannot have."""
    problem: str | None
    """Why it could not be asked the last time."""
    created_at: float
    changed_at: float
    looked_at: float | None

    @property
    def approved_count(self) -> int:
        """How many of the tools that it offers are approved."""
        return sum(one.is_approved for one in self.tools)

    @property
    def waiting(self) -> list[str]:
        """The names of the tools that it offers and that nobody approved."""
        return [one.name for one in self.tools if not one.is_approved]


class McpServerList(ListOf[McpServerObject]):
    """MCP servers by name."""

    takes_servers: bool = False
    """Tenants may keep servers here: the setting ``mcp.rows`` is on."""


class McpServerRemoved(Resource):
    name: str
    removed: Literal[True] = True
