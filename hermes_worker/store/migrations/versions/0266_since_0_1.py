"""from 0.1 to 0.2

Everything that was added after the first release, in one step. Between 0100 and this one there were revisions of
versions that were never released; they left the same schema, so a database that their last one made goes on from here.

No row is rewritten in this transaction. Every row that is over begins uncounted, and sweepers count it in the
background; every session is due for the index of its words; paths below the home are written relative to it behind this
revision, a few at a time (``store.home_rows``).

Code of 0.1 leaves the new columns and tables alone, and what it writes is taken. It runs no skills, hooks, processes
or chats, adds nothing to the index of words, and reads a path below the home as a path.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import TSVECTOR

revision = "0266"
down_revision = "0100"
branch_labels = None
depends_on = None
works_with = "0100"

builds_ahead = {
    "ix_runs_ended": "runs (tenant, finished_at, pk) where finished_at is not null",
    "ix_runs_session_pk": "runs (session_pk, pk)",
    "ix_runs_idle_limit": "runs (pk) where idle_s_max is not null and status = 'running'",
    "ix_sessions_tenant": "sessions (tenant, pk) where tenant <> 'default'",
    "ix_sessions_tools_hash": "sessions (tools_hash)",
    "ix_messages_blob_hash": "messages (blob_hash) where blob_hash is not null",
    "ix_idempotency_keys_run_pk": "idempotency_keys (run_pk) where run_pk is not null",
    "ix_firings_run_pk": "firings (run_pk) where run_pk is not null",
    "ix_deliveries_settled": "deliveries (tenant, settled_at, pk) where settled_at is not null",
    "ix_waits_run_pk": "waits (run_pk)",
    "ix_steers_run_pk": "steers (run_pk)",
}

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_SEALED = sa.Text().with_variant(sa.String(64), "sqlite")
_OFTEN_UPDATED = {
    "autovacuum_vacuum_scale_factor": "0.02",
    "autovacuum_vacuum_threshold": "1000",
    "autovacuum_analyze_scale_factor": "0.05",
}
_OFTEN_ADDED = {
    "autovacuum_vacuum_scale_factor": "0.05",
    "autovacuum_vacuum_insert_scale_factor": "0.05",
    "autovacuum_analyze_scale_factor": "0.05",
}
_ONE_ROW = {"fillfactor": "50", "autovacuum_vacuum_threshold": "100"}
_PARAMETERS = {
    "runs": {"fillfactor": "80", **_OFTEN_UPDATED},
    "sessions": {"fillfactor": "85", **_OFTEN_UPDATED},
    "budgets": {"fillfactor": "70", **_OFTEN_UPDATED},
    "tool_calls": {"fillfactor": "80", **_OFTEN_UPDATED},
    "deliveries": {"fillfactor": "80", **_OFTEN_UPDATED},
    "messages": _OFTEN_ADDED,
    "events": _OFTEN_ADDED,
    "workers": _ONE_ROW,
    "maintenance": _ONE_ROW,
}
"""Storage parameters of PostgreSQL for the tables of 0.1. They hold for what is written from now on."""
_SEARCH_WORDS = """
create virtual table search_words using fts5(
    words, content='', detail=none, columnsize=0, tokenize="ascii tokenchars '-._'"
)
"""
_NO_CHANGE = "the audit log is append-only"
_TOO_YOUNG = "the audit log keeps its rows for thirty days at least"
_AUDIT_GUARD = {
    "postgresql": (
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
    ),
    "sqlite": (
        f"""
create trigger audit_log_no_update before update on audit_log
begin select raise(abort, '{_NO_CHANGE}'); end
""",
        f"""
