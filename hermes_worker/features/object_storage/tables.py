"""The snapshots of workspaces in object storage."""

from __future__ import annotations

import sqlalchemy as sa

from hermes_worker.store.engine.sealing import SealedText
from hermes_worker.store.tables import Seconds, Tenant, metadata

workspace_heads = sa.Table(
    "workspace_heads",
    metadata,
    sa.Column("tenant", Tenant, primary_key=True),
    sa.Column("name", sa.String(128), primary_key=True),
    sa.Column("version", sa.BigInteger(), nullable=False, server_default="0"),
    sa.Column("tree", sa.String(64)),
    sa.Column("secret", SealedText("workspace_heads.secret"), nullable=False),
    sa.Column("swept", sa.BigInteger(), nullable=False, server_default="0"),
    sa.Column("changed_at", Seconds, nullable=False),
)
"""The snapshots of workspaces in object storage. ``name`` is that of the workspace's directory, ``tree`` the snapshot
that counts, ``secret`` seals its objects, and ``swept`` is the version at which unneeded objects were removed."""
