"""Each MCP server as an extension of its own: a tool source, and a setting that holds the token of this server only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes_worker.extension import Extension, SettingDeclaration, SettingValue, ToolSourceDeclaration, load_reference
from hermes_worker.mcp.servers import McpServer, load_servers, name_credentials_variable, name_token_variable


@dataclass(frozen=True, slots=True)
class _SourceFactory:
    """Makes the tool source, in the process that asks it."""

    name: str
    server: McpServer

    def __call__(self, values: Mapping[str, SettingValue], **services: Any) -> Any:
        token, login = values.get("token"), values.get("credentials")
        grants = services.pop("grants", None)
        if login:
            found = load_reference("hermes_worker.mcp.logins:parse_login")(self.name, str(login))
            services["logins"] = load_reference("hermes_worker.mcp.logins:LoginBearers")(self.name, found, grants)
        made = load_reference("hermes_worker.mcp.source:McpSource")
        return made(self.name, self.server, str(token) if token else None, **services)


def build_extension(name: str, server: McpServer) -> Extension:
    """A server as an extension."""
    token = SettingDeclaration(
        name="token",
        variable=name_token_variable(name),
        summary=f"The token for the MCP server {name}.",
        is_secret=True,
        roles=("mcp",) if server.is_process else ("tools",),
    )
    login = SettingDeclaration(
        name="credentials",
        variable=name_credentials_variable(name),
        summary=f"The login at the MCP server {name}, as 'hermes-worker mcp login' writes it.",
        is_secret=True,
        roles=("tools",),
    )
    source = ToolSourceDeclaration(
        name=name,
        implementation=_SourceFactory(name, server),
        needs=("resources",) if server.is_process else ("grants",),
        timeout_s=server.timeout_s + 5,
    )
    return Extension(
        name=f"mcp-{name}",
        version="1",
        summary=f"The tools of the MCP server {name}",
        tool_sources=(source,),
        settings=(token,) if server.is_process else (token, login),
    )


def build_server_extensions(home: Path) -> tuple[Extension, ...]:
    """The extensions of every server of this home. Raises ``ConfigurationError``."""
    return tuple(build_extension(name, server) for name, server in sorted(load_servers(home).items()))
