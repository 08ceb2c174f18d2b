"""``process``: what a session does with the processes that ``terminal`` started in the background.

Everything known of a process stands where it runs, so any worker may be the one that looks. No call waits for long:
``wait`` returns after some seconds, and a process that is to be waited for longer tells when it ends.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from hermes_worker.agent.tools.background import SessionProcesses
from hermes_worker.agent.tools.base import ToolContext, ToolResult
from hermes_worker.agent.tools.builtin import ENV_KEY, PROCESS, WAIT_S_MAX
from hermes_worker.agent.tools.results import build_error_result, build_json_result
from hermes_worker.agent.tools.screen import render_screen, strip_ansi
from hermes_worker.agent.tools.shell_variables import find_secrets
from hermes_worker.core.processes import ProcessRow
from hermes_worker.workspaces.base import PathNotFound
from hermes_worker.workspaces.processes import INPUT_BYTES_MAX, ProcessHost, ProcessLook, ProcessState

_PREVIEW_CHARS: Final = 1_000
_WAITED_CHARS: Final = 2_000
_LINES_DEFAULT: Final = 200
_LINES_MAX: Final = 1_000
_AGAIN_S: Final = 0.25
NOT_HERE: Final = "background processes are not available in this workspace"


class ProcessTool:
    """``process``."""

    spec: Final = PROCESS

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        rows, workspace = context.processes, context.workspace
        if rows is None or not isinstance(workspace, ProcessHost):
            return build_error_result(NOT_HERE)
        action = arguments["action"]
        if action == "list":
            known = [_render_process(row, _look_at_process(workspace, row)) for row in rows.list_processes()]
            return build_json_result({"processes": known}, is_error=False)
        process_id = arguments.get("session_id")
        row = rows.find(process_id) if process_id else None
        if row is None:
            named = f"there is no process {process_id!r}" if process_id else f"'session_id' is needed to {action}"
            return build_error_result(f"{named}; the action list names the processes of this session")
        match action:
            case "poll":
                return self._poll(rows, workspace, row, context)
            case "log":
                return self._log(rows, workspace, row, context, arguments)
            case "wait":
                return self._wait(rows, workspace, row, context, arguments.get("timeout"))
            case "kill":
                return self._kill(rows, workspace, row, context)
            case "close":
                workspace.write_to_process(row.process_id, b"", is_last=True)
                return build_json_result({"session_id": row.process_id, "status": "closed"}, is_error=False)
        data = (arguments.get("data") or "") + ("\n" if action == "submit" else "")
        written = data.encode("utf-8", "replace")
        if len(written) > INPUT_BYTES_MAX:
            return build_error_result(f"at most {INPUT_BYTES_MAX} bytes can be written to a process at once")
        workspace.write_to_process(row.process_id, written)
        return build_json_result(
            {"session_id": row.process_id, "status": "ok", "bytes_written": len(written)}, is_error=False
        )

    def _poll(
        self, rows: SessionProcesses, workspace: ProcessHost, row: ProcessRow, context: ToolContext
    ) -> ToolResult:
        found = _look_at_process(workspace, row)
        _mark_reported(rows, row, found)
        preview = _redact_output(row, found, context)[-_PREVIEW_CHARS:]
        return build_json_result({**_render_process(row, found), "output_preview": preview}, is_error=False)

    def _log(
        self,
        rows: SessionProcesses,
        workspace: ProcessHost,
        row: ProcessRow,
        context: ToolContext,
        arguments: Mapping[str, Any],
    ) -> ToolResult:
        found = _look_at_process(workspace, row)
        _mark_reported(rows, row, found)
        lines = _redact_output(row, found, context).splitlines()
        limit = min(arguments.get("limit") or _LINES_DEFAULT, _LINES_MAX)
        first = arguments.get("offset") or 0
        if "offset" not in arguments:
            first = max(0, len(lines) - limit)
        page = lines[first : first + limit]
        document = {
            **_render_process(row, found),
            "output": "\n".join(page),
            "total_lines": len(lines),
            "showing": f"lines {first + 1} to {first + len(page)}" if page else "no lines",
        }
        if found.total > len(found.output):
            document["note"] = "only the last of its output is kept"
        return build_json_result(document, is_error=False)

    def _wait(
        self,
        rows: SessionProcesses,
        workspace: ProcessHost,
        row: ProcessRow,
        context: ToolContext,
        timeout: int | None,
    ) -> ToolResult:
        asked = WAIT_S_MAX if timeout is None else timeout
        deadline = time.monotonic() + min(asked, WAIT_S_MAX)
        while (found := _look_at_process(workspace, row)).is_running:
            if time.monotonic() >= deadline or context.cancelled.wait(_AGAIN_S):
                break
        _mark_reported(rows, row, found)
        document = {**_render_process(row, found), "output": _redact_output(row, found, context)[-_WAITED_CHARS:]}
        if found.is_running:
            document["status"] = "timeout"
            document["timeout_note"] = (
                f"it still runs. A call waits {WAIT_S_MAX} s at most: do something else, wait again, or end your "
                "answer if it was started with notify_on_complete, and you are told when it ends"
            )
        return build_json_result(document, is_error=False)

    def _kill(
        self, rows: SessionProcesses, workspace: ProcessHost, row: ProcessRow, context: ToolContext
    ) -> ToolResult:
        if not _look_at_process(workspace, row).is_running:
            return build_json_result({"session_id": row.process_id, "status": "already_exited"}, is_error=False)
        workspace.end_process(row.process_id)
        deadline = time.monotonic() + WAIT_S_MAX
        while (found := _look_at_process(workspace, row)).is_running:
            if time.monotonic() >= deadline or context.cancelled.wait(_AGAIN_S):
                return build_json_result({"session_id": row.process_id, "status": "ending"}, is_error=False)
        rows.mark_reported(row.process_id, found.state.value, found.exit_code)
        return build_json_result({**_render_process(row, found), "status": "killed"}, is_error=False)


def _look_at_process(workspace: ProcessHost, row: ProcessRow) -> ProcessLook:
    """The state of a process where it runs; for one that was tidied away there, the state in its row."""
    try:
        return workspace.look_at_process(row.process_id)
    except PathNotFound:
        if row.ended_at is None:
            return ProcessLook(state=ProcessState.LOST, note="nothing is left of it where it ran")
        return ProcessLook(state=ProcessState(row.state), exit_code=row.exit_code, note="its output is not kept longer")


def _mark_reported(rows: SessionProcesses, row: ProcessRow, found: ProcessLook) -> None:
    if not found.is_running:
        rows.mark_reported(row.process_id, found.state.value, found.exit_code)


def _render_process(row: ProcessRow, found: ProcessLook) -> dict[str, Any]:
    until = row.now if row.ended_at is None else row.ended_at
    document: dict[str, Any] = {
        "session_id": row.process_id,
        "command": row.command,
        "status": found.state.value,
        "uptime_seconds": round(max(0.0, until - row.started_at)),
    }
    if not found.is_running:
        document["exit_code"] = found.exit_code
    if found.note:
        document["note"] = found.note
    return document


def _redact_output(row: ProcessRow, found: ProcessLook, context: ToolContext) -> str:
    text = found.output.decode("utf-8", "replace")
    plain = render_screen(text) if row.has_terminal else strip_ansi(text)
    return context.redactor.remove_secrets(plain, find_secrets(context.session.get(ENV_KEY)))
