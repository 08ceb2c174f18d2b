"""Which workspace a new session gets, and that it can be opened from what its row says."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes_worker.core.principals import Principal
from hermes_worker.services.run_stages import choose_workspace
from hermes_worker.services.submission import Submission
from hermes_worker.settings import load_settings
from hermes_worker.workspaces.build import (
    build_docker_account,
    build_kubernetes_account,
    find_workspace_bytes_max,
    find_workspace_target,
)
from hermes_worker.workspaces.opening import OpeningOptions, open_workspace
from hermes_worker.workspaces.ref import WorkspaceRef
from hermes_worker.workspaces.remote.workspace import RemoteWorkspace

RUN = "run_0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize("kind", ["docker", "kubernetes"])
@pytest.mark.parametrize("tenant", ["default", "acme"])
def test_every_session_has_a_container_or_pod_of_its_own_whose_ever_it_is(
    tmp_path: Path, kind: str, tenant: str
) -> None:
    settings = load_settings({"HERMES_WORKSPACE": kind}, home=tmp_path)
    submission = Submission(input="hello", source="api", principal=Principal(tenant=tenant))
    ref = WorkspaceRef.from_json(choose_workspace(settings, submission, RUN).to_json())
    assert (ref.kind, ref.root) == (kind, f"/workspace/files/{RUN}")
    assert find_workspace_bytes_max(settings, ref.root, ref.kind) == 10 * 1024**3, "their disks are everybody's"
    options = OpeningOptions(
        base_env={}, docker=build_docker_account(settings), kubernetes=build_kubernetes_account(settings)
    )
    assert isinstance(open_workspace(ref, options), RemoteWorkspace)
    place = find_workspace_target(settings)
    assert place is not None and place.kind == kind


def test_settings_become_what_containers_and_pods_are_made_with(tmp_path: Path) -> None:
    given = {
        "HERMES_DOCKER_HOST": "tcp://engine.example.org:2376",
        "HERMES_DOCKER_USER": "1000:1001",
        "HERMES_COMMAND_MEMORY_MB_MAX": "512",
        "HERMES_COMMAND_PROCESSES_MAX": "0",
        "HERMES_KUBERNETES_STORAGE_MB": "64",
    }
    settings = load_settings(given, home=tmp_path)
    account, pods = build_docker_account(settings), build_kubernetes_account(settings).rules
    assert account.address.url == "https://engine.example.org:2376"
    assert account.address.cert_file == tmp_path / "docker" / "cert.pem"
    assert (account.rules.user, account.rules.memory_bytes, account.rules.processes_max) == (
        "1000:1001",
        512 * 1024**2,
        None,
    )
    assert (pods.user, pods.group, pods.storage_bytes) == (1000, 1001, 64 * 1024**2)
    assert find_workspace_target(settings) is None, "new sessions work on this machine"
