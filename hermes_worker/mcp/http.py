"""Requests to one MCP server over HTTP: with its token, within a time, to an address that was judged (``net.wire``)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

from hermes_worker.mcp.oauth import parse_challenge
from hermes_worker.mcp.protocol import McpError, McpRefusal, ScopesLacking, UnknownOutcome
from hermes_worker.mcp.response_reader import ResponseReader, read_events
from hermes_worker.mcp.servers import McpServer
from hermes_worker.net.events import EventReader
from hermes_worker.net.http import HttpRequest, NoAnswer
from hermes_worker.net.urls import UnsafeUrl, UrlPolicy
from hermes_worker.net.wire import OpenResponse, open_response

ANY_ANSWER: Final = "application/json, text/event-stream"
EVENTS: Final = "text/event-stream"
OF_OPERATORS = UrlPolicy(allows_private=True)
"""The policy for addresses in ``mcp.json``: the operator chose them, not a model; metadata and link-local addresses
stay refused.
"""


class NotReached(McpError):
    """There is no connection, or the host of a server that is a process is not its host any more: nothing was sent to
    the server.
    """


class AnswerLost(UnknownOutcome):
    """A connection ended before the answer was there."""


class TokenBearer(Protocol):
    """Supplies access tokens. Implemented by ``mcp.logins.LoginBearer``."""

    def get_token(self) -> str: ...

    def get_newer_token(self) -> str: ...


@dataclass(frozen=True, slots=True)
class ServerResponse:
    """The answer of a server while it comes."""

    _response: OpenResponse

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    @property
    def challenge(self) -> str:
        return self._response.headers.get("www-authenticate", "")

    @property
    def media_type(self) -> str:
        return self._response.headers.get("content-type", "")

    def iterate_pieces(self) -> Iterator[bytes]:
        """The body as it comes. Raises ``AnswerLost``."""
        try:
            yield from self._response.iterate_body()
        except NoAnswer as error:
            raise AnswerLost(error.reason) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerHttp:
    """The connections to one server, for one call or listing."""

    server: McpServer
    token: str | None
    ends_at: float
    """The deadline, by ``time.monotonic``."""
    login: TokenBearer | None = None
    """Supplies its tokens, instead of ``token``."""
    policy: UrlPolicy = OF_OPERATORS
    """The addresses that may be asked."""

    @property
    def left_s(self) -> float:
        return self.ends_at - time.monotonic()

    @contextmanager
    def open_response(
        self, headers: Mapping[str, str], body: bytes = b"", *, method: str = "POST", url: str = ""
    ) -> Iterator[ServerResponse]:
        """Make one request, to another address than the server's where ``url`` is given; its answer is read within the
        block. Raises ``McpError``.

        A server that refuses an access token did nothing, so it is asked again with a newer one, once. A newer token
        has no more scopes than the one before (RFC 6749 §6), so it is no help where scopes are lacking.
        """
        request = HttpRequest(method=method, url=url or self.server.url, headers=headers, body=body)
        with ExitStack() as stack:
            token = self.token if self.login is None else self.login.get_token()
            response = stack.enter_context(self._send_request(request, token))
            is_refused = response.status == 401 and not parse_challenge(response.challenge).lacks_scopes
            if self.login is not None and is_refused:
                stack.close()
                response = stack.enter_context(self._send_request(request, self.login.get_newer_token()))
            yield response

    def send(self, headers: Mapping[str, str], body: bytes, *, method: str = "POST", url: str = "") -> int:
        """Make a request of which only the status matters, and return that. Raises ``McpError``."""
        with self.open_response(headers, body, method=method, url=url) as response:
            return response.status

    def read_answer(self, response: ServerResponse, hearing: ResponseReader, reader: EventReader) -> None:
        """Read until the answer is there, a person has to be asked, or nothing more comes. Raises ``McpError``."""
        self.require_scopes(response)
        try:
            for event in read_events(response.media_type, response.iterate_pieces(), reader):
                hearing.on_event(event)
                if hearing.is_over:
                    return
        except (McpRefusal, UnknownOutcome):
            raise
        except McpError as error:
            raise self.error_for_status(response.status, str(error)) from None

    def get_result(self, hearing: ResponseReader, status: int) -> Mapping[str, Any]:
        """The result that was read, once nothing more comes. Raises ``McpError``."""
        try:
            return hearing.get_result()
        except (McpRefusal, UnknownOutcome) as error:
            error.status = status
            raise
        except McpError as error:
            raise self.error_for_status(status, str(error)) from None

    def require_scopes(self, response: ServerResponse) -> None:
        """Raise ``ScopesLacking`` for an answer that says so."""
        if response.status in (401, 403) and not self.server.is_process:
            challenge = parse_challenge(response.challenge)
            if challenge.lacks_scopes:
                raise ScopesLacking(challenge.scope)

    def error_for_status(self, status: int, said: str) -> McpError:
        """The error for a status that came without a message of the protocol; for 200 it is ``said`` that was wrong."""
        error = UnknownOutcome(said) if status == 200 else _error_of_status(status, is_host=self.server.is_process)
        error.status = status
        return error

    @contextmanager
    def _send_request(self, request: HttpRequest, token: str | None) -> Iterator[ServerResponse]:
        if self.left_s <= 0:
            raise UnknownOutcome("the server took too long")
        request = HttpRequest(
            method=request.method,
            url=request.url,
            headers=_build_headers(request.headers, token),
            body=request.body,
        )
        with ExitStack() as stack:
            try:
                response = stack.enter_context(open_response(request, self.policy, total_s=self.left_s))
            except NoAnswer as error:
                raise (AnswerLost if error.was_sent else NotReached)(error.reason) from None
            except (UnsafeUrl, ValueError) as error:
                raise McpError(f"the server's address cannot be used: {error}") from None
            yield ServerResponse(response)


def as_not_sent(error: UnknownOutcome) -> McpError:
    """The error for a failure before the call itself was sent, so that the server cannot have acted."""
    found = McpError(str(error))
    found.status = error.status
    return found


def _build_headers(more: Mapping[str, str], token: str | None) -> Mapping[str, str]:
    ours = {"Accept-Encoding": "identity", "Content-Type": "application/json", "User-Agent": "hermes-worker"}
    return {**ours, **({"Authorization": f"Bearer {token}"} if token else {}), **more}


def _error_of_status(status: int, *, is_host: bool) -> McpError:
    match status:
        case 403 | 410 if is_host:
            return NotReached("it has another one's process, or none")
        case 401 | 403:
            return McpRefusal(f"the server refused our token (HTTP {status}); the operator has to set another one")
        case 400 | 404 | 405 | 406 | 415 | 421 | 429:
            return McpRefusal(f"the server refused the request (HTTP {status})")
        case _:
            return UnknownOutcome(f"the server answered HTTP {status}")
