"""Scripts: a user message that dictates the model's replies, for tests, chaos and benchmarks.

A line that begins with ``scripted:`` and holds a JSON object makes the model follow it from there on:

    scripted: {"steps": [{"calls": [{"name": "terminal", "arguments": {"command": "ls"}}]}], "final": "done"}

Fields of the object:

    steps        list of steps, below; may be empty
    final        text of the last reply; without it the model says how many steps it took
    delay_s      before the first byte of every reply, unless the step says otherwise
    chunks       events that a reply is cut into
    chunk_gap_s  seconds between those events

Fields of a step, all optional:

    text         what the model says
    reasoning    what it thinks aloud
    calls        list of {"name", "arguments", "id"?}; arguments are an object, or text that is sent as it is
    repeat       take this step so many times; ``{i}`` in strings becomes 0, 1, ... (in ``text``, ids and arguments)
    finish_reason    instead of the usual one, for example "length"
    error        fail: {"status": 429, "message", "code", "retry_after_s", "times"}; times is how often (default 1,
                 null for ever), counted by each server for itself
    drop         {"after_chunks": n, "times": n}: break the connection after so many events
    delay_s, chunks, chunk_gap_s     as above, for this step

Which step comes next is read from the transcript: the number of replies since the directive. So any server gives the
same reply to the same request, and a repeated request repeats the reply. Only failures are counted, by the server.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from hermes_worker.models.scripted.reply import Reply, ScriptedCall, ScriptedFault, ScriptedPace
from hermes_worker.models.scripted.transcript import Row, read_content_text

_DIRECTIVE = re.compile(r"^[ \t]*scripted:[ \t]*(?=\{)", re.MULTILINE)
REPEAT_MAX = 100_000
_NAMED = re.compile(r"\{(\w+)\}")


class InvalidScript(ValueError):
    """The directive is not a script; the message says what is wrong with it."""


class Script:
    """A parsed directive and how far the conversation has followed it."""

    def __init__(
        self, document: Mapping[str, Any], replies_so_far: int, names: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """``names`` can stand in braces, as ``{i}`` can."""
        self._document = document
        self._number = replies_so_far
        self._names = names
        self._steps = _expand_steps(document.get("steps", []))

    @property
    def is_finished(self) -> bool:
        return self._number > len(self._steps)

    def take_next_reply(self) -> Reply:
        if self._number < len(self._steps):
            step, repetition = self._steps[self._number]
            return self._reply(step, repetition)
        final = self._document.get("final", f"The script is finished: {len(self._steps)} steps were taken.")
        return Reply(text=_fill_names(str(final), self._names), pace=self._pace({}))

    def _reply(self, step: Mapping[str, Any], repetition: int) -> Reply:
        names = {**self._names, "i": str(repetition)}
        return Reply(
            text=_fill_names(step.get("text", ""), names),
            reasoning=str(step.get("reasoning", "")),
            calls=tuple(
                self._call(call, index, names)
                for index, call in enumerate(_require_dicts(step.get("calls", []), "calls"))
            ),
            finish_reason=step.get("finish_reason"),
            pace=self._pace(step),
            fault=_read_fault(step),
            fault_key=f"{self._digest}:{self._number}",
        )

    def _call(self, call: Mapping[str, Any], index: int, names: Mapping[str, str]) -> ScriptedCall:
        if not isinstance(call.get("name"), str):
            raise InvalidScript("a call needs a name")
        arguments = _fill_names(call.get("arguments", {}), names)
        if not isinstance(arguments, dict | str):
            raise InvalidScript(f"the arguments of {call['name']!r} are neither an object nor a text")
        usual_id = f"call_{self._digest}_{self._number}_{index}"
        return ScriptedCall(
            id=_fill_names(str(call.get("id", usual_id)), names), name=call["name"], arguments=arguments
        )

    @property
    def _digest(self) -> str:
        return hashlib.sha256(json.dumps(self._document, sort_keys=True).encode()).hexdigest()[:8]

    def _pace(self, step: Mapping[str, Any]) -> ScriptedPace:
        given = {name: step.get(name, self._document.get(name)) for name in ("delay_s", "chunks", "chunk_gap_s")}
        for name, value in given.items():
            if value is not None and not _is_amount(value):
                raise InvalidScript(f"{name} must be a number that is not negative")
        return ScriptedPace(**given)


def find_active_script(rows: Sequence[Row]) -> Script | None:
    """The script that this conversation is to follow now; ``None`` when there is none or it has come to its end.

    The newest directive counts. Raises ``InvalidScript``.
    """
    replies = 0
    for row in reversed(rows):
        if row.get("role") == "assistant":
            replies += 1
        elif row.get("role") == "user" and (document := _parse_directive(read_content_text(row))) is not None:
            script = Script(document, replies)
            return None if script.is_finished else script
    return None


def _parse_directive(text: str) -> Mapping[str, Any] | None:
    match = _DIRECTIVE.search(text)
    if match is None:
        return None
    try:
        document, _ = json.JSONDecoder().raw_decode(text, match.end())
    except (ValueError, RecursionError) as error:
        raise InvalidScript(f"the directive is not JSON: {error}") from error
    assert isinstance(document, dict)  # it begins with a brace
    return document


def _expand_steps(steps: object) -> list[tuple[Mapping[str, Any], int]]:
    """Every step to take, repeated ones several times, with the number of each repetition."""
    expanded: list[tuple[Mapping[str, Any], int]] = []
    for step in _require_dicts(steps, "steps"):
        repeat = step.get("repeat", 1)
        if not isinstance(repeat, int) or not 0 <= repeat <= REPEAT_MAX - len(expanded):
            raise InvalidScript(f"repeat must be a number, and all steps together at most {REPEAT_MAX}")
        expanded += ((step, repetition) for repetition in range(repeat))
    return expanded


def _require_dicts(value: object, name: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise InvalidScript(f"{name} must be a list of objects")
    return value


def _fill_names(value: Any, names: Mapping[str, str]) -> Any:
    """Replace ``{name}`` in every string of ``value``."""
    if isinstance(value, str):
        return _NAMED.sub(lambda found: names.get(found[1], found[0]), value)
    if isinstance(value, list):
        return [_fill_names(item, names) for item in value]
    if isinstance(value, dict):
        return {key: _fill_names(item, names) for key, item in value.items()}
    return value


def _read_fault(step: Mapping[str, Any]) -> ScriptedFault | None:
    error, drop = step.get("error"), step.get("drop")
    if isinstance(error, dict):
        return ScriptedFault(
            status=int(_read_amount(error, "status", 500)),
            message=str(error.get("message", "scripted failure")),
            code=error.get("code"),
            retry_after_s=None if error.get("retry_after_s") is None else _read_amount(error, "retry_after_s", 0),
            times=_read_fault_times(error),
        )
    if isinstance(drop, dict):
        return ScriptedFault(after_chunks=int(_read_amount(drop, "after_chunks", 0)), times=_read_fault_times(drop))
    return None


def _read_fault_times(fault: Mapping[str, Any]) -> int | None:
    return None if "times" in fault and fault["times"] is None else int(_read_amount(fault, "times", 1))


def _read_amount(fields: Mapping[str, Any], name: str, default: float) -> float:
    value = fields.get(name, default)
    if not _is_amount(value):
        raise InvalidScript(f"{name} must be a number that is not negative")
    return float(value)


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9
