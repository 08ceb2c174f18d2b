"""Containers: what the engine is told to make, what a command can reach in one, and who is refused."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trustme
from support.podman_service import PodmanService, podman_missing, podman_service

from hermes_worker.workspaces.base import Ending, HostUnreachable, Workspace, WorkspaceError, WorkspaceReset
from hermes_worker.workspaces.ref import OpeningOptions
from hermes_worker.workspaces.remote.docker import (
    LABEL,
    ContainerRules,
    DockerAccount,
    DockerHost,
    build_container_name,
    build_container_spec,
    describe_engine,
    list_workspace_roots,
)
from hermes_worker.workspaces.remote.opening import open_docker
from hermes_worker.workspaces.remote.streams import ServiceAddress
from hermes_worker.workspaces.remote.workspace import RemoteWorkspace
from hermes_worker.workspaces.sandbox.backends import Sandbox
from hermes_worker.workspaces.sandbox.network import Network, NetworkRules, RunOrigin
from hermes_worker.workspaces.sandbox.policy import SandboxMode, SandboxPolicy

ROOT = "/workspace/files/run_1"
ASKED: dict[str, Any] = {
    "cwd": None,
    "env": {},
    "timeout_s": 30,
    "output_bytes_max": 10_000,
    "should_stop": lambda: False,
}


def test_a_container_has_nothing_that_a_command_does_not_need() -> None:
    spec = build_container_spec(ROOT, ContainerRules(image="image"))
    host = spec["HostConfig"]
    assert (host["CapDrop"], host["SecurityOpt"], host["ReadonlyRootfs"], host["Privileged"]) == (
        ["ALL"],
        ["no-new-privileges"],
        True,
        False,
    )
    assert (host["NetworkMode"], host["PidsLimit"], host["Memory"], host["NanoCpus"]) == (
        "none",
        4096,
        2 * 1024**3,
        2_000_000_000,
    )
    assert spec["User"] == "10001:10001" and not any("proxy" in entry for entry in spec["Env"])
    assert [(mount["Type"], mount["Source"], mount["Target"]) for mount in host["Mounts"]] == [
        ("volume", build_container_name(ROOT), "/workspace")
    ]
    assert "Binds" not in host and "Devices" not in host


def test_a_workspace_has_one_container_whoever_asks() -> None:
    assert build_container_name(ROOT) == build_container_name(ROOT) != build_container_name("/workspace/files/run_2")
    limits = [build_container_spec(ROOT, ContainerRules(image="image", cpus=cpus))["Labels"] for cpus in (1, 1, 2)]
    assert limits[0] == limits[1] != limits[2] and limits[0][LABEL] == limits[2][LABEL] == ROOT


def test_an_engine_that_is_away_is_said_to_be(tmp_path: Path) -> None:
    account = DockerAccount(address=ServiceAddress(url=f"unix://{tmp_path}/none"), rules=ContainerRules(image="image"))
    with pytest.raises(HostUnreachable, match="cannot be asked"):
        DockerHost(account, ROOT).start(["true"])
    with pytest.raises(HostUnreachable):
        describe_engine(account)


@pytest.mark.parametrize(
    ("network", "proxy", "rules", "origin", "says"),
    [
        ("none", None, NetworkRules(people=Network.NONE), RunOrigin(), None),
        ("work", None, NetworkRules(people=Network.NONE), RunOrigin(), "'none' at most"),
        ("work", None, NetworkRules(), RunOrigin(), None),
        ("work", None, NetworkRules(), RunOrigin(tenant="acme"), "'proxy' at most"),
        ("work", "http://proxy:3128", NetworkRules(), RunOrigin(tenant="acme"), None),
        ("work", "http://proxy:3128", NetworkRules(), RunOrigin(asked="none"), "'none' at most"),
    ],
)
def test_a_command_is_refused_where_it_would_have_more_network_than_it_may(
    tmp_path: Path, network: str, proxy: str | None, rules: NetworkRules, origin: RunOrigin, says: str | None
) -> None:
    account = DockerAccount(
        address=ServiceAddress(url=f"unix://{tmp_path}/none"),
        rules=ContainerRules(image="image", network=network, proxy=proxy),
    )
    sandbox = Sandbox(SandboxMode.REQUIRE, SandboxPolicy(), network=rules)
    workspace = open_docker(ROOT, OpeningOptions(base_env={}, docker=account, sandbox=sandbox))
    # Whoever is not refused gets as far as the engine, which is not there.
    with pytest.raises(WorkspaceError, match=says or "cannot be asked"):
        workspace.execute("true", origin=origin, **ASKED)


# --- with podman ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def podman() -> Iterator[PodmanService]:
    if lacking := podman_missing():
        pytest.skip(lacking)
    with podman_service() as service:
        yield service


@pytest.fixture
def host(podman: PodmanService) -> Iterator[DockerHost]:
    host = DockerHost(podman.account(), ROOT)
    yield host
    host.remove()


def said(workspace: Workspace, command: str, **given: Any) -> str:
    return workspace.execute(command, **{**ASKED, **given}).output.decode()


@pytest.mark.machine
def test_a_command_in_a_container_is_nobody_and_reaches_nothing(host: DockerHost) -> None:
    workspace = RemoteWorkspace(host, ROOT)
    status = said(workspace, "cat /proc/self/status")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert fields["Uid"].split() == ["10001"] * 4 and fields["NoNewPrivs"] == "1"
    assert {fields[name].strip() for name in ("CapEff", "CapBnd", "CapPrm", "CapInh")} == {"0" * 16}
    assert said(workspace, "touch /x /etc/x 2>&1 | grep -c 'Read-only'").strip() == "2"
    assert said(workspace, "tail -n +3 /proc/net/dev | cut -d: -f1").split() == ["lo"]
    assert "nosuid" in said(workspace, "grep ' /tmp ' /proc/mounts")
    result = workspace.execute("true", **ASKED)
    assert (result.sandbox, result.network) == ("container", "none")


@pytest.mark.machine
def test_files_stay_when_the_container_goes_and_their_loss_is_said_once(
    podman: PodmanService, host: DockerHost
) -> None:
    workspace = RemoteWorkspace(host, ROOT)
    workspace.write_bytes("file", b"text")
    assert list_workspace_roots(podman.account()) == [ROOT]
    assert host.stop()
    assert workspace.read_bytes("file") == b"text"
    host.remove()
    assert list_workspace_roots(podman.account()) == []
    later = RemoteWorkspace(host, ROOT)
    later.expect(workspace.identity)
    with pytest.raises(WorkspaceReset):
        later.read_bytes("file")


@pytest.mark.machine
def test_a_container_in_which_a_command_runs_is_not_stopped(host: DockerHost) -> None:
    workspace = RemoteWorkspace(host, ROOT)
    tried: list[bool] = []

    def try_once(_: bytes) -> None:
        if not tried:  # "over" may come when the program has ended, and then the container may go
            tried.append(host.stop())

    output = said(workspace, "echo begun; sleep 0.5; echo over", on_output=try_once)
    assert tried == [False] and output == "begun\nover\n"
    assert host.stop()


@pytest.mark.machine
def test_what_changed_in_the_settings_holds_when_the_container_is_made_again(
    podman: PodmanService, host: DockerHost
) -> None:
    said(RemoteWorkspace(host, ROOT), "echo kept > file")
    changed = DockerHost(podman.account(user="10001:10002"), ROOT)
    assert said(RemoteWorkspace(changed, ROOT), "id -g") == "10001\n", "a container is not changed while it is up"
    podman.stop_containers()
    assert said(RemoteWorkspace(changed, ROOT), "id -g; cat file") == "10002\nkept\n"


@pytest.mark.machine
def test_what_cannot_be_made_is_said_with_what_to_do(podman: PodmanService) -> None:
    account = podman.account()
    other = DockerAccount(address=account.address, rules=ContainerRules(image="localhost/none"))
    with pytest.raises(HostUnreachable, match="pull or build it there"):
        DockerHost(other, ROOT).start(["true"])
    DockerHost(account, ROOT).remove()
    assert describe_engine(account)[1] and not describe_engine(other)[1]
    podman.run_stranger(build_container_name(ROOT))
    with pytest.raises(HostUnreachable, match="not ours"):
        DockerHost(account, ROOT)._ensure_container()
    DockerHost(account, ROOT).remove()


@pytest.mark.machine
def test_an_engine_behind_tls_is_spoken_to_with_our_certificate(podman: PodmanService, tmp_path: Path) -> None:
    with TlsRelay(podman.socket_path, tmp_path) as relay:
        account = DockerAccount(address=relay.address(), rules=podman.account().rules)
        host = DockerHost(account, "/workspace/files/run_2")
        try:
            workspace = RemoteWorkspace(host, "/workspace/files/run_2")
            data = bytes(range(256)) * 4096
            workspace.write_bytes("file", data)
            assert workspace.read_bytes("file") == data
            heard: list[bytes] = []
            stop = threading.Event()

            def hear(piece: bytes) -> None:
                heard.append(piece)
                stop.set()

            result = workspace.execute(
                "trap 'echo ended; exit 3' TERM; echo begun; sleep 30 & wait",
                **{**ASKED, "should_stop": stop.is_set, "on_output": hear},
            )
            assert (result.ending, result.output) == (Ending.CANCELLED, b"begun\nended\n"), "its end was told"
            for wrong in ({"cert_file": None}, {"ca_file": None}):
                refused = DockerAccount(address=relay.address(**wrong), rules=account.rules)
                with pytest.raises(HostUnreachable):
                    DockerHost(refused, ROOT).start(["true"])
        finally:
            host.remove()


class TlsRelay:
    """A server that speaks TLS, wants a certificate and passes everything on to a socket, ends in both directions."""

    def __init__(self, socket_path: Path, directory: Path) -> None:
        self._to = socket_path
        self._directory = directory
        authority = trustme.CA()
        authority.cert_pem.write_to_path(directory / "ca.pem")
        ours = authority.issue_cert("client")
        ours.private_key_pem.write_to_path(directory / "key.pem")
        ours.cert_chain_pems[0].write_to_path(directory / "cert.pem")
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(self._context)
        authority.configure_trust(self._context)
        self._context.verify_mode = ssl.CERT_REQUIRED
        self._acceptor = socket.create_server(("127.0.0.1", 0))
        self._port = self._acceptor.getsockname()[1]

    def address(self, **changed: Any) -> ServiceAddress:
        given = {name: self._directory / f"{name[:-5]}.pem" for name in ("ca_file", "cert_file", "key_file")}
        return ServiceAddress(url=f"https://127.0.0.1:{self._port}", **{**given, **changed})

    def __enter__(self) -> TlsRelay:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._acceptor.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._acceptor.accept()
                threading.Thread(target=self._pass_on, args=(connection,), daemon=True).start()

    def _pass_on(self, connection: socket.socket) -> None:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = self._context.wrap_bio(incoming, outgoing, server_side=True)
        lock = threading.Lock()
        engine = socket.socket(socket.AF_UNIX)
        engine.connect(str(self._to))

        def back() -> None:
            with suppress(OSError):
                while data := engine.recv(65_536):
                    with lock:
                        tls.write(data)
                        connection.sendall(outgoing.read())
                with lock, suppress(ssl.SSLError):
                    tls.unwrap()
                connection.sendall(outgoing.read())
            with suppress(OSError):
                connection.shutdown(socket.SHUT_WR)

        returning = threading.Thread(target=back, daemon=True)
        is_begun = False
        with suppress(OSError):
            while data := connection.recv(65_536):
                with lock:
                    incoming.write(data)
                    try:
                        if not is_begun:
                            tls.do_handshake()
                            is_begun = True
                            returning.start()
                        while plain := tls.read(65_536):
                            engine.sendall(plain)
                        engine.shutdown(socket.SHUT_WR)
                    except ssl.SSLWantReadError:
                        pass
                    except ssl.SSLZeroReturnError:
                        engine.shutdown(socket.SHUT_WR)
                    finally:
                        connection.sendall(outgoing.read())
        engine.close()
        connection.close()
