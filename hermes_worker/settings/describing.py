"""Settings as people are shown them: with their meaning, and with where their value comes from."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import MISSING, dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from hermes_worker.settings.composed import GROUPS, Settings
from hermes_worker.settings.declaring import Audience, iterate_declared
from hermes_worker.settings.origins import SettingLayer, SettingOrigin


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingWithSource:
    """What a setting says, and who said so."""

    key: str
    variable: str
    value: str | None
    """The value as the environment has it; ``None`` for a setting that is not set, and for every secret."""
    is_secret: bool
    is_set: bool
    layer: SettingLayer
    origin: str
    """The layer in words."""
    doc: str


def list_with_sources(settings: Settings) -> Iterator[SettingWithSource]:
    """What every setting of a process says, in the order of the groups, and where that comes from. No secret is told.
    One that is for other processes only counts as set where it was given."""
    docs = _load_field_docs()
    for name, group in (("", Settings), *GROUPS.items()):
        values = getattr(settings, name) if name else settings
        for item, declaration in iterate_declared(group):
            value = getattr(values, item.name)
            text = "" if value is None else declaration.kind.render(value)
            default = "" if item.default in (None, MISSING) else declaration.kind.render(item.default)
            origin = settings.origins.get(declaration.key) or _find_default_origin(text, default)
            yield SettingWithSource(
                key=declaration.key,
                variable=declaration.variables[0],
                value=None if declaration.kind.is_secret or not text else text,
                is_secret=declaration.kind.is_secret,
                is_set=bool(text) or declaration.key in settings.origins,
                layer=origin.layer,
                origin=origin.place,
                doc=docs[group.__name__, item.name],
            )


def _find_default_origin(text: str, default: str) -> SettingOrigin:
    if text == default:
        return SettingOrigin(SettingLayer.DEFAULT, "default")
    return SettingOrigin(SettingLayer.DERIVED, "other settings")


class SettingRow(NamedTuple):
    """One line of the configuration table."""

    key: str
    variable: str
    allowed: str
    """What its value may be, as errors say it."""
    is_secret: bool
    default: str
    """Empty when the setting is not set by default."""
    doc: str
    audience: Audience
    reason: str
    """When it is set, and what happens there without it."""


def describe_settings() -> Iterator[SettingRow]:
    """Every setting, in the order of the groups."""
    docs = _load_field_docs()
    for group in (Settings, *GROUPS.values()):
        for item, declaration in iterate_declared(group):
            has_default = item.default not in (None, MISSING)
            kind = declaration.kind
            yield SettingRow(
                key=declaration.key,
                variable=declaration.variables[0],
                allowed=kind.allowed,
                is_secret=kind.is_secret,
                default=kind.render(item.default) if has_default else "",
                doc=docs[group.__name__, item.name],
                audience=declaration.audience,
                reason=declaration.reason,
            )


_READING_DOCS = Lock()


def _load_field_docs() -> dict[tuple[str, str], str]:
    """The docstrings under the fields. Two requests may ask at the same time, and Python 3.11 fails when two threads
    make syntax trees at once."""
    with _READING_DOCS:
        return _read_field_docs()


@lru_cache(1)
def _read_field_docs() -> dict[tuple[str, str], str]:
    """Read from the files of the groups: Python throws them away."""
    docs = {}
    files = {sys.modules[group.__module__].__file__ for group in (Settings, *GROUPS.values())}
    for node in (node for file in files for node in ast.parse(Path(str(file)).read_text(encoding="utf-8")).body):
        if isinstance(node, ast.ClassDef):
            for declared, documented in pairwise(node.body):
                match declared, documented:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(doc))):
                        docs[node.name, name] = " ".join(doc.split())
    return docs
