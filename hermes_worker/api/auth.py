"""Authentication of the API: a request needs a key; an event for a webhook route needs a signature instead.

There is one key of the installation, which may do everything for the default tenant, and there are keys that were given
out (``store.access.principals``). A browser that has logged in to the page sends a cookie instead, which stands for a
key (``store.access.page_logins``). The guard finds out once who sent a request and for which tenant, and puts the
answer into the request's scope.

That a request comes from this machine is no reason to let it in. An agent's commands run here, and so does a browser
with pages of strangers: such a page can send requests here (they then have an ``Origin``), or have its own name resolve
to 127.0.0.1 and count as the same origin (then ``Host`` is its name).
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, cast
from urllib.parse import unquote

import anyio
import anyio.to_thread
from fastapi import Depends, Request
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from hermes_worker.api.cors import is_listed
from hermes_worker.api.errors import ApiError, invalid, tenant_not_found, unavailable
from hermes_worker.api.key_watch import serve_while_valid
from hermes_worker.api.page import LOGIN_PATH, PageHosts, read_login
from hermes_worker.core.errors import ConfigurationError, UnavailableError
from hermes_worker.core.principals import (
    CLI,
    DEFAULT_TENANT,
    NAME_CHARS_MAX,
    TENANT_HEADER,
    USER_HEADER,
    KeyScope,
    Principal,
    format_key_holder,
    format_machine_user,
)
from hermes_worker.observe import log
from hermes_worker.settings import Secret, ServerSettings
from hermes_worker.settings.server_key import compute_fingerprint
from hermes_worker.store.access.audit import Actor, set_actor
from hermes_worker.store.access.principals import TenantDisabled, TenantNotFound

PUBLIC_PATHS = frozenset({"/health", "/v1/health", "/health/ready"})
"""Paths that need no key."""
SIGNED_PATHS = ("/webhooks/", "/inbound/")
"""Prefixes of paths that need a signature, or the platform's own secret, instead of a key."""
_NO_LOGIN = "The login of this browser is over. Log in again."
_MISSING = (
    "Invalid API key. Send the key as a bearer token, in the header Authorization. It is the content of the file "
    "api.key in the server's home directory (~/.hermes-worker, unless HERMES_HOME or --home names another), or what "
    "HERMES_SERVER_KEY (server.key) says where that is set, or a key that 'hermes-worker tenants keys create' made."
)


_SIGNED_ADDRESS = re.compile(r"/v1/artifacts/[^/]*/content")


def is_signed_address(path: str) -> bool:
    """Whether the proof is in the query, so that a browser may follow the address from any page. Such an address shows
    nothing and changes nothing."""
    return _SIGNED_ADDRESS.fullmatch(path) is not None


def needs_key(path: str) -> bool:
    """Whether only a holder of the key may use this path."""
    return path not in PUBLIC_PATHS and not path.startswith(SIGNED_PATHS) and not is_signed_address(path)


def require_safe(server: ServerSettings) -> None:
    """Raise ``ConfigurationError`` when other machines can connect and the operator chose no key."""
    if server.key is None and not server.is_loopback:
        raise ConfigurationError(
            f"server.host (HERMES_SERVER_HOST) is {server.host!r}, which other machines can reach; "
            "set server.key (HERMES_SERVER_KEY) or listen on 127.0.0.1"
        )


