"""Which address a file that a person sent is downloaded from, and with which credentials. Pure.

A stranger wrote the address in an event, however well the event is signed. It is used only below the server that the
operator's settings name, or over TLS at a host that the vendor's documentation names, and then only at public
addresses. Credentials go nowhere else: where a vendor redirects, they stay behind.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO
from urllib.parse import SplitResult, urljoin, urlsplit

from hermes_worker.channels.errors import DeliveryError
from hermes_worker.core.errors import HermesError
from hermes_worker.net.http import HttpRequest, HttpResponse
from hermes_worker.net.urls import DEFAULT_PORTS, UnsafeUrl

_REDIRECTS = frozenset({301, 302, 303, 307, 308})


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSource:
    """The request whose answer is a file."""

    request: HttpRequest = field(repr=False)
    is_public: bool = False
    """Whether the address is not one of the operator's settings: then only public addresses are connected to."""
    moves_to: tuple[str, ...] = ()
    """The hosts to which the vendor redirects, in the form of ``is_allowed_host``."""
    refusal: Callable[[HttpResponse], DeliveryError | None] = lambda head: None
    """Finds the error in an answer with status 200 that is not the file. It gets the answer without its body."""
    unpacked: Callable[[bytes], bytes | None] | None = None
    """Extracts the file from a body that holds it in another form (base64 in JSON); ``None`` for a body without one.
    Such a body is read whole."""


class NoRoom(HermesError):
    """A file cannot be written here, such as on a full disk."""


@dataclass(slots=True)
class FileSink:
    """Takes the pieces of a file, up to a size."""

    into: BinaryIO = field(repr=False)
    bytes_max: int
    ends_at: float
    """On the clock of ``time.monotonic``: nothing is read after this."""
    size: int = 0

    @property
    def is_over(self) -> bool:
        """Whether more bytes came than the file may have."""
        return self.size > self.bytes_max

    @property
    def is_late(self) -> bool:
        return time.monotonic() >= self.ends_at

    def write(self, piece: bytes) -> None:
        """Write a piece; bytes beyond the limit are counted and dropped. Raises ``NoRoom``."""
        try:
            self.into.write(piece[: max(0, self.bytes_max - self.size)])
        except OSError as error:
            raise NoRoom(f"the file was not written down: {error.strerror}") from None
        self.size += len(piece)


Downloading = Generator[HttpRequest, HttpResponse, FileSource | DeliveryError]
"""An exchange that ends with the source of a file."""


def build_source(
    url: str, *, own: str, hosts: tuple[str, ...] = (), headers: Mapping[str, str] | None = None
) -> FileSource:
    """Build the source of the file at ``url``: at the server of the setting ``own``, or over TLS at one of ``hosts``.
    Raises ``UnsafeUrl`` for any other address."""
    request = HttpRequest(method="GET", url=url, headers=headers or {}, delivers=False)
    if (place := _split(url)) is not None and place == _split(own):
        return FileSource(request=request)
    if is_allowed_host(url, hosts):
        return FileSource(request=request, is_public=True)
    raise UnsafeUrl("The file is at an address that is not the platform's.")


def is_allowed_host(url: str, hosts: tuple[str, ...]) -> bool:
    """Whether ``url`` is over TLS at the usual port of one of ``hosts``; ``.example.com`` stands for all hosts below
    it."""
    place = _split(url)
    if place is None or (place[0], place[2]) != ("https", 443):
        return False
    return any(place[1].endswith(host) if host.startswith(".") else place[1] == host for host in hosts)


def follow_redirect(source: FileSource, head: HttpResponse) -> FileSource | None:
    """Build the source to which the vendor redirects, without credentials; a second redirect is not followed. ``None``
    for another answer, and for an address to which the vendor does not redirect."""
    if head.status not in _REDIRECTS or not source.moves_to:
        return None
    url = urljoin(source.request.url, head.headers.get("location", ""))
    if not is_allowed_host(url, source.moves_to):
        return None
    return FileSource(request=HttpRequest(method="GET", url=url, delivers=False), is_public=True)


def _split(url: str) -> tuple[str, str, int] | None:
    """Split an address into scheme, host and port; ``None`` for one that is no such address, or has a user name in
    it."""
    try:
        parts: SplitResult = urlsplit(url)
        port = parts.port or DEFAULT_PORTS.get(parts.scheme.lower(), 0)
    except ValueError:
        return None
    if parts.scheme.lower() not in DEFAULT_PORTS or not parts.hostname or "@" in parts.netloc:
        return None
    return parts.scheme.lower(), parts.hostname.rstrip("."), port
