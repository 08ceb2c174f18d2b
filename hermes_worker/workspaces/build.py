"""Build sandboxes, accounts and openers of workspaces from the settings."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

from sqlalchemy import make_url

from hermes_worker.core.errors import UnavailableError
from hermes_worker.local.paths import (
    get_processes_dir,
    get_tenants_workspaces_dir,
    list_spellings,
)
from hermes_worker.settings import Settings
from hermes_worker.settings.servers import parse_servers_url
from hermes_worker.store.access.principals import Tenants
from hermes_worker.store.engine.database import Database
from hermes_worker.store.restore_detection import is_copy

if TYPE_CHECKING:
    from hermes_worker.workspaces.base import FileKeeper, Workspace
    from hermes_worker.workspaces.opening import CopyRule
    from hermes_worker.workspaces.remote.docker import DockerAccount
    from hermes_worker.workspaces.remote.kubernetes import KubernetesAccount
    from hermes_worker.workspaces.remote.ssh import SshAccount
    from hermes_worker.workspaces.remote.targets import WorkspaceTarget
    from hermes_worker.workspaces.sandbox.backends import Sandbox
    from hermes_worker.workspaces.sandbox.network import NetworkRules
    from hermes_worker.workspaces.sandbox.policy import CommandLimits


_TENANT_WORKSPACE_MB = 10_240
_KINDS_OF_ALL = ("docker", "kubernetes")
"""Kinds whose disks all tenants share."""
_TENANTS_EVERY_S = 10.0
_WORKSPACES_OPEN_MAX = 1_000
"""How many opened workspaces are cached. Every session may have one of its own; opening one again costs less than a
millisecond.
"""


def list_passed_on(settings: Settings) -> frozenset[str]:
    """Variables that commands have because the operator passes them on, as far as they are set."""
    return frozenset(name for name in settings.terminal.env_passthrough if settings.environ.get(name))


def build_sandbox(settings: Settings, is_shared: Callable[[], bool] = lambda: False) -> Sandbox:
    """Build the sandbox that confines commands; what works on this machine is tried when it is first asked for.
    ``is_shared`` returns whether there are other tenants than the default one.
    """
    import hermes_worker
    from hermes_worker.net.urls import UrlPolicy
    from hermes_worker.workspaces.sandbox.backends import Sandbox
    from hermes_worker.workspaces.sandbox.network import EgressRules
    from hermes_worker.workspaces.sandbox.policy import (
        Profile,
        SandboxMode,
        SandboxPolicy,
        find_unseen,
        list_hidden_paths,
    )
    from hermes_worker.workspaces.sandbox.proxy import EgressProxy

    chosen = settings.terminal
    home = settings.environ.get("HOME")
    hidden = tuple(
        dict.fromkeys(
            str(Path(path).resolve()) for path in list_hidden_paths(home, tuple(_list_private_paths(settings)))
        )
    )
    interpreter = (sys.prefix, sys.base_prefix, str(Path(hermes_worker.__file__).parent))
    profile = Profile(chosen.profile)
    policy = SandboxPolicy(
        profile=profile,
        egress=EgressRules(
            hosts=chosen.network_hosts, ports=EgressRules().ports | {int(port) for port in chosen.network_ports}
        ),
        readable=find_unseen(interpreter, profile, hidden),
        hidden=hidden,
        limits=build_command_limits(settings),
    )
    guests = replace(policy, profile=Profile.TENANT, readable=find_unseen(interpreter, Profile.TENANT, hidden))
    default = SandboxMode.AUTO if settings.server.is_loopback else SandboxMode.REQUIRE
    return Sandbox(
        SandboxMode(chosen.sandbox) if chosen.sandbox else default,
        policy,
        network=build_network_rules(settings),
        proxy=EgressProxy(UrlPolicy(allows_private=settings.agent.allow_private_urls)),
        may_call_us=chosen.allow_hermes_worker,
        guests=guests,
        is_shared=is_shared if chosen.sandbox is None else lambda: False,
    )


def build_command_limits(settings: Settings) -> CommandLimits:
    """The limits of a command on this machine."""
    from hermes_worker.workspaces.sandbox.policy import CommandLimits

    chosen = settings.terminal
    return CommandLimits(
        processes=chosen.processes_max,
        open_files=chosen.open_files_max,
        file_bytes=chosen.file_mb_max and chosen.file_mb_max * 1024**2,
        memory_bytes=chosen.memory_mb_max and chosen.memory_mb_max * 1024**2,
        cpu_s=chosen.cpu_s_max,
    )


def build_network_rules(settings: Settings) -> NetworkRules:
    """The networks of commands, by the origin of their run."""
    from hermes_worker.workspaces.sandbox.network import Network, NetworkRules

    chosen = settings.terminal
    return NetworkRules(
        people=Network(chosen.network),
        api=Network(chosen.network_api) if chosen.network_api else None,
        unattended=Network(chosen.network_unattended) if chosen.network_unattended else None,
        is_api_local=settings.server.is_loopback,
    )


def find_workspace_bytes_max(settings: Settings, root: str | None = None, kind: str = "local") -> int:
    """Bytes that a workspace may hold; 0 for no limit. ``root`` is its directory."""
    chosen = settings.terminal.workspace_mb_max
    if chosen is None:
        is_guests = root is not None and Path(root).is_relative_to(get_tenants_workspaces_dir(settings.home))
        is_limited = is_guests or settings.terminal.profile == "tenant" or kind in _KINDS_OF_ALL
        chosen = _TENANT_WORKSPACE_MB if is_limited else 0
    return chosen * 1024**2


def make_sharing_check(database: Database) -> Callable[[], bool]:
    """Build the check whether there are other tenants than the default one, looked up a few times a minute at most.
    While the database is away it answers that there are.
    """
    is_shared, look_at = False, 0.0

    def look_up() -> bool:
        nonlocal is_shared, look_at
        if not is_shared and time.monotonic() >= look_at:
            try:
                is_shared = Tenants(database).has_others()
            except UnavailableError:
                return True
            look_at = time.monotonic() + _TENANTS_EVERY_S
        return is_shared

    return look_up


_OF_CLIENT_KEYS = ("sslkey", "ssl_keyfile")
"""Options of URLs that name the private key of a client certificate: libpq's and redis-py's."""


def _list_private_paths(settings: Settings) -> Iterator[str]:
    """The files and directories of the product that no command may see."""
    yield str(settings.home)
    yield from settings.secret_files.values()
    if settings.server.tls_key is not None:
        yield str(settings.server.tls_key)
    for url in (settings.database.url, settings.broker.url):
        options = dict(parse_qsl(parse_servers_url(url or "").query))
        yield from (options[name] for name in _OF_CLIENT_KEYS if name in options)
    if settings.database.url and settings.database.url.startswith("sqlite"):
        file = make_url(settings.database.url).database
        if file and file != ":memory:":
            yield from (f"{file}{ending}" for ending in ("", "-journal", "-shm", "-wal"))
    if settings.broker.client_url and settings.broker.client_url.startswith("unix://"):
        yield unquote(urlsplit(settings.broker.client_url).path)


def find_workspace_target(settings: Settings) -> WorkspaceTarget | None:
    """The place of new sessions' workspaces; ``None`` when that is this machine or an extension's."""
    if settings.terminal.workspace not in ("ssh", *_KINDS_OF_ALL):
        return None
    from hermes_worker.workspaces.ref import OpeningOptions
    from hermes_worker.workspaces.remote.targets import find_target

    options = OpeningOptions(
        base_env={},
        ssh=build_ssh_account(settings),
        docker=build_docker_account(settings),
        kubernetes=build_kubernetes_account(settings),
    )
    return find_target(settings.terminal.workspace, options, settings.terminal.ssh_directory)


def build_copy_rule(settings: Settings, database: Database) -> CopyRule:
    """The rule about what a restored copy may open."""
    from hermes_worker.workspaces.opening import CopyRule

    return CopyRule(list_spellings(settings.home), partial(is_copy, database))


def make_workspace_opener(
    settings: Settings,
    sandbox: Sandbox | None,
    rule: CopyRule,
    open_keeper: Callable[[str], FileKeeper] | None = None,
) -> Callable[[str], Workspace]:
    """Build the function that opens the workspace of a session, and caches those opened last. Without ``sandbox`` no
    command may be run there; ``open_keeper`` opens what keeps files in object storage. It raises ``WorkspaceError``,
    and ``ValueError`` for a text that is no description.
    """
    from hermes_worker.workspaces.base import RefreshedWorkspace
    from hermes_worker.workspaces.opening import OpeningOptions, open_workspace
    from hermes_worker.workspaces.ref import WorkspaceRef

    opening = OpeningOptions(
        base_env=settings.environ,
        env_passthrough=settings.terminal.env_passthrough,
        hermes_home=str(settings.home),
        sandbox=sandbox,
        free_bytes_min=settings.terminal.free_mb_min * 1024**2,
        umask=settings.terminal.umask,
        processes_dir=str(get_processes_dir(settings.home)),
        open_keeper=open_keeper,
        ssh=build_ssh_account(settings),
        docker=build_docker_account(settings),
        kubernetes=build_kubernetes_account(settings),
    )

    read_once = lru_cache(_WORKSPACES_OPEN_MAX)(WorkspaceRef.from_json)

    @lru_cache(_WORKSPACES_OPEN_MAX)
    def open_once(place: WorkspaceRef) -> tuple[Workspace, Callable[[], None] | None]:
        limit = find_workspace_bytes_max(settings, place.root, place.kind)
        opened = open_workspace(place, replace(opening, bytes_max=limit))
        return opened, opened.refresh if isinstance(opened, RefreshedWorkspace) else None

    def open_by_reference(ref: str) -> Workspace:
        place = read_once(ref)
        rule.require_own(place)
        found, refresh = open_once(place)
        if refresh is not None:
            refresh()
        return found

    return open_by_reference


def build_ssh_account(settings: Settings) -> SshAccount | None:
    """The account for workspaces of the kind ``ssh``; ``None`` when no host is set."""
    from hermes_worker.workspaces.remote.ssh import SshAccount

    terminal, own = settings.terminal, settings.home / "ssh"
    if terminal.ssh_host is None:
        return None
    return SshAccount(
        host=terminal.ssh_host.strip("[]"),
        user=terminal.ssh_user,
        port=terminal.ssh_port,
        known_hosts=terminal.ssh_known_hosts or own / "known_hosts",
        key_file=terminal.ssh_key or own / "id_ed25519",
    )


def build_docker_account(settings: Settings) -> DockerAccount:
    """The engine for workspaces of the kind ``docker``, and the settings of its containers."""
    from hermes_worker.workspaces.remote.docker import ContainerRules, DockerAccount
    from hermes_worker.workspaces.remote.streams import ServiceAddress

    terminal, certs = settings.terminal, settings.terminal.docker_certs or settings.home / "docker"
    if terminal.docker_host.startswith("unix:"):
        address = ServiceAddress(url=terminal.docker_host)
    else:
        address = ServiceAddress(
            url=terminal.docker_host.replace("tcp://", "https://", 1),
            ca_file=certs / "ca.pem",
            cert_file=certs / "cert.pem",
            key_file=certs / "key.pem",
        )
    memory_mb = terminal.memory_mb_max
    rules = ContainerRules(
        image=terminal.docker_image,
        user=terminal.docker_user,
        network=terminal.docker_network,
        proxy=terminal.docker_proxy,
        runtime=terminal.docker_runtime,
        processes_max=terminal.processes_max,
        memory_bytes=None if memory_mb is None else memory_mb * 1024**2,
        cpus=terminal.docker_cpus,
    )
    return DockerAccount(address=address, rules=rules)


def build_kubernetes_account(settings: Settings) -> KubernetesAccount:
    """The cluster for workspaces of the kind ``kubernetes``, and the settings of its pods."""
    from hermes_worker.workspaces.remote.kubernetes import KubernetesAccount, PodRules
    from hermes_worker.workspaces.remote.streams import ServiceAddress
    from hermes_worker.workspaces.sandbox.network import Network

    terminal = settings.terminal
    user, _, group = terminal.docker_user.partition(":")
    memory_mb, storage_mb = terminal.memory_mb_max, terminal.kubernetes_storage_mb
    rules = PodRules(
        image=terminal.kubernetes_image,
        user=int(user),
        group=int(group),
        network=Network(terminal.kubernetes_network),
        runtime_class=terminal.kubernetes_runtime,
        memory_bytes=None if memory_mb is None else memory_mb * 1024**2,
        cpus=terminal.docker_cpus,
        storage_bytes=None if storage_mb is None else storage_mb * 1024**2,
        storage_class=terminal.kubernetes_storage_class,
        warm_pool=terminal.kubernetes_warm_pool,
    )
    return KubernetesAccount(
        address=ServiceAddress(url=terminal.kubernetes_url, ca_file=terminal.kubernetes_ca),
        token_file=terminal.kubernetes_account,
        namespace=terminal.kubernetes_namespace,
        rules=rules,
    )
