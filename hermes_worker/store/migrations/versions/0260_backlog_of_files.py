"""the backlog counts the files that are to be fetched

The statements beside this file make the view anew. Code of the version before reads it as it did.
"""

from pathlib import Path

from alembic import op

revision = "0260"
down_revision = "0251"
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
