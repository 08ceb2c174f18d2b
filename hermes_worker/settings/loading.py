"""Read all settings, once. The only module that looks at the environment."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.settings.chosen_model import build_model, check_logins
from hermes_worker.settings.composed import (
    DECLARATION_OF,
    GROUPS,
    RETIRED_VARIABLES,
    SECRET_VARIABLES,
    VARIABLES,
    Settings,
)
from hermes_worker.settings.config_files import format_suggestion, list_dotenv_notes, read_config, read_dotenv
from hermes_worker.settings.handing import find_variable_owners
from hermes_worker.settings.kinds import UMASK
from hermes_worker.settings.models import ModelSettings
from hermes_worker.settings.origins import SettingLayer, SettingOrigin
from hermes_worker.settings.retired import RETIRED
from hermes_worker.settings.role_secrets import READ_BY_LIBRARIES
from hermes_worker.settings.secret_files import DIRECTORIES, ENDING, find_named_files, list_directory_files, read_files
from hermes_worker.settings.secret_transfer import STARTED_UMASK, Handover, take_handover
from hermes_worker.settings.sources import FoundValue, SettingSources, parse_value, read_value, read_values
from hermes_worker.settings.terminal import TerminalSettings


def load_settings(
    environ: Mapping[str, str] | None = None,
    *,
    home: Path | None = None,
    overrides: Mapping[str, object] = MappingProxyType({}),
    config_text: str | None = None,
    fleet: Mapping[str, str] = MappingProxyType({}),
) -> Settings:
    """Read all settings. Creates and changes nothing. ``config_text`` stands in for what ``config.yaml`` says, and
    ``fleet`` is what the configuration in the database says (``overriding.parse_fleet_values``).

    ``environ`` stands in for the environment of the process; ``home`` for HERMES_HOME. ``overrides`` maps keys
    (``server.port``) to what the command line said; ``None`` means it said nothing. Raises ``ConfigurationError``:
    one sentence that names the key, where its value came from and what is allowed.
    """
    handed = receive_handover() if environ is None else Handover()
    environ = {**(os.environ if environ is None else environ), **handed.variables}
    _require_known_keys(overrides)
    home = _find_home(home or overrides.get("home"), environ)
    own = {} if handed.is_complete else read_dotenv(home / ".env")
    environ, dotenv, files = _read_secret_files(environ, own, is_handed=handed.is_complete)
    config, notes = ({}, []) if handed.is_complete else read_config(home / "config.yaml", config_text)
    sources = SettingSources(overrides, environ, dotenv, config, handed.withheld, fleet)
    settings = Settings(
        home=home,
        **{name: group(**read_values(group, sources)) for name, group in GROUPS.items() if group not in _MADE_APART},
        model=build_model(sources),
        terminal=_build_terminal(sources),
        preset=read_value(sources, DECLARATION_OF["preset"], None),
        faults=read_value(sources, DECLARATION_OF["faults"], ""),
        notes=()
        if handed.is_complete
        else (
            *notes,
            *list_dotenv_notes(home / ".env"),
            *_iterate_variable_notes(sources),
            *_iterate_retired_notes(sources),
        ),
        environ=MappingProxyType({**dotenv, **environ}),
        secret_files=MappingProxyType(files),
        origins=MappingProxyType(_find_origins(handed, sources)),
    )
    _check_together(settings, handed.withheld)
    return settings


def _find_origins(handed: Handover, sources: SettingSources) -> dict[str, SettingOrigin]:
    """Find where each setting comes from, by key. A process that was handed its settings reads them all from the
    environment, so it takes the origins that were handed with them."""
    if not handed.is_complete:
        return dict(sources.list_origins())
    return {key: SettingOrigin(SettingLayer(layer), place) for key, (layer, place) in handed.origins.items()}


_MADE_APART = (ModelSettings, TerminalSettings)
"""Groups whose values are completed after they were read."""
_handed = Handover()
"""What was handed to this process, once it was looked for."""


def receive_handover() -> Handover:
    """Return what the process that started this one, or its own start, handed to it; empty if nothing."""
    global _handed
    if found := take_handover(os.environ):
        _handed = found
        for name in READ_BY_LIBRARIES & found.variables.keys():
            os.environ[name] = found.variables[name]
    return _handed


def is_supervised() -> bool:
    """Whether ``up`` or ``run`` started this process as one of its roles."""
    return _handed.is_complete


def is_dumb_terminal() -> bool:
    """Whether ``TERM`` names a terminal that cannot move its cursor. False without ``TERM``."""
    return os.environ.get("TERM", "").lower() in {"dumb", "unknown"}


def _read_secret_files(
    environ: Mapping[str, str], dotenv: Mapping[str, str], *, is_handed: bool
) -> tuple[Mapping[str, str], Mapping[str, str], dict[str, str]]:
    """Add the values in the files of secrets to both mappings, and list those files. A process that was handed its
    secrets reads no file; it needs the list alone, because no command may see them."""
    listed = list_directory_files(environ)
    if is_handed:
        return environ, dotenv, {**find_named_files(environ, _may_come_by_file), **listed}

    def may_come(variable: str) -> bool:
        return variable + ENDING in listed or _may_come_by_file(variable)

    below = read_files(dotenv, _may_come_by_file, place=".env")
    above = read_files({**environ, **listed}, may_come, place="the environment")
    return above.variables, below.variables, {**below.files, **above.files}


def _may_come_by_file(variable: str) -> bool:
    """A secret of ours, or one that a role needs. Other people's variables that sound secret may mean something else by
    ``_FILE``, and what a library reads by itself it would not find."""
    if variable in READ_BY_LIBRARIES:
        return False
    return variable in SECRET_VARIABLES or bool(find_variable_owners(variable, ""))


def _build_terminal(sources: SettingSources) -> TerminalSettings:
    given = TerminalSettings(**read_values(TerminalSettings, sources))
    if given.umask is None and (found := sources.find_variable(STARTED_UMASK)):
        return replace(given, umask=UMASK.parse(found.raw))
    return given


def _require_known_keys(overrides: Mapping[str, object]) -> None:
    for key in overrides:
        if key not in DECLARATION_OF:
            raise ConfigurationError(f"{key!r} is not a setting{format_suggestion(key, DECLARATION_OF)}.")


def _find_home(given: object, environ: Mapping[str, str]) -> Path:
    declaration = DECLARATION_OF["home"]
    if given is not None:
        return Path(parse_value(declaration, FoundValue(given, "the command line")))
    if variable := environ.get("HERMES_HOME", "").strip():
        return Path(parse_value(declaration, FoundValue(variable, "HERMES_HOME in the environment")))
    user_home = environ.get("HOME", "").strip()
    return (Path(user_home) if user_home else Path.home()) / ".hermes-worker"


def _check_together(settings: Settings, withheld: frozenset[str]) -> None:
    server = settings.server
    if server.key is None and not server.is_loopback and "server.key" not in withheld:
        raise ConfigurationError(
            f"server.key (HERMES_SERVER_KEY) must be set when server.host is {server.host!r},"
            " because others than this machine can connect to that address."
        )
    check_logins(settings.model)
    if settings.encryption.keys and settings.encryption.keys_command:
        raise ConfigurationError(
            "encryption.keys and encryption.keys_command (HERMES_ENCRYPTION_KEYS_COMMAND) are both set; remove one of"
            " them."
        )


def _iterate_variable_notes(sources: SettingSources) -> Iterator[str]:
    for name in sorted(sources.list_variable_names() - VARIABLES - RETIRED_VARIABLES - {DIRECTORIES}):
        if name.startswith("HERMES_") and (close := difflib.get_close_matches(name, VARIABLES, n=1, cutoff=0.85)):
            yield f"{name} is not a setting and has no effect; did you mean {close[0]}?"


def _iterate_retired_notes(sources: SettingSources) -> Iterator[str]:
    for each in RETIRED.values():
        if (found := sources.find(each)) is not None:
            yield f"{each.key} ({found.source}) {each.explanation}; leave it out."
