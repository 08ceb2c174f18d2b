"""Containers: a host for each workspace, made by a Docker Engine or by podman's service, which speaks the same API.

Theory of operation. The name of a container is made from the root of its workspace, so every worker finds the same one,
and the engine itself refuses a second. Its files are on a volume of the same name, which outlives it: a container may
be removed at any time while no command runs, and is made again when it is needed. What is done in it is an *exec*,
whose connection carries its input and output. The end of our half of the connection is the end of the program's input.

A container has nothing that a command does not need: no capability, no new privileges, a root that is read-only, a user
that is not root, no network unless the operator names one, and limits on processes, memory and processors.

The API is the Engine's, version 1.41 (docs.docker.com/reference/api/engine/version/v1.41), which podman 4 serves too.
"""

from __future__ import annotations

import hashlib
import tarfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final
from urllib.parse import quote

from hermes_worker.core.errors import format_reason
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.workspaces.base import HostLost, HostUnreachable
from hermes_worker.workspaces.remote.host import WrittenPiece
from hermes_worker.workspaces.remote.http_service import HostService, ServiceAnswer
from hermes_worker.workspaces.remote.streams import ServiceAddress, ServiceStream
from hermes_worker.workspaces.sandbox.network import Network

LABEL: Final = "hermes-worker.workspace"
"""The label of containers and volumes with the root of their workspace."""
_API: Final = "/v1.41"
_USAGE: Final = "hermes-worker.made-from"
_ENDED_S: Final = 10.0
"""How many seconds after the end of a program's output an engine may take to say that it has ended."""
_STOP_S: Final = 2
_POLL_S: Final = 0.02
_KILLED: Final = 137
_IDLE: Final = ("/bin/sh", "-c", "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done")
"""The first program of a container. It also reaps processes that lose their parent."""
_ENV: Final = ("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRules:
    """The settings that every container is made with."""

    image: str
    user: str = "10001:10001"
    """Numbers of a user and a group. Files of workspaces belong to them."""
    network: str = "none"
    """A network of the engine's; ``none`` for no network at all."""
    proxy: str | None = None
    """The URL of a proxy in that network."""
    runtime: str | None = None
    """A runtime of the engine's, such as ``runsc``; ``None`` for its usual one."""
    processes_max: int | None = 4096
    memory_bytes: int | None = 2 * 1024**3
    cpus: float | None = 2.0
    tmp_bytes: int = 1024**3

    @property
    def reach(self) -> str | None:
        """The network as results name it (``sandbox.network.Network``), where it is known."""
        return Network.NONE.value if self.network == "none" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerAccount:
    """The engine, and the settings of its containers."""

    address: ServiceAddress
    rules: ContainerRules = field(repr=False)


def build_container_name(root: str) -> str:
    """The name of a workspace's container, and of its volume."""
    return f"hermes-{hashlib.sha256(root.encode()).hexdigest()[:40]}"


def build_container_spec(root: str, rules: ContainerRules) -> dict[str, Any]:
    """The body of ``POST /containers/create`` for a workspace."""
    home = str(PurePosixPath(root).parent)
    proxy = {} if rules.proxy is None else {"http": rules.proxy, "https": rules.proxy, "all": rules.proxy}
    said = [f"{name}={url}" for word, url in proxy.items() for name in (f"{word}_proxy", f"{word.upper()}_PROXY")]
    limits: dict[str, Any] = {}
    if rules.processes_max is not None:
        limits["PidsLimit"] = rules.processes_max
    if rules.memory_bytes is not None:
        limits |= {"Memory": rules.memory_bytes, "MemorySwap": rules.memory_bytes}
    if rules.cpus is not None:
        limits["NanoCpus"] = int(rules.cpus * 1_000_000_000)
    if rules.runtime is not None:
        limits["Runtime"] = rules.runtime
    spec: dict[str, Any] = {
        "Image": rules.image,
        "Entrypoint": list(_IDLE[:2]),
        "Cmd": [_IDLE[2]],
        "User": rules.user,
        "Env": [*_ENV, f"HOME={home}", *said],
        "WorkingDir": "/",
        "NetworkDisabled": rules.network == "none",
        "StopSignal": "SIGTERM",
        "HostConfig": {
            "NetworkMode": rules.network,
            "ReadonlyRootfs": True,
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
            "Privileged": False,
            "IpcMode": "private",
            "Tmpfs": {"/tmp": f"rw,nosuid,nodev,mode=1777,size={rules.tmp_bytes}"},
            "Mounts": [
                {"Type": "volume", "Source": build_container_name(root), "Target": str(PurePosixPath(home).parent)},
            ],
            "RestartPolicy": {"Name": "no"},
            "LogConfig": {"Type": "none"},
            **limits,
        },
    }
    spec["Labels"] = {LABEL: root, _USAGE: hashlib.sha256(dump_canonical_json(spec).encode()).hexdigest()}
    return spec


class DockerHost:
    """The container of one workspace. Thread-safe; it is made, or started, when it is first used."""

    wall: Final = "container"

    def __init__(self, account: DockerAccount, root: str) -> None:
        self._service = HostService(account.address)
        self._rules = account.rules
        self._root = root
        self._container = build_container_name(root)
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return f"the container engine at {self._service.address.host}"

    @property
    def network(self) -> str | None:
        return self._rules.reach

    def start(self, argv: Sequence[str]) -> ContainerProgram:
        for is_last in (False, True):
            exec_id, refusal = self._make_exec(argv)
            if refusal is None:
                return self._attach_exec(exec_id)
            if is_last or refusal.status not in (404, 409, 500):
                raise HostUnreachable(f"{self.name} starts nothing: {refusal.find_reason()}")
            with self._lock:
                self._ensure_container()
        raise AssertionError("the second try returns or raises")

    def stop(self) -> bool:
        """Remove the container; its files stay. False when there is none, or something runs in it. Raises
        ``HostUnreachable``.

        It is renamed first. So a worker that begins something meanwhile gets a new container, and only what runs in the
        old one must be looked at.
        """
        going = f"{self._container}-going"
        _remove_if_idle(self._service, self.name, going)  # a worker did not get to the end of this
        renamed = f"/containers/{self._container}/rename?name={going}"
        answer = _request(self._service, self.name, "POST", renamed)
        if answer.status in (404, 409):
            return False
        _require_status(self.name, answer, 200, 204)
        if _remove_if_idle(self._service, self.name, going):
            return True
        # Where there is a new one by now, the old one stays until a later look finds nothing in it.
        _request(self._service, self.name, "POST", f"/containers/{going}/rename?name={self._container}")
        return False

    def remove(self) -> None:
        """Remove the container and its files, even while something runs. Idempotent. Raises ``HostUnreachable``."""
        for container in (self._container, f"{self._container}-going"):
            _remove_container(self._service, self.name, container)
        answer = _request(self._service, self.name, "DELETE", f"/volumes/{self._container}?force=true")
        _require_status(self.name, answer, 204, 404)

    def _make_exec(self, argv: Sequence[str]) -> tuple[str, ServiceAnswer | None]:
        wanted = {"AttachStdin": True, "AttachStdout": True, "AttachStderr": True, "Tty": False, "Cmd": list(argv)}
        answer = _request(self._service, self.name, "POST", f"/containers/{self._container}/exec", wanted)
        return (str(answer.parse_document()["Id"]), None) if answer.status == 201 else ("", answer)

    def _attach_exec(self, exec_id: str) -> ContainerProgram:
        target = f"{_API}/exec/{exec_id}/start"
        upgrade = {"Connection": "Upgrade", "Upgrade": "tcp"}
        try:
            how = {"Detach": False, "Tty": False}
            stream, first, refusal = self._service.open_stream("POST", target, how, headers=upgrade)
        except OSError as error:
            raise HostUnreachable(f"{self.name} starts nothing: {format_reason(error)}") from error
        if refusal is not None:
            raise HostUnreachable(f"{self.name} starts nothing: {refusal.find_reason()}")
        return ContainerProgram(self._service, self.name, exec_id, stream, first)

    def _ensure_container(self) -> None:
        """Make the container unless it is there, and start it."""
        found = self._find_container()
        if found is not None and found["Config"]["Labels"].get(LABEL) != self._root:
            raise HostUnreachable(f"{self.name} has a container {self._container!r} that is not ours: remove it there")
        wanted = build_container_spec(self._root, self._rules)
        if found is not None and not found["State"].get("Running") and _settings_differ(found, wanted):
            _remove_container(self._service, self.name, self._container)
            found = None
        if found is None:
            self._make_container(wanted)
        elif found["State"].get("Paused"):
            answer = _request(self._service, self.name, "POST", f"/containers/{self._container}/unpause")
            _require_status(self.name, answer, 204)
        answer = _request(self._service, self.name, "POST", f"/containers/{self._container}/start")
        _require_status(self.name, answer, 204, 304)

    def _find_container(self) -> dict[str, Any] | None:
        answer = _request(self._service, self.name, "GET", f"/containers/{self._container}/json")
        _require_status(self.name, answer, 200, 404)
        return dict(answer.parse_document()) if answer.status == 200 else None

    def _make_container(self, spec: Mapping[str, Any]) -> None:
        volume = {"Name": self._container, "Labels": {LABEL: self._root}}
        _require_status(self.name, _request(self._service, self.name, "POST", "/volumes/create", volume), 200, 201)
        target = f"/containers/create?name={self._container}"
        answer = _request(self._service, self.name, "POST", target, spec)
        if answer.status == 404:
            raise HostUnreachable(
                f"{self.name} has no image {self._rules.image!r} ({answer.find_reason()}): pull or "
                "build it there; nothing "
                "pulls it by itself"
            )
        # 409: another worker made it a moment ago.
        _require_status(self.name, answer, 201, 409)
        self._give_home()

    def _give_home(self) -> None:
        """Give the volume to the container's user. A new volume belongs to root, and no process in the container may
        change that; the engine can.
        """
        user, _, group = self._rules.user.partition(":")
        home = PurePosixPath(self._root).parent
        folder = tarfile.TarInfo(home.name)
        folder.type, folder.mode = tarfile.DIRTYPE, 0o700
        folder.uid, folder.gid = int(user), int(group or user)
        # No more padding than must be: podman takes what follows the end of the archive for a broken pipe.
        packed = folder.tobuf(tarfile.PAX_FORMAT) + bytes(2 * tarfile.BLOCKSIZE)
        target = f"{_API}/containers/{self._container}/archive?path={quote(str(home.parent), safe='')}"
        try:
            answer = self._service.request("PUT", target, data=packed, kind="application/x-tar")
        except OSError as error:
            raise HostUnreachable(f"{self.name} cannot be asked: {format_reason(error)}") from error
        _require_status(self.name, answer, 200)


class ContainerProgram:
    """A program in the container: an exec and its connection."""

    def __init__(self, service: HostService, name: str, exec_id: str, stream: ServiceStream, first: bytes) -> None:
        self._service = service
        self._name = name
        self._exec_id = exec_id
        self._stream = stream
        self._held = bytearray(first)
        self._pieces: list[WrittenPiece] = []
        self._code: int | None = None

    @property
    def has_ended(self) -> bool:
        return self._code is not None

    @property
    def exit_code(self) -> int:
        if self._code is None:
            raise HostLost(f"{self._name} was lost before it said how the program ended")
        return self._code

    def send(self, data: bytes) -> None:
        if self.has_ended:
            return
        try:
            self._stream.write(data)
        except (BrokenPipeError, ConnectionResetError):
            self._learn_exit_code()  # it ended without reading, and its exit code says why; or the engine is gone
        except OSError as error:
            raise HostLost(f"{self._name} was lost while it was sent something: {format_reason(error)}") from error

    def receive(self, timeout_s: float) -> WrittenPiece | None:
        if not self._pieces:
            try:
                data = self._stream.read(timeout_s)
            except ConnectionResetError:
                data = b""  # it ended without reading all that it was sent; or the engine is gone
            except OSError as error:
                raise HostLost(f"{self._name} was lost while something ran there: {format_reason(error)}") from error
            if data == b"":
                self._learn_exit_code()
            elif data is not None:
                self._held += data
            self._split_frames()
        return self._pieces.pop(0) if self._pieces else None

    def hang_up(self) -> None:
        self._stream.end()

    def close(self) -> None:
        self._stream.end()
        self._stream.close()

    def _split_frames(self) -> None:
        """Split whole frames off: one byte says which stream, four how long (the API's "Stream format")."""
        while len(self._held) >= 8:
            size = int.from_bytes(self._held[4:8], "big")
            if len(self._held) < 8 + size:
                return
            data = bytes(self._held[8 : 8 + size])
            if data:
                self._pieces.append(WrittenPiece(self._held[0] == 2, data))
            del self._held[: 8 + size]

    def _learn_exit_code(self) -> None:
        """Ask the engine for the program's exit code, once its output has ended. Raises ``HostLost``."""
        deadline = time.monotonic() + _ENDED_S
        while (code := self._find_exit_code()) is None:
            if time.monotonic() > deadline:
                raise HostLost(f"{self._name} ended the connection while something ran there")
            time.sleep(_POLL_S)
        if code == _KILLED and not self._is_container_up():
            raise HostLost(f"{self._name} ended the container while something ran there")
        self._code = code

    def _find_exit_code(self) -> int | None:
        """The exit code; ``None`` while it runs. Raises ``HostLost``."""
        found = self._request_document(f"/exec/{self._exec_id}/json")
        return None if found.get("Running") or found.get("ExitCode") is None else int(found["ExitCode"])

    def _is_container_up(self) -> bool:
        container = self._request_document(f"/exec/{self._exec_id}/json").get("ContainerID", "")
        return bool(self._request_document(f"/containers/{container}/json").get("State", {}).get("Running"))

    def _request_document(self, target: str) -> Mapping[str, Any]:
        try:
            answer = _request(self._service, self._name, "GET", target)
        except HostUnreachable as error:
            raise HostLost(f"{error}, while something ran there") from error
        if answer.status != 200:
            raise HostLost(f"{self._name} does not know what it ran any more ({answer.find_reason()})")
        found: Mapping[str, Any] = answer.parse_document()
        return found


def _settings_differ(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether settings changed since the container was made."""
    return bool(found["Config"]["Labels"].get(_USAGE) != wanted["Labels"][_USAGE])


def list_workspace_roots(account: DockerAccount) -> list[str]:
    """The roots of all workspaces that have files on the engine. Raises ``HostUnreachable``."""
    service = HostService(account.address)
    name = f"the container engine at {account.address.host}"
    filters = quote(dump_canonical_json({"label": [LABEL]}), safe="")
    answer = _request(service, name, "GET", f"/volumes?filters={filters}")
    _require_status(name, answer, 200)
    found = answer.parse_document().get("Volumes") or ()
    return sorted(str(volume["Labels"][LABEL]) for volume in found if LABEL in (volume.get("Labels") or {}))


def describe_engine(account: DockerAccount) -> tuple[str, bool]:
    """The engine's name and version, and whether it has the image. Raises ``HostUnreachable``."""
    service = HostService(account.address)
    name = f"the container engine at {account.address.host}"
    version = _request(service, name, "GET", "/version")
    _require_status(name, version, 200)
    said = version.parse_document()
    parts = {part.get("Name"): part.get("Version") for part in said.get("Components") or ()}
    which = next((str(part) for part in parts if part), "an engine")
    image = _request(service, name, "GET", f"/images/{quote(account.rules.image, safe='')}/json")
    return f"{which} {said.get('Version')}", image.status == 200


def _remove_if_idle(service: HostService, name: str, container: str) -> bool:
    """Remove a container in which nothing runs. False when something does; True when there is none."""
    found = _request(service, name, "GET", f"/containers/{container}/json")
    _require_status(name, found, 200, 404)
    if found.status == 404:
        return True
    # podman names those that ended within the last minutes, too.
    if any(_is_running(service, name, exec_id) for exec_id in found.parse_document().get("ExecIDs") or ()):
        return False
    _remove_container(service, name, container)
    return True


def _remove_container(service: HostService, name: str, container: str) -> None:
    _request(service, name, "POST", f"/containers/{container}/stop?t={_STOP_S}")
    _require_status(name, _request(service, name, "DELETE", f"/containers/{container}?force=true"), 200, 204, 404)


def _is_running(service: HostService, name: str, exec_id: str) -> bool:
    answer = _request(service, name, "GET", f"/exec/{exec_id}/json")
    _require_status(name, answer, 200, 404)
    return answer.status == 200 and bool(answer.parse_document().get("Running"))


def _request(service: HostService, name: str, method: str, target: str, document: Any = None) -> ServiceAnswer:
    try:
        return service.request(method, _API + target, document)
    except OSError as error:
        raise HostUnreachable(f"{name} cannot be asked: {format_reason(error)}") from error


def _require_status(name: str, answer: ServiceAnswer, *statuses: int) -> None:
    if answer.status not in statuses:
        raise HostUnreachable(f"{name} refuses: {answer.find_reason()}")
