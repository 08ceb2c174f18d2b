"""``terminal``: a shell command in the session's workspace.

Each command is a shell of its own. What makes them feel like one is kept with the session: the folder the last command
ended in and the variables it exported, so the next command may run on another worker.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from hermes_worker.agent.tools.base import ToolContext, ToolResult
from hermes_worker.agent.tools.builtin import (
    COMMAND_S_MAX,
    CWD_KEY,
    ENV_KEY,
    PROCESS_S_MAX,
    TERMINAL,
)
from hermes_worker.agent.tools.commandline import explain_exit_code, find_refusal
from hermes_worker.agent.tools.files import find_session_folder
from hermes_worker.agent.tools.process import NOT_HERE
from hermes_worker.agent.tools.results import build_error_result, build_json_result
from hermes_worker.agent.tools.screen import render_screen, strip_ansi
from hermes_worker.agent.tools.shell_variables import find_secrets, read_session_env, read_terminal_size
from hermes_worker.core.errors import HermesError
from hermes_worker.core.processes import PATTERN_CHARS_MAX, PATTERNS_MAX
from hermes_worker.workspaces.base import (
    EXCESS_SENTENCES,
    CommandResult,
    Ending,
    HostLost,
    Workspace,
    WorkspaceAway,
    WorkspaceError,
)
from hermes_worker.workspaces.processes import ProcessHost, ProcessOrder
from hermes_worker.workspaces.sandbox.network import Network

_OUTPUT_BYTES_MAX: Final = 50_000
_ENV_CHARS_MAX: Final = 65_536
_COMMAND_CHARS_KEPT: Final = 4_000
"""How many characters of a background process's command are stored to be shown later."""


class TerminalTool:
    """``terminal``."""

    spec: Final = TERMINAL

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        if arguments.get("background"):
            return _start_in_background(arguments, context)
        refusal = _find_unsupported(arguments) or find_refusal(arguments["command"])
        if refusal:
            return build_error_result(refusal)
        terminal = read_terminal_size(context.session.get(ENV_KEY)) if arguments.get("pty") else None
        timeout_s = arguments.get("timeout", context.policies.command_s)
        context.workspace.require_free_space()
        started_in = _find_folder(arguments.get("workdir"), context)
        result = context.workspace.execute(
            arguments["command"],
            cwd=started_in,
            env=read_session_env(context.session.get(ENV_KEY)),
            timeout_s=timeout_s,
            output_bytes_max=_OUTPUT_BYTES_MAX,
            should_stop=context.cancelled.is_set,
            origin=context.origin,
            terminal=terminal,
        )
        notes: list[str] = []
        updates = _build_updates(result, context, notes)
        if result.left_running:
            notes.append("processes were still running in the background; they were ended with the command")
        if result.excess is not None:
            notes.append(EXCESS_SENTENCES[result.excess])
        if result.refused:
            notes.append(f"the network proxy refused {'; '.join(result.refused)}")
        elif result.network == Network.NONE and result.exit_code != 0:
            notes.append("commands have no network here")
        known = find_secrets(context.session.get(ENV_KEY)) | find_secrets(result.exported)
        written = result.output.decode("utf-8", "replace")
        output = context.redactor.remove_secrets(written if terminal is None else render_screen(written), known)
        clean = replace(result, output=output.encode("utf-8", "replace"))
        return _build_result(arguments["command"], clean, timeout_s, updates, notes)


def _find_unsupported(arguments: Mapping[str, Any]) -> str | None:
    """The reason why the call asks for something that this tool does not do, and what to do instead; ``None`` when it
    does.
    """
    if arguments.get("notify_on_complete") or arguments.get("watch_patterns"):
        return "notify_on_complete and watch_patterns are for background=true: you wait for this command anyway"
    timeout = arguments.get("timeout", 0)
    if timeout > COMMAND_S_MAX:
        return (
            f"a timeout of {timeout} s is more than the {COMMAND_S_MAX} s a command may take; run it with "
            "background=true and notify_on_complete=true, or split the work into commands that each take less"
        )
    return None


