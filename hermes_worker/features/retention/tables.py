"""Rules of retention, the places of passes over rows, and erasures."""

from __future__ import annotations

import sqlalchemy as sa

from hermes_worker.store.engine.sealing import SealedText
from hermes_worker.store.tables import BigId, Seconds, Tenant, metadata

retention_rules = sa.Table(
    "retention_rules",
    metadata,
    sa.Column("tenant", Tenant, primary_key=True),
    sa.Column("kind", sa.String(20), primary_key=True),
    sa.Column("rule", sa.String(40), nullable=False),
)
"""A tenant's own retention rules, where the installation's setting does not hold for it
(``features.retention.rules``)."""

retention_marks = sa.Table(
    "retention_marks",
    metadata,
    sa.Column("tenant", Tenant, primary_key=True),
    sa.Column("kind", sa.String(20), primary_key=True),
    sa.Column("at", Seconds, nullable=False),
    sa.Column("pk", BigId, nullable=False),
)
"""The position of the pass over a tenant's rows of one kind, so that the next look goes on there. It only saves work:
without its row a pass begins again."""

erasures = sa.Table(
    "erasures",
    metadata,
    sa.Column("pk", BigId, primary_key=True, autoincrement=True),
    sa.Column("receipt_id", sa.String(40), nullable=False, unique=True),
    sa.Column("tenant", Tenant, nullable=False),
    sa.Column("began_at", Seconds, nullable=False),
    sa.Column("ended_at", Seconds),
    sa.Column("plan", SealedText("erasures.plan")),
    sa.Column("receipt", sa.Text()),
    sa.CheckConstraint("(ended_at is null) = (plan is not null)", name="planned_until_ended"),
    sa.CheckConstraint("(ended_at is null) = (receipt is null)", name="receipt_at_the_end"),
)
"""Erasures of what belongs to a person, a session or a tenant (``features.retention.erasure_rules``). ``plan`` says
what it is about, and is deleted when it is done; ``receipt`` names no person and stays."""
