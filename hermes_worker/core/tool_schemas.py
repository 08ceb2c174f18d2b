"""Make the definitions of tools acceptable to every model server. Pure.

One definition that a server refuses ends every request that holds it. Servers refuse different things, and a compatible
address may lead to any of them, so a definition is repaired for all of them at once: what JSON Schema (2020-12) does
not allow, what Anthropic, OpenAI and Gemini document as refused, and what llama.cpp makes no grammar of. A definition
that all of them accept is sent unchanged, to the byte (invariant I7).

Names that cannot be sent are replaced by others. ``restore_arguments`` gives the arguments their own names back; the
repair depends on the definition alone, so each worker repairs it alike.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

DEEP_MAX: Final = 64
"""The most levels of nested schemas."""
NAME_CHARS_MAX: Final = 64
OWN_NAME_CHARS_MAX: Final = 100
"""The most characters of a tool's name here, which is stored with its calls."""
_TOOL_NAME: Final = re.compile(rf"[A-Za-z_][A-Za-z0-9_-]{{0,{NAME_CHARS_MAX - 1}}}")
"""Names that every server accepts: OpenAI, Anthropic and Bedrock letters, digits, ``_`` and ``-``; Gemini not ``-`` or
a digit as the first."""
_PROPERTY_NAME: Final = re.compile(rf"[A-Za-z0-9_.-]{{1,{NAME_CHARS_MAX}}}")
"""Anthropic's rule: "Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'"."""
_TYPES: Final = ("object", "string", "number", "integer", "boolean", "array", "null")
_UNIONS: Final = ("anyOf", "oneOf", "allOf")
_REFERENCES_MAX: Final = 16
NO_ARGUMENTS: Final[Mapping[str, Any]] = {"type": "object", "properties": {}}

Node = Mapping[str, Any]


class UnfitDefinition(ValueError):
    """A tool cannot be sent to any model; the message completes the sentence "the tool ...\""""


class LeftOutTool(NamedTuple):
    """A tool that is offered and that no agent can use. Its ``str`` is a sentence."""

    name: str
    """Empty for a tool without one."""
    reason: str
    """Completes the sentence that begins with the name."""

    def __str__(self) -> str:
        return f"{repr(self.name[:OWN_NAME_CHARS_MAX]) if self.name else 'a tool'} {self.reason}"


def explain_unusable_name(name: object, chars_max: int = OWN_NAME_CHARS_MAX) -> str | None:
    """Why a tool cannot have this name, for the end of a sentence; ``None`` for a name that can be sent, possibly
    replaced."""
    if not isinstance(name, str) or not name.strip():
        return "has no name"
    if len(name) > chars_max:
        return f"has a name of {len(name):,} characters; at most {chars_max:,} are taken"
    if not name.isprintable() or name != name.strip():
        return "has a name with invisible characters; use letters, digits, '_' and '-'"
    return None


def make_sendable_name(name: str, taken: Collection[str] = ()) -> str:
    """The name of a tool at model servers. A name that one of them would refuse gets a digest, a longer one when
    another tool has the result already, that is when it is in ``taken``."""
    if _TOOL_NAME.fullmatch(name):
        return name
    spellings = (_make_plain_name(name, r"[^A-Za-z0-9_-]", chars) for chars in range(8, NAME_CHARS_MAX - 8, 8))
    return next(spelling for spelling in spellings if spelling not in taken)


def fit_schema(parameters: object, *, renames: bool = True) -> Mapping[str, Any]:
    """The schema of a tool's arguments as it is sent; ``parameters`` itself when it fits. ``renames`` allows properties
    to be renamed. Raises ``UnfitDefinition``."""
    if not isinstance(parameters, Mapping):
        return NO_ARGUMENTS
    if _is_deeper(parameters, DEEP_MAX):
        raise UnfitDefinition(f"has arguments nested more than {DEEP_MAX} levels deep")
    mended = _SchemaRepair(parameters, renames=renames).repair_root()
    return parameters if mended == parameters and _replace_by_types(mended) == _replace_by_types(parameters) else mended


