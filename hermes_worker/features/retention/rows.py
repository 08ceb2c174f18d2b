"""Delete what retention rules let go: one pass after another, in small batches, for as long as the caller allows.

Every kind of row is gone through in the order of its end. A batch reads some rows, asks ``features.retention.rules``
what may go, and deletes that in transactions of its own; then the caller may stop. The position of a pass is stored, so
that short looks get through in the end, whatever is held or needed on the way. Any number of processes may do this at
once: they skip rows that another process has locked.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import Any, NamedTuple, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker import installed
from hermes_worker.core.home_paths import strip_said
from hermes_worker.core.principals import DEFAULT_TENANT
from hermes_worker.core.retention_rules import COUNTABLE, RetentionKind, RetentionRule
from hermes_worker.features.retention import deleting_rows as deleting
from hermes_worker.features.retention.fact_rows import (
    find_held_runs,
    is_in_chains,
    is_needed_firing,
    load_chains,
    load_sessions,
)
from hermes_worker.features.retention.hold_rows import Holds, list_tenants, load_holds, load_rules
from hermes_worker.features.retention.rules import compute_cutoff, is_session_expired, may_delete_chain
from hermes_worker.features.retention.tables import retention_marks
from hermes_worker.store.access.audit import Act, record_action
from hermes_worker.store.artifacts.gatherings import delete_artifacts
from hermes_worker.store.engine.database import Database, db_now
from hermes_worker.store.engine.prepared import fetch_row, fetch_rows, select_columns
from hermes_worker.store.rows import build_insert_ignoring
from hermes_worker.store.statistics import count_ended_rows
from hermes_worker.store.tables import (
    RUN_IS_OPEN,
    artifacts,
    audit_log,
    deleted_runs,
    deliveries,
    firings,
    idempotency_keys,
    inbound,
    jobs,
    kept_answers,
    maintenance,
    memory_versions,
    messages,
    runs,
    sessions,
    webhook_events,
)

_TURN = "prune"
_CHAINS_AT_ONCE = 25
_SESSIONS_AT_ONCE = 25
_JOBS_AT_ONCE = 50
_ENDED_AT_ONCE = 25
_ROWS_AT_ONCE = 1_000
LOOK_EVERY_S = 55.0
_LOOK_S = 0.5
_PAUSE_S = 0.01
BLOBS = "blobs"
"""The name in ``Pruned`` for texts without references; there is no rule for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """The result of one batch: what it deleted, or would delete."""

    what: str
    """A ``RetentionKind``, ``blobs``, or the name of the upkeep of a feature."""
    tenant: str
    """Empty for rows that belong to no tenant."""
    count: int
    within: str = ""
    """The kind whose pass the batch belonged to, given with the last result of a batch: a stop after it leaves nothing
    uncounted."""
    is_through: bool = False
    """It was the last batch of that pass."""


@dataclass(frozen=True, slots=True)
class _Mark:
    at: float = 0.0
    pk: int = 0


