"""The values of the settings of extensions: read here, as all settings are, and checked when a process begins."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.extension import Extension, SettingDeclaration, SettingType, SettingValue
from hermes_worker.settings.kinds import SWITCH, SettingKind, number, one_of, text_matching

_LARGEST = float(sys.maxsize)


class DeclaredRow(NamedTuple):
    """One setting of an extension, as people are shown it."""

    extension: str
    variable: str
    value: str
    """Never a secret."""
    summary: str


def read_values(declared: Iterable[SettingDeclaration], environ: Mapping[str, str]) -> Mapping[str, SettingValue]:
    """What the variables hold, or their defaults, by variable. An empty variable counts as not set.

    Raises ``ConfigurationError``: one sentence that names the variable and what it may hold.
    """
    found = ((item.variable, _parse_value(item, environ.get(item.variable, ""))) for item in declared)
    return {variable: value for variable, value in found if value is not None}


def describe_declared(extensions: Iterable[Extension], environ: Mapping[str, str]) -> Iterator[DeclaredRow]:
    """List the settings of extensions with their values in this process. Raises ``ConfigurationError`` for a value that
    is not allowed."""
    for one in extensions:
        held = read_values(one.settings, environ)
        for item in one.settings:
            yield DeclaredRow(one.name, item.variable, _format_value(item, held.get(item.variable)), item.summary)


def _format_value(item: SettingDeclaration, value: SettingValue | None) -> str:
    if value is None:
        return "missing" if item.is_required else "not set"
    return "set" if item.is_secret else _find_kind(item).render(value)


def _parse_value(item: SettingDeclaration, text: str) -> SettingValue | None:
    if not text.strip():
        return item.default
    kind = _find_kind(item)
    try:
        value: SettingValue = kind.parse(text)
    except (ValueError, TypeError):
        said = "something else" if item.is_secret else repr(text)
        raise ConfigurationError(
            f"{item.variable} ({item.summary.rstrip('.')}) must be {kind.allowed}, and it says {said}."
        ) from None
    return value


def _find_kind(item: SettingDeclaration) -> SettingKind[Any]:
    low = -_LARGEST if item.minimum is None else item.minimum
    high = _LARGEST if item.maximum is None else item.maximum
    match item.holds:
        case SettingType.SWITCH:
            return SWITCH
        case SettingType.NUMBER:
            return _describe_kind(number(low, high, "units"), item, "a number")
        case SettingType.INTEGER:
            return _describe_kind(_whole_number(low, high), item, "a whole number")
        case _:
            return one_of(*item.choices) if item.choices else text_matching(r"(?s).+", "text")


def _whole_number(low: float, high: float) -> SettingKind[int]:
    return SettingKind("", lambda raw: _require_between(int(str(raw).strip()), low, high))


def _require_between(value: int, low: float, high: float) -> int:
    if not low <= value <= high:
        raise ValueError
    return value


def _describe_kind(kind: SettingKind[Any], item: SettingDeclaration, what: str) -> SettingKind[Any]:
    bounds = (("from", item.minimum), ("to", item.maximum))
    limits = "".join(f" {word} {bound:g}" for word, bound in bounds if bound is not None)
    return SettingKind(f"{what}{limits}", kind.parse, kind.render)
