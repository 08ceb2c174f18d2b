"""Pods: what the API server is sent, what becomes of files, and who is refused. Against a fake of the API."""

from __future__ import annotations

import importlib.util
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.fake_kubernetes import VERSIONS, FakeCluster, fake_cluster
from support.manifests import problems

from hermes_worker.cli.doctor_findings import Grade
from hermes_worker.cli.doctor_workspaces import check_workspaces
from hermes_worker.settings import load_settings
from hermes_worker.workspaces.base import HostLost, HostUnreachable, WorkspaceReset
from hermes_worker.workspaces.remote.kubernetes import (
    ClusterApi,
    KubernetesHost,
    PodRules,
    _parse_exit_code,
    build_pod_name,
    build_pod_spec,
    build_policy_spec,
    build_volume_spec,
    list_kubernetes_workspaces,
)
from hermes_worker.workspaces.remote.workspace import RemoteWorkspace
from hermes_worker.workspaces.sandbox.network import Network

RULES = PodRules(image="image", storage_bytes=1024**3, storage_class="fast", runtime_class="gvisor")
ROOT = "/workspace/files/run_1"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeCluster]:
    with fake_cluster(tmp_path / "cluster") as started:
        yield started


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "files" / "run_1")


def test_a_pod_has_nothing_that_a_command_does_not_need() -> None:
    spec = build_pod_spec(ROOT, RULES)["spec"]
    (container,) = spec["containers"]
    assert spec["automountServiceAccountToken"] is False and spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "privileged": False,
        "readOnlyRootFilesystem": True,
    }
    assert container["resources"]["limits"] == {
        "cpu": "2000m",
        "memory": str(2 * 1024**3),
        "ephemeral-storage": str(11 * 1024**3),
    }
    assert not {"hostNetwork", "hostPID", "hostIPC", "serviceAccountName"} & set(spec)
    assert {next(iter(set(volume) - {"name"})) for volume in spec["volumes"]} == {"persistentVolumeClaim", "emptyDir"}


@pytest.mark.machine
@pytest.mark.skipif(importlib.util.find_spec("kubernetes_validate") is None, reason="needs the extra deploy-test")
@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_sent_is_what_the_schemas_allow(version: str) -> None:
    bodies = [build_pod_spec(ROOT, rules) for rules in (RULES, PodRules(image="image", memory_bytes=None, cpus=None))]
    for body in (*bodies, build_volume_spec(ROOT, RULES), build_policy_spec()):
        assert problems(body, version) == []
    assert problems({**bodies[0], "spec": {**bodies[0]["spec"], "automountToken": False}}, version)


def test_files_on_a_volume_stay_when_the_pod_goes(cluster: FakeCluster, root: str) -> None:
    host = KubernetesHost(cluster.account(storage_bytes=1024**2), root)
    workspace = RemoteWorkspace(host, root)
    workspace.write_bytes("file", b"text")
    assert list_kubernetes_workspaces(cluster.account()) == [root]
    assert host.stop() and not [name for kind, name in cluster.objects if kind == "pods"]
    assert workspace.read_bytes("file") == b"text"
    host.remove()
    assert list_kubernetes_workspaces(cluster.account()) == []


def test_files_that_went_with_their_pod_are_said_to_be_gone_once(cluster: FakeCluster, root: str) -> None:
    host = KubernetesHost(cluster.account(), root)
    first = RemoteWorkspace(host, root)
    first.write_bytes("file", b"text")
    assert not host.stop(), "they would go with it"
    cluster.delete("pods", build_pod_name(root))
    second = RemoteWorkspace(KubernetesHost(cluster.account(), root), root)
    second.expect(first.identity)
    with pytest.raises(WorkspaceReset):
        second.read_bytes("file")
    assert second.entries(".") == ()


def test_pods_without_a_network_get_a_policy_and_others_do_not(cluster: FakeCluster, root: str) -> None:
    KubernetesHost(cluster.account(network=Network.PROXY), root).start(["true"]).close()
    assert not [name for kind, name in cluster.objects if kind == "networkpolicies"]
    KubernetesHost(cluster.account(), root + "2").start(["true"]).close()
    assert [name for kind, name in cluster.objects if kind == "networkpolicies"] == ["hermes-workspaces"]


def test_a_session_claims_its_pod_from_a_warm_pool(cluster: FakeCluster, root: str) -> None:
    account = cluster.account(warm_pool="pool")
    host = KubernetesHost(account, root)
    workspace = RemoteWorkspace(host, root)
    workspace.write_bytes("file", b"text")
    assert {kind for kind, _ in cluster.objects} == {"sandboxclaims", "sandboxes", "pods"}
    other = RemoteWorkspace(KubernetesHost(account, root), root)
    assert other.read_bytes("file") == b"text" and list_kubernetes_workspaces(account) == [root]
    host.remove()
    assert not cluster.objects


