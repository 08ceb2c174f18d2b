"""Inner calls: what a script does through tools while its own call is under way (``execute_code``). Pure.

An inner call is no call of the model's: it has no row of its own, no place in the transcript and no claim. The script's
call has the class ``once``, so neither the script nor anything that it called is ever run again. A call that may have
an effect is recorded in the row of the script's call before it begins, under that call's token: a worker that lost the
claim begins nothing more, and when a worker vanishes the model is told what had begun.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from hermes_worker.core.messages import dump_canonical_json

INNER_CALLS_MAX = 50
"""Tools a script may call."""
SCRIPT_TOOLS = ("web_search", "web_extract", "read_file", "write_file", "search_files", "patch", "terminal")
"""Tools a script may call, where its session has them; the list is the original's."""
SCRIPT_RUNNERS = frozenset({"execute_code"})
"""Tools that run scripts."""
ABOUT_CHARS_MAX = 160
"""Characters of an inner call's arguments that are recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerCall:
    """A recorded inner call, which may have had an effect."""

    tool: str
    about: str
    """The beginning of its arguments, without secrets."""
    has_ended: bool = False


def dump_calls(calls: Sequence[InnerCall]) -> str:
    """Dump inner calls for the row of the script's call."""
    return dump_canonical_json([[call.tool, call.about, call.has_ended] for call in calls])


def parse_calls(text: str | None) -> tuple[InnerCall, ...]:
    """Parse what ``dump_calls`` wrote; empty when it makes no sense."""
    try:
        rows = json.loads(text or "[]")
        return tuple(InnerCall(tool=str(tool), about=str(about), has_ended=bool(ended)) for tool, about, ended in rows)
    except (TypeError, ValueError):
        return ()


def append_begun(notice: str, calls: Sequence[InnerCall]) -> str:
    """Append to the notice of an unknown outcome what the script had begun."""
    if not calls:
        return notice
    begun = [
        f"{call.tool} {call.about} ({'it had ended' if call.has_ended else 'nobody saw its end'})" for call in calls
    ]
    return dump_canonical_json({**json.loads(notice), "begun_by_the_script": begun})
