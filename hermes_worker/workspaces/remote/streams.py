"""A connection to a host's service, by a path or by TCP and TLS, that can be ended in one direction and read on.

Ending our half is how a program learns that its output is not waited for any more, so it must not lose what it still
writes. ``ssl.SSLSocket`` cannot do that: its ``unwrap`` reads, and throws away what it finds.
"""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

_CONNECT_S: Final = 10.0
_WRITE_S: Final = 60.0
_READ_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAddress:
    """The address of a service: ``unix:///run/docker.sock``, ``https://host:port`` or, for tests and for services
    behind a wall already, ``http://host:port``.
    """

    url: str
    ca_file: Path | None = None
    """Certificates of the authorities that may have signed the service's; ``None`` for those of the system."""
    cert_file: Path | None = None
    """Our own certificate, where the service wants one."""
    key_file: Path | None = None

    @property
    def host(self) -> str:
        """The host for the header and for messages."""
        parts = urlsplit(self.url)
        return "localhost" if parts.scheme == "unix" else parts.netloc


class ServiceStream:
    """One connection. Used by one thread. All methods raise ``OSError``."""

    def __init__(self, address: ServiceAddress) -> None:
        parts = urlsplit(address.url)
        self._tls: ssl.SSLObject | None = None
        if parts.scheme == "unix":
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.settimeout(_CONNECT_S)
            self._connect(parts.path)
            return
        port = parts.port or (443 if parts.scheme == "https" else 80)
        self._socket = socket.create_connection((str(parts.hostname), port), _CONNECT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _keep_alive(self._socket)
        if parts.scheme == "https":
            try:
                self._shake_hands(_build_context(address), str(parts.hostname))
            except BaseException:
                self.close()
                raise

    def write(self, data: bytes) -> None:
        self._socket.settimeout(_WRITE_S)
        if self._tls is None:
            self._socket.sendall(data)
            return
        self._tls.write(data)
        self._send_encrypted()

    def read(self, timeout_s: float) -> bytes | None:
        """Some bytes; ``b""`` at the end of the stream, ``None`` when nothing came in time."""
        self._socket.settimeout(max(0.001, timeout_s))
        try:
            if self._tls is None:
                return self._socket.recv(_READ_BYTES)
            return self._read_decrypted(self._tls)
        except TimeoutError:
            return None

    def end(self) -> None:
        """End our half of the connection. What the other side sends can still be read."""
        with suppress(OSError):
            if self._tls is None:
                self._socket.shutdown(socket.SHUT_WR)
                return
            # Everything that came was decrypted and handed out (``_read_decrypted``), so this finds nothing to throw
            # away.
            with suppress(ssl.SSLWantReadError):
                self._tls.unwrap()
            self._send_encrypted()

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._socket.close()

    def _connect(self, path: str) -> None:
        try:
            self._socket.connect(path)
        except BaseException:
            self._socket.close()
            raise

    def _shake_hands(self, context: ssl.SSLContext, name: str) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=name)
        self._held = bytearray()
        while True:
            try:
                self._tls.do_handshake()
                return
            except ssl.SSLWantReadError:
                self._send_encrypted()
                self._receive_encrypted()
            finally:
                self._send_encrypted()

    def _read_decrypted(self, tls: ssl.SSLObject) -> bytes:
        """The next bytes, as many as can be decrypted now."""
        found = bytearray()
        while True:
            try:
                piece = tls.read(_READ_BYTES)
            except ssl.SSLWantReadError:
                self._send_encrypted()
                if found:
                    return bytes(found)
                self._receive_encrypted()
                continue
            except ssl.SSLZeroReturnError:
                piece = b""
            if not piece:
                return bytes(found)
            found += piece

    def _receive_encrypted(self) -> None:
        data = self._socket.recv(_READ_BYTES)
        if not data:
            raise ConnectionResetError("the connection was cut")
        self._incoming.write(data)

    def _send_encrypted(self) -> None:
        if data := self._outgoing.read():
            self._socket.sendall(data)


def _keep_alive(connection: socket.socket) -> None:
    """Set keep-alives so that a silent host counts as lost within half a minute, and not within hours."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _build_context(address: ServiceAddress) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=None if address.ca_file is None else str(address.ca_file))
    if address.cert_file is not None:
        context.load_cert_chain(address.cert_file, address.key_file)
    return context
