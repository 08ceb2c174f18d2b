"""Which workspaces of other machines are given back and removed, and how each place does it."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.fake_kubernetes import FakeCluster, fake_cluster
from support.podman_service import PodmanService, podman_missing, podman_service
from support.workspace_hosts import ShellHost

from hermes_worker.core.retention_rules import RetentionRule
from hermes_worker.tasks.workspace_gc import TendedWorkspaces, WorkspaceCollector, tend_workspaces
from hermes_worker.workspaces.base import WorkspaceError
from hermes_worker.workspaces.ref import OpeningOptions
from hermes_worker.workspaces.remote.docker import DockerHost
from hermes_worker.workspaces.remote.kubernetes import KubernetesHost
from hermes_worker.workspaces.remote.targets import (
    ClusterTarget,
    ContainerTarget,
    DirectoryTarget,
    WorkspaceTarget,
    find_target,
)
from hermes_worker.workspaces.remote.workspace import RemoteWorkspace


def session() -> str:
    return f"run_{secrets.token_hex(16)}"


class Needs:
    """What rows would say."""

    def __init__(self, *, over: Collection[str] = (), idle: Collection[str] = (), has_erased: bool = False) -> None:
        self.over, self.idle, self.erased = set(over), set(idle), has_erased
        self.rule = RetentionRule(age_s=3_600.0)
        self.asked: list[str] = []

    def list_tenants(self) -> list[str]:
        return ["default", "acme"]

    def may_remove_workspaces(self, tenant: str) -> bool:
        return self.rule.age_s is not None or self.erased

    def find_expired_workspaces(self, tenant: str, session_ids: Collection[str]) -> set[str]:
        self.asked += [tenant]
        return self.over & set(session_ids) if tenant == "acme" else set()

    def find_idle_workspaces(self, session_ids: Collection[str], idle_s: float) -> set[str]:
        return self.idle & set(session_ids)


class FakePlace:
    kind = "docker"

    def __init__(self, *roots: str) -> None:
        self.all = list(roots)
        self.resting: list[str] = []
        self.busy: set[str] = set()
        self.is_away = False

    def list_roots(self) -> list[str]:
        if self.is_away:
            raise WorkspaceError("away")
        return list(self.all)

    def release_resources(self, root: str) -> bool:
        if root in self.busy:
            return False
        self.resting.append(root)
        return True

    def remove(self, root: str) -> None:
        self.all.remove(root)


def test_what_may_go_is_removed_and_what_is_idle_gives_back_what_it_holds() -> None:
    gone, idle, busy, used = (session() for _ in range(4))
    place = FakePlace(*(f"/w/{name}" for name in (gone, idle, busy, used)), "/w/somebody", "/w/run_1")
    place.busy = {f"/w/{busy}"}
    needs = Needs(over=[gone, "somebody"], idle=[gone, idle, busy, "run_1"])
    assert tend_workspaces(place, needs, 60) == TendedWorkspaces(rested=(f"/w/{idle}",), removed=(f"/w/{gone}",))
    assert "/w/somebody" in place.all and place.resting == [f"/w/{idle}"]


def test_nobody_is_asked_for_what_no_rule_lets_go_unless_something_was_erased() -> None:
    name = session()
    place, needs = FakePlace(f"/w/{name}"), Needs(over=[name])
    needs.rule = RetentionRule()
    assert tend_workspaces(place, needs, 60) == TendedWorkspaces() and not needs.asked
    needs.erased = True
    assert tend_workspaces(place, needs, 60).removed == (f"/w/{name}",)


def test_more_than_a_batch_is_tended_whole() -> None:
    names = [session() for _ in range(250)]
    place = FakePlace(*(f"/w/{name}" for name in names))
    done = tend_workspaces(place, Needs(over=names[:120], idle=names), 60)
    assert (len(done.removed), len(done.rested), len(place.all)) == (120, 130, 130)


def test_a_place_that_is_away_ends_nothing_but_the_look() -> None:
    place = FakePlace()
    place.is_away = True
    WorkspaceCollector([place], Needs(), 60).poll_once(place)


def test_kinds_without_a_place_have_none() -> None:
    assert [find_target(kind, OpeningOptions(base_env={}), "/w") for kind in ("local", "docker", "ssh", "other")] == [
        None
    ] * 4


def lives(place: WorkspaceTarget, root: str, first: RemoteWorkspace, again: RemoteWorkspace, *, rests: bool) -> None:
    """A workspace from its first file to its removal."""
    first.write_bytes("file", b"text")
    assert list(place.list_roots()) == [root]
    assert place.release_resources(root) is rests
    assert again.read_bytes("file") == b"text"
    place.remove(root)
    place.remove(root)
    assert list(place.list_roots()) == []


def test_directories_of_a_host_are_listed_and_removed_and_nothing_else(tmp_path: Path) -> None:
    host, folder, name = ShellHost(), tmp_path / "workspaces", session()
    place = DirectoryTarget(host, str(folder))
    assert list(place.list_roots()) == []
    root = str(folder / name)
    (tmp_path / "other").mkdir()
    lives(place, root, RemoteWorkspace(host, root), RemoteWorkspace(host, root), rests=False)
    (folder / "link").symlink_to(tmp_path / "other")
    assert list(place.list_roots()) == [] and list(folder.glob(".*.id")) == []
    with pytest.raises(WorkspaceError, match="is not in"):
        place.remove(str(tmp_path / "other"))
    assert (tmp_path / "other").is_dir()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeCluster]:
    with fake_cluster(tmp_path / "cluster") as started:
        yield started


@pytest.mark.parametrize("rules", [{"storage_bytes": 1024**2}, {}, {"warm_pool": "pool"}])
def test_pods_are_listed_given_back_and_removed(cluster: FakeCluster, tmp_path: Path, rules: dict[str, Any]) -> None:
    account, root = cluster.account(**rules), str(tmp_path / "files" / session())
    first, again = (RemoteWorkspace(KubernetesHost(account, root), root) for _ in range(2))
    lives(ClusterTarget(account), root, first, again, rests="storage_bytes" in rules)


@pytest.mark.machine
def test_containers_are_listed_given_back_and_removed() -> None:
    if lacking := podman_missing():
        pytest.skip(lacking)
    with podman_service() as podman:
        _live_in_a_container(podman)


def _live_in_a_container(podman: PodmanService) -> None:
    account, root = podman.account(), f"/workspace/files/{session()}"
    first, again = (RemoteWorkspace(DockerHost(account, root), root) for _ in range(2))
    lives(ContainerTarget(account), root, first, again, rests=True)
