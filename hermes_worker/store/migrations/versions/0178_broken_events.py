"""events on which our code broke are counted in their rows

Code of the version before takes an event that is counted so for one that was taken.
"""

import sqlalchemy as sa
from alembic import op

revision = "0178"
down_revision = "0167"
branch_labels = None
depends_on = None
works_with = "0103"


def upgrade() -> None:
    op.add_column("inbound", sa.Column("tries", sa.Integer()))
