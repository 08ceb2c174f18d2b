"""``doctor``'s findings about workspaces that are not on this machine."""

from __future__ import annotations

from hermes_worker.cli.doctor_findings import Grade
from hermes_worker.extension import explain_missing_extra
from hermes_worker.settings import Settings


def check_workspaces(settings: Settings) -> tuple[Grade, str]:
    """Check whether new sessions can get a workspace from here."""
    match settings.terminal.workspace:
        case "ssh":
            return _check_ssh_host(settings)
        case "docker":
            return _check_container_engine(settings)
        case "kubernetes":
            return _check_cluster(settings)
        case kind:
            return Grade.OK, f"new sessions get workspaces of the kind {kind}, which an extension brings"


def _check_ssh_host(settings: Settings) -> tuple[Grade, str]:
    """Check whether this machine can work on the host of workspaces."""
    from hermes_worker.workspaces.base import WorkspaceError
    from hermes_worker.workspaces.build import build_ssh_account
    from hermes_worker.workspaces.remote.ssh import SshHost

    account = build_ssh_account(settings)
    if account is None:
        return Grade.BROKEN, "terminal.workspace is ssh, and terminal.ssh_host is not set"
    if lacking := explain_missing_extra("ssh"):
        return Grade.BROKEN, f"workspaces on {account.host} cannot be opened from here: {lacking}"
    host = SshHost(account)
    try:
        host.start(["/bin/sh", "-c", ":"]).close()
    except WorkspaceError as error:
        return Grade.BROKEN, str(error)
    finally:
        host.close()
    return Grade.OK, f"{host.name} lets {account.user} in and starts programs; nothing of ours confines them"


def _check_container_engine(settings: Settings) -> tuple[Grade, str]:
    """Check whether this machine can make containers."""
    from hermes_worker.workspaces.base import WorkspaceError
    from hermes_worker.workspaces.build import build_docker_account
    from hermes_worker.workspaces.remote.docker import describe_engine

    account = build_docker_account(settings)
    try:
        engine, has_image = describe_engine(account)
    except (WorkspaceError, OSError) as error:
        return Grade.BROKEN, str(error)
    image = account.rules.image
    if not has_image:
        return Grade.BROKEN, f"{engine} has no image {image!r}: pull or build it there; nothing pulls it by itself"
    proxy = f", with the proxy {account.rules.proxy}" if account.rules.proxy else ""
    return Grade.OK, f"{engine} makes containers of {image}; their network is {account.rules.network!r}{proxy}"


def _check_cluster(settings: Settings) -> tuple[Grade, str]:
    """Check whether this machine can make pods."""
    from hermes_worker.workspaces.base import WorkspaceError
    from hermes_worker.workspaces.build import build_kubernetes_account
    from hermes_worker.workspaces.remote.kubernetes import ClusterApi

    if lacking := explain_missing_extra("kubernetes"):
        return Grade.BROKEN, f"workspaces in pods cannot be opened from here: {lacking}"
    account = build_kubernetes_account(settings)
    pool = account.rules.warm_pool
    needed = [("create", "pods/exec"), ("get", "pods"), *((("create", "pods"), ("delete", "pods")) if not pool else ())]
    cluster = ClusterApi(account)
    try:
        refused = [f"{verb} {what}" for verb, what in needed if not cluster.is_permitted(verb, what, account.namespace)]
    except (WorkspaceError, OSError) as error:
        return Grade.BROKEN, str(error)
    if refused:
        return Grade.BROKEN, f"{cluster.name} does not let us {', '.join(refused)} in {account.namespace!r}"
    of = f"claimed from the warm pool {pool!r}" if pool else f"of {account.rules.image}"
    kept = "stay on volumes" if account.rules.storage_bytes and not pool else "go with them"
    return Grade.NOTE, (
        f"{cluster.name} lets us make pods {of} in {account.namespace!r}; files {kept}. Unverified live: this kind was "
        "tried against a fake of the API, and network policies hold only where the cluster enforces them"
    )
