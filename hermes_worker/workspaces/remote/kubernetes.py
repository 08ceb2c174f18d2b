"""Pods: a host for each workspace, made by a cluster of Kubernetes, or claimed from a warm pool of agent-sandbox.

Theory of operation. The name of a pod is made from the root of its workspace, so every worker finds the same one, and
the API server itself refuses a second. Its files are on a volume of the same name, where the operator wants them kept,
and go with the pod otherwise: the id of the files tells a session that they are new. What is done in a pod is an *exec*
over a websocket of the subprotocol ``v5.channel.k8s.io``, whose messages begin with the number of their stream; a
message for the stream 255 ends one (KEP-4006).

A pod has nothing that a command does not need: no token, no capability, no new privileges, a root that is read-only, a
user that is not root, the runtime's filter of system calls, limits, and a network policy that lets nothing through.

This was written from the API's published schema and tried against a fake of it: unverified live.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from hermes_worker.core.errors import format_reason
from hermes_worker.workspaces.base import HostLost, HostUnreachable
from hermes_worker.workspaces.remote.host import WrittenPiece
from hermes_worker.workspaces.remote.http_service import HostService, ServiceAnswer, ServiceFailed
from hermes_worker.workspaces.remote.streams import ServiceAddress, ServiceStream
from hermes_worker.workspaces.sandbox.network import Network

if TYPE_CHECKING:
    from websockets.client import ClientProtocol

OURS: Final = {"app.kubernetes.io/managed-by": "hermes-worker"}
LABEL: Final = "hermes-worker.dev/workspace"
"""The label of everything that belongs to a workspace: its name."""
ROOT: Final = "hermes-worker.dev/root"
"""An annotation: the root of the workspace."""
SUBPROTOCOL: Final = "v5.channel.k8s.io"
_CLAIMS: Final = "/apis/extensions.agents.x-k8s.io/v1beta1"
_SANDBOXES: Final = "/apis/agents.x-k8s.io/v1beta1"
_POLICIES: Final = "/apis/networking.k8s.io/v1"
_CORE: Final = "/api/v1"
_CONTAINER: Final = "work"
_READY_S: Final = 180.0
"""How many seconds a pod may take to be scheduled, its image to be pulled and its container to be started."""
_LOOK_S: Final = 0.25
_GRACE_S: Final = 5
_PING_S: Final = 5.0
_SILENT_S: Final = 30.0
"""A connection over which not even a ping was answered for so many seconds counts as lost."""
_CHUNK_BYTES: Final = 32_768
_MESSAGE_BYTES_MAX: Final = 16 * 1024 * 1024
_STDIN, _STDOUT, _STDERR, _STATUS, _CLOSE = 0, 1, 2, 3, 255
_KILLED: Final = 137
_HOPELESS: Final = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError")
_IDLE: Final = "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRules:
    """The settings that every pod is made with."""

    image: str
    user: int = 10001
    group: int = 10001
    network: Network = Network.NONE
    """The network that the cluster's policies let pods reach. For ``NONE`` a policy is made beside the pods."""
    runtime_class: str | None = None
    memory_bytes: int | None = 2 * 1024**3
    cpus: float | None = 2.0
    tmp_bytes: int = 1024**3
    disk_bytes: int = 10 * 1024**3
    """Bytes of the files that go with the pod."""
    storage_bytes: int | None = None
    """Bytes of the volume that keeps the files; ``None`` when they go with the pod."""
    storage_class: str | None = None
    warm_pool: str | None = None
    """The ``SandboxWarmPool`` to claim pods from. Then their template gives their settings, and not these rules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesAccount:
    """The cluster, the namespace in it, and the settings of its pods."""

    address: ServiceAddress
    token_file: Path
    namespace: str
    rules: PodRules = field(repr=False)

    def build_service(self) -> HostService:
        return HostService(self.address, self._build_headers)

    def _build_headers(self) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {self.token_file.read_text(encoding='ascii').strip()}"}


def build_pod_name(root: str) -> str:
    """The name of everything that belongs to a workspace."""
    return f"hermes-{hashlib.sha256(root.encode()).hexdigest()[:40]}"


def build_pod_spec(root: str, rules: PodRules) -> dict[str, Any]:
    """The pod of a workspace."""
    name, home = build_pod_name(root), PurePosixPath(root).parent
    limits = {"ephemeral-storage": str(rules.disk_bytes + rules.tmp_bytes)}
    if rules.memory_bytes is not None:
        limits["memory"] = str(rules.memory_bytes)
    if rules.cpus is not None:
        limits["cpu"] = f"{round(rules.cpus * 1000)}m"
    files: dict[str, Any] = {"emptyDir": {"sizeLimit": str(rules.disk_bytes)}}
    if rules.storage_bytes is not None:
        files = {"persistentVolumeClaim": {"claimName": name}}
    container = {
        "name": _CONTAINER,
        "image": rules.image,
        "command": ["/bin/sh", "-c", _IDLE],
        "workingDir": "/",
        "env": [
            {"name": key, "value": value} for key, value in (("PATH", _PATH), ("LANG", "C.UTF-8"), ("HOME", str(home)))
        ],
        "resources": {"limits": limits, "requests": {"cpu": "50m", "memory": "64Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "privileged": False,
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [
            {"name": "files", "mountPath": str(home.parent)},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }
    spec: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": _GRACE_S,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": rules.user,
            "runAsGroup": rules.group,
            "fsGroup": rules.group,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [
            {"name": "files", **files},
            {"name": "tmp", "emptyDir": {"sizeLimit": str(rules.tmp_bytes)}},
        ],
    }
    if rules.runtime_class is not None:
        spec["runtimeClassName"] = rules.runtime_class
    return {"apiVersion": "v1", "kind": "Pod", "metadata": _build_metadata(root), "spec": spec}


def build_volume_spec(root: str, rules: PodRules) -> dict[str, Any]:
    """The claim of the volume that keeps the files of a workspace."""
    spec: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": str(rules.storage_bytes)}},
    }
    if rules.storage_class is not None:
        spec["storageClassName"] = rules.storage_class
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": _build_metadata(root), "spec": spec}


def build_policy_spec() -> dict[str, Any]:
    """The network policy that lets nothing into our pods and nothing out of them."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "hermes-workspaces", "labels": dict(OURS)},
        "spec": {"podSelector": {"matchLabels": dict(OURS)}, "policyTypes": ["Ingress", "Egress"]},
    }


