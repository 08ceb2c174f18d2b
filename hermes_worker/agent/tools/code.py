"""``execute_code``: a Python script in the workspace that calls tools (docs/dispatch.md, "Scripts").

The script is a command like any other: the same sandbox, limits, variables and permission. What is more is a socket
pair, one end of which is its standard input: it needs no network, no file in the workspace and no address, and it ends
with either side. A thread of the worker answers what comes over it, one call after the other. The other end is hostile:
it may ask for tool calls and for nothing else, and its messages are bounded in size and number.
"""

from __future__ import annotations

import json
import shlex
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any, Final

from hermes_worker.agent.tools.base import Cancellation, InnerTools, ToolContext, ToolResult
from hermes_worker.agent.tools.builtin import ENV_KEY, EXECUTE_CODE, SCRIPT_CHARS_MAX, SCRIPT_S_MAX
from hermes_worker.agent.tools.files import find_session_folder
from hermes_worker.agent.tools.results import build_error_result, build_json_result
from hermes_worker.agent.tools.screen import strip_ansi
from hermes_worker.agent.tools.script_channel import answer_channel, receive_message, send_message
from hermes_worker.agent.tools.shell_variables import find_secrets, read_session_env
from hermes_worker.core.inner_calls import INNER_CALLS_MAX
from hermes_worker.workspaces.base import EXCESS_SENTENCES, CommandResult, ConversingWorkspace, Ending
from hermes_worker.workspaces.output import OutputBuffer

_OUTPUT_BYTES_MAX: Final = 50_000
_ERROR_BYTES_MAX: Final = 10_000
_MESSAGE_BYTES_MAX: Final = 8_000_000
"""Bytes of a message with a call that a script makes. A longer result is an error for the script."""
_REFUSED_MAX: Final = 1_000
"""How many calls beyond its limit are answered with an error; later ones get no answer."""
_NO_PYTHON: Final = 127


class ExecuteCodeTool:
    """``execute_code``."""

    spec: Final = EXECUTE_CODE

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        code: str = arguments["code"]
        workspace = context.workspace
        if not code.strip():
            return build_error_result("the script is empty")
        if len(code) > SCRIPT_CHARS_MAX:
            return build_error_result(f"the script has more than {SCRIPT_CHARS_MAX} characters; put data into files")
        if "\0" in code:
            return build_error_result("the script contains a NUL character")
        if context.inner is None or not isinstance(workspace, ConversingWorkspace):
            return build_error_result(
                "scripts that call tools run in workspaces of the worker's own machine only; write the program to a "
                "file, run it with terminal, and call the tools yourself"
            )
        workspace.require_free_space()
        began = time.monotonic()
        over = threading.Event()
        until = CancelledOrOver(context.cancelled, over, began + SCRIPT_S_MAX)
        inner = replace(context, cancelled=until, progress=lambda text: None, inner=None, processes=None)
        session = ScriptSession(code, context.inner, inner, context)
        with answer_channel(session.serve, over.set) as channel:
            result = workspace.converse(
                _build_script_command(),
                channel=channel,
                cwd=find_session_folder(context),
                env=read_session_env(context.session.get(ENV_KEY)),
                timeout_s=SCRIPT_S_MAX,
                output_bytes_max=_OUTPUT_BYTES_MAX,
                should_stop=lambda: context.cancelled.is_set() or session.is_lost,
                origin=context.origin,
            )
        return _build_result(result, session, context, time.monotonic() - began)


def _hold_until_ended(channel: socket.socket) -> None:
    """Wait until the script, which is about to be ended, has ended: with an answer it would go on to its next line."""
    while channel.recv(65_536):
        pass


@dataclass(frozen=True, slots=True)
class CancelledOrOver:
    """Set when the call is cancelled, its script has ended or its time is over."""

    cancelled: Cancellation
    over: threading.Event
    deadline: float

    def is_set(self) -> bool:
        return self.over.is_set() or time.monotonic() >= self.deadline or self.cancelled.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        deadline = self.deadline if timeout is None else min(self.deadline, time.monotonic() + timeout)
        while not self.is_set():
            left = deadline - time.monotonic()
            if left <= 0:
                break
            self.over.wait(min(left, 0.05))
        return self.is_set()


