"""What ``init --mcp-client NAME`` prints: the block of a client's configuration that leads it to our ``/mcp``. Pure.

The forms are those of the clients' own manuals (November 2026); no block holds a key.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

KEY_VARIABLE: Final = "HERMES_SERVER_KEY"
_NAME = "hermes"


@dataclass(frozen=True, slots=True, kw_only=True)
class McpClient:
    """A client of MCP servers, and the file that it reads."""

    file: str
    build: Callable[[str], str]
    """Builds the block for the address of the server."""
    note: str = ""


def _authorize(reference: str) -> Mapping[str, str]:
    return {"Authorization": f"Bearer {reference}"}


def _dump_json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2)


def _build_servers(field: str, reference: str, *, url: str = "url", **more: Any) -> Callable[[str], str]:
    """Make the builder of a JSON object of servers; ``reference`` is how the client names a variable, ``url`` the field
    of the address."""
    return lambda address: _dump_json(
        {field: {_NAME: {**more, url: address, "headers": _authorize(reference)}}},
    )


def _build_vscode(address: str) -> str:
    asked = {"type": "promptString", "id": "hermes-key", "description": "Key of Hermes worker", "password": True}
    server = {"type": "http", "url": address, "headers": _authorize("${input:hermes-key}")}
    return _dump_json({"inputs": [asked], "servers": {_NAME: server}})


def _build_codex(address: str) -> str:
    return f'[mcp_servers.{_NAME}]\nurl = {json.dumps(address)}\nbearer_token_env_var = "{KEY_VARIABLE}"'


def _build_desktop(address: str) -> str:
    # It starts processes only; mcp-remote carries the requests.
    arguments = ["-y", "mcp-remote", address, "--header", f"Authorization:${{{_HEADER}}}"]
    server = {"command": "npx", "args": arguments, "env": {_HEADER: "Bearer YOUR_KEY"}}
    return _dump_json({"mcpServers": {_NAME: server}})


_HEADER = "HERMES_AUTHORIZATION"
_VARIABLE = f"${{{KEY_VARIABLE}}}"
_ENV = f"${{env:{KEY_VARIABLE}}}"
MCP_CLIENTS: Final[Mapping[str, McpClient]] = {
    "claude-code": McpClient(file=".mcp.json", build=_build_servers("mcpServers", _VARIABLE, type="http")),
    "claude-desktop": McpClient(
        file="claude_desktop_config.json", build=_build_desktop, note="It needs Node.js; put the key into the file."
    ),
    "codex": McpClient(file="~/.codex/config.toml", build=_build_codex),
    "cursor": McpClient(file=".cursor/mcp.json", build=_build_servers("mcpServers", _ENV)),
    "gemini": McpClient(
        file="~/.gemini/settings.json", build=_build_servers("mcpServers", f"${KEY_VARIABLE}", url="httpUrl")
    ),
    "opencode": McpClient(
        file="opencode.json", build=_build_servers("mcp", f"{{env:{KEY_VARIABLE}}}", type="remote", enabled=True)
    ),
    "vscode": McpClient(file=".vscode/mcp.json", build=_build_vscode, note="It asks for the key once."),
    "windsurf": McpClient(
        file="~/.codeium/windsurf/mcp_config.json", build=_build_servers("mcpServers", _ENV, url="serverUrl")
    ),
}


def describe_mcp_client(name: str, address: str, key_place: str) -> str:
    """Describe where the block of a client belongs, and how the client gets the key."""
    client = MCP_CLIENTS[name]
    names_key = KEY_VARIABLE in client.build(address)
    key = f" with {KEY_VARIABLE} in its environment" if names_key else ""
    note = f" {client.note}" if client.note else ""
    return f"Put this into {client.file} and start {name}{key}. The key is in {key_place}.{note}"
