"""How a session remembers its workspace, and how a worker opens it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import assert_never

from hermes_worker.core.messages import canonical_json
from hermes_worker.workspaces.base import Workspace, WorkspaceError
from hermes_worker.workspaces.local import LocalWorkspace
from hermes_worker.workspaces.sandbox.ladder import Sandbox

_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


class WorkspaceKind(StrEnum):
    """Where a workspace is."""

    LOCAL = "local"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceRef:
    """Which workspace a session has: stored with the session and meaningful on every worker."""

    kind: WorkspaceKind
    root: str
    """Absolute path; for ``local`` on a volume that every worker of the session's pool mounts at the same place."""

    def __post_init__(self) -> None:
        root = PurePosixPath(self.root)
        if not root.is_absolute() or ".." in root.parts or "\0" in self.root:
            raise ValueError(f"a workspace's root must be an absolute path without '..', not {self.root!r}")

    def to_json(self) -> str:
        return canonical_json(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WorkspaceRef:
        """Raises ``ValueError`` when the text is not a stored reference."""
        document = json.loads(text)
        match document:
            case {"kind": str(kind), "root": str(root)}:
                return cls(kind=WorkspaceKind(kind), root=root)
        raise ValueError("a workspace reference must be a JSON object with a kind and a root")


def session_workspace(workspaces_dir: str, session_id: str) -> WorkspaceRef:
    """The workspace of its own that a new session gets: one directory below ``workspaces_dir``.

    The same id always gives the same directory, and two ids never share one, whatever they are made of.
    """
    name = session_id
    if not _SAFE_NAME.fullmatch(session_id):
        # The underscore keeps it apart from every id that is safe as it is and happens to look like this.
        name = f"_{hashlib.sha256(session_id.encode('utf-8', 'surrogatepass')).hexdigest()[:40]}"
    return WorkspaceRef(kind=WorkspaceKind.LOCAL, root=str(PurePosixPath(workspaces_dir, name)))


def open_workspace(
    ref: WorkspaceRef,
    base_env: Mapping[str, str],
    *,
    env_passthrough: Collection[str] = (),
    hermes_home: str | None = None,
    sandbox: Sandbox | None = None,
    free_bytes_min: int = 0,
    bytes_max: int = 0,
    umask: int | None = None,
) -> Workspace:
    """The workspace that ``ref`` names; a local directory is made if it is not there yet.

    Raises ``WorkspaceError`` when it cannot be opened from this machine.
    """
    match ref.kind:
        case WorkspaceKind.LOCAL:
            try:
                Path(ref.root).mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise WorkspaceError(f"the workspace {ref.root!r} cannot be made: {error.strerror}") from error
            return LocalWorkspace(
                ref.root,
                base_env=base_env,
                env_passthrough=env_passthrough,
                hermes_home=hermes_home,
                sandbox=sandbox,
                free_bytes_min=free_bytes_min,
                bytes_max=bytes_max,
                umask=umask,
            )
        case _:
            assert_never(ref.kind)
