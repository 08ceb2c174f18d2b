"""The settings that a run is accepted with: those of this process, with the current configuration of the fleet and
``config.yaml``, and with the overrides of its tenant, its session and the run itself.

Theory of operation. A process is started with its settings and keeps them. Those that a run reads once, when it is
accepted (``core.overrides``), are looked up anew, at most once a second and only on demand: the newest configuration in
the rows, and the file if it was changed. What differs from the settings of the process is recorded with the run, so
every worker that does its steps has the same, whenever it was started.

A configuration that cannot be used changes nothing: the last good one counts, and the log, ``doctor`` and the API say
what is wrong. So a slip of an operator, or a row that a newer version wrote, never takes a fleet down.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from hermes_worker.core.errors import ConfigurationError, HermesError, UnavailableError
from hermes_worker.core.overrides import LIVE
from hermes_worker.observe import log
from hermes_worker.settings import (
    SettingLayer,
    SettingOrigin,
    Settings,
    SettingWithSource,
    list_with_sources,
    load_settings,
)
from hermes_worker.settings.overriding import (
    Overrides,
    drop_excessive,
    has_value,
    override_settings,
    parse_configuration,
    parse_file_values,
)
from hermes_worker.settings.presets import find_preset_value
from hermes_worker.store.configurations import Configurations, ConfigurationVersion
from hermes_worker.store.engine.database import Database
from hermes_worker.system.plainfiles import read_plain

LOOK_EVERY_S = 1.0
_EARLIER_TRIED = 20
"""Versions behind one that cannot be used, until one can."""
_KNOWN_MAX = 256
_FILE_BYTES_MAX = 4_000_000
_PINNED = frozenset({SettingLayer.COMMAND_LINE, SettingLayer.ENVIRONMENT, SettingLayer.DOTENV})
"""Layers that count more than the configuration of the fleet."""
_PLACES = {
    "fleet": "the configuration of the fleet",
    "file": "config.yaml",
    "tenant": "the configuration of the tenant",
    "session": "the session",
    "run": "the run",
}
NOTHING: Overrides = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenSettings:
    """The settings that a run is accepted with."""

    settings: Settings
    overrides: Overrides
    """The settings among them that the processes were not started with."""
    origins: Mapping[str, str]
    """The layer of each of these: ``fleet``, ``file``, ``tenant``, ``session`` or ``run``."""
    layers: Mapping[str, str]
    """The version of the configuration that counted, for the ``fleet`` and the ``tenant``, and the ``file``."""

    def list_with_sources(self) -> Iterator[SettingWithSource]:
        """Every setting with its value and source."""
        places = {key: SettingOrigin(SettingLayer(layer), _PLACES[layer]) for key, layer in self.origins.items()}
        return list_with_sources(replace(self.settings, origins={**self.settings.origins, **places}))


@dataclass(frozen=True, slots=True, kw_only=True)
class _KnownConfiguration:
    """A configuration as it was last read and could be used."""

    values: Overrides = field(default_factory=dict)
    version: str = ""


@dataclass(slots=True)
class _LiveState:
    looked_at: float = float("-inf")
    newest: int = -1
    file_mark: tuple[int, ...] | None = None
    file: _KnownConfiguration = field(default_factory=_KnownConfiguration)
    fleet: _KnownConfiguration = field(default_factory=_KnownConfiguration)
    tenants: dict[str, _KnownConfiguration] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    """Reasons by what cannot be used."""


class LiveSettings:
    """The settings for runs, kept current. Thread-safe. ``settings`` are what the process was started with."""

    def __init__(
        self, settings: Settings, source: Configurations, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._source = source
        self._now = now
        self._with = lru_cache(_KNOWN_MAX)(lambda items: override_settings(settings, dict(items)))
        self._lock = threading.Lock()
        self._state = _LiveState()

    def choose_settings(self, tenant: str, session: Overrides = NOTHING, run: Overrides = NOTHING) -> ChosenSettings:
        """The settings that a run of ``tenant`` is accepted with now. ``session`` and ``run`` were checked when they
        were set; those of them that by now allow more than the layers above are left out. Raises ``UnavailableError``
        only before the rows were read once.
        """
        state = self._refresh_state()
        said = [("file", _filter_overridable(state.file.values)), ("fleet", _filter_overridable(state.fleet.values))]
        overrides, origins = dict[str, str](), dict[str, str]()
        for layer, values in said:
            for key, value in self._filter_unpinned(layer, values):
                overrides[key], origins[key] = value, layer
        own = state.tenants.get(tenant, _KnownConfiguration())
        for layer, values in (("tenant", own.values), ("session", session), ("run", run)):
            settings = self._override_settings(overrides)
            bounded = values if layer == "tenant" else drop_excessive(settings, values)
            overrides |= bounded
            origins |= dict.fromkeys(bounded, layer)
        versions = {"fleet": state.fleet.version, "file": state.file.version, "tenant": own.version}
        return ChosenSettings(
            settings=self._override_settings(overrides),
            overrides=overrides,
            origins=origins,
            layers={layer: version for layer, version in versions.items() if version},
        )

    def restore_recorded(self, overrides: Overrides, origins: Mapping[str, str]) -> ChosenSettings:
        """The settings of a run that recorded these overrides."""
        settings = self._override_settings(overrides)
        return ChosenSettings(settings=settings, overrides=overrides, origins=origins, layers={})

    def list_problems(self) -> Mapping[str, str]:
        """The configurations that cannot be used, and why; the last good one counts in place of each."""
        return dict(self._refresh_state().problems)

    def _override_settings(self, overrides: Overrides) -> Settings:
        """The settings with overrides: the same object for the same overrides, so that what is derived from it is
        derived once.
        """
        return self._with(tuple(sorted(overrides.items()))) if overrides else self._settings

    def _filter_unpinned(self, layer: str, values: Overrides) -> Iterator[tuple[str, str]]:
        """The values of a layer that count here: the environment of a process goes before them."""
        for key, value in values.items():
            known = self._settings.origins.get(key)
            is_pinned = known is not None and known.layer in _PINNED
            if not is_pinned and not (layer == "file" and has_value(self._settings, key, value)):
                yield key, value

    def _refresh_state(self) -> _LiveState:
        with self._lock:
            state = self._state
            if self._now() - state.looked_at < LOOK_EVERY_S:
                return state
            self._refresh_file(state)
            try:
                newest = self._source.load_newest_number()
                if newest != state.newest:
                    self._refresh_rows(state)
                    state.newest = newest
            except UnavailableError:
                if state.newest < 0:
                    raise
            state.looked_at = self._now()
            return state

    def _refresh_file(self, state: _LiveState) -> None:
        path = self._settings.home / "config.yaml"
        try:
            found = path.stat()
            mark: tuple[int, ...] | None = (found.st_ino, found.st_size, found.st_mtime_ns)
        except OSError:
            mark = None
        if mark == state.file_mark and state.looked_at != float("-inf"):
            return
        state.file_mark = mark
        try:
            state.file = self._read_file(path) if mark is not None else self._load_defaults_without_file()
            state.problems.pop("file", None)
        except (HermesError, OSError, UnicodeDecodeError) as error:
            _log_problem(state, "file", f"config.yaml cannot be used: {error}")

    def _read_file(self, path: Path) -> _KnownConfiguration:
        text = read_plain(path, bytes_max=_FILE_BYTES_MAX).decode("utf-8-sig")
        said = parse_file_values(text, place="config.yaml")
        gone = {key: value for key, value in self._load_defaults_without_file().values.items() if key not in said}
        values = {key: value for key, value in said.items() if value is not None}
        return _KnownConfiguration(values={**gone, **values}, version=_hash_text(text))

    def _load_defaults_without_file(self) -> _KnownConfiguration:
        """The defaults, or the preset's, of what the file set when the process was started, for a file that is gone."""
        taken_back = {
            key: find_preset_value(self._settings.preset, key) or ""
            for key in LIVE
            if (known := self._settings.origins.get(key)) is not None and known.layer is SettingLayer.FILE
        }
        return _KnownConfiguration(values=taken_back)

    def _refresh_rows(self, state: _LiveState) -> None:
        tenants = {}
        fleet = _KnownConfiguration()
        for row in self._source.list_current():
            name = f"tenant {row.of_tenant}" if row.of_tenant else "fleet"
            before = state.tenants.get(row.of_tenant) if row.of_tenant else state.fleet
            found = self._find_usable(state, row, name) or before or _KnownConfiguration()
            if row.of_tenant:
                tenants[row.of_tenant] = found
            else:
                fleet = found
        state.fleet, state.tenants = fleet, tenants

    def _find_usable(self, state: _LiveState, row: ConfigurationVersion, name: str) -> _KnownConfiguration | None:
        """The newest version that can be used; ``None`` when none can."""
        try:
            found = _parse_version(row)
            state.problems.pop(name, None)
            return found
        except HermesError as error:
            _log_problem(
                state,
                name,
                f"version {row.version} of the configuration of {_describe_owner(row)} cannot be used: {error}",
            )
        for earlier in self._source.list_versions(row.of_tenant or None, _EARLIER_TRIED):
            try:
                return _parse_version(earlier)
            except HermesError:
                continue
        return None


