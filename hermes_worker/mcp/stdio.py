"""An MCP server that is a process: JSON-RPC in lines over its standard input and output, for one request at a time.

Everything that the process writes is hostile: a line has a limit, what is no JSON or no answer to a request is dropped.
A request that goes wrong costs that request; a process that cannot be spoken to any more is ended, and the next call
gets another one.

The server's own requests are refused, and the answer to its call says so. A form for a person (``elicitation/create``)
becomes the answer to the call for now, as servers without sessions give it (SEP-2322). The call stays open in the
process while no worker waits for it, and the worker that comes with the person's answer (``continue_call``) waits for
the next thing it says. A new request is the end of a call that was left open.
"""

from __future__ import annotations

import os
import re
import secrets
import select
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from hermes_worker.core.json_values import parse_json
from hermes_worker.hosting.program import ConfinedProgram, NotStarted, ProgramPlan
from hermes_worker.mcp.protocol import (
    ELICITATION,
    INPUT_REQUIRED,
    McpError,
    OfferedTools,
    ServerRequest,
    add_refusal,
    build_initialize_params,
    build_notification,
    build_reply,
    build_request,
    format_refusal,
    format_refused,
    is_answer_to,
    list_offered_tools,
    parse_server_request,
)
from hermes_worker.mcp.servers import WITH_SESSIONS, McpServer
from hermes_worker.net.wire import BODY_BYTES_MAX
from hermes_worker.workspaces.base import WorkspaceError
from hermes_worker.workspaces.sandbox.backends import Sandbox
from hermes_worker.workspaces.sandbox.network import RunOrigin
from hermes_worker.workspaces.sandbox.policy import CommandLimits

LINE_BYTES_MAX: Final = BODY_BYTES_MAX
SERVER: Final = RunOrigin(source="cli", tenant="mcp")
"""The origin of a server's process for the sandbox: a guest, with the proxy at most."""
_BEGIN_S: Final = 30.0
_ALIVE_EVERY_S: Final = 3.0
_READ_BYTES: Final = 262_144
_ERRORS_CHARS_MAX: Final = 1_000
_QUESTIONS_MAX: Final = 20
"""How many unanswered questions one call may have."""
_QUESTION: Final = "question"
_TAKES_QUESTIONS: Final[Mapping[str, Any]] = {"elicitation": {}}
"""The capabilities that we announce: forms, by the first revision that has them; the next one takes the same words for
it.
"""
_UNKNOWN: Final = -32_000


class ServerEnded(McpError):
    """The process ended, or cannot be spoken to any more."""


class ServerGone(ServerEnded):
    """The process had ended before anything was sent to it."""


class ServerSilent(McpError):
    """The process did not answer in time."""


class QuestionClosed(McpError):
    """The call that asked a person something is not open any more."""


