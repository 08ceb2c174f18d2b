"""chats are known by their names, and one of a platform is its home

Code of the version before neither writes nor reads the table.
"""

import sqlalchemy as sa
from alembic import op

revision = "0251"
down_revision = "0250"
branch_labels = None
depends_on = None
works_with = "0103"


def upgrade() -> None:
    op.create_table(
        "known_chats",
        sa.Column("account", sa.String(100), nullable=False),
        sa.Column("chat", sa.String(200), nullable=False),
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("platform", sa.String(30), nullable=False),
        sa.Column("name", sa.String(100)),
        sa.Column("thread", sa.String(200)),
        sa.Column("is_home", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("learnt_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("account", "chat", name=op.f("pk_known_chats")),
    )
    op.create_index("ix_known_chats_name", "known_chats", ["tenant", "platform", "name"])
