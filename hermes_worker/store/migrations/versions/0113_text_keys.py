"""keys that texts are encrypted with, and room for encrypted titles and fingerprints"""

import sqlalchemy as sa
from alembic import op

revision = "0113"
down_revision = "0112"
branch_labels = None
depends_on = None
works_with = "0103"


def upgrade() -> None:
    op.create_table(
        "text_keys",
        sa.Column("key_id", sa.String(20), nullable=False),
        sa.Column("first_used_at", sa.Double(), nullable=False),
        sa.Column("last_used_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("key_id", name="pk_text_keys"),
    )
    if op.get_bind().dialect.name == "postgresql":  # SQLite does not count characters
        op.alter_column("sessions", "title", type_=sa.Text())
        op.alter_column("sessions", "end_reason", type_=sa.Text())
        op.alter_column("idempotency_keys", "fingerprint", type_=sa.Text())
        op.alter_column("kept_answers", "fingerprint", type_=sa.Text())
