"""A fake of the Kubernetes API server, made from the API's published schema: it knows pods, volumes, network policies,
claims of agent-sandbox and exec over websockets, and nothing of scheduling. What is started "in a pod" runs as a
process of this machine.

Where ``kubernetes-validate`` is installed (the extra ``deploy-test``), every body that it is sent is held against the
schemas of four releases, strictly.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from websockets.exceptions import InvalidState
from websockets.frames import Frame, Opcode
from websockets.server import ServerProtocol

from hermes_worker.workspaces.remote.kubernetes import ROOT, SUBPROTOCOL, KubernetesAccount, PodRules
from hermes_worker.workspaces.remote.streams import ServiceAddress
from support.manifests import problems

VERSIONS = ("1.34", "1.35", "1.36", "1.37")
TOKEN = "token-of-the-account"
_VALIDATES = importlib.util.find_spec("kubernetes_validate") is not None
_CLAIM_FIELDS = {
    "warmPoolRef",
    "ttlSecondsAfterCreated",
    "lifecycle",
    "additionalPodMetadata",
    "env",
    "volumeClaimTemplates",
}
"""Of a ``SandboxClaim`` (docs/api.md of agent-sandbox, v1beta1)."""


class FakeCluster:
    """``objects`` are those that there are, by (kind in the path, name)."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory.parent
        self.token_file = directory / "token"
        self.token_file.write_text(TOKEN + "\n")
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.sent: list[dict[str, Any]] = []
        """Every body."""
        self.programs: dict[str, list[subprocess.Popen[bytes]]] = {}
        self.connections: set[Any] = set()
        self.waiting: dict[str, str] | None = None
        """Why containers of new pods do not start."""
        self.allowed = True
        self.lock = threading.RLock()
        self._port = 0
        self.start()

    def start(self) -> None:
        cluster = self

        class Handler(_Handler):
            of = cluster

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._server.daemon_threads = True
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def account(self, **rules: Any) -> KubernetesAccount:
        return KubernetesAccount(
            address=ServiceAddress(url=f"http://127.0.0.1:{self._port}"),
            token_file=self.token_file,
            namespace="work",
            rules=PodRules(image="image", **rules),
        )

    def create(self, kind: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.sent.append(body)
        if complaint := _complaint(kind, body):
            return 422, _status(complaint)
        name = body["metadata"]["name"]
        with self.lock:
            if (kind, name) in self.objects:
                return 409, _status(f"{kind} {name!r} already exists")
            self.objects[kind, name] = body
            if kind == "pods":
                body["status"] = self._started()
            elif kind == "sandboxclaims":
                self._give(body)
        return 201, body

    def delete(self, kind: str, name: str) -> tuple[int, dict[str, Any]]:
        with self.lock:
            found = self.objects.pop((kind, name), None)
            if found is None:
                return 404, _status(f"{kind} {name!r} not found")
            if kind == "pods":
                self.kill_programs(name)
                if any(
                    volume["name"] == "files" and "emptyDir" in volume
                    for volume in found.get("spec", {}).get("volumes", ())
                ):
                    self._lose_files(found)
            elif kind == "persistentvolumeclaims":
                self._lose_files(found)
            elif kind == "sandboxclaims":
                sandbox = found["status"]["sandbox"]["name"]
                del self.objects["sandboxes", sandbox]
                self.delete("pods", f"{sandbox}-pod")
        return 200, _status("", status="Success")

    def _lose_files(self, found: dict[str, Any]) -> None:
        home = Path(found["metadata"]["annotations"][ROOT]).parent
        assert home.is_relative_to(self._directory)
        shutil.rmtree(home, ignore_errors=True)

    def die(self) -> None:
        """The machine of all pods, and the API server: every program ends, every connection is cut."""
        self._server.shutdown()
        self._server.server_close()
        for name in list(self.programs):
            self.kill_programs(name)
        for connection in list(self.connections):
            with suppress(OSError):
                connection.shutdown(2)

    def kill_programs(self, pod: str) -> None:
        for program in self.programs.pop(pod, ()):
            with suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)

    def _started(self) -> dict[str, Any]:
        if self.waiting is not None:
            state = {"state": {"waiting": self.waiting}}
            return {"phase": "Pending", "conditions": [], "containerStatuses": [state]}
        return {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}

    def _give(self, claim: dict[str, Any]) -> None:
        """As agent-sandbox's controller: a sandbox of the pool becomes the claim's."""
        name = f"warm-{claim['metadata']['name'][-8:]}"
        label = {"agents.x-k8s.io/sandbox-name-hash": name}
        self.objects["pods", f"{name}-pod"] = {
            "metadata": {"name": f"{name}-pod", "labels": label},
            "status": self._started(),
        }
        selector = ",".join(f"{key}={value}" for key, value in label.items())
        self.objects["sandboxes", name] = {"metadata": {"name": name}, "status": {"selector": selector}}
        claim["status"] = {"sandbox": {"name": name}, "conditions": [{"type": "Ready", "status": "True"}]}


