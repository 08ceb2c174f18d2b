"""backlog view

The statements beside this file were generated from ``store.backlog`` and stay as they are when that changes.
"""

from pathlib import Path

from alembic import op

revision = "0101"
down_revision = "0100"
branch_labels = None
depends_on = None


def upgrade() -> None:
    connection = op.get_bind()
    statement = Path(__file__).with_suffix(f".{connection.dialect.name}.sql").read_text(encoding="utf-8")
    connection.exec_driver_sql(statement)
