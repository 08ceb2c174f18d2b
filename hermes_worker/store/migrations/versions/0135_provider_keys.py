"""provider keys of tenants as rows

Code of the version before asks with what its settings say.
"""

import sqlalchemy as sa
from alembic import op

revision = "0135"
down_revision = "0134"
branch_labels = None
depends_on = None
works_with = "0103"


def upgrade() -> None:
    op.create_table(
        "provider_keys",
        sa.Column("pk", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("key_id", sa.String(20), nullable=False),
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("provider", sa.String(100), nullable=False),
        sa.Column("fingerprint", sa.String(16), nullable=False),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.UniqueConstraint("key_id", name="uq_provider_keys_key_id"),
        sa.UniqueConstraint("tenant", "provider", "fingerprint", name="uq_provider_keys_tenant_provider_fingerprint"),
    )
