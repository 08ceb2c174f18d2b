"""files that clients upload

An artifact may belong to no run: it was uploaded, by whom and what for. Code of 0268 writes and lists artifacts of runs
alone, and leaves the others to this version.
"""

import sqlalchemy as sa
from alembic import op

revision = "0269"
down_revision = "0268"
branch_labels = None
depends_on = None
works_with = "0100"

builds_ahead = {"ix_artifacts_uploaded": "artifacts (tenant, pk) where run_pk is null"}


def upgrade() -> None:
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    with op.batch_alter_table("artifacts") as table:
        table.alter_column("run_pk", existing_type=number, nullable=True)
        table.add_column(sa.Column("principal", sa.String(200)))
        table.add_column(sa.Column("purpose", sa.String(20)))
        table.add_column(sa.Column("expires_at", sa.Double()))
    is_uploaded = sa.text("run_pk is null")
    op.create_index(
        "ix_artifacts_uploaded",
        "artifacts",
        ["tenant", "pk"],
        postgresql_where=is_uploaded,
        sqlite_where=is_uploaded,
        if_not_exists=True,
    )
