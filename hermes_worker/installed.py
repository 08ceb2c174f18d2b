"""What this process knows by name: the built-in extensions and those that the operator enabled, put together once.

The built-in ones are listed by reference, as others are, so that this module stands below everything that they declare
and the catalogues can ask it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache, cached_property, partial
from types import MappingProxyType
from typing import Any, TypeVar, overload

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.extension import Extension, Installed, SettingValue, fold, load
from hermes_worker.features import FEATURES

BUILT_IN: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "hermes_worker.agent.tools.builtin:EXTENSION": ("tools", "toolsets"),
        "hermes_worker.models.catalog:EXTENSION": ("providers", "wires"),
        "hermes_worker.models.vendor_extensions:BEDROCK": ("providers", "wires"),
        "hermes_worker.models.vendor_extensions:GEMINI": ("providers", "wires"),
        "hermes_worker.workspaces.ref:EXTENSION": ("workspaces",),
        "hermes_worker.api.builtin:EXTENSION": ("routers",),
        "hermes_worker.cli.builtin:EXTENSION": ("commands",),
        "hermes_worker.channels.catalog:EXTENSION": ("channels",),
        "hermes_worker.agent.prompt.sources:EXTENSION": ("context_sources",),
        "hermes_worker.agent.prompt.compactors:EXTENSION": ("compactors",),
        **FEATURES,
    }
)
"""The built-in extensions, each with the kinds that it brings, so that a process that asks for one kind loads the
declarations of that kind. Their order is that of listings.
"""

_MADE_OF = {
    "bundles": ("tools", "toolsets", "tool_sources"),
    "secret_variables": ("settings", "channels"),
    "webhook_needs": ("channels",),
}
"""The fields of ``Installed`` that are not called as the kinds they are made of."""

_Row = TypeVar("_Row")


class _Process:
    """The extensions in force; ``None`` until they are asked for or ``put_in_force`` is called."""

    installed: Installed | None = None


@cache
def built_in() -> tuple[Extension, ...]:
    """The extensions that are always there."""
    return tuple(load(reference) for reference in BUILT_IN)


class _Deferred(Mapping[str, Any]):
    """A mapping that is built when it is first looked into."""

    def __init__(self, make: Callable[[], Mapping[str, Any]]) -> None:
        self._make = make

    @cached_property
    def _found(self) -> Mapping[str, Any]:
        # Two threads may compute the same; either answer is as good.
        return self._make()

    def __getitem__(self, key: str) -> Any:
        return self._found[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


class _AllBuiltIn(Sequence[Extension]):
    """The extensions of ``built_in``, loaded when they are first looked at."""

    @overload
    def __getitem__(self, index: int) -> Extension: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Extension, ...]: ...
    def __getitem__(self, index: int | slice) -> Extension | tuple[Extension, ...]:
        return built_in()[index]

    def __len__(self) -> int:
        return len(BUILT_IN)


class _OnlyBuiltIn(Installed):
    """The extensions in force where no foreign one is enabled. Nothing is loaded before it is asked for."""

    def having(self, kind: str) -> tuple[Extension, ...]:
        return _bringing(kind)


def _bringing(*kinds: str) -> tuple[Extension, ...]:
    return tuple(load(reference) for reference, brought in BUILT_IN.items() if not set(kinds).isdisjoint(brought))


def _folded(field: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = getattr(fold(_bringing(*_MADE_OF.get(field, (field,)))), field)
    return found


def only_built_in() -> Installed:
    """The built-in extensions together, loaded by kind when that is asked for."""
    named = {item.name for item in fields(Installed)} - {"extensions", "values"}
    nothing: Mapping[str, Mapping[str, SettingValue]] = defaultdict(dict)  # none of them has settings
    made: dict[str, Any] = {name: _Deferred(partial(_folded, name)) for name in named}
    return _OnlyBuiltIn(extensions=_AllBuiltIn(), values=nothing, **made)


def current() -> Installed:
    """The extensions in force in this process: the built-in ones, unless ``put_in_force`` was called."""
    found = _Process.installed
    if found is None:
        found = _Process.installed = only_built_in()
    return found


def of_others() -> tuple[Extension, ...]:
    """The extensions in force that are not built in."""
    found = current()
    if isinstance(found, _OnlyBuiltIn):
        return ()
    ours = set(map(id, built_in()))
    return tuple(one for one in found.extensions if id(one) not in ours)


def put_in_force(installed: Installed | None) -> None:
    """Make ``current`` return this from now on; ``None`` for the built-in extensions. Called when a process begins,
    before it serves requests: earlier look-ups are not repeated.
    """
    _Process.installed = installed


def rows(kind: type[_Row], declared: Iterable[object]) -> tuple[_Row, ...]:
    """``declared`` as rows of a catalogue. Raises ``ConfigurationError`` for any other type: extensions are written by
    others, and their types are unchecked.
    """
    found = tuple(declared)
    for row in found:
        if not isinstance(row, kind):
            raise ConfigurationError(f"{row!r} of an extension must be a {kind.__module__}.{kind.__qualname__}")
    return tuple(row for row in found if isinstance(row, kind))
