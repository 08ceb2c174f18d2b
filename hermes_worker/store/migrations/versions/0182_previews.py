"""deliveries that show an answer while it is written

Code of the version before takes such a row for the delivery of a run that has ended. None is written before
HERMES_GATEWAY_STREAMING is set (docs/gateway.md).
"""

import sqlalchemy as sa
from alembic import op

revision = "0182"
down_revision = "0181"
branch_labels = None
depends_on = None
works_with = "0103"


def upgrade() -> None:
    op.add_column("deliveries", sa.Column("is_preview", sa.SmallInteger(), nullable=False, server_default="0"))
    op.add_column("deliveries", sa.Column("message_id", sa.String(200)))
    op.add_column("deliveries", sa.Column("shown_hash", sa.String(16)))
    op.add_column("deliveries", sa.Column("shown_at", sa.Double()))
