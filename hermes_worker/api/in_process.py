"""The API of one command: the process that calls it serves it, on a port of this machine, while the command runs.

It is the same application over the same rows, with four differences. Only the routes that a request needs are
imported and built, when the first such request comes: a command needs a few of them, and all take a second. Names and
numbers in queries are not compared with the document of the API, since the one client is of this version and writing
the document takes longer than the answer. Only its own key opens it, which no other process ever has; a request without
it is refused before anything else is looked at. And it does not serve what only a long-running server offers (the page,
events of platforms, metrics).
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
import threading
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, State
from starlette.types import ASGIApp, Receive, Scope, Send

from hermes_worker import installed
from hermes_worker.api.app import build_app, build_context, refuse_impossible_names
from hermes_worker.api.auth import Keyholders, read_bearer
from hermes_worker.api.errors import ApiError
from hermes_worker.api.operations import is_path_of
from hermes_worker.api.server import ApiServer
from hermes_worker.broker.queue import build_home_client, build_redis_client
from hermes_worker.core.errors import UnavailableError
from hermes_worker.core.principals import format_key_holder
from hermes_worker.extension import RouterDeclaration, load_reference
from hermes_worker.local.paths import StackNote, find_embedded_broker_url, find_running_stack
from hermes_worker.observe import import_structlog
from hermes_worker.settings import Secret, Settings
from hermes_worker.settings.sealing import Keyring
from hermes_worker.settings.server_key import KEY_PREFIX, build_keyring, compute_fingerprint
from hermes_worker.store.access.page_logins import PageLogins
from hermes_worker.store.access.principals import Tenants
from hermes_worker.stream.followers import FollowPolicy
from hermes_worker.wiring import Client, build_client, open_database

_STARTS_WITHIN_S = 20.0
_ENDS_WITHIN_S = 5.0


class AloneApp:
    """An ASGI application that is put together from the routers that requests need."""

    def __init__(self, client: Client, key: Secret) -> None:
        self._key = key
        logins = PageLogins(client.database, format_key_holder(compute_fingerprint(key)))
        keyring, proofs = build_keyring(client.settings), Keyring([key])
        context = build_context(client, FollowPolicy(), logins, keyring=keyring, proofs=proofs)
        self._context = replace(context, stack=partial(_find_stack, client.settings))
        self._holders = Keyholders(key, _find_no_principal, _find_no_principal, Tenants(client.database).require_tenant)
        self._apps: dict[tuple[str, ...], FastAPI] = {}
        self.state = State({"context": self._context})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._load_app(())(scope, receive, send)
        elif self._is_ours(scope):
            await self._load_app(self._find_paths(scope["path"]))(scope, receive, send)
        else:
            refusal = ApiError(401, "This is the API of one command, which has the only key.", code="invalid_api_key")
            await refusal.response(scope, receive, send)

    def _is_ours(self, scope: Scope) -> bool:
        given = read_bearer(Headers(scope=scope)) or ""
        return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), self._key.reveal().encode())

    def _find_paths(self, path: str) -> tuple[str, ...]:
        """Find the declared paths that the path of a request fits."""
        routers = installed.get_installed().routers.values()
        return tuple(each for router in routers for each in router.paths if is_path_of(each, path))

    def _load_app(self, paths: tuple[str, ...]) -> ASGIApp:
        """Build the application of these paths, once."""
        if paths not in self._apps:
            declared = [each for each in installed.get_installed().routers.values() if set(paths) & set(each.paths)]
            routers = [_choose_routes(each, paths) for each in declared]
            app = build_app(self._context, self._holders, routers, check=refuse_impossible_names)
            app.add_exception_handler(UnavailableError, _answer_unavailable)
            app.state.deprecated = ()  # the whole document is not here, so the table would name what is missing
            self._apps[paths] = app
        return self._apps[paths]


def _choose_routes(declared: RouterDeclaration, paths: Collection[str]) -> RouterDeclaration:
    """Leave the routes of these paths: FastAPI builds the models of all routes of a router when it looks for one."""
    routes = [each for each in load_reference(declared.implementation).routes if getattr(each, "path", "") in paths]
    return replace(declared, implementation=APIRouter(routes=routes))


async def _answer_unavailable(_request: Request, error: Exception) -> JSONResponse:
    """Answer 503 with the error's own sentence: the person who runs the command is the one who would read a server's
    log."""
    return ApiError(503, f"{str(error)[:1].upper()}{str(error)[1:]}.", code="database_unavailable").response


def _find_stack(settings: Settings) -> StackNote | None:
    return find_running_stack(settings.home) if settings.broker.url is None else None


def _find_no_principal(_token: str) -> None:
    """Find no principal: no key but the command's own opens this API."""


class AloneApi:
    """The API in a thread of this process, from construction until ``close``."""

    def __init__(self, settings: Settings) -> None:
        """Begin to serve. Raises ``ConfigurationError``, and ``UnavailableError`` where the database cannot be used."""
        import_structlog()
        self.key = Secret(f"{KEY_PREFIX}{secrets.token_urlsafe(32)}")
        self._client = _build_client(settings)
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        self._server = _AloneServer(self._client, [listening], app=AloneApp(self._client, self.key))
        self.url = self._server.url
        self._thread = threading.Thread(target=self._server.run, name="api_of_command", daemon=True)
        self._thread.start()
        if not self._server.is_up.wait(_STARTS_WITHIN_S):
            raise UnavailableError("the API of this command did not begin to serve")

    def close(self) -> None:
        """Stop serving, after the requests at work are answered. Idempotent."""
        self._server.end()
        self._thread.join(_ENDS_WITHIN_S)
        self._client.close()


def _build_client(settings: Settings) -> Client:
    server = replace(settings.server, page=False, cors_origins=())
    database = open_database(settings)
    url = settings.broker.url
    broker = build_redis_client(url) if url else build_home_client(lambda: find_embedded_broker_url(settings.home))
    return build_client(replace(settings, server=server), database, broker)


class _AloneServer(ApiServer):
    """A server that stops as soon as ``end`` is called."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.is_up = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._told = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        self.is_up.set()

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self._told.wait()

    def end(self) -> None:
        """Ask the server to stop. Called from another thread than the one that serves."""
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._told.set)
