"""Requests to a server of revision 2024-11-05 ("HTTP with SSE"): one connection brings all that it says, beginning with
the address to which messages are sent; answers to them come on that connection alone.

A request of ours has a connection of its own, so what such a server remembers of a session ends with each call.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

from hermes_worker.mcp.http import ANY_ANSWER, EVENTS, ServerHttp, ServerResponse, as_not_sent
from hermes_worker.mcp.protocol import (
    McpError,
    McpRefusal,
    UnknownOutcome,
    build_initialize_params,
    build_notification,
    build_request,
)
from hermes_worker.mcp.response_reader import ANSWER_BYTES_MAX, ResponseReader, read_events
from hermes_worker.mcp.servers import WITH_EVENT_STREAM
from hermes_worker.net.events import EventReader

_INITIALIZE: Final = 0
_REQUEST: Final = 1
_ENDPOINT_CHARS_MAX: Final = 2_000
_PORTS: Final = {"http": 80, "https": 443}


class NoEventStream(McpError):
    """There is nothing of this revision at the address."""


def request_over_stream(http: ServerHttp, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
    """The result of one request. Raises ``McpError``; until the request itself is sent, no ``UnknownOutcome``."""
    with ExitStack() as stack:
        try:
            connection = _EventStreamConnection(
                http, stack.enter_context(http.open_response({"Accept": EVENTS}, method="GET"))
            )
            connection.initialize()
        except UnknownOutcome as error:
            raise as_not_sent(error) from None
        return connection.request(method, params, _REQUEST)


class _EventStreamConnection:
    """The event stream of a server, and the address for messages to it."""

    def __init__(self, http: ServerHttp, response: ServerResponse) -> None:
        """Read the address. Raises ``NoEventStream`` where no address comes first, and ``McpError``."""
        self._http = http
        http.require_scopes(response)
        if response.status in (401, 403):
            raise http.error_for_status(response.status, "")
        if response.status != 200:
            raise NoEventStream(f"the server opened no stream of events (HTTP {response.status})")
        reader = EventReader(chars_max=ANSWER_BYTES_MAX)
        try:
            self._events = read_events(response.media_type, response.iterate_pieces(), reader)
            first = next(self._events, None)
        except McpError as error:
            raise NoEventStream(str(error)) from None
        if first is None or first.name != "endpoint":
            raise NoEventStream("the server's stream does not begin with an address for messages")
        self._endpoint = _parse_endpoint(http.server.url, first.data)

    def initialize(self) -> None:
        """Initialize the session. Raises ``McpError``."""
        self.request("initialize", build_initialize_params(WITH_EVENT_STREAM), _INITIALIZE)
        self._send(build_notification("notifications/initialized"))

    def request(self, method: str, params: Mapping[str, Any], number: int) -> Mapping[str, Any]:
        """Make one request and return its result. Raises ``McpError``."""
        hearing = ResponseReader(number, self._send)
        with hearing.explain_errors():
            self._send(build_request(method, params, number))
            try:
                for event in self._events:
                    hearing.on_event(event)
                    if hearing.is_over:
                        break
            except (McpRefusal, UnknownOutcome):
                raise
            except McpError as error:
                raise UnknownOutcome(str(error)) from None
            return self._http.get_result(hearing, 200)

    def _send(self, body: bytes) -> None:
        with self._http.open_response({"Accept": ANY_ANSWER}, body, url=self._endpoint) as response:
            self._http.require_scopes(response)
            if not 200 <= response.status < 300:
                raise self._http.error_for_status(response.status, "")


def _parse_endpoint(url: str, said: str) -> str:
    """The address for messages: a place of the same origin, for they bear our token. Raises ``McpError``."""
    try:
        found = urljoin(url, said)
        is_ours = _parse_origin(found) == _parse_origin(url)
    except ValueError:
        is_ours = False
    if not is_ours or len(said) > _ENDPOINT_CHARS_MAX:
        raise McpError("the server wants its messages sent to an address that is not its own")
    return found


def _parse_origin(url: str) -> tuple[str, str | None, int | None]:
    """The origin of an address (RFC 6454 §4). Raises ``ValueError``."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)
