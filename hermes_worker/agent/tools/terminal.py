"""``terminal``: a shell command in the session's workspace (docs/behaviour.md, "Tools").

Each command is a shell of its own. What makes them feel like one is kept with the session: the folder the last command
ended in and the variables it exported, so the next command may run on another worker.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from hermes_worker.agent.tools.base import ToolContext, ToolResult
from hermes_worker.agent.tools.builtin import COMMAND_S_DEFAULT, COMMAND_S_MAX, CWD_KEY, ENV_KEY, TERMINAL
from hermes_worker.agent.tools.commandline import exit_code_meaning, refusal_to_run
from hermes_worker.agent.tools.files import session_folder
from hermes_worker.agent.tools.results import error_result, json_result
from hermes_worker.safety.redaction import is_secret_name
from hermes_worker.workspaces.base import (
    EXCESS_SENTENCES,
    CommandResult,
    Ending,
    Workspace,
    WorkspaceAway,
    WorkspaceError,
)
from hermes_worker.workspaces.sandbox.network import Network

_OUTPUT_BYTES_MAX: Final = 50_000
_ENV_CHARS_MAX: Final = 65_536
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ANSI: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_][^\x1b]*\x1b\\|[ -/]*[0-~])")
"""Colours, cursor movements and titles (ECMA-48); they are noise to a model."""


class TerminalTool:
    """``terminal``."""

    spec: Final = TERMINAL

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        refusal = _unsupported(arguments) or refusal_to_run(arguments["command"])
        if refusal:
            return error_result(refusal)
        timeout_s = arguments.get("timeout", COMMAND_S_DEFAULT)
        context.workspace.require_free_space()
        started_in = _folder(arguments.get("workdir"), context)
        result = context.workspace.execute(
            arguments["command"],
            cwd=started_in,
            env=_session_env(context.session.get(ENV_KEY)),
            timeout_s=timeout_s,
            output_bytes_max=_OUTPUT_BYTES_MAX,
            should_stop=context.cancelled.is_set,
            origin=context.origin,
        )
        notes: list[str] = []
        updates = _updates(result, context, notes)
        if result.left_running:
            notes.append("processes were still running in the background; they were ended with the command")
        if result.excess is not None:
            notes.append(EXCESS_SENTENCES[result.excess])
        if result.refused:
            notes.append(f"the network proxy refused {'; '.join(result.refused)}")
        elif result.network == Network.NONE and result.exit_code != 0:
            notes.append("commands have no network here")
        known = _secrets_of(context.session.get(ENV_KEY)) | _secrets_of(result.exported)
        output = context.redactor.without(result.output.decode("utf-8", "replace"), known)
        shown = replace(result, output=output.encode("utf-8", "replace"))
        return _result(arguments["command"], shown, timeout_s, updates, notes)


def _secrets_of(variables: object) -> frozenset[str]:
    """The secrets among a shell's variables: ``echo $TOKEN`` prints one without its name."""
    return frozenset(value for name, value in _session_env(variables).items() if is_secret_name(name))


def _unsupported(arguments: Mapping[str, Any]) -> str | None:
    """Why the call asks for something that this tool does not do, and what to do instead."""
    if arguments.get("background") or arguments.get("notify_on_complete") or arguments.get("watch_patterns"):
        return (
            "background processes are not available here. Run the command in the foreground with a timeout of up to "
            f"{COMMAND_S_MAX} s; to test a server, start it with & and use it and stop it in the same command, for "
            "example: 'server > server.log 2>&1 & pid=$!; sleep 2; curl -s localhost:8000; kill $pid'"
        )
    if arguments.get("pty"):
        return "pty is not available here; use the program's options for running without a terminal"
    timeout = arguments.get("timeout", COMMAND_S_DEFAULT)
    if timeout > COMMAND_S_MAX:
        return (
            f"a timeout of {timeout} s is more than the {COMMAND_S_MAX} s a command may take; split the work into "
            "commands that each take less"
        )
    return None


def _folder(workdir: str | None, context: ToolContext) -> str | None:
    """Where to start: the folder asked for, which must be there, or the session's, which may be gone by now."""
    current = session_folder(context)
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


def _session_env(document: object) -> dict[str, str]:
    """The session's variables, without anything a shell could not have exported."""
    if not isinstance(document, Mapping):
        return {}
    return {
        name: value
        for name, value in document.items()
        if isinstance(name, str) and isinstance(value, str) and _VARIABLE.fullmatch(name) and "\0" not in value
    }


def _updates(result: CommandResult, context: ToolContext, notes: list[str]) -> dict[str, Any]:
    """What the session remembers of the shell, where it changed; what could not be read stays as it was."""
    updates: dict[str, Any] = {}
    folder = _relative_folder(result.cwd, context.workspace)
    if folder is not None:
        updates[CWD_KEY] = None if folder == "." else folder
    elif result.cwd is not None:
        kept = session_folder(context) or "the workspace"
        notes.append(f"{result.cwd} is outside the workspace; the next command starts in {kept} again")
    if result.exported is not None:
        if sum(len(name) + len(value) for name, value in result.exported.items()) <= _ENV_CHARS_MAX:
            updates[ENV_KEY] = dict(result.exported) or None
        else:
            notes.append("the exported variables are too long to be kept for the next command")
    return {key: value for key, value in updates.items() if value != context.session.get(key)}


def _relative_folder(cwd: str | None, workspace: Workspace) -> str | None:
    """The shell's folder relative to the root, so that it means the same wherever the workspace is mounted; ``None``
    when it is not inside. What the shell said is outside input."""
    if cwd is None:
        return None
    try:
        folder = workspace.resolve(cwd)
        workspace.require_folder(str(folder))
    except WorkspaceError:
        return None
    return str(folder.relative_to(workspace.root))


def _result(
    command: str, result: CommandResult, timeout_s: int, updates: Mapping[str, Any], notes: list[str]
) -> ToolResult:
    document: dict[str, object] = {
        "output": _ANSI.sub("", result.output.decode("utf-8", "replace")),
        "exit_code": result.exit_code,
        "error": _ended_because(result.ending, timeout_s),
    }
    meaning = exit_code_meaning(command, result.exit_code) if result.ending is Ending.EXITED else None
    if meaning:
        document["exit_code_meaning"] = meaning
    if notes:
        document["note"] = "; ".join(notes)
    plain = json_result(document, is_error=result.exit_code != 0)
    return ToolResult(
        text=plain.text,
        is_error=plain.is_error,
        session_updates=updates,
        sandbox=result.sandbox,
        network=result.network,
    )


def _ended_because(ending: Ending, timeout_s: int) -> str | None:
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