class StdioServer:
    """One process. Requests may come from any thread, and wait for one another."""

    def __init__(self, server: McpServer, token: str | None, folder: Path, sandbox: Sandbox) -> None:
        """Start it in ``folder``, which is made and, at the end, removed; no message was sent yet. Raises
        ``NotStarted``.
        """
        self._program = _start_program(server, token, folder, sandbox)
        self._number = 0
        self._asking = threading.Lock()
        self._writing = threading.Lock()
        self._answered = threading.Condition()
        self._waits_for: int | None = None
        self._answer: Mapping[str, Any] | None = None
        self._questions: list[ServerRequest] = []
        """The questions of the open call for a person; the first one has been told."""
        self._question_state = ""
        self._refused: set[str] = set()
        self._errors = ""
        self._ended = threading.Event()
        os.set_blocking(self._program.to_program, False)
        self._reader = threading.Thread(target=self._read, name="mcp-stdio", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._program.pid

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    @property
    def error_output(self) -> str:
        """The end of its standard error."""
        return self._errors.strip()

    def keep_alive(self) -> None:
        self._program.keep_alive()

    def end(self) -> None:
        """End the process. Idempotent."""
        self._fail()
        self._reader.join()
        with self._writing:  # a descriptor that is closed while a thread uses its number may be another one's by then
            self._program.end()

    def initialize(self) -> OfferedTools:
        """Initialize the session; return the usable tools that it offers, by name. Raises ``McpError``."""
        ends_at = time.monotonic() + _BEGIN_S
        self._request_result("initialize", build_initialize_params(WITH_SESSIONS, _TAKES_QUESTIONS), ends_at)
        self._write(build_notification("notifications/initialized"), ends_at)
        return list_offered_tools(lambda params: self._request_result("tools/list", params, ends_at))

    def _request_result(self, method: str, params: Mapping[str, Any], ends_at: float) -> Mapping[str, Any]:
        answer = self.request(method, params, ends_at)
        result = answer.get("result")
        if not isinstance(result, dict):
            error = answer.get("error")
            said = str(error.get("message"))[:300] if isinstance(error, dict) else "nothing"
            raise McpError(f"the server refused {method!r}: {said}")
        return result

    def request(self, method: str, params: Mapping[str, Any], ends_at: float) -> Mapping[str, Any]:
        """Return the answer to one request, ``result`` or ``error`` among its members, or a call's question for a
        person. Raises ``ServerEnded``, ``ServerSilent``.
        """
        with self._asking:
            self._leave_open_call()
            self._number += 1
            with self._answered:
                self._waits_for, self._answer, self._refused = self._number, None, set()
            self._write(build_request(method, params, self._number), ends_at)
            return self._await_answer(ends_at)

    def continue_call(self, state: str, responses: object, ends_at: float) -> Mapping[str, Any]:
        """Send the answer of a person to the open call, and return what the call says then, as ``request`` does. Raises
        ``QuestionClosed``, ``ServerEnded``, ``ServerSilent``.
        """
        said = responses.get(_QUESTION) if isinstance(responses, dict) else None
        with self._asking:
            if self.has_ended or not self._questions or not state or state != self._question_state:
                raise QuestionClosed("the call that asked is not open any more: its process ended, or was called anew")
            self._reply(self._questions.pop(0), said if isinstance(said, dict) else {"action": "decline"})
            return self._await_answer(ends_at)

    def _await_answer(self, ends_at: float) -> Mapping[str, Any]:
        with self._answered:
            while not self._has_news() and (left_s := ends_at - time.monotonic()) > 0:
                self._answered.wait(min(left_s, _ALIVE_EVERY_S))
                self.keep_alive()
            answer, number, refused = self._answer, self._waits_for, format_refused(self._refused)
            if answer is None and self._questions and not self.has_ended:
                self._question_state = secrets.token_hex(8)
                first = self._questions[0]
                asked = {_QUESTION: {"method": first.method, "params": first.params}}
                wanted = {"resultType": INPUT_REQUIRED, "inputRequests": asked, "requestState": self._question_state}
                return {"result": wanted}
            self._waits_for, self._questions = None, []
        if answer is not None:
            return _add_refused(answer, refused)
        because = f"; {refused}" if refused else ""
        if self.has_ended:
            raise ServerEnded(f"the server's process ended before it answered{because}")
        with suppress(McpError):
            self._cancel(number, "it took too long")
        raise ServerSilent(f"the server took too long{because}")

    def _has_news(self) -> bool:
        return self._answer is not None or bool(self._questions) or self.has_ended

    def _leave_open_call(self) -> None:
        """Cancel the open call: its question was not answered."""
        with self._answered:
            questions, number = self._questions, self._waits_for
            self._questions, self._waits_for = [], None
        for asked in questions:
            self._reply(asked, {"action": "cancel"})
        if questions:
            with suppress(McpError):
                self._cancel(number, "nobody waits for it any more")

    def _cancel(self, number: int | None, reason: str) -> None:
        cancelled = {"requestId": number, "reason": reason}
        self._write(build_notification("notifications/cancelled", cancelled), time.monotonic() + 1)

    def _write(self, line: bytes, ends_at: float) -> None:
        data = line + b"\n"
        pipe, is_sent = self._program.to_program, False
        with self._writing:
            while data:
                left_s = ends_at - time.monotonic()
                if self.has_ended:
                    raise (ServerEnded if is_sent else ServerGone)("the server's process has ended")
                try:
                    if left_s > 0 and _poll_pipes([pipe], select.POLLOUT, min(left_s, 0.5)):
                        data = data[os.write(pipe, data) :]
                        is_sent = True
                        continue
                except BlockingIOError:
                    continue
                except (OSError, ValueError):
                    if threading.current_thread() is not self._reader:  # which answers what the server asks
                        self._reader.join(timeout=min(1.0, max(0.0, left_s)))  # to the end of what it said
                    self._fail()
                    continue
                if left_s <= 0:
                    self._fail()  # half a message stands in its input: the next message would be part of it

    def _fail(self) -> None:
        with self._answered:
            self._ended.set()
            self._answered.notify_all()

    # --- what comes from it ------------------------------------------------------------------------------------------

    def _read(self) -> None:
        out, errors = self._program.from_program, self._program.errors
        pipes = [out] if errors is None else [out, errors]
        line = b""
        try:
            while not self.has_ended:
                ready = _poll_pipes(pipes, select.POLLIN, 0.5)
                if errors in ready and errors is not None:
                    said = os.read(errors, _READ_BYTES)
                    self._errors = (self._errors + said.decode("utf-8", "replace"))[-_ERRORS_CHARS_MAX:]
                    if not said:
                        pipes = [out]
                if out not in ready:
                    continue
                data = os.read(out, _READ_BYTES)
                if not data:
                    break
                *whole, line = (line + data).split(b"\n")
                for one in whole:
                    self._on_line(one)
                if len(line) > LINE_BYTES_MAX:
                    self._errors = f"it wrote a line of more than {LINE_BYTES_MAX:,} bytes"
                    break
        except OSError as error:
            # A waiting request is told that the process has ended, and this is why it could not go on.
            self._errors = f"{self._errors} its output cannot be read: {error}"[-_ERRORS_CHARS_MAX:]
        finally:
            self._fail()

    def _on_line(self, line: bytes) -> None:
        if len(line) > LINE_BYTES_MAX:
            return
        found = parse_json(line)
        if not isinstance(found, dict):
            return  # some print their news there
        if (asked := parse_server_request(found)) is not None:
            self._on_request(asked)
            return
        with self._answered:
            if self._answer is None and is_answer_to(found, self._waits_for):
                self._answer = found
                self._answered.notify_all()

    def _on_request(self, asked: ServerRequest) -> None:
        """Handle a request of the server: a person may be asked, a ``ping`` is answered, anything else is refused."""
        with self._answered:
            is_open = self._waits_for is not None and len(self._questions) < _QUESTIONS_MAX
            if asked.method == ELICITATION and is_open and isinstance(asked.params, dict):
                self._questions.append(asked)
                self._answered.notify_all()
                return
            if asked.method != "ping":
                self._refused.add(asked.method)
        self._reply(asked)

    def _reply(self, asked: ServerRequest, result: Mapping[str, Any] | None = None) -> None:
        with suppress(McpError):
            self._write(build_reply(asked, result), time.monotonic() + 1)


def _add_refused(answer: Mapping[str, Any], refused: str) -> Mapping[str, Any]:
    """An answer with the note what the server asked for and did not get: it may be the reason why it did not do
    more.
    """
    result, error = answer.get("result"), answer.get("error")
    if isinstance(result, dict) and result.get("resultType", "complete") != "complete":
        return {"error": {"code": _UNKNOWN, "message": format_refusal(result)}}
    if refused and isinstance(error, dict):
        return {**answer, "error": {**error, "message": f"{str(error.get('message'))[:400]}; {refused}"}}
    return {**answer, "result": add_refusal(result, refused)} if isinstance(result, dict) else answer


def _poll_pipes(pipes: Sequence[int], event: int, wait_s: float) -> list[int]:
    """Return the ``pipes`` for which ``event`` holds, or that are closed. ``select`` cannot look at numbers beyond
    1,023.
    """
    looks = select.poll()
    for pipe in pipes:
        looks.register(pipe, event)
    return [pipe for pipe, _ in looks.poll(wait_s * 1_000)]


def _start_program(server: McpServer, token: str | None, folder: Path, sandbox: Sandbox) -> ConfinedProgram:
    for path in server.reads:
        sandbox = sandbox.show_path(path, writable=str(folder))
    for path in server.writes:
        sandbox = sandbox.show_path(path, writable=path)
    try:
        folder.mkdir(parents=True, mode=0o700)
        home = str(folder.resolve())
        confined = sandbox.plan_confinement(home, SERVER)
        if confined is None:
            raise NotStarted(f"a server is confined or not started, and {'; '.join(sandbox.find_backend().reasons)}")
    except (OSError, WorkspaceError) as error:
        raise NotStarted(str(error)) from error
    secret = {server.token_as: token} if server.token_as and token else {}
    plan = ProgramPlan(
        argv=server.command,
        redirects="<&3 >&4 3<&- 4>&-",
        cwd=home,
        env={**server.env, **secret},
        limits=CommandLimits(cpu_s=None, file_bytes=1024**3),
        has_errors=True,
    )
    return ConfinedProgram(plan, folder, confined)


def list_tools_of_process(server: McpServer, token: str | None, folder: Path, sandbox: Sandbox) -> OfferedTools:
    """Start a server, list its tools and end it. Raises ``NotStarted``, ``McpError``."""
    process = StdioServer(server, token, folder, sandbox)
    try:
        return process.initialize()
    except McpError as error:
        raise McpError(f"{error}{format_error_output(process)}") from None
    finally:
        process.end()


def format_error_output(process: StdioServer) -> str:
    """The error output of a process that failed, as the end of a sentence; empty when there is none."""
    said = re.sub(r"^hosted: line \d+: ", "", process.error_output)  # of the shell that starts the program
    return f"; it said: {said[-300:]}" if said else ""
