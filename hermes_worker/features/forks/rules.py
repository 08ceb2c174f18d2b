"""Where a run can be forked, and which recorded call answers one of a fork. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from hermes_worker.core.delegation import DELEGATE_TOOL
from hermes_worker.core.forks import ForkMatch, ForkTools
from hermes_worker.core.inner_calls import SCRIPT_RUNNERS
from hermes_worker.core.replay import Replay
from hermes_worker.core.rewind import RecordedCall, are_equal
from hermes_worker.core.run import CallStatus

_SETTLED = frozenset({CallStatus.SUCCEEDED, CallStatus.FAILED, CallStatus.UNKNOWN, CallStatus.CANCELLED})
NOT_RECORDED = (
    "This call was not made in the run that is repeated here, so no result of it is recorded, and it was not made now. "
    "Nothing happened. Go on without it, or say what you would have done."
)
DENIED = (
    "This run is an evaluation in which nothing may have an effect, so the call was not made. Nothing happened. Go on "
    "without it, or say what you would have done."
)
CAN_USE_ANY_TOOL = SCRIPT_RUNNERS | {DELEGATE_TOOL}
"""Tools that a live fork asks about as soon as there was any call that must not run twice."""


class StepCall(NamedTuple):
    """A call of a run, and the row of its result."""

    iteration: int
    position: int
    status: str
    result_seq: int


def choose_point(opened: int, calls: Sequence[StepCall], output_seq: int | None) -> dict[int, int]:
    """Choose the rows behind which a run can be forked, by step. Step 0 is row ``opened``, its input. Step N is the
    last result of iteration N, once all of them are settled. What was written before the next reply, such as a summary
    of the conversation, stands before the fork as it stood before that reply."""
    points, replies = {0: opened}, {}
    for iteration, group in groupby(calls, key=lambda call: call.iteration):
        its = list(group)
        replies[iteration] = min(call.result_seq - call.position - 1 for call in its)
        if all(CallStatus(call.status) in _SETTLED for call in its):
            points[iteration] = max(call.result_seq for call in its)
    following = [*sorted(replies), None]
    for step, point in points.items():
        after = next((each for each in following if each is None or each > step), None)
        reply = replies[after] if after is not None else output_seq
        if reply is not None:
            points[step] = max(point, reply - 1)
    return points


def find_recorded(
    match: ForkMatch, call: RecordedCall, recorded: Sequence[RecordedCall], number: int
) -> RecordedCall | None:
    """Find the recorded call that answers ``call``, whose iteration counts from the beginning of the original.
    ``number`` counts the equal calls that the fork made before it. Only settled calls answer."""
    equal = [each for each in recorded if each.tool == call.tool and are_equal(each.arguments, call.arguments)]
    if match is ForkMatch.STRICT:
        place = (call.iteration, call.position)
        found = next((each for each in equal if (each.iteration, each.position) == place), None)
    else:
        found = equal[number] if number < len(equal) else None
    return found if found is not None and found.status in _SETTLED else None


def explain_refusal(tools: ForkTools, tool: str, replay: Replay) -> str | None:
    """Explain to the model why a call that no recorded one answers is refused; ``None`` when it may be made."""
    has_effect = replay is not Replay.PURE or tool == DELEGATE_TOOL
    if tools is ForkTools.OFFLINE or (tools is ForkTools.RECORDED and has_effect):
        return NOT_RECORDED
    return DENIED if tools is ForkTools.DENY and has_effect else None