def remove_keywords(schema: Node, unwanted: Collection[str]) -> dict[str, Any]:
    """Remove keywords from a schema and all schemas inside it; properties with such a name stay."""
    return {**_remove_nested(schema, lambda key, _: key in unwanted)}


def _remove_nested(schema: Any, is_unwanted: Callable[[str, Any], bool]) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    bare: dict[str, Any] = {}
    for key, value in schema.items():
        if is_unwanted(key, value):
            continue
        if key in _NAMED_SCHEMAS and isinstance(value, Mapping):
            bare[key] = {name: _remove_nested(inner, is_unwanted) for name, inner in value.items()}
        elif key in _SCHEMAS or key in _PLAIN_SCHEMAS or key in _SCHEMA_LISTS:
            is_list = isinstance(value, list)
            bare[key] = (
                [_remove_nested(one, is_unwanted) for one in value] if is_list else _remove_nested(value, is_unwanted)
            )
        else:
            bare[key] = value
    return bare


def restore_arguments(arguments: Any, parameters: object) -> Any:
    """Give the arguments of a call the names of the tool's own schema. Unknown names stay."""
    return _restore_value(arguments, [parameters], parameters) if isinstance(parameters, Mapping) else arguments


def _make_plain_name(name: str, unwanted: str, mark_chars: int = 8) -> str:
    mark = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:mark_chars]
    plain = re.sub(unwanted, "_", name)[: NAME_CHARS_MAX - len(mark) - 2]
    return f"{plain}_{mark}" if plain[:1].isalpha() or plain[:1] == "_" else f"_{plain}_{mark}"


def _make_sendable_property(name: str) -> str:
    return name if _PROPERTY_NAME.fullmatch(name) else _make_plain_name(name, r"[^A-Za-z0-9_.-]")


def _is_deeper(value: object, depth_max: int) -> bool:
    layer = [value]
    for _ in range(2 * depth_max):  # a schema inside of a schema is two levels of JSON
        layer = [
            inner
            for outer in layer
            if isinstance(outer, Mapping | list)
            for inner in (outer.values() if isinstance(outer, Mapping) else outer)
        ]
        if not layer:
            return False
    return True


def _replace_by_types(value: Any) -> Any:
    """The types within a value, which ``==`` does not compare: 1, 1.0 and true are equal and are not the same bytes."""
    if isinstance(value, Mapping):
        return {key: _replace_by_types(inner) for key, inner in value.items()}
    return [_replace_by_types(inner) for inner in value] if isinstance(value, list) else type(value)


# --- mending ---


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_never(value: object) -> bool:
    return False


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_list(value: object) -> bool:
    return isinstance(value, list)


def _is_filled(value: object) -> bool:
    return isinstance(value, list) and bool(value)


def _is_pattern(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(re.compile(value))
    except (re.error, OverflowError, RecursionError):
        return isinstance(value, str) and bool(_OTHER_PATTERN.search(value))


_ANCHOR: Final = re.compile(r"[A-Za-z_][-A-Za-z0-9._]*")
_OTHER_PATTERN: Final = re.compile(r"\\[pPuckKGXR]|\(\?<[A-Za-z]|\[\[:|[*+?}]\+")
"""Constructs of other dialects of regular expressions that ``re`` may not know."""

_KEPT_IF: Final[Mapping[str, Callable[[object], bool]]] = {
    **dict.fromkeys(("title", "description", "$comment", "format", "$schema"), _is_text),
    **dict.fromkeys(("contentMediaType", "contentEncoding"), _is_text),
    **dict.fromkeys(("$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor", "$vocabulary"), _is_never),
    "$id": lambda value: isinstance(value, str) and "#" not in value[:-1],
    "$anchor": lambda value: isinstance(value, str) and bool(_ANCHOR.fullmatch(value)),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _is_number),
    "multipleOf": lambda value: isinstance(value, int | float) and not isinstance(value, bool) and value > 0,
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _is_count),
    **dict.fromkeys(("minContains", "maxContains"), _is_count),
    **dict.fromkeys(("uniqueItems", "deprecated", "readOnly", "writeOnly", "nullable"), _is_flag),
    "examples": _is_list,
    "enum": _is_filled,
    "pattern": _is_pattern,
}
"""Keywords whose value is left out when it is not as JSON Schema wants it. Unknown keywords say nothing and stay."""
_SCHEMAS: Final = ("additionalProperties", "unevaluatedProperties", "unevaluatedItems")
"""Keywords with a schema, or a boolean that says more than most schemas."""
_PLAIN_SCHEMAS: Final = ("items", "contains", "not", "if", "then", "else", "propertyNames", "contentSchema")
_NAMED_SCHEMAS: Final = (
    *("properties", "$defs", "definitions", "patternProperties", "dependentSchemas", "dependencies"),
)
_BY_PROPERTY: Final = ("properties", "dependentSchemas", "dependencies", "dependentRequired")
_SCHEMA_LISTS: Final = (*_UNIONS, "prefixItems")


