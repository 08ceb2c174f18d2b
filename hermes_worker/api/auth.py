"""Who may talk to the API: whoever sends its key. Events for webhook routes are let in by their signature instead.

This machine alone is no reason to let somebody in. An agent's commands run here, and so does a browser, with pages of
strangers: such a page can send requests here (it then has an ``Origin``), or have its own name resolve to 127.0.0.1 and
count as the same origin (then ``Host`` is its name).
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from typing import Annotated

from fastapi import Depends, Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from hermes_worker.api.errors import ApiError
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.principals import holder_of_key
from hermes_worker.settings import Secret, ServerSettings
from hermes_worker.settings.server_key import fingerprint_of

PUBLIC_PATHS = frozenset({"/health", "/v1/health"})
"""Need no key (docs/behaviour.md, "HTTP API")."""
SIGNED_PATHS = "/webhooks/"
"""What is below needs a signature instead."""
_MISSING = (
    "Invalid API key. Send the key as a bearer token, in the header Authorization. It is the content of the file "
    "api.key in the server's home directory (~/.hermes-worker, unless HERMES_HOME or --home names another), or what "
    "HERMES_SERVER_KEY (server.key) says where that is set."
)


def needs_key(path: str) -> bool:
    """Whether only a holder of the key may use this path."""
    return path not in PUBLIC_PATHS and not path.startswith(SIGNED_PATHS)


def require_safe(server: ServerSettings) -> None:
    """Raises ``ConfigurationError`` when others than this machine can connect and nobody chose a key for them."""
    if server.key is None and not server.is_loopback:
        raise ConfigurationError(
            f"server.host (HERMES_SERVER_HOST) is {server.host!r}, which other machines can reach; "
            "set server.key (HERMES_SERVER_KEY) or listen on 127.0.0.1"
        )


class Guard:
    """Lets a request through, or answers it."""

    def __init__(self, app: ASGIApp, *, key: Secret) -> None:
        self._app = app
        self._key = key
        self._principal = holder_of_key(fingerprint_of(key))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            refusal = self._refusal(Headers(scope=scope), scope["path"])
            if refusal is not None:
                await refusal.response(scope, receive, send)
                return
            if needs_key(scope["path"]):
                scope.setdefault("state", {})[_PRINCIPAL] = self._principal
        await self._app(scope, receive, send)

    def _refusal(self, headers: Headers, path: str) -> ApiError | None:
        if "origin" in headers or headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return ApiError(403, "Requests from web pages are not allowed.", code="origin_not_allowed")
        if not needs_key(path) or _has_key(headers, self._key):
            return None
        return ApiError(401, _MISSING, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


_PRINCIPAL = "principal"


async def principal_of(request: Request) -> str:
    """Who sent a request that the guard let through with the key."""
    return str(request.scope["state"][_PRINCIPAL])


Caller = Annotated[str, Depends(principal_of)]
"""Who asks: for what is recorded with the name of who did it."""


def _has_key(headers: Headers, key: Secret) -> bool:
    given = headers.getlist("authorization")
    if len(given) != 1:
        return False
    scheme, _, token = given[0].partition(" ")
    is_right = hmac.compare_digest(token.strip().encode("utf-8"), key.reveal().encode("utf-8"))
    return is_right and scheme.lower() == "bearer"


def is_for_loopback(headers: Headers) -> bool:
    """Whether the request names this machine, so that no page of a stranger sent it under the page's own name."""
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
