"""configurations of a fleet and of its tenants, and what a run overrides

Code of the version before reads no configuration from rows, and serves every run with the settings of its process.
"""

import sqlalchemy as sa
from alembic import op

revision = "0181"
down_revision = "0179"
branch_labels = None
depends_on = None
works_with = "0103"


def upgrade() -> None:
    op.create_table(
        "configurations",
        sa.Column("pk", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("of_tenant", sa.String(40), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("written_by", sa.String(200), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("pk", name=op.f("pk_configurations")),
        sa.UniqueConstraint("of_tenant", "version", name=op.f("uq_configurations_of_tenant_version")),
    )
    op.add_column("runs", sa.Column("overrides", sa.Text()))
