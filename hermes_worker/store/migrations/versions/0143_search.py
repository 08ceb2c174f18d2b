"""search in messages

Every session is due. Code of the version before adds nothing to the index; what it deletes of SQLite's leaves words
that lead to no message.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import TSVECTOR

revision = "0143"
down_revision = "0142"
branch_labels = None
depends_on = None
works_with = "0103"

_WORDS = """
create virtual table search_words using fts5(
    words, content='', detail=none, columnsize=0, tokenize="ascii tokenchars '-._'"
)
"""


def upgrade() -> None:
    big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "search_rows",
        sa.Column("pk", big, autoincrement=True, nullable=False),
        sa.Column("session_pk", big, nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("words", sa.Text().with_variant(TSVECTOR(), "postgresql")),
        sa.ForeignKeyConstraint(
            ["session_pk"], ["sessions.pk"], name=op.f("fk_search_rows_session_pk"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("pk", name=op.f("pk_search_rows")),
        sa.UniqueConstraint("session_pk", "seq", name=op.f("uq_search_rows_session_pk_seq")),
        postgresql_with={
            "autovacuum_vacuum_scale_factor": "0.05",
            "autovacuum_vacuum_insert_scale_factor": "0.05",
            "autovacuum_analyze_scale_factor": "0.05",
        },
    )
    op.create_index(
        "ix_search_rows_words",
        "search_rows",
        ["words"],
        postgresql_using="gin",
        sqlite_where=sa.text("words is not null"),
    )
    op.create_table(
        "search_due",
        sa.Column("pk", big, autoincrement=True, nullable=False),
        sa.Column("session_pk", big, nullable=False),
        sa.ForeignKeyConstraint(
            ["session_pk"], ["sessions.pk"], name=op.f("fk_search_due_session_pk"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("pk", name=op.f("pk_search_due")),
        postgresql_with={
            "autovacuum_vacuum_scale_factor": "0.02",
            "autovacuum_vacuum_threshold": "1000",
            "autovacuum_analyze_scale_factor": "0.05",
        },
    )
    op.create_index("ix_search_due_session_pk", "search_due", ["session_pk"])
    connection = op.get_bind()
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(_WORDS)
    connection.exec_driver_sql("insert into search_due (session_pk) select pk from sessions order by pk")
