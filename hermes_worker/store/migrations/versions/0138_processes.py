"""background processes

Code of the version before starts none.
"""

import sqlalchemy as sa
from alembic import op

revision = "0138"
down_revision = "0136"
branch_labels = None
depends_on = None
works_with = "0103"


def upgrade() -> None:
    big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "processes",
        sa.Column("pk", big, autoincrement=True, nullable=False),
        sa.Column("process_id", sa.String(20), nullable=False),
        sa.Column("session_pk", big, nullable=False),
        sa.Column("run_pk", big, nullable=False),
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("command", sa.Text(), nullable=False),
        sa.Column("state", sa.String(10), nullable=False),
        sa.Column("exit_code", sa.Integer()),
        sa.Column("has_terminal", sa.SmallInteger(), nullable=False, server_default="0"),
        sa.Column("notifies", sa.SmallInteger(), nullable=False, server_default="0"),
        sa.Column("patterns", sa.Text()),
        sa.Column("is_consumed", sa.SmallInteger(), nullable=False, server_default="0"),
        sa.Column("seen", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("notices", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("told_at", sa.Double()),
        sa.Column("strikes", sa.SmallInteger(), nullable=False, server_default="0"),
        sa.Column("suppressed", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("is_off", sa.SmallInteger(), nullable=False, server_default="0"),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double()),
        sa.Column("deadline_at", sa.Double(), nullable=False),
        sa.Column("next_look_at", sa.Double()),
        sa.CheckConstraint(
            "(state in ('starting', 'running')) = (ended_at is null)", name=op.f("ck_processes_open_or_ended")
        ),
        sa.ForeignKeyConstraint(
            ["session_pk"], ["sessions.pk"], name=op.f("fk_processes_session_pk"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["run_pk"], ["runs.pk"], name=op.f("fk_processes_run_pk"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("pk", name=op.f("pk_processes")),
        sa.UniqueConstraint("process_id", name=op.f("uq_processes_process_id")),
    )
    op.create_index("ix_processes_session_pk", "processes", ["session_pk", "pk"])
    op.create_index("ix_processes_run_pk", "processes", ["run_pk"])
    for name, column in (("due", "next_look_at"), ("told", "told_at")):
        where = sa.text(f"{column} is not null")
        op.create_index(f"ix_processes_{name}", "processes", [column], postgresql_where=where, sqlite_where=where)
