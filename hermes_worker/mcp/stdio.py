"""An MCP server that is a process: JSON-RPC in lines over its standard input and output, for one request at a time.

Whatever the process writes is hostile: a line has a limit, what is no JSON or answers nobody is dropped, and what the
server asks of us is refused. A request that goes wrong costs that request; a process that cannot be spoken to any more
is ended, and the next call gets another one.
"""

from __future__ import annotations

import json
import os
import select
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from hermes_worker.core.messages import canonical_json
from hermes_worker.hosting.program import ConfinedProgram, NotStarted, ProgramPlan
from hermes_worker.mcp.protocol import McpError, definitions_of, initialize_params
from hermes_worker.mcp.servers import TOOLS_MAX, WITH_SESSIONS, McpServer
from hermes_worker.net.wire import BODY_BYTES_MAX
from hermes_worker.workspaces.base import WorkspaceError
from hermes_worker.workspaces.sandbox.ladder import Sandbox
from hermes_worker.workspaces.sandbox.network import RunOrigin
from hermes_worker.workspaces.sandbox.policy import CommandLimits

LINE_BYTES_MAX: Final = BODY_BYTES_MAX
SERVER: Final = RunOrigin(source="cli", tenant="mcp")
"""What a server is to the sandbox: a guest, with the proxy at most."""
_BEGIN_S: Final = 30.0
_ALIVE_EVERY_S: Final = 3.0
_READ_BYTES: Final = 262_144
_ERRORS_CHARS_MAX: Final = 1_000
_PAGES_MAX: Final = 50


class ServerEnded(McpError):
    """The process ended, or cannot be spoken to any more."""


class ServerGone(ServerEnded):
    """The process had ended before anything was sent to it."""


class ServerSilent(McpError):
    """The process did not answer in time."""


