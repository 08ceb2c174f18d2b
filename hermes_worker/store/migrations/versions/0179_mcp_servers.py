"""MCP servers of tenants as rows

Code of the version before knows those of ``mcp.json`` only; a session that has a tool of a row is told that it is gone.
"""

import sqlalchemy as sa
from alembic import op

revision = "0179"
down_revision = "0178"
branch_labels = None
depends_on = None
works_with = "0103"


def upgrade() -> None:
    op.create_table(
        "mcp_servers",
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("name", sa.String(24), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("is_process", sa.Boolean(), nullable=False),
        sa.Column("server", sa.Text(), nullable=False),
        sa.Column("token", sa.Text()),
        sa.Column("offered", sa.Text()),
        sa.Column("problem", sa.Text()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("changed_at", sa.Double(), nullable=False),
        sa.Column("looked_at", sa.Double()),
        sa.Column("due_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "name", name=op.f("pk_mcp_servers")),
    )
    op.create_index("ix_mcp_servers_due", "mcp_servers", ["is_process", "due_at"])
