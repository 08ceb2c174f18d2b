"""HTTP as the services of hosts speak it: a request and its answer, or a request whose connection is taken over."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import h11

from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.workspaces.remote.streams import ServiceAddress, ServiceStream

_ANSWER_S: Final = 30.0
_ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
_HEAD_BYTES_MAX: Final = 65_536
_POLL_S: Final = 1.0


class ServiceFailed(OSError):
    """The service did not answer as HTTP wants it."""


class ServiceAnswer:
    """A status and a body."""

    def __init__(self, status: int, body: bytes) -> None:
        self.status = status
        self.body = body

    def parse_document(self) -> Any:
        """Parse the body. Raises ``ServiceFailed`` when it is no JSON."""
        import json

        try:
            return json.loads(self.body)
        except ValueError as error:
            raise ServiceFailed("the answer is no JSON") from error

    def find_reason(self) -> str:
        """The error message in the body, in the form of Docker's and Kubernetes' APIs."""
        try:
            said = self.parse_document()
        except ServiceFailed:
            said = None
        text = said.get("message") if isinstance(said, dict) else None
        return f"{self.status}: {str(text)[:300]}" if text else f"status {self.status}"


class HostService:
    """A service of a host. Each request has a connection of its own, so threads and forked children may share one."""

    def __init__(self, address: ServiceAddress, headers: Callable[[], Mapping[str, str]] = dict) -> None:
        """``headers`` is called for each request: a token may change. It raises ``OSError``."""
        self.address = address
        self.headers = headers

    def request(
        self,
        method: str,
        target: str,
        document: Any = None,
        *,
        data: bytes | None = None,
        kind: str = "application/json",
        timeout_s: float = _ANSWER_S,
    ) -> ServiceAnswer:
        """Make one request; its body is ``document`` as JSON, or ``data``. Raises ``OSError``."""
        body = data if data is not None else b"" if document is None else dump_canonical_json(document).encode()
        stream = ServiceStream(self.address)
        try:
            protocol = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES_MAX)
            stream.write(self._request(protocol, method, target, body, kind, {"Connection": "close"}))
            return _read_answer(protocol, stream, time.monotonic() + timeout_s)
        except (h11.ProtocolError, ValueError) as error:
            raise ServiceFailed(f"no HTTP: {error}") from error
        finally:
            stream.close()

    def open_stream(
        self, method: str, target: str, document: Any = None, *, headers: Mapping[str, str]
    ) -> tuple[ServiceStream, bytes, ServiceAnswer | None]:
        """Make a request whose connection is the program's from then on. Returns the stream, the bytes of it that came
        already, and the answer instead when it is refused. Raises ``OSError``.
        """
        body = b"" if document is None else dump_canonical_json(document).encode()
        stream = ServiceStream(self.address)
        try:
            protocol = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES_MAX)
            stream.write(self._request(protocol, method, target, body, "application/json", headers))
            deadline = time.monotonic() + _ANSWER_S
            head = _read_next_event(protocol, stream, deadline)
            if isinstance(head, h11.InformationalResponse) and head.status_code == 101:
                return stream, protocol.trailing_data[0], None
            if isinstance(head, h11.Response) and head.status_code == 200 and _is_raw(head):
                # An older engine does not change the protocol; it begins to speak.
                return stream, protocol.trailing_data[0], None
            if isinstance(head, h11.Response):
                answer = _read_body(protocol, stream, deadline, head.status_code)
                stream.close()
                return stream, b"", answer
            raise ServiceFailed("no answer came")
        except (h11.ProtocolError, ValueError) as error:
            stream.close()
            raise ServiceFailed(f"no HTTP: {error}") from error
        except BaseException:
            stream.close()
            raise

    def _request(
        self, protocol: h11.Connection, method: str, target: str, body: bytes, kind: str, more: Mapping[str, str]
    ) -> bytes:
        headers = {"Host": self.address.host, **self.headers(), **more}
        if body or method in ("POST", "PUT", "PATCH"):
            headers |= {"Content-Type": kind, "Content-Length": str(len(body))}
        request = h11.Request(method=method, target=target, headers=list(headers.items()))
        sent = protocol.send(request) or b""
        if body:
            sent += protocol.send(h11.Data(data=body)) or b""
        return sent + (protocol.send(h11.EndOfMessage()) or b"")


def _is_raw(head: h11.Response) -> bool:
    names = {name for name, _ in head.headers}
    return b"content-length" not in names and b"transfer-encoding" not in names


def _read_next_event(protocol: h11.Connection, stream: ServiceStream, deadline: float) -> Any:
    while True:
        event = protocol.next_event()
        if event is not h11.NEED_DATA:
            return event
        if time.monotonic() > deadline:
            raise TimeoutError("no answer in time")
        data = stream.read(_POLL_S)
        if data is not None:
            protocol.receive_data(data)


def _read_answer(protocol: h11.Connection, stream: ServiceStream, deadline: float) -> ServiceAnswer:
    while True:
        event = _read_next_event(protocol, stream, deadline)
        if isinstance(event, h11.Response):
            return _read_body(protocol, stream, deadline, event.status_code)
        if not isinstance(event, h11.InformationalResponse):
            raise ServiceFailed("no answer came")


def _read_body(protocol: h11.Connection, stream: ServiceStream, deadline: float, status: int) -> ServiceAnswer:
    body = bytearray()
    while True:
        event = _read_next_event(protocol, stream, deadline)
        if isinstance(event, h11.Data):
            body += event.data
            if len(body) > _ANSWER_BYTES_MAX:
                raise ServiceFailed("the answer is too large")
        elif isinstance(event, h11.EndOfMessage):
            return ServiceAnswer(status, bytes(body))
        else:
            raise ServiceFailed("the answer was cut")
