"""Build what keeps files in object storage from the settings."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import TYPE_CHECKING

from hermes_worker.features.object_storage.parts_files import ObjectParts
from hermes_worker.features.object_storage.rules import (
    WORKSPACES,
    build_folder,
    find_snapshot_name,
    parse_place,
)
from hermes_worker.local.paths import get_workspaces_dir
from hermes_worker.settings import Settings
from hermes_worker.store.artifacts.contents import RowContents
from hermes_worker.store.engine.database import Database

if TYPE_CHECKING:
    from hermes_worker.features.object_storage.bucket_files import Bucket
    from hermes_worker.features.object_storage.snapshot_files import SnapshotKeeper


def build_bucket(settings: Settings) -> Bucket:
    """Build the client of the object-storage bucket that the settings name. Connects to nothing."""
    from hermes_worker.features.object_storage.bucket_files import Bucket, BucketAccount

    chosen = settings.object_storage
    account = BucketAccount(
        bucket=parse_place(chosen.url or "").bucket,
        endpoint=chosen.endpoint,
        region=chosen.region,
        access_key=chosen.access_key,
        secret_key=None if chosen.secret_key is None else chosen.secret_key.reveal(),
    )
    return Bucket(account)


def build_object_parts(settings: Settings, database: Database) -> ObjectParts:
    """Build what keeps the files of workspaces and artifacts. Connects to nothing."""
    if settings.object_storage.url is None:
        return ObjectParts(contents=RowContents(database))
    from hermes_worker.features.object_storage.content_files import ObjectContents
    from hermes_worker.features.object_storage.content_rows import ContentRows
    from hermes_worker.features.object_storage.head_rows import WorkspaceHeads
    from hermes_worker.features.object_storage.sealed_files import SealedObjects
    from hermes_worker.features.object_storage.snapshot_files import SnapshotKeeper
    from hermes_worker.features.object_storage.target_files import ObjectTarget

    place, bucket, heads = parse_place(settings.object_storage.url), build_bucket(settings), WorkspaceHeads(database)
    directory = str(get_workspaces_dir(settings.home))
    contents = ObjectContents(ContentRows(database), bucket, place)

    def open_keeper(root: str) -> SnapshotKeeper:
        """Open the keeper of a workspace's snapshots. Raises ``ValueError`` for a root that is not below the home."""
        name = find_snapshot_name(root, directory)
        state = settings.home / "objects" / hashlib.sha256(f"{name.tenant}/{name.name}".encode()).hexdigest()[:32]
        folder = build_folder(place, name.tenant, WORKSPACES, name.name)
        open_stored = partial(SealedObjects, bucket, folder)
        return SnapshotKeeper(root, state, name, heads, open_stored, umask=settings.terminal.umask)

    target = ObjectTarget(
        place,
        bucket,
        heads,
        contents,
        open_keeper,
        workspaces_dir=directory,
        grace_s=settings.object_storage.grace_days * 86_400.0,
    )
    return ObjectParts(contents=contents, open_keeper=open_keeper, target=target)
