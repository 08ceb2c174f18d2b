"""skills by the hashes of their folders

Code of the version before reads skills from files of the home, and records none.
"""

import sqlalchemy as sa
from alembic import op

revision = "0142"
down_revision = "0139"
branch_labels = None
depends_on = None
works_with = "0103"

_WHERE = "skills_hash is not null"
builds_ahead = {"ix_runs_skills_hash": f"runs (skills_hash) where {_WHERE}"}


def upgrade() -> None:
    big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "skills",
        sa.Column("pk", big, autoincrement=True, nullable=False),
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("name", sa.String(130), nullable=False),
        sa.Column("category", sa.String(64), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("facts", sa.Text(), nullable=False),
        sa.Column("origin", sa.String(100), nullable=False),
        sa.Column("source_hash", sa.String(64)),
        sa.Column("version", sa.Integer(), nullable=False, server_default="1"),
        sa.Column("is_removed", sa.SmallInteger(), nullable=False, server_default="0"),
        sa.Column("changed_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("pk", name=op.f("pk_skills")),
        sa.UniqueConstraint("tenant", "name", name=op.f("uq_skills_tenant_name")),
    )
    op.create_table(
        "skill_contents",
        sa.Column("pk", big, autoincrement=True, nullable=False),
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("is_set", sa.SmallInteger(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("used_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("pk", name=op.f("pk_skill_contents")),
        sa.UniqueConstraint("tenant", "hash", name=op.f("uq_skill_contents_tenant_hash")),
    )
    op.create_index("ix_skill_contents_used_at", "skill_contents", ["is_set", "used_at"])
    op.create_table(
        "skill_changes",
        sa.Column("pk", big, autoincrement=True, nullable=False),
        sa.Column("run_pk", big, nullable=False),
        sa.Column("call_key", sa.String(200), nullable=False),
        sa.Column("name", sa.String(130), nullable=False),
        sa.Column("hash", sa.String(64)),
        sa.Column("changed_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["run_pk"], ["runs.pk"], name=op.f("fk_skill_changes_run_pk"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("pk", name=op.f("pk_skill_changes")),
        sa.UniqueConstraint("call_key", name=op.f("uq_skill_changes_call_key")),
    )
    op.create_index("ix_skill_changes_run_pk", "skill_changes", ["run_pk"])
    op.add_column("runs", sa.Column("skills_hash", sa.String(64), nullable=True))
    condition = sa.text(_WHERE)
    op.create_index(
        "ix_runs_skills_hash",
        "runs",
        ["skills_hash"],
        postgresql_where=condition,
        sqlite_where=condition,
        if_not_exists=True,
    )
