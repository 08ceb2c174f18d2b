"""responses that a caller deleted

Code of the version before has no responses, and leaves the table alone.
"""

import sqlalchemy as sa
from alembic import op

revision = "0114"
down_revision = "0113"
branch_labels = None
depends_on = None
works_with = "0103"


def upgrade() -> None:
    big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "deleted_responses",
        sa.Column(
            "run_pk",
            big,
            sa.ForeignKey("runs.pk", name="fk_deleted_responses_run_pk", ondelete="CASCADE"),
            autoincrement=False,
        ),
        sa.Column("deleted_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("run_pk", name="pk_deleted_responses"),
    )
