"""Prompts with parts of a payload in them: ``{a.b.c}``.

There is nothing to a template but names: no expressions, no attributes, no formats. What is put in is not looked at
again, so a payload that contains ``{other.field}`` shows that text and no more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

PLACEHOLDER = re.compile(r"\{(?P<path>[A-Za-z0-9_][A-Za-z0-9_.-]{0,199})\}")
NESTED_CHARS_MAX = 2_000
PAYLOAD_CHARS_MAX = 4_000

_MISSING = object()
_OWN_NAMES = ("__raw__", "event_type")
"""Names that stand for the event itself."""


def render(template: str, payload: Mapping[str, Any], event: str) -> str:
    """``template`` with its names replaced (reference §4). ``{__raw__}`` is the whole payload, ``{event_type}`` the
    event; a name that the payload does not have stays as it is."""

    def value(match: re.Match[str]) -> str:
        path = match["path"]
        if path == "__raw__":
            return shown(payload, PAYLOAD_CHARS_MAX)
        if path == "event_type":
            return event
        found = at_path(payload, path)
        return match[0] if found is _MISSING else _text(found)

    return PLACEHOLDER.sub(value, template)


def missing_fields(template: str, payload: Mapping[str, Any]) -> list[str]:
    """The names in ``template`` that ``payload`` does not have, in order."""
    names = dict.fromkeys(match["path"] for match in PLACEHOLDER.finditer(template))
    return [name for name in names if name not in _OWN_NAMES and is_missing(at_path(payload, name))]


def default_prompt(route: str, payload: Mapping[str, Any], event: str) -> str:
    """For a route without a prompt."""
    return f"Webhook event {event!r} on route {route!r}:\n\n{shown(payload, PAYLOAD_CHARS_MAX)}"


def at_path(value: Any, path: str) -> Any:
    """What stands at a dotted path of objects and lists; ``is_missing`` tells when nothing does."""
    for part in path.split("."):
        if isinstance(value, Mapping):
            value = value.get(part, _MISSING)
        elif isinstance(value, list) and part.isascii() and part.isdigit() and len(part) < 7 and int(part) < len(value):
            value = value[int(part)]
        else:
            return _MISSING
        if value is _MISSING:
            return _MISSING
    return value


def is_missing(value: Any) -> bool:
    return value is _MISSING


def shown(value: Any, chars_max: int) -> str:
    """As JSON, cut."""
    text = json.dumps(value, ensure_ascii=False, indent=2)
    return text if len(text) <= chars_max else text[: chars_max - 1] + "…"


def _text(value: Any) -> str:
    if isinstance(value, Mapping | list):
        return shown(value, NESTED_CHARS_MAX)
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    return str(value)
