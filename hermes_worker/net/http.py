"""One HTTP request and what came back, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """A request to make. URL, headers and body may hold secrets, so none of them is shown."""

    method: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False, default_factory=dict)
    body: bytes = field(repr=False, default=b"")
    delivers: bool = True
    """False for a request that only prepares (a token, an upload): without an answer to it nothing can have arrived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """An answer. Header names are lower case."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


class NoAnswer(Exception):
    """There is no response to a request. ``was_sent`` is false when the connection was never made, so that nothing can
    have arrived.
    """

    def __init__(self, reason: str, *, was_sent: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.was_sent = was_sent
