"""titles of sessions that only one has, and sessions that are put away

Code of the version before gives titles without keys, so two sessions may be called alike until all is upgraded.
"""

import sqlalchemy as sa
from alembic import op

revision = "0166"
down_revision = "0165"
branch_labels = None
depends_on = None
works_with = "0103"


def upgrade() -> None:
    op.add_column("sessions", sa.Column("title_key", sa.String(64)))
    op.add_column("sessions", sa.Column("archived_at", sa.Double()))
    where = sa.text("title_key is not null")
    op.create_index(
        "ix_sessions_title_key",
        "sessions",
        ["tenant", "title_key"],
        unique=True,
        postgresql_where=where,
        sqlite_where=where,
    )
