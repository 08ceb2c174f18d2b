"""sessions of the original's wire, and answers that are kept for a repeated request"""

import sqlalchemy as sa
from alembic import op

revision = "0109"
down_revision = "0108"
branch_labels = None
depends_on = None
works_with = "0103"

_FORKED = sa.text("forked_from is not null")
_OF_OTHERS = sa.text("tenant <> 'default'")


def upgrade() -> None:
    op.add_column("sessions", sa.Column("model", sa.String(200)))
    op.add_column("sessions", sa.Column("forked_from", sa.String(40)))
    op.add_column("sessions", sa.Column("ended_at", sa.Double()))
    op.add_column("sessions", sa.Column("end_reason", sa.String(40)))
    op.create_index(
        "ix_sessions_tenant", "sessions", ["tenant", "pk"], postgresql_where=_OF_OTHERS, sqlite_where=_OF_OTHERS
    )
    op.create_index(
        "ix_sessions_forked_from",
        "sessions",
        ["tenant", "forked_from"],
        postgresql_where=_FORKED,
        sqlite_where=_FORKED,
    )
    op.create_table(
        "kept_answers",
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("principal", sa.String(200), nullable=False),
        sa.Column("key", sa.String(256), nullable=False),
        sa.Column("operation", sa.String(300), nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("token", sa.String(32), nullable=True),
        sa.Column("held_until", sa.Double(), nullable=True),
        sa.Column("status", sa.SmallInteger(), nullable=True),
        sa.Column("headers", sa.Text(), nullable=True),
        sa.Column("body", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "principal", "key", name="pk_kept_answers"),
        sa.CheckConstraint("(token is null) = (status is not null)", name=op.f("ck_kept_answers_at_work_or_answered")),
        sa.CheckConstraint("(token is null) = (held_until is null)", name=op.f("ck_kept_answers_at_work_is_held")),
    )
    op.create_index("ix_kept_answers_created_at", "kept_answers", ["tenant", "created_at"])
