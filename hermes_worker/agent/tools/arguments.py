"""From the JSON a model wrote to the arguments a tool declared (docs/behaviour.md, "Arguments").

Only the part of JSON Schema that tool definitions use is understood: ``type`` (also a list of types), ``anyOf``,
``enum``, ``properties``, ``required``, ``items``, ``minimum``, ``maximum`` and ``nullable``. Keys the schema does not
name are left alone.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from hermes_worker.core.recovery.repair import arguments_text, plain_json

Schema = Mapping[str, Any]

_NUMBER: Final = re.compile(r"[+-]?\d{1,30}(?:\.\d{0,30})?(?:[eE][+-]?\d{1,3})?")
_BOOLEANS: Final = {"true": True, "false": False}
_UNCHANGED: Final = object()
"""What a coercion returns that does not apply."""


def coerce(arguments: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """The arguments with values of the types the schema asks for, where a value plainly means one.

    ``null`` for an optional argument that cannot be null is dropped: models write it for "not given".
    """
    properties = schema.get("properties", {})
    required = schema.get("required", ())
    coerced: dict[str, Any] = {}
    for name, value in arguments.items():
        wanted = properties.get(name)
        if wanted is None:
            coerced[name] = value
        elif value is not None or name in required or _is_nullable(wanted):
            coerced[name] = _coerce_value(value, wanted)
    return coerced


def violations(arguments: Mapping[str, Any], schema: Schema) -> tuple[str, ...]:
    """What is wrong with the arguments, one sentence each; empty when they can be used."""
    missing = [name for name in schema.get("required", ()) if name not in arguments]
    unknown = sorted(arguments.keys() - schema.get("properties", {}).keys())
    instead = f" (you gave {', '.join(map(repr, unknown))})" if unknown else ""
    return (
        *(f"{name!r} is required{instead}" for name in missing),
        *(
            problem
            for name, wanted in schema.get("properties", {}).items()
            if name in arguments
            for problem in _problems(name, arguments[name], wanted)
        ),
    )


# --- coercion ---


def _coerce_value(value: Any, schema: Schema) -> Any:
    if value == "null" and _is_nullable(schema):
        return None
    for alternative in _alternatives(schema):
        kind = alternative.get("type")
        if _is_kind(value, kind):
            return _coerce_inside(value, alternative)
        converted = _COERCIONS.get(kind, _cannot)(value)
        if converted is not _UNCHANGED:
            return _coerce_inside(converted, alternative)
    return value


def _coerce_inside(value: Any, schema: Schema) -> Any:
    if isinstance(value, list) and "items" in schema:
        return [_coerce_value(item, schema["items"]) for item in value]
    if isinstance(value, dict) and "properties" in schema:
        return coerce(value, schema)
    return value


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
    return _parsed(value, dict)


def _to_array(value: Any) -> Any:
    """JSON text of a list, or the one element that was meant."""
    parsed = _parsed(value, list)
    if parsed is not _UNCHANGED:
        return parsed
    return _UNCHANGED if value is None else [value]


def _to_string(value: Any) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return arguments_text(value) if is_number else _UNCHANGED


def _cannot(value: Any) -> Any:
    return _UNCHANGED


def _parsed(value: Any, kind: type) -> Any:
    if not isinstance(value, str):
        return _UNCHANGED
    text = plain_json(value)
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


# --- validation ---


def _problems(name: str, value: Any, schema: Schema) -> Iterator[str]:
    if value is None and _is_nullable(schema):
        return
    fitting = [alternative for alternative in _alternatives(schema) if _is_kind(value, alternative.get("type"))]
    if not fitting:
        kinds = " or ".join(str(alternative.get("type")) for alternative in _alternatives(schema))
        yield f"{name!r} must be of type {kinds}, not {_kind_of(value)}"
        return
    yield from _problems_inside(name, value, fitting[0])


def _problems_inside(name: str, value: Any, schema: Schema) -> Iterator[str]:
    if "enum" in schema and value not in schema["enum"]:
        yield f"{name!r} must be one of {', '.join(map(repr, schema['enum']))}"
    if isinstance(value, int | float):
        if value < schema.get("minimum", value):
            yield f"{name!r} must be at least {schema['minimum']}"
        if value > schema.get("maximum", value):
            yield f"{name!r} must be at most {schema['maximum']}"
    if isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            yield from _problems(f"{name}[{index}]", item, schema["items"])
    if isinstance(value, dict) and "properties" in schema:
        for problem in violations(value, schema):
            yield f"in {name!r}: {problem}"


# --- both ---


def _alternatives(schema: Schema) -> Sequence[Schema]:
    """The types a value may have, each as a schema of one type, in the order to try them."""
    if "anyOf" in schema:
        return [alternative for option in schema["anyOf"] for alternative in _alternatives(option)]
    kinds = schema.get("type")
    if isinstance(kinds, str) or kinds is None:
        return [schema]
    return [{**schema, "type": kind} for kind in kinds if kind != "null"]


def _is_nullable(schema: Schema) -> bool:
    kinds = schema.get("type")
    listed = kinds == "null" or (isinstance(kinds, list | tuple) and "null" in kinds)
    return listed or bool(schema.get("nullable")) or any(map(_is_nullable, schema.get("anyOf", ())))


def _is_kind(value: Any, kind: object) -> bool:
    """Whether ``value`` is of the JSON type ``kind``; a schema without a type allows anything."""
    return kind is None or kind == _kind_of(value) or (kind == "number" and _kind_of(value) == "integer")


def _kind_of(value: Any) -> str:
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
