"""The routes of webhooks."""

from __future__ import annotations

import sqlalchemy as sa

from hermes_worker.store.engine.sealing import SealedText
from hermes_worker.store.tables import Seconds, Tenant, metadata

webhook_routes = sa.Table(
    "webhook_routes",
    metadata,
    sa.Column("tenant", Tenant, primary_key=True),
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("secret", sa.Text(), nullable=False, info={"is_secret": True}),
    sa.Column("definition", SealedText("webhook_routes.definition"), nullable=False),
    sa.Column("created_at", Seconds, nullable=False),
    info={"owner": "tenant"},
)
"""Addresses to which others may send events. ``definition`` is what the owner wrote, as JSON."""
