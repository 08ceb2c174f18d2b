"""Arguments of a tool that are also sent as headers (revision 2026-07-28, "Transports", ``x-mcp-header``), so that a
proxy before a server can route by them without reading bodies. Pure.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

MARK: Final = "x-mcp-header"
"""The key in a property's schema that holds the end of the header's name."""
_PREFIX: Final = "Mcp-Param-"
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_PLAIN: Final = re.compile(r"[!-~]([ -~]*[!-~])?|")
_CODED: Final = re.compile(r"=\?base64\?.*\?=")
_TYPES: Final = ("string", "integer", "boolean")
_VALUE_CHARS_MAX: Final = 4_000
_DEPTH_MAX: Final = 20


def find_header_paths(schema: object) -> Mapping[str, Sequence[str]] | None:
    """The paths of headers' values among the arguments, by the ends of the headers' names; ``None`` for a schema with
    wrong marks, whose tool must not be offered.
    """
    found: dict[str, tuple[str, ...]] = {}
    for path, node in _iterate_properties(schema, ()):
        if MARK not in node:
            continue
        name = node[MARK]
        is_name = isinstance(name, str) and _TOKEN.fullmatch(name)
        if not is_name or node.get("type") not in _TYPES or name.lower() in {one.lower() for one in found}:
            return None
        found[name] = path
    return found if _count_marks(schema) == len(found) else None


def build_param_headers(paths: Mapping[str, Sequence[str]], arguments: Mapping[str, Any]) -> dict[str, str]:
    """The headers of a call; none for a value that is not given. Raises ``ValueError`` for one that is too long."""
    headers: dict[str, str] = {}
    for name, path in paths.items():
        value: Any = arguments
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, bool):
            headers[f"{_PREFIX}{name}"] = "true" if value else "false"
        elif isinstance(value, str | int):
            headers[f"{_PREFIX}{name}"] = format_header_value(str(value))
    return headers


def format_header_value(value: str) -> str:
    """A value as a header can have it. Raises ``ValueError`` for one that is too long."""
    if len(value) > _VALUE_CHARS_MAX:
        raise ValueError(f"an argument that is sent as a header has more than {_VALUE_CHARS_MAX:,} characters")
    if _PLAIN.fullmatch(value) and not _CODED.fullmatch(value):
        return value
    return f"=?base64?{base64.b64encode(value.encode('utf-8', 'replace')).decode()}?="


def _iterate_properties(node: object, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """The properties that are reached through nothing but properties."""
    inside = node.get("properties") if isinstance(node, dict) and len(path) < _DEPTH_MAX else None
    for name, each in inside.items() if isinstance(inside, dict) else ():
        if isinstance(each, dict):
            yield (*path, name), each
            yield from _iterate_properties(each, (*path, name))


def _count_marks(node: object) -> int:
    """How many marks a schema has, at any place. A property may bear the mark as its name."""
    waiting, found = [(node, False)], 0
    while waiting:
        one, holds_names = waiting.pop()
        if isinstance(one, dict):
            found += MARK in one and not holds_names
            waiting += [(each, key == "properties" and not holds_names) for key, each in one.items()]
        elif isinstance(one, list):
            waiting += [(each, False) for each in one]
    return found
