"""Hosts that are reached by ssh: who is refused, and what a tool says when the host is away."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from support.workspace_hosts import ShellHost, SshServer, ssh_server

from hermes_worker.agent.tools.base import ToolContext, ToolResult
from hermes_worker.agent.tools.catalog import build_default_catalog
from hermes_worker.agent.tools.dispatch import run_tool
from hermes_worker.core.notices import OUTCOME_UNKNOWN
from hermes_worker.workspaces.base import HostUnreachable, Workspace, WorkspaceError, WorkspaceReset
from hermes_worker.workspaces.ref import OpeningOptions
from hermes_worker.workspaces.remote.opening import open_ssh
from hermes_worker.workspaces.remote.ssh import SshHost
from hermes_worker.workspaces.remote.workspace import RemoteRules, RemoteWorkspace
from hermes_worker.workspaces.sandbox.backends import Sandbox
from hermes_worker.workspaces.sandbox.network import RunOrigin
from hermes_worker.workspaces.sandbox.policy import SandboxMode, SandboxPolicy


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SshServer]:
    with ssh_server(tmp_path / "ssh") as started:
        yield started


def refused(server: SshServer, **changed: Any) -> str:
    host = SshHost(server.account(**changed))
    with pytest.raises(HostUnreachable) as caught:
        host.start(["true"])
    assert not server.processes, "nothing was started"
    return str(caught.value)


def test_a_host_that_nobody_wrote_down_is_refused_with_what_to_do(server: SshServer, tmp_path: Path) -> None:
    empty = tmp_path / "known"
    assert "ssh-keyscan" in refused(server, known_hosts=empty) and str(empty) in refused(server, known_hosts=empty)
    empty.touch()
    assert "not the one that is known" in refused(server, known_hosts=empty)


def test_a_host_that_shows_another_key_is_refused(server: SshServer) -> None:
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key()
    server.known_hosts.write_bytes(f"[127.0.0.1]:{server.port} ".encode() + other)
    assert "not the one that is known" in refused(server)


def test_a_key_that_the_host_does_not_know_is_named(server: SshServer) -> None:
    server.key_file.write_bytes(asyncssh.generate_private_key("ssh-ed25519").export_private_key())
    assert "authorized_keys" in refused(server)
    server.key_file.write_text("no key")
    assert str(server.key_file) in refused(server)


def test_a_host_that_is_down_is_said_to_be_and_is_found_again(server: SshServer, tmp_path: Path) -> None:
    workspace = RemoteWorkspace(SshHost(server.account()), str(tmp_path / "run_1"))
    workspace.write_bytes("file", b"text")
    server.die()
    with pytest.raises(HostUnreachable, match=r"ssh host 127\.0\.0\.1 cannot be reached"):
        workspace.read_bytes("file")
    server.start()
    assert workspace.read_bytes("file") == b"text"


def test_files_that_are_gone_are_said_to_be_once(tmp_path: Path) -> None:
    root = tmp_path / "run_1"
    first = RemoteWorkspace(ShellHost(), str(root))
    first.write_bytes("file", b"text")
    (tmp_path / ".run_1.id").unlink()
    second = RemoteWorkspace(ShellHost(), str(root))
    second.expect(first.identity)
    with pytest.raises(WorkspaceReset, match="removed, or this worker reaches another host"):
        second.read_bytes("file")
    assert second.identity is not None and second.identity != first.identity
    second.expect(second.identity)
    assert second.read_bytes("file") == b"text"


def test_guests_and_required_sandboxes_do_not_work_there(server: SshServer, tmp_path: Path) -> None:
    unshared = RemoteWorkspace(SshHost(server.account()), str(tmp_path / "w"), RemoteRules(serves_guests=False))
    asked: dict[str, Any] = {"cwd": None, "env": {}, "timeout_s": 5, "output_bytes_max": 10}
    with pytest.raises(WorkspaceError, match="other tenants"):
        unshared.execute("id", should_stop=lambda: False, origin=RunOrigin(tenant="acme"), **asked)
    required = OpeningOptions(base_env={}, ssh=server.account(), sandbox=Sandbox(SandboxMode.REQUIRE, SandboxPolicy()))
    with pytest.raises(WorkspaceError, match=r"terminal\.sandbox is require"):
        open_ssh("/w", required)
    with pytest.raises(WorkspaceError, match=r"terminal\.ssh_host"):
        open_ssh("/w", OpeningOptions(base_env={}))
    assert not server.processes


def call(workspace: Workspace, name: str, **arguments: Any) -> ToolResult:
    context = ToolContext(
        run_id="run",
        session_id="session",
        idempotency_key="call",
        attempt=1,
        workspace=workspace,
        session={},
        cancelled=threading.Event(),
    )
    return run_tool(build_default_catalog().get(name), json.dumps(arguments), context)


def test_a_command_whose_host_dies_has_an_unknown_outcome(tmp_path: Path) -> None:
    root, host = tmp_path / "run_1", ShellHost()
    workspace = RemoteWorkspace(host, str(root))

    def kill() -> None:
        while not (root / "begun").exists():
            time.sleep(0.01)
        for program in host.programs:
            program.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    result = call(workspace, "terminal", command="touch begun; sleep 60")
    killer.join()
    assert (result.is_unknown, result.text) == (True, OUTCOME_UNKNOWN)


def test_what_may_run_again_only_fails_when_the_host_dies(tmp_path: Path) -> None:
    class Dying(ShellHost):
        def start(self, argv: Any) -> Any:
            program = super().start(argv)
            if self.is_dying:
                program.kill()
            return program

        is_dying = False

    host = Dying()
    workspace = RemoteWorkspace(host, str(tmp_path / "run_1"))
    workspace.write_bytes("file", b"text")
    host.is_dying = True
    result = call(workspace, "read_file", path="file")
    assert result.is_error and not result.is_unknown and "call read_file again" in result.text