@dataclass(slots=True)
class _SchemaRepair:
    """Repairs one schema. References are looked up in the original, before anything of it was repaired."""

    whole: Node
    renames: bool

    def repair_root(self) -> dict[str, Any]:
        """Repair to the schema of an object with properties, without a union at its root. Raises
        ``UnfitDefinition``."""
        node = _inline_target(self.whole, self.whole)
        kinds = node.get("type", "object")
        is_object = kinds == "object" or (isinstance(kinds, list) and "object" in kinds)
        if not is_object and not isinstance(node.get("properties"), Mapping) and kinds in _TYPES:
            raise UnfitDefinition(f"takes a value of type {kinds!r} and no object of arguments")
        mended = self.repair_node({**node, "type": "object", "properties": self._collect_properties(node)})
        mended.pop("nullable", None)
        for key in (*_UNIONS, "enum", "not"):
            mended.pop(key, None)
        whole = self._add_required(mended, node)
        # Remove references whose target was removed or renamed by the repair.
        found: dict[str, Any] = _remove_nested(
            whole, lambda key, value: key == "$ref" and not _leads_to_schema(value, whole)
        )
        return found

    def repair_node(self, node: object) -> dict[str, Any]:
        """Repair a schema inside another one."""
        if not isinstance(node, Mapping):
            return _read_type_word(node)
        mended: dict[str, Any] = {}
        for key, value in _modernize(node):
            if (kept := self._repair_keyword(key, value)) is not None:
                mended |= kept
        if "$ref" in mended and not _leads_to_schema(mended["$ref"], self.whole):
            del mended["$ref"]
        mended = _drop_null_branch(mended)
        if "$ref" in mended:
            mended.pop("default", None)  # Fireworks: "keyword(s) ['default'] not allowed at the same level as $ref"
        return self._complete(mended, node)

    def _repair_keyword(self, key: str, value: Any) -> dict[str, Any] | None:
        """Repair one keyword; ``None`` when it is left out."""
        if key == "type":
            return _read_type(value)
        if key == "required":
            return (
                {key: [self._make_sendable(name) for name in dict.fromkeys(_list_names(value))]}
                if _is_list(value)
                else None
            )
        if key == "$ref":
            return {key: value} if isinstance(value, str) else None
        if key in _SCHEMAS:
            return {key: value if isinstance(value, bool) else self.repair_node(value)} if value is not None else None
        if key in _PLAIN_SCHEMAS:
            return {key: self.repair_node(value)}
        if key in _NAMED_SCHEMAS:
            return {key: self._repair_named(key, value if isinstance(value, Mapping) else {})}
        if key == "dependentRequired":
            return {key: self._repair_named(key, value)} if isinstance(value, Mapping) else None
        if key in _SCHEMA_LISTS:
            return {key: [self.repair_node(inner) for inner in value]} if _is_filled(value) else None
        is_kept = _KEPT_IF.get(key)
        return {key: value} if is_kept is None or is_kept(value) else None

    def _repair_named(self, key: str, named: Node) -> dict[str, Any]:
        """Repair schemas by name, or, in dependencies, the names that others require."""
        sent = self._make_sendable if key in _BY_PROPERTY else str
        if key in ("dependencies", "dependentRequired"):
            lists = {
                name: [self._make_sendable(one) for one in dict.fromkeys(_list_names(inner))]
                for name, inner in named.items()
            }
            is_names = {name for name, inner in named.items() if _is_list(inner) or key == "dependentRequired"}
            return {
                sent(name): lists[name] if name in is_names else self.repair_node(inner)
                for name, inner in named.items()
            }
        kept = {name: inner for name, inner in named.items() if key != "patternProperties" or _is_pattern(name)}
        return {sent(name): self.repair_node(inner) for name, inner in kept.items()}

    def _complete(self, mended: dict[str, Any], node: Node) -> dict[str, Any]:
        """Add what an object and an array must have beside their type."""
        if mended.get("type") == "object":
            mended.setdefault("properties", {})
        if mended.get("type") == "array":
            mended.setdefault("items", {})
        is_whole = "properties" in mended
        return self._add_required(mended, {"required": node.get("required")}) if is_whole else mended

    def _add_required(self, mended: dict[str, Any], node: Node) -> dict[str, Any]:
        """Add the required names that exist, each once. A union at the root requires what all its branches do."""
        found = list(_list_names(node.get("required")))
        for key in _UNIONS:
            branches = [set(_list_names(branch.get("required"))) for branch in self._list_branches(node, key)]
            if branches:
                found += sorted(set.union(*branches) if key == "allOf" else set.intersection(*branches))
        kept = [name for name in dict.fromkeys(map(self._make_sendable, found)) if name in mended["properties"]]
        if kept or node.get("required") == []:
            return {**mended, "required": kept}
        return {key: value for key, value in mended.items() if key != "required"}

    def _collect_properties(self, node: Node) -> dict[str, Any]:
        """The properties of the root and, after them, those that only branches of a union at the root have."""
        own = node.get("properties")
        members: dict[str, Any] = dict(own) if isinstance(own, Mapping) else {}
        found: dict[str, list[Any]] = {}
        for key in _UNIONS:
            for branch in self._list_branches(node, key):
                inside = branch.get("properties")
                for name, schema in inside.items() if isinstance(inside, Mapping) else ():
                    if name not in members and schema not in found.setdefault(name, []):
                        found[name].append(schema)
        return members | {name: each[0] if len(each) == 1 else {"anyOf": each} for name, each in found.items()}

    def _list_branches(self, node: Node, key: str) -> list[Node]:
        branches = node.get(key)
        found = [_inline_target(one, self.whole) for one in branches] if isinstance(branches, list) else []
        return [one for one in found if isinstance(one, Mapping)]

    def _make_sendable(self, name: str) -> str:
        return _make_sendable_property(name) if self.renames else name


