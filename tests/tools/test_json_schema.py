"""Schemas of strangers: what they mean is judged, and none of them hangs, fetches or overflows a worker."""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import Any

import pytest

from hermes_worker.agent.tools import json_schema
from hermes_worker.agent.tools import schema_time_limit as judging_time
from hermes_worker.agent.tools.arguments import coerce, find_violations
from hermes_worker.agent.tools.json_schema import CHARS_MAX, MEMBERS_MAX, PATTERN_CHARS_MAX
from hermes_worker.agent.tools.schema_time_limit import SCHEMA_DEEP_MAX, UnusableSchema, limit_judging

LIMIT_S = 0.1
"""Of processor time here, in place of a second: these machines are busy."""


@pytest.fixture(autouse=True)
def _short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = (LIMIT_S,)
    monkeypatch.setattr(judging_time.limit_judging.__wrapped__, "__defaults__", defaults)  # type: ignore[attr-defined]


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def judged(arguments: dict[str, Any], schema: dict[str, Any]) -> tuple[str, ...]:
    return find_violations(coerce(arguments, schema), schema)


# ------------------------------------------------------------------------------------------------------------ meaning

PLACE = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
BY_ID = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"], "additionalProperties": False}
BY_NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}

MEANT = [
    # what foreign tools say that ours do not: arguments, schema, sentences
    ({"x": {"city": "Ulm"}}, {**of(x={"$ref": "#/$defs/place"}), "$defs": {"place": PLACE}}, ()),
    ({"x": {}}, {**of(x={"$ref": "#/$defs/place"}), "$defs": {"place": PLACE}}, ("in 'x': 'city' is required",)),
    ({"x": {"city": 5}}, {**of(x={"$ref": "#/definitions/p"}), "definitions": {"p": PLACE}}, ()),
    ({"x": "b7"}, of(x={"type": "string", "pattern": "^[a-z][0-9]$"}), ()),
    ({"x": "7b"}, of(x={"type": "string", "pattern": "^[a-z][0-9]$"}), ("'x' must match the pattern '^[a-z][0-9]$'",)),
    ({"x": {"id": 3}}, of(x={"oneOf": [BY_ID, {"type": "string"}]}), ()),
    ({"x": {"id": 3}}, of(x={"oneOf": [BY_ID, BY_NAME]}), ()),
    ({"x": {"name": "n"}}, of(x={"oneOf": [BY_ID, BY_NAME]}), ()),
    ({"x": True}, of(x={"oneOf": [BY_ID, BY_ID]}), ("'x' must be of type object, not boolean",)),
    (
        {"x": {"id": 3}},
        of(x={"oneOf": [BY_ID, BY_ID]}),
        ("'x' fits more than one of the forms of which it must have one",),
    ),
    ({"x": {}}, of(x={"anyOf": [{"type": "null"}, BY_NAME]}), ("in 'x': 'name' is required",)),
    ({"x": []}, of(x={"anyOf": [{"type": "null"}, BY_NAME]}), ("'x' must be of type null or object, not array",)),
    ({"x": 1}, of(x={"const": 2}), ("'x' must be 2",)),
    ({"x": 2}, of(x={"exclusiveMinimum": 2}), ("'x' must be more than 2",)),
    ({"x": 2}, of(x={"exclusiveMaximum": 2}), ("'x' must be less than 2",)),
    ({"x": "ab"}, of(x={"minLength": 3}), ("'x' is too short; it must have at least 3 characters",)),
    ({"x": [1, 2]}, of(x={"maxItems": 1}), ("'x' is too long; it may have at most 1 elements",)),
    ({"x": [1, True, "1"]}, of(x={"uniqueItems": True}), ()),
    ({"x": [1, 1.0]}, of(x={"uniqueItems": True}), ("'x' has an element twice",)),
    ({"x": [{"a": [1]}, {"a": [1]}]}, of(x={"uniqueItems": True}), ("'x' has an element twice",)),
    ({"x": {"id": 1, "z": 2}}, of(x=BY_ID), ("'x' has something unknown: 'z'",)),
    ({"z": 1}, {**of(x={}), "additionalProperties": False}, ("the whole of the arguments has something unknown: 'z'",)),
    ({"z": 1}, {**of(), "additionalProperties": {"type": "string"}}, ("'z' must be of type string, not integer",)),
    ({"x-a": 1}, {**of(), "patternProperties": {"^x-": {}}, "additionalProperties": False}, ()),
    (
        {"x-a": 1},
        {**of(), "patternProperties": {"^x-": {"type": "string"}}},
        ("'x-a' must be of type string, not integer",),
    ),
    ({"a": 1}, {**of(a={}), "dependentRequired": {"a": ["b"]}}, None),
    ({"x": 1}, of(x={"not": {"type": "integer"}}), ("'x' has a form that is not allowed",)),
    ({"x": 1}, of(x=False), None),
    ({"x": None}, of(x={"type": "string", "enum": ["a"], "nullable": True}), ()),
    (
        {"x": 4},
        {"$schema": "http://json-schema.org/draft-04/schema#", **of(x={"maximum": 4, "exclusiveMaximum": True})},
        None,
    ),
    ({"x": 4}, {"$schema": "http://nobody.example/schema", **of(x={"maximum": 3})}, ("'x' must be at most 3",)),
    ({"x": "a"}, of(x={"pattern": "(?<broken"}), ()),
]


