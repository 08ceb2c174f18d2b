"""Which rung is taken, what is refused, and the two filters as values. Nothing here confines anything."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hermes_worker.agent.tools.base import ToolContext
from hermes_worker.agent.tools.catalog import build_default_catalog
from hermes_worker.agent.tools.dispatch import run_tool
from hermes_worker.settings import load_settings
from hermes_worker.workspaces.base import WorkspaceError
from hermes_worker.workspaces.build import build_network_rules, build_sandbox
from hermes_worker.workspaces.local import LocalWorkspace
from hermes_worker.workspaces.opening import OpeningOptions, open_workspace
from hermes_worker.workspaces.ref import WorkspaceKind, WorkspaceRef
from hermes_worker.workspaces.sandbox import landlock, seccomp
from hermes_worker.workspaces.sandbox.backends import Sandbox
from hermes_worker.workspaces.sandbox.base import Confinement, Rung
from hermes_worker.workspaces.sandbox.landlock import LandlockRung
from hermes_worker.workspaces.sandbox.network import Network, NetworkRules, RunOrigin
from hermes_worker.workspaces.sandbox.policy import (
    CommandLimits,
    Profile,
    SandboxMode,
    SandboxPolicy,
    find_unseen,
    list_hidden_paths,
)


class Stand(Rung):
    """A rung that works, or says why not, and counts how often it was asked."""

    def __init__(self, name: str, reason: str | None = None) -> None:
        self._name = name
        self.reason = reason
        self.asked = 0

    @property
    def name(self) -> str:
        return self._name

    def find_unavailable(self) -> str | None:
        self.asked += 1
        return self.reason

    def find_refusal(self, policy: SandboxPolicy) -> str | None:
        return None

    def plan_confinement(self, policy: SandboxPolicy) -> Confinement:
        return Confinement()

    def list_gaps(self) -> Sequence[str]:
        return ()


def test_the_first_rung_that_works_is_taken_and_tried_once() -> None:
    first, second = Stand("first", "namespaces are forbidden"), Stand("second")
    sandbox = Sandbox(SandboxMode.AUTO, SandboxPolicy(), [first, second])
    assert sandbox.plan_confinement("/work") is not None
    assert (sandbox.find_backend().name, sandbox.find_backend().reasons) == ("second", ("namespaces are forbidden",))
    assert (first.asked, second.asked) == (1, 1)


def test_require_refuses_where_nothing_works_and_says_how_to_enable_it() -> None:
    sandbox = Sandbox(SandboxMode.REQUIRE, SandboxPolicy(), [Stand("a", "no bwrap"), Stand("b", "no Landlock")])
    with pytest.raises(WorkspaceError, match=r"no bwrap; no Landlock.*install bubblewrap"):
        sandbox.plan_confinement("/work")


def test_auto_goes_on_without_a_wall_but_not_with_a_policy_that_needs_one() -> None:
    nothing = [Stand("a", "no bwrap")]
    assert Sandbox(SandboxMode.AUTO, SandboxPolicy(), nothing).plan_confinement("/work") is None
    for policy in (SandboxPolicy(network=Network.NONE), SandboxPolicy(profile=Profile.TENANT)):
        with pytest.raises(WorkspaceError, match="nothing here can enforce"):
            Sandbox(SandboxMode.AUTO, policy, nothing).plan_confinement("/work")


def test_off_confines_nothing() -> None:
    rung = Stand("a")
    assert Sandbox(SandboxMode.OFF, SandboxPolicy(), [rung]).plan_confinement("/work") is None
    assert rung.asked == 0


def test_an_api_beyond_loopback_requires_a_sandbox_unless_somebody_decided(tmp_path: Path) -> None:
    def mode(**environ: str) -> SandboxMode:
        return build_sandbox(load_settings(environ, home=tmp_path)).mode

    outside = {"HERMES_SERVER_HOST": "0.0.0.0", "HERMES_SERVER_KEY": "k" * 40}
    assert mode() is SandboxMode.AUTO
    assert mode(**outside) is SandboxMode.REQUIRE
    assert mode(**outside, HERMES_SANDBOX="auto") is SandboxMode.AUTO


GUEST = RunOrigin(source="api", tenant="acme")


def test_commands_of_another_tenant_are_never_unconfined() -> None:
    for mode in (SandboxMode.AUTO, SandboxMode.OFF):
        with pytest.raises(WorkspaceError, match=r"more than one tenant.*An operator has to install bubblewrap"):
            Sandbox(mode, SandboxPolicy(), [Stand("a", "no bwrap")]).plan_confinement("/work", GUEST)


def test_with_more_than_one_tenant_the_default_is_to_require(tmp_path: Path) -> None:
    nothing = [Stand("a", "no bwrap")]
    is_shared = False
    sandbox = Sandbox(SandboxMode.AUTO, SandboxPolicy(), nothing, is_shared=lambda: is_shared)
    assert sandbox.plan_confinement("/work") is None
    is_shared = True
    with pytest.raises(WorkspaceError, match="more than one tenant"):
        sandbox.plan_confinement("/work")
    decided = build_sandbox(load_settings({"HERMES_SANDBOX": "auto"}, home=tmp_path), lambda: True)
    decided._rungs = nothing
    assert decided.plan_confinement("/work") is None


def test_another_tenants_commands_see_system_directories_and_have_the_proxy_at_most() -> None:
    seen: list[SandboxPolicy] = []

    class Noting(Stand):
        def plan_confinement(self, policy: SandboxPolicy) -> Confinement:
            seen.append(policy)
            return Confinement()

    sandbox = Sandbox(SandboxMode.AUTO, SandboxPolicy(), [Noting("a")])
    for origin in (
        RunOrigin(source="api"),
        GUEST,
        RunOrigin(source="cli", tenant="acme"),
        replace(GUEST, asked="none"),
    ):
        sandbox.plan_confinement("/work", origin)
    assert [(policy.profile, policy.network) for policy in seen] == [
        (Profile.WORKSTATION, Network.OPEN),
        (Profile.TENANT, Network.PROXY),
        (Profile.TENANT, Network.PROXY),
        (Profile.TENANT, Network.NONE),
    ]


def test_a_network_that_somebody_asked_for_is_refused_where_nothing_gives_it_and_a_usual_one_is_not() -> None:
    nothing = [Stand("a", "no bwrap")]
    usual = Sandbox(SandboxMode.AUTO, SandboxPolicy(), nothing)
    assert usual.plan_confinement("/work", RunOrigin(source="webhook")) is None
    chosen = Sandbox(SandboxMode.AUTO, SandboxPolicy(), nothing, network=NetworkRules(unattended=Network.PROXY))
    for sandbox, origin in ((chosen, RunOrigin(source="webhook")), (usual, RunOrigin(source="cron", asked="none"))):
        with pytest.raises(WorkspaceError, match="nothing here can enforce"):
            sandbox.plan_confinement("/work", origin)


def test_the_settings_say_who_gets_which_network(tmp_path: Path) -> None:
    outside = {"HERMES_SERVER_HOST": "0.0.0.0", "HERMES_SERVER_KEY": "k" * 40}
    rules = build_network_rules(load_settings(outside | {"HERMES_SANDBOX_NETWORK_UNATTENDED": "none"}, home=tmp_path))
    assert rules == NetworkRules(unattended=Network.NONE, is_api_local=False)
    hosts = {"HERMES_SANDBOX_NETWORK_HOSTS": "pypi.org, *.example.org", "HERMES_SANDBOX_NETWORK_PORTS": "8443"}
    egress = build_sandbox(load_settings(hosts, home=tmp_path)).egress
    assert (egress.hosts, egress.ports) == (("pypi.org", "*.example.org"), {80, 443, 8443})


def test_the_workers_interpreter_is_shown_where_a_command_would_not_see_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = ("/tmp/venv", "/tmp", "/usr", "/home/me/.ssh/python", "/dev/shm/python", "/tmp/venv")
    hidden = ("/home/me/.ssh",)
    shown = ("/tmp/venv", "/home/me/.ssh/python", "/dev/shm/python")
    assert find_unseen(tools, Profile.WORKSTATION, hidden) == shown
    assert find_unseen(tools, Profile.TENANT, hidden) == (
        "/tmp/venv",
        "/usr",
        "/home/me/.ssh/python",
        "/dev/shm/python",
    )
    monkeypatch.setattr(sys, "prefix", "/tmp/somewhere/venv")
    assert "/tmp/somewhere/venv" in build_sandbox(load_settings({}, home=tmp_path))._policy.readable


def test_landlock_refuses_a_workspace_that_holds_credentials(tmp_path: Path) -> None:
    (tmp_path / ".ssh").mkdir()
    policy = SandboxPolicy(writable=(str(tmp_path),), hidden=list_hidden_paths(str(tmp_path), ()))
    assert ".ssh' lies in the workspace" in (LandlockRung().find_refusal(policy) or "")
    (tmp_path / ".ssh").rmdir()
    assert LandlockRung().find_refusal(policy) is None


def test_the_allow_list_is_made_anew_when_a_directory_that_it_leaves_out_of_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    for name in (".ssh", "project"):
        (home / name).mkdir(parents=True)
    monkeypatch.setattr(landlock, "SYSTEM_DIRECTORIES", (str(home),))
    monkeypatch.setattr(landlock, "_SHARED", ())
    policy = SandboxPolicy(profile=Profile.TENANT, hidden=(str(home / ".ssh"),))
    sight = landlock._AllowListCache()

    def names() -> set[str]:
        return {Path(path).name for path in sight.list_paths(policy)}

    os.utime(home, (1_700_000_000, 1_700_000_000))
    assert names() == {"project"}
    assert sight._kept
    assert sight.list_paths(policy) is sight.list_paths(policy)
    (home / "new").mkdir()
    assert names() == {"project", "new"}
    (home / "new").rename(home / "renamed")
    assert names() == {"project", "renamed"}


def test_a_full_disk_is_said_before_a_file_is_written(tmp_path: Path) -> None:
    workspace = LocalWorkspace(str(tmp_path), base_env={}, free_bytes_min=1 << 62)
    with pytest.raises(WorkspaceError, match="make room"):
        workspace.write_bytes("a", b"1")
    assert not (tmp_path / "a").exists()


def test_a_workspace_that_is_gone_is_said_before_a_file_is_written(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    workspace = LocalWorkspace(str(tmp_path / "w"), base_env={}, bytes_max=1 << 30)
    (tmp_path / "w").rmdir()
    with pytest.raises(WorkspaceError, match="the disk of the workspace cannot be looked at"):
        workspace.write_bytes("a", b"1")


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_seccomp_program_is_whole_and_its_jumps_stay_inside(machine: str) -> None:
    families = (seccomp.AF_INET,)
    wide, narrow = (
        seccomp.build_program(families, machine),
        seccomp.build_program(families, machine, spares_others=True),
    )
    assert len(wide) < len(narrow)
    for text in (wide, narrow, seccomp.build_proxied_program(machine)):
        assert len(text) % 8 == 0
        lines = [text[at : at + 8] for at in range(0, len(text), 8)]
        assert all(at + 1 + max(line[2], line[3]) < len(lines) for at, line in enumerate(lines) if line[0] & 0x07 == 5)


def test_limits_hold_for_unconfined_commands_too(tmp_path: Path) -> None:
    policy = SandboxPolicy(limits=CommandLimits(open_files=100, file_bytes=1024**2))
    workspace = LocalWorkspace(str(tmp_path), base_env=os.environ, sandbox=Sandbox(SandboxMode.OFF, policy))
    ran = workspace.execute(
        "ulimit -n; truncate -s 2M big; cat /proc/self/oom_score_adj",
        cwd=None,
        env={},
        timeout_s=20,
        output_bytes_max=1000,
        should_stop=lambda: False,
    )
    assert ran.output.decode().split()[0] == "100"
    assert ran.output.decode().split()[-1] == "500"
    assert not (tmp_path / "big").exists() or (tmp_path / "big").stat().st_size <= 1024**2


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [("terminal", {"command": "touch ran"}), ("search_files", {"pattern": "x"})],
)
def test_require_refuses_every_tool_that_starts_something(tmp_path: Path, tool: str, arguments: dict[str, str]) -> None:
    """In a directory that somebody chose, which is also what children and later turns are given."""
    (tmp_path / "a").write_text("x")
    sandbox = Sandbox(SandboxMode.REQUIRE, SandboxPolicy(), [Stand("a", "no bwrap")])
    ref = WorkspaceRef.from_json(WorkspaceRef(kind=WorkspaceKind.LOCAL, root=str(tmp_path)).to_json())
    context = ToolContext(
        run_id="run",
        session_id="talk",
        idempotency_key="call-1",
        attempt=1,
        workspace=open_workspace(ref, OpeningOptions(base_env={"PATH": os.environ["PATH"]}, sandbox=sandbox)),
        session={},
        cancelled=threading.Event(),
    )
    result = run_tool(build_default_catalog().get(tool), json.dumps(arguments), context)
    assert result.is_error
    assert "commands must be confined (terminal.sandbox is require), but no bwrap" in result.text
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
