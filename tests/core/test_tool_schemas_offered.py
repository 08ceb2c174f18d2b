"""Definitions that a careless server may offer: what is sent of each is a schema that all readers take."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from test_tool_schemas import problems

from hermes_worker.core.tool_schemas import UnfitDefinition, fit_schema

NODE = {"type": "object", "properties": {"v": {"type": "string"}, "next": {"$ref": "#/$defs/n"}}}
DEEP: Mapping[str, Any] = {"type": "string"}
for _ in range(30):
    DEEP = {"type": "object", "properties": {"a": DEEP}}
UNFIT = "takes a value of type"


def of(node: object, **more: Any) -> dict[str, Any]:
    """A schema of arguments with one property."""
    return {"type": "object", "properties": {"a": node}, **more}


OFFERED: list[Any] = [
    of(
        {
            "anyOf": [
                {
                    "oneOf": [
                        {"type": "string"},
                        {"allOf": [{"type": "object"}, {"properties": {"x": {"type": "array"}}}]},
                    ]
                },
                {"type": "null"},
            ]
        }
    ),
    of({"type": "object", "additionalProperties": {"type": ["string", "null"]}}),
    of({"type": "object", "additionalProperties": {"type": "array"}}),
    of({"const": None}),
    of({"enum": ["a", None], "type": ["string", "null"]}),
    of({"enum": ["a", None], "type": "string"}),
    of({"enum": []}),
    of({"enum": "a"}),
    of({"enum": ["a", "a"]}),
    of({"enum": [1, 1.0, True]}),
    of({"type": "string", "enum": [1, 2]}),
    of(True),
    of(False),
    of({"anyOf": [True, False]}),
    of({"not": True}),
    of({"not": False}),
    of({"items": False, "type": "array"}),
    of({"items": [{"type": "string"}, True], "type": "array"}),
    of({"items": [], "type": "array"}),
    of({"type": "array", "prefixItems": [{"type": "string"}, "integer", False], "items": False}),
    of({"type": "array", "prefixItems": {"type": "string"}}),
    of({"prefixItems": []}),
    of({"$ref": "#/$defs/n", "description": "d", "default": {}}, **{"$defs": {"n": NODE}}),
    of({"$ref": "#/definitions/n"}, definitions={"n": {"type": "object"}}),
    of({"$ref": "#"}),
    of({"$ref": "#/properties/a"}),
    of({"$ref": "#/$defs/x"}, **{"$defs": {"x": {"$ref": "#/$defs/x"}}}),
    of({"$ref": "#/$defs/x"}, **{"$defs": {"x": {"$ref": "#/$defs/y"}, "y": {"$ref": "#/$defs/x"}}}),
    {"$ref": "#/$defs/r", "$defs": {"r": of({"type": "string"})}},
    {"$ref": "#"},
    {"$ref": "#/$defs/r", "$defs": {"r": {"$ref": "#"}}},
    of({"$ref": "#/$defs/bool"}, **{"$defs": {"bool": True}}),
    of({"$ref": "#/$defs/w"}, **{"$defs": {"w": "string"}}),
    of({"$ref": "#/$defs/a b"}, **{"$defs": {"a b": {"type": "string"}}}),
    of({"$ref": "#/$defs/a%20b"}, **{"$defs": {"a b": {"type": "string"}}}),
    of({"$ref": "#/$defs/List[int]"}, **{"$defs": {"List[int]": {"type": "array"}}}),
    of({"$ref": "#anchor"}, **{"$defs": {"n": {"$anchor": "anchor"}}}),
    of({"$dynamicRef": "#x"}),
    of({"$recursiveRef": "#"}),
    of({"$dynamicAnchor": "x"}),
    of({"$dynamicAnchor": 3}),
    of({"$anchor": "a b"}),
    of({"$id": "a#b"}),
    of({"$id": "not a uri"}),
    of({"$vocabulary": 3}),
    of({"$defs": []}),
    of({"$defs": {"a": 3}}),
    of({"type": "string", "nullable": "yes"}),
    of({"type": "string", "nullable": True}),
    of(DEEP),
    of({"type": "integer", "default": "x"}),
    of({"type": "string", "default": None}),
    of({"pattern": 3}),
    of({"pattern": "^(?<y>a)"}),
    of({"format": 3}),
    of({"format": "date-time", "type": "string"}),
    of({"format": "uint64", "type": "integer"}),
    of({"dependentRequired": {"a": ["b"]}}),
    of({"dependentRequired": {"a": "b"}}),
    of({"dependentRequired": []}),
    of({"dependentRequired": {"a": ["b", "b"]}}),
    of({"dependencies": {"a": ["b"]}}),
    of({"dependencies": 3}),
    of({"dependencies": {"a": 3}}),
    of({"dependentSchemas": {"a": "string"}}),
    of({"dependentSchemas": 3}),
    of({"if": {"const": 1}, "then": {"type": "array"}, "else": {"type": "object"}}),
    of({"if": True, "then": "string"}),
    of(
        {"type": "string"},
        dependentRequired={"a": ["b"]},
        **{"if": {"properties": {"a": {"const": 1}}}, "then": {"required": ["a"]}},
    ),
    of({"type": "string"}, **{"not": {"required": ["a"]}}),
    of({"type": "string"}, additionalProperties={"type": "array"}),
    of({"type": "string"}, additionalProperties="no"),
    of({"type": "string"}, minProperties=-1),
    of({"type": "string"}, patternProperties={"(": {"type": "string"}}),
    of({"type": "string"}, patternProperties={"^x": {"type": "array"}}),
    of({"type": "string"}, patternProperties=[1]),
    of({"contains": "string", "minContains": -1}),
    of({"contains": True}),
    of({"propertyNames": {"pattern": "("}}),
    of({"propertyNames": True}),
    of({"contentSchema": 3}),
    of({"contentMediaType": 3, "contentEncoding": []}),
    of({"contentSchema": {"type": "array"}}),
    of({"minLength": 1.0}),
    of({"minLength": 1.5}),
    of({"maximum": float(3)}),
    of({"multipleOf": 0}),
    of({"uniqueItems": "true"}),
    of({"required": ["a", "a"]}),
    of({"required": [1]}),
    of({"examples": "x"}),
    of({"readOnly": 1}),
    of({"deprecated": "x"}),
    of({"title": None}),
    of({"$comment": 3}),
    of({"$schema": 3}),
    of({"type": "string", "x-foo": {"type": ["a"]}}),
    of({"type": "String"}),
    of({"type": "STRING"}),
    of({"type": "str"}),
    of({"type": "int"}),
    of({"type": "dict"}),
    of({"type": "list"}),
    of({"type": "bool"}),
    of({"type": "float"}),
    of({"type": {"type": "string"}}),
    of({"type": None}),
    of({"type": ["array", "null"]}),
    of({"type": ["string", "array"]}),
    of({"type": ["string", "integer", "null"], "enum": ["a", 1, None]}),
    of({"type": ["object", "string"], "properties": {"x": {"type": "string"}}, "required": ["x"]}),
    of({"type": ["array", "string"], "items": {"type": "integer"}}),
    of({"type": ["string", "integer"], "anyOf": [{"type": "string"}, {"minimum": 3}]}),
    of({"type": ["string", "integer"], "oneOf": [{"type": "string"}]}),
    of({"anyOf": [{"type": "string"}]}),
    of({"anyOf": {"type": "string"}}),
    of({"allOf": []}),
    of({"oneOf": "x"}),
    of({"anyOf": [{"type": "null"}]}),
    of({"anyOf": [{"type": "null"}, {"type": "null"}]}),
    of({"anyOf": [{"type": "string"}, {"const": None}]}),
    of({"anyOf": [{"type": "string"}, {"enum": [None]}]}),
    of({"anyOf": [{"type": ["string", "null"]}, {"type": "null"}]}),
    of({"oneOf": [{"type": "string", "title": "A"}, {"type": "null"}], "title": "B"}),
    of({"allOf": [{"type": "null"}]}),
    of(
        {
            "type": "object",
            "properties": {
                "type": {"type": "string"},
                "properties": {"type": "array"},
                "items": "string",
                "$ref": {"type": "string"},
                "required": {"type": "boolean"},
            },
        }
    ),
    of({"type": "object", "properties": []}),
    of({"type": "object", "properties": {"": {"type": "string"}}}),
    {"type": "object", "properties": {"a b": {"type": "string"}, "é": {"type": "string"}}, "required": ["a b", "é"]},
    of(
        {
            "type": "object",
            "properties": {"a b": {"type": "string"}},
            "dependentRequired": {"a b": ["c"]},
            "dependentSchemas": {"a b": {"required": ["a b"]}},
        }
    ),
    of({"unevaluatedProperties": "x", "unevaluatedItems": None}),
    of({"additionalItems": False, "items": [{"type": "string"}]}),
    of({"additionalItems": 3}),
    of({"extends": 3, "disallow": 4, "divisibleBy": 2}),
    of({"minimum": None, "maximum": "3"}),
    of({"id": "x"}),
    of({"type": "file"}),
    of({"type": "string", "required": True}),
    of({"type": "string", "optional": True}),
    of({"anyOf": [{"required": ["x"]}, {"required": ["y"]}], "type": "object", "properties": {"x": {}, "y": {}}}),
    of({"$ref": "#/properties/b/items"}),
    {
        "type": "object",
        "properties": {"a": {"$ref": "#/properties/b/items"}, "b": {"type": "array", "items": {"type": "string"}}},
    },
    {
        "type": "object",
        "properties": {"a": {"$ref": "#/properties/b/items/0"}, "b": {"type": "array", "items": [{"type": "string"}]}},
    },
    {"type": "object", "properties": {"a": {"$ref": "#/anyOf/0"}}, "anyOf": [{"type": "object"}]},
    {
        "type": "object",
        "properties": {"a": {"$ref": "#/properties/b/anyOf/1"}, "b": {"anyOf": [{"type": "null"}, {"type": "string"}]}},
    },
    {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/n/properties/x y"}},
        "$defs": {"n": {"type": "object", "properties": {"x y": {"type": "string"}}}},
    },
    {
        "type": "object",
        "oneOf": [{"$ref": "#/$defs/a"}, {"type": "object", "oneOf": [{"properties": {"z": {"type": "array"}}}]}],
        "$defs": {"a": {"allOf": [{"properties": {"q": {"type": "string"}}}]}},
    },
    {"type": "object", "allOf": [True, {"if": {"required": ["a"]}}], "properties": {"a": True}},
    {"enum": [{}]},
    {"const": {}},
    {"type": "object", "const": {}},
    {"type": "object", "default": 3},
    {"anyOf": [{"type": "string"}, {"type": "object", "properties": {"b": {}}}]},
    {"type": ["string", "null"]},
    {"type": "String"},
    {"type": "function"},
    {"properties": {"a": {}}, "type": "string"},
    {"not": {}},
    {"if": {}, "then": 3},
]


def test_what_is_sent_is_a_schema_and_what_was_offered_is_not_changed() -> None:
    for offered in OFFERED:
        before = copy.deepcopy(offered)
        try:
            sent = fit_schema(offered)
        except UnfitDefinition as error:
            sent = None
            assert str(error).startswith(UNFIT), offered
        assert repr(offered) == repr(before)
        if sent is not None:
            assert not list(problems(sent)), (offered, sent)
            assert fit_schema(sent) is sent, offered
            # A reference that leads nowhere, or only to itself, is an exception here.
            list(Draft202012Validator(sent).iter_errors({"a": {"v": "x", "next": {}}, "b": [1]}))


@pytest.mark.parametrize(
    ("node", "sent"),
    [
        ({"$ref": "#/properties/a"}, {}),
        ({"$ref": "#/properties/b/anyOf/1"}, {}),
        ({"$ref": "#/properties/b"}, {"$ref": "#/properties/b"}),
        ({"$dynamicRef": "#x", "title": "T"}, {"title": "T"}),
        (
            {"dependentRequired": {"a b": ["c", "c", 3], "d": "e"}},
            {"dependentRequired": {"a_b_c8687a08": ["c"], "d": []}},
        ),
        ({"dependencies": {"a": 3, "b": ["c"]}}, {"dependencies": {"a": {}, "b": ["c"]}}),
        (
            {"patternProperties": {"(": {}, "^x": "array"}},
            {"patternProperties": {"^x": {"type": "array", "items": {}}}},
        ),
        ({"$anchor": "a b", "$id": "a#b", "contentSchema": 3}, {"contentSchema": {}}),
    ],
)
def test_what_leads_nowhere_and_what_is_no_keyword_is_left_out(node: object, sent: Mapping[str, Any]) -> None:
    whole = of(node)
    whole["properties"]["b"] = {"anyOf": [{"type": "null"}, {"type": "string"}]}
    assert fit_schema(whole)["properties"]["a"] == sent
