"""paths below the home are stored relative to it

No table changes, and code of the version before reads the new form as a path. The rows that name such a path absolutely
are rewritten behind this revision, a few at a time, so that nobody waits for a transaction over all sessions. The row
that is added here says that this is still to be done (``store.home_rows``).
"""

import sqlalchemy as sa
from alembic import op

revision = "0264"
down_revision = "0260"
branch_labels = None
depends_on = None
works_with = "0103"


def upgrade() -> None:
    maintenance = sa.table("maintenance", sa.column("name", sa.String()), sa.column("ran_at", sa.Double()))
    op.execute(sa.insert(maintenance).values(name="relate_paths", ran_at=0.0))
