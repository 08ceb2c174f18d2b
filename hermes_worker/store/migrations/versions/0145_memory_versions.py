"""memories of agents

Code of the version before offers no tool that reads or writes them.
"""

import sqlalchemy as sa
from alembic import op

revision = "0145"
down_revision = "0144"
branch_labels = None
depends_on = None
works_with = "0103"

_OFTEN_UPDATED = {
    "autovacuum_vacuum_scale_factor": "0.02",
    "autovacuum_vacuum_threshold": "1000",
    "autovacuum_analyze_scale_factor": "0.05",
}


def upgrade() -> None:
    big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "memory_versions",
        sa.Column("pk", big, autoincrement=True, nullable=False),
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("profile", sa.String(60), nullable=False),
        sa.Column("target", sa.String(10), nullable=False),
        sa.Column("entry_id", sa.String(20), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(10), nullable=False),
        sa.Column("act", sa.String(10), nullable=False),
        sa.Column("content", sa.Text()),
        sa.Column("author", sa.String(200), nullable=False),
        sa.Column("run_id", sa.String(40)),
        sa.Column("call_key", sa.String(100)),
        sa.Column("ordinal", sa.SmallInteger(), nullable=False, server_default="0"),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("past_at", sa.Double()),
        sa.Column("redacted_at", sa.Double()),
        sa.CheckConstraint(
            "(state in ('current', 'staged')) = (past_at is null)", name=op.f("ck_memory_versions_past_or_not")
        ),
        sa.PrimaryKeyConstraint("pk", name=op.f("pk_memory_versions")),
        sa.UniqueConstraint("entry_id", "version", name=op.f("uq_memory_versions_entry_id_version")),
        sa.UniqueConstraint("tenant", "call_key", "ordinal", name=op.f("uq_memory_versions_tenant_call_key_ordinal")),
        postgresql_with=_OFTEN_UPDATED,
    )
    op.create_index("ix_memory_versions_place", "memory_versions", ["tenant", "profile", "target", "pk"])
    for name, columns, condition in (
        ("current", ["tenant", "profile", "target"], "past_at is null"),
        ("past", ["tenant", "past_at"], "past_at is not null"),
        ("run", ["run_id"], "run_id is not null"),
    ):
        where = sa.text(condition)
        op.create_index(
            f"ix_memory_versions_{name}", "memory_versions", columns, postgresql_where=where, sqlite_where=where
        )
