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
from hermes_worker.extension import Extension, Installed, SettingValue, fold_extensions, load_reference
from hermes_worker.features import FEATURES

BUILT_IN: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "hermes_worker.agent.tools.builtin:EXTENSION": ("tools", "toolsets"),
        "hermes_worker.models.provider_rows:EXTENSION": ("providers", "wires"),
        "hermes_worker.models.vendor_extensions:BEDROCK": ("providers", "wires"),
        "hermes_worker.models.vendor_extensions:GEMINI": ("providers", "wires"),
        "hermes_worker.workspaces.ref:EXTENSION": ("workspaces",),
        "hermes_worker.api.builtin:EXTENSION": ("routers",),
        "hermes_worker.cli.builtin:EXTENSION": ("commands",),
        "hermes_worker.channels.platform_rows:EXTENSION": ("channels",),
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
def load_built_in() -> tuple[Extension, ...]:
    """The extensions that are always there."""
    return tuple(load_reference(reference) for reference in BUILT_IN)


class _LazyMapping(Mapping[str, Any]):
    """A mapping that is built when it is first looked into."""

    def __init__(self, make: Callable[[], Mapping[str, Any]]) -> None:
        self._make = make

    @cached_property
    def _mapping(self) -> Mapping[str, Any]:
        # Two threads may compute the same; either answer is as good.
        return self._make()

    def __getitem__(self, key: str) -> Any:
        return self._mapping[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._mapping)

    def __len__(self) -> int:
        return len(self._mapping)


class _AllBuiltIn(Sequence[Extension]):
    """The extensions of ``load_built_in``, loaded when they are first looked at."""

    @overload
    def __getitem__(self, index: int) -> Extension: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Extension, ...]: ...
    def __getitem__(self, index: int | slice) -> Extension | tuple[Extension, ...]:
        return load_built_in()[index]

    def __len__(self) -> int:
        return len(BUILT_IN)


class _OnlyBuiltIn(Installed):
    """The extensions in force where no foreign one is enabled. Nothing is loaded before it is asked for."""

    def list_bringing(self, kind: str) -> tuple[Extension, ...]:
        return _load_bringing(kind)


def _load_bringing(*kinds: str) -> tuple[Extension, ...]:
    return tuple(
        load_reference(reference) for reference, brought in BUILT_IN.items() if not set(kinds).isdisjoint(brought)
    )


def _fold_field(field: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = getattr(fold_extensions(_load_bringing(*_MADE_OF.get(field, (field,)))), field)
    return found


def get_only_built_in() -> Installed:
    """The built-in extensions together, loaded by kind when that is asked for."""
    named = {item.name for item in fields(Installed)} - {"extensions", "values"}
    nothing: Mapping[str, Mapping[str, SettingValue]] = defaultdict(dict)  # none of them has settings
    made: dict[str, Any] = {name: _LazyMapping(partial(_fold_field, name)) for name in named}
    return _OnlyBuiltIn(extensions=_AllBuiltIn(), values=nothing, **made)


def get_installed() -> Installed:
    """The extensions in force in this process: the built-in ones, unless ``put_in_force`` was called."""
    found = _Process.installed
    if found is None:
        found = _Process.installed = get_only_built_in()
    return found


def list_foreign() -> tuple[Extension, ...]:
    """The extensions in force that are not built in."""
    found = get_installed()
    if isinstance(found, _OnlyBuiltIn):
        return ()
    ours = set(map(id, load_built_in()))
    return tuple(one for one in found.extensions if id(one) not in ours)


def list_upkeep(part: str) -> tuple[tuple[str, Callable[..., Any]], ...]:
    """The functions that features declare for one part of ``UpkeepDeclaration``, loaded, each with its name."""
    return tuple(
        (name, load_reference(reference))
        for name, task in get_installed().upkeep.items()
        if (reference := getattr(task, part)) is not None
    )


def put_in_force(installed: Installed | None) -> None:
    """Make ``get_installed`` return this from now on; ``None`` for the built-in extensions. Called when a process
    begins, before it serves requests: earlier look-ups are not repeated.
    """
    _Process.installed = installed


def require_rows(kind: type[_Row], declared: Iterable[object]) -> tuple[_Row, ...]:
    """``declared`` as rows of a catalogue. Raises ``ConfigurationError`` for any other type: extensions are written by
    others, and their types are unchecked.
    """
    found = tuple(declared)
    for row in found:
        if not isinstance(row, kind):
            raise ConfigurationError(f"{row!r} of an extension must be a {kind.__module__}.{kind.__qualname__}")
    return tuple(row for row in found if isinstance(row, kind))
