"""HTTP connections on which one call can be cut off without touching the calls beside it.

Theory of operation. A model call blocks a thread: in name resolution, in ``connect``, in the TLS handshake, waiting for
the first byte, or in the middle of a stream. To end it from another thread, something has to wake exactly that thread.
So every call carries a ``Line``, which knows what the call is blocked on at the moment, and ``Line.cut`` wakes it: it
shuts the call's socket down (the blocked ``recv`` then returns end-of-file), or sets the event it waits for:

    the call is in        ``cut`` wakes it by
    name resolution       the event ``_Lookup`` waits for; its thread, which nothing can wake, is left to end by itself
    ``connect``           shutting the socket down; it also looks at the line every ``_CONNECT_POLL_MS``
    TLS, a read, a write  shutting the socket down below TLS
    nothing yet, or over  nothing: the next ``attach`` raises ``LineCut``; a released line has nothing to wake

``httpx2`` offers no such handle, so this module is a transport of its own, made of httpcore2's public parts:

- ``CuttableTransport`` keeps idle connections on a stack per process and endpoint. httpcore2's own pool walks every
  connection on every request, which at 1,000 calls in flight costs more than the request.
- ``_Backend`` opens sockets, and tells the line of the current thread about each.
- ``_Stream`` is one socket, before and after TLS.

The line travels to the backend in a thread-local, because the SDK between the two has no place for it.

Two things look wrong and are right. The number of open connections has no limit here, because the threads of a worker
are one. And a connection goes back to the stack only after ``Line.release``, under the line's lock: a ``cut`` that
comes late finds nothing to shut down, and never the next call.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import httpcore2
import httpx2

from hermes_worker.models.wires.framing import ChunkReframer
from hermes_worker.models.wires.pace import StreamPace
from hermes_worker.net.urls import UrlPolicy, find_address_refusal

KEEPALIVE_S = 30.0
"""How long an idle connection is kept, in seconds: well below the 60 s after which common load balancers drop one."""
IDLE_MAX = 256
"""Idle connections kept per endpoint; calls in flight are not limited here but by the worker's threads."""
WRITE_TIMEOUT_S = 60.0
"""Longest time in which not one byte of a request gets through."""
_READ_BYTES_MAX = 16_384
"""A blocked ``recv`` holds a buffer of this size; httpcore2 asks for 64 KiB."""
_CONNECT_POLL_MS = 100
"""Not every platform wakes a ``connect`` when its socket is shut down, so connecting looks at the line this often."""

_SOCKET_OPTIONS: tuple[tuple[int, int, int], ...] = tuple(
    (level, getattr(socket, name), value)
    for level, name, value in (
        (socket.IPPROTO_TCP, "TCP_NODELAY", 1),
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 60),
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 15),
        (socket.IPPROTO_TCP, "TCP_KEEPCNT", 4),
    )
    if hasattr(socket, name)
)

_ANY_SERVER = UrlPolicy(allows_private=True)
_Address = tuple[int, int, int, object]
"""Family, kind, protocol and address, as ``getaddrinfo`` gives them."""


class LineCut(httpcore2.NetworkError):
    """The call was told to give up before the network got anywhere."""


class Line:
    """Knows what one call is blocked on. ``cut`` may be called from any thread and at any time; it lasts."""

    __slots__ = ("_is_cut", "_lock", "_wake", "has_sent", "stream")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wake: Callable[[], None] | None = None
        self._is_cut = False
        self.stream: _Stream | None = None
        self.has_sent = False
        """Whether a part of the request was handed to the network."""

    @property
    def is_cut(self) -> bool:
        return self._is_cut

    def cut(self) -> None:
        """End whatever the call is blocked on, now and from now on. Idempotent."""
        with self._lock:
            self._is_cut = True
            if self._wake is not None:
                self._wake()

    def raise_if_cut(self) -> None:
        if self._is_cut:
            raise LineCut("the call was aborted")

    def attach(self, wake: Callable[[], None]) -> None:
        """Register ``wake``, which ``cut`` then calls. Raises ``LineCut`` when the line is cut already."""
        with self._lock:
            self.raise_if_cut()
            self._wake = wake

    def attach_stream(self, stream: _Stream) -> None:
        self.attach(stream.shut_down)
        self.stream = stream

    def limit_reads(self, seconds: float) -> None:
        """Limit every later read of this call to so many seconds. To be called by the thread that reads."""
        if self.stream is not None:
            self.stream.read_timeout_max_s = seconds

    def release(self) -> None:
        """Detach the connection before it goes back to the pool: a late ``cut`` must not reach the next call on it."""
        with self._lock:
            self._wake = None
            self.stream = None


