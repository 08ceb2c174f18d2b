"""Guardrails: an agent that repeats itself in vain is told so, and may be stopped.
Pure.

The transcript is the only state: the worker that stores a reply looks at the calls before it in the same turn, and
stores with the reply the *precedent* of each new call. The worker that runs the call reads it there, so a takeover
decides alike. Calls of one reply do not count for each other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple

from hermes_worker.core.compactions import is_compaction
from hermes_worker.core.json_values import parse_json, read_count
from hermes_worker.core.messages import Message, Role, dump_canonical_json

GUARD_FIELD = "_guard"
"""Field of a stored reply: the precedent of its calls by position, where there is one. Never sent to a provider."""
_ITERATIONS_BACK = 24
"""How many iterations back calls are looked at; all limits are smaller."""
_ARGUMENTS_COMPARED_CHARS = 4_096
"""Longer arguments are compared as they were written."""
_REMEMBERED_CHARS_MAX = 16_384
"""Larger replies with their results are read each time."""
_NOTE = "\n\n[Guardrail: "
_HALT = "This turn ends here."


class GuardPattern(StrEnum):
    """The kinds of repetition without success."""

    EXACT_FAILURE = "exact_failure"
    """A call with the same arguments fails again."""
    SAME_TOOL_FAILURE = "same_tool_failure"
    """Calls of one tool fail, whatever their arguments."""
    NO_PROGRESS = "no_progress"
    """A call that only reads brings the same result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardLimits:
    """After how many repetitions of each pattern a guardrail acts."""

    exact_failure: int
    same_tool_failure: int
    no_progress: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardrailRules:
    """The defaults are the original's."""

    warns: bool = True
    stops: bool = False
    """Block a call that repeats itself, and end the turn."""
    warn_after: GuardLimits = field(
        default_factory=lambda: GuardLimits(exact_failure=2, same_tool_failure=3, no_progress=2)
    )
    stop_after: GuardLimits = field(
        default_factory=lambda: GuardLimits(exact_failure=5, same_tool_failure=8, no_progress=5)
    )

    @property
    def is_on(self) -> bool:
        return self.warns or self.stops


@dataclass(frozen=True, slots=True, kw_only=True)
class Precedent:
    """The repetitions before a call; equal to a new object when there are none."""

    exact_failures: int = 0
    tool_failures: int = 0
    repeats: int = 0
    """How often in a row the call brought the same result."""
    digest: str = ""
    """The digest of that result."""

    @property
    def document(self) -> Mapping[str, object]:
        """The precedent as it is stored with the reply."""
        values = {
            "exact": self.exact_failures,
            "tool": self.tool_failures,
            "repeats": self.repeats,
            "digest": self.digest,
        }
        return {name: value for name, value in values.items() if value}


NO_PRECEDENT = Precedent()


def parse_precedent(document: object) -> Precedent:
    """Parse a stored precedent; an empty one when it makes no sense."""
    if not isinstance(document, Mapping):
        return NO_PRECEDENT
    digest = document.get("digest")
    return Precedent(
        exact_failures=read_count(document.get("exact")),
        tool_failures=read_count(document.get("tool")),
        repeats=read_count(document.get("repeats")),
        digest=digest if isinstance(digest, str) else "",
    )


def find_precedents(
    rows: Sequence[Message], calls: Sequence[tuple[str, str]], readers: Collection[str]
) -> Mapping[int, Precedent]:
    """Find the precedent of each of a reply's new ``calls`` (name, arguments), by position; calls without one are left
    out. ``rows`` are the transcript before the reply; ``readers`` are the tools that only read."""
    names = {name for name, _ in calls}
    past = list(_list_past_calls(rows, names))
    if not past:
        return {}
    found = {
        position: _build_precedent(past, name, _build_signature(name, arguments), is_reader=name in readers)
        for position, (name, arguments) in enumerate(calls)
    }
    return {position: precedent for position, precedent in found.items() if precedent != NO_PRECEDENT}


