"""The files of a project that are written for agents, as they stand in a session's workspace.

One kind speaks for the project, the first that is there and not empty. Only the top of the workspace is looked at: what
lies above it is not the session's to read, and folders below it have their say when a call first touches them
(``agent.tools.hints``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from hermes_worker.agent.prompt.system import CONTEXT_CHARS_MAX, ContextFile
from hermes_worker.workspaces.base import Workspace, WorkspaceAway, WorkspaceError

_BYTES_MAX: Final = 4 * CONTEXT_CHARS_MAX
_RULES_MAX: Final = 64
"""Files of ``.cursor/rules`` that are read."""
_RULES: Final = ".cursor/rules"


@dataclass(frozen=True, slots=True)
class _ProjectFileKind:
    names: tuple[str, ...]
    """Names in order; the first that exists is read."""
    has_front_matter: bool = False


_KINDS: Final = (
    _ProjectFileKind((".hermes.md", "HERMES.md"), has_front_matter=True),
    _ProjectFileKind(("AGENTS.md", "agents.md")),
    _ProjectFileKind(("CLAUDE.md", "claude.md")),
)
NAMES: Final = (*(name for kind in _KINDS for name in kind.names), ".cursorrules")


def read_project_files(workspace: Workspace) -> tuple[ContextFile, ...]:
    """The files of the project that are written for agents; empty when there are none. Raises ``WorkspaceAway`` when
    the workspace cannot be read now. A file that cannot be read is left out.
    """
    top = _list_names(workspace, workspace.root)
    for kind in _KINDS:
        for name in (name for name in kind.names if name in top):
            text = _read_text(workspace, name)
            body = strip_front_matter(text) if kind.has_front_matter else text
            if body:
                return (ContextFile(name=name, text=body),)
    return tuple(_read_cursor_rules(workspace, top))


def strip_front_matter(text: str) -> str:
    """``text`` without the YAML between two lines of dashes at its beginning; the whole text where nothing follows
    that.
    """
    if not text.startswith("---"):
        return text
    end = text.find("\n---", 3)
    body = text[end + 4 :].lstrip("-").strip() if end != -1 else ""
    return body or text


def _read_cursor_rules(workspace: Workspace, top: frozenset[str]) -> Iterator[ContextFile]:
    if ".cursorrules" in top and (text := _read_text(workspace, ".cursorrules")):
        yield ContextFile(name=".cursorrules", text=text)
    if ".cursor" not in top:
        return
    names = sorted(name for name in _list_names(workspace, _RULES) if name.endswith(".mdc"))
    for name in names[:_RULES_MAX]:
        if text := _read_text(workspace, f"{_RULES}/{name}"):
            yield ContextFile(name=f"{_RULES}/{name}", text=text)


def _list_names(workspace: Workspace, folder: str) -> frozenset[str]:
    try:
        return frozenset(name.rstrip("/") for name in workspace.entries(folder))
    except WorkspaceAway:
        raise
    except WorkspaceError:
        return frozenset()


def _read_text(workspace: Workspace, name: str) -> str:
    """The text of a plain file; a link may lead out of the project, and is not followed."""
    path = str(PurePosixPath(workspace.root, name))
    try:
        if workspace.may_read(path):
            return (
                workspace.read_bytes(path, limit=_BYTES_MAX).decode("utf-8", "replace").removeprefix("\ufeff").strip()
            )
    except WorkspaceAway:
        raise
    except WorkspaceError:
        pass
    return ""
