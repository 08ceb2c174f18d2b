"""Options that several commands share, and the settings they lead to."""

from __future__ import annotations

import difflib
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import click

from hermes_worker import settings as settings_module
from hermes_worker.cli.invocation import Invocation
from hermes_worker.cli.server import add_server_options, refuse_server, refuse_server_options
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.principals import DEFAULT_TENANT, format_machine_user
from hermes_worker.settings import Secret, Settings
from hermes_worker.settings.secret_transfer import show_memory

PROMPT_BYTES_MAX = 10 * 1024 * 1024
_Command = TypeVar("_Command", bound=Callable[..., Any])


class _Text(click.ParamType):  # type: ignore[type-arg]
    """Text from the command line. Bytes that are no UTF-8 arrive as lone surrogates, which no database takes."""

    name = "text"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


TEXT = _Text()


class OneOf(click.Choice[str]):
    """One of several words; a wrong one is answered with the word that was probably meant."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        return f"{super().get_invalid_choice_message(value, ctx)}{suggest_word(str(value), self.choices)}"


def suggest_word(written: str, words: Iterable[str]) -> str:
    """A sentence with the word that is most like ``written``; empty when none is."""
    found = difflib.get_close_matches(written.lower(), list(words), n=1)
    return f" Did you mean {found[0]!r}?" if found else ""


def _note_debugging(ctx: click.Context, _: click.Parameter, is_debugging: bool) -> None:
    if is_debugging:
        ctx.ensure_object(Invocation).is_debugging = True


def common(command: _Command) -> _Command:
    """Add ``--home`` and ``--debug`` to a command that needs the installation itself."""
    return _of_home(refuse_server_options(command))


def reachable(command: _Command) -> _Command:
    """Add ``--home``, ``--debug`` and ``--server`` to a command that can also ask a server."""
    return _of_home(add_server_options(command))


def _of_home(command: _Command) -> _Command:
    home = click.option(
        "--home",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="State, config.yaml and .env are here. Default: $HERMES_HOME, else ~/.hermes-worker.",
    )
    debug = click.option(
        "--debug",
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=_note_debugging,
        help="Show the traceback of an error.",
    )
    return home(debug(command))


def _note_tenant(ctx: click.Context, _: click.Parameter, tenant: str) -> None:
    ctx.ensure_object(Invocation).tenant = tenant


def of_tenant(command: _Command) -> _Command:
    """``--tenant``: the command sees and changes what is that tenant's, and nothing else."""
    option = click.option(
        "--tenant",
        type=TEXT,
        envvar="HERMES_TENANT",
        default=DEFAULT_TENANT,
        metavar="NAME",
        expose_value=False,
        is_eager=True,
        callback=_note_tenant,
        help=f"Whose runs, jobs and routes are meant. Default: $HERMES_TENANT, else {DEFAULT_TENANT}.",
    )
    return option(command)


def get_chosen_tenant() -> str:
    """What ``--tenant`` says; the default one for a command without it."""
    ctx = click.get_current_context(silent=True)
    return ctx.ensure_object(Invocation).tenant if ctx is not None else DEFAULT_TENANT


def find_named_tenant() -> str | None:
    """Return the tenant to name to the API; None for the default one, because a key of another tenant says its own."""
    tenant = get_chosen_tenant()
    return None if tenant == DEFAULT_TENANT else tenant


def find_this_user() -> str:
    """Find the person who types commands, by the system's word and not that of a variable."""
    import pwd  # not on Windows, where only 'doctor' works

    number = os.getuid()
    try:
        return format_machine_user(pwd.getpwuid(number).pw_name)
    except KeyError:  # a container's user may have no name
        return format_machine_user(f"uid {number}")


def act_as_this_user() -> None:
    """From here on the audit log knows who acts."""
    from hermes_worker.store.access.audit import Actor, set_thread_actor  # not for those who only read the help

    set_thread_actor(Actor(tenant=get_chosen_tenant(), name=find_this_user()))


toolsets_option = click.option(
    "--toolsets",
    type=TEXT,
    metavar="NAMES",
    help="Toolsets of a new session, separated by commas. Default: agent.toolsets, else hermes-cli.",
)


def parse_toolset_names(text: str | None) -> list[str] | None:
    """What ``--toolsets`` names; ``None`` when it was not given. Raises ``ConfigurationError`` for nothing."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ConfigurationError("--toolsets names no toolset; leave it out, or write names separated by commas")
    return names


def format_home_option(home: Path) -> str:
    """What to add to a command that is to use this home from another terminal; nothing for the usual one."""
    return "" if home == Path.home() / ".hermes-worker" else f" --home {shlex.quote(str(home))}"


def load_settings(
    home: Path | None,
    overrides: Mapping[str, object] = MappingProxyType({}),
    *,
    uses_extensions: bool = True,
    needs_servers: bool = True,
    is_of_fleet: bool = False,
) -> Settings:
    """All settings; ``overrides`` is what the command line said, ``None`` for an option that was not given. Puts the
    enabled extensions in force, unless they are what the command is about; ``needs_servers`` as for
    ``plugins.begin_extensions``. A process ``is_of_fleet`` that has a role in it: then the configuration in the
    database counts.

    What was found and has no effect is shown on stderr. Raises ``ConfigurationError``.
    """
    refuse_server()
    settings = settings_module.load_settings(home=home, overrides=overrides)
    if is_of_fleet and not settings_module.is_supervised():
        settings = _with_fleet(settings, overrides)
    for note in settings.notes:
        click.echo(f"note: {note}", err=True)
    if settings.worker.is_debuggable:
        show_memory()
    if uses_extensions:
        from hermes_worker import plugins

        plugins.begin_extensions(settings, needs_servers=needs_servers)
    return settings


def _with_fleet(settings: Settings, overrides: Mapping[str, object]) -> Settings:
    from hermes_worker.live_settings import add_fleet_configuration
    from hermes_worker.local.paths import has_no_rows
    from hermes_worker.store.build import build_database

    if has_no_rows(settings):
        return settings
    with closing(build_database(settings)) as database:
        return add_fleet_configuration(settings, database, overrides)


def load_client_settings(
    home: Path | None, overrides: Mapping[str, object] = MappingProxyType({}), *, needs_servers: bool = True
) -> Settings:
    """``load_settings`` for a command that talks to a person: of its log, only what went wrong is shown."""
    from hermes_worker.observe import configure_logging

    settings = load_settings(home, overrides, needs_servers=needs_servers)
    level = settings.log.level if settings.log.level in ("DEBUG", "ERROR") else "WARNING"
    configure_logging(replace(settings.log, level=level), "cli", secrets=_Secrets(settings))
    return settings


class _Secrets:
    """The secrets of settings, listed when they are wanted: that loads what all platforms declare."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def __iter__(self) -> Iterator[Secret]:
        return iter(self._settings.secrets)


def read_prompt_text(prompt: str) -> str:
    """The task; ``-`` stands for standard input. Raises ``ConfigurationError`` for one that is empty or too long."""
    text = prompt if prompt != "-" else _read_stdin()
    if not text.strip():
        raise ConfigurationError("PROMPT is empty; say what is to be done")
    if len(text.encode()) > PROMPT_BYTES_MAX:
        raise ConfigurationError("PROMPT is longer than 10 MB; put the material into a file in the workspace")
    return text


def _read_stdin() -> str:
    data = sys.stdin.buffer.read(PROMPT_BYTES_MAX + 1)
    return data.decode("utf-8", "replace")
