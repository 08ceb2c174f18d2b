"""alerts for operators

Code of the version before sends none.
"""

import sqlalchemy as sa
from alembic import op

revision = "0121"
down_revision = "0120"
branch_labels = None
depends_on = None
works_with = "0103"


def upgrade() -> None:
    op.create_table(
        "alerts",
        sa.Column("pk", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("subject", sa.String(100), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("raised_at", sa.Double(), nullable=False),
        sa.Column("clear_since", sa.Double()),
        sa.Column("recovered_at", sa.Double()),
        sa.UniqueConstraint("tenant", "kind", "subject", "epoch", name="uq_alerts_tenant_kind_subject_epoch"),
    )
    where = sa.text("recovered_at is null")
    op.create_index("ix_alerts_open", "alerts", ["pk"], postgresql_where=where, sqlite_where=where)