create trigger audit_log_no_delete before delete on audit_log
when old.at > (julianday('now') - 2440587.5) * 86400.0 - 30 * 86400
begin select raise(abort, '{_TOO_YOUNG}'); end
""",
    ),
}


def upgrade() -> None:
    # Tables first that refer to no other: a reference to runs holds up whoever writes runs until the end.
    for make in (
        _make_limits,
        _make_logins,
        _make_tool_sources,
        _make_memories,
        _make_chats,
        _make_audit_log,
        _make_retention,
        _make_hook_calls,
        _make_run_facts,
        _make_artifacts,
        _make_keys,
        _make_resources,
        _make_processes,
        _make_skills,
        _make_inbound,
        _make_search,
    ):
        make()
    _change_runs()
    _change_sessions()
    _change_steps()
    _change_the_rest()
    connection = op.get_bind()
    if connection.dialect.name == "postgresql":
        _change_storage()
    else:
        connection.exec_driver_sql(_SEARCH_WORDS)
    connection.exec_driver_sql("insert into search_due (session_pk) select pk from sessions order by pk")


def _index(name: str, table: str, columns: list[str], where: str | None = None, *, is_unique: bool = False) -> None:
    condition = sa.text(where) if where else None
    op.create_index(
        name,
        table,
        columns,
        unique=is_unique,
        postgresql_where=condition,
        sqlite_where=condition,
        if_not_exists=True,  # built ahead
    )


def _change_runs() -> None:
    for column in (
        sa.Column("is_counted", sa.SmallInteger(), nullable=False, server_default="0"),
        sa.Column("not_before", sa.Double()),
        sa.Column("priority", sa.SmallInteger(), nullable=False, server_default="0"),
        sa.Column("retry_of_pk", _NUMBER),
        sa.Column("place", sa.SmallInteger()),
        sa.Column("place_rank", sa.SmallInteger()),
        sa.Column("has_output_schema", sa.SmallInteger(), nullable=False, server_default="0"),
        sa.Column("permit", sa.String(32)),
        sa.Column("artifacts", sa.SmallInteger()),
        sa.Column("skills_hash", sa.String(64)),
        sa.Column("prepares", sa.SmallInteger()),
        sa.Column("overrides", sa.Text()),
    ):
        op.add_column("runs", column)
    _index("ix_runs_uncounted", "runs", ["pk"], "exit_reason is not null and is_counted = 0")
    _index("ix_runs_ended", "runs", ["tenant", "finished_at", "pk"], "finished_at is not null")
    _index("ix_runs_session_pk", "runs", ["session_pk", "pk"])
    _index(
        "ix_runs_later", "runs", ["not_before"], "not_before is not null and status = 'queued' and hinted_at is null"
    )
    _index("ix_runs_retries", "runs", ["retry_of_pk"], "retry_of_pk is not null")
    _index("ix_runs_held", "runs", ["tenant", "place_rank", "pk"], "place = 0")
    _index("ix_runs_placed", "runs", ["tenant", "status"], "place = 2")
    _index("ix_runs_parts", "runs", ["tenant"], "place = 3")
    _index("ix_runs_left", "runs", ["pk"], "place = 4")
    _index("ix_runs_permits", "runs", ["tenant"], "permit is not null")
    _index("ix_runs_skills_hash", "runs", ["skills_hash"], "skills_hash is not null")
    _index("ix_runs_idle_limit", "runs", ["pk"], "idle_s_max is not null and status = 'running'")
    # Code of 0.1 reads the new one by the same condition: it looked at the whole index as well.
    op.drop_index("ix_runs_idle", "runs")


def _change_sessions() -> None:
    for column in (
        sa.Column("model", sa.String(200)),
        sa.Column("forked_from", sa.String(40)),
        sa.Column("ended_at", sa.Double()),
        sa.Column("end_reason", sa.Text().with_variant(sa.String(40), "sqlite")),
        sa.Column("erasure_pk", _NUMBER),
        sa.Column("context_at", sa.Integer()),
        sa.Column("title_key", sa.String(64)),
        sa.Column("archived_at", sa.Double()),
    ):
        op.add_column("sessions", column)
    _index("ix_sessions_tools_hash", "sessions", ["tools_hash"])
    _index("ix_sessions_tenant", "sessions", ["tenant", "pk"], "tenant <> 'default'")
    _index("ix_sessions_forked_from", "sessions", ["tenant", "forked_from"], "forked_from is not null")
    _index("ix_sessions_erasure", "sessions", ["erasure_pk"], "erasure_pk is not null")
    _index("ix_sessions_title_key", "sessions", ["tenant", "title_key"], "title_key is not null", is_unique=True)


def _change_steps() -> None:
    for column in (
        sa.Column("rewritten_arguments", sa.Text()),
        sa.Column("inner_calls", sa.Text()),
        sa.Column("unbegun_token", sa.String(32)),
    ):
        op.add_column("tool_calls", column)
    for shown in (
        sa.Column("is_counted", sa.SmallInteger(), nullable=False, server_default="0"),
        sa.Column("is_preview", sa.SmallInteger(), nullable=False, server_default="0"),
        sa.Column("message_id", sa.String(200)),
        sa.Column("shown_hash", sa.String(16)),
        sa.Column("shown_at", sa.Double()),
        sa.Column("buttons", sa.Text()),
        sa.Column("wait_pk", _NUMBER),
    ):
        op.add_column("deliveries", shown)
    _index("ix_deliveries_uncounted", "deliveries", ["pk"], "settled_at is not null and is_counted = 0")
    _index("ix_deliveries_settled", "deliveries", ["tenant", "settled_at", "pk"], "settled_at is not null")
    _index("ix_waits_run_pk", "waits", ["run_pk"])
    _index("ix_steers_run_pk", "steers", ["run_pk"])
    _index("ix_messages_blob_hash", "messages", ["blob_hash"], "blob_hash is not null")


def _change_the_rest() -> None:
    op.add_column("firings", sa.Column("is_counted", sa.SmallInteger(), nullable=False, server_default="0"))
    _index("ix_firings_uncounted", "firings", ["pk"], "is_counted = 0")
    _index("ix_firings_run_pk", "firings", ["run_pk"], "run_pk is not null")
    _index("ix_idempotency_keys_run_pk", "idempotency_keys", ["run_pk"], "run_pk is not null")
    op.add_column("blobs", sa.Column("released_at", sa.Double()))
    _index("ix_blobs_released", "blobs", ["released_at"], "released_at is not null")
    op.add_column("budgets", sa.Column("level", sa.SmallInteger(), nullable=False, server_default="0"))
    op.add_column("budgets", sa.Column("told", sa.SmallInteger(), nullable=False, server_default="0"))
    _index("ix_budgets_untold", "budgets", ["root_pk"], "level > told")
    op.add_column("tenants", sa.Column("disabled_at", sa.Double()))
    for column in (
        sa.Column("version", sa.String(60)),
        sa.Column("slots", sa.Integer()),
        sa.Column("draining_at", sa.Double()),
        sa.Column("sandbox", sa.String(20)),
    ):
        op.add_column("workers", column)


def _change_storage() -> None:
    for table, parameters in _PARAMETERS.items():
        told = ", ".join(f"{name} = {value}" for name, value in parameters.items())
        op.execute(f"ALTER TABLE {table} SET ({told})")
    # SQLite does not count characters.
    op.alter_column("sessions", "title", type_=sa.Text())
    op.alter_column("idempotency_keys", "fingerprint", type_=sa.Text())


def _make_limits() -> None:
    op.create_table(
        "tenant_shares",
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("weight", sa.Double(), nullable=False, server_default="1"),
        sa.Column("virtual", sa.Double(), nullable=False, server_default="0"),
        sa.Column("mean", sa.Double()),
        sa.Column("is_busy", sa.SmallInteger(), nullable=False, server_default="0"),
        sa.PrimaryKeyConstraint("tenant", name="pk_tenant_shares"),
        sa.CheckConstraint("weight > 0", name="weight"),
        postgresql_with=_ONE_ROW,
    )
    op.create_table(
        "limits",
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("key_id", sa.String(20), nullable=False),
        sa.Column("name", sa.String(20), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.Column("waits", sa.SmallInteger(), nullable=False, server_default="0"),
        sa.PrimaryKeyConstraint("tenant", "key_id", "name", name="pk_limits"),
        sa.CheckConstraint("value >= 0", name="value"),
    )
    op.create_table(
        "spending",
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("key_id", sa.String(20), nullable=False),
        sa.Column("period", sa.String(10), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("nano_usd", sa.BigInteger(), nullable=False, server_default="0"),
        sa.PrimaryKeyConstraint("tenant", "key_id", "period", name="pk_spending"),
        postgresql_with=_ONE_ROW,
    )
    op.create_table(
        "submit_rates",
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("key_id", sa.String(20), nullable=False),
        sa.Column("tokens", sa.Double(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "key_id", name="pk_submit_rates"),
        postgresql_with=_ONE_ROW,
    )
    op.create_table(
        "alert_targets",
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "target", name="pk_alert_targets"),
    )
    op.create_table(
        "alerts",
        sa.Column("pk", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("subject", sa.String(100), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("raised_at", sa.Double(), nullable=False),
        sa.Column("clear_since", sa.Double()),
        sa.Column("recovered_at", sa.Double()),
        sa.UniqueConstraint("tenant", "kind", "subject", "epoch", name="uq_alerts_tenant_kind_subject_epoch"),
    )
    _index("ix_alerts_open", "alerts", ["pk"], "recovered_at is null")


def _make_retention() -> None:
    op.create_table(
        "retention_rules",
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("rule", sa.String(40), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "kind", name="pk_retention_rules"),
    )
    op.create_table(
        "legal_holds",
        sa.Column("pk", _NUMBER, autoincrement=True, nullable=False),
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("root_pk", _NUMBER, sa.ForeignKey("runs.pk", name="fk_legal_holds_root_pk")),
        sa.Column("session_pk", _NUMBER, sa.ForeignKey("sessions.pk", name="fk_legal_holds_session_pk")),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("placed_by", sa.String(200), nullable=False),
        sa.Column("placed_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("pk", name="pk_legal_holds"),
        sa.CheckConstraint("root_pk is null or session_pk is null", name=op.f("ck_legal_holds_one_thing")),
    )
    _index("ix_legal_holds_root_pk", "legal_holds", ["root_pk"])
    _index("ix_legal_holds_session_pk", "legal_holds", ["session_pk"])
    op.create_table(
        "retention_marks",
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("pk", _NUMBER, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "kind", name="pk_retention_marks"),
    )
    op.create_table(
        "deleted_runs",
        sa.Column("run_id", sa.String(40), nullable=False),
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("deleted_at", sa.Double(), nullable=False),
        sa.Column("erasure_pk", _NUMBER),
        sa.PrimaryKeyConstraint("run_id", name="pk_deleted_runs"),
    )
    _index("ix_deleted_runs_deleted_at", "deleted_runs", ["tenant", "deleted_at"])
    op.create_table(
        "deleted_responses",
        sa.Column(
            "run_pk",
            _NUMBER,
            sa.ForeignKey("runs.pk", name="fk_deleted_responses_run_pk", ondelete="CASCADE"),
            autoincrement=False,
        ),
        sa.Column("deleted_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("run_pk", name="pk_deleted_responses"),
    )
    op.create_table(
        "erasures",
        sa.Column("pk", _NUMBER, autoincrement=True, nullable=False),
        sa.Column("receipt_id", sa.String(40), nullable=False),
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("began_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double()),
        sa.Column("plan", sa.Text()),
        sa.Column("receipt", sa.Text()),
        sa.CheckConstraint("(ended_at is null) = (plan is not null)", name=op.f("ck_erasures_planned_until_ended")),
        sa.CheckConstraint("(ended_at is null) = (receipt is null)", name=op.f("ck_erasures_receipt_at_the_end")),
        sa.PrimaryKeyConstraint("pk", name=op.f("pk_erasures")),
        sa.UniqueConstraint("receipt_id", name=op.f("uq_erasures_receipt_id")),
    )


def _make_hook_calls() -> None:
    op.create_table(
        "hook_calls",
        sa.Column("pk", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("event_id", sa.String(120), nullable=False),
        sa.Column("hook", sa.String(64), nullable=False),
        sa.Column("event", sa.String(40), nullable=False),
        sa.Column("run_pk", _NUMBER, nullable=False),
        sa.Column("event_seq", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(10), nullable=False),
        sa.Column("attempts", sa.SmallInteger(), nullable=False, server_default="0"),
        sa.Column("reason", sa.Text()),
        sa.Column("hinted_at", sa.Double()),
        sa.Column("hints", sa.SmallInteger(), nullable=False, server_default="0"),
        sa.Column("lease_token", sa.String(32)),
        sa.Column("lease_owner", _NUMBER),
        sa.Column("claimed_at", sa.Double()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("settled_at", sa.Double()),
        sa.PrimaryKeyConstraint("pk", name="pk_hook_calls"),
        sa.UniqueConstraint("event_id", "hook", "tenant", name="uq_hook_calls_event_id_hook_tenant"),
        sa.ForeignKeyConstraint(["run_pk"], ["runs.pk"], name="fk_hook_calls_run_pk", ondelete="CASCADE"),
        sa.CheckConstraint("state in ('pending', 'running', 'done', 'failed', 'lost')", name="state"),
        sa.CheckConstraint("(state = 'running') = (lease_token is not null)", name="running_is_claimed"),
        sa.CheckConstraint("(state = 'pending') = (hinted_at is not null)", name="pending_is_due"),
        sa.CheckConstraint("(state in ('done', 'failed', 'lost')) = (settled_at is not null)", name="settled"),
    )
    _index("ix_hook_calls_claimed", "hook_calls", ["lease_owner"], "lease_owner is not null")
    _index("ix_hook_calls_due", "hook_calls", ["hinted_at"], "hinted_at is not null")
    _index("ix_hook_calls_run_pk", "hook_calls", ["run_pk"])
    _index("ix_hook_calls_settled", "hook_calls", ["settled_at"], "settled_at is not null")


def _make_run_facts() -> None:
    op.create_table(
        "run_tags",
        sa.Column("run_pk", _NUMBER, sa.ForeignKey("runs.pk", name="fk_run_tags_run_pk", ondelete="CASCADE")),
        sa.Column("tag", sa.String(64), nullable=False),
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.PrimaryKeyConstraint("run_pk", "tag", name="pk_run_tags"),
    )
    _index("ix_run_tags_tag", "run_tags", ["tenant", "tag", "run_pk"])
    op.create_table(
        "kept_answers",
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("principal", sa.String(200), nullable=False),
        sa.Column("key", sa.String(256), nullable=False),
        sa.Column("operation", sa.String(300), nullable=False),
        sa.Column("fingerprint", _SEALED, nullable=False),
        sa.Column("token", sa.String(32)),
        sa.Column("held_until", sa.Double()),
        sa.Column("status", sa.SmallInteger()),
        sa.Column("headers", sa.Text()),
        sa.Column("body", sa.Text()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "principal", "key", name="pk_kept_answers"),
        sa.CheckConstraint("(token is null) = (status is not null)", name=op.f("ck_kept_answers_at_work_or_answered")),
        sa.CheckConstraint("(token is null) = (held_until is null)", name=op.f("ck_kept_answers_at_work_is_held")),
    )
    _index("ix_kept_answers_created_at", "kept_answers", ["tenant", "created_at"])
    op.create_table(
        "saved_filters",
        sa.Column("pk", _NUMBER, autoincrement=True, nullable=False),
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("holder", sa.String(200), nullable=False),
        sa.Column("name", sa.String(60), nullable=False),
        sa.Column("query", sa.Text(), nullable=False),
        sa.Column("changed_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("pk", name=op.f("pk_saved_filters")),
        sa.UniqueConstraint("tenant", "holder", "name", name=op.f("uq_saved_filters_tenant_holder_name")),
    )
    op.create_table(
        "statistics",
        sa.Column("pk", _NUMBER, autoincrement=True, nullable=False),
        sa.Column("measure", sa.String(40), nullable=False),
        sa.Column("labels", sa.Text(), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("pk", name="pk_statistics"),
    )


def _make_artifacts() -> None:
    op.create_table(
        "artifact_gatherings",
        sa.Column("run_pk", _NUMBER, autoincrement=False, nullable=False),
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
        sa.Column("lease_owner", _NUMBER),
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
    _index("ix_artifact_gatherings_claimed", "artifact_gatherings", ["lease_owner"], "lease_owner is not null")
    _index("ix_artifact_gatherings_due", "artifact_gatherings", ["hinted_at"], "hinted_at is not null")
    op.create_table(
        "artifacts",
        sa.Column("pk", _NUMBER, autoincrement=True, nullable=False),
        sa.Column("artifact_id", sa.String(40), nullable=False),
        sa.Column("run_pk", _NUMBER, nullable=False),
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
    _index("ix_artifacts_blob_hash", "artifacts", ["blob_hash"])
    _index("ix_artifacts_created_at", "artifacts", ["tenant", "created_at", "pk"])
    _index("ix_artifacts_run_pk", "artifacts", ["run_pk"])


def _make_keys() -> None:
    op.create_table(
        "text_keys",
        sa.Column("key_id", sa.String(20), nullable=False),
        sa.Column("first_used_at", sa.Double(), nullable=False),
        sa.Column("last_used_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("key_id", name="pk_text_keys"),
    )
    op.create_table(
        "provider_keys",
        sa.Column("pk", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("key_id", sa.String(20), nullable=False),
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("provider", sa.String(100), nullable=False),
        sa.Column("fingerprint", sa.String(16), nullable=False),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.UniqueConstraint("key_id", name="uq_provider_keys_key_id"),
        sa.UniqueConstraint("tenant", "provider", "fingerprint", name="uq_provider_keys_tenant_provider_fingerprint"),
    )
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
        sa.Column("probe_owner", _NUMBER),
        sa.Column("probe_until", sa.Double()),
        sa.Column("woken_at", sa.Double()),
        sa.Column("reason", sa.Text()),
        sa.PrimaryKeyConstraint("credential", name="pk_key_states"),
        sa.CheckConstraint(
            "condition in ('open', 'no_money', 'refused', 'down')", name=op.f("ck_key_states_condition")
        ),
        sa.CheckConstraint("(condition = 'open') = (probe_at is null)", name=op.f("ck_key_states_closed_is_probed")),
        sa.CheckConstraint("(probe_token is null) = (probe_owner is null)", name=op.f("ck_key_states_probe_is_owned")),
        postgresql_with=_ONE_ROW,
    )
    op.create_table(
        "parked_on_keys",
        sa.Column("run_pk", _NUMBER, nullable=False),
        sa.Column("credential", sa.String(100), nullable=False),
        sa.PrimaryKeyConstraint("run_pk", "credential", name="pk_parked_on_keys"),
        sa.ForeignKeyConstraint(["run_pk"], ["runs.pk"], name="fk_parked_on_keys_run_pk", ondelete="CASCADE"),
    )
    _index("ix_parked_on_keys_credential", "parked_on_keys", ["credential", "run_pk"])


def _make_logins() -> None:
    op.create_table(
        "page_logins",
        sa.Column("pk", _NUMBER, autoincrement=True, nullable=False),
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("key_id", sa.String(20)),
        sa.Column("holder", sa.String(200)),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.CheckConstraint("(key_id is null) <> (holder is null)", name=op.f("ck_page_logins_one_key")),
        sa.PrimaryKeyConstraint("pk", name=op.f("pk_page_logins")),
        sa.UniqueConstraint("hash", name=op.f("uq_page_logins_hash")),
    )
    _index("ix_page_logins_expires", "page_logins", ["expires_at"])
    _index("ix_page_logins_tenant", "page_logins", ["tenant"])
    op.create_table(
        "configurations",
        sa.Column("pk", _NUMBER, autoincrement=True, nullable=False),
        sa.Column("of_tenant", sa.String(40), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("written_by", sa.String(200), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("pk", name=op.f("pk_configurations")),
        sa.UniqueConstraint("of_tenant", "version", name=op.f("uq_configurations_of_tenant_version")),
    )
    op.create_table(
        "schema_revisions",
        sa.Column("revision", sa.String(32), primary_key=True),
        sa.Column("works_with", sa.String(32), nullable=False),
        sa.Column("applied_at", sa.Double(), nullable=False),
    )


def _make_resources() -> None:
    op.create_table(
        "resources",
        sa.Column("pk", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("resource_id", sa.String(40), nullable=False),
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("session_pk", _NUMBER, nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("state", sa.String(10), nullable=False),
        sa.Column("host", sa.String(200)),
        sa.Column("endpoint", sa.Text()),
        sa.Column("lease_token", sa.String(32)),
        sa.Column("expires_at", sa.Double()),
        sa.Column("use_token", sa.String(32)),
        sa.Column("snapshot_hash", sa.String(64)),
        sa.Column("snapshot", sa.Text()),
        sa.Column("url", sa.Text()),
        sa.Column("storage", sa.Text()),
        sa.Column("reason", sa.Text()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("used_at", sa.Double(), nullable=False),
        sa.UniqueConstraint("resource_id", name="uq_resources_resource_id"),
        sa.UniqueConstraint("session_pk", "kind", "name", name="uq_resources_session_pk_kind_name"),
        sa.ForeignKeyConstraint(["session_pk"], ["sessions.pk"], name="fk_resources_session_pk", ondelete="CASCADE"),
        sa.CheckConstraint("kind in ('browser', 'mcp_stdio')", name=op.f("ck_resources_kind")),
        sa.CheckConstraint("state in ('wanted', 'starting', 'live', 'ended')", name=op.f("ck_resources_state")),
        sa.CheckConstraint(
            "(state in ('starting', 'live')) = (lease_token is not null)", name=op.f("ck_resources_hosted_is_leased")
        ),
        sa.CheckConstraint("(lease_token is null) = (expires_at is null)", name=op.f("ck_resources_lease_expires")),
        sa.CheckConstraint("(state = 'live') = (endpoint is not null)", name=op.f("ck_resources_live_has_endpoint")),
        postgresql_with={"fillfactor": "50", **_OFTEN_UPDATED},
    )
    _index("ix_resources_hosted", "resources", ["expires_at"], "expires_at is not null")
    _index("ix_resources_unused", "resources", ["kind", "used_at"])
    _index("ix_resources_wanted", "resources", ["kind", "used_at"], "state = 'wanted'")


def _make_processes() -> None:
    op.create_table(
        "processes",
        sa.Column("pk", _NUMBER, autoincrement=True, nullable=False),
        sa.Column("process_id", sa.String(20), nullable=False),
        sa.Column("session_pk", _NUMBER, nullable=False),
        sa.Column("run_pk", _NUMBER, nullable=False),
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("command", sa.Text(), nullable=False),
        sa.Column("state", sa.String(10), nullable=False),
        sa.Column("exit_code", sa.Integer()),
        sa.Column("has_terminal", sa.SmallInteger(), nullable=False, server_default="0"),
        sa.Column("notifies", sa.SmallInteger(), nullable=False, server_default="0"),
        sa.Column("patterns", sa.Text()),
        sa.Column("is_consumed", sa.SmallInteger(), nullable=False, server_default="0"),
        sa.Column("seen", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("notices", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("told_at", sa.Double()),
        sa.Column("strikes", sa.SmallInteger(), nullable=False, server_default="0"),
        sa.Column("suppressed", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("is_off", sa.SmallInteger(), nullable=False, server_default="0"),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double()),
        sa.Column("deadline_at", sa.Double(), nullable=False),
        sa.Column("next_look_at", sa.Double()),
        sa.CheckConstraint(
            "(state in ('starting', 'running')) = (ended_at is null)", name=op.f("ck_processes_open_or_ended")
        ),
        sa.ForeignKeyConstraint(
            ["session_pk"], ["sessions.pk"], name=op.f("fk_processes_session_pk"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["run_pk"], ["runs.pk"], name=op.f("fk_processes_run_pk"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("pk", name=op.f("pk_processes")),
        sa.UniqueConstraint("process_id", name=op.f("uq_processes_process_id")),
    )
    _index("ix_processes_due", "processes", ["next_look_at"], "next_look_at is not null")
    _index("ix_processes_run_pk", "processes", ["run_pk"])
    _index("ix_processes_session_pk", "processes", ["session_pk", "pk"])
    _index("ix_processes_told", "processes", ["told_at"], "told_at is not null")


def _make_tool_sources() -> None:
    op.create_table(
        "tool_sources",
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("source", sa.String(64), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("definitions", sa.Text(), nullable=False),
        sa.Column("changed_at", sa.Double(), nullable=False),
        sa.Column("listed_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "source", name="pk_tool_sources"),
    )
    op.create_table(
        "mcp_servers",
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("name", sa.String(24), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("is_process", sa.Boolean(), nullable=False),
        sa.Column("server", sa.Text(), nullable=False),
        sa.Column("token", sa.Text()),
        sa.Column("offered", sa.Text()),
        sa.Column("problem", sa.Text()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("changed_at", sa.Double(), nullable=False),
        sa.Column("looked_at", sa.Double()),
        sa.Column("due_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "name", name=op.f("pk_mcp_servers")),
    )
    _index("ix_mcp_servers_due", "mcp_servers", ["is_process", "due_at"])


def _make_skills() -> None:
    op.create_table(
        "skills",
        sa.Column("pk", _NUMBER, autoincrement=True, nullable=False),
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
        sa.Column("pk", _NUMBER, autoincrement=True, nullable=False),
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("is_set", sa.SmallInteger(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("used_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("pk", name=op.f("pk_skill_contents")),
        sa.UniqueConstraint("tenant", "hash", name=op.f("uq_skill_contents_tenant_hash")),
    )
    _index("ix_skill_contents_used_at", "skill_contents", ["is_set", "used_at"])
    op.create_table(
        "skill_changes",
        sa.Column("pk", _NUMBER, autoincrement=True, nullable=False),
        sa.Column("run_pk", _NUMBER, nullable=False),
        sa.Column("call_key", sa.String(200), nullable=False),
        sa.Column("name", sa.String(130), nullable=False),
        sa.Column("hash", sa.String(64)),
        sa.Column("changed_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["run_pk"], ["runs.pk"], name=op.f("fk_skill_changes_run_pk"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("pk", name=op.f("pk_skill_changes")),
        sa.UniqueConstraint("call_key", name=op.f("uq_skill_changes_call_key")),
    )
    _index("ix_skill_changes_run_pk", "skill_changes", ["run_pk"])


def _make_memories() -> None:
    op.create_table(
        "memory_versions",
        sa.Column("pk", _NUMBER, autoincrement=True, nullable=False),
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("profile", sa.String(60), nullable=False),
        sa.Column("target", sa.String(10), nullable=False),
        sa.Column("entry_id", sa.String(20), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(10), nullable=False),
        sa.Column("act", sa.String(10), nullable=False),
        sa.Column("content", sa.Text()),
        sa.Column("author", sa.String(200), nullable=False),
        sa.Column("run_id", sa.String(40)),
        sa.Column("call_key", sa.String(100)),
        sa.Column("ordinal", sa.SmallInteger(), nullable=False, server_default="0"),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("past_at", sa.Double()),
        sa.Column("redacted_at", sa.Double()),
        sa.CheckConstraint(
            "(state in ('current', 'staged')) = (past_at is null)", name=op.f("ck_memory_versions_past_or_not")
        ),
        sa.PrimaryKeyConstraint("pk", name=op.f("pk_memory_versions")),
        sa.UniqueConstraint("entry_id", "version", name=op.f("uq_memory_versions_entry_id_version")),
        sa.UniqueConstraint("tenant", "call_key", "ordinal", name=op.f("uq_memory_versions_tenant_call_key_ordinal")),
        postgresql_with=_OFTEN_UPDATED,
    )
    _index("ix_memory_versions_current", "memory_versions", ["tenant", "profile", "target"], "past_at is null")
    _index("ix_memory_versions_past", "memory_versions", ["tenant", "past_at"], "past_at is not null")
    _index("ix_memory_versions_place", "memory_versions", ["tenant", "profile", "target", "pk"])
    _index("ix_memory_versions_run", "memory_versions", ["run_id"], "run_id is not null")


def _make_chats() -> None:
    op.create_table(
        "channels",
        sa.Column("account", sa.String(100), nullable=False),
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("token_hash", sa.String(64)),
        sa.Column("mode", sa.String(10), nullable=False),
        sa.Column("cursor", sa.Text()),
        sa.Column("lease_token", sa.String(32)),
        sa.Column("lease_until", sa.Double()),
        sa.Column("holder", sa.String(200)),
        sa.Column("looked_at", sa.Double()),
        sa.Column("error", sa.Text()),
        sa.Column("error_at", sa.Double()),
        sa.Column("failures", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("locked_until", sa.Double()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("account", name=op.f("pk_channels")),
        postgresql_with=_OFTEN_UPDATED,
    )
    op.create_table(
        "chats",
        sa.Column("account", sa.String(100), nullable=False),
        sa.Column("session_key", sa.String(256), nullable=False),
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("model", sa.String(200)),
        sa.PrimaryKeyConstraint("account", "session_key", name=op.f("pk_chats")),
    )
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
    op.create_table(
        "known_chats",
        sa.Column("account", sa.String(100), nullable=False),
        sa.Column("chat", sa.String(200), nullable=False),
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("platform", sa.String(30), nullable=False),
        sa.Column("name", sa.String(100)),
        sa.Column("thread", sa.String(200)),
        sa.Column("is_home", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("learnt_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("account", "chat", name=op.f("pk_known_chats")),
    )
    _index("ix_known_chats_name", "known_chats", ["tenant", "platform", "name"])


def _make_inbound() -> None:
    op.create_table(
        "inbound",
        sa.Column("pk", _NUMBER, autoincrement=True, nullable=False),
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("account", sa.String(100), nullable=False),
        sa.Column("event_key", sa.String(200), nullable=False),
        sa.Column("outcome", sa.String(20), nullable=False),
        sa.Column("run_id", sa.String(40)),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.Column("tries", sa.Integer()),
        sa.PrimaryKeyConstraint("pk", name=op.f("pk_inbound")),
        sa.UniqueConstraint("account", "event_key", name=op.f("uq_inbound_account_event_key")),
        postgresql_with=_OFTEN_ADDED,
    )
    _index("ix_inbound_received", "inbound", ["received_at"])
    op.create_table(
        "inbound_files",
        sa.Column("pk", _NUMBER, autoincrement=True, nullable=False),
        sa.Column("run_pk", _NUMBER, nullable=False),
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
        sa.Column("lease_owner", _NUMBER),
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
    _index("ix_inbound_files_claimed", "inbound_files", ["lease_owner"], "lease_owner is not null")
    _index("ix_inbound_files_content", "inbound_files", ["content_hash"], "content_hash is not null")
    _index("ix_inbound_files_due", "inbound_files", ["hinted_at"], "hinted_at is not null")
    _index("ix_inbound_files_picture", "inbound_files", ["picture_hash"], "picture_hash is not null")
    _index("ix_inbound_files_run_pk", "inbound_files", ["run_pk", "pk"])


def _make_search() -> None:
    op.create_table(
        "search_rows",
        sa.Column("pk", _NUMBER, autoincrement=True, nullable=False),
        sa.Column("session_pk", _NUMBER, nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("words", sa.Text().with_variant(TSVECTOR(), "postgresql")),
        sa.ForeignKeyConstraint(
            ["session_pk"], ["sessions.pk"], name=op.f("fk_search_rows_session_pk"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("pk", name=op.f("pk_search_rows")),
        sa.UniqueConstraint("session_pk", "seq", name=op.f("uq_search_rows_session_pk_seq")),
        postgresql_with=_OFTEN_ADDED,
    )
    op.create_index(
        "ix_search_rows_words",
        "search_rows",
        ["words"],
        postgresql_using="gin",
        sqlite_where=sa.text("words is not null"),
    )
    op.create_table(
        "search_due",
        sa.Column("pk", _NUMBER, autoincrement=True, nullable=False),
        sa.Column("session_pk", _NUMBER, nullable=False),
        sa.ForeignKeyConstraint(
            ["session_pk"], ["sessions.pk"], name=op.f("fk_search_due_session_pk"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("pk", name=op.f("pk_search_due")),
        postgresql_with=_OFTEN_UPDATED,
    )
    _index("ix_search_due_session_pk", "search_due", ["session_pk"])


def _make_audit_log() -> None:
    op.create_table(
        "audit_log",
        sa.Column("pk", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("tenant", sa.String(40), nullable=False),
        sa.Column("actor", sa.String(200), nullable=False),
        sa.Column("address", sa.String(64)),
        sa.Column("act", sa.String(40), nullable=False),
        sa.Column("subject", sa.String(200), nullable=False),
        sa.Column("facts", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("pk", name="pk_audit_log"),
        postgresql_with=_OFTEN_ADDED,
        sqlite_autoincrement=True,
    )
    _index("ix_audit_log_tenant_at", "audit_log", ["tenant", "at"])
    _index("ix_audit_log_tenant_pk", "audit_log", ["tenant", "pk"])
    connection = op.get_bind()
    for statement in _AUDIT_GUARD[connection.dialect.name]:
        connection.exec_driver_sql(statement.replace("%", "%%"))