class Keyholders:
    """Finds who holds a key. What was found is remembered for ``REMEMBERED_S``, so that most requests cost no
    statement."""

    def __init__(
        self, key: Secret, find: FindPrincipal, find_login: FindPrincipal, require_tenant: Callable[[str], object]
    ) -> None:
        """``key`` is the installation's; ``find`` looks other keys up, ``find_login`` the cookies of browsers. Both may
        raise ``UnavailableError`` and ``TenantDisabled``. ``require_tenant`` raises ``TenantNotFound``."""
        self._key = key.reveal().encode("utf-8")
        self._operator = Principal(name=format_key_holder(compute_fingerprint(key)))
        self._find = find
        self._find_login = find_login
        self._require_tenant = require_tenant
        self._found: dict[bytes, tuple[Principal, float]] = {}
        self._threads = anyio.CapacityLimiter(_LOOKUP_THREADS)

    async def find_principal(self, token: str) -> Principal | None:
        """Find who holds a key; ``None`` for an unknown key. Raises ``UnavailableError``, ``TenantDisabled``."""
        given = token.encode("utf-8", "surrogatepass")
        if hmac.compare_digest(given, self._key):
            return self._operator
        return await self._look_up(token, self._find, _KEY)

    async def find_principal_by_login(self, token: str) -> Principal | None:
        """Find who is logged in with a browser's cookie; ``None`` where it is unknown. Raises ``UnavailableError``,
        ``TenantDisabled``."""
        return await self._look_up(token, self._find_login, _LOGIN)

    async def act_for(self, principal: Principal, tenant: str | None, user: str | None) -> Principal:
        """Let the installation's own key act for the ``tenant`` and as the ``user`` that the request names;
        ``principal`` itself where it names neither. Raises ``ApiError`` for another key that names one, and
        ``UnavailableError``."""
        if tenant is None and user is None:
            return principal
        if principal is not self._operator:
            message = f"Only the installation's own key may send {TENANT_HEADER!r} and {USER_HEADER!r}."
            raise ApiError(403, message, code="not_the_installations_key")
        if tenant is not None and tenant != DEFAULT_TENANT:
            try:
                await anyio.to_thread.run_sync(self._require_tenant, tenant, limiter=self._threads)
            except TenantNotFound:
                raise tenant_not_found(tenant[:80]) from None
        acting = replace(principal, tenant=tenant or DEFAULT_TENANT, operates=True)
        return acting if user is None else replace(acting, name=format_machine_user(user), source=CLI)

    def forget(self, token: str) -> None:
        """Look the token up again when it is next sent to this process."""
        self._found.pop(_digest(token, _LOGIN), None)

    async def _look_up(self, token: str, find: FindPrincipal, kind: bytes) -> Principal | None:
        # Not the digest alone: what is no key must open nothing because it is a login, or the other way round.
        digest = _digest(token, kind)
        principal, until = self._found.get(digest, (None, 0.0))
        if time.monotonic() < until:
            return principal
        # In threads of their own: a caller that guesses keys must not hold up callers that have one.
        principal = await anyio.to_thread.run_sync(find, token, limiter=self._threads)
        if len(self._found) >= _REMEMBERED_MAX:
            self._found.clear()
        if principal is not None:
            self._found[digest] = (principal, time.monotonic() + REMEMBERED_S)
        else:
            self._found.pop(digest, None)
        return principal


FindPrincipal = Callable[[str], Principal | None]


_KEY, _LOGIN = b"k", b"l"
"""Domain separators for digests, of equal length: no token of one kind reads as another of the other kind."""


def _digest(token: str, kind: bytes) -> bytes:
    return hashlib.sha256(kind + token.encode("utf-8", "surrogatepass")).digest()


REMEMBERED_S = 5.0
"""Seconds for which a key still opens after it was revoked, or its tenant disabled. A request that is being answered
ends at the next look (``key_watch``)."""
_REMEMBERED_MAX = 10_000
_LOOKUP_THREADS = 4


