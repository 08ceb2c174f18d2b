"""The files for agents (``AGENTS.md`` and the like) of a folder, shown behind the first result that touched it.

Each folder's file is shown once in a session: that it was shown is a document of the session, written in the
transaction that settles the call, so a worker that takes over knows it. The text is a stranger's: secrets are hidden in
it, it is cut, and it stands in the wrapper of ``safety.untrusted``. A folder of another machine is not looked into:
each look would be a way there and back.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import PurePosixPath
from typing import Any, Final

from hermes_worker.agent.tools.base import Tool, ToolContext, ToolResult
from hermes_worker.agent.tools.files import find_session_folder
from hermes_worker.core.ignored_folders import is_ignored_folder
from hermes_worker.observe import count, log
from hermes_worker.safety.untrusted import wrap_untrusted
from hermes_worker.workspaces.base import WorkspaceError

HINTS_KEY: Final = "hint:"
"""The prefix of the documents that say which folders' hints were shown."""
_FILES: Final = ("AGENTS.md", "agents.md", "CLAUDE.md", "claude.md", ".cursorrules")
"""Names in order; the first that exists speaks for its folder."""
_CHARS_MAX: Final = 8_000
"""Characters of one file, as in Hermes Agent 0.19."""
_OF_A_CALL_MAX: Final = 3
"""How many folders' hints are shown behind one result."""
_OF_A_SESSION_MAX: Final = 50
_ABOVE_MAX: Final = 5
"""How many folders above a path are looked at."""
_PATHS_MAX: Final = 16
"""How many paths of one call are looked at."""
_COMMAND_CHARS_MAX: Final = 20_000
_ARGUMENTS: Final = ("path", "file_path", "workdir")
_ELSEWHERE: Final = ("-", "http://", "https://", "git@")


def add_hints(tool: Tool, arguments: Mapping[str, Any], context: ToolContext, result: ToolResult) -> ToolResult:
    """``result``, and behind it the hints of folders that the call was the first to touch. Raises nothing."""
    if result.is_error:
        return result
    said = sum(1 for key in context.session if key.startswith(HINTS_KEY))
    texts: list[str] = []
    updates: dict[str, object] = {}
    for folder in _iterate_touched_folders(tool, arguments, context):
        if len(texts) >= _OF_A_CALL_MAX or said + len(texts) >= _OF_A_SESSION_MAX:
            break
        key = _build_hint_key(folder)
        if key in context.session or key in updates:
            continue
        found = _read_hint(folder, context)
        if found is not None:
            texts.append(found)
            updates[key] = True
    if not texts:
        return result
    count("tool_call.hinted", len(texts))
    return replace(
        result, text="\n\n".join((result.text, *texts)), session_updates={**result.session_updates, **updates}
    )


def mark_hint_shown(folder: str) -> Mapping[str, object]:
    """The session document for a folder whose file already stands in the prompt."""
    return {_build_hint_key(folder): True}


def _build_hint_key(folder: str) -> str:
    return f"{HINTS_KEY}{hashlib.sha256(folder.encode('utf-8', 'surrogateescape')).hexdigest()[:24]}"


def _iterate_touched_folders(tool: Tool, arguments: Mapping[str, Any], context: ToolContext) -> Iterator[str]:
    """The folders that a call touches and those above them, the highest of each path first, within the workspace."""
    workspace = context.workspace
    root = PurePosixPath(workspace.root)
    seen: set[PurePosixPath] = set()
    cwd = find_session_folder(context)
    for path in islice(_iterate_touched_paths(tool, arguments), _PATHS_MAX):
        with suppress(WorkspaceError):
            touched = workspace.resolve(path, cwd=cwd)
            try:
                workspace.require_folder(str(touched))
            except WorkspaceError:
                touched = touched.parent
            chain = [touched, *touched.parents][:_ABOVE_MAX]
            for folder in reversed(chain):
                inside = folder.relative_to(root).parts if folder.is_relative_to(root) else None
                if inside is None or folder in seen or any(is_ignored_folder(part) for part in inside):
                    continue
                seen.add(folder)
                yield str(folder)


def _iterate_touched_paths(tool: Tool, arguments: Mapping[str, Any]) -> Iterator[str]:
    """Paths as the model wrote them. A command touches the folder it runs in and the words in it that look like a
    path.
    """
    for name in _ARGUMENTS:
        value = arguments.get(name)
        if isinstance(value, str) and value.strip():
            yield value
    command = arguments.get(tool.spec.command_argument) if tool.spec.command_argument is not None else None
    if not isinstance(command, str):
        return
    yield "."
    text = command[:_COMMAND_CHARS_MAX]
    try:
        lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = list(lexer)
    except ValueError:
        words = text.split()
    for before, word in zip(("", *words), words, strict=False):
        looks_like_path = "/" in word or "." in word or before in ("cd", "pushd")
        if looks_like_path and word != "." and not word.startswith(_ELSEWHERE):
            yield word


def _read_hint(folder: str, context: ToolContext) -> str | None:
    workspace = context.workspace
    with suppress(WorkspaceError):
        names = set(workspace.entries(folder))
        for name in (each for each in _FILES if each in names):
            path = f"{folder.rstrip('/')}/{name}"
            if not workspace.may_read(path):
                continue  # a link, or protected
            text = workspace.read_bytes(path, limit=4 * _CHARS_MAX + 1).decode("utf-8", "replace")
            text = context.redactor.redact_result(text.removeprefix("\ufeff").strip(), is_configuration=False)
            if not text:
                continue
            shown = PurePosixPath(path).relative_to(workspace.root).as_posix()
            if len(text) > _CHARS_MAX:
                text = f"{text[:_CHARS_MAX]}\n... [cut; read_file {shown} has the rest]"
            found = wrap_untrusted(text, shown)
            if found.threats:
                count("untrusted.suspicious")
                log.warning("untrusted.suspicious", tool="hints", threats=list(found.threats))
            return f"[Notes for agents in this folder: {shown.encode('utf-8', 'replace').decode()}]\n{found.text}"
    return None
