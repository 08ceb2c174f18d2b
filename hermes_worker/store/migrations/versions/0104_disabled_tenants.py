"""tenants that are disabled"""

import sqlalchemy as sa
from alembic import op

revision = "0104"
down_revision = "0103"
branch_labels = None
depends_on = None
works_with = "0103"


def upgrade() -> None:
    op.add_column("tenants", sa.Column("disabled_at", sa.Double()))
