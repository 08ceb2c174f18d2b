"""what observers are told, and arguments that hooks gave to tool calls

The statements beside this file make the view of the backlog anew, with what is owed to observers. They were generated
from ``store.backlog`` and stay as they are when that changes.
"""

from pathlib import Path

import sqlalchemy as sa
from alembic import op

revision = "0107"
down_revision = "0106"
branch_labels = None
depends_on = None
works_with = "0103"

_PK = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("tool_calls", sa.Column("rewritten_arguments", sa.Text()))
    op.create_table(
        "hook_calls",
        sa.Column("pk", _PK, primary_key=True, autoincrement=True),
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("event_id", sa.String(120), nullable=False),
        sa.Column("hook", sa.String(64), nullable=False),
        sa.Column("event", sa.String(40), nullable=False),
        sa.Column("run_pk", _PK, nullable=False),
        sa.Column("event_seq", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(10), nullable=False),
        sa.Column("attempts", sa.SmallInteger(), nullable=False, server_default="0"),
        sa.Column("reason", sa.Text()),
        sa.Column("hinted_at", sa.Double()),
        sa.Column("hints", sa.SmallInteger(), nullable=False, server_default="0"),
        sa.Column("lease_token", sa.String(32)),
        sa.Column("lease_owner", _PK),
        sa.Column("claimed_at", sa.Double()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("settled_at", sa.Double()),
        sa.PrimaryKeyConstraint("pk", name="pk_hook_calls"),
        sa.UniqueConstraint("event_id", "hook", "tenant", name="uq_hook_calls_event_id_hook_tenant"),
        sa.ForeignKeyConstraint(["run_pk"], ["runs.pk"], name="fk_hook_calls_run_pk", ondelete="CASCADE"),
        sa.CheckConstraint("state in ('pending', 'running', 'done', 'failed', 'lost')", name="state"),
        sa.CheckConstraint("(state = 'running') = (lease_token is not null)", name="running_is_claimed"),
        sa.CheckConstraint("(state = 'pending') = (hinted_at is not null)", name="pending_is_due"),
        sa.CheckConstraint("(state in ('done', 'failed', 'lost')) = (settled_at is not null)", name="settled"),
    )
    op.create_index("ix_hook_calls_run_pk", "hook_calls", ["run_pk"])
    for name, column in (("due", "hinted_at"), ("claimed", "lease_owner"), ("settled", "settled_at")):
        where = sa.text(f"{column} is not null")
        op.create_index(f"ix_hook_calls_{name}", "hook_calls", [column], postgresql_where=where, sqlite_where=where)
    connection = op.get_bind()
    view = Path(__file__).with_suffix(f".{connection.dialect.name}.sql").read_text(encoding="utf-8")
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("drop view hermes_backlog")
    else:
        # Whom an operator lets read it may go on reading it.
        view = view.replace("create view", "create or replace view", 1)
    connection.exec_driver_sql(view)
