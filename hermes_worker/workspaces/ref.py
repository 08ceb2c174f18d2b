"""The description of a workspace that a session stores. ``opening`` opens it, in the worker that uses it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.extension import Extension, WorkspaceDeclaration

if TYPE_CHECKING:
    from hermes_worker.workspaces.base import FileKeeper
    from hermes_worker.workspaces.remote.docker import DockerAccount
    from hermes_worker.workspaces.remote.kubernetes import KubernetesAccount
    from hermes_worker.workspaces.remote.ssh import SshAccount
    from hermes_worker.workspaces.sandbox.backends import Sandbox

CONTAINED_DIRECTORY = "/workspace/files"
"""The path of a session's workspace in its container or pod. The folder above it is a volume."""
_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


class WorkspaceKind(StrEnum):
    """The kinds of workspaces that are built in. Extensions may bring more."""

    LOCAL = "local"
    SSH = "ssh"
    DOCKER = "docker"
    KUBERNETES = "kubernetes"


EXTENSION = Extension(
    name="workspaces",
    version="1",
    summary="Directories of this machine and of ssh hosts, containers and pods",
    workspaces=(
        WorkspaceDeclaration(
            name=WorkspaceKind.LOCAL.value, implementation="hermes_worker.workspaces.opening:open_local"
        ),
        WorkspaceDeclaration(
            name=WorkspaceKind.SSH.value, implementation="hermes_worker.workspaces.remote.opening:open_ssh"
        ),
        WorkspaceDeclaration(
            name=WorkspaceKind.DOCKER.value, implementation="hermes_worker.workspaces.remote.opening:open_docker"
        ),
        WorkspaceDeclaration(
            name=WorkspaceKind.KUBERNETES.value,
            implementation="hermes_worker.workspaces.remote.opening:open_kubernetes",
        ),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceRef:
    """The workspace of a session: stored with the session and meaningful on every worker."""

    kind: str
    """The name of a ``WorkspaceDeclaration``."""
    root: str
    """Absolute path; for ``local`` on a volume that every worker of the session's pool mounts at the same place."""

    def __post_init__(self) -> None:
        root = PurePosixPath(self.root)
        if not root.is_absolute() or ".." in root.parts or "\0" in self.root:
            raise ValueError(f"a workspace's root must be an absolute path without '..', not {self.root!r}")

    def to_json(self) -> str:
        return dump_canonical_json(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WorkspaceRef:
        """Parse a stored reference. Raises ``ValueError`` for any other text."""
        document = json.loads(text)
        match document:
            case {"kind": str(kind), "root": str(root)}:
                return cls(kind=kind, root=root)
        raise ValueError("a workspace reference must be a JSON object with a kind and a root")


def make_session_ref(workspaces_dir: str, session_id: str, *, kind: str = WorkspaceKind.LOCAL) -> WorkspaceRef:
    """Make the reference to a new session's own workspace: one directory below ``local.paths.get_workspaces_dir``.

    The same id always gives the same directory, and two ids never share one, whatever they are made of.
    """
    name = session_id
    if not _SAFE_NAME.fullmatch(session_id):
        # The underscore keeps it apart from every id that is safe as it is and happens to look like this.
        name = f"_{hashlib.sha256(session_id.encode('utf-8', 'surrogatepass')).hexdigest()[:40]}"
    return WorkspaceRef(kind=kind, root=str(PurePosixPath(workspaces_dir, name)))


@dataclass(frozen=True, slots=True, kw_only=True)
class OpeningOptions:
    """The installation's settings for all workspaces."""

    base_env: Mapping[str, str]
    """The environment that commands start from."""
    env_passthrough: Collection[str] = ()
    hermes_home: str | None = None
    sandbox: Sandbox | None = None
    free_bytes_min: int = 0
    bytes_max: int = 0
    umask: int | None = None
    processes_dir: str | None = None
    """The directory for the state of background processes of local workspaces."""
    open_keeper: Callable[[str], FileKeeper] | None = None
    """Opens what keeps the files of the workspace at a root in object storage; ``None`` where that is not set up."""
    ssh: SshAccount | None = None
    """The account for workspaces of the kind ``ssh``; ``None`` when none is set."""
    docker: DockerAccount | None = None
    """The container engine for workspaces of the kind ``docker``; ``None`` when none is set."""
    kubernetes: KubernetesAccount | None = None
    """The cluster for workspaces of the kind ``kubernetes``; ``None`` when none is set."""
