"""The scripted model over HTTP: ``POST /v1/chat/completions``, ``GET /v1/models``, ``GET /health``, on loopback only.

Asks for no key. ``python -m hermes_worker.models.scripted --port 0`` serves until it is ended; ``ScriptedServer``
serves from a thread of the process that needs it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from typing import Any

from hermes_worker.models.scripted.http11 import (
    HEAD_BYTES_MAX,
    STREAM_END,
    STREAM_HEAD,
    BadRequest,
    ScriptedRequest,
    http_chunk,
    json_response,
    read_request,
)
from hermes_worker.models.scripted.procedure import next_reply
from hermes_worker.models.scripted.reply import Reply, ScriptedFault
from hermes_worker.models.scripted.wire import document, events

HOST = "127.0.0.1"
MODEL = "scripted"
_FAULTS_MAX = 10_000
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How replies are sent where a script says nothing else."""

    latency_s: float = 0.0
    """Before the first byte."""
    chunks: int = 4
    """Events that each text is cut into."""
    chunk_gap_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """What a server has been asked so far."""

    completions: int = 0
    streamed: int = 0
    in_flight: int = 0
    faults: int = 0
    """Failures that scripts asked for."""
    disconnects: int = 0
    """Clients that left before their reply was sent."""


class _Model:
    """The state of one server: counters, and how often which step of a script has failed."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.requests = Requests()
        self._failures: Counter[str] = Counter()

    def count(self, **changes: int) -> None:
        current = self.requests
        self.requests = replace(current, **{name: getattr(current, name) + by for name, by in changes.items()})

    def due_fault(self, reply: Reply) -> ScriptedFault | None:
        """The failure that this reply is to end in, counted; ``None`` when it has failed often enough."""
        fault = reply.fault
        if fault is None or (fault.times is not None and self._failures[reply.fault_key] >= fault.times):
            return None
        if len(self._failures) >= _FAULTS_MAX:
            self._failures.clear()
        self._failures[reply.fault_key] += 1
        self.count(faults=1)
        return fault


class _Broken(Exception):
    """A script wants the connection to break here."""


class _Connection:
    """One client connection: requests are answered one after the other."""

    def __init__(self, model: _Model, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._model = model
        self._reader = reader
        self._writer = writer

    async def serve(self) -> None:
        try:
            while (request := await read_request(self._reader, self._writer)) is not None:
                await self._answer(request)
                if not request.keeps_alive:
                    return
        except BadRequest as error:
            self._writer.write(_error(error.status, str(error), keeps_alive=False))
        except ConnectionError:
            self._model.count(disconnects=1)
        except _Broken:
            _log.debug("scripted.connection_broken")
        except Exception:
            # The entry point of every request: one that we cannot answer must not leave its client without a word.
            _log.exception("scripted.reply_failed")
            self._writer.write(_error(HTTPStatus.INTERNAL_SERVER_ERROR, "the reply failed", keeps_alive=False))
        finally:
            self._writer.close()

    async def _answer(self, request: ScriptedRequest) -> None:
        match request.method, request.path.removeprefix("/v1"):
            case "POST", "/chat/completions":
                self._model.count(completions=1, in_flight=1)
                try:
                    await self._complete(request.body)
                finally:
                    self._model.count(in_flight=-1)
            case "GET", "/models":
                models = [{"id": MODEL, "object": "model", "created": 0, "owned_by": "hermes-worker"}]
                self._writer.write(json_response(200, {"object": "list", "data": models}))
            case "GET", "/health":
                self._writer.write(json_response(200, {"status": "ok"}))
            case _, "/chat/completions" | "/models" | "/health":
                self._writer.write(_error(HTTPStatus.METHOD_NOT_ALLOWED, f"{request.method} is not allowed here"))
            case _:
                self._writer.write(_error(HTTPStatus.NOT_FOUND, "there is only /v1/chat/completions and /v1/models"))
        await self._writer.drain()

    async def _complete(self, body: bytes) -> None:
        request = _parsed(body)
        if request is None:
            self._writer.write(_error(HTTPStatus.BAD_REQUEST, "the body is not a JSON object with a list of messages"))
            return
        reply = next_reply(request["messages"], request.get("tools"))
        delay_s = self._model.options.latency_s if reply.pace.delay_s is None else reply.pace.delay_s
        if delay_s > 0:
            await asyncio.sleep(delay_s)
        fault = self._model.due_fault(reply)
        if fault is not None and fault.status is not None:
            self._writer.write(_failure(fault))
        elif request.get("stream"):
            self._model.count(streamed=1)
            await self._stream(request, reply, fault)
        elif fault is not None:
            raise _Broken
        else:
            self._writer.write(json_response(200, document(request, reply)))

    async def _stream(self, request: Mapping[str, Any], reply: Reply, fault: ScriptedFault | None) -> None:
        options, pace = self._model.options, reply.pace
        gap_s = options.chunk_gap_s if pace.chunk_gap_s is None else pace.chunk_gap_s
        chunks = options.chunks if pace.chunks is None else pace.chunks
        self._writer.write(STREAM_HEAD)
        for number, data in enumerate(events(request, reply, int(chunks))):
            if self._writer.is_closing():
                raise ConnectionResetError("the client has gone")  # asyncio would complain of every further write
            if fault is not None and number >= fault.after_chunks:
                await self._writer.drain()
                raise _Broken
            if number and gap_s > 0:
                await self._writer.drain()
                await asyncio.sleep(gap_s)
            self._writer.write(http_chunk(f"data: {data}\n\n".encode("utf-8", "replace")))
        self._writer.write(STREAM_END)


def _parsed(body: bytes) -> dict[str, Any] | None:
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(request, dict) or not isinstance(request.get("messages"), list):
        return None
    return request if all(isinstance(row, dict) for row in request["messages"]) else None


def _error(status: HTTPStatus, message: str, *, keeps_alive: bool = True) -> bytes:
    error = {"message": message, "type": "invalid_request_error", "code": None}
    return json_response(status, {"error": error}, keeps_alive=keeps_alive)


def _failure(fault: ScriptedFault) -> bytes:
    assert fault.status is not None
    headers = {} if fault.retry_after_s is None else {"Retry-After": f"{fault.retry_after_s:g}"}
    error = {"message": fault.message, "type": "scripted_error", "code": fault.code}
    return json_response(fault.status, {"error": error}, headers=headers)


class _Listener:
    """A listening socket and the connections it has accepted."""

    def __init__(self, model: _Model, server: asyncio.Server, tasks: set[asyncio.Task[None]]) -> None:
        self.model = model
        self._server = server
        self._tasks = tasks

    @classmethod
    async def open(cls, model: _Model, port: int) -> _Listener:
        """Raises ``OSError`` when the port cannot be had."""
        tasks: set[asyncio.Task[None]] = set()

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            # Tasks of our own: those that asyncio makes of a coroutine complain on 3.11 when they are cancelled.
            task = asyncio.get_running_loop().create_task(_Connection(model, reader, writer).serve())
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        server = await asyncio.start_server(connected, HOST, port, limit=HEAD_BYTES_MAX, backlog=1_024)
        return cls(model, server, tasks)

    @property
    def port(self) -> int:
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def base_url(self) -> str:
        return f"http://{HOST}:{self.port}/v1"

    async def close(self) -> None:
        """Stop listening and break every connection."""
        self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class ScriptedServer:
    """The scripted model, served from a thread of this process as long as the block lasts."""

    def __init__(self, *, port: int = 0, options: Options | None = None) -> None:
        """``port`` 0 picks a free one. Nothing is opened yet."""
        self._given_port = port
        self._model = _Model(options or Options())
        self._started: Future[str] = Future()
        self._stop: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=self._run, name="scripted-model", daemon=True)

    @property
    def base_url(self) -> str:
        """Valid once the block has been entered."""
        return self._started.result(timeout=0)

    @property
    def requests(self) -> Requests:
        """A snapshot."""
        return self._model.requests

    def __enter__(self) -> ScriptedServer:
        """Listening when it returns. Raises ``OSError`` when the port cannot be had."""
        self._thread.start()
        self._started.result()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._thread.join()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        try:
            listener = await _Listener.open(self._model, self._given_port)
        except OSError as error:
            self._started.set_exception(error)
            return
        stopping = asyncio.Event()
        self._stop = partial(asyncio.get_running_loop().call_soon_threadsafe, stopping.set)
        self._started.set_result(listener.base_url)
        await stopping.wait()
        await listener.close()


async def serve_until(stopping: asyncio.Event, *, port: int, options: Options, announce: Callable[[str], None]) -> None:
    """Serve until ``stopping`` is set; ``announce`` gets the base URL once it listens. Raises ``OSError``."""
    listener = await _Listener.open(_Model(options), port)
    announce(listener.base_url)
    await stopping.wait()
    await listener.close()
