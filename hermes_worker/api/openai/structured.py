"""JSON answers: ``response_format`` of chat completions and ``text.format`` of responses become a schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from jsonschema import Draft202012Validator

from hermes_worker.api.errors import invalid

_NAMED_SCHEMA: Mapping[str, dict[str, Any]] = {
    "name": {"type": "string", "maxLength": 64},
    "schema": {"type": "object"},
    "strict": {"type": ["boolean", "null"]},
    "description": {"type": "string"},
}
_PLAIN = [
    {"type": "null"},
    {"type": "object", "properties": {"type": {"enum": ["text", "json_object"]}}, "required": ["type"]},
]
_KIND = {"const": "json_schema"}
CHAT_FORMAT: Final = {
    "anyOf": [
        *_PLAIN,
        {
            "type": "object",
            "properties": {
                "type": _KIND,
                "json_schema": {"type": "object", "properties": _NAMED_SCHEMA, "required": ["schema"]},
            },
            "required": ["type", "json_schema"],
        },
    ]
}
RESPONSE_FORMAT: Final = {
    "anyOf": [
        *_PLAIN,
        {"type": "object", "properties": {"type": _KIND, **_NAMED_SCHEMA}, "required": ["type", "schema"]},
    ]
}


def read_chat_schema(given: object) -> Mapping[str, Any] | None:
    """Read the schema from ``response_format``; ``None`` for a text. Raises ``ApiError``."""
    inner = given.get("json_schema") if isinstance(given, dict) else None
    return _parse_schema(given, inner, "response_format", "response_format.json_schema")


def read_response_schema(text: object) -> Mapping[str, Any] | None:
    """Read the schema from ``text.format``; ``None`` for a text. Raises ``ApiError``."""
    given = text.get("format") if isinstance(text, dict) else None
    return _parse_schema(given, given, "text.format", "text.format")


def _parse_schema(given: object, holder: object, param: str, place: str) -> Mapping[str, Any] | None:
    if given is None:
        return None
    kind = given.get("type") if isinstance(given, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    if kind != "json_schema":
        raise invalid(param, f"Invalid {param!r}: its type must be 'text', 'json_object' or 'json_schema'.")
    named = holder if isinstance(holder, dict) else {}
    schema = named.get("schema")
    if not isinstance(schema, dict):
        raise invalid(f"{place}.schema", f"Invalid '{place}.schema': it must be a JSON Schema, an object.")
    for name, form in _NAMED_SCHEMA.items():
        if name in named and not Draft202012Validator(form).is_valid(named[name]):
            raise invalid(f"{place}.{name}", f"Invalid '{place}.{name}': it is not what the OpenAPI document says.")
    return schema