class StdioServer:
    """One process. Requests may come from any thread, and wait for one another."""

    def __init__(self, server: McpServer, token: str | None, folder: Path, sandbox: Sandbox) -> None:
        """Start it in ``folder``, which is made and, at the end, removed; it has not been spoken to. Raises
        ``NotStarted``."""
        self._program = _started(server, token, folder, sandbox)
        self._number = 0
        self._asking = threading.Lock()
        self._writing = threading.Lock()
        self._answered = threading.Condition()
        self._waits_for: int | None = None
        self._answer: Mapping[str, Any] | None = None
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
    def said(self) -> str:
        """The last of what it wrote to its standard error."""
        return self._errors.strip()

    def keep_alive(self) -> None:
        self._program.keep_alive()

    def end(self) -> None:
        """Idempotent."""
        self._fail()
        self._reader.join()
        with self._writing:  # a descriptor that is closed while somebody uses its number may be another one's by then
            self._program.end()

    def begin(self) -> Sequence[Mapping[str, Any]]:
        """Make its acquaintance; gives the usable tools that it offers, by name. Raises ``McpError``."""
        ends_at = time.monotonic() + _BEGIN_S
        self._result("initialize", initialize_params(WITH_SESSIONS), ends_at)
        self._write({"jsonrpc": "2.0", "method": "notifications/initialized"}, ends_at)
        found: dict[str, Mapping[str, Any]] = {}
        params: dict[str, Any] = {}
        for _ in range(_PAGES_MAX):
            page, cursor = definitions_of(self._result("tools/list", params, ends_at))
            for one in page:
                found.setdefault(str(one["name"]), one)
            if len(found) > TOOLS_MAX:
                raise McpError(f"the server offers more than {TOOLS_MAX} tools")
            if cursor is None:
                return [found[name] for name in sorted(found)]
            params = {"cursor": cursor}
        raise McpError(f"the server's list of tools has more than {_PAGES_MAX} pages")

    def _result(self, method: str, params: Mapping[str, Any], ends_at: float) -> Mapping[str, Any]:
        answer = self.ask(method, params, ends_at)
        result = answer.get("result")
        if not isinstance(result, dict):
            error = answer.get("error")
            said = str(error.get("message"))[:300] if isinstance(error, dict) else "nothing"
            raise McpError(f"the server refused {method!r}: {said}")
        return result

    def ask(self, method: str, params: Mapping[str, Any], ends_at: float) -> Mapping[str, Any]:
        """The answer to one request, ``result`` or ``error`` among its members. Raises ``ServerEnded``,
        ``ServerSilent``."""
        with self._asking:
            self._number += 1
            number = self._number
            with self._answered:
                self._waits_for, self._answer = number, None
            self._write({"jsonrpc": "2.0", "id": number, "method": method, "params": dict(params)}, ends_at)
            with self._answered:
                while self._answer is None and not self.has_ended and (left_s := ends_at - time.monotonic()) > 0:
                    self._answered.wait(min(left_s, _ALIVE_EVERY_S))
                    self.keep_alive()
                answer, self._waits_for = self._answer, None
        if answer is not None:
            return answer
        if self.has_ended:
            raise ServerEnded("the server's process ended before it answered")
        with suppress(McpError):
            cancelled = {"requestId": number, "reason": "it took too long"}
            message = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled}
            self._write(message, time.monotonic() + 1)
        raise ServerSilent("the server took too long")

    def _write(self, message: Mapping[str, Any], ends_at: float) -> None:
        data = canonical_json(message).encode() + b"\n"
        pipe, is_sent = self._program.to_program, False
        with self._writing:
            while data:
                left_s = ends_at - time.monotonic()
                if self.has_ended:
                    raise (ServerEnded if is_sent else ServerGone)("the server's process has ended")
                try:
                    if left_s > 0 and _ready([pipe], select.POLLOUT, min(left_s, 0.5)):
                        data = data[os.write(pipe, data) :]
                        is_sent = True
                        continue
                except BlockingIOError:
                    continue
                except (OSError, ValueError):
                    self._fail()
                    continue
                if left_s <= 0:
                    self._fail()  # half a message stands in its input: whatever comes next would be part of it

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
                ready = _ready(pipes, select.POLLIN, 0.5)
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
                    self._take(one)
                if len(line) > LINE_BYTES_MAX:
                    self._errors = f"it wrote a line of more than {LINE_BYTES_MAX:,} bytes"
                    break
        except (OSError, ValueError):
            pass  # it was ended
        finally:
            self._fail()

    def _take(self, line: bytes) -> None:
        if len(line) > LINE_BYTES_MAX:
            return
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            return  # some print their news there
        if not isinstance(found, dict):
            return
        number, method = found.get("id"), found.get("method")
        if isinstance(method, str):
            if isinstance(number, int | str):
                self._refuse(number, method)
            return
        with self._answered:
            if self._answer is None and type(number) is int and number == self._waits_for:
                self._answer = found
                self._answered.notify_all()

    def _refuse(self, number: int | str, method: str) -> None:
        """What the server asks of us; a ``ping`` is answered."""
        said: dict[str, Any] = {"result": {}}
        if method != "ping":
            said = {"error": {"code": -32601, "message": "this client does not do that"}}
        with suppress(McpError):
            self._write({"jsonrpc": "2.0", "id": number, **said}, time.monotonic() + 1)


def _ready(pipes: Sequence[int], event: int, wait_s: float) -> list[int]:
    """Those that ``event`` holds for, or that are over; ``select`` cannot look at numbers beyond 1,023."""
    looks = select.poll()
    for pipe in pipes:
        looks.register(pipe, event)
    return [pipe for pipe, _ in looks.poll(wait_s * 1_000)]


def _started(server: McpServer, token: str | None, folder: Path, sandbox: Sandbox) -> ConfinedProgram:
    for path in server.reads:
        sandbox = sandbox.showing(path, writable=str(folder))
    for path in server.writes:
        sandbox = sandbox.showing(path, writable=path)
    try:
        folder.mkdir(parents=True, mode=0o700)
        home = str(folder.resolve())
        confined = sandbox.confine(home, SERVER)
        if confined is None:
            raise NotStarted(f"a server is confined or not started, and {'; '.join(sandbox.standing().reasons)}")
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


def offered_by(server: McpServer, token: str | None, folder: Path, sandbox: Sandbox) -> Sequence[Mapping[str, Any]]:
    """The usable tools of a server that is started for this and ended. Raises ``NotStarted``, ``McpError``."""
    process = StdioServer(server, token, folder, sandbox)
    try:
        return process.begin()
    except McpError as error:
        raise McpError(f"{error}{heard(process)}") from None
    finally:
        process.end()


def heard(process: StdioServer) -> str:
    """What a process that failed said, for the end of a sentence."""
    return f"; it said: {process.said[-300:]}" if process.said else ""
