"""What the verbs of ``mcp`` do with servers in rows of a tenant."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Final

import click

from hermes_worker.cli.layout import render_table
from hermes_worker.cli.options import chosen_tenant
from hermes_worker.cli.screen import flatten_text
from hermes_worker.cli.server import find_chosen_server
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.principals import DEFAULT_TENANT

if TYPE_CHECKING:
    from hermes_worker.client import HermesClient
    from hermes_worker.features.mcp_servers.schema import McpServerObject

WAIT_S: Final = 60.0
"""Seconds to wait for a worker or a host to ask a server."""
_LOOK_S: Final = 0.5


def is_about_rows(is_row: bool) -> bool:
    """Whether a verb concerns rows: it says so, or names a server or a tenant, which have no ``mcp.json``."""
    return is_row or find_chosen_server() is not None or chosen_tenant() != DEFAULT_TENANT


def wait_for_look(client: HermesClient, name: str, before: float | None, *, wait_s: float = WAIT_S) -> McpServerObject:
    """Return the server once somebody has asked it since ``before``, its earlier ``looked_at``. Raises
    ``ConfigurationError`` when nobody does in ``wait_s`` seconds."""
    ends_at = time.monotonic() + wait_s
    while True:
        found = client.mcp_server(name)
        if found.looked_at is not None and found.looked_at != before:
            return found
        if time.monotonic() >= ends_at:
            who = "a host ('hermes-worker start mcp-host')" if found.command else "a worker for tools"
            raise ConfigurationError(
                f"{name} is kept, and {who} with HERMES_MCP_ROWS has not asked it yet; look again with: "
                f"hermes-worker mcp test {name} --row"
            )
        time.sleep(_LOOK_S)


def print_rows(client: HermesClient, *, as_json: bool) -> None:
    """Print the servers. Asks none of them."""
    found = client.mcp_servers()
    if as_json:
        for one in found:
            click.echo(json.dumps({name: one[name] for name in _LISTED} | {"waiting": one.waiting}))
    elif found:
        click.echo(render_table([_format_row(one) for one in found], _TITLES, ids=(0,), whole=(5,)))
    else:
        click.echo("no MCP servers in rows; add one with: hermes-worker mcp add NAME URL --row", err=True)


_TITLES: Final = ("SERVER", "STATE", "TOOLS", "TOKEN", "TRUSTED", "ADDRESS")
_LISTED: Final = (
    *("name", "toolset", "state", "url", "command", "protocol", "trusted", "has_token", "problem", "looked_at"),
)


def _format_row(one: McpServerObject) -> tuple[str, ...]:
    token, trusted = "set" if one.has_token else "none", "yes" if one.trusted else "no"
    where = flatten_text(one.url or " ".join(one.command), 200)
    return one.name, one.state, f"{one.approved_count}/{len(one.tools)}", token, trusted, where