@pytest.mark.parametrize(("arguments", "schema", "sentences"), MEANT, ids=range(len(MEANT)))
def test_a_foreign_schema_means_what_it_says(
    arguments: dict[str, Any], schema: dict[str, Any], sentences: tuple[str, ...] | None
) -> None:
    """``None`` for some sentence or other."""
    found = judged(arguments, schema)
    assert found == sentences if sentences is not None else found


def test_values_are_brought_to_the_types_behind_references() -> None:
    schema = {**of(n={"$ref": "#/$defs/n"}, p={"oneOf": [{"$ref": "#/$defs/p"}]}), "$defs": {
        "n": {"type": "integer"}, "p": {"type": "object", "properties": {"k": {"$ref": "#/$defs/n"}}}}}  # fmt: skip
    assert coerce({"n": "5", "p": '{"k": "6"}'}, schema) == {"n": 5, "p": {"k": 6}}


def test_only_the_first_sentences_are_told_and_none_is_long() -> None:
    schema = of(x={"type": "array", "items": {"type": "integer", "enum": ["y" * 300, "z" * 300]}})
    found = judged({"x": [{}] * 500}, schema)
    assert len(found) == 11
    assert found[-1] == "and more"
    assert max(map(len, found)) <= 400


# ------------------------------------------------------------------------------------------------------------ hostile


def _doubling() -> dict[str, Any]:
    defs: dict[str, Any] = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(30)}
    return {**of(), "$ref": "#/$defs/d0", "$defs": {**defs, "d30": {"type": "object"}}}


def _doubling_options() -> dict[str, Any]:
    """As above, where values are brought to types."""
    defs: dict[str, Any] = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(30)}
    return {**of(x={"$ref": "#/$defs/d0"}), "$defs": {**defs, "d30": {"type": "integer"}}}


def _deep(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"not": schema}
    return schema