class _CurrentLine(threading.local):
    line: Line | None = None


_current = _CurrentLine()


@contextlib.contextmanager
def use_line(line: Line) -> Iterator[None]:
    """Requests made on this thread inside the block belong to ``line``."""
    _current.line = line
    try:
        yield
    finally:
        _current.line = None


class _Stream(httpcore2.NetworkStream):
    """One socket. ``start_tls`` changes it in place, so that a line attached to it stays attached."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()
        self._is_closed = False
        self._pace = StreamPace()
        self._reframed = ChunkReframer()
        self.read_timeout_max_s: float | None = None
        """A limit on top of the timeout each read asks for; it says that the reply is over."""

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        while data := self._read(max_bytes, timeout):
            if reframed := self._reframed.feed(data):
                return reframed
        return self._reframed.end()

    def _read(self, max_bytes: int, timeout: float | None) -> bytes:
        limit, bytes_max = self.read_timeout_max_s, min(max_bytes, _READ_BYTES_MAX)
        rest_s = self._pace.rest_s if limit is None else 0.0
        if rest_s:
            time.sleep(rest_s)
        try:
            self._set_timeout(timeout if limit is None else limit)
            started_s = time.monotonic()
            data = self._sock.recv(bytes_max)
            blocked_s = time.monotonic() - started_s
        except TimeoutError as error:
            raise httpcore2.ReadTimeout(str(error)) from error
        except OSError as error:
            raise httpcore2.ReadError(str(error)) from error
        if rest_s and isinstance(self._sock, ssl.SSLSocket):
            data = self._read_pending_records(data, bytes_max)
        self._pace.note_read(blocked_s=blocked_s, received=len(data), is_full=len(data) >= bytes_max)
        return data

    def _read_pending_records(self, data: bytes, bytes_max: int) -> bytes:
        """Read the TLS records that have come already: a read under TLS brings one record at most, and servers send one
        for every event.
        """
        records, room = [data], bytes_max - len(data)
        with contextlib.suppress(OSError):  # nothing more for now; a broken connection breaks the next read too
            self._set_timeout(0.0)
            while room > 0 and (record := self._sock.recv(room)):
                records.append(record)
                room -= len(record)
        return b"".join(records)

    def _set_timeout(self, timeout: float | None) -> None:
        if self._sock.gettimeout() != timeout:  # setting it costs a system call
            self._sock.settimeout(timeout)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._pace.begin()  # a new request, hence a new response
        self._reframed.begin()
        try:
            self._set_timeout(timeout)
            rest = memoryview(buffer)
            while rest:  # not sendall: its timeout is for everything, and a long prompt on a slow line takes long
                rest = rest[self._sock.send(rest) :]
            if _current.line is not None:
                _current.line.has_sent = True
        except TimeoutError as error:
            raise httpcore2.WriteTimeout(str(error)) from error
        except OSError as error:
            raise httpcore2.WriteError(str(error)) from error

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        try:
            self._sock.settimeout(timeout)
            with self._lock:
                # Wrapping moves the descriptor to a new object; a shutdown in between would miss it.
                self._sock = ssl_context.wrap_socket(
                    self._sock, server_hostname=server_hostname, do_handshake_on_connect=False
                )
            self._sock.do_handshake()
        except TimeoutError as error:
            self.close()
            raise httpcore2.ConnectTimeout(str(error)) from error
        except OSError as error:
            self.close()
            raise httpcore2.ConnectError(str(error)) from error
        return self

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._sock.close()

    def shut_down(self) -> None:
        """Wake a thread that is blocked on this socket. It may be called from any thread."""
        # Under the lock, because a descriptor that is closed meanwhile may already belong to another call. The plain
        # socket's method, because SSLSocket.shutdown would drop the TLS state under the thread that is reading.
        with self._lock, contextlib.suppress(OSError):  # not connected (any more) is as good as shut down
            if not self._is_closed:
                socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def get_extra_info(self, info: str) -> Any:
        if info == "ssl_object":
            return self._sock if isinstance(self._sock, ssl.SSLSocket) else None
        if info == "is_readable":
            return _is_readable(self._sock)
        if info == "socket":
            return self._sock
        return None


def _is_readable(sock: socket.socket) -> bool:
    """Whether a read would return at once; on an idle connection that means the server has closed it."""
    if sock.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLIN)
    return bool(poll.poll(0))


class _Backend(httpcore2.NetworkBackend):
    """Opens connections for the line of the current thread."""

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.NetworkStream:
        line = _current.line or Line()
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            stream = _connect_any(_Lookup(host, port).find_addresses(line, deadline), line, deadline)
            for option in (*(socket_options or ()), *_SOCKET_OPTIONS):
                stream.get_extra_info("socket").setsockopt(*option)
        except TimeoutError as error:
            raise httpcore2.ConnectTimeout(f"no connection to {host}:{port} within {timeout} s") from error
        except OSError as error:
            raise httpcore2.ConnectError(f"no connection to {host}:{port}: {error.strerror or error}") from error
        return stream


class _Lookup:
    """``getaddrinfo`` that can be cut and timed out. It blocks in C and heeds neither, hence the thread."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._is_done = threading.Event()
        self._addresses: list[_Address] | None = None
        self._error: OSError | None = None

    def find_addresses(self, line: Line, deadline: float | None) -> list[_Address]:
        with contextlib.suppress(socket.gaierror, UnicodeError):  # not an address: a name, or nothing at all
            return _resolve_host(self._host, self._port, socket.AI_NUMERICHOST)
        line.attach(self._is_done.set)
        threading.Thread(target=self._look_up, name="resolve", daemon=True).start()
        self._is_done.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        line.raise_if_cut()
        if self._error is not None:
            raise self._error
        if self._addresses is None:
            raise TimeoutError("name resolution timed out")
        return self._addresses

    def _look_up(self) -> None:
        try:
            self._addresses = _resolve_host(self._host, self._port)
        except (OSError, UnicodeError) as error:  # UnicodeError: a label of the name is empty or too long
            self._error = error if isinstance(error, OSError) else OSError(f"{self._host!r} is not a host name")
        finally:
            self._is_done.set()


