"""states of providers' keys

Code of the version before begins model calls with keys that are closed, as it always did.
"""

import sqlalchemy as sa
from alembic import op

revision = "0119"
down_revision = "0118"
branch_labels = None
depends_on = None
works_with = "0103"


def upgrade() -> None:
    op.create_table(
        "key_states",
        sa.Column("credential", sa.String(100), nullable=False),
        sa.Column("provider", sa.String(100), nullable=False),
        sa.Column("condition", sa.String(10), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("since", sa.Double()),
        sa.Column("evidence", sa.Text(), nullable=False),
        sa.Column("probes", sa.Integer(), nullable=False),
        sa.Column("probe_at", sa.Double()),
        sa.Column("probe_token", sa.String(32)),
        sa.Column("probe_owner", sa.BigInteger().with_variant(sa.Integer(), "sqlite")),
        sa.Column("probe_until", sa.Double()),
        sa.Column("woken_at", sa.Double()),
        sa.Column("reason", sa.Text()),
        sa.PrimaryKeyConstraint("credential", name="pk_key_states"),
        sa.CheckConstraint(
            "condition in ('open', 'no_money', 'refused', 'down')", name=op.f("ck_key_states_condition")
        ),
        sa.CheckConstraint("(condition = 'open') = (probe_at is null)", name=op.f("ck_key_states_closed_is_probed")),
        sa.CheckConstraint("(probe_token is null) = (probe_owner is null)", name=op.f("ck_key_states_probe_is_owned")),
        postgresql_with={"fillfactor": "50", "autovacuum_vacuum_threshold": "100"},
    )
    op.create_table(
        "parked_on_keys",
        sa.Column("run_pk", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("credential", sa.String(100), nullable=False),
        sa.PrimaryKeyConstraint("run_pk", "credential", name="pk_parked_on_keys"),
        sa.ForeignKeyConstraint(["run_pk"], ["runs.pk"], name="fk_parked_on_keys_run_pk", ondelete="CASCADE"),
    )
    op.create_index("ix_parked_on_keys_credential", "parked_on_keys", ["credential", "run_pk"])
