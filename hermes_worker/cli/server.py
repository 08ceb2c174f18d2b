"""The server that the command line calls instead of a home's database: ``--server``, and the options that belong to
it."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import click

from hermes_worker.cli.invocation import Invocation
from hermes_worker.core.errors import ConfigurationError, UnavailableError
from hermes_worker.core.principals import DEFAULT_TENANT
from hermes_worker.settings import is_loopback

if TYPE_CHECKING:
    import ssl

    from hermes_worker.client import HermesClient

_Command = TypeVar("_Command", bound=Callable[..., Any])
_KEY_BYTES_MAX = 4_096
_PATIENCE_S = 20.0
"""Seconds for which requests are retried. A person waits: the client's own minute would be long for an address where
nothing answers."""


@dataclass(slots=True)
class ServerChoice:
    """The values of the options of ``add_server_options``."""

    url: str = ""
    key_file: Path | None = None
    ca_file: Path | None = None
    allows_plain: bool = False


def _note_option(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def note(ctx: click.Context, _parameter: click.Parameter, value: Any) -> None:
        if value:
            setattr(_find_choice(ctx), name, value)

    return note


def _note_and_refuse(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    _note_option("url")(ctx, parameter, value)
    if not ctx.resilient_parsing:
        refuse_server(ctx)


def _find_choice(ctx: click.Context) -> ServerChoice:
    invocation = ctx.ensure_object(Invocation)
    if invocation.server is None:
        invocation.server = ServerChoice()
    chosen: ServerChoice = invocation.server
    return chosen


def add_leading_server_options(group: _Command) -> _Command:
    """Add ``--server`` and its companions before the verb, where the environment is read as well; the options behind
    the verb win."""
    return _add_options(group, is_shown=True, is_first=True)


def add_server_options(command: _Command) -> _Command:
    """Add ``--server`` and its companions behind the verb. A key is never written on a command line, where others could
    read it."""
    return _add_options(command, is_shown=True)


def refuse_server_options(command: _Command) -> _Command:
    """Make a verb that needs the installation itself refuse, with a reason, when a server is named."""
    return _add_options(command, is_shown=False)


def _add_options(command: _Command, *, is_shown: bool, is_first: bool = False) -> _Command:
    common: dict[str, Any] = {"expose_value": False, "is_eager": True, "hidden": not is_shown}
    path = click.Path(path_type=Path)
    options = (
        click.option(
            "--server",
            envvar="HERMES_SERVER_URL" if is_first else None,
            metavar="URL",
            callback=_note_option("url") if is_shown else _note_and_refuse,
            help="Ask this server and no database. Default: $HERMES_SERVER_URL.",
            **common,
        ),
        click.option(
            "--key-file",
            envvar="HERMES_SERVER_KEY_FILE" if is_first else None,
            type=path,
            metavar="FILE",
            callback=_note_option("key_file"),
            help="The key for --server is in this file. Default: $HERMES_SERVER_KEY_FILE.",
            **common,
        ),
        click.option(
            "--ca-file",
            envvar="HERMES_SERVER_CA_FILE" if is_first else None,
            type=path,
            metavar="FILE",
            callback=_note_option("ca_file"),
            help="Authorities that may vouch for --server. Default: those of this machine.",
            **common,
        ),
        click.option(
            "--insecure",
            is_flag=True,
            callback=_note_option("allows_plain"),
            help="Send the key over http:// to another machine, where everybody on the way can read it.",
            **common,
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def find_chosen_server() -> ServerChoice | None:
    """Find the server that the command line and the environment name; ``None`` where commands are about a home."""
    ctx = click.get_current_context(silent=True)
    chosen: ServerChoice | None = ctx.ensure_object(Invocation).server if ctx is not None else None
    return chosen if chosen is not None and chosen.url else None


def open_server_client(*, names_tenant: bool = False) -> HermesClient | None:
    """Open a client of the chosen server; ``None`` where the command is about a home. Only a command that
    ``names_tenant`` may have ``--tenant``. Raises ``ConfigurationError``."""
    chosen = find_chosen_server()
    if chosen is None:
        return None
    if not names_tenant and click.get_current_context().ensure_object(Invocation).tenant != DEFAULT_TENANT:
        raise ConfigurationError("--tenant is for a database; over a server the key says whose things are meant")
    return open_client(chosen)


def open_client(chosen: ServerChoice, *, patience_s: float | None = None) -> HermesClient:
    """Open a client. ``patience_s`` is the client's; ``None`` for that of a person who waits. Raises
    ``ConfigurationError`` for a server that cannot be called, or should not be."""
    from hermes_worker.client import HermesClient

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
    waits_s = _PATIENCE_S if patience_s is None else patience_s
    return HermesClient(chosen.url, api_key=key, tls=_build_tls(chosen.ca_file), patience_s=waits_s)


def read_key(path: Path, option: str = "--key-file") -> str:
    """Read the key in a file that an option names, and warn when others may read the file. Raises
    ``ConfigurationError``, without the file's content."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(_KEY_BYTES_MAX + 1).decode("ascii").strip()
    except OSError as error:
        raise ConfigurationError(f"{option} {str(path)!r} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{option} {str(path)!r} holds no key") from None
    if not text or len(text) > _KEY_BYTES_MAX or any(c.isspace() for c in text):
        raise ConfigurationError(f"{option} {str(path)!r} holds no key: write the key into it, and nothing else")
    if stat.S_ISREG(mode) and mode & (stat.S_IRGRP | stat.S_IROTH):
        click.echo(f"note: others may read {str(path)!r}; 'chmod 600' keeps the key to you", err=True)
    return text


