"""where a run's chain came from, and the network its commands were asked to have"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("runs") as runs:
        runs.add_column(sa.Column("origin", sa.String(length=20), nullable=True))
        runs.add_column(sa.Column("network", sa.String(length=10), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("runs") as runs:
        runs.drop_column("network")
        runs.drop_column("origin")