def _complaint(kind: str, body: dict[str, Any]) -> str | None:
    if kind == "sandboxclaims":
        unknown = set(body["spec"]) - _CLAIM_FIELDS
        return f"unknown fields {unknown}" if unknown or not body["spec"].get("warmPoolRef", {}).get("name") else None
    name = body["metadata"]["name"]
    return _against_schemas(json.dumps(body).replace(name, "NAME")) if _VALIDATES else None


@cache
def _against_schemas(text: str) -> str | None:
    """Seconds, as the schemas are large: once for all bodies that differ in their names alone."""
    body = json.loads(text.replace("NAME", "name"))
    return "; ".join(complaint for version in VERSIONS for complaint in problems(body, version)) or None


def _status(message: str, **more: Any) -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, **more}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    of: FakeCluster

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        kind, name, rest, query = self._wanted()
        if not self._is_known():
            return
        if rest == "exec":
            self._exec(name, query)
        elif name:
            found = self.of.objects.get((kind, name))
            self._answer(200 if found else 404, found or _status(f"{kind} {name!r} not found"))
        else:
            (selector,) = query.get("labelSelector", [""])
            key, _, value = selector.partition("=")
            items = [
                each
                for (what, _), each in list(self.of.objects.items())
                if what == kind
                and (value or each["metadata"].get("labels", {}).get(key))
                == each["metadata"].get("labels", {}).get(key)
                is not None
            ]
            self._answer(200, {"kind": "List", "items": items})

    def do_POST(self) -> None:
        kind, _, _, _ = self._wanted()
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._is_known():
            return
        if kind == "selfsubjectaccessreviews":
            self._answer(201, {**body, "status": {"allowed": self.of.allowed}})
        else:
            self._answer(*self.of.create(kind, body))

    def do_DELETE(self) -> None:
        kind, name, _, _ = self._wanted()
        if self._is_known():
            self._answer(*self.of.delete(kind, name))

    def _wanted(self) -> tuple[str, str, str, dict[str, list[str]]]:
        parts = urlsplit(self.path)
        path = parts.path.split("/namespaces/work/")[-1].split("/") if "/namespaces/" in parts.path else ["", ""]
        if "/namespaces/" not in parts.path:
            path = [parts.path.rsplit("/", 1)[-1]]
        kind, name, rest = [*path, "", "", ""][:3]
        return kind, name, rest, parse_qs(parts.query, keep_blank_values=True)

    def _is_known(self) -> bool:
        if self.headers.get("Authorization") == f"Bearer {TOKEN}":
            return True
        self._answer(401, _status("Unauthorized"))
        return False

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _exec(self, pod: str, query: dict[str, list[str]]) -> None:
        self.close_connection = True
        with self.of.lock:
            if ("pods", pod) not in self.of.objects:
                self._answer(404, _status(f'pods "{pod}" not found'))
                return
            if self.of.objects["pods", pod]["status"]["phase"] != "Running":
                self._answer(400, _status(f"pod {pod} does not have a host assigned"))
                return
            pipe = subprocess.PIPE
            env = {"PATH": os.environ["PATH"], "HOME": "/tmp", "LANG": "C.UTF-8"}
            program = subprocess.Popen(
                query["command"], stdin=pipe, stdout=pipe, stderr=pipe, env=env, start_new_session=True
            )
            self.of.programs.setdefault(pod, []).append(program)
            self.of.connections.add(self.connection)
        try:
            _Channels(self, program).serve()
        finally:
            self.of.connections.discard(self.connection)


