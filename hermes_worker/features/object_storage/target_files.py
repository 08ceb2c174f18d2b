"""All workspaces in object storage, to remove those that may go and the objects that no snapshot needs."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

from hermes_worker.features.object_storage.bucket_files import Bucket
from hermes_worker.features.object_storage.content_files import ObjectContents
from hermes_worker.features.object_storage.head_rows import WorkspaceHeads
from hermes_worker.features.object_storage.rules import (
    KIND,
    WORKSPACES,
    BucketPlace,
    SnapshotName,
    build_folder,
    find_root,
    find_snapshot_name,
)
from hermes_worker.features.object_storage.snapshot_files import SnapshotKeeper
from hermes_worker.observe import log
from hermes_worker.workspaces.base import WorkspaceAway

_TIDY_EVERY_S: Final = 3600.0


class ObjectTarget:
    """The workspaces of an installation in its bucket, to list, remove and tidy them (a ``WorkspaceTarget`` and a
    ``TidiedTarget`` of ``workspaces.remote.targets``)."""

    kind = KIND

    def __init__(
        self,
        place: BucketPlace,
        bucket: Bucket,
        heads: WorkspaceHeads,
        contents: ObjectContents,
        open_keeper: Callable[[str], SnapshotKeeper],
        *,
        workspaces_dir: str,
        grace_s: float,
    ) -> None:
        """An object that nothing needs stays for ``grace_s``, so that an older backup of the database finds it."""
        self._place = place
        self._bucket = bucket
        self._heads = heads
        self._contents = contents
        self._open_keeper = open_keeper
        self._workspaces_dir = workspaces_dir
        self._grace_s = grace_s
        self._tidy_at = 0.0

    def list_roots(self) -> Sequence[str]:
        """The roots of all workspaces that have a row, or objects whose row went before they did."""
        named = {*self._heads.list_names(), *self._list_stored()}
        return sorted(find_root(each, self._workspaces_dir) for each in named)

    def _list_stored(self) -> Sequence[SnapshotName]:
        """The workspaces that have objects. Only names of ours have nothing to decode."""
        return [
            SnapshotName(tenant=tenant.rstrip("/"), name=name.rstrip("/"))
            for tenant in self._bucket.list_folders(self._place.prefix)
            for name in self._bucket.list_folders(f"{self._place.prefix}{tenant}{WORKSPACES}/")
        ]

    def release_resources(self, root: str) -> bool:
        """Remove the objects that the snapshot of an idle workspace does not need, and its files from this machine."""
        name = find_snapshot_name(root, self._workspaces_dir)
        head = self._heads.find_head(name)
        keeper = self._open_keeper(root)
        if head is None or head.tree is None:
            return False
        if head.swept != head.version:
            needed = keeper.list_needed_keys(head)
            before = time.time() - self._grace_s
            found = list(self._bucket.list_objects(self._build_folder(name)))
            self._bucket.delete([each.key for each in found if each.key not in needed and each.modified_at < before])
            if all(each.key in needed or each.modified_at < before for each in found):
                self._heads.mark_swept(name, head.version)
        return keeper.release()

    def remove(self, root: str) -> None:
        """Remove a workspace. Its row goes first: nobody reads the objects then, and they go with the next look if this
        one is cut."""
        name = find_snapshot_name(root, self._workspaces_dir)
        self._heads.remove_head(name)
        self._open_keeper(root).discard()
        self._bucket.delete([each.key for each in self._bucket.list_objects(self._build_folder(name))])

    def remove_named(self, tenant: str, names: Collection[str]) -> int | None:
        """Remove a tenant's workspaces of these names; return how many there were. All rows go before the first object.
        ``None`` where object storage did not answer: nobody can read what is left there."""
        found = [each for each in self._heads.list_names(tenant) if each.name in names]
        for name in found:
            self._heads.remove_head(name)
        try:
            for name in found:
                self.remove(find_root(name, self._workspaces_dir))
        except WorkspaceAway as error:
            log.warning("object_storage.not_removed", reason=str(error))
            return None
        return len(found)

    def tidy(self) -> None:
        """Once an hour, remove the objects of artifacts that are gone."""
        if time.monotonic() >= self._tidy_at:
            self._tidy_at = time.monotonic() + _TIDY_EVERY_S
            if removed := self._contents.sweep(self._grace_s):
                log.info("object_storage.swept", objects=removed)

    def _build_folder(self, name: SnapshotName) -> str:
        return build_folder(self._place, name.tenant, WORKSPACES, name.name)