def find_block(precedent: Precedent, rules: GuardrailRules) -> GuardPattern | None:
    """Decide why a call must not run; ``None`` when it may."""
    if not rules.stops:
        return None
    if precedent.exact_failures >= rules.stop_after.exact_failure:
        return GuardPattern.EXACT_FAILURE
    return GuardPattern.NO_PROGRESS if precedent.repeats >= rules.stop_after.no_progress else None


def format_block(name: str, pattern: GuardPattern, precedent: Precedent) -> str:
    """The result of a call that a guardrail blocked."""
    count = precedent.exact_failures if pattern is GuardPattern.EXACT_FAILURE else precedent.repeats
    what = "failed" if pattern is GuardPattern.EXACT_FAILURE else "brought the same result"
    said = f"{name} was not run: the same call {what} {count} times in a row. {_HALT}"
    return dump_canonical_json({"error": said, "guardrail": {"action": "block", "code": pattern.value, "count": count}})


def append_remark(
    name: str, text: str, precedent: Precedent, rules: GuardrailRules, *, is_error: bool, is_reader: bool
) -> str:
    """A call's result as it is stored: with a remark below it where a guardrail has something to say."""
    if is_error or has_failed(text):
        exact, same = precedent.exact_failures + 1, precedent.tool_failures + 1
        if rules.stops and same >= rules.stop_after.same_tool_failure:
            return f"{text}{_NOTE}{name} failed {same} times in a row. {_HALT}]"
        if rules.warns and exact >= rules.warn_after.exact_failure:
            return f"{text}{_NOTE}this call has failed {exact} times with the same arguments. {_OTHERWISE}]"
        if rules.warns and same >= rules.warn_after.same_tool_failure:
            return f"{text}{_NOTE}{name} has failed {same} times in a row. {_OTHERWISE}]"
        return text
    if not is_reader or precedent.digest != _compute_digest(text) or not rules.warns:
        return text
    repeats = precedent.repeats + 1
    if repeats < rules.warn_after.no_progress:
        return text
    return (
        f"{text}{_NOTE}this call has brought the same result {repeats} times. Use what it says, or ask for "
        "something else.]"
    )


_OTHERWISE = "Read the error, and try something else than before."


def find_halt(rows: Sequence[Message], rules: GuardrailRules) -> str | None:
    """Why the turn ends before the next model call, if a guardrail said so in the newest results; ``None`` when it goes
    on. A tool that writes the same words by itself ends nothing: only the precedent in its own reply counts."""
    if not rules.stops:
        return None
    results: dict[str, str] = {}
    for row in reversed(rows):
        if row.role is Role.TOOL:
            said = json.loads(row.body)
            results[str(said.get("tool_call_id"))] = str(said.get("content"))
        elif row.role is Role.ASSISTANT:
            return _find_halt_in(row.body, results, rules) if GUARD_FIELD in row.body else None
        elif not is_compaction(row):
            return None
    return None


def has_failed(text: str) -> bool:
    """Whether a result reports a failure, by its form alone."""
    body = text.partition(_NOTE)[0]
    start = body.lstrip()[:16]
    if not start.startswith("{"):
        return start.startswith(("Error", "[TOOL_ERROR]"))
    said = parse_json(body)
    if not isinstance(said, dict):
        return False
    code = said.get("exit_code")
    if isinstance(code, int) and not isinstance(code, bool):
        return code != 0
    return said.get("success") is False or bool(said.get("error"))


# ------------------------------------------------------------------------------------------------------- what happened


class _PastResult(NamedTuple):
    """A result of the transcript."""

    key: str
    """The id of its call."""
    has_failed: bool
    digest: str


class _PastCall(NamedTuple):
    """A call of the turn that has its result."""

    name: str
    signature: str
    result: _PastResult


def _list_past_calls(rows: Sequence[Message], names: Collection[str]) -> Iterator[_PastCall]:
    """Yield the turn's calls of the tools ``names``, the oldest first."""
    turn, marks = _list_newest_replies(rows), tuple(f'"name":{json.dumps(name)}' for name in names)
    for asked, told in turn:
        if any(map(asked.__contains__, marks)):
            is_small = sum(map(len, told), len(asked)) <= _REMEMBERED_CHARS_MAX
            answered = (_read_answered_calls if is_small else _read_answered_calls.__wrapped__)(asked, told)
            yield from [call for call in answered if call.name in names]


