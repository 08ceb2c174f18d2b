"""Connect workers to the browsers of a host: DevTools over a WebSocket, one session of one browser at a time.

Theory of operation. Each browser has one pair of pipes, and the host is its only client. It keeps a session of its own
in every page, where it ends dialogs and turns away from addresses that no page may show. A worker that connects gets a
session with the browser as a whole (``Target.attachToBrowserTarget``), below which everything that it attaches to
hangs; when its connection ends, that session is detached and nothing of it is left. So a worker cannot tell that there
was one before it, and an earlier one cannot act behind its back: a later connection takes the place of an earlier one.

A connection names the resource and its secret in the path, which stand in the row, and the token of the call's use in a
header. The row is asked whether that call has the use now. The messages of a worker are read: only the host ends a
browser, gives permissions or lets files in and out.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import secrets
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from hermes_worker.observe import log

MESSAGE_BYTES_MAX: Final = 64 * 1024**2
"""Bytes of one message, in either direction; a screenshot has some megabytes."""
_T = TypeVar("_T")
_ATTACH_S: Final = 10.0
_BEGIN_S: Final = 90.0
"""How many seconds a browser on a busy machine may take for its first word; one that has ended is not waited for."""
_ALIVE_EVERY_S: Final = 3.0
_SHOWN: Final = frozenset({"http", "https", "about", "data", "blob", "chrome-error", ""})
"""Schemes of pages. ``chrome-error`` is what stands where a page could not be loaded."""
_NOT_FOR_WORKERS: Final = frozenset(
    {
        "Browser.close",
        "Browser.crash",
        "Browser.crashGpuProcess",
        "Browser.grantPermissions",
        "Browser.setPermission",
        "Browser.addPrivacySandboxEnrollmentOverride",
        "DOM.setFileInputFiles",
        "Page.crash",
        "Page.handleFileChooser",
        "Target.exposeDevToolsProtocol",
        "Target.setRemoteLocations",
        "Extensions.loadUnpacked",
    }
)
_ANSWERED_HERE: Final = frozenset({"Browser.setDownloadBehavior", "Page.setDownloadBehavior"})
"""The host refuses downloads; a library that wants to allow them is told that it did."""


def may_show(url: str) -> bool:
    """Whether a page may be at ``url``, as far as its scheme says."""
    try:
        return urlsplit(url.strip()).scheme.lower() in _SHOWN
    except ValueError:
        return False


class MessageRefused(Exception):
    """A message that is not for workers; the text says why."""


def judge_message(message: Mapping[str, Any]) -> bool:
    """Whether a worker's message is for the browser; false for one that is answered here. Raises ``MessageRefused``."""
    method = message.get("method")
    if not isinstance(method, str):
        raise MessageRefused("a message needs a method")
    if method in _ANSWERED_HERE:
        return False
    if method in _NOT_FOR_WORKERS:
        raise MessageRefused(f"{method} is not for the users of a browser")
    parameters = message.get("params")
    url = parameters.get("url") if isinstance(parameters, dict) else None
    if method in ("Page.navigate", "Target.createTarget") and isinstance(url, str) and not may_show(url):
        raise MessageRefused("pages are at http and https addresses")
    return True


Send = Callable[[str], Awaitable[None]]


class _WorkerConnection:
    """A worker's connection to a browser."""

    def __init__(self, send: Send, close: Callable[[], None], session: str) -> None:
        self.send = send
        self.close = close
        self.session = session
        self.sessions = {session}
        """Its session with the browser, and those below."""


