"""idle runs in an index without a column that every step writes"""

import sqlalchemy as sa
from alembic import op

revision = "0116"
down_revision = "0115"
branch_labels = None
depends_on = None
works_with = "0103"

_WHERE = "idle_s_max is not null and status = 'running'"
builds_ahead = {"ix_runs_idle_limit": f"runs (pk) where {_WHERE}"}


def upgrade() -> None:
    where = sa.text(_WHERE)
    op.create_index(
        "ix_runs_idle_limit", "runs", ["pk"], postgresql_where=where, sqlite_where=where, if_not_exists=True
    )
    # Code of the version before reads the new one by the same condition: it looked at the whole index as well.
    op.drop_index("ix_runs_idle", "runs")