def _start_in_background(arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
    """Start a process that outlives the call. Its row is written first, so that no process runs without one."""
    rows, workspace, command = context.processes, context.workspace, arguments["command"]
    if rows is None or not isinstance(workspace, ProcessHost):
        return build_error_result(NOT_HERE)
    if not command.strip():
        return build_error_result("the command is empty")
    patterns = [pattern for pattern in arguments.get("watch_patterns") or () if pattern]
    if len(patterns) > PATTERNS_MAX or any(len(pattern) > PATTERN_CHARS_MAX for pattern in patterns):
        return build_error_result(f"watch at most {PATTERNS_MAX} patterns of {PATTERN_CHARS_MAX} characters")
    wants_telling = bool(arguments.get("notify_on_complete") or patterns)
    is_told = wants_telling and rows.cannot_tell is None
    context.workspace.require_free_space()
    variables = context.session.get(ENV_KEY)
    lifetime_s = float(min(arguments.get("timeout", PROCESS_S_MAX), PROCESS_S_MAX))
    order = ProcessOrder(
        command=command,
        cwd=_find_folder(arguments.get("workdir"), context),
        env=read_session_env(variables),
        origin=context.origin,
        lifetime_s=lifetime_s,
        terminal=read_terminal_size(variables) if arguments.get("pty") else None,
    )
    redacted = context.redactor.redact_result(context.redactor.remove_secrets(command, find_secrets(variables)))
    try:
        process_id = rows.begin(
            redacted[:_COMMAND_CHARS_KEPT],
            lifetime_s=lifetime_s,
            has_terminal=order.terminal is not None,
            notifies=is_told and bool(arguments.get("notify_on_complete")),
            patterns=patterns if is_told else (),
        )
    except HermesError as error:
        return build_error_result(str(error))
    try:
        workspace.start_process(process_id, order)
    except HostLost:
        raise  # it may run: the next look at the row finds out
    except WorkspaceError as error:
        rows.mark_not_started(process_id)
        return build_error_result(str(error))
    rows.mark_started(process_id)
    document: dict[str, object] = {
        "output": "Background process started",
        "session_id": process_id,
        "exit_code": 0,
        "error": None,
    }
    if is_told and arguments.get("notify_on_complete"):
        document["notify_on_complete"] = True
    if is_told and patterns:
        document["watch_patterns"] = patterns
    if wants_telling and not is_told:
        document["note"] = f"you will not be told by a message: {rows.cannot_tell}. Use the tool process to look"
    return build_json_result(document, is_error=False)


def find_command_folder(arguments: Mapping[str, Any], context: ToolContext) -> str:
    """The folder in which a command would run, as its words say; whether it is there is not looked up."""
    folders = (context.session.get(CWD_KEY), arguments.get("workdir"))
    return posixpath.normpath(posixpath.join(context.workspace.root, *(each for each in folders if each)))


def _find_folder(workdir: str | None, context: ToolContext) -> str | None:
    """The folder to start in: the requested one, which must be there, or the session's, which may be gone by now."""
    current = find_session_folder(context)
    if workdir:
        return str(context.workspace.resolve(workdir, cwd=current))
    if current is None:
        return None
    try:
        context.workspace.require_folder(current)
    except WorkspaceAway:
        raise
    except WorkspaceError:
        return None
    return current


def _build_updates(result: CommandResult, context: ToolContext, notes: list[str]) -> dict[str, Any]:
    """The session documents of the shell, where they changed; what could not be read stays as it was."""
    updates: dict[str, Any] = {}
    folder = _find_relative_folder(result.cwd, context.workspace)
    if folder is not None:
        updates[CWD_KEY] = None if folder == "." else folder
    elif result.cwd is not None:
        kept = find_session_folder(context) or "the workspace"
        notes.append(f"{result.cwd} is outside the workspace; the next command starts in {kept} again")
    if result.exported is not None:
        if sum(len(name) + len(value) for name, value in result.exported.items()) <= _ENV_CHARS_MAX:
            updates[ENV_KEY] = dict(result.exported) or None
        else:
            notes.append("the exported variables are too long to be kept for the next command")
    return {key: value for key, value in updates.items() if value != context.session.get(key)}


def _find_relative_folder(cwd: str | None, workspace: Workspace) -> str | None:
    """The shell's folder relative to the root, so that it means the same wherever the workspace is mounted; ``None``
    when it is not inside. The shell's answer is outside input.
    """
    if cwd is None:
        return None
    try:
        folder = workspace.resolve(cwd)
        workspace.require_folder(str(folder))
    except WorkspaceError:
        return None
    return str(folder.relative_to(workspace.root))


def _build_result(
    command: str, result: CommandResult, timeout_s: int, updates: Mapping[str, Any], notes: list[str]
) -> ToolResult:
    document: dict[str, object] = {
        "output": strip_ansi(result.output.decode("utf-8", "replace")),
        "exit_code": result.exit_code,
        "error": _explain_ending(result.ending, timeout_s),
    }
    meaning = explain_exit_code(command, result.exit_code) if result.ending is Ending.EXITED else None
    if meaning:
        document["exit_code_meaning"] = meaning
    if notes:
        document["note"] = "; ".join(notes)
    plain = build_json_result(document, is_error=result.exit_code != 0)
    return ToolResult(
        text=plain.text,
        is_error=plain.is_error,
        session_updates=updates,
        sandbox=result.sandbox,
        network=result.network,
    )


def _explain_ending(ending: Ending, timeout_s: int) -> str | None:
    match ending:
        case Ending.TIMED_OUT:
            return (
                f"the command was ended after {timeout_s} s; give it a longer timeout (up to {COMMAND_S_MAX}) or "
                "less to do"
            )
        case Ending.CANCELLED:
            return "the command was interrupted"
        case Ending.EXITED:
            return None
