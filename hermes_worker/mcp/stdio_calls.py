"""Call a server that is a process: its session's process is found or wanted, and asked once.

A process that was lost is reported as lost: the next call begins with a sentence, because what the server remembered is
gone. Until the request is sent nothing is lost but time, so a host that cannot be reached is waited for.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from hermes_worker.agent.tools.base import Cancellation
from hermes_worker.core.errors import UnavailableError
from hermes_worker.mcp.http import NotReached
from hermes_worker.mcp.protocol import InputWanted, McpAnswer, McpError, TaskView, UnknownOutcome
from hermes_worker.mcp.requests import McpExchange, call_tool
from hermes_worker.mcp.servers import McpServer
from hermes_worker.observe import log
from hermes_worker.store.resources import (
    LAPSE_PATIENCE_S,
    NOT_STARTED,
    ResourceChanges,
    ResourceKind,
    Resources,
    ResourceState,
    ResourceUse,
    ResourceView,
    SessionUnknown,
)

START_S: Final = 45.0
"""How many seconds a call waits for a host: a lost lease lapses in that time, and a server starts."""
_LOOK_S: Final = 0.1
_MARGIN_S: Final = 2.0
"""How many seconds longer a call waits for a host, which gives its own answer to a call that takes too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallRequest:
    """A call of a tool, as it is sent to its server."""

    tool: str
    arguments: Mapping[str, Any] = field(repr=False)
    key: str
    """The key of the call, the same at each attempt."""
    again: Mapping[str, Any] | None = field(default=None, repr=False)
    """Parameters beside the arguments when the server's questions were answered."""


class StdioServers:
    """The processes of sessions, for the calls of this process. Thread-safe."""

    def __init__(self, rows: Resources) -> None:
        self._rows = rows

    def call_tool(
        self,
        session_id: str,
        name: str,
        server: McpServer,
        asked: ToolCallRequest,
        cancelled: Cancellation,
    ) -> McpAnswer | InputWanted:
        """Run one tool, or go on with a call that asked a person. Raises ``McpError``, ``UnavailableError``."""
        deadline = time.monotonic() + START_S
        while True:
            if asked.again is not None:
                self._require_live(session_id, name)
            use = self._take_process(session_id, name, deadline, cancelled)
            reached = server.model_copy(update={"url": use.resource.endpoint})
            ends_at = time.monotonic() + server.timeout_s + _MARGIN_S
            asking = McpExchange(server=reached, token=use.token, ends_at=ends_at)
            try:
                answer = call_tool(asking, asked.tool, asked.arguments, asked.key, cancelled, asked.again)
            except NotReached as error:
                # Its host is gone or frozen, and its lease has not lapsed yet.
                _wait(cancelled, deadline, f"the host of the server cannot be reached ({error})", 5 * _LOOK_S)
                continue
            if isinstance(answer, TaskView):  # its host lets no call through
                raise UnknownOutcome("the server answered with a task")
            if isinstance(answer, McpAnswer) and (lost := _format_lost(use.resource)) is not None:
                answer = replace(answer, text=f"{lost}\n{answer.text}")
            self._note_use(use, name)
            return answer

    def _require_live(self, session_id: str, name: str) -> None:
        """Require that the process is still there. Raises ``UnknownOutcome``: it is unknown what the call did before it
        asked.
        """
        row = self._rows.find(session_id, ResourceKind.MCP_STDIO, name)
        if row is None or row.state is not ResourceState.LIVE:
            raise UnknownOutcome("the server's process ended while a person was asked")

    def _take_process(self, session_id: str, name: str, deadline: float, cancelled: Cancellation) -> ResourceUse:
        row: ResourceView | None = self._request_process(session_id, name, spares_lapsed=True)
        wanted_at = time.monotonic()
        while True:
            if row is None:
                raise McpError("its process was given up")
            if row.state is ResourceState.LIVE and (use := self._rows.acquire_use(row.resource_id)) is not None:
                return use
            if row.state is ResourceState.ENDED:
                if (row.reason or "").startswith(NOT_STARTED):
                    raise McpError(f"the server: {row.reason}")
                row = self._request_process(session_id, name)
            _wait(cancelled, deadline, _format_no_host(row), _LOOK_S)
            if time.monotonic() - wanted_at < LAPSE_PATIENCE_S:
                row = self._rows.find(session_id, ResourceKind.MCP_STDIO, name)
            else:
                row, wanted_at = self._request_process(session_id, name), time.monotonic()

    def _request_process(self, session_id: str, name: str, *, spares_lapsed: bool = False) -> ResourceView:
        try:
            return self._rows.request_resource(session_id, ResourceKind.MCP_STDIO, name, spares_lapsed=spares_lapsed)
        except SessionUnknown as error:
            raise McpError(str(error)) from None

    def _note_use(self, use: ResourceUse, name: str) -> None:
        try:
            self._rows.update_state(use, ResourceChanges(url=f"stdio:{name}"))
        except UnavailableError:
            log.info("mcp.use_not_noted", resource_id=use.resource.resource_id)


def _wait(cancelled: Cancellation, deadline: float, problem: str, seconds: float) -> None:
    """Wait for ``seconds``. Raises ``McpError`` when the call is cancelled or has no more time."""
    if time.monotonic() >= deadline:
        raise McpError(problem)
    if cancelled.wait(seconds):
        raise McpError("it was cancelled")


def _format_no_host(row: ResourceView) -> str:
    if row.state is ResourceState.WANTED:
        return (
            "no host started the server in time. Hosts are processes of 'hermes-worker start mcp-host': is one "
            "running, and has it a place left?"
        )
    return "the server did not become ready in time"


def _format_lost(row: ResourceView) -> str | None:
    """The sentence for the model about the loss of the process before this one; ``None`` when none was lost."""
    if row.reason is None or row.url is None:
        return None
    return f"[The server was started anew ({row.reason}): what it remembered of this session is gone.]"
