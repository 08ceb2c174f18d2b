"""titles of runs

Each submission gets a column for the title of its run. Runs that are there stay without one: lists show the title of
their conversation. Code of 0266 leaves the column alone, and what it writes is taken.
"""

import sqlalchemy as sa
from alembic import op

revision = "0267"
down_revision = "0266"
branch_labels = None
depends_on = None
works_with = "0100"


def upgrade() -> None:
    op.add_column("run_inputs", sa.Column("title", sa.Text()))
