"""The provider keys that tenants bring."""

from __future__ import annotations

import sqlalchemy as sa

from hermes_worker.store.engine.sealing import SealedText
from hermes_worker.store.tables import BigId, Seconds, Tenant, metadata

provider_keys = sa.Table(
    "provider_keys",
    metadata,
    sa.Column("pk", BigId, primary_key=True, autoincrement=True),
    sa.Column("key_id", sa.String(20), nullable=False, unique=True),
    sa.Column("tenant", Tenant, nullable=False),
    sa.Column("provider", sa.String(100), nullable=False),
    sa.Column("fingerprint", sa.String(16), nullable=False),
    sa.Column("secret", SealedText("provider_keys.secret"), nullable=False),
    sa.Column("created_at", Seconds, nullable=False),
    sa.UniqueConstraint("tenant", "provider", "fingerprint"),
)
"""Provider keys that tenants bring. ``secret`` is encrypted: nothing is added while texts are stored in clear. Rows are
added and deleted, never changed. ``fingerprint`` tells keys apart and reveals nothing of them."""