def _list_newest_replies(rows: Sequence[Message]) -> list[tuple[str, tuple[str, ...]]]:
    """The last replies of the turn, each with its results, as the bodies of their rows."""
    found: list[tuple[str, tuple[str, ...]]] = []
    told: list[str] = []
    tool, assistant = Role.TOOL, Role.ASSISTANT
    for row in reversed(rows):
        role = row.role
        if role is tool:
            told.append(row.body)
        elif role is assistant:
            found.append((row.body, tuple(told)))
            told = []
            if len(found) == _ITERATIONS_BACK:
                break
        elif not is_compaction(row):
            break
    return found[::-1]


def _build_precedent(past: Sequence[_PastCall], name: str, signature: str, *, is_reader: bool) -> Precedent:
    exact = same = repeats = 0
    digest = ""
    for call in past:
        if call.name != name:
            continue
        is_same_call = call.signature == signature
        if call.result.has_failed:
            same += 1
            exact += is_same_call
            continue
        same = 0
        if is_same_call:
            exact = 0
            repeats = repeats + 1 if call.result.digest == digest else 1
            digest = call.result.digest
    if not is_reader:
        repeats, digest = 0, ""
    return Precedent(exact_failures=exact, tool_failures=same, repeats=repeats, digest=digest)


@lru_cache(maxsize=2_048)
def _read_answered_calls(asked: str, told: Sequence[str]) -> Sequence[_PastCall]:
    """The calls of a reply that have their results, in the order of the reply; ``asked`` and ``told`` are the bodies of
    the rows. Cached, because each model call of a turn looks at the replies before it."""
    results = {result.key: result for result in map(_read_result, told)}
    return tuple(
        _PastCall(name=name, signature=signature, result=results[key])
        for key, name, signature in map(_read_call, json.loads(asked).get("tool_calls") or ())
        if key in results
    )


def _read_call(call: Mapping[str, Any]) -> tuple[str, str, str]:
    """The id, the name and the signature of a call."""
    function = call["function"]
    name = str(function.get("name"))
    return str(call["id"]), name, _build_signature(name, str(function.get("arguments")))


def _read_result(body: str) -> _PastResult:
    row = json.loads(body)
    text = row.get("content")
    text = text if isinstance(text, str) else dump_canonical_json(text)
    return _PastResult(key=str(row.get("tool_call_id")), has_failed=has_failed(text), digest=_compute_digest(text))


def _build_signature(name: str, arguments: str) -> str:
    """A text that is equal for calls that ask for the same, however their arguments are spaced and ordered."""
    if len(arguments) <= _ARGUMENTS_COMPARED_CHARS:
        try:
            arguments = dump_canonical_json(json.loads(arguments))
        except (ValueError, RecursionError):
            pass  # arguments that are not JSON are compared as text
    return f"{name} {_compute_digest(arguments)}"


def _compute_digest(text: str) -> str:
    own = text.partition(_NOTE)[0]
    return hashlib.sha256(own.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _find_halt_in(reply: str, results: Mapping[str, str], rules: GuardrailRules) -> str | None:
    row = json.loads(reply)
    guard = row.get(GUARD_FIELD)
    if not isinstance(guard, Mapping):
        return None
    for position, call in enumerate(row.get("tool_calls") or ()):
        precedent, name = parse_precedent(guard.get(str(position))), str(call["function"].get("name"))
        said = results.get(str(call["id"]), "")
        pattern = find_block(precedent, rules)
        if pattern is not None:
            count = precedent.exact_failures if pattern is GuardPattern.EXACT_FAILURE else precedent.repeats
            how = (
                "failed with the same arguments" if pattern is GuardPattern.EXACT_FAILURE else "brought the same result"
            )
            return f"{name} {how} {count} times in a row, and was asked for once more"
        if has_failed(said) and precedent.tool_failures + 1 >= rules.stop_after.same_tool_failure:
            return f"{name} failed {precedent.tool_failures + 1} times in a row"
    return None
