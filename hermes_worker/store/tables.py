"""The schema, once, for PostgreSQL and SQLite. ``migrations/`` builds the same step by step; a test compares them.

A change here needs a revision there, in two releases: the first adds, the second takes away (``docs/migrations.md``).

Times are epoch seconds (double precision) by the database's clock. Rows that grow with a transcript (``messages``,
``events``, ``tool_calls``) are keyed by a small integer and appended; only ``runs`` and the claim columns of
``tool_calls`` are updated. A row is *due* when ``hinted_at`` is set: a message for it was sent at that time and
nobody has claimed it since. The partial indexes hold due and claimed rows only, so that looking for work costs what
there is to do, not what there has been.

What people, models and tools wrote is ``SealedText``, which may be encrypted at rest. ``docs/encryption.md`` says
why a column of text is clear; those that are stand in ``tests/clear_columns.toml``, and a test compares. A column whose
``info`` has ``is_secret`` stands in no export.

A table that one feature alone reads stands in ``tables.py`` of that feature. ``whole_schema`` has all of them.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import TSVECTOR

from hermes_worker.core.home_paths import JOB_DIRECTORY, WORKSPACE_ROOT
from hermes_worker.store.engine.sealing import SealedText
from hermes_worker.store.engine.stored_texts import PlacedText

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

BigId = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Seconds: sa.Double[float] = sa.Double()
Tenant = sa.String(40)
"""The tenant that owns a row: its name in ``tenants``. The column stands in every table whose rows are found otherwise
than through a row that has it, and in each of their keys of which callers can choose a part. Values that the product
draws (ids, tokens) are unique over all tenants."""
OF_OTHERS = "tenant <> 'default'"
"""Condition for rows of all tenants but the default one, whose rows need no index to be found."""


def _build_partial_index(name: str, *columns: str | sa.Column[object], where: str) -> sa.Index:
    return sa.Index(name, *columns, postgresql_where=sa.text(where), sqlite_where=sa.text(where))


_TERMINAL = "('completed', 'failed', 'cancelled', 'expired')"
_OFTEN_UPDATED = {
    "autovacuum_vacuum_scale_factor": "0.02",
    "autovacuum_vacuum_threshold": "1000",
    "autovacuum_analyze_scale_factor": "0.05",
}
"""For PostgreSQL: storage parameters of tables whose rows are written several times. By the default of a fifth, dead
versions of a million rows would wait for 200,000 updates, and the small partial indexes would hold them all that
time."""
_OFTEN_ADDED = {
    "autovacuum_vacuum_scale_factor": "0.05",
    "autovacuum_vacuum_insert_scale_factor": "0.05",
    "autovacuum_analyze_scale_factor": "0.05",
}
"""For PostgreSQL: storage parameters of tables whose rows are added, read, and one day deleted by the thousand."""

workers = sa.Table(
    "workers",
    metadata,
    sa.Column("pk", BigId, primary_key=True, autoincrement=True),
    sa.Column("worker_id", sa.String(40), nullable=False, unique=True),
    sa.Column("name", sa.String(200), nullable=False),
    sa.Column("queues", sa.String(200), nullable=False),
    sa.Column("state", sa.String(10), nullable=False),
    sa.Column("started_at", Seconds, nullable=False),
    sa.Column("expires_at", Seconds, nullable=False),
    sa.Column("watermarks", sa.Text(), nullable=False, server_default="{}"),
    sa.Column("version", sa.String(60)),
    sa.Column("slots", sa.Integer()),
    sa.Column("draining_at", Seconds),
    sa.Column("sandbox", sa.String(20)),
    sa.Column("sends_with", sa.Text()),
    sa.CheckConstraint("state in ('alive', 'stopped', 'dead', 'crashed')", name="state"),
    postgresql_with={"fillfactor": "50", "autovacuum_vacuum_threshold": "100"},
)
"""One row per worker process. ``expires_at`` is the end of *every* lease the process holds: a claim names its owner,
and is live while the owner's row is. One statement on one row renews them all, however many there are. A process that
is not alive any more left in order (``stopped``), fell silent (``dead``) or was seen to end by itself (``crashed``).
``version`` is the version of its code, with the revision that it is written for: ``0.1.0/0103``. ``slots`` is how many
model calls it makes at once, for a process that makes any. ``draining_at`` is when it began to drain, or was asked to;
``sandbox`` is the kind of sandbox of its commands, once it has run one. ``sends_with``
names the variables that a process which delivers has for it, divided by spaces."""

schema_revisions = sa.Table(
    "schema_revisions",
    metadata,
    sa.Column("revision", sa.String(32), primary_key=True),
    sa.Column("works_with", sa.String(32), nullable=False),
    sa.Column("applied_at", Seconds, nullable=False),
)
"""The migrations that were applied here. Code that is written for revision ``works_with`` or a later one works on the
schema that ``revision`` made, also code that does not know that revision."""

sessions = sa.Table(
    "sessions",
    metadata,
    sa.Column("pk", BigId, primary_key=True, autoincrement=True),
    sa.Column("session_id", sa.String(40), nullable=False, unique=True),
    sa.Column("tenant", Tenant, nullable=False),
    sa.Column("source", sa.String(100)),
    sa.Column("name", sa.String(256)),
    sa.Column("active_run_pk", BigId),
    sa.Column("message_seq", sa.Integer(), nullable=False, server_default="0"),
    sa.Column("system_prompt", SealedText("sessions.system_prompt"), nullable=False),
    sa.Column("context_at", sa.Integer()),
    sa.Column("tools_hash", sa.String(64), nullable=False),
    sa.Column("workspace", PlacedText(WORKSPACE_ROOT), nullable=False),
    sa.Column("title", SealedText("sessions.title", clear_chars=80)),
    sa.Column("title_key", sa.String(64)),
    sa.Column("model", sa.String(200)),
    sa.Column("forked_from", sa.String(40)),
    sa.Column("ended_at", Seconds),
    sa.Column("end_reason", SealedText("sessions.end_reason", clear_chars=40)),
    sa.Column("archived_at", Seconds),
    sa.Column("created_at", Seconds, nullable=False),
    sa.Column("erasure_pk", BigId),
    sa.Column("active_at", Seconds, nullable=False, server_default="0"),
    sa.UniqueConstraint("tenant", "source", "name"),
    sa.CheckConstraint("(source is null) = (name is null)", name="named_by_somebody"),
    sa.Index("ix_sessions_tools_hash", "tools_hash"),
    _build_partial_index("ix_sessions_tenant", "tenant", "pk", where=OF_OTHERS),
    _build_partial_index("ix_sessions_forked_from", "tenant", "forked_from", where="forked_from is not null"),
    sa.Index(
        "ix_sessions_title_key",
        "tenant",
        "title_key",
        unique=True,
        postgresql_where=sa.text("title_key is not null"),
        sqlite_where=sa.text("title_key is not null"),
    ),
    _build_partial_index("ix_sessions_erasure", "erasure_pk", where="erasure_pk is not null"),
    sa.Index("ix_sessions_activity", "tenant", "active_at", "pk"),
    postgresql_with={"fillfactor": "85", **_OFTEN_UPDATED},
)
"""A conversation. ``active_run_pk`` is the one run that may take a turn (invariant I10); the others wait in order.
``session_id`` is ours, the id of the run that opened it; ``name`` is a caller's, and means something within its tenant
and ``source`` only.

``context_at`` is the position in ``system_prompt`` where the files of the project will stand, until its workspace was
read; null ever after, and where nobody reads it. From then on the prompt does not change (invariant I7).

``title_key`` is the hash of a title that somebody gave, which no other session of the tenant has; null for a title that
is how the session begins, and everywhere while texts are encrypted. ``archived_at``: it was put away, and not listed.