def _resolve_host(host: str, port: int, flags: int = 0) -> list[_Address]:
    """Every address of a host. A job may name the address of its model, so metadata services are refused here too.
    Raises ``OSError``."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    for entry in found:
        if (refusal := find_address_refusal(str(entry[4][0]), _ANY_SERVER)) is not None:
            raise OSError(refusal)
    return [(family, kind, protocol, address) for family, kind, protocol, _, address in found]


def _connect_any(addresses: list[_Address], line: Line, deadline: float | None) -> _Stream:
    """Connect to the first address that answers; raises the last failure when none does."""
    failure: OSError = OSError("the name has no address")
    for family, kind, protocol, address in addresses:
        sock = socket.socket(family, kind, protocol)
        try:
            return _connect(sock, address, line, deadline)
        except OSError as error:
            sock.close()
            failure = error
        except LineCut:
            sock.close()
            raise
    raise failure


def _connect(sock: socket.socket, address: object, line: Line, deadline: float | None) -> _Stream:
    stream = _Stream(sock)
    sock.setblocking(False)
    sock.connect_ex(address)  # type: ignore[arg-type]  # whatever getaddrinfo returned for this family
    # Attached only once connecting has begun: a socket that is shut down before would connect all the same.
    line.attach_stream(stream)
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLOUT)
    while not poll.poll(_CONNECT_POLL_MS):
        if deadline is not None and time.monotonic() >= deadline:
            raise TimeoutError("timed out")
        line.raise_if_cut()
    line.raise_if_cut()
    code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))
    return stream


@dataclass(frozen=True, slots=True)
class _IdleConnection:
    connection: httpcore2.ConnectionInterface
    stream: _Stream
    since_s: float


class CuttableTransport(httpx2.BaseTransport):
    """HTTP/1.1 to one endpoint, through ``proxy_url`` if given. Thread-safe.

    A connection is used by one call at a time; there is no limit on how many are open at once.
    """

    def __init__(self, *, proxy_url: str | None = None, ssl_context: ssl.SSLContext | None = None) -> None:
        # Only its ``create_connection`` is used: that knows about proxies and tunnels. It never pools anything.
        self._factory = httpcore2.ConnectionPool(
            ssl_context=ssl_context or get_shared_ssl_context(),
            proxy=httpcore2.Proxy(proxy_url) if proxy_url else None,
            network_backend=_Backend(),
            keepalive_expiry=KEEPALIVE_S,
        )
        self._lock = threading.Lock()
        self._idle: deque[_IdleConnection] = deque()

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        line = _current.line or Line()
        core_request = _to_core_request(request)
        with _translate_errors():
            connection = self._get_connection(core_request.url.origin, line)
            response = connection.handle_request(core_request)
        return httpx2.Response(
            status_code=response.status,
            headers=response.headers,
            stream=_Body(response, lambda: self._give_back(connection, line)),
            extensions=response.extensions,
        )

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, deque()
        for entry in idle:
            entry.connection.close()

    def _get_connection(self, origin: httpcore2.Origin, line: Line) -> httpcore2.ConnectionInterface:
        while (entry := self._pop_idle()) is not None:
            if entry.connection.can_handle_request(origin) and not entry.connection.has_expired():
                try:
                    line.attach_stream(entry.stream)
                except LineCut:
                    self._push_idle(entry)
                    raise
                return entry.connection
            entry.connection.close()
        return self._factory.create_connection(origin)

    def _give_back(self, connection: httpcore2.ConnectionInterface, line: Line) -> None:
        stream = line.stream
        line.release()
        if stream is None or line.is_cut or not connection.is_available():
            connection.close()
            return
        stream.read_timeout_max_s = None
        self._push_idle(_IdleConnection(connection, stream, time.monotonic()))

    def _pop_idle(self) -> _IdleConnection | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _push_idle(self, entry: _IdleConnection) -> None:
        """Put a connection on the stack. The newest is used first, so idle ones drift to the left end, where they
        leave.
        """
        oldest_allowed_s = time.monotonic() - KEEPALIVE_S
        surplus: list[_IdleConnection] = []
        with self._lock:
            self._idle.append(entry)
            while self._idle and (len(self._idle) > IDLE_MAX or self._idle[0].since_s < oldest_allowed_s):
                surplus.append(self._idle.popleft())
        for old in surplus:
            old.connection.close()


class DirectClient(httpx2.Client):
    """A client that hands every request to a ``CuttableTransport`` as it is: it keeps no cookies, follows no redirect
    and ignores the environment."""

    def __init__(self, *, proxy_url: str | None = None) -> None:
        self._cuttable = CuttableTransport(proxy_url=proxy_url)
        super().__init__(transport=self._cuttable, trust_env=False)

    def send(self, request: httpx2.Request, **_: Any) -> httpx2.Response:
        """Send the request; the response's body is still unread. Raises ``httpx2.TransportError``."""
        response = self._cuttable.handle_request(request)
        response.request = request
        return response


