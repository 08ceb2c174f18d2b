"""``hermes-worker data workspaces``, over pods of the fake."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commandline import CommandLine
from support.fake_kubernetes import FakeCluster, fake_cluster
from support.store import Store

from hermes_worker.store.runs.runs import create_run_id
from hermes_worker.workspaces.remote.kubernetes import KubernetesHost
from hermes_worker.workspaces.remote.workspace import RemoteWorkspace


@pytest.fixture
def cluster(tmp_path: Path, hermes: CommandLine) -> Iterator[FakeCluster]:
    with fake_cluster(tmp_path / "cluster") as started:
        hermes.environ |= {
            "HERMES_WORKSPACE": "kubernetes",
            "HERMES_KUBERNETES_URL": started.account().address.url,
            "HERMES_KUBERNETES_ACCOUNT": str(started.token_file),
            "HERMES_KUBERNETES_NAMESPACE": "work",
        }
        yield started


def test_workspaces_are_listed_with_their_sessions_and_removed(
    hermes: CommandLine, store: Store, cluster: FakeCluster, tmp_path: Path
) -> None:
    quiet, busy, strange = (create_run_id() for _ in range(3))
    roots = {name: str(tmp_path / name / "files" / name) for name in (quiet, busy, strange)}
    for root in roots.values():
        RemoteWorkspace(KubernetesHost(cluster.account(), root), root).write_bytes("file", b"text")
    for name in (quiet, busy):
        place = json.dumps({"kind": "kubernetes", "root": roots[name]})
        store.submit(run_id=name, session_id=f"of {name[:8]}", source="api", workspace=place)
    store.answer(quiet)

    found = [json.loads(line) for line in hermes.inline("data", "workspaces", "list", "--json").out.splitlines()]
    assert {each["session"]: each["state"] for each in found} == {quiet: "quiet", busy: "at work", strange: None}
    assert {each["root"] for each in found} == set(roots.values())
    assert "not of this database" in hermes.inline("data", "workspaces", "list").out

    for name, says in ((busy, "is at work"), (strange, "not of this database"), ("run_0", "no workspace")):
        refused = hermes.inline("data", "workspaces", "remove", name)
        assert refused.code == 2 and says in refused.err
    assert hermes.inline("data", "workspaces", "remove", quiet).out == f"removed {roots[quiet]}\n"
    assert hermes.inline("data", "workspaces", "remove", busy, "--force").code == 0
    assert [name for kind, name in cluster.objects if kind == "pods"] != []
    assert len(hermes.inline("data", "workspaces", "list", "--json").out.splitlines()) == 1


def test_a_place_that_is_away_and_kinds_without_one_are_said(hermes: CommandLine, cluster: FakeCluster) -> None:
    cluster.token_file.write_text("wrong")
    away = hermes.inline("data", "workspaces", "list")
    assert (away.code, "401" in away.err) == (2, True)
    hermes.environ["HERMES_WORKSPACE"] = "local"
    assert "below HOME/workspaces" in hermes.inline("data", "workspaces", "list").err