def _read_type_word(node: object) -> dict[str, Any]:
    """Read a schema that is no object: the name of a type, or anything."""
    if node == "object" or (isinstance(node, str) and node not in _TYPES):
        return {"type": "object", "properties": {}}
    return ({"type": node, "items": {}} if node == "array" else {"type": node}) if isinstance(node, str) else {}


def _read_type(value: object) -> dict[str, Any] | None:
    """Read one type, or several: Gemini and llama.cpp accept no list of them."""
    if isinstance(value, str):
        return {"type": value} if value in _TYPES else None
    kinds = [kind for kind in value if kind in _TYPES] if isinstance(value, list) else []
    real = [kind for kind in kinds if kind != "null"]
    hint = {"nullable": True} if len(real) < len(kinds) and real else {}
    if len(real) > 1:
        return {"anyOf": [_read_type_word(kind) for kind in real], **hint}
    return {"type": (real or kinds)[0], **hint} if kinds else None


def _modernize(node: Node) -> Iterator[tuple[str, Any]]:
    """The keywords in the form of JSON Schema 2020-12: bounds are numbers, and ``items`` is one schema."""
    for key, value in node.items():
        bound = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}.get(key)
        if bound is not None and isinstance(value, bool):
            if value and _is_number(node.get(bound)):
                yield key, node[bound]
        elif key == "items" and isinstance(value, list):
            yield key, {"anyOf": value} if len(value) > 1 else value[0] if value else {}
        elif not (key == "anyOf" and isinstance(node.get("type"), list) and len(node["type"]) > 1):
            yield key, value


