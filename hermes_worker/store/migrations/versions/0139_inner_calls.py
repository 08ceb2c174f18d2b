"""what a script of a tool call has begun

Code of the version before runs no scripts.
"""

import sqlalchemy as sa
from alembic import op

revision = "0139"
down_revision = "0138"
branch_labels = None
depends_on = None
works_with = "0103"


def upgrade() -> None:
    op.add_column("tool_calls", sa.Column("inner_calls", sa.Text()))


def downgrade() -> None:
    op.drop_column("tool_calls", "inner_calls")
