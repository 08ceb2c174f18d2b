"""leased resources: browsers, and processes that speak MCP

Code of the version before has no tool that uses one.
"""

import sqlalchemy as sa
from alembic import op

revision = "0134"
down_revision = "0121"
branch_labels = None
depends_on = None
works_with = "0103"

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "resources",
        sa.Column("pk", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("resource_id", sa.String(40), nullable=False),
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("session_pk", _NUMBER, nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("state", sa.String(10), nullable=False),
        sa.Column("host", sa.String(200)),
        sa.Column("endpoint", sa.Text()),
        sa.Column("lease_token", sa.String(32)),
        sa.Column("expires_at", sa.Double()),
        sa.Column("use_token", sa.String(32)),
        sa.Column("snapshot_hash", sa.String(64)),
        sa.Column("snapshot", sa.Text()),
        sa.Column("url", sa.Text()),
        sa.Column("storage", sa.Text()),
        sa.Column("reason", sa.Text()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("used_at", sa.Double(), nullable=False),
        sa.UniqueConstraint("resource_id", name="uq_resources_resource_id"),
        sa.UniqueConstraint("session_pk", "kind", "name", name="uq_resources_session_pk_kind_name"),
        sa.ForeignKeyConstraint(["session_pk"], ["sessions.pk"], name="fk_resources_session_pk", ondelete="CASCADE"),
        sa.CheckConstraint("kind in ('browser', 'mcp_stdio')", name=op.f("ck_resources_kind")),
        sa.CheckConstraint("state in ('wanted', 'starting', 'live', 'ended')", name=op.f("ck_resources_state")),
        sa.CheckConstraint(
            "(state in ('starting', 'live')) = (lease_token is not null)", name=op.f("ck_resources_hosted_is_leased")
        ),
        sa.CheckConstraint("(lease_token is null) = (expires_at is null)", name=op.f("ck_resources_lease_expires")),
        sa.CheckConstraint("(state = 'live') = (endpoint is not null)", name=op.f("ck_resources_live_has_endpoint")),
        postgresql_with={
            "fillfactor": "50",
            "autovacuum_vacuum_scale_factor": "0.02",
            "autovacuum_vacuum_threshold": "1000",
            "autovacuum_analyze_scale_factor": "0.05",
        },
    )
    for name, columns, where in (
        ("ix_resources_wanted", ["kind", "used_at"], "state = 'wanted'"),
        ("ix_resources_hosted", ["expires_at"], "expires_at is not null"),
    ):
        op.create_index(name, "resources", columns, postgresql_where=sa.text(where), sqlite_where=sa.text(where))
    op.create_index("ix_resources_unused", "resources", ["kind", "used_at"])
