"""snapshots of workspaces in object storage

One new table, to which code of 0267 writes nothing.
"""

import sqlalchemy as sa
from alembic import op

revision = "0268"
down_revision = "0267"
branch_labels = None
depends_on = None
works_with = "0100"


def upgrade() -> None:
    op.create_table(
        "workspace_heads",
        sa.Column("tenant", sa.String(40), primary_key=True),
        sa.Column("name", sa.String(128), primary_key=True),
        sa.Column("version", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("tree", sa.String(64)),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("swept", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("changed_at", sa.Double(), nullable=False),
    )
