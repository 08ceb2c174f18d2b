"""Where the value of a setting comes from: everything that was given, in the order of precedence."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.settings.composed import DECLARATION_OF, DECLARATIONS
from hermes_worker.settings.declaring import DeclaredSetting, iterate_declared
from hermes_worker.settings.origins import SettingLayer, SettingOrigin
from hermes_worker.settings.presets import PRESET_KEYS, find_preset_value
from hermes_worker.settings.retired import RetiredSetting


class FoundValue(NamedTuple):
    """What a setting was given, as it was written, and where."""

    raw: object
    source: str
    """Completes the sentence "but ... says"."""
    layer: SettingLayer = SettingLayer.DEFAULT


_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class SettingSources:
    """Everything that was given, in order of precedence."""

    def __init__(
        self,
        overrides: Mapping[str, object],
        environ: Mapping[str, str],
        dotenv: Mapping[str, str],
        config: Mapping[str, object],
        withheld: frozenset[str] = frozenset(),
        fleet: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.withheld = withheld
        """Settings that exist and are not for this process."""
        self._fleet = fleet
        self._overrides = overrides
        self._environ = environ
        self._dotenv = dotenv
        self._config = config

    def list_origins(self) -> Mapping[str, SettingOrigin]:
        """Where each setting that was given comes from, by key."""
        found = ((declaration.key, self.find(declaration)) for declaration in DECLARATIONS)
        return {key: SettingOrigin(each.layer, each.source) for key, each in found if each is not None}

    def find(self, declaration: DeclaredSetting | RetiredSetting) -> FoundValue | None:
        """What the first place that names the setting gives it; ``None`` where none does."""
        if self._overrides.get(declaration.key) is not None:
            return FoundValue(self._overrides[declaration.key], "the command line", SettingLayer.COMMAND_LINE)
        for layer, place, variables in (
            (SettingLayer.ENVIRONMENT, "the environment", self._environ),
            (SettingLayer.DOTENV, ".env", self._dotenv),
        ):
            for name in declaration.variables:
                if variables.get(name, "").strip():
                    return FoundValue(variables[name], f"{name} in {place}", layer)
        if (said := self._fleet.get(declaration.key)) is not None:
            return FoundValue(said, f"{declaration.key} in the configuration of the fleet", SettingLayer.FLEET)
        if self._config.get(declaration.key) not in (None, ""):
            raw = self._expand_variables(declaration.key, self._config[declaration.key])
            return FoundValue(raw, f"{declaration.key} in config.yaml", SettingLayer.FILE)
        if declaration.key in PRESET_KEYS and (usual := find_preset_value(self._preset, declaration.key)) is not None:
            return FoundValue(usual, f"preset {self._preset}", SettingLayer.PRESET)
        return None

    @cached_property
    def _preset(self) -> str | None:
        chosen: str | None = read_value(self, DECLARATION_OF["preset"], None)
        return chosen

    def find_variable(self, name: str) -> FoundValue | None:
        """What a variable holds in the environment or in ``.env``; ``None`` where it is empty or not set."""
        for place, variables in (("the environment", self._environ), (".env", self._dotenv)):
            if variables.get(name, "").strip():
                return FoundValue(variables[name].strip(), f"{name} in {place}")
        return None

    def list_variable_names(self) -> frozenset[str]:
        return frozenset(self._environ) | frozenset(self._dotenv)

    def _expand_variables(self, key: str, raw: object) -> object:
        if isinstance(raw, list):
            return [self._expand_variables(key, item) for item in raw]
        return (
            _VARIABLE.sub(lambda match: self._find_variable_value(key, match[1]), raw) if isinstance(raw, str) else raw
        )

    def _find_variable_value(self, key: str, name: str) -> str:
        found = self.find_variable(name)
        if found is None:
            raise ConfigurationError(f"{key} in config.yaml refers to ${{{name}}}, which is not set.")
        return str(found.raw)


def read_values(group: type, sources: SettingSources) -> dict[str, Any]:
    """The values of a group's settings, by field. Raises ``ConfigurationError``."""
    return {item.name: read_value(sources, declaration, item.default) for item, declaration in iterate_declared(group)}


def read_value(sources: SettingSources, declaration: DeclaredSetting, default: object) -> Any:
    """The value of a setting, checked; the default where nothing gives one. Raises ``ConfigurationError``."""
    found = sources.find(declaration)
    return default if found is None else parse_value(declaration, found)


def parse_value(declaration: DeclaredSetting, found: FoundValue) -> Any:
    """The value of a setting that was found. Raises ``ConfigurationError``: one sentence that names the key, the place
    and what is allowed."""
    kind = declaration.kind
    try:
        return kind.parse(found.raw)
    except (ValueError, TypeError):
        said = f"says {found.raw!r}" if kind.is_quotable else "says something else"
    except ConfigurationError as error:
        said = f"is wrong: {str(error).removesuffix('.')}"
    raise ConfigurationError(f"{declaration.key} must be {kind.allowed}, but {found.source} {said}.")
