"""Settings with overrides for a tenant, a session or a run, and the settings that a fleet's configuration may hold.
Pure.

A value is written as in the environment, and checked as any value of its setting. ``core.overrides`` says which may be
overridden and how far.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, fields, is_dataclass, replace
from functools import lru_cache
from typing import Any

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.overrides import OVERRIDABLE, OverrideLevel, is_wider
from hermes_worker.settings import Settings, find_setting, parse_config_text
from hermes_worker.settings.kinds import SettingKind
from hermes_worker.settings.retired import RETIRED

__all__ = [
    "Overrides",
    "check_overrides",
    "drop_excessive",
    "filter_for_callers",
    "has_value",
    "override_settings",
    "parse_configuration",
    "parse_file_values",
    "parse_fleet_values",
    "require_overridable",
    "restrict_overrides",
]

Overrides = Mapping[str, str]
"""Values as they are written in the environment, by key."""
TEXT_CHARS_MAX = 100_000
"""The longest configuration of a fleet or a tenant, in characters."""
_VALUE_CHARS_MAX = 2_000
_NEVER_IN_ROWS = (
    "database.",
    "encryption.",
    "extensions.",
    "worker.",
    "faults",
    "preset",
    "broker.url",
    "terminal.env_passthrough",
)
"""Settings that are needed to reach the rows, or with which the author of a row could run code or see secrets."""


def parse_fleet_values(text: str, *, place: str) -> dict[str, str]:
    """What the configuration of a fleet says, written as ``config.yaml``, by key, retired settings among it. Secrets,
    variables (``${NAME}``) and what is needed to reach the rows have no place in it. Raises ``ConfigurationError``."""
    if len(text) > TEXT_CHARS_MAX:
        raise ConfigurationError(f"{place} has more than {TEXT_CHARS_MAX:,} characters.")
    values = {}
    for key, raw in parse_config_text(text, place=place).items():
        if key in RETIRED:
            values[key] = str(raw)
            continue
        _, kind = find_setting(key)
        if kind.is_secret or key.startswith(_NEVER_IN_ROWS):
            raise ConfigurationError(f"{key} has no place in {place}: give it to the processes themselves.")
        if raw not in (None, ""):
            values[key] = _render_value(key, kind, raw, place)
    return values


def parse_configuration(text: str, tenant: str | None) -> dict[str, str]:
    """What a configuration of the fleet (``None``), or of a tenant, says. Raises ``ConfigurationError``."""
    if tenant is None:
        return parse_fleet_values(text, place="the configuration of the fleet")
    place = f"the configuration of the tenant {tenant!r}"
    return check_overrides(parse_config_text(text, place=place), OverrideLevel.TENANT, place=place)


def parse_file_values(text: str, *, place: str) -> dict[str, str | None]:
    """What ``config.yaml`` says by now of settings that may be overridden, by key; ``None`` for a value with a
    variable, which is read at a start. Raises ``ConfigurationError`` where a setting has a value that it does not
    take, whichever it is."""
    found: dict[str, str | None] = {}
    for key, raw in parse_config_text(text, place=place).items():
        if raw in (None, "") or key in RETIRED:
            continue
        value = None if "${" in str(raw) else _render_value(key, find_setting(key)[1], raw, place)
        if key in OVERRIDABLE:
            found[key] = value
    return found


def check_overrides(said: Mapping[str, object], level: OverrideLevel, *, place: str) -> dict[str, str]:
    """``said`` without retired settings, each a value that its setting takes and that may be said there. Raises
    ``ConfigurationError``."""
    require_overridable(said, level)
    kept = ((key, raw) for key, raw in said.items() if key not in RETIRED)
    return {key: _render_value(key, find_setting(key)[1], raw, place) for key, raw in kept}


def require_overridable(keys: Iterable[str], level: OverrideLevel) -> None:
    """Raise ``ConfigurationError`` for a setting that may not be overridden there."""
    for key in keys:
        which = OVERRIDABLE.get(key)
        if key not in RETIRED and (which is None or level not in which.levels):
            raise ConfigurationError(
                f"{key[:100]!r} cannot be overridden for a {level.value}{_format_suggestion(key, level)}."
            )


def restrict_overrides(settings: Settings, said: Overrides, *, place: str) -> Overrides:
    """``said`` of callers, none of which allows more than ``settings``. Raises ``ConfigurationError``."""
    for key, above, wanted in _compare_values(settings, said):
        if is_wider(OVERRIDABLE[key], above, wanted):
            kind = find_setting(key)[1]
            limit = "no limit" if above is None else kind.render(above)
            raise ConfigurationError(
                f"{key} in {place} says {said[key]!r} and may not allow more than what stands above: {limit!r}."
            )
    return said


def drop_excessive(settings: Settings, said: Overrides) -> dict[str, str]:
    """``said`` without what allows more than ``settings``: what stands above may have changed since it was said."""
    pairs = _compare_values(settings, said)
    return {key: said[key] for key, above, wanted in pairs if not is_wider(OVERRIDABLE[key], above, wanted)}


def filter_for_callers(said: Overrides) -> dict[str, str]:
    """``said`` as far as callers may say it for a run."""
    return {key: text for key, text in said.items() if text and (which := OVERRIDABLE.get(key)) and which.for_callers}


def has_value(settings: Settings, key: str, text: str) -> bool:
    """Whether the setting has this value already."""
    return all(above == wanted for _, above, wanted in _compare_values(settings, {key: text}))


def override_settings(settings: Settings, said: Overrides) -> Settings:
    """``settings`` with the values of ``said``, which were checked before."""
    if not said:
        return settings
    values = _parse_overridden_values(tuple(sorted(said.items())))
    return replace(settings, **{group: replace(getattr(settings, group), **own) for group, own in values.items()})


def _compare_values(settings: Settings, said: Overrides) -> Iterator[tuple[str, Any, Any]]:
    """Key, value above, wanted value. What an earlier release recorded may name a setting that is gone."""
    for key, text in said.items():
        if key not in _FIELD_OF:
            continue
        group, name = _FIELD_OF[key]
        yield key, getattr(getattr(settings, group), name), _parse_value(key, text)


@lru_cache(256)
def _parse_overridden_values(said: tuple[tuple[str, str], ...]) -> Mapping[str, Mapping[str, Any]]:
    groups: dict[str, dict[str, Any]] = {}
    for key, text in said:
        if key not in _FIELD_OF:
            continue
        group, name = _FIELD_OF[key]
        groups.setdefault(group, {})[name] = _parse_value(key, text)
    return groups


def _parse_value(key: str, text: str) -> Any:
    """An empty text takes back what a file said: the setting has its default again."""
    return find_setting(key)[1].parse(text) if text else _DEFAULT_OF[key]


def _render_value(key: str, kind: SettingKind[Any], raw: object, place: str) -> str:
    if isinstance(raw, str) and "${" in raw:
        raise ConfigurationError(f"{key} in {place} refers to a variable; write the value itself.")
    try:
        text = kind.render(kind.parse(raw))
    except ConfigurationError as error:
        raise ConfigurationError(f"{key} in {place} is wrong: {error}") from None
    except (ValueError, TypeError, OverflowError, RecursionError):
        said = f"says {str(raw)[:100]!r}" if kind.is_quotable else "says something else"
        raise ConfigurationError(f"{key} must be {kind.allowed}, but {place} {said}.") from None
    if len(text) > _VALUE_CHARS_MAX and key in OVERRIDABLE:
        raise ConfigurationError(f"{key} in {place} has more than {_VALUE_CHARS_MAX:,} characters.")
    return text


def _format_suggestion(key: str, level: OverrideLevel) -> str:
    known: Sequence[str] = [each.key for each in OVERRIDABLE.values() if level in each.levels]
    close = difflib.get_close_matches(key[:100], known, n=1)
    return f" (did you mean {close[0]!r}?)" if close and close[0] != key else ""


def _iterate_fields() -> Iterator[tuple[str, str, Field[Any]]]:
    """Key, group and field of each setting that stands in a group."""
    for group in fields(Settings):
        made: Any = group.default_factory
        for item in fields(made) if isinstance(made, type) and is_dataclass(made) else ():
            if (declared := item.metadata.get("setting")) is not None:
                yield declared.key, group.name, item


_FIELD_OF = {key: (group, item.name) for key, group, item in _iterate_fields()}
_DEFAULT_OF = {key: item.default for key, _, item in _iterate_fields()}
