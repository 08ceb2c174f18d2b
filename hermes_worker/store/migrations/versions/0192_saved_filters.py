"""filters of lists that people saved

Code of the version before shows none.
"""

import sqlalchemy as sa
from alembic import op

revision = "0192"
down_revision = "0183"
branch_labels = None
depends_on = None
works_with = "0103"


def upgrade() -> None:
    op.create_table(
        "saved_filters",
        sa.Column("pk", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("holder", sa.String(200), nullable=False),
        sa.Column("name", sa.String(60), nullable=False),
        sa.Column("query", sa.Text(), nullable=False),
        sa.Column("changed_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("pk", name=op.f("pk_saved_filters")),
        sa.UniqueConstraint("tenant", "holder", "name", name=op.f("uq_saved_filters_tenant_holder_name")),
    )
