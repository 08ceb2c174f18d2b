"""The rows in the places of contents that are in object storage."""

from __future__ import annotations

from collections.abc import Collection

from hermes_worker.store.artifacts.contents import RowContents, find_kept, keep_text
from hermes_worker.store.engine.database import RowStore


class ContentRows(RowStore):
    """Keeps the row of each content. Thread-safe."""

    def keep(self, digest: str, pointer: str) -> str:
        """Store a pointer for an hour, until a row refers to it, and return the one that is stored. Idempotent."""
        return keep_text(self.database, digest, pointer)

    def load(self, tenant: str, digest: str, body: str) -> bytes:
        """Load a content that the row has itself. Raises ``UnavailableError``."""
        return RowContents(self.database).load(tenant, digest, body)

    def find_kept(self, digests: Collection[str]) -> set[str]:
        """The hashes among ``digests`` that have a row."""
        return find_kept(self.database, digests)
