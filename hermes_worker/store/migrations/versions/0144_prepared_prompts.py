"""prompts that are completed from a workspace

Code of the version before makes the first model call of such a session with the prompt as it is.
"""

import sqlalchemy as sa
from alembic import op

revision = "0144"
down_revision = "0143"
branch_labels = None
depends_on = None
works_with = "0103"


def upgrade() -> None:
    op.add_column("sessions", sa.Column("context_at", sa.Integer()))
    op.add_column("runs", sa.Column("prepares", sa.SmallInteger()))
