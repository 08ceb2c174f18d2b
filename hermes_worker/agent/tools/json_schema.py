"""JSON Schema, judged within bounds: a schema may come from a stranger, and the value from a model.

``jsonschema`` judges; what it would do without bounds is done here instead. A hostile schema has five ways to hurt:

* *references that fetch* (``$ref`` to an address): there is nothing to fetch with, so such a schema is unusable;
* *regular expressions that never end*: ``pattern`` and ``patternProperties`` run in ``regex``, which stops at a time
  limit and lets other threads run meanwhile;
* *combinations that double* (``allOf`` of two references to ``allOf`` of two ...) and *recursion*: every keyword looks
  at the processor time that is left, and at how many keywords are judged around it;
* *work that grows with the square*: ``uniqueItems`` is judged by sets, ``unevaluated...`` only for few members and
  beside no references;
* *size*: so many characters, so deep, and no more.

What cannot be judged within these bounds is refused with ``UnusableSchema``, never let through.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Final

import attrs
import regex
from jsonschema import Draft4Validator, Draft6Validator, Draft7Validator, Draft201909Validator, Draft202012Validator
from jsonschema.exceptions import UndefinedTypeCheck, UnknownType, ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend
from referencing.exceptions import Unresolvable
from referencing.jsonschema import EMPTY_REGISTRY

from hermes_worker.agent.tools.schema_time_limit import (
    SCHEMA_DEEP_MAX,
    Schema,
    UnusableSchema,
    compute_time_left_s,
    enter_nested,
    limit_judging,
)
from hermes_worker.core.messages import dump_canonical_json

CHARS_MAX = 256_000
"""Characters of a schema, as compact JSON."""
PATTERN_CHARS_MAX = 2_000
MEMBERS_MAX = 1_000
"""Members of a value that ``unevaluatedProperties`` or ``unevaluatedItems`` is applied to: that takes time with the
square of it.
"""

Keyword = Callable[[Any, Any, Any, Any], Iterator[ValidationError] | None]

_DIALECTS: Final[Mapping[str, type[Validator]]] = {
    "http://json-schema.org/draft-04/schema": Draft4Validator,
    "http://json-schema.org/draft-06/schema": Draft6Validator,
    "http://json-schema.org/draft-07/schema": Draft7Validator,
    "https://json-schema.org/draft/2019-09/schema": Draft201909Validator,
    "https://json-schema.org/draft/2020-12/schema": Draft202012Validator,
}
_USUAL_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
"""The dialect of a schema that names none, or one that we do not know: as MCP says (specification of 2025-11-25)."""


def require_usable(schema: Schema) -> None:
    """Raise ``UnusableSchema`` for a schema that cannot judge values: too large, too deep, or no schema at all."""
    seen = _usable.get(id(schema))
    if seen is not None and seen.schema is schema:
        return
    if _is_deeper_than(SCHEMA_DEEP_MAX, schema):
        raise UnusableSchema(f"is nested more than {SCHEMA_DEEP_MAX} levels deep")
    text = dump_canonical_json(schema)
    if len(text) > CHARS_MAX:
        raise UnusableSchema(f"has {len(text):,} characters; at most {CHARS_MAX:,} are read")
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    if digest not in _judged:
        if len(_judged) >= _JUDGED_MAX:
            _judged.clear()  # rare, and cheaper than keeping an order
        _judged[digest] = _explain_unusable(schema, text)
    why = _judged[digest]
    if why is not None:
        raise UnusableSchema(why)
    if len(text) > _KEPT_CHARS_MAX:
        return
    if len(_usable) >= _KEPT_MAX:
        _usable.clear()
    _usable[id(schema)] = _UsableSchema(schema, _build_validator(_choose_dialect(schema), schema))


@dataclass(frozen=True, slots=True)
class _UsableSchema:
    """A schema that was found usable. It is kept, so that no other object gets its identity; it is never changed."""

    schema: Schema
    validator: Validator


_NOT_BESIDE_UNEVALUATED = ("patternProperties", "$ref", "$dynamicRef", "$recursiveRef")
"""Keywords that the library follows by itself for these, without any limit."""
_JUDGED_MAX = 1_000
_judged: dict[bytes, str | None] = {}
"""The verdicts on schemas that were seen, by digest; two threads may reach the same verdict."""
_KEPT_MAX = 256
_KEPT_CHARS_MAX = 32_000
_usable: dict[int, _UsableSchema] = {}
"""The usable schemas that were seen, by identity: the schema of a tool is asked for at each of its calls."""


def _explain_unusable(schema: Schema, text: str) -> str | None:
    if '"unevaluated' in text and any(f'"{keyword}":' in text for keyword in _NOT_BESIDE_UNEVALUATED):
        return "has 'unevaluated...' beside patterns or references, which cannot be checked in bounded time"
    dialect = _choose_dialect(schema)
    try:
        with limit_judging():
            error = next(_build_validator(dialect, dialect.META_SCHEMA).iter_errors(schema), None)
    except UnusableSchema as unusable:
        return str(unusable)
    if error is None:
        return None
    place = "/".join(map(str, error.absolute_path))[:200] or "its root"
    return f"is no JSON Schema: {error.validator!r} is wrong at {place}"


def _is_deeper_than(depth_max: int, value: Any) -> bool:
    layer = [value]
    for _ in range(depth_max + 1):
        layer = [
            inner
            for outer in layer
            if isinstance(outer, Mapping | list | tuple)
            for inner in (outer.values() if isinstance(outer, Mapping) else outer)
        ]
        if not layer:
            return False
    return True


def iterate_errors(value: Any, schema: Schema) -> Iterator[ValidationError]:
    """Yield what is wrong with ``value``, as it is found; ``schema`` is usable. To be iterated inside of ``bounded``.

    Raises ``UnusableSchema``.
    """
    try:
        yield from _find_validator(schema).iter_errors(value)
    except Unresolvable as error:
        raise UnusableSchema(f"refers to {error.ref[:200]!r}, which is not part of it; nothing is fetched") from None
    except (UnknownType, UndefinedTypeCheck) as error:
        raise UnusableSchema("names a type that JSON does not have") from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # A keyword met a value that the meta-schema let through, such as one behind a reference.
        raise UnusableSchema(f"cannot be read ({type(error).__name__})") from error


def _find_validator(schema: Schema) -> Validator:
    seen = _usable.get(id(schema))
    return (
        seen.validator
        if seen is not None and seen.schema is schema
        else _build_validator(_choose_dialect(schema), schema)
    )


def _choose_dialect(schema: Any) -> type[Validator]:
    named = schema.get("$schema") if isinstance(schema, Mapping) else None
    known = named.rstrip("#") if isinstance(named, str) else _USUAL_DIALECT
    return _build_bounded_dialect(known if known in _DIALECTS else _USUAL_DIALECT)


def _build_validator(dialect: type[Validator], schema: Any) -> Validator:
    return dialect(schema, registry=EMPTY_REGISTRY)


@cache
def _build_bounded_dialect(name: str) -> type[Validator]:
    usual = _DIALECTS[name]
    keywords = {keyword: _REPLACED.get(keyword, check) for keyword, check in usual.VALIDATORS.items()}
    squares = {keyword: _limit_members(check) for keyword, check in keywords.items() if "unevaluated" in keyword}
    bounded_keywords = {keyword: _check_within_budget(check) for keyword, check in {**keywords, **squares}.items()}
    dialect: Any = extend(usual, bounded_keywords)  # type: ignore[no-untyped-call]
    # Else a ``$schema`` inside of a schema would go on with the library's own keywords, which have no bounds.
    dialect.evolve = attrs.evolve
    made: type[Validator] = dialect
    return made


def _check_within_budget(check: Keyword) -> Keyword:
    def check_in_time(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        # OpenAPI's way to allow ``null`` beside whatever else the schema says.
        if instance is None and schema.get("nullable") is True:
            return
        # No context manager: this is entered for every keyword of every call, and one takes longer than most keywords.
        budget = enter_nested()
        try:
            yield from check(validator, value, instance, schema) or ()
        finally:
            budget.leave()

    return check_in_time


# --- keywords that the library judges without bounds, or tells in sentences that cannot be taken apart ---


def _check_required(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """The message is the name that is missing."""
    if validator.is_type(instance, "object"):
        yield from (ValidationError(name) for name in wanted if name not in instance)


def _check_pattern(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not _matches_pattern(wanted, instance):
        yield ValidationError("does not match the pattern")


def _check_pattern_properties(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if not validator.is_type(instance, "object"):
        return
    for pattern, inner in wanted.items():
        for name, value in instance.items():
            if _matches_pattern(pattern, name):
                yield from validator.descend(value, inner, path=name, schema_path=pattern)


def _check_additional_properties(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if not validator.is_type(instance, "object"):
        return
    named, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    extras = [
        name
        for name in instance
        if name not in named and not any(_matches_pattern(pattern, name) for pattern in patterns)
    ]
    if wanted is False and extras:
        yield ValidationError("unknown: " + ", ".join(map(repr, extras[:10])))
    elif isinstance(wanted, Mapping):
        for name in extras:
            yield from validator.descend(instance[name], wanted, path=name)


def _check_unique_items(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if wanted and isinstance(instance, list) and len(set(map(_to_hashable, instance))) < len(instance):
        yield ValidationError("has an element twice")


def _to_hashable(value: Any) -> object:
    """A key that is equal for values that JSON Schema calls equal: 1 is 1.0, and true is not 1."""
    match value:
        case bool():
            return ("boolean", value)
        case list():
            return ("array", *map(_to_hashable, value))
        case dict():
            return ("object", frozenset((name, _to_hashable(inner)) for name, inner in value.items()))
    return value


def _limit_members(usual: Keyword) -> Keyword:
    def check_few(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        if isinstance(instance, list | dict) and len(instance) > MEMBERS_MAX:
            raise UnusableSchema(f"has a keyword 'unevaluated...', which is checked up to {MEMBERS_MAX:,} members")
        yield from usual(validator, wanted, instance, schema) or ()

    return check_few


_REPLACED: Final[Mapping[str, Keyword]] = {
    "pattern": _check_pattern,
    "patternProperties": _check_pattern_properties,
    "additionalProperties": _check_additional_properties,
    "uniqueItems": _check_unique_items,
    "required": _check_required,
}


def _matches_pattern(pattern: str, text: str) -> bool:
    """Whether the pattern matches anywhere in ``text``. One that cannot be compiled counts as matching: dialects of
    regular expressions differ, and the author of the schema judges again. Raises ``UnusableSchema``.
    """
    compiled = _compile_pattern(pattern)
    if compiled is None:
        return True
    try:
        return compiled.search(text, timeout=compute_time_left_s(), concurrent=True) is not None
    except TimeoutError:
        raise UnusableSchema("has a pattern that takes too long") from None


@lru_cache(maxsize=256)
def _compile_pattern(pattern: str) -> regex.Pattern[str] | None:
    if len(pattern) > PATTERN_CHARS_MAX:
        raise UnusableSchema(f"has a pattern of {len(pattern):,} characters; at most {PATTERN_CHARS_MAX:,} are read")
    try:
        return regex.compile(pattern)
    except (regex.error, OverflowError):
        return None
