"""The HTTP API as an ASGI application."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import cached_property, partial
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from hermes_worker import installed
from hermes_worker.api import schema
from hermes_worker.api.auth import FOR_OPERATORS, Guard, Keyholders, list_scopes, needs_key, require_safe
from hermes_worker.api.context import ApiContext
from hermes_worker.api.cors import Cors
from hermes_worker.api.deprecations import DEPRECATED, Deprecations
from hermes_worker.api.document import OPENAPI_VERSION, complete, to_common_version
from hermes_worker.api.errors import DefectLog, install_handlers, invalid
from hermes_worker.api.idempotency import IdempotencyMiddleware
from hermes_worker.api.limits import BodyLimit, OneLength
from hermes_worker.api.middleware import Middleware, change_headers
from hermes_worker.api.operations import find_invalid_number, find_unknown_parameter
from hermes_worker.api.page import PageFiles, PageHosts
from hermes_worker.api.problem_details import ProblemDetails
from hermes_worker.api.request_ids import RequestIds, TracedCaller
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.principals import format_key_holder
from hermes_worker.extension import RouterDeclaration, load_reference
from hermes_worker.settings.sealing import Keyring
from hermes_worker.settings.server_key import build_keyring, compute_fingerprint, keep_server_key
from hermes_worker.store.access.page_logins import PageLogins
from hermes_worker.store.access.principals import Tenants
from hermes_worker.store.list_marks import load_marks
from hermes_worker.stream.changes import ChangeWatchers
from hermes_worker.stream.followers import Followers, FollowPolicy
from hermes_worker.wiring import Client

SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "Strict-Transport-Security": "max-age=31536000; includeSubDomains",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "X-XSS-Protection": "0",
}
"""Headers of every response."""


class SecurityHeaders(Middleware):
    """Adds ``SECURITY_HEADERS`` to every response."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, change_headers(send, _add_security_headers))


def _add_security_headers(headers: MutableHeaders) -> None:
    for name, value in SECURITY_HEADERS.items():
        headers.setdefault(name, value)  # the page has a policy of its own
    headers.setdefault("Cache-Control", "no-store")


class Api(FastAPI):
    """FastAPI, with our guards around everything it does, its handling of defects included."""

    def build_middleware_stack(self) -> ASGIApp:
        announced = Deprecations(super().build_middleware_stack(), self.state.deprecated)
        repeats = IdempotencyMiddleware(announced, document=self.openapi, state=self.state)
        inner = BodyLimit(TracedCaller(repeats))
        server = self.state.context.client.settings.server
        hosts = PageHosts(server)
        guarded = OneLength(Guard(inner, holders=self.state.holders, hosts=hosts, origins=server.cors_origins))
        answered: ASGIApp = Cors(guarded, origins=server.cors_origins)
        served = SecurityHeaders(PageFiles(answered, hosts=hosts) if server.page else answered)
        return RequestIds(DefectLog(ProblemDetails(served)))

    def setup(self) -> None:
        super().setup()
        self.add_route("/openapi.json", self._show_document, include_in_schema=False)

    async def _show_document(self, request: Request) -> JSONResponse:
        """The document in OpenAPI 3.1, or with ``?openapi=3.2`` in 3.2, which describes the events of streams."""
        wanted = request.query_params.get("openapi", "3.1")
        if wanted not in ("3.1", "3.2"):
            raise invalid("openapi", "Invalid 'openapi': the document is written in 3.1 and in 3.2.")
        return JSONResponse(self.openapi() if wanted == "3.2" else self._common_document)

    @cached_property
    def _common_document(self) -> dict[str, Any]:
        return to_common_version(self.openapi())

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            self.openapi_schema = complete(super().openapi(), self.state.deprecated)
        return self.openapi_schema


async def refuse_impossible_names(request: Request) -> None:
    """Answer 404 for a name with a NUL in the path: nothing is called so, and PostgreSQL cannot even be asked."""
    if any("\x00" in value for value in request.path_params.values()):
        raise HTTPException(404)


