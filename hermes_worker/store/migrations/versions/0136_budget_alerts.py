"""alerts about budgets, and targets of tenants for alerts

Code of the version before settles budgets without saying how near their limits they are; the next step that settles
one says it.
"""

import sqlalchemy as sa
from alembic import op

revision = "0136"
down_revision = "0135"
branch_labels = None
depends_on = None
works_with = "0103"


def upgrade() -> None:
    op.create_table(
        "alert_targets",
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "target", name="pk_alert_targets"),
    )
    op.add_column("budgets", sa.Column("level", sa.SmallInteger(), nullable=False, server_default="0"))
    op.add_column("budgets", sa.Column("told", sa.SmallInteger(), nullable=False, server_default="0"))
    where = sa.text("level > told")
    op.create_index("ix_budgets_untold", "budgets", ["root_pk"], postgresql_where=where, sqlite_where=where)
