"""Asks an MCP server, in as many requests as its revision takes, and keeps nothing between two calls.

A worker may vanish and another one makes the next call, so there is no connection to lose. The session of a server that
has sessions is a document of ours: whoever makes the next call goes on with it, and when the server forgot it, begins
another one. Addresses, sizes and times are those of ``net.wire``.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from hermes_worker.mcp.oauth import challenge_of
from hermes_worker.mcp.param_headers import param_headers
from hermes_worker.mcp.protocol import (
    KEY_META,
    TASKS,
    InputWanted,
    McpAnswer,
    McpError,
    McpRefusal,
    ScopesLacking,
    TaskView,
    UnknownOutcome,
    answer_of,
    definitions_of,
    initialize_params,
    input_wanted,
    message,
    refusal_of,
    refused_in,
    reply_to,
    requests_in,
    result_of,
    stateless,
    task_of,
    with_refusal,
)
from hermes_worker.mcp.servers import STATELESS, TOOLS_MAX, WITH_SESSIONS, McpServer
from hermes_worker.net.http import HttpRequest, HttpResponse, NoAnswer
from hermes_worker.net.urls import UnsafeUrl, UrlPolicy
from hermes_worker.net.wire import send

BODY_BYTES_MAX = 4_000_000
_PAGES_MAX = 50
_TAKES_QUESTIONS: Mapping[str, Any] = {"extensions": {TASKS: {}}, "elicitation": {"form": {}}}
_T = TypeVar("_T")
_LOOK_EVERY_S = 0.1
_ASKED_MAX = 20
"""What a server may ask of us during one answer; it gets no answer to more."""
OF_OPERATORS = UrlPolicy(allows_private=True)
"""For ``mcp.json``: the operator chose the address, not a model; metadata and link-local addresses stay refused."""


class NotReached(McpError):
    """The host of a server that is a process is not there, or not its host any more: nothing was sent to the server."""


class _CallStopped(Protocol):
    def is_set(self) -> bool: ...


class Bearer(Protocol):
    """``mcp.logins.LoginBearer``."""

    def token(self) -> str: ...

    def newer_token(self) -> str: ...


@dataclass(slots=True, kw_only=True)
class McpSession:
    """The session that a server of an older revision gave to one of our sessions."""

    url: str
    session_id: str | None = field(default=None, repr=False)
    version: str = WITH_SESSIONS
    is_new: bool = False
    """The document has to be stored."""

    @classmethod
    def kept(cls, document: object, server: McpServer) -> McpSession:
        """From its document; an empty one where there is none, or one of another address."""
        found = cls(url=server.url)
        match document:
            case {"url": server.url, "id": str(session_id), "version": str(version)}:
                found.session_id, found.version = session_id, version
        return found

    @property
    def document(self) -> Mapping[str, str] | None:
        """``None`` for a server that gave no id."""
        if self.session_id is None:
            return None
        return {"url": self.url, "id": self.session_id, "version": self.version}

    @property
    def headers(self) -> dict[str, str]:
        told = {"MCP-Protocol-Version": self.version}
        return told if self.session_id is None else {**told, "Mcp-Session-Id": self.session_id}


@dataclass(frozen=True, slots=True, kw_only=True)
class McpExchange:
    """One call or listing, within a time."""

    server: McpServer
    token: str | None
    ends_at: float
    """By ``time.monotonic``."""
    session: McpSession | None = None
    """``None`` for requests that need none of ours: the server's ends with them."""
    login: Bearer | None = None
    """Where its tokens come from, instead of ``token``."""
    policy: UrlPolicy = OF_OPERATORS
    """Which addresses may be asked."""

    def request(
        self,
        method: str,
        params: Mapping[str, Any],
        key: str | None = None,
        capabilities: Mapping[str, Any] | None = None,
    ) -> Mapping[str, Any]:
        """The result of one request, with whatever its revision needs before it. Raises ``McpError``."""
        if self.server.is_process:  # its host has made its acquaintance
            told = params if key is None else {**params, "_meta": {KEY_META: key}}
            return self._result({}, message(method, told))
        if self.server.protocol == STATELESS:
            headers, body = stateless(method, params, key=key, capabilities=capabilities)
            if method == "tools/call" and (paths := self.server.headers.get(params["name"])):
                headers |= _param_headers(paths, params["arguments"])
            return self._result(headers, body)
        if self.session is not None:
            return self._in_session(self.session, message(method, params))
        opened = McpSession(url=self.server.url)
        self._open(opened)
        try:
            return self._refusing(opened, message(method, params))
        finally:
            self._close(opened)

    def _in_session(self, session: McpSession, body: bytes) -> Mapping[str, Any]:
        is_kept = session.session_id is not None
        if not is_kept:
            self._open(session)
        return self._refusing(session, body, is_kept=is_kept)

    def _refusing(self, session: McpSession, body: bytes, *, is_kept: bool = False) -> Mapping[str, Any]:
        """The result of a request, and in it what the server asked of us meanwhile: all of that is refused. A session
        that was kept may be forgotten by now."""
        asked = _AskedOfUs(lambda reply: self._exchange(session.headers, reply))
        try:
            response = self._exchange(session.headers, body, heard=asked.hear)
            if response.status == 404 and is_kept:
                self._open(session)  # it has forgotten the session, and did nothing
                response = self._exchange(session.headers, body, heard=asked.hear)
            return with_refusal(self._read(response), refused_in(asked.refused))
        except McpError as error:
            if (refused := refused_in(asked.refused)) and refused not in str(error):
                error.args = (f"{error}; {refused}",)
            raise

    def _open(self, session: McpSession) -> None:
        response = self._exchange({}, message("initialize", initialize_params(WITH_SESSIONS)))
        result = self._read(response)
        had = session.session_id
        session.version = _header_text(result.get("protocolVersion")) or WITH_SESSIONS
        session.session_id = _header_text(response.headers.get("mcp-session-id"))
        session.is_new = session.session_id is not None or had is not None
        self._exchange(session.headers, message("notifications/initialized", {}, is_notification=True))

    def _close(self, session: McpSession) -> None:
        if session.session_id is not None:
            try:
                self._exchange(session.headers, b"", method="DELETE")
            except McpError:
                return  # the server forgets it by itself

    def _result(self, headers: Mapping[str, str], body: bytes) -> Mapping[str, Any]:
        return self._read(self._exchange(headers, body))

    def _read(self, response: HttpResponse) -> Mapping[str, Any]:
        if response.status in (401, 403) and not self.server.is_process:
            challenge = challenge_of(response.headers.get("www-authenticate", ""))
            if challenge.lacks_scopes:
                raise ScopesLacking(challenge.scope)
        if len(response.body) > BODY_BYTES_MAX:
            raise UnknownOutcome(f"the server's answer is larger than {BODY_BYTES_MAX:,} bytes")
        try:
            return result_of(response.headers.get("content-type", ""), response.body)
        except (McpRefusal, UnknownOutcome):
            raise
        except McpError as error:
            if response.status != 200:
                raise _refused(response.status, is_host=self.server.is_process) from None
            raise UnknownOutcome(str(error)) from None

    def _exchange(
        self,
        headers: Mapping[str, str],
        body: bytes,
        *,
        method: str = "POST",
        heard: Callable[[bytes], None] | None = None,
    ) -> HttpResponse:
        """A server that refuses an access token did nothing, so it is asked again with a newer one, once. A newer one
        may no more than the one before (RFC 6749 §6), so it is no help where scopes are lacking."""
        if self.login is None:
            return self._sent(headers, body, method, self.token, heard)
        response = self._sent(headers, body, method, self.login.token(), heard)
        if response.status != 401 or challenge_of(response.headers.get("www-authenticate", "")).lacks_scopes:
            return response
        return self._sent(headers, body, method, self.login.newer_token(), heard)

    def _sent(
        self,
        headers: Mapping[str, str],
        body: bytes,
        method: str,
        token: str | None,
        heard: Callable[[bytes], None] | None,
    ) -> HttpResponse:
        left_s = self.ends_at - time.monotonic()
        if left_s <= 0:
            raise UnknownOutcome("the server took too long")
        request = HttpRequest(method=method, url=self.server.url, headers=_headers(headers, token), body=body)
        try:
            return send(request, self.policy, total_s=left_s, body_bytes_max=BODY_BYTES_MAX + 1, heard=heard)
        except NoAnswer as error:
            if self.server.is_process and not error.was_sent:
                raise NotReached(error.reason) from None
            raise (UnknownOutcome if error.was_sent else McpError)(error.reason) from None
        except (UnsafeUrl, ValueError) as error:
            raise McpError(f"the server's address cannot be used: {error}") from None


