"""Turn the JSON that a model wrote into the arguments that a tool declared.

Values are first brought to the types that the schema asks for, where a value plainly means one: models write ``"5"``
for 5 and ``"null"`` for nothing. Then ``json_schema`` judges them, and what is wrong is told in sentences that a model
can act on. Keys the schema does not name are left alone unless it forbids them.

A schema may come from a stranger: both functions work within the bounds of ``json_schema`` and raise ``UnusableSchema``
beyond them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from hermes_worker.agent.tools.schema_time_limit import Schema, limit_judging, spend_step
from hermes_worker.core.recovery.repair import dump_arguments, to_plain_json

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

_WHOLE = "the whole of the arguments"
_ERRORS_MAX = 100
_SENTENCES_MAX = 10
_SENTENCE_CHARS_MAX = 400
_REFERENCES_MAX = 16
"""References in a row that a coercion follows."""

_NUMBER: Final = re.compile(r"[+-]?\d{1,30}(?:\.\d{0,30})?(?:[eE][+-]?\d{1,3})?")
_BOOLEANS: Final = {"true": True, "false": False}
_UNCHANGED: Final = object()
"""Returned by a coercion that does not apply."""


def coerce(arguments: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """The arguments with values of the types the schema asks for, where a value plainly means one.

    ``null`` for an optional argument that cannot be null is dropped: models write it for "not given". Raises
    ``UnusableSchema``.
    """
    _require_usable(schema)
    with limit_judging():
        return _Coercion(schema).coerce_members(arguments, schema)


def find_violations(value: object, schema: Schema, *, whole: str = _WHOLE) -> tuple[str, ...]:
    """Sentences that say what is wrong with the arguments, or with another value that is called ``whole``; empty when
    it can be used. Raises ``UnusableSchema``.
    """
    _require_usable(schema)
    from hermes_worker.agent.tools.json_schema import iterate_errors

    with limit_judging():
        errors = sorted(
            islice(iterate_errors(value, schema), _ERRORS_MAX), key=lambda error: error.validator != "required"
        )
        told = islice(_describe_errors(errors, whole), _SENTENCES_MAX + 1)
        found = [sentence[:_SENTENCE_CHARS_MAX] for sentence in told]
    if len(found) > _SENTENCES_MAX:
        return (*found[:_SENTENCES_MAX], "and more")
    return tuple(found)


def _require_usable(schema: Schema) -> None:
    # Here and not above, because most processes judge nothing, and it takes long to import.
    from hermes_worker.agent.tools.json_schema import require_usable

    require_usable(schema)


# --- coercion ---


class _Coercion:
    """Brings values to the types of one schema. Its references are followed inside of it, and nowhere else."""

    def __init__(self, root: Schema) -> None:
        self._root = root

    def coerce_members(self, value: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
        properties = schema.get("properties", {})
        required = schema.get("required", ())
        coerced: dict[str, Any] = {}
        for name, member in value.items():
            wanted = self._resolve_reference(properties.get(name, True))
            if name not in properties:
                coerced[name] = member
            elif member is not None or name in required or _is_nullable(wanted):
                coerced[name] = self._coerce_value(member, wanted)
        return coerced

    def _coerce_value(self, value: Any, schema: Schema) -> Any:
        spend_step()
        if value == "null" and _is_nullable(schema):
            return None
        for alternative in self._list_alternatives(schema):
            kind = alternative.get("type")
            if _is_kind(value, kind):
                return self._coerce_inside(value, alternative)
            converted = _COERCIONS.get(kind, _leave_unchanged)(value)
            if converted is not _UNCHANGED:
                return self._coerce_inside(converted, alternative)
        return value

    def _coerce_inside(self, value: Any, schema: Schema) -> Any:
        if isinstance(value, list) and isinstance(schema.get("items"), Mapping):
            items = self._resolve_reference(schema["items"])
            return [self._coerce_value(item, items) for item in value]
        if isinstance(value, dict) and "properties" in schema:
            return self.coerce_members(value, schema)
        return value

    def _list_alternatives(self, schema: Schema) -> Iterator[Schema]:
        """The types a value may have, each as a schema of one type, in the order to try them."""
        spend_step()
        options = schema.get("anyOf") or schema.get("oneOf")
        if options:
            for option in options:
                yield from self._list_alternatives(self._resolve_reference(option))
            return
        kinds = schema.get("type")
        if isinstance(kinds, str) or kinds is None:
            yield schema
            return
        yield from ({**schema, "type": kind} for kind in kinds if kind != "null")

    def _resolve_reference(self, schema: Any) -> Schema:
        """The schema that ``schema`` refers to; one that allows anything for what cannot be followed."""
        for _ in range(_REFERENCES_MAX):
            if not isinstance(schema, Mapping):
                return {}
            reference = schema.get("$ref")
            if not isinstance(reference, str):
                return schema
            schema = self._find_target(reference)
        return {}

    def _find_target(self, reference: str) -> Any:
        if not reference.startswith("#/"):
            return self._root if reference == "#" else None
        found: Any = self._root
        for part in reference[2:].split("/"):
            name = part.replace("~1", "/").replace("~0", "~")
            found = found.get(name) if isinstance(found, Mapping) else None
        return found


def _to_number(value: Any) -> Any:
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        number = float(value)
        if not math.isfinite(number):
            return _UNCHANGED  # "1e400" is a number, and none that JSON or a tool can work with
        return int(number) if number.is_integer() and abs(number) < 2**53 else number
    return _UNCHANGED


def _to_integer(value: Any) -> Any:
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d{1,30}", value.strip()):
        return int(value)
    number = value if isinstance(value, float) else _to_number(value)
    return int(number) if isinstance(number, int | float) and number == number // 1 else _UNCHANGED


def _to_boolean(value: Any) -> Any:
    return _BOOLEANS.get(value.strip().lower(), _UNCHANGED) if isinstance(value, str) else _UNCHANGED


def _to_object(value: Any) -> Any:
    return _parse_as(value, dict)


def _to_array(value: Any) -> Any:
    """JSON text of a list, or the one element that was meant."""
    parsed = _parse_as(value, list)
    if parsed is not _UNCHANGED:
        return parsed
    return _UNCHANGED if value is None else [value]


def _to_string(value: Any) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return dump_arguments(value) if is_number else _UNCHANGED


def _leave_unchanged(value: Any) -> Any:
    return _UNCHANGED


def _parse_as(value: Any, kind: type) -> Any:
    if not isinstance(value, str):
        return _UNCHANGED
    text = to_plain_json(value)
    parsed = _UNCHANGED if text is None else json.loads(text)
    return parsed if isinstance(parsed, kind) else _UNCHANGED


_COERCIONS: Final[Mapping[object, Callable[[Any], Any]]] = {
    "integer": _to_integer,
    "number": _to_number,
    "boolean": _to_boolean,
    "object": _to_object,
    "array": _to_array,
    "string": _to_string,
}


# --- sentences ---


def _describe_errors(errors: Iterable[ValidationError], whole: str) -> Iterator[str]:
    for error in errors:
        yield from _describe_error(error, list(error.absolute_path), whole)


def _describe_error(error: ValidationError, path: list[str | int], whole: str) -> Iterator[str]:
    """Sentences about one error. ``path`` leads to the value from the arguments, while an error inside of an
    alternative knows a part of it only.
    """
    *outer, name = _format_places(path) or [""]
    within = "".join(f"in {place!r}: " for place in outer)
    if error.validator == "required":
        inside = f"in {name!r}: " if name else ""
        yield f"{within}{inside}{_describe_missing(error)}"
    elif error.validator in ("anyOf", "oneOf") and error.context:
        yield from _describe_alternatives(error, path, whole)
    else:
        what = repr(name) if name else whole
        yield f"{within}{what} {_describe_wrong(error)}"


def _format_places(path: Sequence[str | int]) -> list[str]:
    """The path in words: ``["items", 1, "id"]`` is ``items[1]`` and in it ``id``."""
    places: list[str] = []
    for step in path:
        if isinstance(step, int) and places:
            places[-1] += f"[{step}]"
        else:
            places.append(str(step))
    return places


def _describe_missing(error: ValidationError) -> str:
    given: Any = error.instance
    schema: Any = error.schema
    unknown = sorted(given.keys() - schema.get("properties", {}).keys())
    instead = f" (you gave {', '.join(map(repr, unknown))})" if unknown else ""
    return f"{error.message!r} is required{instead}"


def _describe_alternatives(error: ValidationError, path: list[str | int], whole: str) -> Iterator[str]:
    """Sentences by the first alternative that has the value's type; where none has, the sentence says which types are
    allowed.
    """
    alternatives: dict[object, list[ValidationError]] = {}
    for inner in error.context or ():
        alternatives.setdefault(inner.relative_schema_path[0], []).append(inner)
    types = [inner for inner in error.context or () if inner.validator == "type" and not inner.relative_path]
    strangers = {inner.relative_schema_path[0] for inner in types}
    fitting = next((found for number, found in alternatives.items() if number not in strangers), None)
    if fitting is not None:
        for inner in fitting:
            yield from _describe_error(inner, [*path, *inner.relative_path], whole)
        return
    *outer, name = _format_places(path) or [""]
    within = "".join(f"in {place!r}: " for place in outer)
    kinds = dict.fromkeys(kind for inner in types for kind in _list_allowed_kinds(inner.validator_value))
    what = repr(name) if name else whole
    yield f"{within}{what} must be of type {' or '.join(kinds)}, not {_name_kind(error.instance)}"


def _describe_wrong(error: ValidationError) -> str:
    wanted: Any = error.validator_value
    match error.validator:
        case "type":
            kinds = [kind for kind in _list_allowed_kinds(wanted) if kind != "null"] or ["null"]
            return f"must be of type {' or '.join(kinds)}, not {_name_kind(error.instance)}"
        case "enum":
            return f"must be one of {', '.join(map(repr, wanted))}"
        case "const":
            return f"must be {wanted!r}"
        case "minimum":
            return f"must be at least {wanted}"
        case "maximum":
            return f"must be at most {wanted}"
        case "exclusiveMinimum":
            return f"must be more than {wanted}"
        case "exclusiveMaximum":
            return f"must be less than {wanted}"
        case "pattern":
            return f"must match the pattern {wanted!r}"
        case "minLength" | "minItems" | "minProperties":
            return f"is too short; it must have at least {wanted} {_MEMBERS[error.validator[3:]]}"
        case "maxLength" | "maxItems" | "maxProperties":
            return f"is too long; it may have at most {wanted} {_MEMBERS[error.validator[3:]]}"
        case "uniqueItems":
            return "has an element twice"
        case "additionalProperties":
            return f"has something {error.message}"
        case "oneOf":
            return "fits more than one of the forms of which it must have one"
        case "not":
            return "has a form that is not allowed"
    return f"does not fit {error.validator!r} of the tool's schema"


_MEMBERS: Final = {"Length": "characters", "Items": "elements", "Properties": "members"}


def _list_allowed_kinds(wanted: object) -> list[str]:
    return [wanted] if isinstance(wanted, str) else [str(kind) for kind in wanted] if isinstance(wanted, list) else []


# --- kinds of values ---


def _is_nullable(schema: Schema) -> bool:
    kinds = schema.get("type")
    listed = kinds == "null" or (isinstance(kinds, list | tuple) and "null" in kinds)
    options = schema.get("anyOf") or schema.get("oneOf") or ()
    return (
        listed or bool(schema.get("nullable")) or any(isinstance(one, Mapping) and _is_nullable(one) for one in options)
    )


def _is_kind(value: Any, kind: object) -> bool:
    """Whether ``value`` is of the JSON type ``kind``; a schema without a type allows anything."""
    return kind is None or kind == _name_kind(value) or (kind == "number" and _name_kind(value) == "integer")


def _name_kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"
