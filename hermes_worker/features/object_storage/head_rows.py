"""The snapshot that a workspace is at, and the secret of its objects: one row for each workspace.

A snapshot counts from the moment in which the row names it. So a worker that dies before leaves objects to which
nothing refers, and the files that the row names are whole at any time. Without the row nobody can read the objects.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa

from hermes_worker.features.object_storage.rules import SnapshotName
from hermes_worker.features.object_storage.tables import workspace_heads
from hermes_worker.store.engine.database import RowStore, db_now
from hermes_worker.store.engine.prepared import fetch_row, select_columns
from hermes_worker.store.rows import build_insert_ignoring


class WorkspaceHead(NamedTuple):
    """The snapshot of a workspace."""

    version: int
    """How many snapshots there were."""
    tree: str | None
    """The name of its tree; ``None`` before the first one."""
    secret: str
    swept: int
    """The version after which objects without a reference were last removed."""


def _is_at(name: SnapshotName) -> sa.ColumnElement[bool]:
    return sa.and_(workspace_heads.c.tenant == name.tenant, workspace_heads.c.name == name.name)


class WorkspaceHeads(RowStore):
    """The heads in one database. Thread-safe."""

    def find_head(self, name: SnapshotName) -> WorkspaceHead | None:
        """Load the head of a workspace; ``None`` before its first use. Raises ``UnavailableError``."""
        wanted = sa.select(*select_columns(workspace_heads, WorkspaceHead)).where(_is_at(name))
        return fetch_row(self.database.select(wanted), WorkspaceHead)

    def add_head(self, name: SnapshotName) -> WorkspaceHead:
        """Load the head of a workspace; the first use makes one. Of any number of processes one chooses the secret."""
        while (found := self.find_head(name)) is None:
            values = {"tenant": name.tenant, "name": name.name, "secret": secrets.token_hex(32)}
            with self.database.write() as connection:
                new = build_insert_ignoring(connection, workspace_heads).values(**values, changed_at=db_now())
                connection.execute(new)
        return found

    def move_head(self, name: SnapshotName, before: WorkspaceHead, tree: str) -> WorkspaceHead | None:
        """Name another snapshot; ``None`` when another process did since ``before`` was loaded, or the row is gone."""
        this = sa.and_(_is_at(name), workspace_heads.c.version == before.version)
        moved = (
            sa.update(workspace_heads).where(this).values(tree=tree, version=before.version + 1, changed_at=db_now())
        )
        if self.database.execute(moved) == 0:
            return None
        return before._replace(tree=tree, version=before.version + 1)

    def mark_swept(self, name: SnapshotName, version: int) -> None:
        """Note that objects without a reference were removed at ``version``."""
        self.database.execute(sa.update(workspace_heads).where(_is_at(name)).values(swept=version))

    def remove_head(self, name: SnapshotName) -> None:
        """Forget a workspace: nobody can read its objects any more. Idempotent."""
        self.database.execute(sa.delete(workspace_heads).where(_is_at(name)))

    def list_names(self, tenant: str | None = None) -> Sequence[SnapshotName]:
        """List the workspaces that have a row, of one tenant or, with ``None``, of all tenants."""
        which = sa.true() if tenant is None else workspace_heads.c.tenant == tenant
        rows = self.database.select(sa.select(workspace_heads.c.tenant, workspace_heads.c.name).where(which)).all()
        return [SnapshotName(tenant=str(tenant), name=str(name)) for tenant, name in rows]
