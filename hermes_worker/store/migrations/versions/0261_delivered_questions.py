"""which question a delivery shows, so that an answer can be told from one to another question

Code of the version before sends questions without it: whoever answers them without a button is asked for the code.
"""

import sqlalchemy as sa
from alembic import op

revision = "0261"
down_revision = "0260"
branch_labels = None
depends_on = None
works_with = "0103"


def upgrade() -> None:
    op.add_column("deliveries", sa.Column("wait_pk", sa.BigInteger().with_variant(sa.Integer(), "sqlite")))
