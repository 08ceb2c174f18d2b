"""Which schemas an answer may be asked to fit, and what an answer is worth by one."""

from __future__ import annotations

import json
import random
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from hermes_worker.agent.output import FittingAnswer, UnfitAnswer, check_schema, judge_answer
from hermes_worker.agent.tools.schema_time_limit import UnusableSchema

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TREE = {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}}}}
GOOD = [
    PERSON,
    TREE,
    {},
    {"type": "array", "items": {"$ref": "#/$defs/p"}, "$defs": {"p": PERSON}},
    {"type": "string", "pattern": r"^([a-z0-9-]+\.)+[a-z]{2,}$"},
    {"type": "string", "pattern": r"^\d{4}-\d{2}-\d{2}$", "enum": ["2026-11-23"]},
    {"type": "object", "patternProperties": {"^x-[a-z]+$": {"type": "number"}}},
    {"$schema": "http://json-schema.org/draft-07/schema#", "oneOf": [{"type": "null"}, PERSON]},
]


@pytest.mark.parametrize("schema", GOOD)
def test_what_people_write_is_taken(schema: dict[str, Any]) -> None:
    assert check_schema(schema) is schema


def nested(depth: int, inner: Any) -> Any:
    for _ in range(depth):
        inner = {"properties": {"a": inner}}
    return inner


def hostile() -> Iterator[Any]:
    """Three hundred schemas that fetch, grow, recurse, never end or are none."""
    rng = random.Random(17)
    references = [
        "http://127.0.0.1:9/x",
        "file:///etc/passwd",
        "https://example.org/s",
        "other.json",
        "//h/x",
        "urn:x:y",
    ]
    for reference in references:
        for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
            for depth in (0, 3, 20):
                yield nested(depth, {keyword: reference})
    # Others that are known as such are none to the engine that judges here: it finds at once what is missing.
    bombs = ["(a+)+$", "(a|a)*$", "(a|aa)+$", "(x+x+)+y", "^(([a-z])+.)+[A-Z]([a-z])+$"]
    bombs += [f"({letter}+)+$" for letter in "bcdefghijklmnopqrst"]
    for bomb in bombs:
        yield {"type": "string", "pattern": bomb}
        yield {"patternProperties": {bomb: {}}}
        yield {"items": [{"not": {"pattern": bomb}}]}
    for size in (64_001, 300_000, 10_000_000):
        yield {"description": "x" * size}
        yield {"enum": ["y" * size]}
        yield {"properties": {f"p{number}": {} for number in range(min(size // 6, 400_000))}}
        yield {"required": ["z"] * (size // 8)}
    for depth in (65, 200, 900):
        yield nested(depth, {})
        yield {"items": nested(depth, {})}
    loops = [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {"anyOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"not": {"$ref": "#"}},
    ]
    for loop in loops:
        yield loop
        yield {**loop, "type": "object", "title": "loop"}
    for levels in (30, 45, 60):
        doubled: dict[str, Any] = {"a0": {"type": "number", "multipleOf": 1e-300}}
        for level in range(1, levels):
            doubled[f"a{level}"] = {"anyOf": [{"$ref": f"#/$defs/a{level - 1}"}, {"$ref": f"#/$defs/a{level - 1}"}]}
        yield {"$defs": doubled, "not": {"anyOf": [{"$ref": f"#/$defs/a{levels - 1}"}, {"minimum": 10**400}]}}
    for wrong in (
        {"type": "strin"},
        {"type": 5},
        {"required": "a"},
        {"properties": []},
        {"minimum": "1"},
        {"pattern": "("},
    ):
        yield wrong
        yield nested(5, wrong)
    yield from ([], "x", 5, None, True, 1.5)
    while True:
        kind = rng.choice(["type", "required", "properties", "items", "enum", "pattern", "$ref", "allOf", "minItems"])
        wrong = {"enum": {}, "pattern": "(", "$ref": "x:y"}.get(kind, rng.choice([5.5, "no such", -1]))
        yield nested(rng.randrange(12), {kind: wrong})


def three_hundred() -> list[Any]:
    found = []
    for number, schema in enumerate(hostile()):
        if number == 300:
            return found
        found.append(schema)
    return found


def test_three_hundred_hostile_schemas_are_refused_at_once_and_nothing_is_fetched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_schema(PERSON)  # which imports what it takes

    def no_network(*args: object, **more: object) -> None:
        raise AssertionError("something is fetched")

    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    monkeypatch.setattr(socket.socket, "connect", no_network)
    slow = []
    for schema in three_hundred():
        # The least of three tries: what else the machine does is not the schema's.
        took = min(_refused_within(schema) for _ in range(3))
        if took > 0.05:
            slow.append((took, str(schema)[:80]))
    assert slow == []


def _refused_within(schema: Any) -> float:
    """Seconds of processor time."""
    began = time.thread_time()
    with pytest.raises(UnusableSchema):
        check_schema(schema)
        pytest.fail(f"taken: {str(schema)[:200]}")
    return time.thread_time() - began


def test_an_answer_that_fits_is_its_json() -> None:
    for text in ('{"name": "Ann", "age": 3}', '\n{"name":"Ann","age":3}\n', '```json\n{"name": "Ann", "age": 3}\n```'):
        found = judge_answer(text, PERSON)
        assert isinstance(found, FittingAnswer)
        assert json.loads(found.text) == {"name": "Ann", "age": 3}
    assert judge_answer("[1]", {"type": "array"}) == FittingAnswer(text="[1]")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Here you are: {}", "it is not one JSON value"),
        ('{"name": NaN, "age": 1}', "NaN is not JSON"),
        ('{"name": "Ann"}', "'age' is required"),
        ('{"name": "Ann", "age": "3"}', "'age' must be of type integer, not string"),
        ("[]", "the answer must be of type object, not array"),
        ("[" * 100_000, "it is not one JSON value"),
        ("{}\n{}", "it is not one JSON value"),
    ],
)
def test_an_answer_that_does_not_fit_is_told_why(text: str, said: str) -> None:
    found = judge_answer(text, PERSON)
    assert isinstance(found, UnfitAnswer)
    assert said in "; ".join(found.problems)
