"""Load tables of the product from TOML files that stand in its packages, checked against their types.

Such a file is part of the program, so ``core`` may read one: that is like importing a module.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from importlib.resources import files
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from hermes_worker.core.errors import ConfigurationError

__all__ = ["load_data"]

_Kind = TypeVar("_Kind")


def load_data(kind: type[_Kind], package: str, file: str) -> _Kind:
    """Load ``file`` of ``package`` as a ``kind``: a dataclass whose fields are the file's tables.

    Raises ``ConfigurationError``, whose sentence names the file, the row and the field, for a field that is missing,
    unknown or of another type. Reads the file each time.
    """
    document = tomllib.loads(files(package).joinpath(file).read_text(encoding="utf-8"))
    value: _Kind = _read_row(kind, document, file)
    return value


def _read_value(kind: Any, value: Any, where: str) -> Any:
    """Convert a value of TOML to ``kind``. Of alternatives the first one counts: TOML has no null."""
    origin, inner = get_origin(kind), get_args(kind)
    match value:
        case _ if origin in (Union, UnionType):
            return _read_value(inner[0], value, where)
        case dict() if is_dataclass(kind):
            return _read_row(kind, value, where)
        case dict() if origin is Mapping:
            items = ((_read_value(inner[0], name, where), name) for name in value)
            return {key: _read_value(inner[1], value[name], f"{where}, {name}") for key, name in items}
        case list() if origin in (tuple, frozenset):
            return origin(
                _read_value(inner[0], item, f"{where}, {_name_item(i, item)}") for i, item in enumerate(value)
            )
        case str() if origin is re.Pattern or (isinstance(kind, type) and issubclass(kind, Enum)):
            try:
                return re.compile(value) if origin is re.Pattern else kind(value)
            except (ValueError, re.error) as error:
                raise ConfigurationError(f"{where}: {error}") from error
        case int() if kind is float:
            return float(value)
    if kind is not object and type(value) is not kind:
        raise ConfigurationError(f"{where} must be of the type {getattr(kind, '__name__', kind)}, not {value!r}")
    return value


def _name_item(index: int, item: Any) -> str:
    """Name an item of a list by the name that it has, or else by its place, counted from 1."""
    return repr(item["name"]) if isinstance(item, dict) and "name" in item else f"row {index + 1}"


@cache
def _read_hints(kind: Any) -> tuple[Mapping[str, Any], frozenset[str]]:
    """Read the types of a dataclass's fields, and which fields have no default. Reading them again for each row would
    take longer than everything else."""
    required = (item.name for item in fields(kind) if item.default is MISSING and item.default_factory is MISSING)
    return get_type_hints(kind), frozenset(required)


def _read_row(kind: Any, row: Mapping[str, Any], where: str) -> Any:
    hints, required = _read_hints(kind)
    if unknown := row.keys() - hints.keys():
        raise ConfigurationError(f"{where} has a field that is not known: {', '.join(sorted(unknown))}")
    if missing := required - row.keys():
        raise ConfigurationError(f"{where} lacks {', '.join(sorted(missing))}")
    return kind(**{name: _read_value(hints[name], value, f"{where}, {name}") for name, value in row.items()})
