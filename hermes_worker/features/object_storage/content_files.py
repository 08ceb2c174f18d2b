"""The contents of artifacts in object storage: a row in the place of each, with the secret of its object.

The row is made first, and the object is written before anything refers to the row. References, holds, retention and
erasure are those of rows; when the row goes, nobody can read the object any more, and the next sweep removes it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator

from hermes_worker.core.errors import UnavailableError
from hermes_worker.features.object_storage.bucket_files import Bucket, BucketAway
from hermes_worker.features.object_storage.content_rows import ContentRows
from hermes_worker.features.object_storage.rules import (
    ARTIFACTS,
    BucketPlace,
    build_folder,
    name_artifact,
    name_object,
    read_pointer,
    write_pointer,
)
from hermes_worker.features.object_storage.sealed_files import SealedObjects
from hermes_worker.workspaces.trees.objects import StoreDamaged

_AT_ONCE = 500


class ObjectContents:
    """Keeps the contents of artifacts in the bucket (a ``store.artifacts.contents.ContentStore``). Thread-safe."""

    def __init__(self, rows: ContentRows, bucket: Bucket, place: BucketPlace) -> None:
        self._rows = rows
        self._bucket = bucket
        self._place = place

    def keep(self, tenant: str, content: bytes) -> str:
        """Store a content for an hour, until a row refers to it. Returns its hash. Raises ``BucketAway``."""
        digest = name_artifact(tenant, content)
        secret = read_pointer(self._rows.keep(digest, write_pointer(secrets.token_hex(32))))
        if secret is None:
            return digest  # the row has the content itself
        stored, key = self._open(tenant, digest, secret)
        stored.write(key, content)
        return digest

    def load(self, tenant: str, digest: str, body: str) -> bytes:
        """Load a content, from object storage where its row says so. Raises ``UnavailableError``."""
        secret = read_pointer(body)
        if secret is None:
            return self._rows.load(tenant, digest, body)
        stored, key = self._open(tenant, digest, secret)
        try:
            return stored.read(key)
        except (BucketAway, StoreDamaged) as error:
            raise UnavailableError(str(error)) from error

    def sweep(self, grace_s: float) -> int:
        """Remove the objects that are older than ``grace_s`` and whose row is gone; return how many. Idempotent. Raises
        ``BucketAway``."""
        removed = 0
        for tenant in list(self._bucket.list_folders(self._place.prefix)):
            before = time.time() - grace_s
            old = (
                each.key
                for each in self._bucket.list_objects(f"{self._place.prefix}{tenant}{ARTIFACTS}/")
                if each.modified_at < before
            )
            for batch in _split(old):
                kept = self._rows.find_kept([_read_digest(key) for key in batch])
                going = [key for key in batch if _read_digest(key) not in kept]
                self._bucket.delete(going)
                removed += len(going)
        return removed

    def _open(self, tenant: str, digest: str, secret: bytes) -> tuple[SealedObjects, str]:
        folder = build_folder(self._place, tenant, ARTIFACTS)
        # Another secret means another object: a restored copy may keep the same content under one of its own.
        return SealedObjects(self._bucket, folder, secret), f"{folder}{digest}-{name_object(secret, digest)[:16]}"


def _read_digest(key: str) -> str:
    return key.rpartition("/")[2].partition("-")[0]


def _split(keys: Iterator[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    for key in keys:
        batch.append(key)
        if len(batch) == _AT_ONCE:
            yield batch
            batch = []
    yield batch
