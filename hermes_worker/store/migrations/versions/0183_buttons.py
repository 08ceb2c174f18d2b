"""messages that people can answer by pressing a button

Code of the version before sends them without.
"""

import sqlalchemy as sa
from alembic import op

revision = "0183"
down_revision = "0182"
branch_labels = None
depends_on = None
works_with = "0103"


def upgrade() -> None:
    op.add_column("deliveries", sa.Column("buttons", sa.Text()))
