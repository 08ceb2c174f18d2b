"""What a rewind leaves behind: effects that happened after the point to which a conversation went back. Pure.

A rewind (a fork, an undo, a retry, a restore) takes no effect back and gives no permission again. So an agent that goes
on from an earlier point is told what has happened since; a call that it makes once more gets the recorded outcome, or
its old idempotency key; and another call of a tool that must not run twice is put to a person, whatever its arguments.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import CallStatus

_NOT_BEGUN = frozenset({CallStatus.PENDING, CallStatus.WAITING, CallStatus.CANCELLED})
_TOLD_MAX = 20
_ARGUMENTS_CHARS_MAX = 400
_RESULT_CHARS_MAX = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """A call that a run made, as its rows have it."""

    run_id: str
    iteration: int
    position: int
    tool: str
    replay: Replay
    status: CallStatus
    arguments: str
    """JSON, as the call ran with it."""
    result: str = ""
    """The result as the model read it; empty while there is none."""
    place: int
    """The number of the result's row in its transcript."""
    settled_at: float | None = None
    """Epoch seconds."""
    allowed_by: str | None = None
    """The person who allowed it; ``None`` where nobody was asked."""
    allowed_at: float | None = None
    has_begun: bool = True
    """Whether its tool may have begun. A call that was refused has not."""

    @property
    def key(self) -> str:
        """The idempotency key of the call."""
        return f"{self.run_id}.{self.iteration}.{self.position}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SameCall:
    """This very call was made after the point: its outcome, or its key, is used again."""

    recorded: RecordedCall


@dataclass(frozen=True, slots=True, kw_only=True)
class AskPerson:
    """A call that must not run twice was made with this tool after the point: a person decides."""

    recorded: Sequence[RecordedCall]


def select_effects_after(point: int, calls: Iterable[RecordedCall]) -> tuple[RecordedCall, ...]:
    """Select the calls behind row ``point`` of the transcript that may have had an effect, in their order. What became
    of them does not count: a call that failed, or whose outcome is unknown, may have done its work."""
    return tuple(
        call
        for call in sorted(calls, key=lambda call: (call.place, call.run_id, call.iteration, call.position))
        if call.place > point and call.replay is not Replay.PURE and call.has_begun and call.status not in _NOT_BEGUN
    )


def judge_call(
    tool: str, replay: Replay, arguments: str, effects: Sequence[RecordedCall], number: int = 0
) -> SameCall | AskPerson | None:
    """Judge a call that is made after a rewind; ``None`` when nothing of ``effects`` concerns it. ``number`` counts the
    equal calls that were made before it since the rewind, so that a second one of two gets the second outcome."""
    if replay is Replay.PURE:
        return None
    of_tool = [call for call in effects if call.tool == tool]
    equal = [call for call in of_tool if are_equal(call.arguments, arguments)]
    if number < len(equal):
        return SameCall(recorded=equal[number])
    if replay is Replay.ONCE and any(call.replay is Replay.ONCE for call in of_tool):
        return AskPerson(recorded=of_tool)
    return None


def are_equal(one: str, other: str) -> bool:
    """Whether two texts of arguments mean the same: the order of keys and white space do not count."""
    return one == other or _normalise(one) == _normalise(other)


def _normalise(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments


def describe_outcome(call: RecordedCall) -> str:
    """Describe for the model the outcome that stands in for a call which was made before."""
    unknown = call.status is CallStatus.UNKNOWN or not call.result
    return dump_canonical_json(
        {
            "already_done": "This very call was made before the conversation went back to an earlier point. "
            "It was not made again; this is what came of it then.",
            "made_by": call.run_id,
            **({"allowed_by": call.allowed_by} if call.allowed_by else {}),
            **({"allowed_at": _format_time(call.allowed_at)} if call.allowed_at else {}),
            **({"settled_at": _format_time(call.settled_at)} if call.settled_at else {}),
            "outcome": "unknown" if unknown else call.status.value,
            "result": call.result,
            "to_do_it_again": "Call it again if it has to be done once more all the same: then a person is asked.",
        }
    )


def describe_effects(effects: Sequence[RecordedCall]) -> str:
    """Describe for the model what happened after the point to which its conversation went back; empty for nothing."""
    if not effects:
        return ""
    lines = [
        "[Note of the system: this conversation was taken back to this point, and goes on from here. What happened "
        "after this point the first time was not taken back. These calls had been made:",
        *(_describe_effect(call) for call in effects[:_TOLD_MAX]),
    ]
    if len(effects) > _TOLD_MAX:
        lines.append(f"- and {len(effects) - _TOLD_MAX} more")
    return "\n".join((*lines, "Do not repeat them. Look at the present state before you rely on an earlier one.]"))


def _describe_effect(call: RecordedCall) -> str:
    at = f", {_format_time(call.settled_at)}" if call.settled_at else ""
    outcome = "outcome unknown" if call.status is CallStatus.UNKNOWN else call.status.value
    line = f"- {call.tool} {_cut(call.arguments, _ARGUMENTS_CHARS_MAX)} ({outcome}{at})"
    return f"{line}: {_cut(call.result, _RESULT_CHARS_MAX)}" if call.result else line


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}..."


def _format_time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
