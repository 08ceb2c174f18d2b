"""Answers that have to fit a JSON Schema: which schemas are accepted, and whether an answer fits. Pure.

A schema comes from a caller, so it is hostile until it was looked at: ``check_schema`` refuses what could fetch, what
is large, and what takes long to judge by. An accepted schema is applied within the bounds of ``tools.json_schema`` all
the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from hermes_worker.agent.tools.arguments import find_violations
from hermes_worker.agent.tools.schema_time_limit import (
    SCHEMA_DEEP_MAX,
    TOO_LONG,
    Schema,
    UnusableSchema,
    compute_time_left_s,
    limit_judging,
)
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.core.tool_schemas import UnfitDefinition, fit_schema

SCHEMA_CHARS_MAX = 64_000
"""Characters of a schema as compact JSON: it is a part of the prompt."""
PROBE_S: Final = 0.01
"""Seconds of processor time for judging a few values by a schema, and for trying its patterns."""
_NODES_MAX = 8_000
_PROBE_CHARS = "aA0 -_.@/,:\n"
_PROBE_REPEATS = 400
_FENCED = re.compile(r"\s*```[A-Za-z0-9_-]{0,20}[ \t]*\n(?P<inside>.*)\n[ \t]*```\s*", re.DOTALL)
_PROBES: tuple[object, ...] = (None, 0, "", [], {}, [0], {"": 0})


@dataclass(frozen=True, slots=True, kw_only=True)
class FittingAnswer:
    """An answer that fits: its JSON, without the text around it."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfitAnswer:
    """An answer that does not fit; sentences that a model can act on."""

    problems: tuple[str, ...]


def check_schema(schema: object) -> Schema:
    """Return the schema if answers can be judged by it. Raises ``UnusableSchema``; its message completes the sentence
    "the schema ...". A bad schema is refused within milliseconds; a large one that is accepted takes some tenths of a
    second.
    """
    # Here and not above, because few processes look at schemas, and it takes long to import.
    from hermes_worker.agent.tools.json_schema import require_usable

    if not isinstance(schema, Mapping):
        raise UnusableSchema("must be a JSON object")
    patterns = list(_find_patterns(schema))
    if len(dump_canonical_json(schema)) > SCHEMA_CHARS_MAX:
        raise UnusableSchema(_TOO_LARGE)
    with limit_judging(PROBE_S):
        for pattern in patterns:
            _require_quick(pattern)
    require_usable(schema)
    with limit_judging(PROBE_S):
        for probe in _PROBES:
            find_violations(probe, schema)
    return schema


def require_usable_parameters(parameters: Schema) -> None:
    """Check a schema of arguments that a caller brings, mended as it is when it is sent if it is no schema by itself.
    Raises ``UnusableSchema`` for one that cannot be mended, and for one that could do harm.
    """
    for _ in _find_patterns(parameters):
        pass  # what refers to elsewhere, is large or is deep is refused before anything is made of it
    try:
        mended = fit_schema(parameters, renames=False)
    except UnfitDefinition as error:
        raise UnusableSchema(str(error)) from None
    check_schema(mended)


_TOO_LARGE = f"is too large: at most {SCHEMA_CHARS_MAX:,} characters and {_NODES_MAX:,} values are read"


def _find_patterns(schema: Schema) -> Iterator[str]:
    """The regular expressions of a schema, and any text that could be one. Raises ``UnusableSchema`` on meeting a
    reference to elsewhere.
    """
    waiting: list[tuple[Any, int]] = [(schema, 0)]
    nodes = chars = 0
    while waiting:
        value, depth = waiting.pop()
        inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
        nodes += 1 + len(inside)
        chars += len(value) if isinstance(value, str) else 0
        if nodes > _NODES_MAX or chars > SCHEMA_CHARS_MAX:
            raise UnusableSchema(_TOO_LARGE)
        if depth > SCHEMA_DEEP_MAX:
            raise UnusableSchema(f"is nested more than {SCHEMA_DEEP_MAX} levels deep")
        waiting.extend((each, depth + 1) for each in inside)
        if not isinstance(value, Mapping):
            continue
        for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
            reference = value.get(keyword)
            if isinstance(reference, str) and not reference.startswith("#"):
                raise UnusableSchema(f"refers to {reference[:200]!r}, which is not part of it; nothing is fetched")
        if isinstance(value.get("pattern"), str):
            yield value["pattern"]
        if isinstance(value.get("patternProperties"), Mapping):
            yield from map(str, value["patternProperties"])


def _require_quick(pattern: str) -> None:
    """Try a regular expression on texts that make bad ones go through every way to split them."""
    import regex  # see checked_schema

    try:
        compiled = regex.compile(pattern)
    except (regex.error, RecursionError, OverflowError) as error:
        raise UnusableSchema(f"has a pattern that cannot be read: {str(error)[:200]}") from error
    letters = dict.fromkeys((*_PROBE_CHARS, *(char for char in pattern[:200] if char.isalnum())))
    for letter in list(letters)[:40]:
        try:
            compiled.search(letter * _PROBE_REPEATS + "\x00", timeout=compute_time_left_s())
        except TimeoutError:
            raise UnusableSchema(f"has a pattern that {TOO_LONG}: {pattern[:100]!r}") from None


def judge_answer(text: str, schema: Schema) -> FittingAnswer | UnfitAnswer:
    """Judge whether an answer fits. A fence of Markdown around the JSON is taken off; nothing else is guessed at."""
    fenced = _FENCED.fullmatch(text)
    bare = (fenced["inside"] if fenced else text).strip()
    try:
        value = json.loads(bare, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        return UnfitAnswer(problems=(f"it is not one JSON value: {str(error)[:200]}",))
    try:
        problems = find_violations(value, schema, whole="the answer")
    except UnusableSchema as unusable:
        return UnfitAnswer(problems=(f"it cannot be checked: the schema {unusable}",))
    return UnfitAnswer(problems=problems) if problems else FittingAnswer(text=bare)


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")
