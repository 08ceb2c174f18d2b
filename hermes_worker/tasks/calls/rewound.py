"""Calls after a rewind: an equal one gets the recorded outcome or its old key, another ``once`` call asks again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from hermes_worker.core.replay import Replay
from hermes_worker.core.rewind import SameCall, judge_call
from hermes_worker.store.rewinds import REWOUND_KEY, RewoundPart

AGAIN: Final = "again after a rewind: "
"""Begins the key under which a person allows a tool for the rest of the conversation that was taken back."""
ASKED_REMARK: Final = (
    "a turn that was taken back had used {tool} already, and what that did stays done: now it may be done a second time"
)
UNKNOWN_REMARK: Final = (
    "the database was set back to an earlier moment, and {tool} may have done this after that moment already: the "
    "effect could be a second one"
)
UNKNOWN_S: Final = 3600.0
"""Seconds for which a question about it stays open where the settings name no time: nobody may be there."""


def find_part(session: Mapping[str, Any]) -> RewoundPart | None:
    """Find the rewound part among the documents of a session; ``None`` where it was never taken back."""
    document = session.get(REWOUND_KEY)
    return None if document is None else RewoundPart.from_document(document)


def find_recorded(part: RewoundPart, tool: str, replay: Replay, arguments: str) -> SameCall | None:
    """Find the call of the rewound part that an equal call stands for, if its outcome or key was not given away yet."""
    judged = judge_call(tool, replay, arguments, part.calls, part.find_unused(tool, arguments))
    return judged if isinstance(judged, SameCall) else None


def mark_used(part: RewoundPart, same: SameCall) -> dict[str, object]:
    """Build the session update that gives the outcome or the key of a recorded call away, for once."""
    return {REWOUND_KEY: replace(part, used=(*part.used, same.recorded.key)).to_document()}


def find_remark(part: RewoundPart, tool: str, replay: Replay, arguments: str) -> str | None:
    """Say why a person must allow a call that must not run twice and that no recorded one answers; ``None`` where
    nothing speaks against it."""
    if tool in part.once_tools or judge_call(tool, replay, arguments, part.calls, len(part.calls)):
        return ASKED_REMARK.format(tool=tool)
    is_unknown = part.unknown_until is not None and replay is Replay.ONCE
    return UNKNOWN_REMARK.format(tool=tool) if is_unknown else None