class DevTools:
    """One browser's pipes, shared by its host and one worker. Everything but ``closed`` is for the loop's thread."""

    def __init__(self, commands: int, events: int) -> None:
        self._commands = commands
        self._events = events
        self._number = 0
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._own: set[str] = set()
        self._client: _WorkerConnection | None = None
        self._writing = asyncio.Lock()
        self._opened: set[asyncio.Task[None]] = set()
        self.closed = threading.Event()
        """Set when the browser has ended, so that nothing more comes from it."""

    async def attach(self) -> None:
        """Take the browser over. Raises ``OSError``, ``TimeoutError``."""
        self._spawn(self._read())
        async with asyncio.timeout(_BEGIN_S):
            await self.send_command("Browser.getVersion")
            await self.send_command("Browser.setDownloadBehavior", {"behavior": "deny"})
            await self.send_command("Target.setDiscoverTargets", {"discover": True})
            await self.send_command(
                "Target.setAutoAttach",
                {"autoAttach": True, "waitForDebuggerOnStart": False, "flatten": True},
            )

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._opened.add(task)
        task.add_done_callback(self._opened.discard)

    def stop(self) -> None:
        """Let go of the pipes; their owner closes them."""
        for task in tuple(self._opened):
            task.cancel()
        if self._client is not None:
            self._client.close()

    async def send_command(
        self, method: str, params: Mapping[str, Any] | None = None, session: str | None = None
    ) -> Any:
        """Send a command of the host and return its answer. Raises ``OSError`` when the browser has ended."""
        self._number += 1
        number = self._number
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        message: dict[str, Any] = {"id": number, "method": method, "params": dict(params or {})}
        if session is not None:
            message["sessionId"] = session
        try:
            await self._write(json.dumps(message))
            return await answer
        finally:
            self._answers.pop(number, None)

    async def _write(self, text: str) -> None:
        data = text.encode() + b"\0"
        async with self._writing:
            await asyncio.get_running_loop().run_in_executor(None, _write_all, self._commands, data)

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=MESSAGE_BYTES_MAX)
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(os.dup(self._events), "rb", buffering=0)
        )
        try:
            while True:
                data = await reader.readuntil(b"\0")
                await self._on_message(data[:-1].decode("utf-8", "replace"))
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, ValueError) as error:
            log.info("browser.closed", reason=type(error).__name__)
        finally:
            transport.close()
            self.closed.set()
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(ConnectionResetError("the browser has ended"))
            if self._client is not None:
                self._client.close()

    async def _on_message(self, text: str) -> None:
        message = json.loads(text)
        session = message.get("sessionId")
        if session is None or session in self._own:
            self._on_own_message(message, session)
            return
        client = self._client
        if client is None or session not in client.sessions:
            return
        if message.get("method") == "Target.attachedToTarget":
            client.sessions.add(message["params"]["sessionId"])
        elif message.get("method") == "Target.detachedFromTarget":
            client.sessions.discard(message["params"].get("sessionId", ""))
        if session == client.session:
            del message["sessionId"]
            text = json.dumps(message)
        with suppress(Exception):  # the worker left, or is made to
            await client.send(text)

    def _on_own_message(self, message: dict[str, Any], session: str | None) -> None:
        if (number := message.get("id")) is not None:
            answer = self._answers.get(number)
            if answer is not None and not answer.done():
                answer.set_result(message.get("result", {}))
            return
        method, params = message.get("method"), message.get("params", {})
        if method == "Target.attachedToTarget":
            target, below = params["targetInfo"], params["sessionId"]
            if target["type"] == "page":
                self._own.add(below)
                self._spawn(self._send_quietly("Page.enable", {}, below))
        elif method == "Target.detachedFromTarget":
            self._own.discard(params.get("sessionId", ""))
        elif method == "Page.javascriptDialogOpening":
            accept = params.get("type") == "beforeunload"
            self._spawn(self._send_quietly("Page.handleJavaScriptDialog", {"accept": accept}, session))
        elif method == "Page.frameNavigated" and not may_show(params["frame"].get("url", "")):
            self._spawn(self._send_quietly("Page.navigate", {"url": "about:blank"}, session))

    async def _send_quietly(self, method: str, params: Mapping[str, Any], session: str | None) -> None:
        with suppress(OSError):
            await self.send_command(method, params, session)

    async def serve(self, send: Send, close: Callable[[], None], receive: Callable[[], Awaitable[str]]) -> None:
        """Serve a worker until its connection ends, or a later one takes its place."""
        if self._client is not None:
            self._client.close()
        async with asyncio.timeout(_ATTACH_S):
            session = (await self.send_command("Target.attachToBrowserTarget"))["sessionId"]
        client = self._client = _WorkerConnection(send, close, session)
        try:
            while self._client is client:
                await self._forward_message(client, json.loads(await receive()))
        finally:
            if self._client is client:
                self._client = None
            await self._send_quietly("Target.detachFromTarget", {"sessionId": session}, None)

    async def _forward_message(self, client: _WorkerConnection, message: Any) -> None:
        if not isinstance(message, dict) or not isinstance(message.get("id"), int):
            raise ValueError("no message of DevTools")
        above = message.get("sessionId")
        answer: dict[str, Any] = {"id": message["id"]} | ({"sessionId": above} if above else {})
        try:
            if above is not None and above not in client.sessions:
                raise MessageRefused("there is no such session")
            if not judge_message(message):
                await client.send(json.dumps(answer | {"result": {}}))
                return
        except MessageRefused as error:
            await client.send(json.dumps(answer | {"error": {"code": -32000, "message": str(error)}}))
            return
        await self._write(json.dumps({**message, "sessionId": above or client.session}))


