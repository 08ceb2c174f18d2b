"""Serve the MCP servers that are processes of a host to workers: one request over HTTP for one of JSON-RPC.

An address names the resource and its secret, which stand in the row, and a header has the token of the call's use. The
row is asked whether that call has the use now. The answer is that of the server, or an error in its place that says
whether the server may have acted.
"""

from __future__ import annotations

import hmac
import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.hosting.host import HostOptions, ResourceHost
from hermes_worker.hosting.program import NotStarted
from hermes_worker.mcp.protocol import McpError
from hermes_worker.mcp.servers import McpServer, find_unapproved
from hermes_worker.mcp.stdio import LINE_BYTES_MAX, ServerEnded, ServerGone, StdioServer, format_error_output
from hermes_worker.observe import log
from hermes_worker.store.resources import ResourceKind, Resources, ResourceView
from hermes_worker.workspaces.sandbox.backends import Sandbox

_SOCKET_S: Final = 30.0
_UNKNOWN: Final = -32_000
_REFUSED: Final = -32_600


FindServer = Callable[[ResourceView], tuple[McpServer, str | None] | None]
"""Finds the server of a resource, and its token; ``None`` for an unknown one. Raises ``NotStarted``."""


@dataclass(frozen=True, slots=True)
class _HostedServer:
    name: str
    server: McpServer
    process: StdioServer
    endpoint: str
    secret: str
    unapproved: frozenset[str]
    close: Callable[[str], None]

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def has_ended(self) -> bool:
        return self.process.has_ended

    def keep_alive(self) -> None:
        self.process.keep_alive()

    def end(self) -> None:
        self.close(self.name)
        self.process.end()


class McpBridge:
    """The HTTP server of a host."""

    def __init__(self, host: str, address: str, may_use: Callable[[str, str], bool]) -> None:
        """Listen on ``host``, which workers know as ``address``. Raises ``OSError``."""
        self._may_use = may_use
        self._open: dict[str, _HostedServer] = {}
        bridge = self

        class Handler(_BridgeHandler):
            answer = staticmethod(bridge.answer_request)

        self._http = _BridgeServer((host, 0), Handler)
        self._url = f"http://{address}:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, name="mcp-bridge", daemon=True).start()

    def open_server(self, resource: ResourceView, server: McpServer, process: StdioServer) -> _HostedServer:
        """Make a process known to workers, after a look at the tools that it offers. Raises ``McpError``."""
        waiting = find_unapproved(server, process.initialize())
        if waiting:
            log.warning("mcp.unapproved", mcp_server=resource.name, tools=sorted(waiting)[:20])
        secret = secrets.token_urlsafe(24)
        name = resource.resource_id
        endpoint = f"{self._url}/{name}/{secret}"
        hosted = _HostedServer(name, server, process, endpoint, secret, frozenset(waiting), self._forget_server)
        self._open[name] = hosted
        return hosted

    def _forget_server(self, name: str) -> None:
        self._open.pop(name, None)

    def close(self) -> None:
        """Close the server: no worker is let in any more."""
        self._http.shutdown()
        self._http.server_close()

    def answer_request(self, path: str, token: str, message: object) -> tuple[int, Mapping[str, Any]]:
        """The status and the body of the answer to one request."""
        name, _, secret = path.removeprefix("/").partition("/")
        hosted = self._open.get(name)
        if hosted is None or not hmac.compare_digest(secret.encode(), hosted.secret.encode()):
            return 410, {}
        if not self._may_use(name, token):
            return 403, {}
        match message:
            case {"method": "tools/call", "params": {"name": str(tool)} as params, "id": 1}:
                said = _ask_server(hosted, tool, params)
                return (410, {}) if said is None else (200, {"jsonrpc": "2.0", "id": 1, **said})
            case _:
                return 400, {}


def _ask_server(hosted: _HostedServer, tool: str, params: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The server's answer, or an error; ``None`` when its process had ended already: its host will say so in the
    row.
    """
    if tool in hosted.unapproved:
        return _render_error(_REFUSED, "its definition is not the one any more that the operator approved")
    ends_at = time.monotonic() + hosted.server.timeout_s
    try:
        if (state := params.get("requestState")) is not None:
            answer = hosted.process.continue_call(str(state), params.get("inputResponses"), ends_at)
        else:
            answer = hosted.process.request("tools/call", params, ends_at)
    except ServerGone:
        return None
    except ServerEnded as error:
        return _render_error(_UNKNOWN, f"{error}{format_error_output(hosted.process)}")
    except McpError as error:
        return _render_error(_UNKNOWN, str(error))
    return {key: answer[key] for key in ("result", "error") if key in answer}


def _render_error(code: int, message: str) -> Mapping[str, Any]:
    return {"error": {"code": code, "message": message}}


class _BridgeServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.info("mcp.connection_ended")


class _BridgeHandler(BaseHTTPRequestHandler):
    timeout = _SOCKET_S
    answer: Callable[[str, str, object], tuple[int, Mapping[str, Any]]]

    def do_POST(self) -> None:
        length = self.headers.get("content-length", "")
        if not length.isascii() or not length.isdigit() or int(length) > LINE_BYTES_MAX:
            return self._send(413, {})
        try:
            message = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            return self._send(400, {})
        token = self.headers.get("authorization", "").removeprefix("Bearer ")
        return self._send(*self.answer(self.path, token, message))

    def _send(self, status: int, said: Mapping[str, Any]) -> None:
        body = dump_canonical_json(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: addresses hold a secret."""


def build_mcp_host(
    rows: Resources,
    servers: FindServer,
    sandbox: Sandbox,
    options: HostOptions,
    bridge_of: Callable[[Callable[[str, str], bool]], McpBridge],
) -> ResourceHost:
    """The host of the servers of this process. ``servers`` returns the server of a resource and its token, ``None`` for
    one that is unknown here; it may raise ``NotStarted``. Raises ``OSError``.
    """

    def start_server(resource: ResourceView, folder: Path) -> _HostedServer:
        known = servers(resource)
        if known is None or not known[0].is_process:
            raise NotStarted(f"its host knows no server {resource.name!r} with a command")
        process = StdioServer(known[0], known[1], folder, sandbox)
        try:
            return bridge.open_server(resource, known[0], process)
        except McpError as error:
            reason = f"{error}{format_error_output(process)}"
            process.end()
            raise NotStarted(reason) from error
        except BaseException:
            process.end()
            raise

    host = ResourceHost(rows, ResourceKind.MCP_STDIO, start_server, options)
    bridge = bridge_of(host.may_use)
    return host
