"""workers that are asked to leave, and the rung of their sandbox

Workers of the version before do not look whether they were asked to.
"""

import sqlalchemy as sa
from alembic import op

revision = "0165"
down_revision = "0164"
branch_labels = None
depends_on = None
works_with = "0103"


def upgrade() -> None:
    op.add_column("workers", sa.Column("draining_at", sa.Double()))
    op.add_column("workers", sa.Column("sandbox", sa.String(20)))
