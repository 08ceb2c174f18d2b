"""Repair tool calls that a model wrote badly.

Before a call runs, ``assess_arguments`` says whether its arguments can be trusted: repairs that only remove noise are
accepted, but nothing that had to be invented is ever executed, because half a ``write_file`` is worse than none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import StrEnum
from typing import Any

from hermes_worker.core.messages import ToolRequest, dump_canonical_json

EMPTY_ARGUMENTS = "{}"

_ENCODINGS_MAX = 3
"""How often a text may be a code fence or a JSON string around the real arguments. Models do it once or twice."""
_FENCE = re.compile(r"\s*```[ \t]*[\w.+-]*[ \t]*\r?\n?(.*?)```\s*", re.DOTALL)

_CLOSER_OF = {"{": "}", "[": "]"}
_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\],]|"|[^"{}\[\],]++', re.DOTALL)
"""A whole string, a structural character, the quote of a string that never ends, or anything between."""


class ArgumentsOutcome(StrEnum):
    """Whether a call's arguments can be used."""

    OK = "ok"
    TRUNCATED = "truncated"
    """The text stops in the middle: the reply was cut off, so no call of it may run."""
    INVALID = "invalid"
    """The text is complete and still not JSON: the model may be asked again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """The verdict on one call's arguments."""

    outcome: ArgumentsOutcome
    arguments: str
    """Canonical JSON when the outcome is ``ok``; otherwise the text as it was received."""


def assess_arguments(text: object) -> Assessment:
    """Judge the arguments of a call that is about to run. Never raises, for any ``text``.

    Arguments in a code fence, or written as JSON text inside a JSON string, are unwrapped. Values that are not objects
    (``[1]``, ``null``) are ``ok`` here; the dispatcher answers them with an error result.
    """
    received = _to_text(text)
    trusted = _parse_trusted(received)
    if trusted is not None:
        return Assessment(outcome=ArgumentsOutcome.OK, arguments=trusted)
    is_complete = received.rstrip().removesuffix("```").rstrip().endswith(("}", "]"))
    outcome = ArgumentsOutcome.INVALID if is_complete else ArgumentsOutcome.TRUNCATED
    return Assessment(outcome=outcome, arguments=received)


def dump_arguments(value: object) -> str:
    """The text for arguments that a provider sent as an object where JSON text belongs. A value that JSON cannot
    express (a number beyond its range) stays recognisable, so that the loop can refuse the call. Never raises."""
    try:
        return dump_canonical_json(value)
    except (TypeError, ValueError, RecursionError):
        return _dump_leniently(value)


def drop_repeated_calls(requests: Sequence[ToolRequest]) -> tuple[ToolRequest, ...]:
    """Drop calls that repeat an earlier one's name and argument text."""
    first: dict[tuple[str, str], ToolRequest] = {}
    for request in requests:
        first.setdefault((request.name, request.arguments), request)
    return tuple(first.values())


def _to_text(value: object) -> str:
    """The argument text, for any value that a provider sent in its place. Some send the object itself, some send
    nothing."""
    if value is None:
        return EMPTY_ARGUMENTS
    text = value if isinstance(value, str) else dump_arguments(value)
    return EMPTY_ARGUMENTS if text.strip() in ("", "None") else text


def _dump_leniently(value: object) -> str:
    try:
        return json.dumps(value, default=str)
    except (TypeError, ValueError, RecursionError):
        return f"<{type(value).__name__}>"  # it refers to itself, is too deep, or has too many digits to be written


def to_plain_json(text: str) -> str | None:
    """Canonical JSON of ``text`` if it is JSON as it stands, in a code fence, or encoded twice; otherwise ``None``."""
    return _canonicalize(_unwrap(text))


def _parse_trusted(text: str) -> str | None:
    """Canonical JSON of ``text`` if at most noise had to be removed from it."""
    inner = _unwrap(text)
    found = _remove_noise(inner)
    return found if found is not None or inner is text else _remove_noise(text)


def _remove_noise(text: str) -> str | None:
    whole = _canonicalize(text) or _find_first_object(text)
    if whole is not None:
        return whole
    balanced = _balance(text)
    return None if balanced is None else _canonicalize(balanced)


def _unwrap(text: str) -> str:
    for _ in range(_ENCODINGS_MAX):
        inner = _find_wrapped_text(text)
        if inner is None:
            break
        text = inner
    return text


def _find_wrapped_text(text: str) -> str | None:
    """The arguments inside ``text`` if that is a code fence or a JSON string around an object or a list."""
    unfenced = _strip_fence(text)
    if unfenced is not text:
        return unfenced
    value = _parse(text) if text.lstrip().startswith('"') else None
    return value if isinstance(value, str) and value.lstrip().startswith(("{", "[", "```", '"')) else None


def _strip_fence(text: str) -> str:
    fenced = _FENCE.fullmatch(text)
    return fenced[1] if fenced else text


def _canonicalize(text: str) -> str | None:
    """Canonical JSON of ``text``, or ``None``. Raw control characters inside strings are allowed, as some local
    servers send them."""
    return _canonicalize_value(_parse(text))


def _canonicalize_value(value: object) -> str | None:
    """``None`` for ``_NOTHING`` and for what JSON cannot say: ``1e400`` is read as infinity."""
    try:
        return None if value is _NOTHING else dump_canonical_json(value)
    except (ValueError, RecursionError):
        return None


