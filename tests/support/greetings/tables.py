from __future__ import annotations

import sqlalchemy as sa

from hermes_worker.store.engine.sealing import SealedText
from hermes_worker.store.tables import BigId, Seconds, metadata

greetings = sa.Table(
    "greetings",
    metadata,
    sa.Column("run_pk", BigId, sa.ForeignKey("runs.pk", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    sa.Column("name", SealedText("greetings.name"), nullable=False),
    sa.Column("token", sa.String(40), nullable=False, info={"is_secret": True}),
    sa.Column("greets_at", Seconds, nullable=False),
    sa.Column("greeted_at", Seconds),
    info={"owner": "run_pk"},
)
"""Who is to be greeted about a run, and when that was done."""
