"""Turn an answer of a server into a result for the model: its text, and its pictures, sounds and other files as files.

A file goes to the folder of long results in the workspace, named by its content, so a call that is made again writes
nothing else. The model is told where it is, and looks at a picture with ``vision_analyze`` as at any other one.
"""

from __future__ import annotations

import hashlib

from hermes_worker.agent.tools.base import ToolContext, ToolResult
from hermes_worker.agent.tools.results import RESULTS_FOLDER
from hermes_worker.core.media_kinds import PICTURES, find_suffix
from hermes_worker.mcp.protocol import AnsweredFile, McpAnswer
from hermes_worker.workspaces.base import WorkspaceError


def render_result(answer: McpAnswer, context: ToolContext) -> ToolResult:
    """Build the result of an answer and keep its files. Idempotent."""
    text = answer.text
    for file in answer.files:
        text = text.replace(file.mark, _keep_file(file, context))
    return ToolResult(text=text, is_error=answer.is_error)


def _keep_file(file: AnsweredFile, context: ToolContext) -> str:
    suffix = find_suffix(file.media_type) or ".bin"
    path = f"{RESULTS_FOLDER}/{hashlib.sha256(file.content).hexdigest()[:32]}{suffix}"
    said = f"{file.kind} {file.media_type}, {len(file.content):,} bytes"
    try:
        context.workspace.write_bytes(f"{RESULTS_FOLDER}/.gitignore", b"*\n")
        context.workspace.write_bytes(path, file.content)
    except WorkspaceError as error:
        return f"[{said}: not kept, because {error}]"
    look = "; look at it with vision_analyze, if you have it" if file.media_type in PICTURES else ""
    return f"[{said}: in {path}{look}]"
