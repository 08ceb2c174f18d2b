"""erasures"""

import sqlalchemy as sa
from alembic import op

revision = "0115"
down_revision = "0114"
branch_labels = None
depends_on = None
works_with = "0103"


def upgrade() -> None:
    big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.add_column("sessions", sa.Column("erasure_pk", big))
    op.add_column("deleted_runs", sa.Column("erasure_pk", big))
    marked = sa.text("erasure_pk is not null")
    op.create_index("ix_sessions_erasure", "sessions", ["erasure_pk"], postgresql_where=marked, sqlite_where=marked)
    op.create_table(
        "erasures",
        sa.Column("pk", big, autoincrement=True, nullable=False),
        sa.Column("receipt_id", sa.String(40), nullable=False),
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("began_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("plan", sa.Text(), nullable=True),
        sa.Column("receipt", sa.Text(), nullable=True),
        sa.CheckConstraint("(ended_at is null) = (plan is not null)", name=op.f("ck_erasures_planned_until_ended")),
        sa.CheckConstraint("(ended_at is null) = (receipt is null)", name=op.f("ck_erasures_receipt_at_the_end")),
        sa.PrimaryKeyConstraint("pk", name=op.f("pk_erasures")),
        sa.UniqueConstraint("receipt_id", name=op.f("uq_erasures_receipt_id")),
    )
