from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_worker.agent.tools.arguments import coerce, find_violations


def _schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": []}


ITEMS = {"type": "array", "items": {"type": "object", "properties": {"id": {"type": "string"}}}}

COERCED = [
    # Rows computed with Hermes Agent 0.19.0.
    ({"type": "integer"}, "5", 5),
    ({"type": "boolean"}, "true", True),
    (ITEMS, '[{"id": "1"}]', [{"id": "1"}]),
    ({"type": "array", "items": {"type": "string"}}, "http://x", ["http://x"]),
    ({"type": "integer"}, "NaN", "NaN"),
    ({"type": "integer"}, "1.0", 1),
    # And the other rules of the original.
    ({"type": "integer"}, "3.14", "3.14"),
    ({"type": "integer"}, "-7", -7),
    ({"type": "integer"}, 5.0, 5),
    ({"type": "integer"}, "1_000", "1_000"),
    ({"type": "integer"}, "9" * 5000, "9" * 5000),
    ({"type": "number"}, "3.14", 3.14),
    ({"type": "number"}, "2", 2),
    ({"type": "number"}, "Infinity", "Infinity"),
    ({"type": "boolean"}, "False", False),
    ({"type": "boolean"}, "1", "1"),
    ({"type": "boolean"}, 1, 1),
    ({"type": "object"}, '{"a": 1}', {"a": 1}),
    ({"type": "object"}, "[1]", "[1]"),
    ({"type": "array"}, "[1]", [1]),
    ({"type": "array"}, 5, [5]),
    (ITEMS, ['{"id": "1"}'], [{"id": "1"}]),
    (ITEMS, [{"id": 1}], [{"id": "1"}]),
    (ITEMS, [{"id": '{"a": 1}'}], [{"id": '{"a": 1}'}]),
    ({"type": "string"}, "5", "5"),
    ({"type": "string"}, 5, "5"),
    ({"type": "string"}, True, True),
    ({"type": ["string", "integer"]}, "5", "5"),
    ({"type": ["integer", "string"]}, "5", 5),
    ({"type": ["integer", "null"]}, "null", None),
    ({"type": "string", "nullable": True}, "null", None),
    ({"type": "string"}, "null", "null"),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "7", 7),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "null", None),
    ({}, "5", "5"),
    ({"type": "object"}, '```json\n{"a": 1}\n```', {"a": 1}),
    ({"type": "object"}, '"{\\"a\\": 1}"', {"a": 1}),
    ({"type": "array"}, '"[1]"', [1]),
    ({"type": "array"}, "[1][2]", ["[1][2]"]),
    ({"type": "number"}, "1e400", "1e400"),
    ({"type": "integer"}, "1e400", "1e400"),
    ({"type": "object"}, '{"a": 1e400}', '{"a": 1e400}'),
    ({"type": "array"}, "[" * 100_000, ["[" * 100_000]),
]


@pytest.mark.parametrize(("schema", "value", "expected"), COERCED, ids=range(len(COERCED)))
def test_a_value_that_plainly_means_the_type_asked_for_becomes_it(schema: Any, value: Any, expected: Any) -> None:
    coerced = coerce({"x": value}, _schema(x=schema))["x"]
    assert coerced == expected
    assert type(coerced) is type(expected)


def test_arguments_the_schema_does_not_name_are_left_alone() -> None:
    assert coerce({"other": "5"}, _schema(x={"type": "integer"})) == {"other": "5"}


def test_null_for_an_optional_argument_means_that_it_was_not_given() -> None:
    schema = _schema(x={"type": "integer"}, y={"type": ["integer", "null"]})
    assert coerce({"x": None, "y": None}, schema) == {"y": None}


STRICT = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "limit": {"type": "integer", "minimum": 1, "maximum": 10},
        "mode": {"type": "string", "enum": ["a", "b"]},
        "items": {
            "type": "array",
            "items": {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]},
        },
        "maybe": {"type": ["string", "null"]},
    },
    "required": ["path"],
}

VIOLATIONS = [
    ({"path": "x"}, ()),
    ({"path": "x", "other": 1}, ()),
    ({"path": "x", "maybe": None}, ()),
    ({}, ("'path' is required",)),
    ({"file": "x"}, ("'path' is required (you gave 'file')",)),
    ({"path": 5}, ("'path' must be of type string, not integer",)),
    ({"path": None}, ("'path' must be of type string, not null",)),
    ({"path": "x", "limit": 0}, ("'limit' must be at least 1",)),
    ({"path": "x", "limit": 11}, ("'limit' must be at most 10",)),
    ({"path": "x", "limit": True}, ("'limit' must be of type integer, not boolean",)),
    ({"path": "x", "mode": "c"}, ("'mode' must be one of 'a', 'b'",)),
    ({"path": "x", "items": [{"id": "1"}, {}]}, ("in 'items[1]': 'id' is required",)),
    ({"path": "x", "items": ["1"]}, ("'items[0]' must be of type object, not string",)),
    ({"path": "x", "maybe": 1}, ("'maybe' must be of type string, not integer",)),
]


@pytest.mark.parametrize(("arguments", "expected"), VIOLATIONS)
def test_each_violation_is_named(arguments: dict[str, Any], expected: tuple[str, ...]) -> None:
    assert find_violations(arguments, STRICT) == expected


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["path", "limit", "mode", "items", "maybe", "z"]), _values))
def test_no_arguments_make_it_raise(arguments: dict[str, Any]) -> None:
    find_violations(coerce(arguments, STRICT), STRICT)
