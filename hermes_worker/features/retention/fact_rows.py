"""Load what the deletion of chains and sessions depends on, in a few statements for many of them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.features.retention.hold_rows import Holds
from hermes_worker.features.retention.rules import USED_BY_JOBS_S, ChainFacts, SessionFacts
from hermes_worker.store.engine.database import select_db_now
from hermes_worker.store.engine.prepared import fetch_rows
from hermes_worker.store.engine.sealing import may_contain
from hermes_worker.store.tables import deliveries, firings, idempotency_keys, jobs, messages, runs, sessions


class _Member(NamedTuple):
    pk: int
    root: int
    session_pk: int
    exit_reason: str | None
    finished_at: float | None
    is_counted: int


class _RootRow(NamedTuple):
    pk: int
    root: int


class _QuietSession(NamedTuple):
    pk: int
    session_id: str
    tenant: str
    is_at_work: bool
    quiet_since: float


class _WithinRow(NamedTuple):
    session_pk: int
    root: int


_root = sa.func.coalesce(runs.c.root_pk, runs.c.pk).label("root")
_later = firings.alias("later")
_later_runs = runs.alias("later_runs")
_has_answered_later = sa.exists().where(
    _later.c.job_pk == firings.c.job_pk,
    _later.c.slot > firings.c.slot,
    sa.or_(
        sa.and_(_later.c.run_pk.is_(None), _later.c.execution == "completed"),
        sa.exists().where(
            _later_runs.c.pk == _later.c.run_pk,
            _later_runs.c.status == "completed",
            _later_runs.c.output_seq.is_not(None),
        ),
    ),
)
_has_started = sa.or_(firings.c.run_pk.is_not(None), firings.c.execution.is_not(None))
_is_removed = sa.exists().where(jobs.c.pk == firings.c.job_pk, jobs.c.removed_at.is_not(None))


def is_needed_firing() -> sa.ColumnElement[bool]:
    """Condition that a firing is still needed: its end is not counted, its note is not written, the day of its budget
    is not over, no later firing has an answer for the jobs that continue from it, or the statistics do not hold it
    yet."""
    newest = sa.select(sa.func.max(firings.c.pk)).scalar_subquery()
    return sa.or_(
        sa.and_(firings.c.ended_at.is_(None), _has_started),
        firings.c.owes_note,
        firings.c.is_counted == 0,
        firings.c.settled_at >= select_db_now() - USED_BY_JOBS_S,
        # SQLite reuses the number of the last row if that is deleted, and messages contain these numbers.
        firings.c.pk == newest,
        sa.and_(_has_started, sa.not_(_has_answered_later), sa.not_(_is_removed)),
    )


def is_in_chains(roots: Sequence[int]) -> sa.ColumnElement[bool]:
    """Condition for the runs of these chains, spelled as in the index ``ix_runs_tree``."""
    return sa.or_(runs.c.pk.in_(roots), sa.and_(runs.c.root_pk.is_not(None), runs.c.root_pk.in_(roots)))


def load_chains(
    connection: Connection, roots: Sequence[int], holds: Holds, *, keys_before: float | None = None
) -> list[ChainFacts]:
    """Load the facts about chains, in the order of ``roots``; chains that are gone are left out. Idempotency keys from
    before ``keys_before`` (epoch seconds) keep nothing: they are deleted themselves."""
    if not roots:
        return []
    found: dict[int, list[_Member]] = defaultdict(list)
    columns = (runs.c.pk, _root, runs.c.session_pk, runs.c.exit_reason, runs.c.finished_at, runs.c.is_counted)
    for row in fetch_rows(connection.execute(sa.select(*columns).where(is_in_chains(roots))), _Member):
        found[row.root].append(row)
    needed = _find_needed_roots(connection, roots, keys_before)
    last = connection.execute(sa.select(sa.func.max(runs.c.pk))).scalar()
    return [_build_chain_facts(root, found[root], holds, needed, last) for root in roots if root in found]


def _build_chain_facts(
    root: int, rows: Sequence[_Member], holds: Holds, needed: set[int], last: int | None
) -> ChainFacts:
    ends = [row.finished_at for row in rows if row.finished_at is not None]
    within = frozenset(row.session_pk for row in rows)
    return ChainFacts(
        root_pk=root,
        open_runs=sum(row.exit_reason is None for row in rows),
        ended_at=max(ends, default=None),
        sessions=within,
        is_held=holds.is_whole or root in holds.roots or bool(within & holds.sessions),
        # The newest row stays, because SQLite would reuse its number; rows stay until statistics counted them.
        is_needed=root in needed or any(row.pk == last or not row.is_counted for row in rows),
    )


def _find_needed_roots(connection: Connection, roots: Sequence[int], keys_before: float | None) -> set[int]:
    owed = sa.select(_root).join(deliveries, deliveries.c.run_pk == runs.c.pk)
    keyed = sa.select(_root).join(idempotency_keys, idempotency_keys.c.run_pk == runs.c.pk)
    read = sa.select(_root).join(firings, firings.c.run_pk == runs.c.pk)
    every = sa.union(
        owed.where(is_in_chains(roots), sa.or_(deliveries.c.settled_at.is_(None), deliveries.c.is_counted == 0)),
        keyed.where(is_in_chains(roots), idempotency_keys.c.created_at >= (keys_before or 0.0)),
        read.where(is_in_chains(roots), is_needed_firing()),
    )
    return set(connection.execute(every).scalars())


def find_held_runs(connection: Connection, run_pks: Sequence[int], holds: Holds) -> set[int]:
    """Find the runs among ``run_pks`` that belong to a chain under a legal hold."""
    if not run_pks or not (holds.roots or holds.sessions):
        return set(run_pks) if holds.is_whole else set()
    wanted = sa.select(runs.c.pk, _root).where(runs.c.pk.in_(run_pks))
    roots = {row.pk: row.root for row in fetch_rows(connection.execute(wanted), _RootRow)}
    held = {facts.root_pk for facts in load_chains(connection, sorted(set(roots.values())), holds) if facts.is_held}
    return {pk for pk, root in roots.items() if root in held}


def load_sessions(connection: Connection, session_pks: Sequence[int], holds: Holds) -> list[SessionFacts]:
    """Load the facts about sessions, in the order of their row ids; sessions that are gone are left out."""
    if not session_pks:
        return []
    last_message = (
        sa.select(messages.c.created_at)
        .where(messages.c.session_pk == sessions.c.pk, messages.c.seq == sessions.c.message_seq)
        .scalar_subquery()
    )
    is_open = sa.exists().where(runs.c.session_pk == sessions.c.pk, runs.c.exit_reason.is_(None))
    wanted = sa.select(
        sessions.c.pk,
        sessions.c.session_id,
        sessions.c.tenant,
        sa.or_(sessions.c.active_run_pk.is_not(None), is_open).label("is_at_work"),
        sa.func.coalesce(last_message, sessions.c.created_at).label("quiet_since"),
    )
    wanted = wanted.where(sessions.c.pk.in_(session_pks)).order_by(sessions.c.pk)
    rows = fetch_rows(connection.execute(wanted), _QuietSession)
    roots: dict[int, set[int]] = defaultdict(set)
    within = sa.select(runs.c.session_pk, _root).where(runs.c.session_pk.in_(session_pks)).distinct()
    for each in fetch_rows(connection.execute(within), _WithinRow):
        roots[each.session_pk].add(each.root)
    attached = {tenant: _find_attached(connection, tenant) for tenant in {row.tenant for row in rows}}
    last = connection.execute(sa.select(sa.func.max(sessions.c.pk))).scalar()
    return [
        SessionFacts(
            session_pk=row.pk,
            is_at_work=bool(row.is_at_work),
            runs=frozenset(roots[row.pk]),
            quiet_since=float(row.quiet_since),
            is_held=holds.is_whole or row.pk in holds.sessions or bool(roots[row.pk] & holds.roots),
            is_needed=row.session_id in attached[row.tenant] or row.pk == last,
        )
        for row in rows
    ]


def _find_attached(connection: Connection, tenant: str) -> set[str]:
    """Find the sessions into which jobs of a tenant write their answers."""
    definitions = sa.select(jobs.c.definition).where(
        jobs.c.tenant == tenant, jobs.c.removed_at.is_(None), may_contain(jobs.c.definition, "%attach_to%")
    )
    named = (json.loads(text).get("attach_to") for text in connection.execute(definitions).scalars())
    return {str(name) for name in named if name}
