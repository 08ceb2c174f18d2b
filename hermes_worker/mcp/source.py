"""The approved tools of one MCP server, as a ``ToolSource``. Only workers for tools import this module."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hermes_worker.agent.tools.base import ToolContext, ToolResult
from hermes_worker.agent.tools.results import build_error_result
from hermes_worker.agent.tools.sources import ToolGone
from hermes_worker.core.remote_tasks import RemoteTask
from hermes_worker.core.replay import Replay
from hermes_worker.extension import ToolSpec
from hermes_worker.mcp.elicitation import begin_next_round, begin_questions, build_repeat_params
from hermes_worker.mcp.http import OF_OPERATORS
from hermes_worker.mcp.logins import LoginBearer, LoginBearers
from hermes_worker.mcp.protocol import (
    InputWanted,
    McpAnswer,
    McpError,
    OfferedTools,
    ScopesLacking,
    TaskView,
    UnknownOutcome,
)
from hermes_worker.mcp.requests import McpExchange, call_tool, list_tools
from hermes_worker.mcp.results import render_result
from hermes_worker.mcp.servers import McpServer, find_unapproved, name_tools
from hermes_worker.mcp.sessions import McpSession, StreamPlace
from hermes_worker.mcp.stdio_calls import START_S, StdioServers, ToolCallRequest
from hermes_worker.mcp.tasks import begin_task, cancel_task, poll_task
from hermes_worker.net.urls import UrlPolicy
from hermes_worker.observe import log
from hermes_worker.store.resources import Resources

_MARGIN_S = 5.0
"""A call's request ends this long before its worker would cancel it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlace:
    """The names and addresses of a server in a row, for calls beyond its own tools."""

    called: str
    """Its name in documents of sessions, and among the processes of hosts."""
    task_source: str
    """The source name that is kept with a task that it makes."""
    policy: UrlPolicy