def _parse(text: str) -> object:
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError):
        # ValueError also covers integers of more digits than Python converts.
        return _NOTHING


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(strict=False, parse_constant=_refuse_constant)
_NOTHING = object()
"""Stands for a missing value, for text that is not JSON."""


def _find_first_object(text: str) -> str | None:
    """The first object of ``{...}{...}``, which some models write instead of two calls; also ``{...}}``."""
    text = text.lstrip()
    try:
        value, end = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return None
    rest = text[end:].strip()
    is_noise = rest.startswith(("{", "[")) or not rest.strip("]} \t\r\n")
    return _canonicalize_value(value) if isinstance(value, dict | list) and is_noise else None


def _balance(text: str) -> str | None:
    """``text`` without needless closers and trailing commas; ``None`` when it ends inside a string, or when a closer
    would have to be invented."""
    pieces: list[str] = []
    awaited: list[str] = []
    # Counted beside the stack: searching it for every closer would take quadratic time on hostile text.
    count = {"}": 0, "]": 0}
    for token in _drop_trailing_commas(text):
        if token == '"':
            return None
        if token in _CLOSER_OF:
            awaited.append(_CLOSER_OF[token])
            count[_CLOSER_OF[token]] += 1
        elif token in count:
            if not count[token]:
                continue
            if awaited.pop() != token:
                return None  # a bracket that was opened after the one that this closes was never closed
            count[token] -= 1
        pieces.append(token)
    return None if awaited else "".join(pieces)


def _drop_trailing_commas(text: str) -> Iterator[str]:
    """The tokens of ``text``, without commas that only a closer or the end follows."""
    held: list[str] = []
    for token in _TOKEN.findall(text):
        if token == "," or (held and not token.strip()):
            held.append(token)
            continue
        if held and token not in ("}", "]"):
            yield from held
        held = []
        yield token


# --- names ---

_NAME_CHARS_MAX = 128
"""A longer name is an accident or an attack, and comparing it costs quadratic time."""
_RATIO_MIN = 0.7
"""The original's cutoff for "the same name, mistyped"."""
_FOREIGN_NAMESPACES = ("functions.", "tools.", "default_api.")
"""Prefixes that models trained on other harnesses put in front of a tool's name."""
_MCP_PREFIX = "mcp_"
_MCP_NOISE = re.compile(r"^\w{0,4}?(?:mcp_)+")
_CAMEL_JOINT = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_TOOL_SUFFIX = re.compile(r"[_-]?tool$", re.IGNORECASE)


def repair_tool_name(name: str, known: Collection[str]) -> str | None:
    """Find the tool that the model meant by ``name``, or ``None`` when that is uncertain.

    A mistyped operation is corrected, another operation is not: ``kb_serach`` may become ``kb_search`` but
    ``delete_file`` never becomes ``write_file``, and an MCP tool is never replaced by a built-in one.
    """
    stem = re.split(r"""["'<>]""", name.strip(), maxsplit=1)[0].strip() if name.strip()[:1] not in "\"'<>" else ""
    if not stem or len(stem) > _NAME_CHARS_MAX:
        return None
    for candidate in _list_spellings(stem):
        if candidate in known:
            return candidate
    return _find_closest(_to_snake_case(stem), known)


def _list_spellings(stem: str) -> Iterator[str]:
    """Yield ``stem`` and other spellings of it, the most literal first."""
    for prefix in _FOREIGN_NAMESPACES:
        stem = stem.removeprefix(prefix)
    yield stem
    grown = [stem]
    # Twice, because suffixes are sometimes tacked on twice: ``TodoTool_tool``.
    for _ in range(2):
        grown += [_TOOL_SUFFIX.sub("", spelling) for spelling in grown]
    for spelling in grown:
        yield spelling.lower()
        snake = _to_snake_case(spelling)
        yield snake
        yield _MCP_NOISE.sub(_MCP_PREFIX, snake)


def _to_snake_case(spelling: str) -> str:
    return re.sub(r"[\s_-]+", "_", _CAMEL_JOINT.sub("_", spelling)).lower()


def _find_closest(name: str, known: Collection[str]) -> str | None:
    scored = [(_compute_ratio(name, other), other) for other in known if _is_same_operation(name, other)]
    ratio, best = max(scored, default=(0.0, ""))
    return best if ratio >= _RATIO_MIN else None


def _is_same_operation(name: str, other: str) -> bool:
    """Whether the names still look alike without the words they share at either end. Shared words (``kb`` in
    front, ``file`` behind) say what is acted on; what is left says what is done to it, and that must not be guessed."""
    if name.startswith(_MCP_PREFIX) != other.startswith(_MCP_PREFIX):
        return False
    mine, theirs = name.split("_"), other.split("_")
    while len(mine) > 1 and len(theirs) > 1 and mine[0] == theirs[0]:
        mine, theirs = mine[1:], theirs[1:]
    while len(mine) > 1 and len(theirs) > 1 and mine[-1] == theirs[-1]:
        mine, theirs = mine[:-1], theirs[:-1]
    return _compute_ratio("_".join(mine), "_".join(theirs)) >= _RATIO_MIN


def _compute_ratio(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other, autojunk=False).ratio()
