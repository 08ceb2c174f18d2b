"""first schema

The statements beside this file create everything, one file for each kind of database. They were generated from
``store.tables`` and stay as they are when the tables change: what has been made once is changed by a revision.
"""

from pathlib import Path

from alembic import op

revision = "0100"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    connection = op.get_bind()
    statements = Path(__file__).with_suffix(f".{connection.dialect.name}.sql").read_text(encoding="utf-8")
    for statement in statements.split(";\n"):
        if text := statement.strip():
            connection.exec_driver_sql(text)