def build_live_settings(settings: Settings, database: Database) -> LiveSettings:
    """Build the live settings of a process with ``settings`` on ``database``."""
    return LiveSettings(settings, Configurations(database))


def add_fleet_configuration(settings: Settings, database: Database, overrides: Mapping[str, object]) -> Settings:
    """The settings that a process is started with, the configuration of the fleet among them: of that, what is not
    looked up anew while it runs. Without rows that can be read and used, ``settings`` as they are."""
    for row in Configurations(database).list_versions_if_any(_EARLIER_TRIED):
        try:
            values = {key: value for key, value in _parse_version(row).values.items() if key not in LIVE}
            return load_settings(home=settings.home, overrides=overrides, fleet=values) if values else settings
        except ConfigurationError as error:
            log.error("configuration.refused", place="fleet", error=str(error))
    return settings


def _parse_version(row: ConfigurationVersion) -> _KnownConfiguration:
    return _KnownConfiguration(values=parse_configuration(row.text, row.of_tenant or None), version=str(row.version))


def _describe_owner(row: ConfigurationVersion) -> str:
    return f"the tenant {row.of_tenant!r}" if row.of_tenant else "the fleet"


def _filter_overridable(values: Overrides) -> Overrides:
    return {key: value for key, value in values.items() if key in LIVE}


def _log_problem(state: _LiveState, name: str, problem: str) -> None:
    """Log a problem, once for each."""
    if state.problems.get(name) != problem:
        state.problems[name] = problem
        log.error("configuration.refused", place=name, error=problem)


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
