"""Definitions of tools that every server of models takes: the outside cases, and a judge of what vendors document."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from hermes_worker.agent.tools.catalog import get_declared_catalog
from hermes_worker.core.tool_schemas import (
    UnfitDefinition,
    fit_schema,
    make_sendable_name,
    remove_keywords,
    restore_arguments,
)

CASES = json.loads((Path(__file__).parents[1] / "cases/original/schemas.json").read_text())["cases"]
WITH_ITEMS = "schemas-015"
"""The one exception: ``mcp-array-no-items`` of reports.json wins, so an array always says what it holds."""
NOTHING: Mapping[str, Any] = {"type": "object", "properties": {}}


def at(schema: Any, path: list[str]) -> Any:
    for step in path:
        schema = schema.get(step, {}) if isinstance(schema, Mapping) else {}
    return schema


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_a_definition_is_mended_as_the_original_mends_it(case: Mapping[str, Any]) -> None:
    parameters, expected = case["input"].get("parameters"), case["expected"]
    sent = fit_schema(parameters)
    if "equals" in expected:
        assert sent == expected["equals"]
    if "value" in expected:
        assert at(sent, expected["at"]) == expected["value"]
    if expected.get("same"):
        assert sent is parameters
    for path in expected.get("absent", ()):
        if case["id"] == WITH_ITEMS:
            assert at(sent, path) == {}
        else:
            assert path[-1] not in at(sent, path[:-1])


@pytest.mark.parametrize(
    ("parameters", "sent"),
    [
        (None, NOTHING),
        (["object"], NOTHING),
        ({}, NOTHING),
        (
            {"$schema": "http://json-schema.org/draft-07/schema#"},
            {"$schema": "http://json-schema.org/draft-07/schema#", **NOTHING},
        ),
        ({"type": ["object", "null"]}, NOTHING),
        ({"type": "object", "properties": None, "required": "a"}, NOTHING),
        ({"type": "object", "nullable": True}, NOTHING),
    ],
)
def test_a_root_becomes_an_object_with_properties(parameters: object, sent: Mapping[str, Any]) -> None:
    assert fit_schema(parameters) == sent


@pytest.mark.parametrize(
    ("node", "sent"),
    [
        (True, {}),
        (None, {}),
        ("array", {"type": "array", "items": {}}),
        ({"type": "array", "items": True}, {"type": "array", "items": {}}),
        (
            {"type": "array", "items": ["string", "integer"]},
            {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "integer"}]}},
        ),
        ({"type": ["string", "null"]}, {"type": "string", "nullable": True}),
        ({"type": []}, {}),
        ({"type": "any", "description": 3}, {}),
        (
            {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
            {"type": "string", "nullable": True, "default": None},
        ),
        (
            {"anyOf": [{"$ref": "#/$defs/P"}, {"type": "null"}], "default": None},
            {"$ref": "#/$defs/P", "nullable": True},
        ),
        ({"anyOf": [], "enum": []}, {}),
        ({"$ref": "#/$defs/nobody", "description": "d"}, {"description": "d"}),
        ({"$ref": "https://example.com/schema"}, {}),
        ({"minimum": 1, "exclusiveMinimum": True, "exclusiveMaximum": False}, {"minimum": 1, "exclusiveMinimum": 1}),
        ({"type": "string", "required": True, "pattern": "(", "format": None, "minLength": "2"}, {"type": "string"}),
        ({"type": "string", "pattern": r"^\p{L}++$"}, {"type": "string", "pattern": r"^\p{L}++$"}),
        ({"type": "object", "additionalProperties": "object"}, {**NOTHING, "additionalProperties": NOTHING}),
        ({"type": "object", "additionalProperties": None}, NOTHING),
        ({"type": "object", "additionalProperties": False}, {**NOTHING, "additionalProperties": False}),
        (
            {"enum": ["object", None], "default": {"type": ["a"]}},
            {"enum": ["object", None], "default": {"type": ["a"]}},
        ),
    ],
)
def test_a_property_becomes_a_schema(node: object, sent: Mapping[str, Any]) -> None:
    whole = {"type": "object", "properties": {"a": node}, "$defs": {"P": {"type": "string"}}}
    assert fit_schema(whole)["properties"]["a"] == sent


def test_a_union_at_the_root_keeps_the_arguments_of_its_branches() -> None:
    one = {"type": "object", "properties": {"kind": {"const": "a"}, "x": {"type": "string"}}, "required": ["kind", "x"]}
    other = {"properties": {"kind": {"const": "b"}, "y": {"type": "string"}}, "required": ["y", "kind"]}
    sent = fit_schema({"oneOf": [one, {"$ref": "#/$defs/other"}], "$defs": {"other": other}})
    assert sent["properties"] == {
        "kind": {"anyOf": [{"const": "a"}, {"const": "b"}]},
        "x": {"type": "string"},
        "y": {"type": "string"},
    }
    assert sent["required"] == ["kind"]
    assert fit_schema({"allOf": [one, other]})["required"] == ["kind", "x", "y"]


@pytest.mark.parametrize("kind", ["string", "array", "null"])
def test_a_tool_that_takes_no_arguments_object_cannot_be_mended(kind: str) -> None:
    with pytest.raises(UnfitDefinition, match=f"takes a value of type '{kind}' and no object"):
        fit_schema({"type": kind})


def test_a_schema_that_is_too_deep_cannot_be_mended() -> None:
    deep: dict[str, Any] = {}
    for _ in range(2_000):
        deep = {"type": "object", "properties": {"a": deep}}
    with pytest.raises(UnfitDefinition, match="more than 64 levels deep"):
        fit_schema(deep)


def test_the_definitions_of_the_product_are_sent_as_they_are() -> None:
    catalog = get_declared_catalog()
    for name in catalog.names:
        parameters = catalog.get_spec(name).parameters
        assert fit_schema(parameters) is parameters, name
        assert make_sendable_name(name) == name


# --- names ---


@pytest.mark.parametrize("name", ["a" * 80, "files.read", "files/read", "7zip", "-x", "größe", "a b"])
def test_a_name_that_a_server_refuses_is_sent_as_another_one(name: str) -> None:
    assert TOOL_NAME.fullmatch(make_sendable_name(name))
    assert make_sendable_name(make_sendable_name(name)) == make_sendable_name(name) != make_sendable_name(name + "x")


ODATA = {
    "type": "object",
    "properties": {
        "$top": {"type": "integer"},
        "where": {"type": "array", "items": {"$ref": "#/$defs/clause"}},
        "by": {"anyOf": [{"type": "string"}, {"type": "object", "properties": {"a b": {"type": "string"}}}]},
        "x" * 80: {"type": "string"},
    },
    "required": ["$top"],
    "$defs": {"clause": {"type": "object", "properties": {"@field": {"type": "string"}}, "required": ["@field"]}},
}


def test_properties_have_their_own_names_again_when_the_model_calls() -> None:
    sent = fit_schema(ODATA)
    assert not list(problems(sent))
    top, where, by, long = sent["properties"]
    field = sent["$defs"]["clause"]["required"][0]
    spaced = next(iter(sent["properties"][by]["anyOf"][1]["properties"]))
    written = {top: 3, where: [{field: "f"}, {field: "g"}], by: {spaced: "s"}, long: "l", "unknown": 1}
    assert restore_arguments(written, ODATA) == {
        "$top": 3,
        "where": [{"@field": "f"}, {"@field": "g"}],
        "by": {"a b": "s"},
        "x" * 80: "l",
        "unknown": 1,
    }
    assert restore_arguments({"$top": 3}, ODATA) == {"$top": 3}, "what a model writes by itself"


def test_without_keywords_leaves_properties_that_are_called_so() -> None:
    schema = {"properties": {"pattern": {"type": "string", "pattern": "^a$", "default": {"pattern": 1}}}}
    assert remove_keywords(schema, {"pattern"}) == {
        "properties": {"pattern": {"type": "string", "default": {"pattern": 1}}}
    }


# --- whatever comes ---

TOOL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
PROPERTY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


def problems(schema: Any) -> Iterator[str]:
    """What OpenAI, Anthropic, Gemini or llama.cpp would refuse, by their documents and by what their users quote."""
    wrong = [one.message for one in Draft202012Validator(Draft202012Validator.META_SCHEMA).iter_errors(schema)]
    if wrong:
        yield f"Anthropic: JSON schema is invalid: {wrong[0]}"
        return
    if schema.get("type") != "object" or not isinstance(schema.get("properties"), dict):
        yield "OpenAI: schema must have type 'object' and properties"
    yield from (
        f"Anthropic: no {key} at the top level" for key in ("anyOf", "oneOf", "allOf", "enum", "not") if key in schema
    )
    yield from inner_problems(schema, schema)


def inner_problems(node: Any, whole: Any) -> Iterator[str]:
    if not isinstance(node, dict):
        yield f"llama.cpp: Unrecognized schema: {node!r}"
        return
    if node.get("pattern") == "(" or not node.get("enum", ["a"]):
        yield "OpenAI: a pattern or an enum that nothing matches"
    unions = [node[key] for key in ("anyOf", "oneOf") if key in node]
    if any({"type": "null"} in union and len(union) < 3 for union in unions):
        yield "Anthropic: a union with null"
    if not isinstance(node.get("type", ""), str):
        yield "Gemini: type is one word"
    if node.get("type") == "array" and not isinstance(node.get("items"), dict):
        yield "OpenAI: array schema missing items"
    if node.get("type") == "object" and not isinstance(node.get("properties"), dict):
        yield "llama.cpp: an object without properties"
    if "properties" in node:
        yield from (
            f"Gemini: required {one!r} is not defined"
            for one in node.get("required", ())
            if one not in node["properties"]
        )
    yield from (f"Anthropic: property {one!r}" for one in node.get("properties", {}) if not PROPERTY.fullmatch(one))
    if "$ref" in node:
        if "default" in node:
            yield "Fireworks: default beside $ref"
        start, *steps = node["$ref"].split("/")
        if start != "#" or (steps and not at(whole, [s.replace("~1", "/").replace("~0", "~") for s in steps])):
            yield f"Anthropic: {node['$ref']} leads nowhere"
    for key in ("properties", "$defs", "definitions", "patternProperties"):
        for inner in node.get(key, {}).values():
            yield from inner_problems(inner, whole)
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for inner in node.get(key, ()):
            yield from inner_problems(inner, whole)
    for key in ("items", "not", "if", "then"):
        if key in node:
            yield from inner_problems(node[key], whole)
    if not isinstance(node.get("additionalProperties", True), bool):
        yield from inner_problems(node["additionalProperties"], whole)


KINDS = ["object", "string", "number", "integer", "boolean", "array", "null", "any", ""]
TEXTS = st.sampled_from(["$top", "a", "#", "#/$defs/a", "(", *KINDS])
LEAVES = st.none() | st.booleans() | st.integers(-3, 3) | TEXTS | st.lists(st.sampled_from(KINDS), max_size=3)
NAMES = st.sampled_from(["a", "b", "$top", "x y", "p" * 70, "items", "type", "$ref", "nullable"])
WORDS = st.sampled_from(
    [
        "type",
        "properties",
        "items",
        "required",
        "anyOf",
        "oneOf",
        "allOf",
        "not",
        "enum",
        "$ref",
        "$defs",
        "definitions",
        "additionalProperties",
        "default",
        "description",
        "title",
        "minimum",
        "exclusiveMinimum",
        "maximum",
        "minLength",
        "pattern",
        "format",
        "nullable",
        "prefixItems",
        "const",
        "multipleOf",
        "uniqueItems",
        "examples",
        "patternProperties",
        "if",
        "then",
        "$schema",
        "$id",
        "minItems",
    ]
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(WORDS, inner, max_size=5)
        | st.dictionaries(NAMES, inner, max_size=3)
        | st.fixed_dictionaries({"type": st.just("object"), "properties": st.dictionaries(NAMES, inner, max_size=3)})
    ),
    max_leaves=12,
)


@settings(max_examples=400)
@given(SCHEMAS)
def test_whatever_comes_is_left_out_or_taken_by_every_server(parameters: object) -> None:
    try:
        sent = fit_schema(parameters)
    except UnfitDefinition:
        return
    assert not list(problems(sent)), sent
    assert fit_schema(sent) is sent, "what was mended once is sent as it is"


@settings(max_examples=200)
@example({"type": "object", "properties": {"a": {"$ref": "$top"}}})
@given(SCHEMAS)
def test_what_every_server_takes_is_not_changed(parameters: object) -> None:
    if isinstance(parameters, dict) and not list(problems(parameters)) and "nullable" not in json.dumps(parameters):
        assert fit_schema(parameters) == parameters