class _AskedOfUs:
    """Hears what a server of a revision with sessions asks of us in the middle of its answer, and refuses it: such a
    server waits for us, and would wait until the call's time is over. A ``ping`` is answered."""

    def __init__(self, reply: Callable[[bytes], object]) -> None:
        self._reply = reply
        self._rest = b""
        self._heard = 0
        self.refused: set[str] = set()

    def hear(self, piece: bytes) -> None:
        *events, self._rest = re.split(rb"\r\n\r\n|\n\n|\r\r", self._rest + piece)
        for number, method in requests_in(b"\n\n".join(events)):
            self._heard += 1
            if self._heard > _ASKED_MAX:
                return
            if method != "ping":
                self.refused.add(method)
            with suppress(McpError):
                self._reply(reply_to(number, method))


def _param_headers(paths: Mapping[str, Sequence[str]], arguments: Mapping[str, Any]) -> Mapping[str, str]:
    try:
        return param_headers(paths, arguments)
    except ValueError as error:
        raise McpRefusal(str(error)) from None


def _headers(more: Mapping[str, str], token: str | None) -> Mapping[str, str]:
    ours = {
        "Accept": "application/json, text/event-stream",
        "Accept-Encoding": "identity",
        "Content-Type": "application/json",
        "User-Agent": "hermes-worker",
    }
    return {**ours, **({"Authorization": f"Bearer {token}"} if token else {}), **more}


