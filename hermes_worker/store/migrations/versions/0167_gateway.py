"""accounts, events and people of the gateway

Code of the version before listens to nobody.
"""

import sqlalchemy as sa
from alembic import op

revision = "0167"
down_revision = "0166"
branch_labels = None
depends_on = None
works_with = "0103"

_OFTEN_UPDATED = {
    "autovacuum_vacuum_scale_factor": "0.02",
    "autovacuum_vacuum_threshold": "1000",
    "autovacuum_analyze_scale_factor": "0.05",
}
_OFTEN_ADDED = {
    "autovacuum_vacuum_scale_factor": "0.05",
    "autovacuum_vacuum_insert_scale_factor": "0.05",
    "autovacuum_analyze_scale_factor": "0.05",
}


def upgrade() -> None:
    big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "channels",
        sa.Column("account", sa.String(100), nullable=False),
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("token_hash", sa.String(64)),
        sa.Column("mode", sa.String(10), nullable=False),
        sa.Column("cursor", sa.Text()),
        sa.Column("lease_token", sa.String(32)),
        sa.Column("lease_until", sa.Double()),
        sa.Column("holder", sa.String(200)),
        sa.Column("looked_at", sa.Double()),
        sa.Column("error", sa.Text()),
        sa.Column("error_at", sa.Double()),
        sa.Column("failures", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("locked_until", sa.Double()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("account", name=op.f("pk_channels")),
        postgresql_with=_OFTEN_UPDATED,
    )
    op.create_table(
        "inbound",
        sa.Column("pk", big, autoincrement=True, nullable=False),
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("account", sa.String(100), nullable=False),
        sa.Column("event_key", sa.String(200), nullable=False),
        sa.Column("outcome", sa.String(20), nullable=False),
        sa.Column("run_id", sa.String(40)),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("pk", name=op.f("pk_inbound")),
        sa.UniqueConstraint("account", "event_key", name=op.f("uq_inbound_account_event_key")),
        postgresql_with=_OFTEN_ADDED,
    )
    op.create_index("ix_inbound_received", "inbound", ["received_at"])
    op.create_table(
        "chats",
        sa.Column("account", sa.String(100), nullable=False),
        sa.Column("session_key", sa.String(256), nullable=False),
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("account", "session_key", name=op.f("pk_chats")),
    )
    op.create_table(
        "chat_people",
        sa.Column("account", sa.String(100), nullable=False),
        sa.Column("person", sa.String(200), nullable=False),
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("role", sa.String(10)),
        sa.Column("salt", sa.String(32)),
        sa.Column("code_hash", sa.String(64)),
        sa.Column("expires_at", sa.Double()),
        sa.Column("asked_at", sa.Double(), nullable=False),
        sa.Column("paired_at", sa.Double()),
        sa.CheckConstraint("(role is null) = (paired_at is null)", name=op.f("ck_chat_people_paired_or_not")),
        sa.PrimaryKeyConstraint("account", "person", name=op.f("pk_chat_people")),
    )