``model`` is what its dialect asks for its turns. ``forked_from`` is the id of the session whose beginning it took over
as rows of its own; its own id, once that one was deleted and it stayed. ``ended_at`` is a remark of its owner's: it
holds until the next run, and closes nothing. ``erasure_pk``: nothing begins in it any more, because it is being
erased. ``active_at`` is when it was opened, or its last turn began or ended; 0 where nothing happened
since a version that did not note it."""
session_documents = sa.Table(
    "session_documents",
    metadata,
    sa.Column("session_pk", BigId, sa.ForeignKey("sessions.pk", ondelete="CASCADE"), primary_key=True),
    sa.Column("key", sa.String(100), primary_key=True),
    sa.Column("body", SealedText("session_documents.body"), nullable=False),
)

PUT_OFF = "not_before is not null and status = 'queued' and hinted_at is null"
"""Condition for runs that were postponed and have not begun."""

runs = sa.Table(
    "runs",
    metadata,
    sa.Column("pk", BigId, primary_key=True, autoincrement=True),
    sa.Column("run_id", sa.String(40), nullable=False, unique=True),
    sa.Column("session_pk", BigId, sa.ForeignKey("sessions.pk"), nullable=False),
    sa.Column("tenant", Tenant, nullable=False),
    sa.Column("principal", sa.String(200)),
    sa.Column("model", sa.String(200), nullable=False),
    sa.Column("endpoint", sa.Text()),
    sa.Column("origin", sa.String(20)),
    sa.Column("network", sa.String(10)),
    sa.Column("skills_hash", sa.String(64)),
    sa.Column("status", sa.String(24), nullable=False),
    sa.Column("parent_pk", BigId),
    sa.Column("parent_iteration", sa.Integer()),
    sa.Column("parent_position", sa.SmallInteger()),
    sa.Column("child_index", sa.Integer()),
    sa.Column("cause_pk", BigId),
    sa.Column("root_pk", BigId),
    sa.Column("depth", sa.SmallInteger(), nullable=False, server_default="0"),
    sa.Column("is_background", sa.SmallInteger(), nullable=False, server_default="0"),
    sa.Column("has_budget", sa.SmallInteger(), nullable=False, server_default="0"),
    sa.Column("is_reserved", sa.SmallInteger(), nullable=False, server_default="0"),
    sa.Column("reserved_tokens", sa.BigInteger(), nullable=False, server_default="0"),
    sa.Column("reserved_nano_usd", sa.BigInteger(), nullable=False, server_default="0"),
    sa.Column("exhausted", sa.String(12)),
    sa.Column("halt", sa.String(8)),
    sa.Column("state_version", sa.SmallInteger(), nullable=False),
    sa.Column("prepares", sa.SmallInteger()),
    sa.Column("iteration", sa.Integer(), nullable=False, server_default="0"),
    sa.Column("iterations_max", sa.Integer(), nullable=False),
    sa.Column("refunds", sa.Integer(), nullable=False, server_default="0"),
    sa.Column("attempt", sa.SmallInteger(), nullable=False, server_default="1"),
    sa.Column("attempts_max", sa.SmallInteger(), nullable=False),
    sa.Column("deaths", sa.SmallInteger()),
    sa.Column("recovery", sa.Text()),
    sa.Column("memory", SealedText("runs.memory")),
    sa.Column("call_count", sa.SmallInteger(), nullable=False, server_default="0"),
    sa.Column("hinted_at", Seconds),
    sa.Column("hints", sa.SmallInteger(), nullable=False, server_default="0"),
    sa.Column("resume_at", Seconds),
    sa.Column("lease_token", sa.String(32)),
    sa.Column("lease_owner", BigId),
    sa.Column("claimed_at", Seconds),
    sa.Column("message_seq", sa.Integer(), nullable=False, server_default="0"),
    sa.Column("event_seq", sa.Integer(), nullable=False, server_default="0"),
    sa.Column("steers", sa.SmallInteger(), nullable=False, server_default="0"),
    sa.Column("goes_first", sa.Boolean(), nullable=False, server_default=sa.false()),
    sa.Column("output_seq", sa.Integer()),
    sa.Column("input_tokens", sa.BigInteger(), nullable=False, server_default="0"),
    sa.Column("output_tokens", sa.BigInteger(), nullable=False, server_default="0"),
    sa.Column("cache_read_tokens", sa.BigInteger(), nullable=False, server_default="0"),
    sa.Column("cache_write_tokens", sa.BigInteger(), nullable=False, server_default="0"),
    sa.Column("reasoning_tokens", sa.BigInteger(), nullable=False, server_default="0"),
    sa.Column("estimated_tokens", sa.BigInteger(), nullable=False, server_default="0"),
    sa.Column("refused_attempts", sa.Integer(), nullable=False, server_default="0"),
    sa.Column("unknown_attempts", sa.Integer(), nullable=False, server_default="0"),
    sa.Column("unknown_input_tokens", sa.BigInteger(), nullable=False, server_default="0"),
    sa.Column("unknown_output_tokens", sa.BigInteger(), nullable=False, server_default="0"),
    sa.Column("cost_nano_usd", sa.BigInteger(), nullable=False, server_default="0"),
    sa.Column("cost_status", sa.String(10)),
    sa.Column("doubtful_nano_usd", sa.BigInteger(), nullable=False, server_default="0"),
    sa.Column("unpriced_calls", sa.Integer(), nullable=False, server_default="0"),
    sa.Column("watched_until", Seconds, nullable=False, server_default="0"),
    sa.Column("deadline_at", Seconds),
    sa.Column("idle_s_max", Seconds),
    sa.Column("not_before", Seconds),
    sa.Column("priority", sa.SmallInteger(), nullable=False, server_default="0"),
    sa.Column("retry_of_pk", BigId),
    sa.Column("has_output_schema", sa.SmallInteger(), nullable=False, server_default="0"),
    sa.Column("artifacts", sa.SmallInteger()),
    sa.Column("overrides", sa.Text()),
    sa.Column("created_at", Seconds, nullable=False),
    sa.Column("started_at", Seconds),
    sa.Column("updated_at", Seconds, nullable=False),
    sa.Column("finished_at", Seconds),
    sa.Column("exit_reason", sa.String(40)),
    sa.Column("failure_kind", sa.String(60)),
    sa.Column("failure_message", SealedText("runs.failure_message")),
    sa.Column("deliver", sa.Text()),
    sa.Column("is_counted", sa.SmallInteger(), nullable=False, server_default="0"),
    sa.Column("place", sa.SmallInteger()),
    sa.Column("place_rank", sa.SmallInteger()),
    sa.Column("permit", sa.String(32)),
    sa.CheckConstraint(f"(status in {_TERMINAL}) = (exit_reason is not null)", name="exit_reason"),
    sa.CheckConstraint(
        f"status not in {_TERMINAL} or (lease_token is null and hinted_at is null)", name="terminal_is_at_rest"
    ),
    sa.CheckConstraint("(lease_token is null) = (lease_owner is null)", name="lease"),
    sa.CheckConstraint("is_reserved = 0 or (has_budget > 0 and lease_token is not null)", name="reserved_is_claimed"),
    sa.CheckConstraint("lease_token is null or hinted_at is null", name="claimed_is_not_due"),
    sa.CheckConstraint("iteration >= 0 and event_seq >= 0 and message_seq >= 0", name="counters"),
    sa.CheckConstraint(
        "(parent_pk is null or cause_pk is null) and (parent_pk is null) = (depth = 0) "
        "and (parent_pk is null and cause_pk is null) = (root_pk is null)",
        name="tree",
    ),
    sa.CheckConstraint("halt is null or halt in ('paused', 'stopping', 'stopped')", name="halt"),
    sa.Index(
        "ix_runs_child_of_call",
        "parent_pk",
        "parent_iteration",
        "parent_position",
        "child_index",
        unique=True,
        postgresql_where=sa.text("parent_pk is not null"),
        sqlite_where=sa.text("parent_pk is not null"),
    ),
    _build_partial_index(
        "ix_runs_open_children",
        "parent_pk",
        "parent_iteration",
        "parent_position",
        "pk",
        where=f"parent_pk is not null and status not in {_TERMINAL}",
    ),
    _build_partial_index(
        "ix_runs_begun_children",
        "parent_pk",
        where=f"parent_pk is not null and message_seq > 0 and status not in {_TERMINAL}",
    ),
    _build_partial_index(
        "ix_runs_waiting_children",
        "parent_pk",
        "pk",
        where="parent_pk is not null and status = 'queued' and hinted_at is null",
    ),
    _build_partial_index("ix_runs_tenant", "tenant", "pk", where=OF_OTHERS),
    _build_partial_index("ix_runs_tree", "root_pk", where="root_pk is not null"),
    _build_partial_index("ix_runs_caused", "cause_pk", "pk", where="cause_pk is not null"),
    _build_partial_index("ix_runs_halting", "pk", where="halt = 'stopping'"),
    _build_partial_index("ix_runs_due", "hinted_at", where="hinted_at is not null"),
    _build_partial_index("ix_runs_suspect", "hinted_at", where="hinted_at is not null and deaths is not null"),
    _build_partial_index("ix_runs_claimed", "lease_owner", where="lease_owner is not null"),
    _build_partial_index("ix_runs_open", "session_pk", "pk", where=f"status not in {_TERMINAL}"),
    _build_partial_index("ix_runs_resume", "resume_at", where="resume_at is not null"),
    _build_partial_index("ix_runs_later", "not_before", where=PUT_OFF),
    _build_partial_index("ix_runs_retries", "retry_of_pk", where="retry_of_pk is not null"),
    _build_partial_index("ix_runs_idle_limit", "pk", where="idle_s_max is not null and status = 'running'"),
    _build_partial_index(
        "ix_runs_deadline", "deadline_at", where=f"deadline_at is not null and status not in {_TERMINAL}"
    ),
    _build_partial_index("ix_runs_uncounted", "pk", where="exit_reason is not null and is_counted = 0"),
    _build_partial_index("ix_runs_ended", "tenant", "finished_at", "pk", where="finished_at is not null"),
    _build_partial_index("ix_runs_held", "tenant", "place_rank", "pk", where="place = 0"),
    _build_partial_index("ix_runs_placed", "tenant", "status", where="place = 2"),
    _build_partial_index("ix_runs_left", "pk", where="place = 4"),
    _build_partial_index("ix_runs_parts", "tenant", where="place = 3"),
    _build_partial_index("ix_runs_permits", "tenant", where="permit is not null"),
    _build_partial_index("ix_runs_skills_hash", "skills_hash", where="skills_hash is not null"),
    sa.Index("ix_runs_session_pk", "session_pk", "pk"),
    postgresql_with={"fillfactor": "80", **_OFTEN_UPDATED},
)
"""A run that was not submitted by a caller has a ``root_pk``: the first run of the chain that it belongs to. It is
either a child, and ``parent_pk`` delegated its task, or a run that begins with what the background children of
``cause_pk`` left. ``origin`` is the kind of source that the first run of the chain came from (``core.sources``),
``principal`` who submitted that run, and ``network`` the network that was requested for its commands. ``halt`` is a
stop or pause of a run together with everything that it caused, and it holds when the run itself has ended: while it is
set, nothing that the run caused begins. ``stopping`` becomes ``stopped`` when all of that was stopped. ``not_before``
is when it may begin, if that was later than its submission; ``priority`` how urgent it is (``core.priority``);
``retry_of_pk`` the run whose submission it repeats, which may have been deleted. ``artifacts`` is 1 for a run that
declared files to be kept, and null for any other. ``place`` is null for a run that shares nothing, which is every run
of an installation with one tenant and no limits; ``core.fair_share.FleetPlace`` lists the other values, and
``place_rank`` says which of a tenant's runs goes first. ``permit`` is null except where its tenant has a limit of model
calls or of spending (``store.runs.permits``). No index has ``updated_at`` in it, which every step writes: a step that
changes nothing that is indexed is a HOT update on PostgreSQL, and writes no index. This includes the results of a batch
except the last. ``prepares`` is 1 until the workspace of its session was read, for a run that began before it was; null
for any other. ``is_counted`` is set, here and in ``firings`` and ``deliveries``, when a row that is over has been added
to ``statistics``: until then it is counted where it stands. A row may be deleted when it is counted, not before."""

RUN_IS_OPEN = sa.text(f"runs.status not in {_TERMINAL}")
RUN_IS_UNCOUNTED = sa.text("runs.exit_reason is not null and runs.is_counted = 0")
"""This condition and ``RUN_IS_OPEN`` are spelled as in the partial indexes, which a plan with values for parameters
could not use."""

budgets = sa.Table(
    "budgets",
    metadata,
    sa.Column("root_pk", BigId, sa.ForeignKey("runs.pk", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    sa.Column("iterations_max", sa.Integer(), nullable=False),
    sa.Column("iterations_reserved", sa.Integer(), nullable=False, server_default="0"),
    sa.Column("iterations_spent", sa.Integer(), nullable=False, server_default="0"),
    sa.Column("tokens_max", sa.BigInteger()),
    sa.Column("tokens_reserved", sa.BigInteger(), nullable=False, server_default="0"),
    sa.Column("tokens_spent", sa.BigInteger(), nullable=False, server_default="0"),
    sa.Column("tool_calls_max", sa.Integer()),
    sa.Column("tool_calls_spent", sa.Integer(), nullable=False, server_default="0"),
    sa.Column("nano_usd_max", sa.BigInteger()),
    sa.Column("nano_usd_reserved", sa.BigInteger(), nullable=False, server_default="0"),
    sa.Column("nano_usd_spent", sa.BigInteger(), nullable=False, server_default="0"),
    sa.Column("unknown_costs", sa.Integer(), nullable=False, server_default="0"),
    sa.Column("turns", sa.Integer(), nullable=False, server_default="0"),
    sa.Column("level", sa.SmallInteger(), nullable=False, server_default="0"),
    sa.Column("told", sa.SmallInteger(), nullable=False, server_default="0"),
    sa.CheckConstraint(
        "iterations_reserved >= 0 and iterations_spent >= 0 and tokens_reserved >= 0 and nano_usd_reserved >= 0",
        name="not_negative",
    ),
    sa.CheckConstraint("iterations_spent + iterations_reserved <= iterations_max", name="never_one_more"),
    _build_partial_index("ix_budgets_untold", "root_pk", where="level > told"),
    postgresql_with={"fillfactor": "70", **_OFTEN_UPDATED},
)
"""What a chain of runs has used: a run, its children, and all runs that their answers began. ``runs.has_budget`` says
which row a run draws from: 1 its root's, 2 its own; with ``is_reserved`` its claim holds one model call of it, and as
many tokens and as much money as its row says. Locked after every run, and last in its transaction. ``unknown_costs``
counts calls whose price is unknown, ``turns`` the runs that background delegations of the chain have begun or will
begin. ``level`` is written with what was spent: 1 from 80 % of the tokens or the money on, 2 when they are used up;
``told`` is the level for which an alert was sent."""

run_inputs = sa.Table(
    "run_inputs",
    metadata,
    sa.Column("run_pk", BigId, sa.ForeignKey("runs.pk", ondelete="CASCADE"), primary_key=True),
    sa.Column("spec", SealedText("run_inputs.spec"), nullable=False),
    sa.Column("title", SealedText("run_inputs.title")),
)
"""The submission of a run, as JSON (``core.spec.RunSpec``); written once. ``title`` is what lists show of it
(``core.titles``); null for runs without words, and from before there were titles of runs."""

run_tags = sa.Table(
    "run_tags",
    metadata,
    sa.Column("run_pk", BigId, sa.ForeignKey("runs.pk", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    sa.Column("tag", sa.String(64), primary_key=True),
    sa.Column("tenant", Tenant, nullable=False),
    sa.Index("ix_run_tags_tag", "tenant", "tag", "run_pk"),
)
"""Tags that a caller put on a run, to find it by."""

deleted_responses = sa.Table(
    "deleted_responses",
    metadata,
    sa.Column("run_pk", BigId, sa.ForeignKey("runs.pk", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    sa.Column("deleted_at", Seconds, nullable=False),
)
"""Runs that cannot be read as responses of OpenAI's API any more, because their caller deleted them there."""

