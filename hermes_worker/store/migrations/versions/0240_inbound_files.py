"""files that people send in chats

Code of the version before writes none, and begins a run that waits for its files when its time has come.
"""

import sqlalchemy as sa
from alembic import op

revision = "0240"
down_revision = "0208"
branch_labels = None
depends_on = None
works_with = "0103"

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "inbound_files",
        sa.Column("pk", _BIG, autoincrement=True, nullable=False),
        sa.Column("run_pk", _BIG, nullable=False),
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("account", sa.String(100), nullable=False),
        sa.Column("album_hash", sa.String(64)),
        sa.Column("reference", sa.Text(), nullable=False),
        sa.Column("state", sa.String(10), nullable=False),
        sa.Column("outcome", sa.Text()),
        sa.Column("attempts", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("content_hash", sa.String(64)),
        sa.Column("picture_hash", sa.String(64)),
        sa.Column("gathers_until", sa.Double(), nullable=False),
        sa.Column("hinted_at", sa.Double()),
        sa.Column("hints", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("lease_token", sa.String(32)),
        sa.Column("lease_owner", _BIG),
        sa.Column("claimed_at", sa.Double()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("settled_at", sa.Double()),
        sa.CheckConstraint(
            "state in ('pending', 'running', 'fetched', 'refused')", name=op.f("ck_inbound_files_state")
        ),
        sa.CheckConstraint(
            "(state = 'running') = (lease_token is not null)", name=op.f("ck_inbound_files_running_is_claimed")
        ),
        sa.CheckConstraint(
            "(state = 'pending') = (hinted_at is not null)", name=op.f("ck_inbound_files_pending_is_due")
        ),
        sa.CheckConstraint(
            "(state in ('fetched', 'refused')) = (settled_at is not null)", name=op.f("ck_inbound_files_settled")
        ),
        sa.ForeignKeyConstraint(["run_pk"], ["runs.pk"], name=op.f("fk_inbound_files_run_pk"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("pk", name=op.f("pk_inbound_files")),
    )
    op.create_index("ix_inbound_files_run_pk", "inbound_files", ["run_pk", "pk"])
    for name, column in (
        ("due", "hinted_at"),
        ("claimed", "lease_owner"),
        ("content", "content_hash"),
        ("picture", "picture_hash"),
    ):
        where = sa.text(f"{column} is not null")
        op.create_index(
            f"ix_inbound_files_{name}", "inbound_files", [column], postgresql_where=where, sqlite_where=where
        )
