"""what the migrations did, and the version of each worker"""

import sqlalchemy as sa
from alembic import op

revision = "0103"
down_revision = "0102"
branch_labels = None
depends_on = None
works_with = "0103"


def upgrade() -> None:
    op.create_table(
        "schema_revisions",
        sa.Column("revision", sa.String(32), primary_key=True),
        sa.Column("works_with", sa.String(32), nullable=False),
        sa.Column("applied_at", sa.Double(), nullable=False),
    )
    op.add_column("workers", sa.Column("version", sa.String(60)))
