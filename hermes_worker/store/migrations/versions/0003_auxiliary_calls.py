"""what tool calls ask of models, and which of them do"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_ASKING = sa.text("hinted_at is not null and asks = 1")


def upgrade() -> None:
    # With its CHECK in one statement, which SQLite can do without writing the whole table anew.
    op.execute(
        "ALTER TABLE tool_calls ADD COLUMN asks SMALLINT CONSTRAINT ck_tool_calls_asking_is_open "
        "CHECK (asks is null or asks = 0 or status in ('pending', 'running'))"
    )
    op.create_index("ix_tool_calls_asking", "tool_calls", ["hinted_at"], postgresql_where=_ASKING, sqlite_where=_ASKING)
    op.create_table(
        "auxiliary_calls",
        sa.Column("run_pk", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("iteration", sa.Integer(), nullable=False),
        sa.Column("position", sa.SmallInteger(), nullable=False),
        sa.Column("number", sa.SmallInteger(), nullable=False),
        sa.Column("task", sa.String(length=12), nullable=False),
        sa.Column("request", sa.Text(), nullable=True),
        sa.Column("material", sa.Text(), nullable=True),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.Column("failure_kind", sa.String(length=40), nullable=True),
        sa.Column("asked_at", sa.Double(), nullable=False),
        sa.Column("answered_at", sa.Double(), nullable=True),
        sa.CheckConstraint(
            "(answer is not null or failure_kind is not null) = (answered_at is not null)",
            name=op.f("ck_auxiliary_calls_answered"),
        ),
        sa.CheckConstraint("answer is null or failure_kind is null", name=op.f("ck_auxiliary_calls_one_outcome")),
        sa.CheckConstraint(
            "(request is null) = (answered_at is not null)", name=op.f("ck_auxiliary_calls_asked_until_answered")
        ),
        sa.ForeignKeyConstraint(["run_pk"], ["runs.pk"], name=op.f("fk_auxiliary_calls_run_pk"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_pk", "iteration", "position", "number", name=op.f("pk_auxiliary_calls")),
    )


def downgrade() -> None:
    op.drop_table("auxiliary_calls")
    op.drop_index("ix_tool_calls_asking", table_name="tool_calls", postgresql_where=_ASKING, sqlite_where=_ASKING)
    op.drop_column("tool_calls", "asks")
