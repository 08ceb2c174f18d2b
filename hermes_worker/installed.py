"""What this process knows by name: the built-in extensions and those that the operator enabled, put together once.

The built-in ones are listed by reference, as others are, so that this module stands below everything that they
declare and the catalogues can ask it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TypeVar

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.extension import Extension, Installed, fold, load

BUILT_IN = (
    "hermes_worker.agent.tools.builtin:EXTENSION",
    "hermes_worker.models.catalog:EXTENSION",
    "hermes_worker.models.vendor_extensions:BEDROCK",
    "hermes_worker.models.vendor_extensions:GEMINI",
    "hermes_worker.workspaces.ref:EXTENSION",
    "hermes_worker.api.builtin:EXTENSION",
    "hermes_worker.cli.builtin:EXTENSION",
    "hermes_worker.channels.catalog:EXTENSION",
    "hermes_worker.agent.prompt.sources:EXTENSION",
    "hermes_worker.agent.prompt.compactors:EXTENSION",
)
"""In this order what they bring is listed."""

_Row = TypeVar("_Row")


class _Process:
    """What is in force; ``None`` until somebody asks or ``put_in_force`` is called."""

    installed: Installed | None = None


@cache
def built_in() -> tuple[Extension, ...]:
    """The extensions that are always there."""
    return tuple(load(reference) for reference in BUILT_IN)


def current() -> Installed:
    """What is in force in this process: without ``put_in_force``, what is built in."""
    found = _Process.installed
    if found is None:
        # Two threads may compute the same; either answer is as good.
        found = _Process.installed = fold(built_in())
    return found


def put_in_force(installed: Installed | None) -> None:
    """From now on ``current`` gives this; ``None`` for what is built in. Done when a process begins, before it serves
    anybody: what was looked up before is not looked up again."""
    _Process.installed = installed


def rows(kind: type[_Row], declared: Iterable[object]) -> tuple[_Row, ...]:
    """``declared`` as rows of a catalogue. Raises ``ConfigurationError`` for what is none: extensions are written by
    others, whose types nobody checked."""
    found = tuple(declared)
    for row in found:
        if not isinstance(row, kind):
            raise ConfigurationError(f"{row!r} of an extension must be a {kind.__module__}.{kind.__qualname__}")
    return tuple(row for row in found if isinstance(row, kind))
