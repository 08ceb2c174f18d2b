"""runs whose answers have to fit a schema

Code of the version before takes any answer of such a run.
"""

import sqlalchemy as sa
from alembic import op

revision = "0117"
down_revision = "0116"
branch_labels = None
depends_on = None
works_with = "0103"


def upgrade() -> None:
    column = sa.Column("has_output_schema", sa.SmallInteger(), nullable=False, server_default="0")
    op.add_column("runs", column)
