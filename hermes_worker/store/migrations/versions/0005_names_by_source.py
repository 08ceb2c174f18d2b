"""names of callers by their source, in databases whose first schema had them all in one"""

import json

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    connection = op.get_bind()
    if "source" in {column["name"] for column in sa.inspect(connection).get_columns("sessions")}:
        return  # the first schema has them by now
    op.add_column("sessions", sa.Column("source", sa.String(length=100), nullable=True))
    op.add_column("sessions", sa.Column("name", sa.String(length=256), nullable=True))
    _name_sessions(connection)
    op.create_index("uq_sessions_source_name", "sessions", ["source", "name"], unique=True)
    _sort_keys(connection)
    op.execute("delete from webhook_events where event_id is not null")
    op.drop_index("ix_webhook_events_once", table_name="webhook_events")
    op.drop_index("ix_webhook_events_rate", table_name="webhook_events")
    op.drop_column("webhook_events", "event_id")
    op.create_index("ix_webhook_events_rate", "webhook_events", ["route", "received_at"])


_NAMED = sa.text(
    "select s.pk, s.session_id, r.run_id, i.spec from sessions s "
    "join runs r on r.pk = (select min(pk) from runs where session_pk = s.pk) "
    "join run_inputs i on i.run_pk = r.pk where s.session_id <> r.run_id"
)
_KEYS = sa.text(
    "select k.key, k.fingerprint, k.run_pk, k.created_at, i.spec from idempotency_keys k "
    "join run_inputs i on i.run_pk = k.run_pk"
)


def _name_sessions(connection: sa.Connection) -> None:
    change = sa.text("update sessions set session_id = :id, source = :source, name = :name where pk = :pk")
    for row in connection.execute(_NAMED).all():
        values = {"id": row.run_id, "source": _source(row.spec), "name": row.session_id, "pk": row.pk}
        connection.execute(change, values)


def _sort_keys(connection: sa.Connection) -> None:
    """Those of the last day: a request from before comes again as the same one."""
    kept = connection.execute(_KEYS).all()
    op.drop_table("idempotency_keys")
    table = op.create_table(
        "idempotency_keys",
        sa.Column("source", sa.String(length=100), nullable=False),
        sa.Column("key", sa.String(length=256), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("run_pk", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("source", "key", name="pk_idempotency_keys"),
    )
    op.create_index("ix_idempotency_keys_created_at", "idempotency_keys", ["created_at"])
    for row in kept:
        source, key = _source(row.spec), row.key
        if source == "webhook" and key.count(":") >= 2:
            source, _, key = key.rpartition(":")  # webhook:route:event
        values = {"source": source, "key": key, "fingerprint": row.fingerprint}
        connection.execute(sa.insert(table).values(**values, run_pk=row.run_pk, created_at=row.created_at))


def _source(spec: str) -> str:
    return str(json.loads(spec).get("source", "api"))


def downgrade() -> None:
    """Nothing: the first schema takes its tables away."""