async def _refuse_unknown_parameters(request: Request) -> None:
    """Refuse a parameter of the query that the operation does not have: it is a mistake, and the caller should learn
    it."""
    await refuse_impossible_names(request)
    app: FastAPI = request.app
    if request.query_params:
        asked = (app.openapi(), request.url.path, request.method)
        if (name := find_unknown_parameter(*asked, request.query_params)) is not None:
            raise invalid(name[:80], f"Unknown parameter: {name[:80]!r}.", "unknown_parameter")
        if (name := find_invalid_number(*asked, request.query_params.multi_items())) is not None:
            raise invalid(name, f"Invalid {name!r}: it must be a number, written as in JSON.")


def create_app(client: Client, policy: FollowPolicy | None = None) -> FastAPI:
    """Build the API over ``client``; closing ``client`` stays with the caller.

    Raises ``ConfigurationError`` when the settings would let other machines in without a key that the operator chose,
    and when there is no key and none can be made.
    """
    require_safe(client.settings.server)
    key = keep_server_key(client.settings)
    tenants = Tenants(client.database)
    page_logins = PageLogins(client.database, format_key_holder(compute_fingerprint(key)))
    holders = Keyholders(key, tenants.find_principal, page_logins.find_principal, tenants.require_tenant)
    keyring = build_keyring(client.settings)
    context = build_context(client, policy or FollowPolicy(), page_logins, keyring=keyring, proofs=keyring)
    return build_app(context, holders, installed.get_installed().routers.values())


def build_context(
    client: Client, policy: FollowPolicy, page_logins: PageLogins, *, keyring: Keyring, proofs: Keyring
) -> ApiContext:
    """Build what the routes of one application over ``client`` share."""
    return ApiContext(
        client=client,
        followers=Followers(client=client.redis, runs=client.runs, views=client.views, policy=policy),
        changes=ChangeWatchers(partial(load_marks, client.database)),
        policy=policy,
        keyring=keyring,
        proofs=proofs,
        tenants=Tenants(client.database),
        page_logins=page_logins,
    )


def build_app(
    context: ApiContext,
    holders: Keyholders,
    routers: Iterable[RouterDeclaration],
    *,
    check: Callable[[Request], Awaitable[None]] = _refuse_unknown_parameters,
) -> FastAPI:
    """Build an application with these routes; ``check`` refuses a request before its route sees it. Raises
    ``ConfigurationError`` for two routes that claim one operation."""
    followers, changes = context.followers, context.changes

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        followers.start()
        changes.start()
        try:
            yield
        finally:
            followers.dismiss()
            changes.dismiss()
            followers.stop()

    app = Api(
        title="Hermes worker",
        version=schema.VERSION,
        description="Submit agent runs, follow them live, stop them.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        responses=schema.EVERYWHERE,
        dependencies=[Depends(check)],
    )
    app.openapi_version = OPENAPI_VERSION
    app.state.deprecated = DEPRECATED
    app.state.holders = holders
    app.state.context = context
    install_handlers(app)
    _serve_routes(app, routers)
    return app


def _is_scoped(router: APIRouter) -> bool:
    """Whether every route of the router says which scope it needs, or that it needs no key."""
    return all(
        isinstance(route, APIRoute) and (list_scopes(route) or not needs_key(route.path)) for route in router.routes
    )


def _serve_routes(app: FastAPI, routers: Iterable[RouterDeclaration]) -> None:
    """Add the routes of these routers. Raises ``ConfigurationError`` for two that claim one operation."""
    claimed: dict[tuple[str, str], str] = {}
    for declared in routers:
        router = load_reference(declared.implementation)
        if not isinstance(router, APIRouter):
            raise ConfigurationError(f"{declared.implementation!r} of an extension must be a fastapi.APIRouter")
        for route in router.routes:
            for method in sorted(getattr(route, "methods", None) or ()):
                operation = (method, getattr(route, "path", ""))
                if operation in claimed:
                    raise ConfigurationError(
                        f"the routers {claimed[operation]!r} and {declared.name!r} of extensions both serve "
                        f"{' '.join(operation)}: disable one of them"
                    )
                claimed[operation] = declared.name
        # Whose a thing is, and what a key allows, its routes say themselves; those that do not are for operators.
        app.include_router(router, dependencies=() if _is_scoped(router) else [FOR_OPERATORS])
