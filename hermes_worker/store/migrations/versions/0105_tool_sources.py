"""tool sources

New sessions have no tools of sources until a worker of this version has listed them.
"""

import sqlalchemy as sa
from alembic import op

revision = "0105"
down_revision = "0104"
branch_labels = None
depends_on = None
works_with = "0103"


def upgrade() -> None:
    op.create_table(
        "tool_sources",
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("source", sa.String(64), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("definitions", sa.Text(), nullable=False),
        sa.Column("changed_at", sa.Double(), nullable=False),
        sa.Column("listed_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "source", name="pk_tool_sources"),
    )
