"""Objects that only the holder of their secret can name and read.

Theory of operation. The secret stands in a row, sealed as other texts are. An object's key is a keyed hash of what it
holds, and its content is compressed and sealed (AES-256-GCM) for that key: an object that was changed, or put in the
place of another one, does not open. Who deletes the row has made the objects unreadable at once, wherever copies of the
bucket are. The encryption of the database may change its keys: the row is sealed again, and no object.
"""

from __future__ import annotations

import hashlib
import os
import threading
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from hermes_worker.features.object_storage.bucket_files import CONNECTIONS_MAX, Bucket
from hermes_worker.features.object_storage.head_rows import WorkspaceHead
from hermes_worker.features.object_storage.rules import PART_BYTES, derive_seal_key, name_object
from hermes_worker.system import faults
from hermes_worker.system.faults import FaultPoint
from hermes_worker.workspaces.trees.objects import FileTrees, ObjectStore, StoreDamaged, encode_object

ALGORITHM: Final = "sha256"
SHA_BYTES: Final = 32
_MARK: Final = b"hwo1"
_NONCE_BYTES: Final = 12
_OBJECT_BYTES_MAX: Final = 4 * PART_BYTES


class SealedObjects:
    """The objects below one beginning of keys, under one secret. Thread-safe."""

    def __init__(self, bucket: Bucket, folder: str, secret: bytes) -> None:
        self._bucket = bucket
        self._folder = folder
        self._secret = secret
        self._box = AESGCM(derive_seal_key(secret))

    def name_key(self, sha: str) -> str:
        """The key of an object in the bucket."""
        return self._folder + name_object(self._secret, sha)

    def write(self, key: str, whole: bytes) -> None:
        """Seal and write an object. Raises ``BucketAway``. Idempotent."""
        nonce = os.urandom(_NONCE_BYTES)
        self._bucket.put(key, _MARK + nonce + self._box.encrypt(nonce, zlib.compress(whole, 1), key.encode()))

    def read(self, key: str) -> bytes:
        """Read and open an object. Raises ``BucketAway``, ``StoreDamaged``."""
        stored = self._bucket.get(key)
        if stored is None:
            raise StoreDamaged("an object is missing in object storage")
        if not stored.startswith(_MARK):
            raise StoreDamaged("an object in object storage is none of ours")
        nonce, sealed = stored[len(_MARK) :][:_NONCE_BYTES], stored[len(_MARK) + _NONCE_BYTES :]
        try:
            reading = zlib.decompressobj()
            return reading.decompress(self._box.decrypt(nonce, sealed, key.encode()), _OBJECT_BYTES_MAX)
        except (InvalidTag, ValueError, zlib.error):
            raise StoreDamaged("an object in object storage is not what was written") from None


class SnapshotObjects:
    """The objects of a workspace's snapshots, for one scan or restore on top of ``head``. Uploads go on beside the
    scan; ``finish`` waits for them. Trees are kept on this machine as well."""

    def __init__(self, head: WorkspaceHead, stored: SealedObjects, trees: ObjectStore, *, uploads: bool) -> None:
        """Without ``uploads`` objects get names, and only their trees are kept."""
        self.head = head
        self._stored = stored
        self._trees = trees
        self._known: set[str] | None = None
        self._pool = ThreadPoolExecutor(CONNECTIONS_MAX, thread_name_prefix="hermes_objects")
        self._slots = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self._uploads: list[Future[None]] | None = [] if uploads else None

    def find_known(self) -> set[str]:
        """Find the keys of objects that are certainly in the bucket: objects of the snapshot that the row names, and
        objects that were put by this value. Raises what ``get`` raises."""
        if self._known is None:
            self._known = set()
            if self.head.tree is not None:
                FileTrees(self, SHA_BYTES).mark_needed(self.head.tree, self._known)
        return self._known

    def name_key(self, sha: str) -> str:
        """The key of an object in the bucket."""
        return self._stored.name_key(sha)

    def put(self, kind: str, body: bytes) -> str:
        """Keep an object, and return its name."""
        whole = encode_object(kind, body)
        sha = hashlib.sha256(whole).hexdigest()
        if kind == "tree":
            self._trees.put(kind, body)
        if self._uploads is not None and sha not in (known := self.find_known()):
            known.add(sha)
            self._slots.acquire()
            self._uploads.append(self._pool.submit(self._upload, sha, whole))
        return sha

    def _upload(self, sha: str, whole: bytes) -> None:
        try:
            self._stored.write(self._stored.name_key(sha), whole)
            faults.pass_point(FaultPoint.SNAPSHOT_DURING_UPLOAD)
        finally:
            self._slots.release()

    def finish(self) -> int:
        """Wait until every object is in the bucket; return how many were written. Raises ``BucketAway``."""
        self.close()
        for upload in self._uploads or ():
            upload.result()
        return len(self._uploads or ())

    def close(self) -> None:
        """Wait for what was begun, whatever became of it. Idempotent."""
        self._pool.shutdown()

    def get(self, kind: str, sha: str) -> bytes:
        """Read an object. Raises ``StoreDamaged``, ``BucketAway``, ``OSError``."""
        if kind == "tree" and self._trees.has(sha):
            return self._trees.get(kind, sha)
        whole = self._stored.read(self._stored.name_key(sha))
        header, _, body = whole.partition(b"\0")
        if hashlib.sha256(whole).hexdigest() != sha or header.partition(b" ")[0] != kind.encode():
            raise StoreDamaged(f"the object {sha[:12]} is not what it was")
        if kind == "tree":
            self._trees.put(kind, body)
        return body

    def fetch_later(self, sha: str) -> Future[bytes]:
        """Begin to read the content of a file."""
        return self._pool.submit(self.get, "blob", sha)