@dataclass(frozen=True, slots=True)
class _Batch:
    count: int
    """How many rows were deleted, or would be."""
    next: _Mark | None
    """The position at which the pass goes on; ``None`` when it is through."""
    runs: int = 0
    """Runs that were deleted along with the counted rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scope:
    """A tenant, as one pass sees it."""

    tenant: str
    rules: Mapping[RetentionKind, RetentionRule]
    holds: Holds
    now: float
    going: set[int]
    """In a dry run, the chains that would be gone."""
    acts: bool


class _EndedInPass(NamedTuple):
    pk: int
    at: float


class _SettledRow(NamedTuple):
    pk: int
    at: float
    run_pk: int | None


class _FiredRow(NamedTuple):
    pk: int
    run_pk: int | None


class _PlaceInPass(NamedTuple):
    at: float
    pk: int


class _KnownSession(NamedTuple):
    pk: int
    session_id: str


class _HasEnd(Protocol):
    @property
    def pk(self) -> int: ...

    @property
    def at(self) -> float: ...


_Row = TypeVar("_Row", _EndedInPass, _SettledRow)
_Step = Callable[[_Scope, float | None, _Mark], _Batch]


def _find_start(after: Pruned, named: Sequence[str]) -> int:
    """The index of the tenant at which a caller stopped; after all of them for rows without a tenant, which come
    last."""
    if not after.tenant:
        return len(named)
    return named.index(after.tenant) if after.tenant in named else 0


def record_prune(database: Database, tenant: str | None) -> None:
    """Record in the audit log that a person started a deletion by rules, for a tenant or, with ``None``, for all."""
    with database.write() as connection:
        record_action(connection, Act.PRUNE, tenant or "all", tenant=tenant or DEFAULT_TENANT)


class Pruner:
    """Deletes what the rules let go. Thread-safe."""

    def __init__(self, database: Database, defaults: Mapping[RetentionKind, RetentionRule]) -> None:
        """``defaults`` hold for tenants without a rule of their own."""
        self._database = database
        self._defaults = defaults
        self._looks = 0
        self._steps: Mapping[RetentionKind, _Step] = {
            RetentionKind.IDEMPOTENCY_KEYS: self._prune_requests,
            RetentionKind.WEBHOOK_EVENTS: partial(self._prune_rows, webhook_events, webhook_events.c.received_at),
            RetentionKind.TOMBSTONES: partial(self._prune_rows, deleted_runs, deleted_runs.c.deleted_at),
            RetentionKind.DELIVERIES: self._prune_deliveries,
            RetentionKind.FIRINGS: self._prune_firings,
            RetentionKind.ARTIFACTS: self._prune_artifacts,
            RetentionKind.EVENTS: self._prune_events,
            RetentionKind.RUNS: self._prune_runs,
            RetentionKind.TRANSCRIPTS: self._prune_transcripts,
            RetentionKind.MEMORY: partial(self._prune_rows, memory_versions, memory_versions.c.past_at),
            RetentionKind.INBOUND: partial(self._prune_rows, inbound, inbound.c.received_at),
            RetentionKind.AUDIT: partial(self._prune_rows, audit_log, audit_log.c.at),
        }

    def claim_interval(self, interval_s: float) -> bool:
        """Claim this interval. Of many processes that ask, one gets True and is to look."""
        with self._database.write() as connection:
            fresh = {"name": _TURN, "ran_at": 0.0}
            connection.execute(build_insert_ignoring(connection, maintenance), fresh)
            due = sa.and_(maintenance.c.name == _TURN, maintenance.c.ran_at <= db_now() - interval_s)
            return connection.execute(sa.update(maintenance).where(due).values(ran_at=db_now())).rowcount == 1

    def prune_once(self, seconds: float = _LOOK_S) -> Counter[str] | None:
        """Delete for up to ``seconds``, if it is time for that. Returns how many rows were deleted, by kind; ``None``
        when another process did it in this interval. There is a pause after each batch, for other writers."""
        if not self.claim_interval(LOOK_EVERY_S):
            return None
        ends_at = time.monotonic() + seconds
        deleted: Counter[str] = Counter()
        for batch in self.prune_stepwise():
            deleted[batch.what] += batch.count
            if time.monotonic() > ends_at:
                break
            if batch.count:
                time.sleep(_PAUSE_S)
        return deleted

    def prune_stepwise(
        self, *, tenant: str | None = None, acts: bool = True, after: Pruned | None = None
    ) -> Iterator[Pruned]:
        """Delete batch after batch, until everything is gone that may go; the caller may stop between two of them. For
        one ``tenant``, or all. Without ``acts`` nothing is deleted, and every batch says what would be. To go on where
        a caller stopped, pass the last batch as ``after``."""
        self._looks += 1
        with self._database.read() as connection:
            named = list_tenants(connection) if tenant is None else [tenant]
        count_ended_rows(self._database)  # statistics count rows before they are deleted
        first = self._looks % len(named)
        # Looks start at different tenants: one that runs out of time does not always skip the same tenants.
        order = [*named[first:], *named[:first]] if after is None else named[_find_start(after, named) :]
        for each in order:
            scope = self._build_scope(each, acts)
            for kind in self._list_remaining_kinds(each, after):
                for batch in self._run_pass(scope, kind):
                    if batch.runs:
                        yield Pruned(what=RetentionKind.RUNS.value, tenant=each, count=batch.runs)
                    is_through = batch.next is None
                    yield Pruned(
                        what=kind.value, tenant=each, count=batch.count, within=kind.value, is_through=is_through
                    )
        yield from self._prune_blobs(acts)
        for what, prune_rows in installed.list_upkeep("prune_rows"):
            if unused := prune_rows(self._database, acts=acts):
                yield Pruned(what=what, tenant="", count=unused)

    def _list_remaining_kinds(self, tenant: str, after: Pruned | None) -> Sequence[RetentionKind]:
        """List the kinds of a tenant that are not through yet."""
        kinds = list(self._steps)
        if after is None or after.tenant != tenant or after.within not in kinds:
            return kinds
        return kinds[kinds.index(RetentionKind(after.within)) + after.is_through :]

    def load_rules(self, tenant: str) -> dict[RetentionKind, RetentionRule]:
        """Load the rules of a tenant."""
        with self._database.read() as connection:
            return load_rules(connection, tenant, self._defaults)

    def list_tenants(self) -> list[str]:
        """List the names of all tenants."""
        with self._database.read() as connection:
            return list_tenants(connection)

    def find_expired_workspaces(self, tenant: str, session_ids: Collection[str]) -> set[str]:
        """Find the sessions among ``session_ids`` whose own workspace may be deleted: quiet for as long as the rule
        says, or deleted. Sessions that this database never knew are left out. Workspaces of erased sessions may go
        against any rule, except those in which a kept fork works."""
        with self._database.read() as connection:
            forks = self._load_fork_workspaces(connection, tenant)
        erased = self._find_erased(tenant, session_ids) - set(forks.values())
        rule = self.load_rules(tenant)[RetentionKind.WORKSPACES]
        if rule.age_s is None:
            return erased
        quiet_before = self._database.read_clock() - rule.age_s
        with self._database.read() as connection:
            holds = load_holds(connection, tenant)
            ours = sa.and_(sessions.c.tenant == tenant, sessions.c.session_id.in_(session_ids))
            wanted = sa.select(*select_columns(sessions, _KnownSession)).where(ours)
            known = {row.pk: row.session_id for row in fetch_rows(connection.execute(wanted), _KnownSession)}
            facts = load_sessions(connection, sorted(known), holds)
            # A session has the id of the run that opened it.
            gone = sa.and_(deleted_runs.c.tenant == tenant, deleted_runs.c.run_id.in_(session_ids))
            deleted = set(connection.execute(sa.select(deleted_runs.c.run_id).where(gone)).scalars())
            quiet = {
                each.session_pk
                for each in load_sessions(connection, sorted(forks), holds)
                if is_session_expired(each, quiet_before)
            }
            shared = {name for pk, name in forks.items() if pk not in quiet}
        if holds.is_whole:
            return erased
        over = {known[each.session_pk] for each in facts if is_session_expired(each, quiet_before)}
        return ((over | deleted - set(known.values())) - shared) | erased

    def find_idle_workspaces(self, session_ids: Collection[str], idle_s: float) -> set[str]:
        """Find the sessions among ``session_ids``, of any tenant, whose workspace was not used for ``idle_s`` seconds
        and is not in use: neither the session nor a child or a fork that works in it has an open run."""
        before = self._database.read_clock() - idle_s
        return {
            name for name, (at_work, since) in self._load_uses(session_ids).items() if not at_work and since < before
        }

    def load_workspace_states(self, session_ids: Collection[str]) -> dict[str, str]:
        """Load for each of these sessions that exists whether its workspace is ``at work`` or ``quiet``."""
        return {name: "at work" if busy else "quiet" for name, (busy, _) in self._load_uses(session_ids).items()}

    def _load_uses(self, session_ids: Collection[str]) -> dict[str, tuple[bool, float]]:
        """Load whether the workspace of each session is in use, and since when its own session is quiet."""
        last_message = (
            sa.select(messages.c.created_at)
            .where(messages.c.session_pk == sessions.c.pk, messages.c.seq == sessions.c.message_seq)
            .scalar_subquery()
        )
        since = sa.func.coalesce(last_message, sessions.c.created_at)
        wanted = sa.select(sessions.c.session_id, sessions.c.workspace, since)
        at_work = (
            sa.select(sessions.c.workspace).join(runs, runs.c.session_pk == sessions.c.pk).where(RUN_IS_OPEN).distinct()
        )
        with self._database.read() as connection:
            # Read the sessions before the open runs: a run that begins in between is then among the open ones.
            found = connection.execute(wanted.where(sessions.c.session_id.in_(session_ids))).all()
            busy = set(map(strip_said, connection.execute(at_work).scalars()))
        return {name: (strip_said(workspace) in busy, float(quiet)) for name, workspace, quiet in found}

    def _load_fork_workspaces(self, connection: Connection, tenant: str) -> dict[int, str]:
        """Load the names of the directories in which forks work, by the row ids of the forks: the directories were made
        for other sessions."""
        forked = sa.and_(sessions.c.tenant == tenant, sessions.c.forked_from.is_not(None))
        wanted = sa.select(sessions.c.pk, sessions.c.workspace).where(forked)
        found = {int(pk): str(json.loads(text).get("root", "")) for pk, text in connection.execute(wanted)}
        return {pk: PurePosixPath(root).name for pk, root in found.items()}

    def has_erased(self, tenant: str) -> bool:
        """Whether something of a tenant was erased of which another machine may have files."""
        is_erased = sa.exists().where(deleted_runs.c.tenant == tenant, deleted_runs.c.erasure_pk.is_not(None))
        return bool(self._database.select(sa.select(is_erased)).scalar_one())

    def may_remove_workspaces(self, tenant: str) -> bool:
        """Whether there may be workspaces of a tenant that can go: a rule ends them, or something was erased."""
        return self.load_rules(tenant)[RetentionKind.WORKSPACES].age_s is not None or self.has_erased(tenant)

    def _find_erased(self, tenant: str, session_ids: Collection[str]) -> set[str]:
        ours = sa.and_(deleted_runs.c.tenant == tenant, deleted_runs.c.erasure_pk.is_not(None))
        wanted = sa.select(deleted_runs.c.run_id).where(ours, deleted_runs.c.run_id.in_(session_ids))
        return set(self._database.select(wanted).scalars())

    def _build_scope(self, tenant: str, acts: bool) -> _Scope:
        now = self._database.read_clock()
        with self._database.read() as connection:
            rules, holds = load_rules(connection, tenant, self._defaults), load_holds(connection, tenant)
        return _Scope(tenant=tenant, rules=rules, holds=holds, now=now, going=set(), acts=acts)

    def _run_pass(self, scope: _Scope, kind: RetentionKind) -> Iterator[_Batch]:
        """Yield the batches of one kind, from where the last pass stopped to the end; a dry run begins at the
        beginning."""
        rule = scope.rules[kind]
        if scope.holds.is_whole or rule.is_for_ever:
            return
        cut = compute_cutoff(rule, scope.now, self._find_newest_beyond(scope.tenant, kind, rule))
        if cut is None and kind is not RetentionKind.FIRINGS:
            return
        mark = self._load_mark(scope.tenant, kind) if scope.acts else _Mark()
        while True:
            batch = self._steps[kind](scope, cut, mark)
            # The pass of the events never has to begin again; the other passes may keep rows that can be deleted later.
            resting = mark if kind is RetentionKind.EVENTS else _Mark()
            if scope.acts and (batch.next or resting) != mark:
                self._set_mark(scope.tenant, kind, batch.next or resting)
            yield batch
            if batch.next is None:
                return
            mark = batch.next

    def _find_newest_beyond(self, tenant: str, kind: RetentionKind, rule: RetentionRule) -> float | None:
        """Find the end of the newest row that exceeds a rule's count. For firings the count is per job."""
        if rule.count is None or kind not in COUNTABLE or kind is RetentionKind.FIRINGS:
            return None
        at = deliveries.c.settled_at if kind is RetentionKind.DELIVERIES else runs.c.finished_at
        is_root = sa.true() if kind is RetentionKind.DELIVERIES else runs.c.root_pk.is_(None)
        ordered = sa.select(at).where(at.table.c.tenant == tenant, at.is_not(None), is_root).order_by(at.desc())
        found = self._database.select(ordered.offset(rule.count).limit(1)).scalar()
        return None if found is None else float(found)

    # --- kinds of rows ---

    def _prune_rows(
        self, table: sa.Table, at: sa.Column[float], scope: _Scope, cut: float | None, mark: _Mark
    ) -> _Batch:
        """Delete rows to which nothing refers, and that no hold keeps."""
        old = sa.and_(table.c.tenant == scope.tenant, at < cut)
        if not scope.acts:
            counted = sa.select(sa.func.count()).select_from(table).where(old)
            return _Batch(int(self._database.select(counted).scalar_one()), None)
        keys = list(table.primary_key.columns)
        some = sa.select(*keys).where(old).order_by(at).limit(_ROWS_AT_ONCE).with_for_update(skip_locked=True)
        deleted = self._database.execute(sa.delete(table).where(sa.tuple_(*keys).in_(some)))
        return _Batch(deleted, mark if deleted == _ROWS_AT_ONCE else None)

    def _prune_requests(self, scope: _Scope, cut: float | None, mark: _Mark) -> _Batch:
        """Delete records of requests: idempotency keys, and stored answers."""
        tables = (idempotency_keys, kept_answers)
        batches = [self._prune_rows(table, table.c.created_at, scope, cut, mark) for table in tables]
        later = mark if any(batch.next is not None for batch in batches) else None
        return _Batch(sum(batch.count for batch in batches), later)

    def _prune_deliveries(self, scope: _Scope, cut: float | None, mark: _Mark) -> _Batch:
        at = deliveries.c.settled_at
        old = sa.select(deliveries.c.pk, at.label("at"), deliveries.c.run_pk).where(deliveries.c.is_counted == 1)
        rows = self._load_page(_SettledRow, old, at, scope, cut, mark, _ROWS_AT_ONCE)
        with self._database.read() as connection:
            held = find_held_runs(
                connection, sorted({row.run_pk for row in rows if row.run_pk is not None}), scope.holds
            )
        going = [row.pk for row in rows if row.run_pk not in held]
        if scope.acts and going:
            # A delivery that was meanwhile queued again is no longer settled, and is not deleted.
            gone = sa.delete(deliveries).where(
                deliveries.c.pk.in_(going), at.is_not(None), deliveries.c.is_counted == 1
            )
            return _Batch(self._database.execute(gone), _find_next_mark(rows, _ROWS_AT_ONCE))
        return _Batch(len(going), _find_next_mark(rows, _ROWS_AT_ONCE))

    def _prune_artifacts(self, scope: _Scope, cut: float | None, mark: _Mark) -> _Batch:
        """Delete artifacts, by when they were kept; their contents follow when nothing else refers to them."""
        at = artifacts.c.created_at
        kept = sa.select(artifacts.c.pk, at.label("at"), artifacts.c.run_pk)
        rows = self._load_page(_SettledRow, kept, at, scope, cut, mark, _ROWS_AT_ONCE)
        with self._database.read() as connection:
            held = find_held_runs(
                connection, sorted({row.run_pk for row in rows if row.run_pk is not None}), scope.holds
            )
        going = [row.pk for row in rows if row.run_pk not in held]
        if scope.acts and going:
            with self._database.write() as connection:
                count = delete_artifacts(connection, artifacts.c.pk.in_(going))
            return _Batch(count, _find_next_mark(rows, _ROWS_AT_ONCE))
        return _Batch(len(going), _find_next_mark(rows, _ROWS_AT_ONCE))

    def _prune_events(self, scope: _Scope, cut: float | None, mark: _Mark) -> _Batch:
        ended = sa.select(runs.c.pk, runs.c.finished_at.label("at"))
        rows = self._load_page(_EndedInPass, ended, runs.c.finished_at, scope, cut, mark, _ENDED_AT_ONCE)
        with self._database.read() as connection:
            held = find_held_runs(connection, [row.pk for row in rows], scope.holds)
            going = [row.pk for row in rows if row.pk not in held]
            count = int(connection.execute(deleting.select_old_events(going)).scalar_one()) if going else 0
        if scope.acts and count:
            with self._database.write() as connection:
                count = deleting.delete_events(connection, going)
        return _Batch(count, _find_next_mark(rows, _ENDED_AT_ONCE))

    def _prune_firings(self, scope: _Scope, cut: float | None, mark: _Mark) -> _Batch:
        """Delete the firings of some jobs that the job does not read any more and whose run is not held."""
        wanted = sa.select(jobs.c.pk).where(jobs.c.tenant == scope.tenant, jobs.c.pk > mark.pk).order_by(jobs.c.pk)
        found = self._database.select(wanted.limit(_JOBS_AT_ONCE)).scalars().all()
        count = sum(self._prune_firings_of(scope, job_pk, cut) for job_pk in found)
        return _Batch(count, _Mark(0.0, found[-1]) if len(found) == _JOBS_AT_ONCE else None)

    def _prune_firings_of(self, scope: _Scope, job_pk: int, cut: float | None) -> int:
        of_job = firings.c.job_pk == job_pk
        kept = scope.rules[RetentionKind.FIRINGS].count
        with self._database.read() as connection:
            if kept is not None:
                newest = sa.select(firings.c.settled_at).where(of_job).order_by(firings.c.slot.desc())
                beyond = connection.execute(newest.offset(kept).limit(1)).scalar()
                cut = compute_cutoff(scope.rules[RetentionKind.FIRINGS], scope.now, beyond)
            if cut is None:
                return 0
            old = sa.and_(of_job, firings.c.settled_at < cut, sa.not_(is_needed_firing()))
            wanted = sa.select(*select_columns(firings, _FiredRow)).where(old).order_by(firings.c.slot)
            rows = fetch_rows(connection.execute(wanted.limit(_ROWS_AT_ONCE)), _FiredRow)
            held = find_held_runs(connection, [row.run_pk for row in rows if row.run_pk is not None], scope.holds)
        going = [row.pk for row in rows if row.run_pk not in held]
        if not scope.acts or not going:
            return len(going)
        return self._database.execute(sa.delete(firings).where(firings.c.pk.in_(going), old))

    def _prune_runs(self, scope: _Scope, cut: float | None, mark: _Mark) -> _Batch:
        ended = sa.select(runs.c.pk, runs.c.finished_at.label("at")).where(runs.c.root_pk.is_(None))
        rows = self._load_page(_EndedInPass, ended, runs.c.finished_at, scope, cut, mark, _CHAINS_AT_ONCE)
        count = self._delete_chains(scope, [row.pk for row in rows], cut, frozenset())
        return _Batch(count, _find_next_mark(rows, _CHAINS_AT_ONCE))

    def _delete_chains(self, scope: _Scope, roots: Sequence[int], cut: float | None, over: frozenset[int]) -> int:
        """Delete the chains among ``roots`` that may go. Returns how many runs were deleted. ``over`` are sessions that
        are deleted as well."""

        keys_before = compute_cutoff(scope.rules[RetentionKind.IDEMPOTENCY_KEYS], scope.now, None)

        def list_going(connection: Connection, wanted: Sequence[int]) -> list[int]:
            found = load_chains(connection, wanted, load_holds(connection, scope.tenant), keys_before=keys_before)
            return [each.root_pk for each in found if may_delete_chain(each, cut, over, scope.now)]

        with self._database.read() as connection:
            chosen = [root for root in list_going(connection, roots) if root not in scope.going]
            if not scope.acts:
                scope.going.update(chosen)
                wanted = sa.select(sa.func.count()).where(is_in_chains(chosen))
                return int(connection.execute(wanted).scalar_one()) if chosen else 0

        def may_go(root: int, connection: Connection) -> bool:
            return list_going(connection, [root]) == [root]

        return sum(deleting.delete_chain(self._database, root, partial(may_go, root)) for root in chosen)

    def _prune_transcripts(self, scope: _Scope, cut: float | None, mark: _Mark) -> _Batch:
        """Delete quiet sessions, each after its chains."""
        old = sa.and_(sessions.c.tenant == scope.tenant, sessions.c.created_at < cut, sessions.c.pk > mark.pk)
        wanted = sa.select(sessions.c.pk).where(old).order_by(sessions.c.pk).limit(_SESSIONS_AT_ONCE)

        def list_over(connection: Connection, wanted: Sequence[int]) -> set[int]:
            found = load_sessions(connection, wanted, load_holds(connection, scope.tenant))
            return {each.session_pk for each in found if is_session_expired(each, cut)}

        with self._database.read() as connection:
            page = connection.execute(wanted).scalars().all()
            facts = [each for each in load_sessions(connection, page, scope.holds) if is_session_expired(each, cut)]
            roots = sorted({root for each in facts for root in each.runs})
            others = {pk for each in load_chains(connection, roots, scope.holds) for pk in each.sessions}
            quiet = frozenset(list_over(connection, sorted(others)))
        gone = self._delete_chains(scope, roots, None, quiet)

        def may_go(pk: int, connection: Connection) -> bool:
            return list_over(connection, [pk]) == {pk}

        if scope.acts:
            free = [each.session_pk for each in facts]
            count = sum(deleting.delete_session(self._database, pk, partial(may_go, pk)) for pk in free)
        else:
            count = sum(each.runs <= scope.going for each in facts)
        return _Batch(count, _Mark(0.0, page[-1]) if len(page) == _SESSIONS_AT_ONCE else None, gone)

    def _prune_blobs(self, acts: bool) -> Iterator[Pruned]:
        if not acts:
            with self._database.read() as connection:
                yield Pruned(what=BLOBS, tenant="", count=deleting.count_unused_blobs(connection))
            return
        while True:
            seen, deleted = deleting.delete_blobs(self._database, _ROWS_AT_ONCE // 10)
            if seen == 0:
                return
            yield Pruned(what=BLOBS, tenant="", count=deleted)

    # --- where a pass stands ---

    def _load_page(
        self,
        row: type[_Row],
        wanted: sa.Select[Any],
        at: sa.Column[Any],
        scope: _Scope,
        cut: float | None,
        mark: _Mark,
        most: int,
    ) -> list[_Row]:
        """Load the next rows of the table of ``at`` that ended before ``cut``, by their end."""
        table = at.table
        old = sa.and_(table.c.tenant == scope.tenant, at.is_not(None), at < cut)
        beyond = sa.tuple_(at, table.c.pk) > sa.tuple_(sa.literal(mark.at, sa.Double()), sa.literal(mark.pk))
        return fetch_rows(self._database.select(wanted.where(old, beyond).order_by(at, table.c.pk).limit(most)), row)

    def _load_mark(self, tenant: str, kind: RetentionKind) -> _Mark:
        this = (retention_marks.c.tenant == tenant) & (retention_marks.c.kind == kind.value)
        place = sa.select(*select_columns(retention_marks, _PlaceInPass)).where(this)
        row = fetch_row(self._database.select(place), _PlaceInPass)
        return _Mark() if row is None else _Mark(float(row.at), int(row.pk))

    def _set_mark(self, tenant: str, kind: RetentionKind, mark: _Mark) -> None:
        this = (retention_marks.c.tenant == tenant) & (retention_marks.c.kind == kind.value)
        values = {"tenant": tenant, "kind": kind.value, "at": mark.at, "pk": mark.pk}
        with self._database.write() as connection:
            if connection.execute(sa.update(retention_marks).where(this).values(at=mark.at, pk=mark.pk)).rowcount == 0:
                connection.execute(build_insert_ignoring(connection, retention_marks), values)


def _find_next_mark(rows: Sequence[_HasEnd], most: int) -> _Mark | None:
    """The position at which the pass goes on after a page of at most ``most`` rows; ``None`` at the end."""
    return _Mark(float(rows[-1].at), int(rows[-1].pk)) if len(rows) == most else None
