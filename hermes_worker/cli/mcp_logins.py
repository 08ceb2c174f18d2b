"""Credentials for MCP servers at the command line: a token of the settings, or a login that a person signed in for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from hermes_worker.cli.screen import flatten_text
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.local.paths import has_no_rows, prepare_home
from hermes_worker.mcp.servers import name_credentials_variable, name_token_variable
from hermes_worker.settings import Settings
from hermes_worker.settings.dotenv import write_secret

if TYPE_CHECKING:
    from hermes_worker.mcp.http import TokenBearer
    from hermes_worker.mcp.oauth import SignInRequest

_PATIENCE_S: Final = 300.0
_PASTED_PORT: Final = 43_117
"""The port in the address of a pasted answer. Nothing listens there: the page that cannot be opened shows the address
to paste."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCredentials:
    """The credentials that a server gets."""

    token: str | None = field(default=None, repr=False)
    login: TokenBearer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInChoices:
    """Options for signing in."""

    client_id: str = ""
    port: int = 0
    is_pasted: bool = False
    scopes: str = ""
    """Further scopes that the login should have."""


def has_login(settings: Settings, name: str) -> bool:
    """Whether a person has signed in at a server."""
    return bool(settings.variables.get(name_credentials_variable(name), "").strip())


@contextmanager
def open_credentials(settings: Settings, name: str) -> Iterator[ServerCredentials]:
    """Open the credentials that workers would use. Raises ``ConfigurationError``."""
    if not has_login(settings, name):
        yield ServerCredentials(token=settings.variables.get(name_token_variable(name), "").strip() or None)
        return
    from hermes_worker.mcp.logins import LoginBearers, parse_login
    from hermes_worker.models.build import build_grants_at
    from hermes_worker.wiring import open_database

    if has_no_rows(settings):
        raise ConfigurationError("the tokens of logins stand in the database, and there is none yet: start the workers")
    found = parse_login(name, settings.variables[name_credentials_variable(name)])
    with closing(open_database(settings)) as database:
        yield ServerCredentials(login=LoginBearers(name, found, partial(build_grants_at, database)).make_bearer())


def sign_in_person(settings: Settings, name: str, url: str, choices: SignInChoices) -> ServerCredentials:
    """Have a person sign in, and store the login in ``HOME/.env``. Raises ``ConfigurationError``, ``McpError``."""
    from hermes_worker.mcp.callback import listen_for_callback
    from hermes_worker.mcp.logins import render_login
    from hermes_worker.mcp.sign_in import SignInClient, sign_in

    secret = settings.variables.get(f"{name_credentials_variable(name)}_CLIENT_SECRET", "").strip()
    if choices.is_pasted:
        own = SignInClient(
            redirect_url=f"http://127.0.0.1:{choices.port or _PASTED_PORT}/callback",
            client_id=choices.client_id,
            client_secret=secret,
            scopes=choices.scopes,
        )
        done = sign_in(url, own, _read_pasted)
    else:
        with listen_for_callback(choices.port) as page:

            def approve(asked: SignInRequest) -> str:
                _show_address(asked)
                return page.wait(asked.is_answered_by, patience_s=_PATIENCE_S)

            own = SignInClient(
                redirect_url=page.url, client_id=choices.client_id, client_secret=secret, scopes=choices.scopes
            )
            done = sign_in(url, own, approve)
    prepare_home(settings.home)
    document = render_login(done)
    if document is None:
        path = write_secret(settings.home, name_token_variable(name), done.granted.access_token)
        lasts = "as long as the server says" if (left_s := done.granted.lifetime_s) is None else f"{left_s:.0f} seconds"
        click.echo(
            f"{name} gave a token that cannot be renewed, good for {lasts}; it is {name_token_variable(name)} in {path}"
        )
    else:
        path = write_secret(settings.home, name_credentials_variable(name), document)
        click.echo(f"signed in at {name}; the login is {name_credentials_variable(name)} in {path}")
    return ServerCredentials(token=done.granted.access_token)


def _show_address(asked: SignInRequest) -> None:
    click.echo(
        f"Open this address, and approve there (it belongs to {flatten_text(asked.at.issuer, 200)}):\n", err=True
    )
    click.echo(f"{flatten_text(asked.address, 8_000)}\n", err=True)


def _read_pasted(asked: SignInRequest) -> str:
    _show_address(asked)
    click.echo("Paste the address to which that led, even if its page could not be shown:", err=True)
    return sys.stdin.readline().strip()
