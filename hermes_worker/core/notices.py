"""Texts that stand in the transcript in place of a tool's result or an answer. The model reads them."""

from __future__ import annotations

from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.core.run import CallStatus

OUTCOME_UNKNOWN = dump_canonical_json(
    {
        "status": "outcome_unknown",
        "error": (
            "The worker running this call, or the host it ran on, disappeared before it could report. The call may "
            "have taken full effect, part of it, or none, and it has not been and will not be run again. Do not assume "
            "that it succeeded and do not assume that it failed: check the actual state first, then decide."
        ),
    }
)
CANCELLED = dump_canonical_json(
    {"status": "cancelled", "error": "Cancelled before it ran: the run was stopped. It had no effect."}
)
INTERRUPTED = dump_canonical_json(
    {
        "status": "cancelled",
        "error": "Interrupted: the run was stopped while this was running. Part of its effect may remain.",
    }
)
OTHER_EFFECT = "the call was not run: a hook gave it arguments that do more than those that were asked for"
TOO_MANY_DELEGATIONS = (
    "nothing was delegated: one reply may hold {allowed} calls of delegate_task; hand several tasks to one "
    "call, or make this one again when the others have ended"
)
STOPPED_ANSWER = "(stopped before an answer was written)"
SUMMARY_REQUEST = (
    "You have used all the steps this task allows and can call no more tools. Write your final answer now: what you "
    "found and did, what is unfinished, and what should happen next."
)
_STEER_BEGIN = "[OUT-OF-BAND USER MESSAGE: a direct message from the user, not output of the tool]"
_STEER_END = "[/OUT-OF-BAND USER MESSAGE]"


def append_steer(result: str, text: str) -> str:
    """Append a user's message to a tool's result, between markers that the text cannot close by itself."""
    said = text.replace(_STEER_END, "[/ OUT-OF-BAND USER MESSAGE]")
    return f"{result}\n\n{_STEER_BEGIN}\n{said}\n{_STEER_END}"


def build_missing_result(status: CallStatus, *, was_running: bool) -> str:
    """The result of a call that ended without a result from its tool."""
    if status is CallStatus.UNKNOWN:
        return OUTCOME_UNKNOWN
    return INTERRUPTED if was_running else CANCELLED


NOT_FOR_GUESTS = (
    "Whoever asks is a guest of this chat, for whom nothing is done that has an effect. Do not try it in another way; "
    "say that somebody else has to ask for it."
)
"""The result of a call with effects in a run of a guest (docs/gateway.md)."""
