"""``HOME/mcp.json``: the MCP servers of an installation, and which of their tools the operator approved.

The file is written by ``hermes-worker mcp`` and holds no secret. Every process of the fleet reads the same file when it
begins. A tool is offered as long as its definition is the one that was approved, to the byte.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.messages import canonical_json
from hermes_worker.mcp import FILE
from hermes_worker.system.plainfiles import read_plain

STATELESS: Final = "2026-07-28"
WITH_SESSIONS: Final = "2025-11-25"
TOOLS_MAX = 500
"""Of one server."""
_BYTES_MAX = 1_000_000
_NAME = re.compile(r"[a-z][a-z0-9-]{0,23}")
_PLAIN_TOOL = re.compile(r"[A-Za-z0-9_-]+")
_TOOL_NAME_CHARS_MAX = 64
"""What every provider of models accepts."""


class McpServer(BaseModel):
    """A server whose tools agents may call."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str = Field(min_length=1, max_length=2_000)
    protocol: Literal["2026-07-28", "2025-11-25"] = STATELESS
    """The revision that it spoke when it was added; older revisions than the second are negotiated from there."""
    trusted: bool = False
    """What it says about repeating its tools is believed."""
    timeout_s: float = Field(default=60.0, ge=1, le=600)
    """Of one call, all its requests together."""
    tools: Mapping[str, str] = Field(default_factory=dict, max_length=TOOLS_MAX)
    """The approved tools, by the server's names: the digest of each definition."""

    @field_validator("url")
    @classmethod
    def _is_http(cls, url: str) -> str:
        if not re.match(r"https?://[^/@\s]+", url) or "@" in url.split("/")[2]:
            raise ValueError("an address begins with http:// or https:// and holds no password")
        return url


class _ServersFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    servers: Mapping[str, McpServer] = Field(default_factory=dict, max_length=50)


def servers_of(home: Path) -> Mapping[str, McpServer]:
    """The servers by name; none where there is no file. Raises ``ConfigurationError``."""
    path = home / FILE
    try:
        data = read_plain(path, bytes_max=_BYTES_MAX + 1)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {type(error).__name__}") from error
    if len(data) > _BYTES_MAX:
        raise ConfigurationError(f"{path} is larger than {_BYTES_MAX:,} bytes")
    try:
        found = _ServersFile.model_validate_json(data).servers
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise ConfigurationError(f"{path} cannot be used: {where}: {first['msg']}") from None
    for name in found:
        check_name(name)
    return found


def new_server(*, url: str, trusted: bool, timeout_s: float) -> McpServer:
    """A server of which nothing is approved yet. Raises ``ConfigurationError``."""
    try:
        return McpServer(url=url, trusted=trusted, timeout_s=timeout_s)
    except ValidationError as error:
        raise ConfigurationError(f"the server cannot be used: {error.errors()[0]['msg']}") from None


def check_name(name: str) -> None:
    """Raises ``ConfigurationError`` for what cannot be the name of a server. Without underscores, so that
    ``mcp_SERVER_TOOL`` can be read in one way only."""
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{name!r} cannot be the name of a server: up to 24 lower-case letters, digits and hyphens"
        )


def write_servers(home: Path, servers: Mapping[str, McpServer]) -> None:
    """Replace the file in one step; it is readable by its owner only."""
    path = home / FILE
    draft = path.with_name(f".{FILE}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(_ServersFile(servers=servers).model_dump(mode="json"), file, indent=2, sort_keys=True)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def digest(definition: Mapping[str, object]) -> str:
    """Of what a model is told about a tool, and of what we conclude about repeating it."""
    said = {key: definition.get(key) for key in ("name", "description", "inputSchema", "annotations")}
    return hashlib.sha256(canonical_json(said).encode()).hexdigest()[:32]


def tool_name(server: str, tool: str) -> str:
    """What models call a tool: ``mcp_SERVER_TOOL``. A name that no provider would take is shortened and gets a digest,
    so that two tools never share one."""
    name = f"mcp_{server}_{tool}"
    if _PLAIN_TOOL.fullmatch(tool) and len(name) <= _TOOL_NAME_CHARS_MAX:
        return name
    mark = hashlib.sha256(tool.encode()).hexdigest()[:8]
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)[: _TOOL_NAME_CHARS_MAX - len(mark) - 1]
    return f"{plain}_{mark}"


def token_variable(server: str) -> str:
    """The variable that holds the bearer token of a server."""
    return f"HERMES_MCP_{server.upper().replace('-', '_')}_TOKEN"


def changed(server: McpServer, definitions: Sequence[Mapping[str, object]]) -> Sequence[str]:
    """The names of offered tools that are not approved as they are now."""
    return [str(one["name"]) for one in definitions if server.tools.get(str(one["name"])) != digest(one)]