def wait_keeping_alive(opening: Future[_T], keep_alive: Callable[[], None], *, every_s: float = _ALIVE_EVERY_S) -> _T:
    """Wait for ``opening`` without a limit and return its result; ``keep_alive`` is called meanwhile. Raises what it
    raises.
    """
    while True:
        wait([opening], every_s)
        if opening.done():
            return opening.result()
        keep_alive()


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


class BrowserRelay:
    """The WebSocket server of a host, on a thread of its own. Needs the extra ``browser``."""

    def __init__(self, host: str, address: str, may_use: Callable[[str, str], bool]) -> None:
        """Listen on ``host``, which workers know as ``address``. ``may_use`` is called with a resource's id and a
        token.
        """
        self._host = host
        self._address = address
        self._may_use = may_use
        self._loop = asyncio.new_event_loop()
        self._browsers: dict[str, tuple[str, DevTools]] = {}
        self._port = 0
        self._ready = threading.Event()
        self._problem: BaseException | None = None
        threading.Thread(target=self._run, name="browser-relay", daemon=True).start()
        self._ready.wait()
        if self._problem is not None:
            raise self._problem

    def open(
        self, resource_id: str, commands: int, events: int, keep_alive: Callable[[], None]
    ) -> tuple[str, DevTools]:
        """Serve a browser; return its endpoint. ``keep_alive`` is called again and again until the browser can be used:
        it ends itself when its host says nothing. Raises ``OSError``, ``TimeoutError``.
        """
        opening = asyncio.run_coroutine_threadsafe(self._open(resource_id, commands, events), self._loop)
        return wait_keeping_alive(opening, keep_alive)

    def close(self, resource_id: str) -> None:
        """Stop serving a browser. Idempotent."""
        asyncio.run_coroutine_threadsafe(self._close(resource_id), self._loop).result(60)

    async def _open(self, resource_id: str, commands: int, events: int) -> tuple[str, DevTools]:
        tools = DevTools(commands, events)
        secret = secrets.token_urlsafe(24)
        try:
            await tools.attach()
        except BaseException:
            tools.stop()
            raise
        self._browsers[resource_id] = (secret, tools)
        return f"ws://{self._address}:{self._port}/{resource_id}/{secret}", tools

    async def _close(self, resource_id: str) -> None:
        found = self._browsers.pop(resource_id, None)
        if found is not None:
            found[1].stop()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._listen())
        except BaseException as error:
            self._problem = error
            self._ready.set()
            return
        self._loop.run_forever()

    async def _listen(self) -> None:
        from websockets.asyncio.server import serve

        # Nothing is compressed: what comes from a page must not choose how much memory it takes.
        self._server = await serve(
            self._on_connection, self._host, 0, max_size=MESSAGE_BYTES_MAX, compression=None, server_header=None
        )
        self._port = next(iter(self._server.sockets)).getsockname()[1]
        self._ready.set()

    async def _on_connection(self, socket: Any) -> None:
        tools = await self._admit_request(socket.request)
        if tools is None:
            await socket.close(4003, "this browser is not yours")
            return
        try:
            await tools.serve(socket.send, socket.transport.abort, socket.recv)
        except (OSError, TimeoutError, ValueError) as error:
            log.info("browser.connection_ended", reason=type(error).__name__)
        except Exception as error:
            if not type(error).__name__.startswith("ConnectionClosed"):
                raise

    async def _admit_request(self, request: Any) -> DevTools | None:
        resource_id, _, secret = request.path.removeprefix("/").partition("/")
        found = self._browsers.get(resource_id)
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if found is None or not hmac.compare_digest(secret.encode(), found[0].encode()):
            return None
        asked = self._loop.run_in_executor(None, self._may_use, resource_id, token)
        return found[1] if await asked else None