class ScriptSession:
    """Serves the calls of one script. ``serve`` runs in a thread of its own until the channel is shut."""

    def __init__(self, code: str, tools: InnerTools, context: ToolContext, outer: ToolContext) -> None:
        self._code = code
        self._tools = tools
        self._context = context
        self._outer = outer
        self.calls = 0
        """How many calls were made, with any outcome."""
        self.updates: dict[str, Any] = {}
        """Session documents that they changed."""
        self.has_strangers = False
        """Whether any of them may have brought text of strangers."""
        self.is_lost = False
        """Whether the claim is gone, so that the script's work is of no use any more."""

    def serve(self, channel: socket.socket) -> None:
        """Send the script, and make the calls that it asks for. Raises ``OSError`` at its end, ``ValueError`` and
        ``RecursionError`` for bytes that are no message.
        """
        tools = {name: list(parameters) for name, parameters in self._tools.parameters.items()}
        _send_document(channel, {"code": self._code, "tools": tools})
        refused = 0
        while refused < _REFUSED_MAX:
            asked = json.loads(receive_message(channel, _MESSAGE_BYTES_MAX))
            if self._context.cancelled.is_set():
                _hold_until_ended(channel)
                return
            if self.calls >= INNER_CALLS_MAX:
                refused += 1
                _send_document(
                    channel,
                    {"result": _format_error(f"a script may call {INNER_CALLS_MAX} tools; this call was not made")},
                )
                continue
            self.calls += 1
            text = self._answer(asked)
            if self.is_lost or self._context.cancelled.is_set():
                _hold_until_ended(channel)
                return
            if len(text) > _MESSAGE_BYTES_MAX:
                text = _format_error("the result is too long for a script")
            _send_document(channel, {"result": text})

    def _answer(self, asked: Any) -> str:
        name = asked.get("tool") if isinstance(asked, dict) else None
        arguments = asked.get("arguments") if isinstance(asked, dict) else None
        if not isinstance(name, str) or not isinstance(arguments, dict):
            return _format_error("this is no call")
        if name not in self._tools.parameters:
            return _format_error(
                f"a script cannot call {name[:100]!r}; it can call {', '.join(self._tools.parameters)}"
            )
        self._outer.progress(f"{name} ({self.calls} of {INNER_CALLS_MAX})")
        documents = {**self._context.session, **self.updates}
        context = replace(
            self._context,
            session={key: value for key, value in documents.items() if value is not None},
            idempotency_key=f"{self._outer.idempotency_key}.{self.calls}",
        )
        result = self._tools.call(name, arguments, context)
        self.updates.update(result.session_updates)
        self.has_strangers = self.has_strangers or result.is_untrusted
        self.is_lost = self.is_lost or result.is_unknown
        return result.text


def _send_document(channel: socket.socket, document: Mapping[str, Any]) -> None:
    send_message(channel, json.dumps(document).encode())


def _format_error(error: str) -> str:
    return json.dumps({"error": error})


@cache
def _build_script_command() -> str:
    """Build the command that the sandbox runs. It never changes: the script itself comes over the channel."""
    program = files("hermes_worker.agent.tools").joinpath("script_program.py").read_text("utf-8")
    variables = "PYTHONDONTWRITEBYTECODE=1 PYTHONUTF8=1"
    return f"command -v python3 >/dev/null || exit {_NO_PYTHON}; {variables} python3 -u -c {shlex.quote(program)}"


def _build_result(result: CommandResult, session: ScriptSession, context: ToolContext, duration_s: float) -> ToolResult:
    known = find_secrets(context.session.get(ENV_KEY))
    output, errors = (
        context.redactor.remove_secrets(strip_ansi(data.decode("utf-8", "replace")), known)
        for data in (result.output, _shorten_errors(result.errors))
    )
    document: dict[str, object] = {
        "status": "success",
        "output": output,
        "tool_calls_made": session.calls,
        "duration_seconds": round(duration_s, 2),
    }
    notes = [EXCESS_SENTENCES[result.excess].replace("command", "script")] if result.excess is not None else []
    notes += ["processes that it left running were ended"] if result.left_running else []
    notes += [f"the network proxy refused {'; '.join(result.refused)}"] if result.refused else []
    if result.ending is Ending.TIMED_OUT:
        document.update(status="timeout", error=f"the script was ended after {SCRIPT_S_MAX} s")
    elif result.ending is Ending.CANCELLED:
        document.update(status="interrupted", error="the script was interrupted; what it did before stays done")
    elif result.exit_code == _NO_PYTHON and not output and not errors:
        document.update(status="error", error="there is no python3 in this workspace")
    elif result.exit_code != 0:
        document.update(status="error", error=errors.strip() or f"the script exited with code {result.exit_code}")
        errors = ""
    if errors.strip():
        document["stderr"] = errors
    if notes:
        document["note"] = "; ".join(notes)
    return replace(
        build_json_result(document, is_error=document["status"] != "success"),
        session_updates=session.updates,
        sandbox=result.sandbox,
        network=result.network,
        is_untrusted=session.has_strangers,
    )


def _shorten_errors(errors: bytes) -> bytes:
    kept = OutputBuffer(_ERROR_BYTES_MAX)
    kept.append(errors)
    return kept.render()