def test_a_pod_that_failed_is_made_again(cluster: FakeCluster, root: str) -> None:
    host = KubernetesHost(cluster.account(storage_bytes=1024**2), root)
    RemoteWorkspace(host, root).write_bytes("file", b"text")
    first = cluster.objects["pods", build_pod_name(root)]
    first["status"] = {"phase": "Failed"}
    assert RemoteWorkspace(host, root).read_bytes("file") == b"text"
    assert cluster.objects["pods", build_pod_name(root)] is not first


def test_what_cannot_be_started_is_said_with_the_reason(cluster: FakeCluster, root: str) -> None:
    cluster.waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
    with pytest.raises(HostUnreachable, match="ImagePullBackOff: no such image"):
        KubernetesHost(cluster.account(), root).start(["true"])
    cluster.objects["pods", build_pod_name(root)]["metadata"]["annotations"] = {}
    with pytest.raises(HostUnreachable, match="not ours"):
        KubernetesHost(cluster.account(), root)._ensure_pod()


def test_a_token_is_read_anew_and_a_wrong_one_is_refused(cluster: FakeCluster, root: str) -> None:
    host, token = KubernetesHost(cluster.account(), root), cluster.token_file.read_text()
    cluster.token_file.write_text("old")
    with pytest.raises(HostUnreachable, match="401"):
        host.start(["true"])
    assert not cluster.objects
    cluster.token_file.write_text(token)
    host.start(["true"]).close()
    cluster.token_file.unlink()
    with pytest.raises(HostUnreachable):
        host.start(["true"])
    with pytest.raises(HostUnreachable):
        ClusterApi(cluster.account()).is_permitted("create", "pods", "work")


def test_a_pod_that_is_killed_leaves_the_outcome_unknown(cluster: FakeCluster, root: str) -> None:
    host = KubernetesHost(cluster.account(), root)
    program = host.start(["/bin/sh", "-c", "echo begun; sleep 60"])
    while (piece := program.receive(5)) is None:
        pass
    assert piece.data == b"begun\n"
    killer = threading.Thread(target=cluster.kill_programs, args=(build_pod_name(root),))
    killer.start()
    with pytest.raises(HostLost):
        while not program.has_ended:
            program.receive(5)
    killer.join()


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({"status": "Success"}, 0),
        ({"status": "Failure", "details": {"causes": [{"reason": "ExitCode", "message": "3"}]}}, 3),
        ({"status": "Failure", "details": {"causes": [{"reason": "ExitCode", "message": "137"}]}}, None),
        ({"status": "Failure", "reason": "InternalError", "message": "the container is gone"}, None),
        ({"status": "Failure", "details": {"causes": [{"reason": "ExitCode", "message": "x"}]}}, None),
        ({"status": "Failure", "details": {"causes": [{"reason": "ExitCode"}]}}, None),
        ([], None),
        ("", None),
        (None, None),
    ],
)
def test_only_a_programs_own_end_is_an_exit_code(said: Any, code: int | None) -> None:
    data = json.dumps(said).encode()
    if code is not None:
        assert _parse_exit_code("it", data) == code
        return
    for each in (data, data[:-1], b"\xff"):
        with pytest.raises(HostLost):
            _parse_exit_code("it", each)


def test_doctor_says_what_is_unverified_and_what_is_missing(cluster: FakeCluster, tmp_path: Path) -> None:
    given = {
        "HERMES_WORKSPACE": "kubernetes",
        "HERMES_KUBERNETES_URL": cluster.account().address.url,
        "HERMES_KUBERNETES_ACCOUNT": str(cluster.token_file),
        "HERMES_KUBERNETES_NAMESPACE": "work",
        "HERMES_DOCKER_HOST": f"unix://{tmp_path}/none",
    }
    grade, text = check_workspaces(load_settings(given, home=tmp_path))
    assert grade is Grade.NOTE and "Unverified live" in text and "files go with them" in text
    cluster.allowed = False
    grade, text = check_workspaces(load_settings(given, home=tmp_path))
    assert grade is Grade.BROKEN and "does not let us create pods/exec" in text
    grade, text = check_workspaces(load_settings({**given, "HERMES_WORKSPACE": "docker"}, home=tmp_path))
    assert grade is Grade.BROKEN and "cannot be asked" in text
