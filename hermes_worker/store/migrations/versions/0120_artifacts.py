"""artifacts of runs

Code of the version before ends a run without having its files gathered; they are listed as pending. The
statements beside this file make the view of the backlog anew, with the files that are to be gathered.
"""

from pathlib import Path

import sqlalchemy as sa
from alembic import op

revision = "0120"
down_revision = "0119"
branch_labels = None
depends_on = None
works_with = "0103"

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("runs", sa.Column("artifacts", sa.SmallInteger()))
    _gatherings()
    _artifacts()
    connection = op.get_bind()
    view = Path(__file__).with_suffix(f".{connection.dialect.name}.sql").read_text(encoding="utf-8")
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("drop view hermes_backlog")
    else:
        # Whom an operator lets read it may go on reading it.
        view = view.replace("create view", "create or replace view", 1)
    connection.exec_driver_sql(view)


def _gatherings() -> None:
    op.create_table(
        "artifact_gatherings",
        sa.Column("run_pk", _BIG, autoincrement=False, nullable=False),
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("state", sa.String(10), nullable=False),
        sa.Column("attempts", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("files", sa.Integer(), server_default="0", nullable=False),
        sa.Column("left_out", sa.Integer(), server_default="0", nullable=False),
        sa.Column("left_out_named", sa.Text()),
        sa.Column("hinted_at", sa.Double()),
        sa.Column("hints", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("lease_token", sa.String(32)),
        sa.Column("lease_owner", _BIG),
        sa.Column("claimed_at", sa.Double()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("settled_at", sa.Double()),
        sa.CheckConstraint(
            "state in ('pending', 'running', 'done', 'failed')", name=op.f("ck_artifact_gatherings_state")
        ),
        sa.CheckConstraint(
            "(state = 'running') = (lease_token is not null)", name=op.f("ck_artifact_gatherings_running_is_claimed")
        ),
        sa.CheckConstraint(
            "(state = 'pending') = (hinted_at is not null)", name=op.f("ck_artifact_gatherings_pending_is_due")
        ),
        sa.CheckConstraint(
            "(state in ('done', 'failed')) = (settled_at is not null)", name=op.f("ck_artifact_gatherings_settled")
        ),
        sa.ForeignKeyConstraint(
            ["run_pk"], ["runs.pk"], name=op.f("fk_artifact_gatherings_run_pk"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_pk", name=op.f("pk_artifact_gatherings")),
    )
    for name, column in (("due", "hinted_at"), ("claimed", "lease_owner")):
        where = sa.text(f"{column} is not null")
        op.create_index(
            f"ix_artifact_gatherings_{name}",
            "artifact_gatherings",
            [column],
            postgresql_where=where,
            sqlite_where=where,
        )


def _artifacts() -> None:
    op.create_table(
        "artifacts",
        sa.Column("pk", _BIG, autoincrement=True, nullable=False),
        sa.Column("artifact_id", sa.String(40), nullable=False),
        sa.Column("run_pk", _BIG, nullable=False),
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("media_type", sa.String(100), nullable=False),
        sa.Column("modified_at", sa.Double(), nullable=False),
        sa.Column("blob_hash", sa.String(64), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["run_pk"], ["runs.pk"], name=op.f("fk_artifacts_run_pk"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("pk", name=op.f("pk_artifacts")),
        sa.UniqueConstraint("artifact_id", name=op.f("uq_artifacts_artifact_id")),
    )
    op.create_index("ix_artifacts_run_pk", "artifacts", ["run_pk"])
    op.create_index("ix_artifacts_blob_hash", "artifacts", ["blob_hash"])
    op.create_index("ix_artifacts_created_at", "artifacts", ["tenant", "created_at", "pk"])
