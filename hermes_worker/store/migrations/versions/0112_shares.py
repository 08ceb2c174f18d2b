"""tenants share a fleet, and have limits

Code of the version before begins every run at once; what this one holds back, it leaves alone. The statements beside
this file make the view of the backlog anew, with the runs that are held.
"""

from pathlib import Path

import sqlalchemy as sa
from alembic import op

revision = "0112"
down_revision = "0111"
branch_labels = None
depends_on = None
works_with = "0103"

_INDEXES = (
    ("ix_runs_held", ["tenant", "place_rank", "pk"], "place = 0"),
    ("ix_runs_placed", ["tenant", "status"], "place = 2"),
    ("ix_runs_left", ["pk"], "place = 4"),
)
_ONE_ROW = ("tenant_shares", "spending", "submit_rates")
"""Tables of few rows that are written often."""


def upgrade() -> None:
    op.add_column("workers", sa.Column("slots", sa.Integer(), nullable=True))
    op.add_column("runs", sa.Column("place", sa.SmallInteger(), nullable=True))
    op.add_column("runs", sa.Column("place_rank", sa.SmallInteger(), nullable=True))
    for name, columns, where in _INDEXES:
        op.create_index(name, "runs", columns, postgresql_where=sa.text(where), sqlite_where=sa.text(where))
    _make_tables()
    connection = op.get_bind()
    if connection.dialect.name == "postgresql":
        for table in _ONE_ROW:
            op.execute(f"ALTER TABLE {table} SET (fillfactor = 50, autovacuum_vacuum_threshold = 100)")
    view = Path(__file__).with_suffix(f".{connection.dialect.name}.sql").read_text(encoding="utf-8")
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("drop view hermes_backlog")
    else:
        # Whom an operator lets read it may go on reading it.
        view = view.replace("create view", "create or replace view", 1)
    connection.exec_driver_sql(view)


def _make_tables() -> None:
    op.create_table(
        "tenant_shares",
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("weight", sa.Double(), nullable=False, server_default="1"),
        sa.Column("virtual", sa.Double(), nullable=False, server_default="0"),
        sa.Column("mean", sa.Double(), nullable=True),
        sa.Column("is_busy", sa.SmallInteger(), nullable=False, server_default="0"),
        sa.PrimaryKeyConstraint("tenant", name="pk_tenant_shares"),
        sa.CheckConstraint("weight > 0", name="weight"),
    )
    op.create_table(
        "limits",
        *_of_whom(),
        sa.Column("name", sa.String(20), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.Column("waits", sa.SmallInteger(), nullable=False, server_default="0"),
        sa.PrimaryKeyConstraint("tenant", "key_id", "name", name="pk_limits"),
        sa.CheckConstraint("value >= 0", name="value"),
    )
    op.create_table(
        "spending",
        *_of_whom(),
        sa.Column("period", sa.String(10), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("nano_usd", sa.BigInteger(), nullable=False, server_default="0"),
        sa.PrimaryKeyConstraint("tenant", "key_id", "period", name="pk_spending"),
    )
    op.create_table(
        "submit_rates",
        *_of_whom(),
        sa.Column("tokens", sa.Double(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "key_id", name="pk_submit_rates"),
    )


def _of_whom() -> tuple[sa.Column[str], sa.Column[str]]:
    return sa.Column("tenant", sa.String(40), nullable=False), sa.Column("key_id", sa.String(20), nullable=False)
