"""retention

What deletes old rows needs to find them: by their end, and by what refers to them. Storage parameters are PostgreSQL's;
they hold for what is written from now on.
"""

import sqlalchemy as sa
from alembic import op

revision = "0106"
down_revision = "0105"
branch_labels = None
depends_on = None
works_with = "0103"

_INDEXES = (
    ("ix_runs_ended", "runs", ["tenant", "finished_at", "pk"], "finished_at is not null"),
    ("ix_runs_session_pk", "runs", ["session_pk", "pk"], None),
    ("ix_sessions_tools_hash", "sessions", ["tools_hash"], None),
    ("ix_waits_run_pk", "waits", ["run_pk"], None),
    ("ix_steers_run_pk", "steers", ["run_pk"], None),
    ("ix_blobs_released", "blobs", ["released_at"], "released_at is not null"),
    ("ix_messages_blob_hash", "messages", ["blob_hash"], "blob_hash is not null"),
    ("ix_idempotency_keys_run_pk", "idempotency_keys", ["run_pk"], "run_pk is not null"),
    ("ix_firings_run_pk", "firings", ["run_pk"], "run_pk is not null"),
    ("ix_deliveries_settled", "deliveries", ["tenant", "settled_at", "pk"], "settled_at is not null"),
)
_UPDATED = (
    "autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_analyze_scale_factor = 0.05"
)
_ADDED = (
    "autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05, "
    "autovacuum_analyze_scale_factor = 0.05"
)
_PARAMETERS = {
    "runs": f"fillfactor = 80, {_UPDATED}",
    "sessions": f"fillfactor = 85, {_UPDATED}",
    "budgets": f"fillfactor = 70, {_UPDATED}",
    "tool_calls": f"fillfactor = 80, {_UPDATED}",
    "deliveries": f"fillfactor = 80, {_UPDATED}",
    "messages": _ADDED,
    "events": _ADDED,
    "workers": "fillfactor = 50, autovacuum_vacuum_threshold = 100",
    "maintenance": "fillfactor = 50, autovacuum_vacuum_threshold = 100",
}


def upgrade() -> None:
    op.add_column("blobs", sa.Column("released_at", sa.Double(), nullable=True))
    _make_tables()
    for name, table, columns, where in _INDEXES:
        condition = sa.text(where) if where else None
        op.create_index(name, table, columns, postgresql_where=condition, sqlite_where=condition)
    if op.get_bind().dialect.name == "postgresql":
        for table, parameters in _PARAMETERS.items():
            op.execute(f"ALTER TABLE {table} SET ({parameters})")


def _make_tables() -> None:
    big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "retention_rules",
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("rule", sa.String(40), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "kind", name="pk_retention_rules"),
    )
    op.create_table(
        "legal_holds",
        sa.Column("pk", big, autoincrement=True, nullable=False),
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("root_pk", big, sa.ForeignKey("runs.pk", name="fk_legal_holds_root_pk"), nullable=True),
        sa.Column("session_pk", big, sa.ForeignKey("sessions.pk", name="fk_legal_holds_session_pk"), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("placed_by", sa.String(200), nullable=False),
        sa.Column("placed_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("pk", name="pk_legal_holds"),
        sa.CheckConstraint("root_pk is null or session_pk is null", name=op.f("ck_legal_holds_one_thing")),
    )
    op.create_index("ix_legal_holds_root_pk", "legal_holds", ["root_pk"])
    op.create_index("ix_legal_holds_session_pk", "legal_holds", ["session_pk"])
    op.create_table(
        "retention_marks",
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("pk", big, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "kind", name="pk_retention_marks"),
    )
    op.create_table(
        "deleted_runs",
        sa.Column("run_id", sa.String(40), nullable=False),
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("deleted_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", name="pk_deleted_runs"),
    )
    op.create_index("ix_deleted_runs_deleted_at", "deleted_runs", ["tenant", "deleted_at"])
