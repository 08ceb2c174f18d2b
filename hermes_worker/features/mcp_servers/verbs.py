"""The API's operations on MCP servers in rows of a tenant, as typed calls for the verbs of ``mcp``."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from hermes_worker.cli.layout import table
from hermes_worker.cli.options import chosen_tenant
from hermes_worker.cli.reaching import api_client
from hermes_worker.cli.screen import one_line
from hermes_worker.cli.server import chosen_server, read
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.principals import DEFAULT_TENANT
from hermes_worker.features.mcp_servers.service import ShownMcpServer, WantedMcpServer

if TYPE_CHECKING:
    from hermes_worker.client import HermesClient

WAIT_S: Final = 60.0
"""Seconds to wait for a worker or a host to ask a server."""
_LOOK_S: Final = 0.5


def means_row(is_row: bool) -> bool:
    """Whether a verb concerns rows: it says so, or names a server or a tenant, which have no ``mcp.json``."""
    return is_row or chosen_server() is not None or chosen_tenant() != DEFAULT_TENANT


def open_mcp_rows(home: Path | None) -> McpRows:
    """Open the MCP servers of a home or server. Raises ``ConfigurationError``, ``UnavailableError``."""
    return McpRows(api_client(home))


class McpRows:
    """The MCP servers of one tenant."""

    def __init__(self, client: HermesClient) -> None:
        self._client = client

    def all(self) -> Sequence[ShownMcpServer]:
        return [_shown(told) for told in self._client.mcp_servers()]

    def get(self, name: str) -> ShownMcpServer:
        return _shown(self._client.mcp_server(name))

    def keep(self, name: str, wanted: WantedMcpServer) -> ShownMcpServer:
        told = self._client.add_mcp_server(
            name,
            url=wanted.url,
            command=wanted.command,
            token=wanted.token,
            token_as=wanted.token_as,
            trusted=wanted.trusted,
            timeout_s=wanted.timeout_s,
            replaces=wanted.replaces,
        )
        return _shown(told)

    def approve(self, name: str, offer: str) -> ShownMcpServer:
        return _shown(self._client.approve_mcp_server(name, offer))

    def ask_again(self, name: str) -> ShownMcpServer:
        return _shown(self._client.test_mcp_server(name))

    def remove(self, name: str) -> None:
        self._client.remove_mcp_server(name)


def _shown(told: Mapping[str, Any]) -> ShownMcpServer:
    found: ShownMcpServer = read(
        ShownMcpServer, {name: value for name, value in told.items() if name in ShownMcpServer.__slots__}
    )
    return found


def awaited(rows: McpRows, name: str, before: float | None, *, wait_s: float = WAIT_S) -> ShownMcpServer:
    """Wait until the server was asked after ``before``, its earlier ``looked_at``, and load it. Raises
    ``ConfigurationError``."""
    ends_at = time.monotonic() + wait_s
    while True:
        found = rows.get(name)
        if found.looked_at is not None and found.looked_at != before:
            return found
        if time.monotonic() >= ends_at:
            who = "a host ('hermes-worker mcp-host')" if found.command else "a worker for tools"
            raise ConfigurationError(
                f"{name} is kept, and {who} with HERMES_MCP_ROWS has not asked it yet; look again with: "
                f"hermes-worker mcp test {name} --row"
            )
        time.sleep(_LOOK_S)


def list_rows(rows: McpRows, *, as_json: bool) -> None:
    """Print the servers. None is asked."""
    found = rows.all()
    if as_json:
        for one in found:
            click.echo(json.dumps({name: getattr(one, name) for name in _LISTED} | {"waiting": list(one.waiting)}))
    elif found:
        click.echo(table([_row(one) for one in found], _TITLES, ids=(0,), whole=(5,)))
    else:
        click.echo("no MCP servers in rows; add one with: hermes-worker mcp add NAME URL --row", err=True)


_TITLES: Final = ("SERVER", "STATE", "TOOLS", "TOKEN", "TRUSTED", "ADDRESS")
_LISTED: Final = (
    *("name", "toolset", "state", "url", "command", "protocol", "trusted", "has_token", "problem", "looked_at"),
)


def _row(one: ShownMcpServer) -> tuple[str, ...]:
    token, trusted = "set" if one.has_token else "none", "yes" if one.trusted else "no"
    where = one_line(one.url or " ".join(one.command), 200)
    return one.name, one.state, f"{one.approved}/{len(one.tools)}", token, trusted, where
