"""people of chats are let in for the chats of one tenant

Code of the version before knows one tenant: it lets in for the default one, and asks nobody else.
"""

import sqlalchemy as sa
from alembic import op

revision = "0208"
down_revision = "0192"
branch_labels = None
depends_on = None
works_with = "0103"

_COLUMNS = "account, tenant, person, role, salt, code_hash, expires_at, asked_at, paired_at"


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.drop_constraint("pk_chat_people", "chat_people", type_="primary")
        op.create_primary_key("pk_chat_people", "chat_people", ["account", "tenant", "person"])
        return
    op.rename_table("chat_people", "chat_people_before")
    op.create_table(
        "chat_people",
        sa.Column("account", sa.String(100), nullable=False),
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("person", sa.String(200), nullable=False),
        sa.Column("role", sa.String(10)),
        sa.Column("salt", sa.String(32)),
        sa.Column("code_hash", sa.String(64)),
        sa.Column("expires_at", sa.Double()),
        sa.Column("asked_at", sa.Double(), nullable=False),
        sa.Column("paired_at", sa.Double()),
        sa.CheckConstraint("(role is null) = (paired_at is null)", name=op.f("ck_chat_people_paired_or_not")),
        sa.PrimaryKeyConstraint("account", "tenant", "person", name=op.f("pk_chat_people")),
    )
    op.execute(f"insert into chat_people ({_COLUMNS}) select {_COLUMNS} from chat_people_before")
    op.drop_table("chat_people_before")
