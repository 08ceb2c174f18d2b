"""The contents of artifacts: in a row, or where the row says."""

from __future__ import annotations

import base64
from collections.abc import Collection
from typing import Protocol

import sqlalchemy as sa

from hermes_worker.core.errors import UnavailableError
from hermes_worker.store.engine.database import Database, RowStore, db_now
from hermes_worker.store.rows import build_insert_ignoring, compute_blob_hash
from hermes_worker.store.tables import blobs


class ContentStore(Protocol):
    """Keeps the contents of artifacts. Implemented by ``RowContents`` and by
    ``features.object_storage.content_files.ObjectContents``."""

    def keep(self, tenant: str, content: bytes) -> str:
        """Store a content for an hour, until a row refers to it. Returns the hash of its row. Idempotent."""

    def load(self, tenant: str, digest: str, body: str) -> bytes:
        """Load a content whose row has the hash ``digest`` and the text ``body``. Raises ``UnavailableError``."""


class RowContents(RowStore):
    """Keeps contents in rows, as base64. Thread-safe."""

    def keep(self, tenant: str, content: bytes) -> str:
        body = base64.b64encode(content).decode()
        digest = compute_blob_hash(body)
        keep_text(self.database, digest, body)
        return digest

    def load(self, tenant: str, digest: str, body: str) -> bytes:
        if ":" in body:
            raise UnavailableError("this file is in object storage: set HERMES_OBJECT_STORAGE for this process")
        return base64.b64decode(body)


def keep_text(database: Database, digest: str, body: str) -> str:
    """Store a text for an hour, until a row refers to it, and return the one that is stored: that of the first process
    that kept one under this hash. Idempotent."""
    with database.write() as connection:
        this = blobs.c.hash == digest
        renewed = sa.update(blobs).where(this, blobs.c.released_at.is_not(None)).values(released_at=db_now())
        if not connection.execute(renewed).rowcount:
            new = build_insert_ignoring(connection, blobs).values(hash=digest, body=body, released_at=db_now())
            if connection.execute(new).rowcount == 1:
                return body
        return str(connection.execute(sa.select(blobs.c.body).where(this)).scalar_one())


def find_kept(database: Database, digests: Collection[str]) -> set[str]:
    """The hashes among ``digests`` that have a row."""
    return set(database.select(sa.select(blobs.c.hash).where(blobs.c.hash.in_(digests))).scalars())
