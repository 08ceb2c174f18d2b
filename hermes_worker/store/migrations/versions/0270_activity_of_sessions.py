"""activity of sessions, and what workers send with

Sessions get the time at which they were opened or their last turn began or ended, and an index by it. Those that are
there have 0 until their next turn: lists show them below the others, in the order in which they were opened. Workers
get the names of the variables that they deliver with. Code of 0269 leaves both columns alone, and what it writes is
taken.
"""

import sqlalchemy as sa
from alembic import op

revision = "0270"
down_revision = "0269"
branch_labels = None
depends_on = None
works_with = "0100"


def upgrade() -> None:
    op.add_column("sessions", sa.Column("active_at", sa.Double(), nullable=False, server_default="0"))
    op.add_column("workers", sa.Column("sends_with", sa.Text()))
    op.create_index("ix_sessions_activity", "sessions", ["tenant", "active_at", "pk"], if_not_exists=True)