class _Channels:
    """A websocket of the subprotocol v5, and the program behind it."""

    def __init__(self, handler: _Handler, program: subprocess.Popen[bytes]) -> None:
        self._socket = handler.connection
        self._program = program
        self._lock = threading.Lock()
        self._protocol = ServerProtocol(subprotocols=[SUBPROTOCOL], max_size=None)  # type: ignore[list-item]
        # The line of the request is longer than the library allows.
        head = "".join(f"{name}: {value}\r\n" for name, value in handler.headers.items())
        self._protocol.receive_data(f"GET / HTTP/1.1\r\n{head}\r\n".encode())
        (request,) = self._protocol.events_received()
        self._protocol.send_response(self._protocol.accept(request))  # type: ignore[arg-type]
        self._flush()

    def serve(self) -> None:
        reading = threading.Thread(target=self._read, daemon=True)
        reading.start()
        assert self._program.stdin and self._program.stdout and self._program.stderr
        streams = {self._program.stdout: 1, self._program.stderr: 2}
        with suppress(OSError):
            while streams:
                for stream in wait(list(streams)):
                    data = os.read(stream.fileno(), 30_000)
                    if data:
                        self._say(streams[stream], data)
                    else:
                        del streams[stream]
            code = self._program.wait()
            self._say(3, json.dumps(_ended(128 - code if code < 0 else code)).encode())
            with self._lock, suppress(InvalidState):  # the client closed first
                self._protocol.send_close(1000)
            self._flush()
        with suppress(OSError):
            self._socket.shutdown(1)  # and read on: what is closed unread is reset, and what was said last with it
        reading.join()
        for stream in (self._program.stdin, self._program.stdout, self._program.stderr):
            with suppress(OSError):
                stream.close()

    def _say(self, channel: int, data: bytes) -> None:
        with self._lock:
            self._protocol.send_binary(bytes([channel]) + data)
        self._flush()

    def _read(self) -> None:
        assert self._program.stdin
        with suppress(OSError):
            while data := self._socket.recv(65_536):
                with self._lock:
                    self._protocol.receive_data(data)
                    events = self._protocol.events_received()
                self._flush()
                for event in events:
                    if isinstance(event, Frame) and event.opcode is Opcode.BINARY:
                        self._take(bytes(event.data))
        with suppress(OSError):
            self._program.stdin.close()

    def _take(self, message: bytes) -> None:
        assert self._program.stdin
        with suppress(OSError, ValueError):
            if message[0] == 255 and message[1:] == b"\0":
                self._program.stdin.close()
            elif message[0] == 0:
                self._program.stdin.write(message[1:])
                self._program.stdin.flush()

    def _flush(self) -> None:
        with self._lock, suppress(OSError):
            for data in self._protocol.data_to_send():
                if data:
                    self._socket.sendall(data)


def _ended(code: int) -> dict[str, Any]:
    """As the kubelet says it (k8s.io/apimachinery, ``StatusReason`` ``NonZeroExitCode``)."""
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    causes = [{"reason": "ExitCode", "message": str(code)}]
    message = f"command terminated with non-zero exit code: exit status {code}"
    return _status(message, reason="NonZeroExitCode", details={"causes": causes})


@contextmanager
def fake_cluster(directory: Path) -> Iterator[FakeCluster]:
    directory.mkdir(parents=True, exist_ok=True)
    cluster = FakeCluster(directory)
    try:
        yield cluster
    finally:
        cluster.die()
