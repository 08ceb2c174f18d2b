"""Checkpoints of a workspace on a host, and what is asked of that host for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from hermes_worker.features.checkpoints.files import host_scripts
from hermes_worker.features.checkpoints.files.host_files import HostFiles
from hermes_worker.features.checkpoints.files.shadow import Checkpoint, ShadowStore
from hermes_worker.features.checkpoints.rules import CheckpointLimits, Moment
from hermes_worker.workspaces.base import ScriptAnswer, ScriptHost
from hermes_worker.workspaces.remote.workspace import RemoteRules, RemoteWorkspace
from hermes_worker.workspaces.trees.objects import ChangedFile, ObjectStore
from support.workspace_hosts import ShellHost

RESTORE = Moment(session_id="run_s", run_id="run_a", iteration=0, tool="restore")


def moment(iteration: int, run_id: str = "run_a") -> Moment:
    return Moment(session_id="run_s", run_id=run_id, iteration=iteration, tool="patch")


def kept(store: ShadowStore, iteration: int = 1) -> Checkpoint:
    found = store.keep_checkpoint(moment(iteration))
    assert found is not None
    return found


class Watched:
    """A workspace on a host, and what is asked of it."""

    def __init__(self, workspace: ScriptHost) -> None:
        self._workspace = workspace
        self.asked: list[str] = []
        self.received = 0
        """Bytes of contents."""
        self.listed = 0
        """Bytes of the last answer about all files."""
        self.meddle: dict[str, Callable[[], object]] = {}
        """By script, what somebody does there just before it, once."""

    @property
    def may_hold_kb(self) -> int:
        return self._workspace.may_hold_kb

    def run_script(self, script: str, *arguments: str, data: bytes = b"", bytes_max: int) -> ScriptAnswer:
        self.asked.append(script)
        self.meddle.pop(script, lambda: None)()
        answer = self._workspace.run_script(script, *arguments, data=data, bytes_max=bytes_max)
        self.received += len(answer.output) if script in (host_scripts.CONTENTS, host_scripts.ONE) else 0
        self.listed = len(answer.output) if script == host_scripts.LIST else self.listed
        return answer


class Stand:
    """A workspace of this machine's shells, and its checkpoints."""

    def __init__(
        self,
        directory: Path,
        *,
        limits: CheckpointLimits | None = None,
        bytes_max: int = 0,
        shell: Sequence[str] = ("/bin/sh",),
    ) -> None:
        self.root = directory / "files" / "w"
        workspace = RemoteWorkspace(ShellHost(shell), str(self.root), RemoteRules(bytes_max=bytes_max))
        workspace.write_bytes("first", b"first")
        self.watched = Watched(workspace)
        self.directory = directory / "store"
        self.store = ShadowStore(self.directory, "there", limits, files=HostFiles(lambda: self.watched))

    def entries(self) -> list[ChangedFile]:
        """All files of the newest checkpoint."""
        [*_, last] = self.store.list_checkpoints()
        nothing = replace(last, tree=ObjectStore(self.directory / "objects").put("tree", b""))
        return self.store.list_changes(nothing, last)

    def contents(self) -> dict[str, bytes]:
        return {each.path: self.store.read_content(each.after.sha) for each in self.entries() if each.after is not None}

    def asked(self) -> list[str]:
        """What was asked of the host since the last time."""
        asked, self.watched.asked = self.watched.asked, []
        return asked
