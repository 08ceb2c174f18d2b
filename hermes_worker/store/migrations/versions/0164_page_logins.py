"""logins of the page

Code of the version before has no page and lets nobody in by them.
"""

import sqlalchemy as sa
from alembic import op

revision = "0164"
down_revision = "0145"
branch_labels = None
depends_on = None
works_with = "0103"


def upgrade() -> None:
    big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "page_logins",
        sa.Column("pk", big, autoincrement=True, nullable=False),
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("key_id", sa.String(20)),
        sa.Column("holder", sa.String(200)),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.CheckConstraint("(key_id is null) <> (holder is null)", name=op.f("ck_page_logins_one_key")),
        sa.PrimaryKeyConstraint("pk", name=op.f("pk_page_logins")),
        sa.UniqueConstraint("hash", name=op.f("uq_page_logins_hash")),
    )
    op.create_index("ix_page_logins_expires", "page_logins", ["expires_at"])
    op.create_index("ix_page_logins_tenant", "page_logins", ["tenant"])