class Guard:
    """ASGI middleware that lets a request through, or answers it with a refusal."""

    def __init__(self, app: ASGIApp, *, holders: Keyholders, hosts: PageHosts, origins: Collection[str] = ()) -> None:
        """``origins`` are the origins of foreign web pages that may send requests."""
        self._app = app
        self._holders = holders
        self._hosts = hosts
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                principal = await self._authenticate(Headers(scope=scope), scope["method"], scope["path"])
            except ApiError as refusal:
                await refusal.response(scope, receive, send)
                return
            if principal is not None:
                scope.setdefault("state", {})[_PRINCIPAL] = principal
                look = partial(self._authenticate, Headers(scope=scope), scope["method"], scope["path"])
                with set_actor(_describe_actor(principal, scope)):
                    await serve_while_valid(self._app, scope, receive, send, look)
                return
        await self._app(scope, receive, send)

    async def _authenticate(self, headers: Headers, method: str, path: str) -> Principal | None:
        """Authenticate a request; ``None`` where its path needs no key. Raises ``ApiError``."""
        is_of_page = "origin" in headers or headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        if is_of_page and not self._is_welcome(headers, path):
            raise ApiError(403, "Requests from web pages are not allowed.", code="origin_not_allowed")
        if not needs_key(path):
            return None
        try:
            return await self._find_holder(headers, method)
        except UnavailableError as error:
            log.warning("database.unreachable", doing="look up a key", error=str(error))
            raise unavailable() from None
        except TenantDisabled as error:
            raise ApiError(403, f"Refused: {error}.", code="tenant_disabled") from None

    def _is_welcome(self, headers: Headers, path: str) -> bool:
        """Whether a web page may send this request."""
        return is_signed_address(path) or is_listed(headers, self._origins) or self._is_of_own_page(headers, path)

    def _is_of_own_page(self, headers: Headers, path: str) -> bool:
        """Whether our own page sent this: it sends its cookie, and a key only to log in. Nothing else has our origin
        for a good reason."""
        brings_login = "authorization" not in headers and read_login(headers) is not None
        return (brings_login or path == LOGIN_PATH) and self._hosts.is_own(headers)

    async def _find_holder(self, headers: Headers, method: str) -> Principal:
        """Find who sent a request by its key or its cookie. Raises ``ApiError``, and as
        ``Keyholders.find_principal``."""
        if "authorization" not in headers and (login := read_login(headers)) is not None:
            if not self._hosts.may_use_login(headers, method):
                raise ApiError(403, "Requests from web pages are not allowed.", code="origin_not_allowed")
            if (principal := await self._holders.find_principal_by_login(login)) is not None:
                return principal
            raise ApiError(401, _NO_LOGIN, code="login_over", headers={"WWW-Authenticate": "Bearer"})
        token = read_bearer(headers)
        if token and (principal := await self._holders.find_principal(token)) is not None:
            return await self._holders.act_for(
                principal, _read_header(headers, TENANT_HEADER), _read_header(headers, USER_HEADER)
            )
        raise ApiError(401, _MISSING, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def _read_header(headers: Headers, name: str) -> str | None:
    """Read a header that may be there once, percent-decoded; ``None`` without it. Raises ``ApiError``."""
    given = headers.getlist(name)
    if not given:
        return None
    text = unquote(given[0])
    if len(given) != 1 or not text.strip() or len(text) > NAME_CHARS_MAX or "\x00" in text:
        raise invalid(name, f"Invalid {name!r}: it must be there once, with 1 to {NAME_CHARS_MAX} characters.")
    return text


def _describe_actor(principal: Principal, scope: Scope) -> Actor:
    """Describe the caller for the audit log. The address is the peer of the connection, which may be a proxy; there is
    none for a person who works at the machine itself."""
    client = scope.get("client") if principal.source != CLI else None
    return Actor(tenant=principal.tenant, name=principal.display_name, address=str(client[0]) if client else None)


_PRINCIPAL = "principal"


def read_principal(scope: Scope) -> Principal | None:
    """Read who sent the request of this scope; ``None`` where its path needs no key."""
    found: Principal | None = scope.get("state", {}).get(_PRINCIPAL)
    return found


async def require_principal(request: Request) -> Principal:
    """Read who sent a request that the guard let through with a key."""
    return cast("Principal", request.scope["state"][_PRINCIPAL])


Caller = Annotated[Principal, Depends(require_principal)]
"""A route's parameter: who sent the request, and for which tenant."""


def require_scope(caller: Principal, scope: KeyScope, *, why: str = "") -> None:
    """Raise ``ApiError`` when the key of a caller lacks a scope. ``why`` is put behind the scope's name, where only a
    part of the operation needs it."""
    if caller.has_scope(scope):
        return
    message = (
        f"This key lacks the scope {scope.value!r}{why}. Ask an operator for a key that has it: "
        f"hermes-worker tenants keys create HOLDER --scope {scope.value}."
    )
    raise ApiError(403, message, code="missing_scope")


class ScopeCheck:
    """A dependency of a route that refuses a caller whose key lacks a scope."""

    def __init__(self, scope: KeyScope, *, is_for_operators: bool = False) -> None:
        self.scope = scope
        self._is_for_operators = is_for_operators

    async def __call__(self, caller: Caller) -> None:
        require_scope(caller, self.scope)
        if self._is_for_operators and not caller.is_of_operators:
            message = (
                f"This is about the whole installation: it needs a key of the tenant {DEFAULT_TENANT!r} with the scope "
                f"{self.scope.value!r}."
            )
            raise ApiError(403, message, code="missing_scope")


def declare_scope(scope: KeyScope, *, is_for_operators: bool = False) -> Any:
    """Declare which scope a key must have to open a route. Every route that needs a key declares one."""
    return Depends(ScopeCheck(scope, is_for_operators=is_for_operators))


READS = declare_scope(KeyScope.RUNS_READ)
WRITES = declare_scope(KeyScope.RUNS_WRITE)
APPROVES = declare_scope(KeyScope.APPROVE)
FOR_OPERATORS = declare_scope(KeyScope.ADMIN, is_for_operators=True)
FOR_SCALERS = declare_scope(KeyScope.OPS_READ, is_for_operators=True)
"""Dependencies of routes: the scope that a key must have; the last two are for what concerns the whole installation."""


def list_scopes(route: APIRoute) -> list[KeyScope]:
    """List the scopes that a route declared with ``declare_scope``."""
    return [each.call.scope for each in route.dependant.dependencies if isinstance(each.call, ScopeCheck)]


def read_bearer(headers: Headers) -> str | None:
    """Read the key that a request brings; ``None`` for no key, and for two."""
    given = headers.getlist("authorization")
    if len(given) != 1:
        return None
    scheme, _, token = given[0].partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def is_for_loopback(headers: Headers) -> bool:
    """Whether the request names this machine in ``Host``, so that no stranger's page sent it under the page's own
    name."""
    hosts = headers.getlist("host")
    return len(hosts) == 1 and _is_loopback(hosts[0])


_AUTHORITY = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>[^:\[\]]+))(?::\d*)?")


def _is_loopback(authority: str) -> bool:
    """Whether ``host``, ``host:port`` or ``[address]:port`` names this machine, without asking a resolver."""
    match = _AUTHORITY.fullmatch(authority)
    if match is None:
        return False
    host = match["six"] or match["host"]
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
