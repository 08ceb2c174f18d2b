"""Which events a route accepts: conditions on the payload, as data.

A condition is ``{"field": "pull_request.draft", "equals": false}``, or ``all``, ``any`` and ``not`` of others. A field
is a path in the payload; ``event`` is the type of the event, ``headers.<name>`` a header of the request.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from hermes_worker.core.errors import HermesError
from hermes_worker.core.json_paths import find_at_path, is_missing
from hermes_worker.core.json_values import parse_json
from hermes_worker.features.webhooks.rules.template import format_value

DEPTH_MAX = 10
_COMPARED_CHARS_MAX = 10_000
"""Most characters of a value that a regular expression is run over."""
_OPERATORS = ("exists", "missing", "equals", "not_equals", "contains", "in", "in_file", "regex")
_LIST_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}")
LIST_CHARS_MAX = 1_000_000


class FilterError(HermesError):
    """A condition that means nothing; it would never hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFacts:
    """What conditions may look at."""

    payload: Mapping[str, Any]
    event: str
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names are lower case."""
    lists: Mapping[str, Collection[str]] = field(default_factory=dict)
    """The entries of the files that conditions name."""


def find_named_lists(spec: Any) -> set[str]:
    """List the files that a condition looks into."""
    if isinstance(spec, list):
        return set().union(*map(find_named_lists, spec))
    if not isinstance(spec, Mapping):
        return set()
    inner = set().union(*(find_named_lists(spec[name]) for name in ("all", "any", "not") if name in spec))
    return inner | ({spec["in_file"]} if isinstance(spec.get("in_file"), str) else set())


def read_list(text: str) -> frozenset[str]:
    """Parse the entries of a file: a JSON list, the keys of a JSON object, or lines."""
    value = parse_json(text)
    entries = value if isinstance(value, list | dict) else text.splitlines()
    return frozenset(str(entry).strip() for entry in entries if str(entry).strip())


def check_filter(spec: Any, depth: int = 0) -> None:
    """Raise ``FilterError`` for a condition that ``does_match`` would not understand."""
    if not isinstance(spec, Mapping):
        raise FilterError("a condition is a JSON object")
    if depth > DEPTH_MAX:
        raise FilterError(f"conditions are nested at most {DEPTH_MAX} deep")
    if "all" in spec or "any" in spec:
        parts = spec.get("all", spec.get("any"))
        if not isinstance(parts, list):
            raise FilterError("'all' and 'any' take a list of conditions")
        for part in parts:
            check_filter(part, depth + 1)
    elif "not" in spec:
        check_filter(spec["not"], depth + 1)
    else:
        _check_comparison(spec)


def _check_comparison(spec: Mapping[str, Any]) -> None:
    if not isinstance(spec.get("field"), str) or not spec["field"].strip():
        raise FilterError("a condition needs a 'field'")
    if not any(name in spec for name in _OPERATORS):
        raise FilterError(f"a condition needs one of {', '.join(_OPERATORS)}")
    if "in_file" in spec and not (isinstance(spec["in_file"], str) and _LIST_NAME.fullmatch(spec["in_file"])):
        raise FilterError("'in_file' takes the plain name of a file below the home directory's 'webhooks'")
    if "in" in spec and not isinstance(spec["in"], list):
        raise FilterError("'in' takes a list")
    if "regex" in spec:
        try:
            re.compile(str(spec["regex"]))
        except re.error as error:
            raise FilterError(f"'regex' is not a regular expression: {error}") from None


def does_match(spec: Any, facts: EventFacts) -> bool:
    """Whether a condition holds. One that is not understood does not."""
    if not isinstance(spec, Mapping):
        return False
    if "all" in spec:
        return isinstance(spec["all"], list) and all(does_match(part, facts) for part in spec["all"])
    if "any" in spec:
        return isinstance(spec["any"], list) and any(does_match(part, facts) for part in spec["any"])
    if "not" in spec:
        return not does_match(spec["not"], facts)
    return _compare(spec, _find_value(spec.get("field"), facts), facts)


def _compare(spec: Mapping[str, Any], value: Any, facts: EventFacts) -> bool:
    is_there = not is_missing(value)
    match next((name for name in _OPERATORS if name in spec), None):
        case "exists":
            return is_there is bool(spec["exists"])
        case "missing":
            return is_there is not bool(spec["missing"])
        case "equals":
            return is_there and _is_equal(value, spec["equals"])
        case "not_equals":
            return not is_there or not _is_equal(value, spec["not_equals"])
        case "contains":
            return is_there and _contains(value, spec["contains"])
        case "in":
            return is_there and any(_is_equal(value, one) for one in spec["in"])
        case "in_file":
            return is_there and _format_text(value) in facts.lists.get(str(spec["in_file"]), ())
        case "regex":
            return is_there and re.search(str(spec["regex"]), _format_text(value)) is not None
        case _:
            return False


def _find_value(path: Any, facts: EventFacts) -> Any:
    if not isinstance(path, str):
        return find_at_path({}, "-")
    first, _, rest = path.strip().partition(".")
    match first:
        case "event" | "event_type" if not rest:
            return facts.event
        case "headers":
            return find_at_path(facts.headers, rest.lower())
        case "payload":
            whole = facts.payload.get("payload", facts.payload)
            return find_at_path(whole, rest) if rest else whole
        case _:
            return find_at_path(facts.payload, path.strip())


def _is_equal(value: Any, wanted: Any) -> bool:
    """Whether two values are equal as in JSON: ``true`` is not ``1``."""
    return isinstance(value, bool) is isinstance(wanted, bool) and bool(value == wanted)


def _contains(value: Any, wanted: Any) -> bool:
    if isinstance(value, list):
        return any(_is_equal(one, wanted) for one in value)
    if isinstance(value, Mapping):
        return isinstance(wanted, str) and wanted in value
    return str(wanted) in _format_text(value)


def _format_text(value: Any) -> str:
    text = value if isinstance(value, str) else format_value(value, _COMPARED_CHARS_MAX)
    return text[:_COMPARED_CHARS_MAX]
