"""The files of a workspace of this machine, for checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from hermes_worker.core.ignored_folders import is_ignored_folder
from hermes_worker.features.checkpoints.rules import DEPTH_MAX, FILES_MAX, LEFT_OUT_MAX, is_ignored_file
from hermes_worker.workspaces.trees.objects import ChangedFile
from hermes_worker.workspaces.trees.putting import put_back
from hermes_worker.workspaces.trees.scanning import FolderScan, NotScanned, ScanMemory, ScanOrder, ScanResult, ScanRules

_RULES: Final = ScanRules(
    files_max=FILES_MAX,
    depth_max=DEPTH_MAX,
    left_out_max=LEFT_OUT_MAX,
    ignores_file=is_ignored_file,
    ignores_folder=is_ignored_folder,
)


class LocalFiles:
    """The files below ``root``."""

    def __init__(self, root: str) -> None:
        self._root = root

    def holds(self, directory: Path) -> bool:
        return directory.is_relative_to(self._root)

    def require_there(self) -> None:
        if not Path(self._root).is_dir():
            raise NotScanned("the workspace of the session is not on this machine: it was removed, or not shared")

    def scan(self, order: ScanOrder) -> ScanResult:
        known = order.memory.folders
        scan = FolderScan(
            objects=order.objects,
            rules=_RULES,
            known=known,
            now_ns=order.now_ns,
            file_bytes_max=order.file_bytes_max,
            should_stop=order.should_stop,
        )
        tree = scan.scan_root(self._root)
        is_new = any(scan.found.get(name) is not known.get(name) for name in scan.found.keys() | known.keys())
        return ScanResult(
            tree_id=tree,
            files=scan.files,
            left_out=tuple(scan.left_out),
            left_out_total=scan.left_out_total,
            memory=ScanMemory(folders=scan.found) if is_new else None,
        )

    def put_back(
        self, changes: Sequence[ChangedFile], content: Callable[[str], bytes], *, umask: int | None
    ) -> dict[str, str]:
        return put_back(self._root, changes, lambda entry: content(entry.sha), umask=umask)