tool_calls = sa.Table(
    "tool_calls",
    metadata,
    sa.Column("run_pk", BigId, sa.ForeignKey("runs.pk", ondelete="CASCADE"), primary_key=True),
    sa.Column("iteration", sa.Integer(), primary_key=True),
    sa.Column("position", sa.SmallInteger(), primary_key=True),
    sa.Column("name", sa.String(100), nullable=False),
    sa.Column("replay", sa.String(5), nullable=False),
    sa.Column("segment", sa.SmallInteger(), nullable=False),
    sa.Column("status", sa.String(10), nullable=False),
    sa.Column("waits_for", sa.String(8)),
    sa.Column("children_max", sa.SmallInteger()),
    sa.Column("approved_arguments", SealedText("tool_calls.approved_arguments")),
    sa.Column("rewritten_arguments", SealedText("tool_calls.rewritten_arguments")),
    sa.Column("inner_calls", SealedText("tool_calls.inner_calls")),
    sa.Column("asks", sa.SmallInteger()),
    sa.Column("attempt", sa.SmallInteger(), nullable=False, server_default="1"),
    sa.Column("deaths", sa.SmallInteger()),
    sa.Column("timeout_s", sa.REAL(), nullable=False),
    sa.Column("result_seq", sa.Integer(), nullable=False),
    sa.Column("hinted_at", Seconds),
    sa.Column("hints", sa.SmallInteger(), nullable=False, server_default="0"),
    sa.Column("lease_token", sa.String(32)),
    sa.Column("unbegun_token", sa.String(32)),
    sa.Column("lease_owner", BigId),
    sa.Column("claimed_at", Seconds),
    sa.Column("deadline_at", Seconds),
    sa.Column("settled_at", Seconds),
    sa.CheckConstraint(
        "status in ('pending', 'running', 'waiting', 'succeeded', 'failed', 'cancelled', 'unknown')", name="status"
    ),
    sa.CheckConstraint("(status = 'waiting') = (waits_for is not null)", name="waiting_for_something"),
    sa.CheckConstraint("(status = 'running') = (lease_token is not null)", name="running_is_claimed"),
    sa.CheckConstraint("hinted_at is null or status = 'pending'", name="due_is_pending"),
    sa.CheckConstraint("asks is null or asks = 0 or status in ('pending', 'running')", name="asking_is_open"),
    _build_partial_index("ix_tool_calls_due", "hinted_at", where="hinted_at is not null"),
    _build_partial_index("ix_tool_calls_asking", "hinted_at", where="hinted_at is not null and asks = 1"),
    _build_partial_index("ix_tool_calls_suspect", "hinted_at", where="hinted_at is not null and deaths is not null"),
    _build_partial_index("ix_tool_calls_claimed", "lease_owner", where="lease_owner is not null"),
    postgresql_with={"fillfactor": "80", **_OFTEN_UPDATED},
)
"""The effect ledger. ``running`` is the recorded intent; the result is the message at ``result_seq`` of the session,
a place that is kept free for it from the moment the model asked, so results stand in the order of the calls. With
``asks`` 1 what is due, or claimed, is an auxiliary call for it and not its tool; 0 when it has its answers, and null
for the usual call, which asks nothing. ``unbegun_token`` is the token of the claim on a ``once`` call whose tool has
not begun. It is taken away by a compare-and-set before the tool begins; where it is not the ``lease_token``, as after a
claim of an older version, the tool may have begun."""

auxiliary_calls = sa.Table(
    "auxiliary_calls",
    metadata,
    sa.Column("run_pk", BigId, sa.ForeignKey("runs.pk", ondelete="CASCADE"), primary_key=True),
    sa.Column("iteration", sa.Integer(), primary_key=True),
    sa.Column("position", sa.SmallInteger(), primary_key=True),
    sa.Column("number", sa.SmallInteger(), primary_key=True),
    sa.Column("task", sa.String(12), nullable=False),
    sa.Column("request", SealedText("auxiliary_calls.request")),
    sa.Column("material", SealedText("auxiliary_calls.material")),
    sa.Column("answer", SealedText("auxiliary_calls.answer")),
    sa.Column("failure_kind", sa.String(40)),
    sa.Column("asked_at", Seconds, nullable=False),
    sa.Column("answered_at", Seconds),
    sa.CheckConstraint("(answer is not null or failure_kind is not null) = (answered_at is not null)", name="answered"),
    sa.CheckConstraint("answer is null or failure_kind is null", name="one_outcome"),
    sa.CheckConstraint("(request is null) = (answered_at is not null)", name="asked_until_answered"),
)
"""The questions of tool calls to models, numbered within their call. The claim on one is the claim on its tool call.
``request`` is dropped when the answer comes, because it may be an image. ``material`` is what the tool needs to go on;
it stands in the first row of those that were asked together. The rows of a call that is over are deleted after a
day."""

waits = sa.Table(
    "waits",
    metadata,
    sa.Column("pk", BigId, primary_key=True, autoincrement=True),
    sa.Column("run_pk", BigId, sa.ForeignKey("runs.pk", ondelete="CASCADE"), nullable=False),
    sa.Column("iteration", sa.Integer(), nullable=False),
    sa.Column("position", sa.SmallInteger(), nullable=False),
    sa.Column("kind", sa.String(8), nullable=False),
    sa.Column("request", SealedText("waits.request"), nullable=False),
    sa.Column("opened_at", Seconds, nullable=False),
    sa.Column("expires_at", Seconds),
    sa.Column("closed_at", Seconds),
    sa.Column("outcome", sa.String(10)),
    sa.Column("answered_by", sa.String(200)),
    sa.Column("reason", SealedText("waits.reason")),
    sa.CheckConstraint("(closed_at is null) = (outcome is null)", name="outcome"),
    _build_partial_index("ix_waits_open", "run_pk", where="closed_at is null"),
    _build_partial_index("ix_waits_answered", "run_pk", where="closed_at is not null"),
    _build_partial_index("ix_waits_expiry", "expires_at", where="closed_at is null and expires_at is not null"),
    sa.Index("ix_waits_run_pk", "run_pk"),
)
"""Questions to people: one row per call that waited for an approval or an answer. Open until it is answered, expires or
its run ends."""

allowed_patterns = sa.Table(
    "allowed_patterns",
    metadata,
    sa.Column("tenant", Tenant, primary_key=True),
    sa.Column("pattern_key", sa.String(200), primary_key=True),
    sa.Column("created_at", Seconds, nullable=False),
)
"""Kinds of dangerous commands that a person allowed for good, by the key of their pattern."""

steers = sa.Table(
    "steers",
    metadata,
    sa.Column("pk", BigId, primary_key=True, autoincrement=True),
    sa.Column("run_pk", BigId, sa.ForeignKey("runs.pk", ondelete="CASCADE"), nullable=False),
    sa.Column("text", SealedText("steers.text"), nullable=False),
    sa.Column("created_at", Seconds, nullable=False),
    sa.Column("message_seq", sa.Integer()),
    _build_partial_index("ix_steers_pending", "run_pk", "pk", where="message_seq is null"),
    sa.Index("ix_steers_run_pk", "run_pk"),
)
"""The user's messages to a run at work. ``message_seq`` is the tool result to which one was appended; ``runs.steers``
counts those that wait for a result."""

