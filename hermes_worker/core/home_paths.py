"""Paths below the home, as rows hold them: ``/home/of/then/./workspaces/run_1``.

The part after ``/./`` counts: it is relative to the home, wherever that is now. The part before it says where the home
was when the row was written, and so which folder a stored prompt names. The form is still a valid path, so older code
reads new rows while a fleet is upgraded. A path outside the home, which a person chose, is stored unchanged.

Only the column types call this (``store.engine.stored_texts``); all other code reads and writes present paths.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from hermes_worker.core.messages import dump_canonical_json

_MARK = "/./"
SAID = "said"
"""Field of a workspace's document with the root named when the session began, where that is another than now."""
WORKSPACE_ROOT = "root"
JOB_DIRECTORY = "directory"
_LOCAL = "local"
ELSEWHERE = frozenset({"ssh", "docker", "kubernetes"})
"""Kinds of workspaces that are not on the machine that has the home."""


def to_stored(path: str, homes: Sequence[str]) -> str:
    """Convert ``path`` to the form in rows. ``homes`` are the spellings of the home's path, the one in use first."""
    while _MARK in path:
        path = path.replace(_MARK, "/")
    below = find_path_in_home(path, homes)
    return path if below is None else f"{homes[0]}{_MARK}{below}"


def from_stored(stored: str, homes: Sequence[str]) -> str:
    """Convert the form in rows to a present path. Without ``homes``, for code that reads a database alone, the result
    is the path at the time of writing."""
    before, mark, below = stored.partition(_MARK)
    return f"{homes[0] if homes else before}/{below}" if mark else stored


def find_path_in_home(path: str, homes: Sequence[str]) -> str | None:
    """``path`` relative to the home; ``None`` for one that is not below it."""
    parts = path.split("/")
    for home in homes:
        if path.startswith(f"{home}/") and ".." not in parts and path != f"{home}/":
            return path[len(home) + 1 :]
    return None


def to_stored_document(text: str, field: str, homes: Sequence[str]) -> str:
    """Convert a JSON object with a path in ``field`` to the form in rows."""
    document, path = _parse_document(text, field)
    if path is None:
        return text
    stored = to_stored(path, homes)
    if (said := document.pop(SAID, None)) is not None and _MARK in stored:
        below = stored.partition(_MARK)[2]
        stored = f"{said.removesuffix(f'/{below}')}{_MARK}{below}"
    return text if stored == path and said is None else dump_canonical_json({**document, field: stored})


def from_stored_document(text: str, field: str, homes: Sequence[str]) -> str:
    """Convert a JSON object from the form in rows to one with the present path; a workspace also gets the root that was
    ``said``."""
    if _MARK not in text:
        return text
    document, stored = _parse_document(text, field)
    if stored is None or _MARK not in stored:
        return text
    document[field] = from_stored(stored, homes)
    if field == WORKSPACE_ROOT and (said := from_stored(stored, ())) != document[field]:
        document[SAID] = said
    return dump_canonical_json(document)


def strip_said(workspace: str) -> str:
    """The document of a workspace without ``said``: equal for equal workspaces."""
    if f'"{SAID}":' not in workspace:
        return workspace
    document = json.loads(workspace)
    document.pop(SAID, None)
    return dump_canonical_json(document)


def is_shared_with_copies(kind: str, root: str, homes: Sequence[str]) -> bool:
    """Whether a workspace is outside the home, so that a copy of the home works in the same one."""
    return kind != _LOCAL or find_path_in_home(root, homes) is None


def find_former_home(root: str, tenant: str, session_id: str) -> str | None:
    """The home in which a session was given the workspace ``root`` of its own; ``None`` when it was not given one."""
    for own in (f"/workspaces/{session_id}", f"/workspaces/tenants/{tenant}/{session_id}"):
        if root.endswith(own) and (home := root.removesuffix(own)):
            return home
    return None


def _parse_document(text: str, field: str) -> tuple[dict[str, str], str | None]:
    """Parse the document, and its path if it has one on this machine."""
    if f'"{field}"' not in text:
        return {}, None
    document = json.loads(text)
    path = document.get(field)
    is_ours = isinstance(path, str) and document.get("kind") not in ELSEWHERE
    return document, path if is_ours else None
