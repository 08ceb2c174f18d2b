"""the backlog takes the median age of what is at work

The statements beside this file were generated from ``store.backlog`` and stay as they are when that changes.
"""

from pathlib import Path

from alembic import op

revision = "0108"
down_revision = "0107"
branch_labels = None
depends_on = None
works_with = "0103"


def upgrade() -> None:
    connection = op.get_bind()
    view = Path(__file__).with_suffix(f".{connection.dialect.name}.sql").read_text(encoding="utf-8")
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("drop view hermes_backlog")
    else:
        # Whom an operator lets read it may go on reading it.
        view = view.replace("create view", "create or replace view", 1)
    connection.exec_driver_sql(view)