def _build_tls(ca_file: Path | None) -> ssl.SSLContext | None:
    if ca_file is None:
        return None
    import ssl

    try:
        return ssl.create_default_context(cafile=str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"--ca-file {str(ca_file)!r} cannot be used: {error.strerror or error}") from None


_REASONS = {
    "data backup": "a backup reads the database and the home themselves",
    "data restore": "a restore replaces the database and the home themselves",
    "data migrate": "the schema is changed where the database is",
    "data rehearse": "it copies the database itself, and works on the copy",
    "doctor": "it looks at the machine that it runs on",
    "config check": "it looks at the configuration of the machine that it runs on",
    "config": "it is about the files of this machine; 'config show' tells the settings of a server",
    "run": "it works in a directory of this machine; 'submit' hands a task to the server",
    "init": "it writes the configuration of this machine",
    "up": "it starts a server of its own",
    "status": "it looks at processes of this machine; 'top' and 'fleet workers list' ask the server",
    "logs": "the log is a file of this machine",
    "down": "it stops processes of this machine",
    "start": "it is a process of the installation itself",
    "data workspaces": "workspaces are kept where the workers are",
    "dev new": "it copies files of this machine",
    "dev scripted-model": "it is a process of this machine",
    "dev chaos": "it breaks a fleet of its own on this machine",
    "dev prove": "it kills workers of its own on this machine",
    "data encryption": "the keys of texts are in the home",
    "extensions tools": "tools run where the workers are",
    "extensions": "extensions are installed where the workers are",
    "mcp": "MCP servers are approved where the workers are",
}
_PLAIN_REASON = "it works on the installation itself"


def refuse_server(ctx: click.Context | None = None) -> None:
    """Refuse ``--server`` for a command that needs the installation itself. Raises ``ConfigurationError`` when a server
    was named."""
    ctx = ctx or click.get_current_context()
    chosen: ServerChoice | None = ctx.ensure_object(Invocation).server
    if chosen is None or not chosen.url:
        return
    words = ctx.command_path.split()[1:]
    reason = next((found for n in (2, 1) if (found := _REASONS.get(" ".join(words[:n])))), _PLAIN_REASON)
    raise ConfigurationError(
        f"'{' '.join(words)}' cannot ask a server ({reason}); call it where the installation is, without --server and "
        "HERMES_SERVER_URL"
    )


def find_advice(error: Exception, invocation: Invocation) -> str | None:
    """Find advice about an error of the chosen server, where the error itself gives none; ``None`` otherwise."""
    chosen: ServerChoice | None = invocation.server
    if chosen is None or not chosen.url:
        return None
    from hermes_worker.client.exchange import RefusedError

    if isinstance(error, RefusedError):
        return _ADVICE_ON_STATUS.get(error.status)
    if not isinstance(error, UnavailableError):
        return None
    told = str(error)
    if "CERTIFICATE" in told.upper():
        return "name the authority that signed its certificate with --ca-file, and the server as the certificate does"
    return "see that the server runs and that --server names it" if "does not answer" in told else None


_NOT_FOUND = re.compile(r"(?P<what>[A-Z][a-z ]*) not found(?:: (?P<name>.*))?", re.S)
_NAMED_FIELD = re.compile(r"Invalid '[\w.\[\]-]+': ")
_WHERE_TO_LOOK = {
    "tenant": "make it with 'hermes-worker tenants create {name}'",
    "key": "'hermes-worker tenants keys list' shows those there are",
    "provider key": "'hermes-worker fleet providers keys list' shows those there are",
}


def rephrase_for_home(error: Exception, invocation: Invocation) -> str | None:
    """Write a refusal of a home's API as a command would say it: the person there named no field and sent no key.
    ``None`` for other errors."""
    from hermes_worker.client.exchange import RefusedError

    chosen: ServerChoice | None = invocation.server
    if not isinstance(error, RefusedError) or (chosen is not None and chosen.url):
        return None
    said = str(error).removesuffix(".")
    if missing := _NOT_FOUND.fullmatch(said):
        what, name = missing["what"].lower(), missing["name"]
        found = f"there is no such {what}" if name is None else f"there is no {what} {name!r}"
        return f"{found}; {_WHERE_TO_LOOK[what].format(name=name)}" if what in _WHERE_TO_LOOK else found
    said = _NAMED_FIELD.sub("", said, count=1)
    return f"{said[:1].lower()}{said[1:]}" if said[1:2].islower() else said


_ADVICE_ON_STATUS = {
    401: "see that --key-file holds the whole key, that this server gave it out, and that it has not ended",
    404: "the server tells of what belongs to the tenant of the key alone",
}