class McpSource:
    """The tools of one server. Thread-safe; holds no connection."""

    def __init__(
        self,
        name: str,
        server: McpServer,
        token: str | None,
        resources: Resources | None = None,
        logins: LoginBearers | None = None,
        row: RowPlace | None = None,
    ) -> None:
        """``resources`` are for a server that is a process, ``logins`` for one with a sign-in, ``row`` for one that
        stands in a row of a tenant.
        """
        self._logins = logins
        self._name = name
        self._place = row or RowPlace(called=name, task_source=name, policy=OF_OPERATORS)
        self._processes = StdioServers(resources) if resources is not None else None
        self._server = server
        self._token = token
        self._session_key = f"mcp-session:{self._place.called}"
        self._names = name_tools(name, server.tools)
        self._originals = {name: tool for tool, name in self._names.items()}

    def list_tools(self) -> Sequence[ToolSpec]:
        """The tools that it offers and the operator approved. Raises ``McpError``."""
        if self._server.is_process:
            return [self._build_spec(one) for one in self._server.definitions]
        offered = list_tools(self._server, self._token, self._make_bearer(), self._place.policy)
        return self.filter_approved(offered)

    def filter_approved(self, offered: OfferedTools) -> Sequence[ToolSpec]:
        """The offered tools whose definition is approved as it is now. Tools that agents cannot have are named in the
        log.
        """
        for reason in offered.left_out[:20]:
            log.warning("tool_source.left_out", tool_source=self._place.called, reason=str(reason))
        waiting = set(find_unapproved(self._server, offered))
        if waiting:
            log.warning("mcp.unapproved", mcp_server=self._name, tools=sorted(waiting)[:20])
        return [self._build_spec(one) for one in offered if one["name"] not in waiting]

    def call(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Run one tool, in one request or as many as its revision takes. A failure costs this call only."""
        if name not in self._originals:
            raise ToolGone("it is not approved any more")
        if context.task is not None and context.task.task_id:
            return poll_task(self._make_exchange(), context.task, context)
        if context.task is not None:
            return self._continue_rounds(name, arguments, begin_next_round(context.task), context)
        session = McpSession.from_document(context.session.get(self._session_key), self._server)
        asked = ToolCallRequest(tool=self._originals[name], arguments=arguments, key=context.idempotency_key)
        result = self._render_outcome(name, context, lambda: self._send_call(asked, context, session))
        if result.task is not None:
            return self._continue_rounds(name, arguments, result, context)
        return replace(result, session_updates=self._build_session_updates(session)) if session.is_new else result

    def _continue_rounds(
        self, name: str, arguments: Mapping[str, Any], result: ToolResult, context: ToolContext
    ) -> ToolResult:
        """Send the call once more for as long as its server wants that and no person has to be asked."""
        while (task := result.task) is not None and not task.task_id and result.question is None:
            # Another key than that of the round before: a server that knows the key would answer what it answered then.
            key = f"{context.idempotency_key}.{task.looks}"
            again = ToolCallRequest(
                tool=self._originals[name], arguments=arguments, key=key, again=build_repeat_params(task)
            )
            result = self._render_outcome(name, context, partial(self._send_call, again, context), task)
            if (
                self._server.keeps_sessions
                and result.task is None
                and (place := StreamPlace.from_text(task.server_state))
            ):
                # The session may have begun with this call, whose document is kept only now.
                session = McpSession.from_document(place.session, self._server)
                result = replace(result, session_updates=self._build_session_updates(session))
        return result

    def _build_session_updates(self, session: McpSession) -> Mapping[str, Any]:
        return {self._session_key: session.document}

    def _send_call(
        self, asked: ToolCallRequest, context: ToolContext, session: McpSession | None = None
    ) -> McpAnswer | TaskView | InputWanted:
        """Send the call to its server. Raises ``McpError``, ``UnavailableError``."""
        if not self._server.is_process:
            asking = self._make_exchange(session)
            return call_tool(asking, asked.tool, asked.arguments, asked.key, context.cancelled, asked.again)
        if self._processes is None:
            raise McpError("this worker cannot reach servers that are processes")
        return self._processes.call_tool(context.session_id, self._place.called, self._server, asked, context.cancelled)

    def _build_spec(self, tool: Mapping[str, Any]) -> ToolSpec:
        return ToolSpec(
            name=self._names[tool["name"]],
            description=tool.get("description") or "",
            parameters=tool["inputSchema"],
            toolset=self._name,
            replay=_replay_class(tool, is_trusted=self._server.trusted),
            is_untrusted=True,
            timeout_s=self._server.timeout_s + _MARGIN_S + (START_S if self._server.is_process else 0.0),
            session_keys=(self._session_key,) if self._server.keeps_sessions else (),
        )

    def cancel_task(self, task: RemoteTask) -> None:
        """Tell the server that the task's result is not wanted any more. Raises ``McpError``."""
        cancel_task(self._make_exchange(), task)

    def _make_exchange(self, session: McpSession | None = None) -> McpExchange:
        ends_at = time.monotonic() + self._server.timeout_s
        return McpExchange(
            server=self._server,
            token=self._token,
            ends_at=ends_at,
            session=session,
            login=self._make_bearer(),
            policy=self._place.policy,
        )

    def _make_bearer(self) -> LoginBearer | None:
        return None if self._logins is None else self._logins.make_bearer()

    def _render_outcome(
        self,
        name: str,
        context: ToolContext,
        work: Callable[[], McpAnswer | TaskView | InputWanted],
        before: RemoteTask | None = None,
    ) -> ToolResult:
        """Do ``work`` and build the result for the model; ``before`` is the round before. Raises
        ``UnavailableError``.
        """
        try:
            answer = work()
        except UnknownOutcome as error:
            said = build_error_result(f"{error}. It may have acted all the same: look before you repeat the call")
            return replace(said, is_unknown=True)
        except ScopesLacking as error:
            return build_error_result(f"{error}; nothing was done. {self._format_remedy(error)}")
        except McpError as error:
            return build_error_result(f"{error}; nothing was done")
        if isinstance(answer, TaskView):
            return begin_task(self._place.task_source, name, answer)
        if isinstance(answer, InputWanted):
            return begin_questions(self._place.task_source, name, answer, before)
        return render_result(answer, context)

    def _format_remedy(self, error: ScopesLacking) -> str:
        """The sentence that says what a person has to do about lacking scopes."""
        if self._logins is None:
            return "The operator has to set a token that may more"
        words = [f"--scope {shlex.quote(one)}" for one in (error.scopes or "").split()]
        return f"A person has to sign in again: {' '.join(['hermes-worker mcp login', self._name, *words])}"


def _replay_class(tool: Mapping[str, Any], *, is_trusted: bool) -> Replay:
    """The replay class of a tool. A stranger's word about its own tools is no reason to repeat one."""
    said = tool.get("annotations")
    if not is_trusted or not isinstance(said, dict):
        return Replay.ONCE
    if said.get("readOnlyHint") is True:
        return Replay.PURE
    return Replay.KEYED if said.get("idempotentHint") is True else Replay.ONCE
