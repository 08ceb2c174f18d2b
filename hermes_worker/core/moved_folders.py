"""Tell a session that its workspace moved, after the home was moved.

Prompts keep their bytes (invariant I7). So the model is told below the newest row of its next request, which keeps the
text as it keeps text of hooks (``compactions.CONTEXT_FIELD``); and variables that name the folder are converted when
they are read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from hermes_worker.core.compactions import find_newest_compaction, parse_facts, read_kept_context
from hermes_worker.core.home_paths import SAID, WORKSPACE_ROOT
from hermes_worker.core.messages import Message

_BEGIN = "[The workspace was moved. Your tools now act in the directory "
_MIDDLE = "; relative paths are relative to it. Everything that was in "


def build_folder_note(rows: Sequence[Message], workspace: str, system_prompt: str) -> str:
    """The note for a model whose prompt, or an earlier note, names another folder than the present one; empty when they
    agree. ``rows`` are the transcript, ``workspace`` is the document of its session."""
    root, before = _parse_places(workspace)
    for row in reversed(rows):
        if _BEGIN in (context := read_kept_context(row)):
            if row.seq <= parse_facts(find_newest_compaction(rows)).through:
                break  # compacted away: the model does not see it any more
            told = context.partition(_BEGIN)[2].partition(_MIDDLE)[0]
            return "" if told == root else _format_note(root, told)
    return "" if before is None or root in system_prompt else _format_note(root, before)


def _format_note(root: str, before: str) -> str:
    return (
        f"{_BEGIN}{root}{_MIDDLE}{before} is there under the same names. Paths that begin with the old directory lead "
        "nowhere: use relative ones, or the new directory.]"
    )


def to_stored_variables(variables: Mapping[str, str], workspace: str) -> Mapping[str, str]:
    """Convert variables of a session's shell for storage: with the folder's name at the session's beginning."""
    root, before = _parse_places(workspace)
    return variables if before is None else _rename_folder(variables, root, before)


def from_stored_variables(variables: Mapping[str, str], workspace: str) -> Mapping[str, str]:
    """Convert stored variables of a session's shell for commands: with the folder's present name."""
    root, before = _parse_places(workspace)
    return variables if before is None else _rename_folder(variables, before, root)


def _rename_folder(variables: Mapping[str, str], old: str, new: str) -> Mapping[str, str]:
    spelled = re.compile(rf"{re.escape(old)}(?=[/:;,\s'\"]|$)")
    return {name: spelled.sub(lambda _: new, value) for name, value in variables.items()}


def _parse_places(workspace: str) -> tuple[str, str | None]:
    """The workspace's present folder, and that at the session's beginning if it differs, else ``None``."""
    document = json.loads(workspace)
    return str(document.get(WORKSPACE_ROOT)), document.get(SAID)
