"""who answered what a run asked"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("waits") as waits:
        waits.add_column(sa.Column("answered_by", sa.String(length=200), nullable=True))
    op.create_index(
        "ix_waits_answered",
        "waits",
        ["run_pk"],
        unique=False,
        postgresql_where=sa.text("closed_at is not null"),
        sqlite_where=sa.text("closed_at is not null"),
    )


def downgrade() -> None:
    op.drop_index("ix_waits_answered", table_name="waits")
    with op.batch_alter_table("waits") as waits:
        waits.drop_column("answered_by")
