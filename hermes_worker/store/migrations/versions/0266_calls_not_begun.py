"""which claims on tool calls have not begun their tool yet

Code of the version before leaves the column alone. What it claims has another token than the one that stands there, so
such a call counts as begun, as all did before.
"""

import sqlalchemy as sa
from alembic import op

revision = "0266"
down_revision = "0264"
branch_labels = None
depends_on = None
works_with = "0103"


def upgrade() -> None:
    op.add_column("tool_calls", sa.Column("unbegun_token", sa.String(32)))
