"""The rows in the places of contents that are in object storage."""

from __future__ import annotations

from collections.abc import Collection

from hermes_worker.store.artifacts.contents import RowContents, find_kept, keep_text
from hermes_worker.store.engine.database import Database


class ContentRows:
    """Keeps the row of each content. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def keep(self, digest: str, pointer: str) -> str:
        """Store a pointer for an hour, until a row refers to it, and return the one that is stored. Idempotent."""
        return keep_text(self._database, digest, pointer)

    def load(self, tenant: str, digest: str, body: str) -> bytes:
        """Load a content that the row has itself. Raises ``UnavailableError``."""
        return RowContents(self._database).load(tenant, digest, body)

    def find_kept(self, digests: Collection[str]) -> set[str]:
        """The hashes among ``digests`` that have a row."""
        return find_kept(self._database, digests)
