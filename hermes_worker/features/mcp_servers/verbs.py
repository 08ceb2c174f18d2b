"""``hermes-worker mcp``: servers whose tools agents may call."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from hermes_worker import plugins
from hermes_worker.cli.api_connection import open_api_client
from hermes_worker.cli.list_output import print_entries
from hermes_worker.cli.mcp_logins import ServerCredentials, SignInChoices, has_login, open_credentials, sign_in_person
from hermes_worker.cli.options import TEXT, common, get_chosen_tenant, load_settings, of_tenant, reachable
from hermes_worker.cli.screen import flatten_text
from hermes_worker.cli.server import find_chosen_server
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.core.principals import DEFAULT_TENANT
from hermes_worker.core.tool_schemas import LeftOutTool
from hermes_worker.features.mcp_servers.service import TOKEN_CHARS_MAX
from hermes_worker.local.paths import prepare_home
from hermes_worker.mcp.extensions import build_extension
from hermes_worker.mcp.protocol import DEFINITION_CHARS_MAX, OfferedTools
from hermes_worker.mcp.requests import list_tools, negotiate_protocol
from hermes_worker.mcp.servers import (
    McpServer,
    approve_tools,
    check_name,
    find_unapproved,
    load_servers,
    make_server,
    name_token_variable,
    name_tools,
    write_servers,
)
from hermes_worker.safety.threats import ThreatScope, scan_text
from hermes_worker.settings import Settings
from hermes_worker.settings.role_secrets import is_secret
from hermes_worker.system.own_folders import temporary_folder

if TYPE_CHECKING:
    from hermes_worker.client import HermesClient
    from hermes_worker.features.mcp_servers.schema import McpLeftOutTool, McpServerObject

_DIRECTORY = click.Path(exists=True, file_okay=False, path_type=Path)
_RESTART = "restart the processes of this home, and give every machine of the fleet the same mcp.json"
_WAIT_S: Final = 60.0
"""Seconds to wait for a worker or a host to ask a server."""
_LOOK_S: Final = 0.5
_TITLES: Final = ("SERVER", "STATE", "TOOLS", "TOKEN", "TRUSTED", "ADDRESS")
_LISTED: Final = (
    *("name", "toolset", "state", "url", "command", "protocol", "trusted", "has_token", "problem", "looked_at"),
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def mcp() -> None:
    """Add, list, test, approve and remove MCP servers whose tools agents may call, and sign in there."""


_ROW = click.option(
    "--row", "is_row", is_flag=True, help="One that a tenant keeps in the database; what --server and --tenant mean."
)


@mcp.command(epilog="Example: hermes-worker mcp add files --write /srv/data -- mcp-server-filesystem /srv/data")
@reachable
@of_tenant
@_ROW
@click.argument("name", type=TEXT)
@click.argument("where", nargs=-1, required=True, metavar="URL | -- COMMAND [ARGUMENT]...")
@click.option("--trust", is_flag=True, help="Believe what the server says about repeating its tools.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(1, 600), default=60.0, show_default=True, help="Seconds.")
@click.option("--token-as", type=TEXT, help="The variable in which a command finds its token.")
@click.option(
    "--env", "env", multiple=True, metavar="NAME=VALUE", help="What a command's environment holds: no secret."
)
@click.option("--read", "reads", multiple=True, type=_DIRECTORY, help="A directory that a command may read.")
@click.option("--write", "writes", multiple=True, type=_DIRECTORY, help="A directory that a command may change.")
@click.option("--login", "logs_in", is_flag=True, help="Sign in at the server first.")
@click.option("--replace", "replaces", is_flag=True, help="Change the row of this name.")
@click.option("--token-file", type=click.File(), help="Of a row: holds its token, in one line; - reads it.")
@click.option("--yes", is_flag=True, help="Approve the tools without asking.")
def add(home: Path | None, name: str, where: tuple[str, ...], yes: bool, is_row: bool, **chosen: Any) -> None:
    """Ask a server for its tools, show them, and keep the server with those that you approve."""
    if _is_about_rows(is_row):
        client = open_api_client(home)
        _approve_row(client, _wait_for_look(client, name, _keep_row(client, name, where, chosen)), is_sure=yes)
        return
    if chosen["token_file"] is not None or chosen["replaces"]:
        raise ConfigurationError(
            f"--replace and --token-file are for rows; a token is set as {name_token_variable(name)}"
        )
    settings = load_settings(home, uses_extensions=False)
    check_name(name)
    servers = load_servers(settings.home)
    if name in servers:
        raise ConfigurationError(f"there is an MCP server {name!r}; remove it first, or approve its tools again")
    server = _build_server(where, chosen)
    plugins.check_extensions(settings, settings.extensions.enabled, build_extension(name, server))
    found = sign_in_person(settings, name, server.url, SignInChoices()) if chosen["logs_in"] else None
    server, offered = _ask_server(settings, name, server, found=found)
    _show(name, offered)
    _show_left_out(offered.left_out)
    _approve(settings, name, server, offered, is_sure=yes)


def _keep_row(client: HermesClient, name: str, where: tuple[str, ...], chosen: Mapping[str, Any]) -> float | None:
    """Keep the server as a row; returns when it was last asked, None for one that was not."""
    given = [option for option in ("env", "reads", "writes", "logs_in") if chosen[option]]
    if given:
        raise ConfigurationError("--env, --read, --write and --login are for servers of mcp.json")
    is_url = len(where) == 1 and "://" in where[0]
    token = None if chosen["token_file"] is None else chosen["token_file"].read(TOKEN_CHARS_MAX + 2).strip()
    kept = client.add_mcp_server(
        name,
        url=where[0] if is_url else "",
        command=() if is_url else where,
        token=token,
        token_as=chosen["token_as"],
        trusted=chosen["trust"],
        timeout_s=chosen["timeout_s"],
        replaces=chosen["replaces"],
    )
    return kept.looked_at


def _approve_row(client: HermesClient, found: McpServerObject, *, is_sure: bool) -> None:
    """Show what it offers otherwise than it was approved, and approve what it offers."""
    if found.problem is not None or found.offer is None:
        raise ConfigurationError(f"{found.name} cannot be asked: {flatten_text(found.problem or 'nobody did', 500)}")
    shown = [
        {"name": one.name, "description": one.description, "inputSchema": one.input_schema}
        | ({} if one.annotations is None else {"annotations": one.annotations})
        for one in found.tools
        if not one.is_approved
    ]
    _show(found.name, shown)
    _show_left_out(found.left_out)
    _require_sure(found.name, len(found.tools), is_sure=is_sure)
    client.approve_mcp_server(found.name, found.offer)
    click.echo(f"{found.name}: {len(found.tools)} tools are approved; sessions that begin in some seconds have them")


def _build_server(where: tuple[str, ...], chosen: Mapping[str, Any]) -> McpServer:
    usual = {"trusted": chosen["trust"], "timeout_s": chosen["timeout_s"]}
    if chosen["logs_in"] and not (len(where) == 1 and "://" in where[0]):
        raise ConfigurationError("--login is for servers that have an address")
    if len(where) == 1 and "://" in where[0]:
        given = [option for option in ("token_as", "env", "reads", "writes") if chosen[option]]
        if given:
            raise ConfigurationError("--token-as, --env, --read and --write are for servers that have a command")
        return make_server(url=where[0], **usual)
    pairs = [one.partition("=") for one in chosen["env"]]
    if any(not middle or not first.isidentifier() for first, middle, _ in pairs):
        raise ConfigurationError("--env takes NAME=VALUE")
    if secret := next((first for first, _, value in pairs if is_secret(first, value)), None):
        raise ConfigurationError(
            f"{secret} sounds like a secret, and this file holds none: set {name_token_variable('NAME')} and --token-as"
        )
    return make_server(
        command=where,
        env={first: value for first, _, value in pairs},
        token_as=chosen["token_as"],
        reads=tuple(str(path.resolve()) for path in chosen["reads"]),
        writes=tuple(str(path.resolve()) for path in chosen["writes"]),
        **usual,
    )


def _ask_server(
    settings: Settings,
    name: str,
    server: McpServer,
    *,
    finds_out: bool = True,
    found: ServerCredentials | None = None,
) -> tuple[McpServer, OfferedTools]:
    """Ask a server what it offers. Returns the server with the revision that it speaks, and its offer. One with a
    command is started for it, confined as in a host. ``found`` stands for the credentials of the settings. Raises
    ``ConfigurationError``, ``McpError``."""
    if not server.is_process:
        with nullcontext(found) if found is not None else open_credentials(settings, name) as shown:
            if finds_out:
                return negotiate_protocol(server, shown.token, shown.login)
            return server, list_tools(server, shown.token, shown.login)
    token = _find_token(settings, name)
    from hermes_worker.hosting.program import NotStarted
    from hermes_worker.mcp.stdio import list_tools_of_process
    from hermes_worker.workspaces.build import build_sandbox

    with temporary_folder("mcp-") as folder:
        try:
            return server, list_tools_of_process(server, token, Path(folder) / "home", build_sandbox(settings))
        except NotStarted as error:
            raise ConfigurationError(f"{name} cannot be started here: {error}") from error


@mcp.command("list")
@reachable
@of_tenant
@_ROW
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def list_servers(home: Path | None, is_row: bool, as_json: bool) -> None:
    """Which servers there are. Asks none of them."""
    if _is_about_rows(is_row):
        _print_rows(open_api_client(home), as_json=as_json)
        return
    settings = load_settings(home, uses_extensions=False)
    servers = load_servers(settings.home)
    print_entries(
        sorted(servers.items()),
        ("SERVER", "TOOLS", "PROTOCOL", "TOKEN", "TRUSTED", "ADDRESS"),
        lambda named: (named[0], *_format_row(settings, *named)),
        document=(lambda named: {"name": named[0], **named[1].model_dump(mode="json")}) if as_json else None,
        empty="no MCP servers; add one with: hermes-worker mcp add NAME URL",
        ids=(0,),
        whole=(5,),
    )


@mcp.command()
@reachable
@of_tenant
@_ROW
@click.argument("name", type=TEXT)
def test(home: Path | None, is_row: bool, name: str) -> None:
    """Ask a server for its tools, call none, and say what differs from what was approved."""
    if _is_about_rows(is_row):
        client = open_api_client(home)
        found = _wait_for_look(client, name, client.test_mcp_server(name).looked_at)
        if found.problem is not None:
            raise ConfigurationError(f"{name} cannot be asked: {flatten_text(found.problem, 500)}")
        _say_tested(name, len(found.tools), found.waiting, found.gone)
        _show_left_out(found.left_out)
        return
    settings = load_settings(home, uses_extensions=False)
    server = _require_server(settings, name)
    _, offered = _ask_server(settings, name, server, finds_out=False)
    gone = sorted(server.tools.keys() - {str(one["name"]) for one in offered})
    _say_tested(name, len(offered), find_unapproved(server, offered), gone)
    _show_left_out(offered.left_out)


def _say_tested(name: str, offered: int, waiting: Sequence[str], gone: Sequence[str]) -> None:
    click.echo(f"{name} answers: {offered} tools, {offered - len(waiting)} of them approved")
    for title, names in (("new or changed", waiting), ("gone", gone)):
        if names:
            click.echo(f"{title}: {flatten_text(', '.join(names), 2_000)}")
    if waiting:
        click.echo(f"look at them with: hermes-worker mcp approve {name}")


@mcp.command()
@reachable
@of_tenant
@_ROW
@click.argument("name", type=TEXT)
@click.option("--yes", is_flag=True, help="Approve the tools without asking.")
def approve(home: Path | None, is_row: bool, name: str, yes: bool) -> None:
    """Show what a server offers otherwise than it was approved, and approve what it offers now."""
    if _is_about_rows(is_row):
        client = open_api_client(home)
        _approve_row(client, _wait_for_look(client, name, client.test_mcp_server(name).looked_at), is_sure=yes)
        return
    settings = load_settings(home, uses_extensions=False)
    server, offered = _ask_server(settings, name, _require_server(settings, name))
    waiting = set(find_unapproved(server, offered))
    _show(name, [one for one in offered if one["name"] in waiting])
    _show_left_out(offered.left_out)
    _approve(settings, name, server, offered, is_sure=yes)


@mcp.command(epilog="A client secret is read from HERMES_MCP_NAME_CREDENTIALS_CLIENT_SECRET.")
@common
@click.argument("name", type=TEXT)
@click.option("--client-id", type=TEXT, default="", help="A client that you registered there; else one is registered.")
@click.option("--port", type=click.IntRange(0, 65_535), default=0, help="Where this machine listens for the answer.")
@click.option("--paste", "is_pasted", is_flag=True, help="For a browser on another machine: ask for the answer.")
@click.option("--scope", "scopes", multiple=True, type=TEXT, help="What the login shall also be allowed.")
def login(home: Path | None, name: str, client_id: str, port: int, is_pasted: bool, scopes: tuple[str, ...]) -> None:
    """Sign in at a server with a browser, and keep the login in .env."""
    settings = load_settings(home, uses_extensions=False)
    server = _require_server(settings, name)
    if server.is_process:
        raise ConfigurationError(f"{name} has a command, and no address at which to sign in")
    choices = SignInChoices(client_id=client_id, port=port, is_pasted=is_pasted, scopes=" ".join(scopes))
    sign_in_person(settings, name, server.url, choices)
    click.echo("restart the processes of this home, and give every machine with workers for tools the same line")


@mcp.command(epilog="Sessions that have its tools keep them in their list; a call of one is answered with an error.")
@reachable
@of_tenant
@_ROW
@click.argument("name", type=TEXT)
def remove(home: Path | None, is_row: bool, name: str) -> None:
    """Use a server no longer."""
    if _is_about_rows(is_row):
        open_api_client(home).remove_mcp_server(name)
        click.echo(f"{name} is removed")
        return
    settings = load_settings(home, uses_extensions=False)
    _require_server(settings, name)
    kept = {one: server for one, server in load_servers(settings.home).items() if one != name}
    write_servers(settings.home, kept)
    click.echo(f"{name} is removed; {_RESTART}")


def _require_server(settings: Settings, name: str) -> McpServer:
    servers = load_servers(settings.home)
    if name not in servers:
        there = ", ".join(sorted(servers)) or "none"
        raise ConfigurationError(f"there is no MCP server {name!r}; there are: {there}")
    return servers[name]


def _find_token(settings: Settings, name: str) -> str | None:
    return settings.variables.get(name_token_variable(name), "").strip() or None


def _format_row(settings: Settings, name: str, server: McpServer) -> tuple[str, ...]:
    token = "login" if has_login(settings, name) else "set" if _find_token(settings, name) else "none"
    protocol = "stdio" if server.is_process else server.protocol
    where = flatten_text(server.url or shlex.join(server.command), 200)
    return str(len(server.tools)), protocol, token, "yes" if server.trusted else "no", where


def _show(name: str, tools: Sequence[Mapping[str, Any]]) -> None:
    """Print all that a model would read, without anything that moves the cursor of a terminal."""
    names = name_tools(name, [str(one["name"]) for one in tools])
    for one in tools:
        description = str(one.get("description") or "")
        click.echo(f"{names[one['name']]}: {flatten_text(description, DEFINITION_CHARS_MAX)}")
        click.echo(f"  arguments: {flatten_text(dump_canonical_json(one['inputSchema']), DEFINITION_CHARS_MAX)}")
        if threats := scan_text(json.dumps(one, ensure_ascii=False), ThreatScope.STRICT):
            click.echo(f"  warning: it looks like an attempt to take over ({', '.join(threats)})")


def _show_left_out(left_out: Sequence[LeftOutTool | McpLeftOutTool]) -> None:
    """Each tool that the server offers and no agent can have, and why: its maker has to mend it."""
    for one in left_out:
        click.echo(f"left out: {flatten_text(str(LeftOutTool(one.name, one.reason)), 500)}")


def _approve(
    settings: Settings, name: str, server: McpServer, offered: Sequence[Mapping[str, Any]], *, is_sure: bool
) -> None:
    _require_sure(name, len(offered), is_sure=is_sure)
    prepare_home(settings.home)
    write_servers(settings.home, {**load_servers(settings.home), name: approve_tools(server, offered)})
    click.echo(f"{name}: {len(offered)} tools are approved; {_RESTART}")


def _require_sure(name: str, tools: int, *, is_sure: bool) -> None:
    """Ask for approval, unless the command line gives it. Raises ``ConfigurationError`` where no person could
    answer."""
    if not is_sure:
        if not sys.stdin.isatty():
            raise ConfigurationError("nobody is here to approve the tools: read them, then repeat with --yes")
        click.confirm(f"Approve {tools} tools of {name}?", abort=True)


def _is_about_rows(is_row: bool) -> bool:
    """Whether a verb concerns rows: it says so, or names a server or a tenant, which have no ``mcp.json``."""
    return is_row or find_chosen_server() is not None or get_chosen_tenant() != DEFAULT_TENANT


def _wait_for_look(client: HermesClient, name: str, before: float | None) -> McpServerObject:
    """Return the server once somebody has asked it since ``before``, its earlier ``looked_at``. Raises
    ``ConfigurationError`` when nobody does in a minute."""
    ends_at = time.monotonic() + _WAIT_S
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


def _print_rows(client: HermesClient, *, as_json: bool) -> None:
    """Print the servers. Asks none of them."""
    print_entries(
        client.mcp_servers(),
        _TITLES,
        _format_kept_row,
        document=(lambda one: {**{name: one[name] for name in _LISTED}, "waiting": one.waiting}) if as_json else None,
        empty="no MCP servers in rows; add one with: hermes-worker mcp add NAME URL --row",
        ids=(0,),
        whole=(5,),
    )


def _format_kept_row(one: McpServerObject) -> tuple[str, ...]:
    token, trusted = "set" if one.has_token else "none", "yes" if one.trusted else "no"
    where = flatten_text(one.url or " ".join(one.command), 200)
    return one.name, one.state, f"{one.approved_count}/{len(one.tools)}", token, trusted, where
