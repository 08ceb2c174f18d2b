"""model calls need permits where their tenant has a limit of them

Code of the version before makes its calls without one.
"""

import sqlalchemy as sa
from alembic import op

revision = "0118"
down_revision = "0117"
branch_labels = None
depends_on = None
works_with = "0103"

_INDEXES = (
    ("ix_runs_permits", ["tenant"], "permit is not null"),
    ("ix_runs_parts", ["tenant"], "place = 3"),
)
builds_ahead = {"ix_runs_parts": "runs (tenant) where place = 3"}


def upgrade() -> None:
    op.add_column("runs", sa.Column("permit", sa.String(32), nullable=True))
    for name, columns, where in _INDEXES:
        condition = sa.text(where)
        op.create_index(name, "runs", columns, postgresql_where=condition, sqlite_where=condition, if_not_exists=True)