A_LOT = "a" * 50_000
REFERS = "refers to itself without end, or is nested too deeply"
HOSTILE = {
    "a reference to an address": ({}, {**of(), "$ref": "http://127.0.0.1:9/x"}, "nothing is fetched"),
    "a reference to a file": ({}, {**of(), "$ref": "file:///etc/passwd"}, "nothing is fetched"),
    "an id elsewhere": ({}, {**of(), "$id": "http://127.0.0.1:9/", "$ref": "other.json"}, "nothing is fetched"),
    "a reference to nothing": ({}, {**of(), "$ref": "#/$defs/none"}, "nothing is fetched"),
    "a reference to itself": ({}, {**of(), "$ref": "#"}, REFERS),
    "two that refer to each other": (
        {},
        {**of(), "$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        REFERS,
    ),
    "a moving reference": (
        {},
        {**of(), "$dynamicRef": "#a", "$defs": {"b": {"$dynamicAnchor": "a", "$dynamicRef": "#a"}}},
        REFERS,
    ),
    "references that double": ({}, _doubling(), "takes too long"),
    "options that double": ({"x": "y"}, _doubling_options(), "takes too long"),
    "a pattern that never ends": ({"x": A_LOT + "!"}, of(x={"pattern": "^(a+)+$"}), "a pattern that takes too long"),
    "another": ({"x": A_LOT}, of(x={"pattern": "(a|aa)+$b"}), "a pattern that takes too long"),
    "one below another dialect": (
        {"x": A_LOT + "!"},
        of(x={"$schema": "http://json-schema.org/draft-07/schema#", "pattern": "^(a+)+$"}),
        "a pattern that takes too long",
    ),
    "one for names": (
        {A_LOT + "!": 1},
        {**of(), "patternProperties": {"^(a+)+$": False}},
        "a pattern that takes too long",
    ),
    "one for other names": (
        {A_LOT + "!": 1},
        {**of(), "patternProperties": {"^(a+)+$": {}}, "additionalProperties": False},
        "a pattern that takes too long",
    ),
    "one for what is left": (
        {A_LOT + "!": 1},
        {**of(), "patternProperties": {"^(a+)+$": {}}, "unevaluatedProperties": False},
        "cannot be checked in bounded time",
    ),
    "a long pattern": ({"x": ""}, of(x={"pattern": "a" * (PATTERN_CHARS_MAX + 1)}), "2,001 characters"),
    "a pattern of brackets": ({"x": ""}, of(x={"pattern": "(" * 900 + ")" * 900}), REFERS),
    "a reference to itself for what is left": (
        {},
        {**of(), "unevaluatedProperties": False, "$ref": "#"},
        "in bounded time",
    ),
    "many members left": (
        {f"p{i}": 1 for i in range(MEMBERS_MAX + 1)},
        {**of(), "unevaluatedProperties": {}},
        "checked up to 1,000 members",
    ),
    "many options for many elements": (
        {"x": ["q"] * 20_000},
        of(x={"type": "array", "items": {"anyOf": [{"const": i} for i in range(1_000)]}}),
        "takes too long",
    ),
    "a large schema": ({}, {**of(), "description": "x" * CHARS_MAX}, "256,000 are read"),
    "a wide schema": ({}, of(**{f"p{i}": {"type": "string"} for i in range(8_000)}), "takes too long"),
    "a deep schema": ({}, _deep(SCHEMA_DEEP_MAX + 1), "levels deep"),
    "a very deep schema": ({}, _deep(100_000), "levels deep"),
    "no schema": ({}, {"properties": 5}, "is no JSON Schema: 'type' is wrong at properties"),
    "no schema behind a reference": ({}, {**of(), "$ref": "#/x", "x": {"properties": 5}}, "cannot be read"),
    "no type": ({"x": 1}, of(x={"type": "int"}), "is no JSON Schema"),
    "no type behind a reference": ({}, {**of(), "$ref": "#/x", "x": {"type": "int"}}, "a type that JSON does not have"),
    "a number beyond all": ({"x": 10**400}, of(x={"multipleOf": 1e-300}), "cannot be read"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schema_is_refused_in_time(name: str) -> None:
    arguments, schema, reason = HOSTILE[name]
    began = time.thread_time()
    with pytest.raises(UnusableSchema, match=reason):
        judged(arguments, schema)
    assert time.thread_time() - began < 1.0 + 3 * LIMIT_S, "each of three judgements ends at its limit"


def test_nothing_is_ever_fetched() -> None:
    """Not even looked up: a server that is there hears nothing."""
    heard = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        address = f"http://127.0.0.1:{server.getsockname()[1]}/schema.json"
        for keyword in ("$ref", "$dynamicRef", "$schema", "$id"):
            try:
                judged({"x": 1}, {**of(x={"type": "integer"}), keyword: address})
            except UnusableSchema as error:
                heard.append((keyword, str(error)))
        with pytest.raises(TimeoutError):
            server.accept()
    assert [keyword for keyword, _ in heard] == ["$ref", "$dynamicRef"]


def test_elements_are_compared_in_a_time_that_does_not_grow_with_the_square() -> None:
    several = {"x": [{"a": number} for number in range(20_000)]}
    began = time.thread_time()
    assert find_violations(several, of(x={"uniqueItems": True})) == ()
    assert time.thread_time() - began < 2


def test_other_threads_go_on_while_a_pattern_is_looked_for() -> None:
    passes = 0
    is_over = threading.Event()

    def judge() -> None:
        with pytest.raises(UnusableSchema):
            find_violations({"x": A_LOT + "!"}, of(x={"pattern": "^(a+)+$"}))
        is_over.set()

    thread = threading.Thread(target=judge)
    thread.start()
    while not is_over.wait(0.001):
        passes += 1
    thread.join()
    assert passes > 5


def test_without_a_limit_nothing_is_judged() -> None:
    with pytest.raises(UnusableSchema, match="LookupError"):
        list(json_schema.iterate_errors({}, of()))
    with limit_judging():
        assert list(json_schema.iterate_errors({}, of())) == []


def test_a_schema_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it costs to find out that it is one, it costs once, however often the tool is called."""
    schema = of(once={"type": "integer", "description": json.dumps(time.time())})
    find_violations({}, schema)
    monkeypatch.setattr(json_schema, "_explain_unusable", lambda *_: pytest.fail("read twice"))
    find_violations({}, schema)
