"""The facts that a wire needs about the server it talks to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, urlsplit, urlunsplit

import httpx2

from hermes_worker.core.errors import ConfigurationError

CONNECT_TIMEOUT_S = 30.0
READ_TIMEOUT_S = 120.0
"""The default time limit of a silent read, in seconds; there is no limit on the whole
of a reply that keeps coming.
"""
WRITE_TIMEOUT_S = 60.0
"""Longest time in which not one byte of a request gets through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One server and one credential. ``check_endpoint`` before use; equal endpoints share one client per process."""

    base_url: str
    """Up to and without ``/chat/completions``; a query string is sent with every request."""
    api_key: str = field(default="", repr=False)
    """Empty for a server that asks for none: then no credential is sent at all."""
    is_access_token: bool = False
    """``api_key`` is the token of a login: a bearer token on every wire."""
    provider: str = ""
    """Name of the catalogue row, for messages and for rules of one provider."""
    key_header: str = "Authorization"
    """``Authorization`` sends ``Bearer <key>``; any other header gets the bare key (Azure)."""
    headers: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Sent with every request."""
    body: Mapping[str, object] = field(default_factory=dict, hash=False)
    """Fields of every request's JSON; what a wire builds itself they cannot replace."""
    service_tier: str = ""
    """The provider's tier to ask for, where the wire has a word for it; empty for the usual one."""
    region: str = ""
    """The region that requests are signed for, on wires that sign them."""
    sends_stream_options: bool = True
    """Whether to ask for usage in the stream; some servers reject the question."""
    sends_cache_key: bool = False
    """Whether to send the session id as ``derive_prompt_cache_key``, so that one conversation meets one cache."""
    read_timeout_s: float = READ_TIMEOUT_S
    """Longest silence between two bytes of a reply."""
    connect_timeout_s: float = CONNECT_TIMEOUT_S
    proxy_url: str | None = None
    """An ``http://`` proxy to go through."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """Values that no message may show: the key, and the parts of one that is made of several."""
        return tuple(dict.fromkeys((self.api_key, *self.api_key.split(":"))))

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(self.base_url).query))

    @property
    def plain_url(self) -> str:
        """``base_url`` without its query, for messages and for joining paths."""
        parts = urlsplit(self.base_url)
        return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))


_HOST = re.compile(r"[\w.-]+|[0-9a-f:.]+(?:%\w+)?")


def check_endpoint(endpoint: Endpoint) -> Endpoint:
    """Return the endpoint if it can be used. Raises ``ConfigurationError`` naming the setting to change."""
    parts = _split(endpoint.base_url)
    if parts.scheme not in ("http", "https") or not _HOST.fullmatch(parts.hostname or ""):
        raise ConfigurationError(
            f"model.base_url (HERMES_BASE_URL) is {endpoint.base_url!r}; write a whole address such as "
            "http://127.0.0.1:11434/v1"
        )
    if parts.username or parts.password:
        raise ConfigurationError("model.base_url (HERMES_BASE_URL) holds a user name or password; use model.api_key")
    if not _is_header_value(endpoint.api_key):
        raise ConfigurationError("model.api_key holds a space, a line break or another character no key can have")
    if endpoint.proxy_url is not None and _split(endpoint.proxy_url).scheme != "http":
        raise ConfigurationError("the proxy for model calls must be an http:// address")
    return endpoint


def _split(url: str) -> SplitResult:
    try:
        httpx2.URL(url)  # the one that will be used refuses what the standard library lets pass, and the reverse
        parts = urlsplit(url)
        _ = parts.port
    except (ValueError, httpx2.InvalidURL) as error:
        raise ConfigurationError(f"model.base_url (HERMES_BASE_URL) is not an address: {error}") from error
    return parts


def _is_header_value(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text
