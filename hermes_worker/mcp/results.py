"""What an answer of a server is to the model: its text, and its pictures, sounds and other files as files.

A file goes to the folder of long results in the workspace, named by its content, so a call that is made again writes
nothing else. The model is told where it is, and looks at a picture with ``vision_analyze`` as at any other one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

from hermes_worker.agent.tools.base import ToolContext, ToolResult
from hermes_worker.agent.tools.results import RESULTS_FOLDER
from hermes_worker.mcp.protocol import AnsweredFile, McpAnswer
from hermes_worker.workspaces.base import WorkspaceError

_ENDINGS: Final[Mapping[str, str]] = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/gif": "gif",
    "image/webp": "webp",
    "audio/wav": "wav",
    "audio/mpeg": "mp3",
    "audio/ogg": "ogg",
    "application/pdf": "pdf",
    "application/json": "json",
    "application/zip": "zip",
    "text/csv": "csv",
}
_PICTURES: Final = frozenset({"png", "jpg", "gif", "webp"})


def shown(answer: McpAnswer, context: ToolContext) -> ToolResult:
    """Keeps the files of an answer. Idempotent."""
    text = answer.text
    for file in answer.files:
        text = text.replace(file.mark, _kept(file, context))
    return ToolResult(text=text, is_error=answer.is_error)


def _kept(file: AnsweredFile, context: ToolContext) -> str:
    ending = _ENDINGS.get(file.media_type, "bin")
    path = f"{RESULTS_FOLDER}/{hashlib.sha256(file.content).hexdigest()[:32]}.{ending}"
    said = f"{file.kind} {file.media_type}, {len(file.content):,} bytes"
    try:
        context.workspace.write_bytes(f"{RESULTS_FOLDER}/.gitignore", b"*\n")
        context.workspace.write_bytes(path, file.content)
    except WorkspaceError as error:
        return f"[{said}: not kept, because {error}]"
    look = "; look at it with vision_analyze, if you have it" if ending in _PICTURES else ""
    return f"[{said}: in {path}{look}]"
