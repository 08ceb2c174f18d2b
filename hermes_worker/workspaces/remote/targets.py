"""List all workspaces of a kind, to find those that are not needed any more. One class per kind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final, Protocol, runtime_checkable

from hermes_worker.workspaces.base import HostLost, WorkspaceError
from hermes_worker.workspaces.ref import OpeningOptions, WorkspaceKind
from hermes_worker.workspaces.remote import scripts
from hermes_worker.workspaces.remote.docker import DockerAccount, DockerHost, list_workspace_roots
from hermes_worker.workspaces.remote.host import Host
from hermes_worker.workspaces.remote.kubernetes import KubernetesAccount, KubernetesHost, list_kubernetes_workspaces
from hermes_worker.workspaces.remote.ssh import SshHost

_ROOTS_BYTES_MAX: Final = 16 * 1024 * 1024
_POLL_S: Final = 1.0
_POLLS_MAX: Final = 120


class WorkspaceTarget(Protocol):
    """Lists and removes workspaces of one kind. Thread-safe. All methods raise ``WorkspaceError`` when the place cannot
    be asked.
    """

    kind: str

    def list_roots(self) -> Sequence[str]:
        """The roots of all workspaces that exist, also those of other installations."""

    def release_resources(self, root: str) -> bool:
        """Release what a workspace holds beside its files; they stay, and its next use finds them. False when it holds
        nothing, or something runs in it.
        """

    def remove(self, root: str) -> None:
        """Remove a workspace and its files, even while something runs in it. Idempotent."""


@runtime_checkable
class TidiedTarget(WorkspaceTarget, Protocol):
    """A place that holds more than workspaces."""

    def tidy(self) -> None:
        """Remove what nothing needs any more beside workspaces. Idempotent."""


class ContainerTarget:
    """A container engine."""

    kind = WorkspaceKind.DOCKER.value

    def __init__(self, account: DockerAccount) -> None:
        self._account = account

    def list_roots(self) -> Sequence[str]:
        return list_workspace_roots(self._account)

    def release_resources(self, root: str) -> bool:
        return DockerHost(self._account, root).stop()

    def remove(self, root: str) -> None:
        DockerHost(self._account, root).remove()


class ClusterTarget:
    """A cluster of Kubernetes."""

    kind = WorkspaceKind.KUBERNETES.value

    def __init__(self, account: KubernetesAccount) -> None:
        self._account = account

    def list_roots(self) -> Sequence[str]:
        return list_kubernetes_workspaces(self._account)

    def release_resources(self, root: str) -> bool:
        return KubernetesHost(self._account, root).stop()

    def remove(self, root: str) -> None:
        KubernetesHost(self._account, root).remove()


class DirectoryTarget:
    """A directory of a host that holds one directory per workspace. A workspace holds nothing but files here."""

    kind = WorkspaceKind.SSH.value

    def __init__(self, host: Host, directory: str) -> None:
        self._host = host
        self._directory = directory

    def list_roots(self) -> Sequence[str]:
        names = self._run(scripts.ROOTS, self._directory).split(b"\0")
        folder = PurePosixPath(self._directory)
        return sorted(str(folder / name.decode("utf-8", "surrogateescape")) for name in names if name)

    def release_resources(self, root: str) -> bool:
        return False

    def remove(self, root: str) -> None:
        if PurePosixPath(root).parent != PurePosixPath(self._directory):
            raise WorkspaceError(f"{root!r} is not in {self._directory!r}")
        self._run(scripts.REMOVE, root)

    def _run(self, script: str, *arguments: str) -> bytes:
        program = self._host.start(["/bin/sh", "-c", script, "hermes", *arguments])
        output = bytearray()
        try:
            for _ in range(_POLLS_MAX):
                while (piece := program.receive(_POLL_S)) is not None and len(output) < _ROOTS_BYTES_MAX:
                    output += b"" if piece.is_error else piece.data
                if program.has_ended:
                    break
            else:
                raise HostLost(f"{self._host.name} did not answer")
            if program.exit_code != 0:
                raise WorkspaceError(f"{self._host.name} did not do it (exit code {program.exit_code})")
            return bytes(output)
        finally:
            program.close()


def find_target(kind: str, options: OpeningOptions, directory: str) -> WorkspaceTarget | None:
    """The place of workspaces of a kind; ``None`` for kinds of extensions, for this machine's own, and where none is
    set. ``directory`` is that of an ssh host. Connects to nothing.
    """
    match kind:
        case WorkspaceKind.DOCKER.value if options.docker is not None:
            return ContainerTarget(options.docker)
        case WorkspaceKind.KUBERNETES.value if options.kubernetes is not None:
            return ClusterTarget(options.kubernetes)
        case WorkspaceKind.SSH.value if options.ssh is not None:
            return DirectoryTarget(SshHost(options.ssh), directory)
    return None