def build_claim_spec(root: str, pool: str) -> dict[str, Any]:
    """The claim of a sandbox of a warm pool."""
    return {
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
        "kind": "SandboxClaim",
        "metadata": _build_metadata(root),
        "spec": {"warmPoolRef": {"name": pool}},
    }


def _build_metadata(root: str) -> dict[str, Any]:
    name = build_pod_name(root)
    return {"name": name, "labels": {**OURS, LABEL: name}, "annotations": {ROOT: root}}


class KubernetesHost:
    """The pod of one workspace. Thread-safe; it is made when it is first used."""

    wall: Final = "pod"

    def __init__(self, account: KubernetesAccount, root: str) -> None:
        self._account = account
        self._cluster = ClusterApi(account)
        self._root = root
        self._name = build_pod_name(root)
        self._lock = threading.Lock()
        self._pod = self._name if account.rules.warm_pool is None else ""
        """The pod to exec in; a claim is given a pod whose name is not ours to choose."""

    @property
    def name(self) -> str:
        return self._cluster.name

    @property
    def network(self) -> str:
        return self._account.rules.network.value

    def start(self, argv: Sequence[str]) -> PodProgram:
        for is_last in (False, True):
            pod = self._pod
            refusal = "it has no pod yet"
            if pod:
                try:
                    return self._cluster.execute(pod, argv)
                except _ExecRefused as error:
                    refusal = str(error)
                    if error.status not in (400, 404, 409, 500):
                        is_last = True
            if is_last:
                raise HostUnreachable(f"{self.name} starts nothing: {refusal}")
            with self._lock:
                self._pod = self._ensure_pod()
        raise AssertionError("the second try returns or raises")

    def stop(self) -> bool:
        """Remove the pod, if its files are kept elsewhere or it has none. False when they would go with it. Raises
        ``HostUnreachable``."""
        rules = self._account.rules
        if rules.warm_pool is not None or rules.storage_bytes is None:
            return False
        self._cluster.delete(f"{_CORE}{self._cluster.space}/pods/{self._name}")
        return True

    def remove(self) -> None:
        """Remove the pod and its files. Idempotent. Raises ``HostUnreachable``."""
        if self._account.rules.warm_pool is not None:
            self._cluster.delete(f"{_CLAIMS}{self._cluster.space}/sandboxclaims/{self._name}")
            self._pod = ""
            return
        for kind in ("pods", "persistentvolumeclaims"):
            self._cluster.delete(f"{_CORE}{self._cluster.space}/{kind}/{self._name}")

    def _ensure_pod(self) -> str:
        """Make what does not exist, and wait until a program can be started in it. Returns the name of the pod."""
        rules, deadline = self._account.rules, time.monotonic() + _READY_S
        if rules.warm_pool is not None:
            return self._claim_pod(rules.warm_pool, deadline)
        if rules.network is Network.NONE:
            self._cluster.create(f"{_POLICIES}{self._cluster.space}/networkpolicies", build_policy_spec())
        if rules.storage_bytes is not None:
            target = f"{_CORE}{self._cluster.space}/persistentvolumeclaims"
            self._cluster.create(target, build_volume_spec(self._root, rules))
        while True:
            pod = self._cluster.find_object(f"{_CORE}{self._cluster.space}/pods/{self._name}")
            if pod is None:
                self._cluster.create(f"{_CORE}{self._cluster.space}/pods", build_pod_spec(self._root, rules))
            elif pod["metadata"].get("annotations", {}).get(ROOT) != self._root:
                raise HostUnreachable(f"{self.name} has a pod {self._name!r} that is not ours: remove it there")
            elif _is_over(pod) and not pod["metadata"].get("deletionTimestamp"):
                self._cluster.delete(f"{_CORE}{self._cluster.space}/pods/{self._name}")
            elif _is_ready(pod):
                return self._name
            self._wait(pod, deadline)

    def _claim_pod(self, pool: str, deadline: float) -> str:
        target = f"{_CLAIMS}{self._cluster.space}/sandboxclaims"
        while True:
            claim = self._cluster.find_object(f"{target}/{self._name}")
            if claim is None:
                self._cluster.create(target, build_claim_spec(self._root, pool))
            pod = self._find_pod_of_claim(claim) if claim is not None else None
            if pod is not None and _is_ready(pod):
                return str(pod["metadata"]["name"])
            self._wait(pod, deadline)

    def _find_pod_of_claim(self, claim: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The pod of a claim; ``None`` before there is one. A claim names its sandbox, and that says which pods are its
        own.
        """
        sandbox = claim.get("status", {}).get("sandbox", {}).get("name")
        if not sandbox:
            return None
        found = self._cluster.find_object(f"{_SANDBOXES}{self._cluster.space}/sandboxes/{quote(sandbox)}")
        selector = (found or {}).get("status", {}).get("selector")
        if not selector:
            return None
        pods = self._cluster.list_objects(f"{_CORE}{self._cluster.space}/pods?{urlencode({'labelSelector': selector})}")
        return pods[0] if pods else None

    def _wait(self, pod: Mapping[str, Any] | None, deadline: float) -> None:
        why = _explain_hopeless(pod) if pod is not None else None
        if why is not None:
            raise HostUnreachable(f"{self.name} cannot start the pod of the workspace: {why}")
        if time.monotonic() > deadline:
            raise HostUnreachable(f"{self.name} did not start the pod of the workspace within {_READY_S:.0f} s")
        time.sleep(_LOOK_S)


class ClusterApi:
    """The API server, as we use it. Thread-safe. All methods raise ``HostUnreachable``."""

    def __init__(self, account: KubernetesAccount) -> None:
        self._service = account.build_service()
        self.space = f"/namespaces/{quote(account.namespace)}"
        self.name = f"the Kubernetes API at {account.address.host}"

    def find_object(self, target: str) -> dict[str, Any] | None:
        answer = self._request("GET", target)
        self._require_status(answer, 200, 404)
        return dict(answer.parse_document()) if answer.status == 200 else None

    def list_objects(self, target: str) -> list[dict[str, Any]]:
        answer = self._request("GET", target)
        self._require_status(answer, 200)
        return list(answer.parse_document().get("items") or ())

    def create(self, target: str, document: Mapping[str, Any]) -> None:
        """Create an object. A 409 counts as success: it exists already, or another worker made it a moment ago."""
        self._require_status(self._request("POST", target, document), 200, 201, 202, 409)

    def delete(self, target: str) -> None:
        self._require_status(self._request("DELETE", target), 200, 202, 404)

    def is_permitted(self, verb: str, resource: str, namespace: str) -> bool:
        """Whether our account may do that (a SelfSubjectAccessReview)."""
        name, _, rest = resource.partition("/")
        wanted = {"namespace": namespace, "verb": verb, "resource": name}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": wanted | ({"subresource": rest} if rest else {})},
        }
        answer = self._request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
        self._require_status(answer, 200, 201)
        return bool(answer.parse_document().get("status", {}).get("allowed"))

    def execute(self, pod: str, argv: Sequence[str]) -> PodProgram:
        """Start a program in a pod. Raises ``_ExecRefused`` when nothing was started."""
        asked = [("container", _CONTAINER), *((stream, "true") for stream in ("stdin", "stdout", "stderr"))]
        query = urlencode([*asked, *(("command", part) for part in argv)], quote_via=quote)
        target = f"{_CORE}{self.space}/pods/{quote(pod)}/exec?{query}"
        try:
            stream, protocol = _open_websocket(self._service, target)
        except OSError as error:
            raise HostUnreachable(f"{self.name} cannot be asked: {format_reason(error)}") from error
        return PodProgram(self.name, stream, protocol)

    def _request(self, method: str, target: str, document: Any = None) -> ServiceAnswer:
        try:
            return self._service.request(method, target, document)
        except OSError as error:
            raise HostUnreachable(f"{self.name} cannot be asked: {format_reason(error)}") from error

    def _require_status(self, answer: ServiceAnswer, *statuses: int) -> None:
        if answer.status not in statuses:
            raise HostUnreachable(f"{self.name} refuses: {answer.find_reason()}")


class _ExecRefused(Exception):
    """The API server does not start a program."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def _open_websocket(service: HostService, target: str) -> tuple[ServiceStream, ClientProtocol]:
    """Open a websocket. Raises ``OSError`` and ``_ExecRefused``."""
    from websockets.client import ClientProtocol
    from websockets.exceptions import InvalidStatus
    from websockets.uri import parse_uri

    stream = ServiceStream(service.address)
    try:
        protocol = ClientProtocol(
            parse_uri(f"ws://{service.address.host}{target}"),
            subprotocols=[SUBPROTOCOL],  # type: ignore[list-item]
            max_size=_MESSAGE_BYTES_MAX,
        )
        request = protocol.connect()
        del request.headers["Host"]
        for name, value in {"Host": service.address.host, **service.headers()}.items():
            request.headers[name] = value
        protocol.send_request(request)
        _send_data(stream, protocol)
        deadline = time.monotonic() + _SILENT_S
        while protocol.state.name == "CONNECTING" and protocol.handshake_exc is None:
            _receive_data(stream, protocol, deadline)
        if isinstance(protocol.handshake_exc, InvalidStatus):
            answer = protocol.handshake_exc.response
            said = ServiceAnswer(answer.status_code, bytes(answer.body or b""))
            raise _ExecRefused(answer.status_code, said.find_reason())
        if protocol.handshake_exc is not None:
            raise ServiceFailed(f"no websocket: {protocol.handshake_exc}")
        return stream, protocol
    except BaseException:
        stream.close()
        raise


def _receive_data(stream: ServiceStream, protocol: ClientProtocol, deadline: float) -> None:
    data = stream.read(1.0)
    if data is None:
        if time.monotonic() > deadline:
            raise TimeoutError("no answer in time")
    elif data:
        protocol.receive_data(data)
    else:
        protocol.receive_eof()
    _send_data(stream, protocol)


def _send_data(stream: ServiceStream, protocol: ClientProtocol) -> None:
    for data in protocol.data_to_send():
        if data:
            stream.write(data)
        else:
            stream.end()


class PodProgram:
    """A program in a pod: an exec and its websocket."""

    def __init__(self, name: str, stream: ServiceStream, protocol: ClientProtocol) -> None:
        self._name = name
        self._stream = stream
        self._protocol = protocol
        self._message = bytearray()
        self._pieces: deque[WrittenPiece] = deque()
        self._code: int | None = None
        self._is_hung_up = False
        self._heard_at = self._pinged_at = time.monotonic()
        self._take_frames()

    @property
    def has_ended(self) -> bool:
        return self._code is not None and not self._pieces

    @property
    def exit_code(self) -> int:
        if self._code is None:
            raise HostLost(f"{self._name} was lost before it said how the program ended")
        return self._code

    def send(self, data: bytes) -> None:
        if self._code is not None:
            return
        try:
            for first in range(0, len(data), _CHUNK_BYTES):
                self._send_message(_STDIN, data[first : first + _CHUNK_BYTES])
        except (BrokenPipeError, ConnectionResetError) as error:
            # It ended without reading all that, and said so; or it is gone.
            with suppress(OSError):
                while self._code is None:
                    self._receive_messages(_SILENT_S)
            if self._code is None:
                raise HostLost(f"{self._name} was lost while it was sent something: {format_reason(error)}") from error
        except OSError as error:
            raise HostLost(f"{self._name} was lost while it was sent something: {format_reason(error)}") from error

    def receive(self, timeout_s: float) -> WrittenPiece | None:
        if not self._pieces and self._code is None:
            try:
                self._receive_messages(timeout_s)
            except OSError as error:
                raise HostLost(f"{self._name} was lost while something ran there: {format_reason(error)}") from error
        return self._pieces.popleft() if self._pieces else None

    def hang_up(self) -> None:
        if not self._is_hung_up and self._code is None:
            self._is_hung_up = True
            with suppress(OSError):
                self._send_message(_CLOSE, bytes([_STDIN]))

    def close(self) -> None:
        self.hang_up()
        with suppress(OSError):
            if self._protocol.state.name == "OPEN":
                self._protocol.send_close(1000)
            _send_data(self._stream, self._protocol)
        self._stream.close()

    def _send_message(self, channel: int, data: bytes) -> None:
        from websockets.exceptions import ConnectionClosed, InvalidState

        try:
            self._protocol.send_binary(bytes([channel]) + data)
        except (ConnectionClosed, InvalidState) as error:
            raise ConnectionResetError("the connection is closed") from error
        _send_data(self._stream, self._protocol)

    def _receive_messages(self, timeout_s: float) -> None:
        data = self._stream.read(timeout_s)
        now = time.monotonic()
        if data is None:
            if now > self._heard_at + _SILENT_S:
                raise TimeoutError("it is silent")
            if now > self._pinged_at + _PING_S and self._protocol.state.name == "OPEN":
                self._pinged_at = now
                self._protocol.send_ping(b"")
                _send_data(self._stream, self._protocol)
            return
        self._heard_at = now
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        self._take_frames()
        with suppress(BrokenPipeError, ConnectionResetError):
            _send_data(self._stream, self._protocol)
        if self._protocol.state.name in ("CLOSING", "CLOSED") and self._code is None:
            raise ConnectionResetError("the connection ended")

    def _take_frames(self) -> None:
        from websockets.frames import Frame, Opcode

        for event in self._protocol.events_received():
            if isinstance(event, Frame) and event.opcode in (Opcode.BINARY, Opcode.TEXT, Opcode.CONT):
                self._message += event.data
                if event.fin:
                    self._on_message(bytes(self._message))
                    self._message.clear()

    def _on_message(self, message: bytes) -> None:
        channel, data = message[:1], message[1:]
        if channel in (b"\1", b"\2"):
            if data:
                self._pieces.append(WrittenPiece(channel == b"\2", data))
        elif channel == b"\3":
            self._code = _parse_exit_code(self._name, data)


def _parse_exit_code(name: str, data: bytes) -> int:
    """The exit code in the ``Status`` at the end. Raises ``HostLost`` when it is not the program's own end."""
    try:
        status = json.loads(data)
        if status.get("status") == "Success":
            return 0
        causes = (status.get("details") or {}).get("causes") or ()
        code = next((int(cause["message"]) for cause in causes if cause.get("reason") == "ExitCode"), None)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise HostLost(f"{name} said something that nobody understands about the end of the program") from error
    if code is None or code == _KILLED:
        raise HostLost(f"{name} says that the program did not end by itself: {str(status.get('message'))[:200]}")
    return code


def _is_ready(pod: Mapping[str, Any]) -> bool:
    if pod["metadata"].get("deletionTimestamp"):
        return False
    status = pod.get("status") or {}
    conditions = {each.get("type"): each.get("status") for each in status.get("conditions") or ()}
    return status.get("phase") == "Running" and conditions.get("Ready") == "True"


def _is_over(pod: Mapping[str, Any]) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Failed", "Succeeded")


def _explain_hopeless(pod: Mapping[str, Any]) -> str | None:
    """The reason why a pod will not start unless a person acts; ``None`` while it may start."""
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in _HOPELESS:
            return f"{waiting['reason']}: {str(waiting.get('message', ''))[:200]}"
    return None


def list_kubernetes_workspaces(account: KubernetesAccount) -> list[str]:
    """The roots of all workspaces that have a pod, a volume or a claim. Raises ``HostUnreachable``."""
    cluster = ClusterApi(account)
    query = urlencode({"labelSelector": LABEL})
    targets = [f"{_CORE}{cluster.space}/pods?{query}", f"{_CORE}{cluster.space}/persistentvolumeclaims?{query}"]
    if account.rules.warm_pool is not None:
        targets = [f"{_CLAIMS}{cluster.space}/sandboxclaims?{query}"]
    found = (
        each["metadata"].get("annotations", {}).get(ROOT) for target in targets for each in cluster.list_objects(target)
    )
    return sorted({str(root) for root in found if root})
