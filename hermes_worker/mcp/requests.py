"""Asks an MCP server, in as many requests as its revision takes, and keeps nothing between two calls.

A worker may vanish and another one makes the next call, so there is no connection to lose: what a revision needs for
the next call is a document of ours (``mcp.sessions``). Addresses, sizes and times are those of ``net.wire``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar, assert_never

from hermes_worker.agent.tools.base import Cancellation
from hermes_worker.mcp import event_streams
from hermes_worker.mcp.http import ANY_ANSWER, OF_OPERATORS, ServerHttp, TokenBearer
from hermes_worker.mcp.param_headers import build_param_headers
from hermes_worker.mcp.protocol import (
    KEY_META,
    TASKS,
    InputWanted,
    McpAnswer,
    McpError,
    McpRefusal,
    OfferedTools,
    TaskView,
    UnknownOutcome,
    build_request,
    build_stateless_request,
    format_refusal,
    list_offered_tools,
    parse_answer,
    parse_input_wanted,
    parse_task,
    parse_task_view,
)
from hermes_worker.mcp.response_reader import ANSWER_BYTES_MAX, ResponseReader
from hermes_worker.mcp.servers import STATELESS, WITH_EVENT_STREAM, WITH_SESSIONS, McpServer
from hermes_worker.mcp.sessions import McpSession, SessionRequests, StreamPlace
from hermes_worker.net.events import EventReader
from hermes_worker.net.urls import UrlPolicy

_TAKES_QUESTIONS: Mapping[str, Any] = {"extensions": {TASKS: {}}, "elicitation": {"form": {}}}
_T = TypeVar("_T")
_LOOK_EVERY_S = 0.1
_NO_PLACE_FOR_IT: Final = frozenset({400, 404, 405})
"""Statuses with which a server of revision 2024-11-05 answers a request of a later one (revision 2025-03-26, "Backwards
Compatibility").
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpExchange(ServerHttp):
    """One call or listing, in the form of HTTP that its server's revision wants."""

    session: McpSession | None = None
    """``None`` for requests that need none of ours: the server's ends with them."""

    def request(
        self,
        method: str,
        params: Mapping[str, Any],
        key: str | None = None,
        capabilities: Mapping[str, Any] | None = None,
    ) -> Mapping[str, Any] | InputWanted:
        """The result of one request, with any that its revision needs before it; or the question for a person in the
        middle of it. Raises ``McpError``.
        """
        if self.server.is_process:  # its host has made its acquaintance
            told = params if key is None else {**params, "_meta": {KEY_META: key}}
            return self._request_stateless({}, build_request(method, told))
        match self.server.protocol:
            case "2026-07-28":
                headers, body = build_stateless_request(method, params, key=key, capabilities=capabilities)
                if method == "tools/call" and (paths := self.server.headers.get(params["name"])):
                    headers |= _build_param_headers(paths, params["arguments"])
                return self._request_stateless(headers, body)
            case "2024-11-05":
                return event_streams.request_over_stream(self, method, params)
            case "2025-11-25":
                return self._request_in_session(method, params)
            case never:
                assert_never(never)

    def _request_in_session(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any] | InputWanted:
        requests = SessionRequests(self, self.session or McpSession(url=self.server.url))
        if self.session is not None:
            return requests.request(method, params)
        try:
            return requests.request(method, params)
        finally:
            requests.end_session()

    def continue_call(self, again: Mapping[str, Any]) -> Mapping[str, Any] | InputWanted:
        """Continue a call that was left open when a person had to be asked; returns what ``request`` does. Raises
        ``McpError``.
        """
        place = StreamPlace.from_text(again.get("requestState"))
        session = None if place is None else McpSession.from_document(place.session, self.server)
        if place is None or session is None or session.session_id is None:
            raise UnknownOutcome("the call that asked a person is not open any more")
        return SessionRequests(self, session).continue_call(place, again.get("inputResponses"))

    def cancel_call(self, state: str | None) -> None:
        """Cancel a call that was left open, if there is one. Raises ``McpError``; may be repeated."""
        place = StreamPlace.from_text(state)
        session = None if place is None else McpSession.from_document(place.session, self.server)
        if place is not None and session is not None and session.session_id is not None:
            SessionRequests(self, session).cancel_call(place)

    def _request_stateless(self, headers: Mapping[str, str], body: bytes) -> Mapping[str, Any]:
        """The result of a request that stands by itself."""
        hearing = ResponseReader()
        with self.open_response({"Accept": ANY_ANSWER, **headers}, body) as response, hearing.explain_errors():
            self.read_answer(response, hearing, EventReader(chars_max=ANSWER_BYTES_MAX))
            return self.get_result(hearing, response.status)


def _build_param_headers(paths: Mapping[str, Sequence[str]], arguments: Mapping[str, Any]) -> Mapping[str, str]:
    try:
        return build_param_headers(paths, arguments)
    except ValueError as error:
        raise McpRefusal(str(error)) from None


def list_tools(
    server: McpServer, token: str | None, login: TokenBearer | None = None, policy: UrlPolicy = OF_OPERATORS
) -> OfferedTools:
    """The tools that the server offers. Raises ``McpError``."""
    ends_at = time.monotonic() + server.timeout_s
    asking = McpExchange(server=server, token=token, ends_at=ends_at, login=login, policy=policy)
    return list_offered_tools(lambda params: _require_result(asking.request("tools/list", params)))


def negotiate_protocol(
    server: McpServer, token: str | None, login: TokenBearer | None = None, policy: UrlPolicy = OF_OPERATORS
) -> tuple[McpServer, OfferedTools]:
    """Find the revision that a server speaks: return the server with it, and its tools. Lists tools, and calls none.
    Raises ``McpError``.
    """

    def list_by(protocol: str) -> tuple[McpServer, OfferedTools]:
        speaking = server.model_copy(update={"protocol": protocol})
        return speaking, list_tools(speaking, token, login, policy)

    try:
        return list_by(STATELESS)
    except McpError as error:
        first = error
    try:
        return list_by(WITH_SESSIONS)
    except McpError as error:
        if error.status not in _NO_PLACE_FOR_IT:
            raise first from None
    try:
        return list_by(WITH_EVENT_STREAM)
    except event_streams.NoEventStream:
        raise first from None


def call_tool(
    asking: McpExchange,
    tool: str,
    arguments: Mapping[str, Any],
    key: str,
    cancelled: Cancellation,
    again: Mapping[str, Any] | None = None,
) -> McpAnswer | TaskView | InputWanted:
    """Run one tool; return its answer, the task that a server made of it, or the questions of a server before it
    answers. ``again`` is sent to a server whose questions were answered. Runs on a thread of its own, because a blocked
    request cannot be told to stop waiting. Raises ``McpError``.
    """
    params = {"name": tool, "arguments": dict(arguments), **(again or {})}
    answers_questions = asking.server.protocol == STATELESS or asking.server.is_process

    def work() -> McpAnswer | TaskView | InputWanted:
        if again is not None and asking.server.keeps_sessions:
            result = asking.continue_call(again)
        else:
            result = asking.request("tools/call", params, key, _TAKES_QUESTIONS)
        if isinstance(result, InputWanted):
            return result
        wanted = parse_input_wanted(result)
        if wanted is not None and not answers_questions:
            raise UnknownOutcome(format_refusal(result))
        return wanted or parse_task(result) or parse_answer(result)

    return _run_interruptibly(work, cancelled)


def look_at_task(asking: McpExchange, task_id: str, cancelled: Cancellation) -> TaskView:
    """The state of a task now. Raises ``McpError``; ``McpRefusal`` for a task that the server does not know."""

    def work() -> TaskView:
        result = _require_result(asking.request("tasks/get", {"taskId": task_id}, None, _TAKES_QUESTIONS))
        return parse_task_view(result, task_id)

    return _run_interruptibly(work, cancelled)


def send_task_message(asking: McpExchange, method: str, params: Mapping[str, Any]) -> None:
    """Send ``tasks/update`` or ``tasks/cancel``; both may be repeated. Raises ``McpError``."""
    asking.request(method, params, None, _TAKES_QUESTIONS)


def _require_result(result: Mapping[str, Any] | InputWanted) -> Mapping[str, Any]:
    """The result of a request during which no person can be asked. Raises ``McpError`` for a question."""
    if isinstance(result, InputWanted):
        raise McpError("the server asked a person before it answered")
    return result


def _run_interruptibly(work: Callable[[], _T], cancelled: Cancellation) -> _T:
    outcome: list[_T | McpError] = []

    def run() -> None:
        try:
            outcome.append(work())
        except McpError as error:
            outcome.append(error)

    thread = threading.Thread(target=run, name="mcp", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_LOOK_EVERY_S)
        if thread.is_alive() and cancelled.is_set():
            raise UnknownOutcome("it was cancelled")
    if not outcome:
        raise UnknownOutcome("the request failed")
    if isinstance(outcome[0], McpError):
        raise outcome[0]
    return outcome[0]
