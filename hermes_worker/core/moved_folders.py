"""What a session still says of the folder in which its workspace was, when the home has been moved.

Prompts keep their bytes (invariant I7). So the model is told below the newest row of its next request, which keeps the
text as it keeps what hooks add (``compactions.CONTEXT_FIELD``); and variables that name the folder are read anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from hermes_worker.core.compactions import context_kept_in, facts_of, newest_compaction
from hermes_worker.core.home_paths import SAID, WORKSPACE_ROOT
from hermes_worker.core.messages import Message

_BEGIN = "[The workspace was moved. Your tools now act in the directory "
_MIDDLE = "; relative paths are relative to it. Everything that was in "


def folder_note(rows: Sequence[Message], workspace: str, system_prompt: str) -> str:
    """What a model has to be told of a workspace that is not where its prompt or an earlier note says; empty when that
    is right. ``rows`` are the transcript, ``workspace`` is the document of its session."""
    root, before = _places(workspace)
    for row in reversed(rows):
        if _BEGIN in (context := context_kept_in(row)):
            if row.seq <= facts_of(newest_compaction(rows)).through:
                break  # the model is not shown it any more
            told = context.partition(_BEGIN)[2].partition(_MIDDLE)[0]
            return "" if told == root else _note(root, told)
    return "" if before is None or root in system_prompt else _note(root, before)


def _note(root: str, before: str) -> str:
    return (
        f"{_BEGIN}{root}{_MIDDLE}{before} is there under the same names. Paths that begin with the old directory lead "
        "nowhere: use relative ones, or the new directory.]"
    )


def to_stored_variables(variables: Mapping[str, str], workspace: str) -> Mapping[str, str]:
    """Variables of a session's shell as rows keep them: the folder is called what it was called at its beginning."""
    root, before = _places(workspace)
    return variables if before is None else _renamed(variables, root, before)


def from_stored_variables(variables: Mapping[str, str], workspace: str) -> Mapping[str, str]:
    """Variables of a session's shell as commands get them, with the folder where it is today."""
    root, before = _places(workspace)
    return variables if before is None else _renamed(variables, before, root)


def _renamed(variables: Mapping[str, str], old: str, new: str) -> Mapping[str, str]:
    spelled = re.compile(rf"{re.escape(old)}(?=[/:;,\s'\"]|$)")
    return {name: spelled.sub(lambda _: new, value) for name, value in variables.items()}


def _places(workspace: str) -> tuple[str, str | None]:
    """Where the workspace is, and where it was when its session began if that was elsewhere."""
    document = json.loads(workspace)
    return str(document.get(WORKSPACE_ROOT)), document.get(SAID)
