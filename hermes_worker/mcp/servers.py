"""``HOME/mcp.json``: the MCP servers of an installation, and which of their tools the operator approved.

The file is written by ``hermes-worker mcp`` and holds no secret. Every process of the fleet reads the same file when it
begins. A tool is offered as long as its definition is the one that was approved, to the byte.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.core.tool_schemas import NAME_CHARS_MAX, LeftOutTool
from hermes_worker.mcp import FILE
from hermes_worker.mcp.param_headers import find_header_paths
from hermes_worker.system.plainfiles import read_plain

STATELESS: Final = "2026-07-28"
WITH_SESSIONS: Final = "2025-11-25"
WITH_EVENT_STREAM: Final = "2024-11-05"
"""Each connection is a session, and its server says everything in one stream."""
TOOLS_MAX = 500
"""How many tools one server may have."""
KEPT_CHARS_MAX: Final = 1_000_000
"""Characters of the definitions of a server that is a process, all together."""
_BYTES_MAX = 8_000_000
_SAID: Final = ("name", "description", "inputSchema", "annotations")
_NAME = re.compile(r"[a-z][a-z0-9-]{0,23}")
_PLAIN_TOOL = re.compile(r"[A-Za-z0-9_-]+")


class McpServer(BaseModel, frozen=True, extra="forbid"):
    """A server whose tools agents may call."""

    url: str = Field(default="", max_length=2_000)
    """Empty for a server that is a process."""
    command: tuple[str, ...] = Field(default=(), max_length=100)
    """The program of a server that speaks over its standard input and output, and its arguments. A host starts one for
    each session that calls it (``hermes-worker start mcp-host``)."""
    env: Mapping[str, str] = Field(default_factory=dict, max_length=50)
    """Variables of its environment beside ``PATH``, ``HOME`` and the proxy: no secrets."""
    token_as: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$")
    """The variable in which it finds its token."""
    reads: tuple[str, ...] = Field(default=(), max_length=50)
    """Directories of the host that it may read beside the system's."""
    writes: tuple[str, ...] = Field(default=(), max_length=50)
    """Directories of the host that it may read and write. Every session's process has the same ones."""
    protocol: Literal["2026-07-28", "2025-11-25", "2024-11-05"] = STATELESS
    """The revision that it spoke when it was added; those between the second and the third are negotiated from the
    second."""
    trusted: bool = False
    """Whether its own word about repeating its tools is believed."""
    timeout_s: float = Field(default=60.0, ge=1, le=600)
    """Seconds that one call may take, all its requests together."""
    tools: Mapping[str, str] = Field(default_factory=dict, max_length=TOOLS_MAX)
    """The approved tools, by the server's names: the digest of each definition."""
    headers: Mapping[str, Mapping[str, tuple[str, ...]]] = Field(
        default_factory=dict, max_length=TOOLS_MAX, exclude_if=lambda headers: not headers
    )
    """Arguments of the approved tools that are sent as headers as well: by the server's names, the end of a header's
    name and the path of its value. Not written where it is empty, so that a process of the version before reads it.
    """
    left_out: tuple[LeftOutTool, ...] = Field(
        default=(), max_length=2 * TOOLS_MAX, exclude_if=lambda left_out: not left_out
    )
    """The tools of a server in a row that agents could not have when it was last asked. Not written where it is empty,
    as ``headers``.
    """
    definitions: tuple[Mapping[str, Any], ...] = Field(default=(), max_length=TOOLS_MAX)
    """The approved definitions themselves, of a server that is a process: listing them starts nothing."""

    @property
    def is_process(self) -> bool:
        return bool(self.command)

    @property
    def keeps_sessions(self) -> bool:
        """Whether the server gives ids to its sessions, so that a session is more than a connection."""
        return self.protocol == WITH_SESSIONS and not self.is_process

    @model_validator(mode="after")
    def _is_one_of_both(self) -> McpServer:
        if bool(self.url) == bool(self.command):
            raise ValueError("a server has either an address or a command")
        if not self.command and (self.env or self.token_as or self.reads or self.writes or self.definitions):
            raise ValueError("only a server with a command has an environment, directories and kept definitions")
        if any(not Path(path).is_absolute() for path in (*self.reads, *self.writes)):
            raise ValueError("directories of a server are absolute paths")
        return self

    @field_validator("command", "reads", "writes")
    @classmethod
    def _are_words(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        if any(not word or "\0" in word or len(word) > 4_000 for word in words):
            raise ValueError("a word of a command, or a path, has 1 to 4,000 characters")
        return words

    @field_validator("url")
    @classmethod
    def _is_http(cls, url: str) -> str:
        if url and (not re.match(r"https?://[^/@\s]+", url) or "@" in url.split("/")[2]):
            raise ValueError("an address begins with http:// or https:// and holds no password")
        return url


class _ServersFile(BaseModel, frozen=True, extra="forbid"):
    servers: Mapping[str, McpServer] = Field(default_factory=dict, max_length=50)


def load_servers(home: Path) -> Mapping[str, McpServer]:
    """The servers by name; empty where there is no file. Raises ``ConfigurationError``."""
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


def make_server(**facts: Any) -> McpServer:
    """Make a server without any approved tool. Raises ``ConfigurationError``."""
    try:
        return McpServer(**facts)
    except ValidationError as error:
        raise ConfigurationError(f"the server cannot be used: {error.errors()[0]['msg']}") from None


def check_name(name: str) -> None:
    """Raise ``ConfigurationError`` for a text that cannot be the name of a server. It has no underscores, so that
    ``mcp_SERVER_TOOL`` can be read in one way only.
    """
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


def approve_tools(server: McpServer, offered: Sequence[Mapping[str, Any]]) -> McpServer:
    """The server with all that it offers now as its approved tools. Raises ``ConfigurationError``."""
    headers = {str(one["name"]): find_header_paths(one.get("inputSchema")) for one in offered}
    found: dict[str, Any] = {
        "tools": {str(one["name"]): digest_definition(one) for one in offered},
        "headers": {} if server.is_process else {name: paths for name, paths in headers.items() if paths},
    }
    if not server.is_process:
        return server.model_copy(update=found)
    kept = extract_told_parts(offered)
    if len(dump_canonical_json(kept)) > KEPT_CHARS_MAX:
        raise ConfigurationError(f"the definitions of its tools have more than {KEPT_CHARS_MAX:,} characters")
    return server.model_copy(update={**found, "definitions": tuple(kept)})


def is_allowed(command: Sequence[str], allowed: Collection[str]) -> bool:
    """Whether a row may name this command: it is one that the operator wrote, word for word."""
    return tuple(command) in {tuple(shlex.split(one)) for one in allowed}


def extract_told_parts(offered: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The members of each definition that a model is told, and those that we conclude from."""
    return [{key: one[key] for key in _SAID if one.get(key) is not None} for one in offered]


def digest_definition(definition: Mapping[str, object]) -> str:
    """A digest of what a model is told about a tool, and of what we conclude about repeating it."""
    said = {key: definition.get(key) for key in _SAID}
    return hashlib.sha256(dump_canonical_json(said).encode()).hexdigest()[:32]


def name_tools(server: str, tools: Collection[str]) -> Mapping[str, str]:
    """The agents' name of each tool, by the server's names: ``mcp_SERVER_TOOL``. A name that no provider would take is
    shortened and gets a digest, a longer one where another tool is called so.
    """
    names = {tool: name for tool in tools if (name := name_tool(server, tool)) == f"mcp_{server}_{tool}"}
    taken = set(names.values())
    for tool in sorted(set(tools) - names.keys()):
        spellings = (name_tool(server, tool, mark_chars) for mark_chars in (8, 16, 24, 32))
        names[tool] = next(spelling for spelling in spellings if spelling not in taken)
        taken.add(names[tool])
    return names


def name_tool(server: str, tool: str, mark_chars: int = 8) -> str:
    """The agents' name of a tool where no other tool has the same one."""
    name = f"mcp_{server}_{tool}"
    if _PLAIN_TOOL.fullmatch(tool) and len(name) <= NAME_CHARS_MAX:
        return name
    mark = hashlib.sha256(tool.encode()).hexdigest()[:mark_chars]
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)[: NAME_CHARS_MAX - len(mark) - 1]
    return f"{plain}_{mark}"


def name_token_variable(server: str) -> str:
    """The variable that holds the bearer token of a server."""
    return f"HERMES_MCP_{server.upper().replace('-', '_')}_TOKEN"


def name_credentials_variable(server: str) -> str:
    """The variable that holds the login of a server."""
    return f"HERMES_MCP_{server.upper().replace('-', '_')}_CREDENTIALS"


def find_unapproved(server: McpServer, definitions: Sequence[Mapping[str, object]]) -> Sequence[str]:
    """The names of offered tools that are not approved as they are now."""
    return [str(one["name"]) for one in definitions if server.tools.get(str(one["name"])) != digest_definition(one)]
