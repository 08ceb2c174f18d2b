"""audit log

Triggers make it append-only for everybody who is not the owner of the table with a mind to drop them.
"""

import sqlalchemy as sa
from alembic import op

revision = "0111"
down_revision = "0110"
branch_labels = None
depends_on = None
works_with = "0103"

_PK = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_NO_CHANGE = "the audit log is append-only"
_TOO_YOUNG = "the audit log keeps its rows for thirty days at least"
_POSTGRESQL = (
    f"""
create or replace function hermes_audit_log_guard() returns trigger language plpgsql as $$
begin
    if tg_op = 'UPDATE' then
        raise exception '{_NO_CHANGE}';
    end if;
    if old.at > extract(epoch from clock_timestamp()) - 30 * 86400 then
        raise exception '{_TOO_YOUNG}';
    end if;
    return old;
end $$
""",
    """
create trigger audit_log_guard before update or delete on audit_log
for each row execute function hermes_audit_log_guard()
""",
)
_SQLITE = (
    f"""
create trigger audit_log_no_update before update on audit_log
begin select raise(abort, '{_NO_CHANGE}'); end
""",
    f"""
create trigger audit_log_no_delete before delete on audit_log
when old.at > (julianday('now') - 2440587.5) * 86400.0 - 30 * 86400
begin select raise(abort, '{_TOO_YOUNG}'); end
""",
)


def upgrade() -> None:
    op.create_table(
        "audit_log",
        sa.Column("pk", _PK, primary_key=True, autoincrement=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("actor", sa.String(200), nullable=False),
        sa.Column("address", sa.String(64)),
        sa.Column("act", sa.String(40), nullable=False),
        sa.Column("subject", sa.String(200), nullable=False),
        sa.Column("facts", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("pk", name="pk_audit_log"),
        postgresql_with={
            "autovacuum_vacuum_scale_factor": "0.05",
            "autovacuum_vacuum_insert_scale_factor": "0.05",
            "autovacuum_analyze_scale_factor": "0.05",
        },
        sqlite_autoincrement=True,
    )
    op.create_index("ix_audit_log_tenant_pk", "audit_log", ["tenant", "pk"])
    op.create_index("ix_audit_log_tenant_at", "audit_log", ["tenant", "at"])
    connection = op.get_bind()
    for statement in _SQLITE if connection.dialect.name == "sqlite" else _POSTGRESQL:
        connection.exec_driver_sql(statement.replace("%", "%%"))