class _Body(httpx2.SyncByteStream):
    """A response body that gives its connection back when it is closed."""

    def __init__(self, response: httpcore2.Response, give_back: Callable[[], None]) -> None:
        self._response = response
        self._give_back: Callable[[], None] | None = give_back

    def __iter__(self) -> Iterator[bytes]:
        with _translate_errors():
            yield from cast(Iterable[bytes], self._response.stream)

    def close(self) -> None:
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            self._response.close()
            give_back()


def _to_core_request(request: httpx2.Request) -> httpcore2.Request:
    return httpcore2.Request(
        method=request.method,
        url=httpcore2.URL(
            scheme=request.url.raw_scheme,
            host=request.url.raw_host,
            port=request.url.port,
            target=request.url.raw_path,
        ),
        headers=request.headers.raw,
        content=request.stream,
        extensions=request.extensions,
    )


_HTTPX_ERRORS: dict[type[Exception], type[httpx2.TransportError]] = {
    httpcore2.ConnectTimeout: httpx2.ConnectTimeout,
    httpcore2.ReadTimeout: httpx2.ReadTimeout,
    httpcore2.WriteTimeout: httpx2.WriteTimeout,
    httpcore2.ConnectError: httpx2.ConnectError,
    httpcore2.ReadError: httpx2.ReadError,
    httpcore2.WriteError: httpx2.WriteError,
    httpcore2.NetworkError: httpx2.NetworkError,
    httpcore2.ProxyError: httpx2.ProxyError,
    httpcore2.UnsupportedProtocol: httpx2.UnsupportedProtocol,
    httpcore2.LocalProtocolError: httpx2.LocalProtocolError,
    httpcore2.RemoteProtocolError: httpx2.RemoteProtocolError,
}


@contextlib.contextmanager
def _translate_errors() -> Iterator[None]:
    """Raise httpx2's exceptions in place of httpcore2's, which the SDK does not know."""
    try:
        yield
    except tuple(_HTTPX_ERRORS) as error:
        known = next(parent for parent in type(error).__mro__ if parent in _HTTPX_ERRORS)
        raise _HTTPX_ERRORS[known](str(error)) from error


def build_timeouts(*, connect_s: float, read_s: float) -> httpx2.Timeout:
    """The client's limits for a call that may be silent for ``read_s`` seconds."""
    return httpx2.Timeout(connect=connect_s, read=read_s, write=WRITE_TIMEOUT_S, pool=None)


@functools.cache
def get_shared_ssl_context() -> ssl.SSLContext:
    """The system's certificates, read once: a context takes 20 ms and 1 MB to build."""
    return httpx2.create_ssl_context()
