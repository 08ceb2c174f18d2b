"""The files of a workspace of this machine, for checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from hermes_worker.features.checkpoints.files.objects import ChangedFile
from hermes_worker.features.checkpoints.files.putting import put_back
from hermes_worker.features.checkpoints.files.scanning import FolderScan, NotScanned, ScanMemory, ScanOrder, ScanResult


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
        return put_back(self._root, changes, content, umask=umask)