blobs = sa.Table(
    "blobs",
    metadata,
    sa.Column("hash", sa.String(64), primary_key=True),
    sa.Column("body", SealedText("blobs.body"), nullable=False),
    sa.Column("released_at", Seconds),
    _build_partial_index("ix_blobs_released", "released_at", where="released_at is not null"),
)
"""Large texts, stored once under their SHA-256. ``released_at``: a row that referred to it was deleted then, and it may
be that no other does. Storing the same text again clears that, so it is not deleted while it is in use."""

artifact_gatherings = sa.Table(
    "artifact_gatherings",
    metadata,
    sa.Column("run_pk", BigId, sa.ForeignKey("runs.pk", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    sa.Column("tenant", Tenant, nullable=False),
    sa.Column("state", sa.String(10), nullable=False),
    sa.Column("attempts", sa.SmallInteger(), nullable=False, server_default="0"),
    sa.Column("reason", SealedText("artifact_gatherings.reason")),
    sa.Column("files", sa.Integer(), nullable=False, server_default="0"),
    sa.Column("left_out", sa.Integer(), nullable=False, server_default="0"),
    sa.Column("left_out_named", SealedText("artifact_gatherings.left_out_named")),
    sa.Column("hinted_at", Seconds),
    sa.Column("hints", sa.SmallInteger(), nullable=False, server_default="0"),
    sa.Column("lease_token", sa.String(32)),
    sa.Column("lease_owner", BigId),
    sa.Column("claimed_at", Seconds),
    sa.Column("created_at", Seconds, nullable=False),
    sa.Column("settled_at", Seconds),
    sa.CheckConstraint("state in ('pending', 'running', 'done', 'failed')", name="state"),
    sa.CheckConstraint("(state = 'running') = (lease_token is not null)", name="running_is_claimed"),
    sa.CheckConstraint("(state = 'pending') = (hinted_at is not null)", name="pending_is_due"),
    sa.CheckConstraint("(state in ('done', 'failed')) = (settled_at is not null)", name="settled"),
    _build_partial_index("ix_artifact_gatherings_due", "hinted_at", where="hinted_at is not null"),
    _build_partial_index("ix_artifact_gatherings_claimed", "lease_owner", where="lease_owner is not null"),
)
"""The order to keep the files of a run, written with its end, and the outcome. ``files`` counts those that were kept,
and ``left_out`` those that matched and were not, the first of which are named, as JSON."""

inbound_files = sa.Table(
    "inbound_files",
    metadata,
    sa.Column("pk", BigId, primary_key=True, autoincrement=True),
    sa.Column("run_pk", BigId, sa.ForeignKey("runs.pk", ondelete="CASCADE"), nullable=False),
    sa.Column("tenant", Tenant, nullable=False),
    sa.Column("account", sa.String(100), nullable=False),
    sa.Column("album_hash", sa.String(64)),
    sa.Column("reference", SealedText("inbound_files.reference"), nullable=False),
    sa.Column("state", sa.String(10), nullable=False),
    sa.Column("outcome", SealedText("inbound_files.outcome")),
    sa.Column("attempts", sa.SmallInteger(), nullable=False, server_default="0"),
    sa.Column("content_hash", sa.String(64)),
    sa.Column("picture_hash", sa.String(64)),
    sa.Column("gathers_until", Seconds, nullable=False),
    sa.Column("hinted_at", Seconds),
    sa.Column("hints", sa.SmallInteger(), nullable=False, server_default="0"),
    sa.Column("lease_token", sa.String(32)),
    sa.Column("lease_owner", BigId),
    sa.Column("claimed_at", Seconds),
    sa.Column("created_at", Seconds, nullable=False),
    sa.Column("settled_at", Seconds),
    sa.CheckConstraint("state in ('pending', 'running', 'fetched', 'refused')", name="state"),
    sa.CheckConstraint("(state = 'running') = (lease_token is not null)", name="running_is_claimed"),
    sa.CheckConstraint("(state = 'pending') = (hinted_at is not null)", name="pending_is_due"),
    sa.CheckConstraint("(state in ('fetched', 'refused')) = (settled_at is not null)", name="settled"),
    sa.Index("ix_inbound_files_run_pk", "run_pk", "pk"),
    _build_partial_index("ix_inbound_files_due", "hinted_at", where="hinted_at is not null"),
    _build_partial_index("ix_inbound_files_claimed", "lease_owner", where="lease_owner is not null"),
    _build_partial_index("ix_inbound_files_content", "content_hash", where="content_hash is not null"),
    _build_partial_index("ix_inbound_files_picture", "picture_hash", where="picture_hash is not null"),
)
"""Files that came with the message a run begins with, each fetched once from its platform before the run begins.
``reference`` is the platform's description of the file, ``outcome`` the result of fetching it, both as JSON.
``content_hash`` and ``picture_hash`` name the whole file and the picture for the model, until they are in the workspace
and in the transcript. The run does not begin before ``gathers_until``: more of the same album may come."""

processes = sa.Table(
    "processes",
    metadata,
    sa.Column("pk", BigId, primary_key=True, autoincrement=True),
    sa.Column("process_id", sa.String(20), nullable=False, unique=True),
    sa.Column("session_pk", BigId, sa.ForeignKey("sessions.pk", ondelete="CASCADE"), nullable=False),
    sa.Column("run_pk", BigId, sa.ForeignKey("runs.pk", ondelete="CASCADE"), nullable=False),
    sa.Column("tenant", Tenant, nullable=False),
    sa.Column("command", SealedText("processes.command"), nullable=False),
    sa.Column("state", sa.String(10), nullable=False),
    sa.Column("exit_code", sa.Integer()),
    sa.Column("has_terminal", sa.SmallInteger(), nullable=False, server_default="0"),
    sa.Column("notifies", sa.SmallInteger(), nullable=False, server_default="0"),
    sa.Column("patterns", SealedText("processes.patterns")),
    sa.Column("is_consumed", sa.SmallInteger(), nullable=False, server_default="0"),
    sa.Column("seen", sa.BigInteger(), nullable=False, server_default="0"),
    sa.Column("notices", sa.Integer(), nullable=False, server_default="0"),
    sa.Column("told_at", Seconds),
    sa.Column("strikes", sa.SmallInteger(), nullable=False, server_default="0"),
    sa.Column("suppressed", sa.Integer(), nullable=False, server_default="0"),
    sa.Column("is_off", sa.SmallInteger(), nullable=False, server_default="0"),
    sa.Column("started_at", Seconds, nullable=False),
    sa.Column("ended_at", Seconds),
    sa.Column("deadline_at", Seconds, nullable=False),
    sa.Column("next_look_at", Seconds),
    sa.CheckConstraint("(state in ('starting', 'running')) = (ended_at is null)", name="open_or_ended"),
    sa.Index("ix_processes_session_pk", "session_pk", "pk"),
    sa.Index("ix_processes_run_pk", "run_pk"),
    _build_partial_index("ix_processes_due", "next_look_at", where="next_look_at is not null"),
    _build_partial_index("ix_processes_told", "told_at", where="told_at is not null"),
)
"""Background processes that a run's ``terminal`` started in its session's workspace. ``state`` is ``starting``, or one
of ``workspaces.processes.ProcessState``. ``next_look_at`` is when a worker looks at it next, and the look moves it on;
null when nothing is left of the process where it ran. ``seen`` bytes of its output were searched for ``patterns``;
``notices`` runs began with what was found, the last about output at ``told_at``. ``is_consumed``: the session knows
that it has ended."""

search_rows = sa.Table(
    "search_rows",
    metadata,
    sa.Column("pk", BigId, primary_key=True, autoincrement=True),
    sa.Column("session_pk", BigId, sa.ForeignKey("sessions.pk", ondelete="CASCADE"), nullable=False),
    sa.Column("seq", sa.Integer(), nullable=False),
    sa.Column("words", sa.Text().with_variant(TSVECTOR(), "postgresql")),
    sa.UniqueConstraint("session_pk", "seq"),
    sa.Index("ix_search_rows_words", "words", postgresql_using="gin", sqlite_where=sa.text("words is not null")),
    postgresql_with=_OFTEN_ADDED,
)
"""The search index: messages in the order in which they were indexed. A session's rows are the first ones of its
transcript, without a gap: the last of them is where the index of the session ends. ``words`` are those of
``core.search_queries`` on PostgreSQL; SQLite has them in ``search_words``, by the same number."""

SEARCH_WORDS = """
create virtual table search_words using fts5(
    words, content='', detail=none, columnsize=0, tokenize="ascii tokenchars '-._'"
)
"""
"""SQLite's index of words. It stores no texts and no positions of words. Its tokenizer splits words at spaces only,
because ours hold no other ASCII character than letters, digits and ``-._``."""
sa.event.listen(search_rows, "after_create", sa.DDL(SEARCH_WORDS).execute_if(dialect="sqlite"))  # type: ignore[no-untyped-call]

search_due = sa.Table(
    "search_due",
    metadata,
    sa.Column("pk", BigId, primary_key=True, autoincrement=True),
    sa.Column("session_pk", BigId, sa.ForeignKey("sessions.pk", ondelete="CASCADE"), nullable=False),
    sa.Index("ix_search_due_session_pk", "session_pk"),
    postgresql_with=_OFTEN_UPDATED,
)
"""Sessions with messages that are not indexed, one row for each time that they were marked. Rows are added in
transactions of their own or by the counting of ended runs (``store.statistics``), never by a step."""

artifacts = sa.Table(
    "artifacts",
    metadata,
    sa.Column("pk", BigId, primary_key=True, autoincrement=True),
    sa.Column("artifact_id", sa.String(40), nullable=False, unique=True),
    sa.Column("run_pk", BigId, sa.ForeignKey("runs.pk", ondelete="CASCADE")),
    sa.Column("tenant", Tenant, nullable=False),
    sa.Column("path", SealedText("artifacts.path"), nullable=False),
    sa.Column("sha256", sa.String(64), nullable=False),
    sa.Column("size", sa.BigInteger(), nullable=False),
    sa.Column("media_type", sa.String(100), nullable=False),
    sa.Column("modified_at", Seconds, nullable=False),
    sa.Column("blob_hash", sa.String(64), nullable=False),
    sa.Column("created_at", Seconds, nullable=False),
    sa.Column("principal", sa.String(200)),
    sa.Column("purpose", sa.String(20)),
    sa.Column("expires_at", Seconds),
    sa.Index("ix_artifacts_run_pk", "run_pk"),
    sa.Index("ix_artifacts_blob_hash", "blob_hash"),
    sa.Index("ix_artifacts_created_at", "tenant", "created_at", "pk"),
    _build_partial_index("ix_artifacts_uploaded", "tenant", "pk", where="run_pk is null"),
)
"""Files that runs made or changed in their workspaces, and files that clients uploaded: those belong to no run, and
``principal`` uploaded them for a ``purpose``. ``sha256`` is that of the bytes; the text under ``blob_hash`` is their
Base64, so equal files of any number of runs are stored once."""

messages = sa.Table(
    "messages",
    metadata,
    sa.Column("session_pk", BigId, sa.ForeignKey("sessions.pk", ondelete="CASCADE"), primary_key=True),
    sa.Column("seq", sa.Integer(), primary_key=True),
    sa.Column("run_pk", BigId, nullable=False),
    sa.Column("role", sa.String(9), nullable=False),
    sa.Column("body", SealedText("messages.body")),
    sa.Column("blob_hash", sa.String(64)),
    sa.Column("created_at", Seconds, nullable=False),
    sa.CheckConstraint("(body is null) <> (blob_hash is null)", name="one_body"),
    _build_partial_index("ix_messages_blob_hash", "blob_hash", where="blob_hash is not null"),
    postgresql_with=_OFTEN_ADDED,
)
"""The transcripts. ``run_pk`` is the run that wrote the row: 0 for history that a caller brought, and a number that no
row of ``runs`` has any more when the run was deleted before its session."""

events = sa.Table(
    "events",
    metadata,
    sa.Column("run_pk", BigId, sa.ForeignKey("runs.pk", ondelete="CASCADE"), primary_key=True),
    sa.Column("seq", sa.Integer(), primary_key=True),
    sa.Column("at", Seconds, nullable=False),
    sa.Column("event", sa.String(40), nullable=False),
    sa.Column("data", SealedText("events.data"), nullable=False),
    postgresql_with=_OFTEN_ADDED,
)
"""The events of a run, numbered from 1 without gaps. For a run that ended long ago only the end may be left."""

tree_events = sa.Table(
    "tree_events",
    metadata,
    sa.Column("root_pk", BigId, sa.ForeignKey("runs.pk", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    sa.Column("seq", sa.Integer(), primary_key=True, autoincrement=False),
    sa.Column("run_pk", BigId, nullable=False),
    sa.Column("event_seq", sa.Integer(), nullable=False),
    sa.UniqueConstraint("run_pk", "event_seq"),
)
"""The one order of the events of a delegation tree. Readers write it, so a tree without readers has none."""

statistics = sa.Table(
    "statistics",
    metadata,
    sa.Column("pk", BigId, primary_key=True, autoincrement=True),
    sa.Column("measure", sa.String(40), nullable=False),
    sa.Column("labels", sa.Text(), nullable=False),
    sa.Column("amount", sa.BigInteger(), nullable=False),
)
"""The sums of rows that are over: the total of all ``amount`` of a ``measure`` and its ``labels``, a JSON list. Rows
are only added, so that no two transactions wait for each other here, and now and then replaced by their sums."""

idempotency_keys = sa.Table(
    "idempotency_keys",
    metadata,
    sa.Column("tenant", Tenant, primary_key=True),
    sa.Column("source", sa.String(100), primary_key=True),
    sa.Column("key", sa.String(256), primary_key=True),
    sa.Column("fingerprint", SealedText("idempotency_keys.fingerprint", clear_chars=64), nullable=False),
    sa.Column("run_pk", BigId),
    sa.Column("created_at", Seconds, nullable=False),
    sa.Index("ix_idempotency_keys_created_at", "created_at"),
    _build_partial_index("ix_idempotency_keys_run_pk", "run_pk", where="run_pk is not null"),
)
"""Requests of the last day: by the key that a caller from ``source`` chose, and by the signature of signed requests.
``run_pk`` is the run that the request made; null for a request that was delivered without a run."""

kept_answers = sa.Table(
    "kept_answers",
    metadata,
    sa.Column("tenant", Tenant, primary_key=True),
    sa.Column("principal", sa.String(200), primary_key=True),
    sa.Column("key", sa.String(256), primary_key=True),
    sa.Column("operation", sa.String(300), nullable=False),
    sa.Column("fingerprint", SealedText("kept_answers.fingerprint", clear_chars=64), nullable=False),
    sa.Column("token", sa.String(32)),
    sa.Column("held_until", Seconds),
    sa.Column("status", sa.SmallInteger()),
    sa.Column("headers", SealedText("kept_answers.headers")),
    sa.Column("body", SealedText("kept_answers.body")),
    sa.Column("created_at", Seconds, nullable=False),
    sa.CheckConstraint("(token is null) = (status is not null)", name="at_work_or_answered"),
    sa.CheckConstraint("(token is null) = (held_until is null)", name="at_work_is_held"),
    sa.Index("ix_kept_answers_created_at", "tenant", "created_at"),
)
"""Requests of the last day that changed something and began no run, by the key that their caller chose, with their
answers. ``token``: a process is at work on the request until ``held_until``, which it moves on as long as it lives."""

maintenance = sa.Table(
    "maintenance",
    metadata,
    sa.Column("name", sa.String(40), primary_key=True),
    sa.Column("ran_at", Seconds, nullable=False),
    sa.Column("hold_until", Seconds, nullable=False, server_default="0"),
    postgresql_with={"fillfactor": "50", "autovacuum_vacuum_threshold": "100"},
)
"""When each periodic job last ran anywhere, so that many processes may offer to run it and one does. After a time in
which no process ran it (the database was away) ``hold_until`` gives the workers a moment to renew their leases. In the
row ``clock`` it is the sum of all steps of the database's clock (``store.clock``)."""

jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("pk", BigId, primary_key=True, autoincrement=True),
    sa.Column("job_id", sa.String(12), nullable=False, unique=True),
    sa.Column("tenant", Tenant, nullable=False),
    sa.Column("name", sa.String(200), nullable=False),
    sa.Column("definition", SealedText("jobs.definition", path_in=JOB_DIRECTORY), nullable=False),
    sa.Column("state", sa.String(10), nullable=False),
    sa.Column("next_slot", Seconds),
    sa.Column("next_fire_at", Seconds),
    sa.Column("completed", sa.Integer(), nullable=False, server_default="0"),
    sa.Column("consecutive_failures", sa.Integer(), nullable=False, server_default="0"),
    sa.Column("paused_at", Seconds),
    sa.Column("paused_reason", SealedText("jobs.paused_reason")),
    sa.Column("last_run_at", Seconds),
    sa.Column("last_status", sa.String(10)),
    sa.Column("last_error", SealedText("jobs.last_error")),
    sa.Column("created_at", Seconds, nullable=False),
    sa.Column("updated_at", Seconds, nullable=False),
    sa.Column("removed_at", Seconds),
    sa.CheckConstraint("state in ('scheduled', 'paused', 'completed', 'error')", name="state"),
    sa.CheckConstraint("next_fire_at is null or (state = 'scheduled' and removed_at is null)", name="due_is_scheduled"),
    _build_partial_index("ix_jobs_due", "next_fire_at", where="next_fire_at is not null"),
)
"""Scheduled jobs. ``definition`` is what the owner wrote, as JSON; the other columns are the job's state. A removed job
keeps its row, because its firings do."""

OPEN_FIRING = "ended_at is null and (run_pk is not null or execution is not null)"

firings = sa.Table(
    "firings",
    metadata,
    sa.Column("pk", BigId, primary_key=True, autoincrement=True),
    sa.Column("job_pk", BigId, sa.ForeignKey("jobs.pk"), nullable=False),
    sa.Column("slot", Seconds, nullable=False),
    sa.Column("outcome", sa.String(20), nullable=False),
    sa.Column("reason", SealedText("firings.reason"), nullable=False),
    sa.Column("run_pk", BigId),
    sa.Column("is_waiting", sa.Boolean(), nullable=False, server_default=sa.false()),
    sa.Column("execution", sa.String(10)),
    sa.Column("hinted_at", Seconds),
    sa.Column("lease_token", sa.String(32)),
    sa.Column("lease_owner", BigId),
    sa.Column("claimed_at", Seconds),
    sa.Column("collected", SealedText("firings.collected")),
    sa.Column("remark", SealedText("firings.remark")),
    sa.Column("owes_note", sa.Boolean(), nullable=False, server_default=sa.false()),
    sa.Column("settled_at", Seconds, nullable=False),
    sa.Column("ended_at", Seconds),
    sa.Column("is_counted", sa.SmallInteger(), nullable=False, server_default="0"),
    sa.UniqueConstraint("job_pk", "slot"),
    sa.CheckConstraint(
        "outcome in ('fired', 'caught_up', 'skipped_overlap', 'missed', 'blocked_budget', 'failed_to_start')",
        name="outcome",
    ),
    sa.CheckConstraint("execution in ('pending', 'running', 'completed', 'failed', 'unknown')", name="execution"),
    sa.CheckConstraint(
        "(outcome in ('fired', 'caught_up')) = (run_pk is not null or execution is not null)", name="started"
    ),
    sa.CheckConstraint(
        "(lease_token is not null) = (execution is not null and execution = 'running')", name="running_is_claimed"
    ),
    sa.CheckConstraint("hinted_at is null or execution = 'pending'", name="due_is_pending"),
    _build_partial_index("ix_firings_open", "job_pk", "run_pk", where=OPEN_FIRING),
    _build_partial_index("ix_firings_runs", "job_pk", "settled_at", where="run_pk is not null"),
    _build_partial_index("ix_firings_due", "hinted_at", where="hinted_at is not null"),
    _build_partial_index("ix_firings_claimed", "lease_owner", where="lease_owner is not null"),
    _build_partial_index("ix_firings_notes", "pk", where="owes_note"),
    _build_partial_index("ix_firings_uncounted", "pk", where="is_counted = 0"),
    _build_partial_index("ix_firings_run_pk", "run_pk", where="run_pk is not null"),
)
"""The slot ledger: one row for every slot that came due, whatever followed from it. ``is_waiting``: its run starts when
the job's earlier runs have ended. ``ended_at``: the end of its run has been counted for the job. ``execution`` is set
for jobs with a script or skills: a worker claims the firing, once, and leaves what it found in ``collected``; only then
is there a run, if there is to be one. ``remark``: the outcome, where the run does not say. ``owes_note``: its answer
still has to be written into the session that the job is attached to."""

deliveries = sa.Table(
    "deliveries",
    metadata,
    sa.Column("pk", BigId, primary_key=True, autoincrement=True),
    sa.Column("delivery_id", sa.String(40), nullable=False, unique=True),
    sa.Column("tenant", Tenant, nullable=False),
    sa.Column("run_pk", BigId, sa.ForeignKey("runs.pk", ondelete="CASCADE")),
    sa.Column("job_pk", BigId, sa.ForeignKey("jobs.pk")),
    sa.Column("target", sa.Text(), nullable=False),
    sa.Column("body", SealedText("deliveries.body")),
    sa.Column("state", sa.String(10), nullable=False),
    sa.Column("attempts", sa.SmallInteger(), nullable=False, server_default="0"),
    sa.Column("losses", sa.SmallInteger(), nullable=False, server_default="0"),
    sa.Column("deaths", sa.SmallInteger()),
    sa.Column("parts_sent", sa.Integer(), nullable=False, server_default="0"),
    sa.Column("adjustments", sa.String(200), nullable=False, default=""),
    sa.Column("is_in_doubt", sa.Boolean(), nullable=False, server_default=sa.false()),
    sa.Column("not_before", Seconds),
    sa.Column("hinted_at", Seconds),
    sa.Column("hints", sa.SmallInteger(), nullable=False, server_default="0"),
    sa.Column("lease_token", sa.String(32)),
    sa.Column("lease_owner", BigId),
    sa.Column("claimed_at", Seconds),
    sa.Column("first_attempt_at", Seconds),
    sa.Column("receipt", SealedText("deliveries.receipt")),
    sa.Column("error_kind", sa.String(20)),
    sa.Column("error", SealedText("deliveries.error")),
    sa.Column("created_at", Seconds, nullable=False),
    sa.Column("updated_at", Seconds, nullable=False),
    sa.Column("settled_at", Seconds),
    sa.Column("is_counted", sa.SmallInteger(), nullable=False, server_default="0"),
    sa.Column("buttons", SealedText("deliveries.buttons")),
    sa.Column("is_preview", sa.SmallInteger(), nullable=False, server_default="0"),
    sa.Column("message_id", sa.String(200)),
    sa.Column("shown_hash", sa.String(16)),
    sa.Column("shown_at", Seconds),
    sa.Column("wait_pk", BigId),
    sa.CheckConstraint("state in ('pending', 'attempting', 'delivered', 'failed', 'abandoned')", name="state"),
    sa.CheckConstraint("(state = 'attempting') = (lease_token is not null)", name="attempting_is_claimed"),
    sa.CheckConstraint("hinted_at is null or (state = 'pending' and not_before is null)", name="due_is_pending"),
    sa.CheckConstraint("(state in ('delivered', 'failed', 'abandoned')) = (settled_at is not null)", name="settled"),
    sa.Index("ix_deliveries_run_pk", "run_pk"),
    _build_partial_index("ix_deliveries_tenant", "tenant", "pk", where=OF_OTHERS),
    _build_partial_index("ix_deliveries_due", "hinted_at", where="hinted_at is not null"),
    _build_partial_index("ix_deliveries_suspect", "hinted_at", where="hinted_at is not null and deaths is not null"),
    _build_partial_index("ix_deliveries_later", "not_before", where="not_before is not null"),
    _build_partial_index("ix_deliveries_claimed", "lease_owner", where="lease_owner is not null"),
    _build_partial_index("ix_deliveries_uncounted", "pk", where="settled_at is not null and is_counted = 0"),
    _build_partial_index("ix_deliveries_settled", "tenant", "settled_at", "pk", where="settled_at is not null"),
    postgresql_with={"fillfactor": "80", **_OFTEN_UPDATED},
)
"""The outbox. A row is written with the end it reports on: that of a run (``run_pk``; the text is the run's answer) or
a notice about a job (``body``). ``is_in_doubt``: an attempt ended without an answer and may have arrived. ``losses``:
attempts that ended with their worker; ``deaths``: as in ``runs``. ``is_preview``: the run is at work, and its progress
is shown in the chat as the message ``message_id``; the row is there from the beginning of the run, and the end makes it
an ordinary delivery. ``wait_pk``: the question that ``body`` puts to a chat; its ``receipt`` has the ids of all
messages that show it, with spaces between them."""

hook_calls = sa.Table(
    "hook_calls",
    metadata,
    sa.Column("pk", BigId, primary_key=True, autoincrement=True),
    sa.Column("tenant", Tenant, nullable=False),
    sa.Column("event_id", sa.String(120), nullable=False),
    sa.Column("hook", sa.String(64), nullable=False),
    sa.Column("event", sa.String(40), nullable=False),
    sa.Column("run_pk", BigId, sa.ForeignKey("runs.pk", ondelete="CASCADE"), nullable=False),
    sa.Column("event_seq", sa.Integer(), nullable=False),
    sa.Column("state", sa.String(10), nullable=False),
    sa.Column("attempts", sa.SmallInteger(), nullable=False, server_default="0"),
    sa.Column("reason", SealedText("hook_calls.reason")),
    sa.Column("hinted_at", Seconds),
    sa.Column("hints", sa.SmallInteger(), nullable=False, server_default="0"),
    sa.Column("lease_token", sa.String(32)),
    sa.Column("lease_owner", BigId),
    sa.Column("claimed_at", Seconds),
    sa.Column("created_at", Seconds, nullable=False),
    sa.Column("settled_at", Seconds),
    sa.UniqueConstraint("event_id", "hook", "tenant"),
    sa.CheckConstraint("state in ('pending', 'running', 'done', 'failed', 'lost')", name="state"),
    sa.CheckConstraint("(state = 'running') = (lease_token is not null)", name="running_is_claimed"),
    sa.CheckConstraint("(state = 'pending') = (hinted_at is not null)", name="pending_is_due"),
    sa.CheckConstraint("(state in ('done', 'failed', 'lost')) = (settled_at is not null)", name="settled"),
    sa.Index("ix_hook_calls_run_pk", "run_pk"),
    _build_partial_index("ix_hook_calls_due", "hinted_at", where="hinted_at is not null"),
    _build_partial_index("ix_hook_calls_claimed", "lease_owner", where="lease_owner is not null"),
    _build_partial_index("ix_hook_calls_settled", "settled_at", where="settled_at is not null"),
)
"""Calls of observers, pending and settled: a row for each event and hook, written with the event. ``event_seq`` is the
number of the run's event, 0 for its beginning. Settled rows are deleted after a week."""

dead_targets = sa.Table(
    "dead_targets",
    metadata,
    sa.Column("tenant", Tenant, primary_key=True),
    sa.Column("key", sa.String(300), primary_key=True),
    sa.Column("reason", SealedText("dead_targets.reason"), nullable=False),
    sa.Column("marked_at", Seconds, nullable=False),
)
"""Targets that refused us for good or are gone, as ``platform:chat``. Nothing is sent there until a person replays a
delivery and it arrives."""

logins = sa.Table(
    "logins",
    metadata,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("version", sa.Integer(), nullable=False, server_default="0"),
    sa.Column("sealed", sa.Text()),
    sa.Column("expires_at", Seconds),
    sa.Column("renew_at", Seconds),
    sa.Column("claim", sa.String(32)),
    sa.Column("claimed_until", Seconds),
    sa.Column("dead_reason", sa.Text()),
    sa.Column("updated_at", Seconds, nullable=False),
    sa.CheckConstraint("(version = 0) = (sealed is null)", name="sealed"),
    sa.CheckConstraint("(claim is null) = (claimed_until is null)", name="claim"),
)
"""Credentials that are renewed. ``sealed`` holds their tokens, encrypted with a key that only the configuration has."""

webhook_events = sa.Table(
    "webhook_events",
    metadata,
    sa.Column("pk", BigId, primary_key=True, autoincrement=True),
    sa.Column("tenant", Tenant, nullable=False),
    sa.Column("route", sa.String(64), nullable=False),
    sa.Column("received_at", Seconds, nullable=False),
    sa.Index("ix_webhook_events_received", "received_at"),
    sa.Index("ix_webhook_events_rate", "tenant", "route", "received_at"),
)
"""Events that came, to count them. Those that were accepted are known by ``idempotency_keys``."""

channels = sa.Table(
    "channels",
    metadata,
    sa.Column("account", sa.String(100), primary_key=True),
    sa.Column("tenant", Tenant, nullable=False),
    sa.Column("token_hash", sa.String(64)),
    sa.Column("mode", sa.String(10), nullable=False),
    sa.Column("cursor", sa.Text()),
    sa.Column("lease_token", sa.String(32)),
    sa.Column("lease_until", Seconds),
    sa.Column("holder", sa.String(200)),
    sa.Column("looked_at", Seconds),
    sa.Column("error", sa.Text()),
    sa.Column("error_at", Seconds),
    sa.Column("failures", sa.Integer(), nullable=False, server_default="0"),
    sa.Column("locked_until", Seconds),
    sa.Column("created_at", Seconds, nullable=False),
    postgresql_with=_OFTEN_UPDATED,
)
"""Accounts on platforms that are listened to (``telegram:default``), each by one gateway at a time. ``cursor`` is how
far it was read, in the platform's words; ``failures`` counts wrong pairing codes until ``locked_until``."""

inbound = sa.Table(
    "inbound",
    metadata,
    sa.Column("pk", BigId, primary_key=True, autoincrement=True),
    sa.Column("tenant", Tenant, nullable=False),
    sa.Column("account", sa.String(100), nullable=False),
    sa.Column("event_key", sa.String(200), nullable=False),
    sa.Column("outcome", sa.String(20), nullable=False),
    sa.Column("run_id", sa.String(40)),
    sa.Column("tries", sa.Integer()),
    sa.Column("received_at", Seconds, nullable=False),
    sa.UniqueConstraint("account", "event_key"),
    sa.Index("ix_inbound_received", "received_at"),
    postgresql_with=_OFTEN_ADDED,
)
"""Events that came from platforms, each once, and their outcome. The row is written with the effects of the event; one
that is ``broken`` has had no effect yet, and ``tries`` counts how often our code failed on it."""

chats = sa.Table(
    "chats",
    metadata,
    sa.Column("account", sa.String(100), primary_key=True),
    sa.Column("session_key", sa.String(256), primary_key=True),
    sa.Column("tenant", Tenant, nullable=False),
    sa.Column("generation", sa.Integer(), nullable=False),
    sa.Column("updated_at", Seconds, nullable=False),
    sa.Column("model", sa.String(200)),
)
"""How many new conversations a chat began (``/new``), and the ``model`` that people chose for the present one."""

known_chats = sa.Table(
    "known_chats",
    metadata,
    sa.Column("account", sa.String(100), primary_key=True),
    sa.Column("chat", sa.String(200), primary_key=True),
    sa.Column("tenant", Tenant, nullable=False),
    sa.Column("platform", sa.String(30), nullable=False),
    sa.Column("name", sa.String(100)),
    sa.Column("thread", sa.String(200)),
    sa.Column("is_home", sa.Boolean(), nullable=False, server_default=sa.false()),
    sa.Column("learnt_at", Seconds, nullable=False),
    sa.Index("ix_known_chats_name", "tenant", "platform", "name"),
)
"""Chats by the names that people see (normalised by ``core.chat_names``), and the home channel of each platform, with
its ``thread``."""

chat_people = sa.Table(
    "chat_people",
    metadata,
    sa.Column("account", sa.String(100), primary_key=True),
    sa.Column("tenant", Tenant, primary_key=True),
    sa.Column("person", sa.String(200), primary_key=True),
    sa.Column("role", sa.String(10)),
    sa.Column("salt", sa.String(32)),
    sa.Column("code_hash", sa.String(64)),
    sa.Column("expires_at", Seconds),
    sa.Column("asked_at", Seconds, nullable=False),
    sa.Column("paired_at", Seconds),
    sa.CheckConstraint("(role is null) = (paired_at is null)", name="paired_or_not"),
)
"""People who were given a pairing code, of which only a hash is stored, and people who were admitted with one."""

tool_sources = sa.Table(
    "tool_sources",
    metadata,
    sa.Column("tenant", Tenant, primary_key=True),
    sa.Column("source", sa.String(64), primary_key=True),
    sa.Column("version", sa.Integer(), nullable=False),
    sa.Column("hash", sa.String(64), nullable=False),
    sa.Column("definitions", SealedText("tool_sources.definitions"), nullable=False),
    sa.Column("changed_at", Seconds, nullable=False),
    sa.Column("listed_at", Seconds, nullable=False),
)
"""What a tool source offers, as a worker saw it last. The tenant ``*`` stands for all of them. Sessions store the
definitions that they begin with, so a row may change at any time."""

tenants = sa.Table(
    "tenants",
    metadata,
    sa.Column("name", Tenant, primary_key=True),
    sa.Column("created_at", Seconds, nullable=False),
    sa.Column("disabled_at", Seconds),
)
"""The owners of rows. The tenant ``default`` exists without a row. Nothing new begins for a disabled tenant."""

principals = sa.Table(
    "principals",
    metadata,
    sa.Column("pk", BigId, primary_key=True, autoincrement=True),
    sa.Column("tenant", Tenant, sa.ForeignKey("tenants.name"), nullable=False),
    sa.Column("name", sa.String(100), nullable=False),
    sa.Column("created_at", Seconds, nullable=False),
    sa.UniqueConstraint("tenant", "name"),
)
"""The holders of keys, each a person or a program that acts for a tenant."""

api_keys = sa.Table(
    "api_keys",
    metadata,
    sa.Column("pk", BigId, primary_key=True, autoincrement=True),
    sa.Column("key_id", sa.String(20), nullable=False, unique=True),
    sa.Column("tenant", Tenant, sa.ForeignKey("tenants.name"), nullable=False),
    sa.Column("principal_pk", BigId, sa.ForeignKey("principals.pk"), nullable=False),
    sa.Column("hash", sa.String(64), nullable=False, unique=True, info={"is_secret": True}),
    sa.Column("scopes", sa.String(200), nullable=False),
    sa.Column("created_at", Seconds, nullable=False),
    sa.Column("expires_at", Seconds),
    sa.Column("last_used_at", Seconds),
    sa.Column("revoked_at", Seconds),
    sa.Column("replaced_by", sa.String(20)),
    sa.Index("ix_api_keys_tenant", "tenant"),
)
"""Keys of the API. Only the SHA-256 of a key is kept. ``last_used_at`` is exact to the minute."""

page_logins = sa.Table(
    "page_logins",
    metadata,
    sa.Column("pk", BigId, primary_key=True, autoincrement=True),
    sa.Column("tenant", Tenant, nullable=False),
    sa.Column("hash", sa.String(64), nullable=False, unique=True, info={"is_secret": True}),
    sa.Column("key_id", sa.String(20)),
    sa.Column("holder", sa.String(200)),
    sa.Column("created_at", Seconds, nullable=False),
    sa.Column("expires_at", Seconds, nullable=False),
    sa.CheckConstraint("(key_id is null) <> (holder is null)", name="one_key"),
    sa.Index("ix_page_logins_expires", "expires_at"),
    sa.Index("ix_page_logins_tenant", "tenant"),
)
"""Browsers that were logged in to the page with a key: the one of ``key_id``, or that of the installation, whose holder
is ``holder``. Only the SHA-256 of the browser's token is stored. A login without its key is worthless."""

saved_filters = sa.Table(
    "saved_filters",
    metadata,
    sa.Column("pk", BigId, primary_key=True, autoincrement=True),
    sa.Column("tenant", Tenant, nullable=False),
    sa.Column("holder", sa.String(200), nullable=False),
    sa.Column("name", sa.String(60), nullable=False),
    sa.Column("query", SealedText("saved_filters.query"), nullable=False),
    sa.Column("changed_at", Seconds, nullable=False),
    sa.UniqueConstraint("tenant", "holder", "name"),
)
"""Filters of lists that people saved under names. ``holder`` is the holder of a key, without the key's id."""

configurations = sa.Table(
    "configurations",
    metadata,
    sa.Column("pk", BigId, primary_key=True, autoincrement=True),
    sa.Column("of_tenant", Tenant, nullable=False),
    sa.Column("version", sa.Integer(), nullable=False),
    sa.Column("text", sa.Text(), nullable=False),
    sa.Column("written_by", sa.String(200), nullable=False),
    sa.Column("created_at", Seconds, nullable=False),
    sa.UniqueConstraint("of_tenant", "version"),
)
"""Versions of configurations: a tenant's, or with an empty ``of_tenant`` that of the fleet. A row is never changed; the
oldest of many are deleted. ``text`` is written as in ``config.yaml``, and no secret is accepted."""

mcp_servers = sa.Table(
    "mcp_servers",
    metadata,
    sa.Column("tenant", Tenant, primary_key=True),
    sa.Column("name", sa.String(24), primary_key=True),
    sa.Column("version", sa.Integer(), nullable=False),
    sa.Column("is_process", sa.Boolean(), nullable=False),
    sa.Column("server", SealedText("mcp_servers.server"), nullable=False),
    sa.Column("token", SealedText("mcp_servers.token"), info={"is_secret": True}),
    sa.Column("offered", SealedText("mcp_servers.offered")),
    sa.Column("problem", SealedText("mcp_servers.problem")),
    sa.Column("created_at", Seconds, nullable=False),
    sa.Column("changed_at", Seconds, nullable=False),
    sa.Column("looked_at", Seconds),
    sa.Column("due_at", Seconds, nullable=False),
    sa.Index("ix_mcp_servers_due", "is_process", "due_at"),
)
"""MCP servers of tenants. ``server`` is the address or command with what was approved, as JSON; ``offered`` what it
offered when it was last asked, and ``problem`` why that failed. ``token`` is encrypted: none is accepted while texts
are stored in clear. ``version`` grows with each change by a person, and a poll is about one version."""

memory_versions = sa.Table(
    "memory_versions",
    metadata,
    sa.Column("pk", BigId, primary_key=True, autoincrement=True),
    sa.Column("tenant", Tenant, nullable=False),
    sa.Column("profile", sa.String(60), nullable=False),
    sa.Column("target", sa.String(10), nullable=False),
    sa.Column("entry_id", sa.String(20), nullable=False),
    sa.Column("version", sa.Integer(), nullable=False),
    sa.Column("position", sa.Integer(), nullable=False),
    sa.Column("state", sa.String(10), nullable=False),
    sa.Column("act", sa.String(10), nullable=False),
    sa.Column("content", SealedText("memory_versions.content")),
    sa.Column("author", sa.String(200), nullable=False),
    sa.Column("run_id", sa.String(40)),
    sa.Column("call_key", sa.String(100)),
    sa.Column("ordinal", sa.SmallInteger(), nullable=False, server_default="0"),
    sa.Column("at", Seconds, nullable=False),
    sa.Column("past_at", Seconds),
    sa.Column("redacted_at", Seconds),
    sa.UniqueConstraint("entry_id", "version"),
    sa.UniqueConstraint("tenant", "call_key", "ordinal"),
    sa.CheckConstraint("(state in ('current', 'staged')) = (past_at is null)", name="past_or_not"),
    sa.Index("ix_memory_versions_place", "tenant", "profile", "target", "pk"),
    _build_partial_index("ix_memory_versions_current", "tenant", "profile", "target", where="past_at is null"),
    _build_partial_index("ix_memory_versions_past", "tenant", "past_at", where="past_at is not null"),
    _build_partial_index("ix_memory_versions_run", "run_id", where="run_id is not null"),
    postgresql_with=_OFTEN_UPDATED,
)
"""What agents remember, version by version (``features.memory.rules``). Rows are added; of a row only ``state`` and
``past_at`` change, once, and ``content`` is emptied when it is redacted. A ``current`` row is an entry as it stands;
one that was removed has a last version without content, which is ``past``. A ``staged`` row is a change that waits for
a person: its content is the operations. ``call_key`` is the call that made it, with ``ordinal`` counting its rows, so
that a call that runs again makes nothing twice."""

audit_log = sa.Table(
    "audit_log",
    metadata,
    sa.Column("pk", BigId, primary_key=True, autoincrement=True),
    sa.Column("at", Seconds, nullable=False),
    sa.Column("tenant", Tenant, nullable=False),
    sa.Column("actor", sa.String(200), nullable=False),
    sa.Column("address", sa.String(64)),
    sa.Column("act", sa.String(40), nullable=False),
    sa.Column("subject", sa.String(200), nullable=False),
    sa.Column("facts", sa.Text(), nullable=False),
    sa.Index("ix_audit_log_tenant_pk", "tenant", "pk"),
    sa.Index("ix_audit_log_tenant_at", "tenant", "at"),
    postgresql_with=_OFTEN_ADDED,
    sqlite_autoincrement=True,
)
"""Actions of people (``store.access.audit``). ``facts`` is JSON: ``before`` and ``after``. Triggers refuse changes, and
the deletion of rows younger than thirty days; a number is never given twice."""

tenant_shares = sa.Table(
    "tenant_shares",
    metadata,
    sa.Column("tenant", Tenant, primary_key=True),
    sa.Column("weight", sa.Double(), nullable=False, server_default="1"),
    sa.Column("virtual", sa.Double(), nullable=False, server_default="0"),
    sa.Column("mean", sa.Double()),
    sa.Column("is_busy", sa.SmallInteger(), nullable=False, server_default="0"),
    sa.CheckConstraint("weight > 0", name="weight"),
    postgresql_with={"fillfactor": "50", "autovacuum_vacuum_threshold": "100"},
)
"""What tenants have used of a fleet that they share (``core.fair_share.Account``). The row ``*`` is the fleet's: its
clock and the usual cost of a run. The process that gives places away locks it."""

limits = sa.Table(
    "limits",
    metadata,
    sa.Column("tenant", Tenant, primary_key=True),
    sa.Column("key_id", sa.String(20), primary_key=True),
    sa.Column("name", sa.String(20), primary_key=True),
    sa.Column("value", sa.BigInteger(), nullable=False),
    sa.Column("waits", sa.SmallInteger(), nullable=False, server_default="0"),
    sa.CheckConstraint("value >= 0", name="value"),
)
"""The limits of a tenant, or of one of its API keys (``core.limits``); ``key_id`` is empty for the tenant. ``waits``:
what exceeds the limit is accepted and waits, and is not refused. The tenant ``*`` is the fleet."""

spending = sa.Table(
    "spending",
    metadata,
    sa.Column("tenant", Tenant, primary_key=True),
    sa.Column("key_id", sa.String(20), primary_key=True),
    sa.Column("period", sa.String(10), primary_key=True),
    sa.Column("tokens", sa.BigInteger(), nullable=False, server_default="0"),
    sa.Column("nano_usd", sa.BigInteger(), nullable=False, server_default="0"),
    postgresql_with={"fillfactor": "50", "autovacuum_vacuum_threshold": "100"},
)
"""What ended runs of a tenant, and of each of its API keys, used in a day (``2026-11-23``) and in a month (``2026-11``)
of UTC. Only runs with a place are added."""

submit_rates = sa.Table(
    "submit_rates",
    metadata,
    sa.Column("tenant", Tenant, primary_key=True),
    sa.Column("key_id", sa.String(20), primary_key=True),
    sa.Column("tokens", sa.Double(), nullable=False),
    sa.Column("at", Seconds, nullable=False),
    postgresql_with={"fillfactor": "50", "autovacuum_vacuum_threshold": "100"},
)
"""How many submissions a tenant or a key may still make at once: a token bucket that its limit fills."""

legal_holds = sa.Table(
    "legal_holds",
    metadata,
    sa.Column("pk", BigId, primary_key=True, autoincrement=True),
    sa.Column("tenant", Tenant, nullable=False),
    sa.Column("root_pk", BigId, sa.ForeignKey("runs.pk")),
    sa.Column("session_pk", BigId, sa.ForeignKey("sessions.pk")),
    sa.Column("reason", SealedText("legal_holds.reason"), nullable=False),
    sa.Column("placed_by", sa.String(200), nullable=False),
    sa.Column("placed_at", Seconds, nullable=False),
    sa.CheckConstraint("root_pk is null or session_pk is null", name="one_thing"),
    sa.Index("ix_legal_holds_root_pk", "root_pk"),
    sa.Index("ix_legal_holds_session_pk", "session_pk"),
)
"""What must not be deleted, whatever the rules say: a chain of runs, by its first; a session with all its chains; or,
when neither is named, everything of a tenant. The foreign keys hold even against a defect."""

deleted_runs = sa.Table(
    "deleted_runs",
    metadata,
    sa.Column("run_id", sa.String(40), primary_key=True),
    sa.Column("tenant", Tenant, nullable=False),
    sa.Column("deleted_at", Seconds, nullable=False),
    sa.Column("erasure_pk", BigId),
    sa.Index("ix_deleted_runs_deleted_at", "tenant", "deleted_at"),
)
"""Tombstones: a request for a deleted run is answered that it is gone, and not that it never existed. ``erasure_pk``:
it was erased, and so is the workspace of a session of this id, wherever it is."""

text_keys = sa.Table(
    "text_keys",
    metadata,
    sa.Column("key_id", sa.String(20), primary_key=True),
    sa.Column("first_used_at", Seconds, nullable=False),
    sa.Column("last_used_at", Seconds, nullable=False),
)
"""The keys that texts here are encrypted with, by their ids, and when a process last recorded that it encrypts with
one. A process that lacks one of them does not start. A key that no text needs any more has no row."""

key_states = sa.Table(
    "key_states",
    metadata,
    sa.Column("credential", sa.String(100), primary_key=True),
    sa.Column("provider", sa.String(100), nullable=False),
    sa.Column("condition", sa.String(10), nullable=False),
    sa.Column("epoch", sa.Integer(), nullable=False),
    sa.Column("since", Seconds),
    sa.Column("evidence", sa.Text(), nullable=False),
    sa.Column("probes", sa.Integer(), nullable=False),
    sa.Column("probe_at", Seconds),
    sa.Column("probe_token", sa.String(32)),
    sa.Column("probe_owner", BigId),
    sa.Column("probe_until", Seconds),
    sa.Column("woken_at", Seconds),
    sa.Column("reason", SealedText("key_states.reason")),
    sa.CheckConstraint("condition in ('open', 'no_money', 'refused', 'down')", name="condition"),
    sa.CheckConstraint("(condition = 'open') = (probe_at is null)", name="closed_is_probed"),
    sa.CheckConstraint("(probe_token is null) = (probe_owner is null)", name="probe_is_owned"),
    postgresql_with={"fillfactor": "50", "autovacuum_vacuum_threshold": "100"},
)
"""The states of provider keys that failed at some time (``core.key_states``), by names that reveal nothing about them.
A key that never failed has no row. ``probe_token``: one call is let through to try the key, by a worker
(``probe_owner``), until ``probe_until`` at most. ``woken_at``: a run was woken then to make that call."""

parked_on_keys = sa.Table(
    "parked_on_keys",
    metadata,
    sa.Column("run_pk", BigId, sa.ForeignKey("runs.pk", ondelete="CASCADE"), primary_key=True),
    sa.Column("credential", sa.String(100), primary_key=True),
    sa.Index("ix_parked_on_keys_credential", "credential", "run_pk"),
)
"""The closed keys for which a parked run waits, so that it goes on when one is open. The time until which it is parked
stands in its own row; without a row here it only goes on then."""

alert_targets = sa.Table(
    "alert_targets",
    metadata,
    sa.Column("tenant", Tenant, primary_key=True),
    sa.Column("target", sa.Text(), primary_key=True),
)
"""A tenant's targets for alerts about itself, as in ``deliver``. Those of the installation are a setting."""

alerts = sa.Table(
    "alerts",
    metadata,
    sa.Column("pk", BigId, primary_key=True, autoincrement=True),
    sa.Column("tenant", Tenant, nullable=False),
    sa.Column("kind", sa.String(20), nullable=False),
    sa.Column("subject", sa.String(100), nullable=False),
    sa.Column("epoch", sa.BigInteger(), nullable=False),
    sa.Column("text", SealedText("alerts.text"), nullable=False),
    sa.Column("raised_at", Seconds, nullable=False),
    sa.Column("clear_since", Seconds),
    sa.Column("recovered_at", Seconds),
    sa.UniqueConstraint("tenant", "kind", "subject", "epoch"),
    _build_partial_index("ix_alerts_open", "pk", where="recovered_at is null"),
)
"""Troubles that operators were alerted to (``core.alert_rules``), once for each occurrence (``epoch``), and whether
they were told of its end."""

resources = sa.Table(
    "resources",
    metadata,
    sa.Column("pk", BigId, primary_key=True, autoincrement=True),
    sa.Column("resource_id", sa.String(40), nullable=False, unique=True),
    sa.Column("tenant", Tenant, nullable=False),
    sa.Column("session_pk", BigId, sa.ForeignKey("sessions.pk", ondelete="CASCADE"), nullable=False),
    sa.Column("kind", sa.String(20), nullable=False),
    sa.Column("name", sa.String(100), nullable=False),
    sa.Column("state", sa.String(10), nullable=False),
    sa.Column("host", sa.String(200)),
    sa.Column("endpoint", SealedText("resources.endpoint")),
    sa.Column("lease_token", sa.String(32)),
    sa.Column("expires_at", Seconds),
    sa.Column("use_token", sa.String(32)),
    sa.Column("snapshot_hash", sa.String(64)),
    sa.Column("snapshot", SealedText("resources.snapshot")),
    sa.Column("url", SealedText("resources.url")),
    sa.Column("storage", SealedText("resources.storage")),
    sa.Column("reason", SealedText("resources.reason")),
    sa.Column("created_at", Seconds, nullable=False),
    sa.Column("used_at", Seconds, nullable=False),
    sa.UniqueConstraint("session_pk", "kind", "name"),
    sa.CheckConstraint("kind in ('browser', 'mcp_stdio')", name="kind"),
    sa.CheckConstraint("state in ('wanted', 'starting', 'live', 'ended')", name="state"),
    sa.CheckConstraint("(state in ('starting', 'live')) = (lease_token is not null)", name="hosted_is_leased"),
    sa.CheckConstraint("(lease_token is null) = (expires_at is null)", name="lease_expires"),
    sa.CheckConstraint("(state = 'live') = (endpoint is not null)", name="live_has_endpoint"),
    _build_partial_index("ix_resources_wanted", "kind", "used_at", where="state = 'wanted'"),
    _build_partial_index("ix_resources_hosted", "expires_at", where="expires_at is not null"),
    sa.Index("ix_resources_unused", "kind", "used_at"),
    postgresql_with={"fillfactor": "50", **_OFTEN_UPDATED},
)
"""Leased resources: what must survive a worker and cannot be a row, such as a browser or a process that speaks MCP
(``store.resources``). ``host`` owns the process while its lease holds and is the only one that ends it; ``use_token``
is that of the call that may use it now, and a later call's takes its place. What a session needs to go on without the
process stays when it has ended: where it was, what the model last saw of it, its cookies. ``name`` tells several of a
kind in one session apart."""