def _drop_null_branch(node: dict[str, Any]) -> dict[str, Any]:
    """Replace a union of one schema with ``null`` by that schema: ``required`` says what may be left out."""
    for key in ("anyOf", "oneOf"):
        branches = node.get(key)
        if not isinstance(branches, list):
            continue
        real = [branch for branch in branches if branch.get("type") != "null"]
        rest = {word: value for word, value in node.items() if word != key}
        if not real:
            return {"type": "null", **rest}
        if len(real) == 1 < len(branches):
            return {"nullable": True, **real[0], **rest}
    return node


# --- references ---


def _unescape(step: str) -> str:
    return step.replace("~1", "/").replace("~0", "~")


def _resolve(reference: str, whole: Node) -> Any:
    """Resolve a reference inside the schema; ``None`` when there is nothing, and for another document."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    found: Any = whole
    for step in reference.split("/")[1:]:
        if isinstance(found, list) and step.isdigit():
            found = found[int(step)] if int(step) < len(found) else None
        else:
            found = found.get(_unescape(step)) if isinstance(found, Mapping) else None
    return found


def _leads_to_schema(reference: str, whole: Node) -> bool:
    """Whether a reference ends at a schema, and not at itself."""
    for _ in range(_REFERENCES_MAX):
        target = _resolve(reference, whole)
        if not isinstance(target, Mapping):
            return False
        if not isinstance(target.get("$ref"), str):
            return True
        reference = target["$ref"]
    return False


def _inline_target(node: Any, whole: Node) -> Any:
    """Replace a schema that is a reference by what it refers to."""
    for _ in range(_REFERENCES_MAX):
        reference = node.get("$ref") if isinstance(node, Mapping) else None
        target = _resolve(reference, whole) if isinstance(reference, str) else None
        if not isinstance(target, Mapping):
            return node
        node = {**target, **{key: value for key, value in node.items() if key != "$ref"}}
    return {key: value for key, value in node.items() if key != "$ref"}


def _list_names(value: object) -> Sequence[str]:
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []


# --- the way back ---


def _restore_value(value: Any, schemas: Sequence[Any], whole: Node) -> Any:
    known = list(_list_alternatives(schemas, whole))
    if isinstance(value, list):
        items = [schema["items"] for schema in known if "items" in schema]
        flat = [one for inner in items for one in (inner if isinstance(inner, list) else [inner])]
        return [_restore_value(one, flat, whole) for one in value] if flat else value
    if not isinstance(value, dict):
        return value
    ours: dict[str, str] = {}
    inside: dict[str, list[Any]] = {}
    for schema in known:
        named = schema.get("properties")
        for name, inner in named.items() if isinstance(named, Mapping) else ():
            ours[_make_sendable_property(name)] = name
            inside.setdefault(name, []).append(inner)
    others = [schema["additionalProperties"] for schema in known if "additionalProperties" in schema]
    restored: dict[str, Any] = {}
    for sent, member in value.items():
        own = ours.get(str(sent), str(sent))
        restored[own] = _restore_value(member, inside.get(own, others), whole)
    return restored


def _list_alternatives(schemas: Sequence[Any], whole: Node) -> Iterator[Node]:
    """Yield each schema that a value may have to fit, following unions and references."""
    waiting = list(schemas)
    for _ in range(1_000):
        if not waiting:
            return
        node = _inline_target(waiting.pop(0), whole)
        if isinstance(node, Mapping):
            yield node
            for key in _UNIONS:
                branches = node.get(key)
                waiting += branches if isinstance(branches, list) else []
