"""people choose the model of a chat's conversation

Code of the version before leaves the column alone: its chats ask the usual model.
"""

import sqlalchemy as sa
from alembic import op

revision = "0250"
down_revision = "0240"
branch_labels = None
depends_on = None
works_with = "0103"


def upgrade() -> None:
    op.add_column("chats", sa.Column("model", sa.String(200)))
