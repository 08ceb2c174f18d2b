"""Who may talk to the API.

With a key: whoever sends it. Without one: processes of this machine, and that takes more than a loopback address,
because a browser on this machine runs pages of strangers. Such a page can send requests here (it then has an
``Origin``), or have its own name resolve to 127.0.0.1 and count as the same origin (then ``Host`` is its name).
"""

from __future__ import annotations

import hmac
import ipaddress
import re

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from hermes_worker.api.errors import ApiError
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.settings import Secret, ServerSettings

PUBLIC_PATHS = frozenset({"/health", "/v1/health"})
"""Need no key (reference, around §3.1)."""
SIGNED_PATHS = "/webhooks/"
"""What is below needs a signature instead."""


def require_safe(server: ServerSettings) -> None:
    """Raises ``ConfigurationError`` when everybody could use the API."""
    if server.key is None and not server.is_loopback:
        raise ConfigurationError(
            f"server.host (HERMES_SERVER_HOST) is {server.host!r}, which other machines can reach; "
            "set server.key (HERMES_SERVER_KEY) or listen on 127.0.0.1"
        )


class Guard:
    """Lets a request through, or answers it."""

    def __init__(self, app: ASGIApp, *, key: Secret | None) -> None:
        self._app = app
        self._key = key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            refusal = self._refusal(Headers(scope=scope), scope["path"])
            if refusal is not None:
                await refusal.response(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, headers: Headers, path: str) -> ApiError | None:
        if "origin" in headers or headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return ApiError(403, "Requests from web pages are not allowed.", code="origin_not_allowed")
        if self._key is None:
            return None if _is_for_loopback(headers) else _wrong_host()
        if path in PUBLIC_PATHS or path.startswith(SIGNED_PATHS) or _has_key(headers, self._key):
            return None
        return ApiError(401, "Invalid API key", code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def _wrong_host() -> ApiError:
    message = "Without a key this API answers to localhost only. Set HERMES_SERVER_KEY to use another name."
    return ApiError(403, message, code="host_not_allowed", param="Host")


def _has_key(headers: Headers, key: Secret) -> bool:
    given = headers.getlist("authorization")
    if len(given) != 1:
        return False
    scheme, _, token = given[0].partition(" ")
    is_right = hmac.compare_digest(token.strip().encode("utf-8"), key.reveal().encode("utf-8"))
    return is_right and scheme.lower() == "bearer"


def _is_for_loopback(headers: Headers) -> bool:
    hosts = headers.getlist("host")
    return len(hosts) == 1 and _is_loopback(hosts[0])


_AUTHORITY = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>[^:\[\]]+))(?::\d*)?")


def _is_loopback(authority: str) -> bool:
    """Whether ``host``, ``host:port`` or ``[address]:port`` names this machine, whatever a resolver would say."""
    match = _AUTHORITY.fullmatch(authority)
    if match is None:
        return False
    host = match["six"] or match["host"]
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
