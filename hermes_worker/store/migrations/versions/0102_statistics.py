"""statistics

Every row that is over begins uncounted, those of an earlier version too: the sweepers count them in the background.
"""

import sqlalchemy as sa
from alembic import op

revision = "0102"
down_revision = "0101"
branch_labels = None
depends_on = None

_UNCOUNTED = {
    "runs": "exit_reason is not null and is_counted = 0",
    "firings": "is_counted = 0",
    "deliveries": "settled_at is not null and is_counted = 0",
}


def upgrade() -> None:
    op.create_table(
        "statistics",
        sa.Column("pk", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("measure", sa.String(40), nullable=False),
        sa.Column("labels", sa.Text(), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("pk", name="pk_statistics"),
    )
    for table, is_uncounted in _UNCOUNTED.items():
        op.add_column(table, sa.Column("is_counted", sa.SmallInteger(), nullable=False, server_default="0"))
        where = sa.text(is_uncounted)
        op.create_index(f"ix_{table}_uncounted", table, ["pk"], postgresql_where=where, sqlite_where=where)
