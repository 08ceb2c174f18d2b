"""Opening workspaces on hosts: one host of a kind for this process, and one workspace for each session."""

from __future__ import annotations

import resource
from dataclasses import replace
from functools import lru_cache
from typing import Final

from hermes_worker.extension import explain_missing_extra
from hermes_worker.workspaces.base import Workspace, WorkspaceError
from hermes_worker.workspaces.ref import OpeningOptions
from hermes_worker.workspaces.remote.docker import DockerHost
from hermes_worker.workspaces.remote.kubernetes import KubernetesHost
from hermes_worker.workspaces.remote.ssh import SshAccount, SshHost
from hermes_worker.workspaces.remote.workspace import RemoteRules, RemoteWorkspace
from hermes_worker.workspaces.sandbox.kept_command import list_rlimits
from hermes_worker.workspaces.sandbox.network import Network, RunOrigin, find_refusal
from hermes_worker.workspaces.sandbox.policy import CommandLimits, SandboxMode

_ULIMITS: Final = {
    resource.RLIMIT_NOFILE: ("n", 1),
    resource.RLIMIT_FSIZE: ("f", 512),
    resource.RLIMIT_DATA: ("d", 1024),
    resource.RLIMIT_CPU: ("t", 1),
    resource.RLIMIT_CORE: ("c", 1),
}
"""The letters and units of a POSIX shell's ``ulimit``. The number of processes is not among them: it counts those of
the user, and all workspaces share one user.
"""


def open_ssh(root: str, options: OpeningOptions) -> Workspace:
    """Open a directory of the ssh host. Connects to nothing. Raises ``WorkspaceError``."""
    if options.ssh is None:
        raise WorkspaceError(
            "no host is set for workspaces of the kind 'ssh': set terminal.ssh_host on every worker for tools"
        )
    if lacking := explain_missing_extra("ssh"):
        raise WorkspaceError(f"workspaces of the kind 'ssh' cannot be opened here: {lacking}")
    sandbox = options.sandbox
    if sandbox is not None and sandbox.mode is SandboxMode.REQUIRE:
        raise WorkspaceError(
            "terminal.sandbox is require, and nothing of ours confines commands on an ssh host: set it to auto where "
            "the host itself is the wall, or use another kind of workspace"
        )
    return RemoteWorkspace(_get_ssh_host(options.ssh), root, _build_rules(options, sandbox.limits if sandbox else None))


def open_docker(root: str, options: OpeningOptions) -> Workspace:
    """Open a container. Connects to nothing. Raises ``WorkspaceError``."""
    if options.docker is None:
        raise WorkspaceError("no container engine is set for workspaces of the kind 'docker' on this worker")
    rules = options.docker.rules
    given = Network.NONE if rules.network == "none" else Network.PROXY if rules.proxy else Network.OPEN
    return RemoteWorkspace(DockerHost(options.docker, root), root, _build_walled_rules(options, given))


def open_kubernetes(root: str, options: OpeningOptions) -> Workspace:
    """Open a pod. Connects to nothing. Raises ``WorkspaceError``."""
    if options.kubernetes is None:
        raise WorkspaceError("no cluster is set for workspaces of the kind 'kubernetes' on this worker")
    if lacking := explain_missing_extra("kubernetes"):
        raise WorkspaceError(f"workspaces of the kind 'kubernetes' cannot be opened here: {lacking}")
    account = options.kubernetes
    return RemoteWorkspace(KubernetesHost(account, root), root, _build_walled_rules(options, account.rules.network))


def _build_walled_rules(options: OpeningOptions, given: Network) -> RemoteRules:
    """The rules for kinds whose hosts have one workspace each: other tenants may work there, with the network that they
    may have.
    """
    sandbox = options.sandbox

    def judge_origin(origin: RunOrigin) -> str | None:
        return None if sandbox is None else find_refusal(sandbox.network, origin, given)

    rules = _build_rules(options, sandbox.limits if sandbox else None)
    return replace(rules, serves_guests=True, refuses=judge_origin)


@lru_cache(8)
def _get_ssh_host(account: SshAccount) -> SshHost:
    return SshHost(account)


def _build_rules(options: OpeningOptions, limits: CommandLimits | None) -> RemoteRules:
    return RemoteRules(
        bytes_max=options.bytes_max,
        free_bytes_min=options.free_bytes_min,
        umask=options.umask,
        limits=format_ulimits(limits) if limits else (),
        serves_guests=False,
    )


def format_ulimits(limits: CommandLimits) -> tuple[str, ...]:
    """The arguments of ``ulimit`` that give a shell, and what it starts, these limits at most."""
    return tuple(
        f"ulimit -{_ULIMITS[kind][0]} {value // _ULIMITS[kind][1]}"
        for kind, value in list_rlimits(limits)
        if kind in _ULIMITS
    )
