"""runs that begin later, are urgent, have tags or repeat another

Code of the version before may begin a run early that is to begin later: at the end of another run of its session.
"""

import sqlalchemy as sa
from alembic import op

revision = "0110"
down_revision = "0109"
branch_labels = None
depends_on = None
works_with = "0103"

_INDEXES = (
    ("ix_runs_later", "not_before", "not_before is not null and status = 'queued' and hinted_at is null"),
    ("ix_runs_retries", "retry_of_pk", "retry_of_pk is not null"),
)


def upgrade() -> None:
    big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.add_column("runs", sa.Column("not_before", sa.Double(), nullable=True))
    op.add_column("runs", sa.Column("priority", sa.SmallInteger(), nullable=False, server_default="0"))
    op.add_column("runs", sa.Column("retry_of_pk", big, nullable=True))
    for name, column, where in _INDEXES:
        op.create_index(name, "runs", [column], postgresql_where=sa.text(where), sqlite_where=sa.text(where))
    op.create_table(
        "run_tags",
        sa.Column("run_pk", big, sa.ForeignKey("runs.pk", name="fk_run_tags_run_pk", ondelete="CASCADE")),
        sa.Column("tag", sa.String(64), nullable=False),
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.PrimaryKeyConstraint("run_pk", "tag", name="pk_run_tags"),
    )
    op.create_index("ix_run_tags_tag", "run_tags", ["tenant", "tag", "run_pk"])
