"""Which server the command line asks instead of a database: ``--server``, and what belongs to it."""

from __future__ import annotations

import os
import ssl
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import click

from hermes_worker.cli.entry import Invocation
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.settings import is_loopback

if TYPE_CHECKING:
    from hermes_worker.client import HermesClient

_Command = TypeVar("_Command", bound=Callable[..., Any])
_KEY_BYTES_MAX = 4_096


@dataclass(slots=True)
class ServerChoice:
    """What the options of ``of_server`` say."""

    url: str | None = None
    key_file: Path | None = None
    ca_file: Path | None = None
    allows_plain: bool = False


def _noted(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def note(ctx: click.Context, _parameter: click.Parameter, value: Any) -> None:
        if value:
            setattr(_choice_of(ctx), name, value)

    return note


def _choice_of(ctx: click.Context) -> ServerChoice:
    invocation = ctx.ensure_object(Invocation)
    if invocation.server is None:
        invocation.server = ServerChoice()
    chosen: ServerChoice = invocation.server
    return chosen


def of_server(command: _Command, *, is_shown: bool) -> _Command:
    """``--server`` and its companions. A key is never written on a command line, where others could read it."""
    options = (
        click.option(
            "--server",
            envvar="HERMES_SERVER_URL",
            metavar="URL",
            hidden=not is_shown,
            expose_value=False,
            is_eager=True,
            callback=_noted("url"),
            help="Ask this server and no database. Default: $HERMES_SERVER_URL.",
        ),
        click.option(
            "--key-file",
            envvar="HERMES_SERVER_KEY_FILE",
            type=click.Path(path_type=Path),
            metavar="FILE",
            hidden=not is_shown,
            expose_value=False,
            is_eager=True,
            callback=_noted("key_file"),
            help="The key for --server is in this file. Default: $HERMES_SERVER_KEY_FILE.",
        ),
        click.option(
            "--ca-file",
            envvar="HERMES_SERVER_CA_FILE",
            type=click.Path(path_type=Path),
            metavar="FILE",
            hidden=not is_shown,
            expose_value=False,
            is_eager=True,
            callback=_noted("ca_file"),
            help="Authorities that may vouch for --server. Default: those of this machine.",
        ),
        click.option(
            "--insecure",
            is_flag=True,
            hidden=not is_shown,
            expose_value=False,
            is_eager=True,
            callback=_noted("allows_plain"),
            help="Send the key over http:// to another machine, where everybody on the way can read it.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def chosen_server() -> ServerChoice | None:
    """What the command line and the environment say; ``None`` where commands are about a home."""
    ctx = click.get_current_context(silent=True)
    chosen: ServerChoice | None = ctx.ensure_object(Invocation).server if ctx is not None else None
    return chosen if chosen is not None and chosen.url else None


def open_client(chosen: ServerChoice) -> HermesClient:
    """Raises ``ConfigurationError`` for what cannot be asked, or should not be."""
    from hermes_worker.client import HermesClient

    assert chosen.url is not None
    parts = urlsplit(chosen.url)
    is_here = is_loopback(parts.hostname or "")
    if parts.scheme == "http" and not is_here and not chosen.allows_plain:
        raise ConfigurationError(
            f"--server: {parts.hostname!r} is another machine, and over http:// everybody on the way can read the key; "
            "use https://, or a tunnel to 127.0.0.1, or add --insecure where the network is yours"
        )
    key = read_key(chosen.key_file) if chosen.key_file is not None else None
    if key is None and not is_here:
        raise ConfigurationError("--server needs a key: name the file that holds it with --key-file")
    return HermesClient(chosen.url, api_key=key, tls=_tls(chosen.ca_file))


def read_key(path: Path) -> str:
    """The key in a file; says so when others may read it. Raises ``ConfigurationError``, without what was read."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(_KEY_BYTES_MAX + 1).decode("ascii").strip()
    except OSError as error:
        raise ConfigurationError(f"--key-file {str(path)!r} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"--key-file {str(path)!r} holds no key") from None
    if not text or len(text) > _KEY_BYTES_MAX or any(c.isspace() for c in text):
        raise ConfigurationError(f"--key-file {str(path)!r} holds no key: write the key into it, and nothing else")
    if stat.S_ISREG(mode) and mode & (stat.S_IRGRP | stat.S_IROTH):
        click.echo(f"note: others may read {str(path)!r}; 'chmod 600' keeps the key to you", err=True)
    return text


def _tls(ca_file: Path | None) -> ssl.SSLContext | None:
    if ca_file is None:
        return None
    try:
        return ssl.create_default_context(cafile=str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"--ca-file {str(ca_file)!r} cannot be used: {error.strerror or error}") from None


_REASONS = {
    "backup": "a backup reads the database and the home themselves",
    "restore": "a restore replaces the database and the home themselves",
    "migrate": "the schema is changed where the database is",
    "doctor": "it looks at the machine that it runs on",
    "check": "it looks at the configuration of the machine that it runs on",
    "keys": "keys are made where the database is: the first of them could not be asked for over the API",
    "tenants": "tenants are made and limited by whoever has the database",
    "run": "it works in a directory of this machine; 'submit' hands a task to the server",
    "up": "it starts a server of its own",
    "erase": "an erasure cleans the broker and the files as well",
    "export": "an export is read from the database itself",
    "prune": "it deletes from the database itself",
    "retention": "what is kept is said where the database is",
    "webhook": "the secrets of routes are sealed with the key of the home",
    "encryption": "the keys of texts are in the home",
}
_PLAIN_REASON = "it works on the installation itself"


def refuse_server() -> None:
    """For a command that needs the installation itself. Raises ``ConfigurationError`` when a server was named."""
    chosen = chosen_server()
    if chosen is None:
        return
    ctx = click.get_current_context()
    words = ctx.command_path.split()[1:]
    reason = _REASONS.get(words[0] if words else "", _PLAIN_REASON)
    raise ConfigurationError(
        f"'{' '.join(words)}' cannot ask a server ({reason}); call it where the installation is, without --server and "
        "HERMES_SERVER_URL"
    )