def _header_text(said: object) -> str | None:
    """What can be sent back in a header."""
    return said if isinstance(said, str) and re.fullmatch(r"[!-~]{1,1000}", said) else None


def _refused(status: int, *, is_host: bool) -> McpError:
    match status:
        case 403 | 410 if is_host:
            return NotReached("it has another one's process, or none")
        case 401 | 403:
            return McpRefusal(f"the server refused our token (HTTP {status}); the operator has to set another one")
        case 400 | 404 | 405 | 406 | 415 | 421 | 429:
            return McpRefusal(f"the server refused the request (HTTP {status})")
        case _:
            return UnknownOutcome(f"the server answered HTTP {status}")


def list_tools(
    server: McpServer, token: str | None, login: Bearer | None = None, policy: UrlPolicy = OF_OPERATORS
) -> Sequence[Mapping[str, Any]]:
    """Every usable tool that the server offers, by name. Raises ``McpError``."""
    ends_at = time.monotonic() + server.timeout_s
    asking = McpExchange(server=server, token=token, ends_at=ends_at, login=login, policy=policy)
    found: dict[str, Mapping[str, Any]] = {}
    params: dict[str, Any] = {}
    for _ in range(_PAGES_MAX):
        page, cursor = definitions_of(asking.request("tools/list", params))
        for one in page:
            found.setdefault(str(one["name"]), one)
        if len(found) > TOOLS_MAX:
            raise McpError(f"the server offers more than {TOOLS_MAX} tools")
        if cursor is None:
            return [found[name] for name in sorted(found)]
        params = {"cursor": cursor}
    raise McpError(f"the server's list of tools has more than {_PAGES_MAX} pages")


def spoken(
    server: McpServer, token: str | None, login: Bearer | None = None, policy: UrlPolicy = OF_OPERATORS
) -> tuple[McpServer, Sequence[Mapping[str, Any]]]:
    """The server with the revision that it speaks, and its tools: lists them, and calls none. Raises ``McpError``."""
    try:
        modern = server.model_copy(update={"protocol": STATELESS})
        return modern, list_tools(modern, token, login, policy)
    except McpError as first:
        older = server.model_copy(update={"protocol": WITH_SESSIONS})
        try:
            return older, list_tools(older, token, login, policy)
        except McpError:
            raise first from None


def call_tool(
    asking: McpExchange,
    tool: str,
    arguments: Mapping[str, Any],
    key: str,
    cancelled: _CallStopped,
    again: Mapping[str, Any] | None = None,
) -> McpAnswer | TaskView | InputWanted:
    """Run one tool, or have a task made of it by a server that has such, or be asked something first; ``again`` is what
    such a server is sent then. On a thread of its own, because nothing else can be told to stop waiting. Raises
    ``McpError``."""
    params = {"name": tool, "arguments": dict(arguments), **(again or {})}
    takes_questions = asking.server.protocol == STATELESS or asking.server.is_process

    def work() -> McpAnswer | TaskView | InputWanted:
        result = asking.request("tools/call", params, key, _TAKES_QUESTIONS)
        wanted = input_wanted(result)
        if wanted is not None and not takes_questions:
            raise UnknownOutcome(refusal_of(result))
        return wanted or task_of(result) or answer_of(result)

    return _interruptibly(work, cancelled)


def look_at_task(asking: McpExchange, task_id: str, cancelled: _CallStopped) -> TaskView:
    """What the server says of a task now. Raises ``McpError``; ``McpRefusal`` for one that it does not know."""

    def work() -> TaskView:
        found = task_of(asking.request("tasks/get", {"taskId": task_id}, None, _TAKES_QUESTIONS), task_id)
        assert found is not None
        return found

    return _interruptibly(work, cancelled)


def tell_task(asking: McpExchange, method: str, params: Mapping[str, Any]) -> None:
    """``tasks/update`` or ``tasks/cancel``; both may be repeated. Raises ``McpError``."""
    asking.request(method, params, None, _TAKES_QUESTIONS)


def _interruptibly(work: Callable[[], _T], cancelled: _CallStopped) -> _T:
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
