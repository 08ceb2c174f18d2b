"""The erasure of a person, a session or a tenant: marked first, then deleted in small transactions, then receipted.

Theory of operation. ``begin`` writes the row that says what the erasure is about, and marks the sessions: from then on
nothing begins there. The caller stops what is at work. ``delete_stepwise`` deletes chains and sessions as retention
does (``features.retention.deleting_rows``), each under its lock and only while no hold keeps it; strips what has to
stay; and ``finish`` ends with a receipt, which replaces the plan. It may be interrupted anywhere and called again: what
is gone is not found again, and the row is there until the receipt is.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.errors import HermesError
from hermes_worker.core.run_events import RunEventName
from hermes_worker.features.retention import deleting_rows as deleting
from hermes_worker.features.retention.erasure_rules import (
    ErasureReceipt,
    Person,
    create_receipt_id,
    hash_subject,
    parse_receipt,
    remove_author,
)
from hermes_worker.features.retention.export_rows import count_rows
from hermes_worker.features.retention.fact_rows import is_in_chains, load_chains, load_sessions
from hermes_worker.features.retention.hold_rows import load_holds
from hermes_worker.features.retention.selection_rows import (
    SelectedRows,
    build_answer_conditions,
    build_filter_conditions,
    build_memory_conditions,
    build_upload_condition,
    find_person_again,
    list_runs,
    list_tenant_tables,
    select_rows,
    split_into_parts,
)
from hermes_worker.features.retention.tables import erasures
from hermes_worker.store.access.audit import Act, record_action
from hermes_worker.store.artifacts.gatherings import delete_artifacts
from hermes_worker.store.engine.database import RowStore, db_now
from hermes_worker.store.engine.prepared import fetch_one, fetch_rows, select_columns
from hermes_worker.store.rows import build_insert_ignoring, store_blob
from hermes_worker.store.search.indexing import merge_deleted
from hermes_worker.store.statistics import count_ended_rows
from hermes_worker.store.tables import (
    api_keys,
    dead_targets,
    deleted_runs,
    deliveries,
    events,
    firings,
    jobs,
    kept_answers,
    legal_holds,
    memory_versions,
    page_logins,
    principals,
    runs,
    saved_filters,
    sessions,
    tenants,
    waits,
)

_NOBODY = "-"
"""The tenant of rows that only reserve row ids. No tenant can have this name."""
_PATIENCE_S = 60.0
"""Seconds that transactions from before the deletion may take to end."""
_LOOK_EVERY_S = 0.1
_EVENTS_AT_ONCE = 1_000
_LOG_WAIT_S = 1.0
"""Seconds to wait for readers of SQLite's log. Writers wait meanwhile."""
_WORDS_S = 5.0
"""Seconds for rewriting SQLite's index of words; what is left then is done by workers."""
IN_THE_LOG: Final = (
    "the write-ahead log of the database, which somebody was reading: it holds what was erased until that reader ends "
    "and a worker empties the log, which is tried once a minute"
)


class ErasureHeld(HermesError):
    """A legal hold keeps some of it."""


class RunsAtWork(HermesError):
    """Runs have not ended, so what they write could not be erased."""


class SharedWithOthers(HermesError):
    """Other principals submitted runs in the same sessions."""


class ErasureNotFound(HermesError):
    """There is no erasure with this receipt."""


class NotYetErased(HermesError):
    """Another transaction still holds some rows; when it is called again, the erasure goes on where it stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasurePreview:
    """The preview of an erasure."""

    selected: SelectedRows
    counts: Mapping[str, int]
    open_runs: tuple[str, ...]
    held: tuple[int, ...]
    """The numbers of the legal holds that keep some of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningErasure:
    """An erasure that has begun."""

    pk: int
    receipt_id: str
    tenant: str
    person: Person
    by: str
    began_at: float
    sessions: tuple[str, ...]
    jobs: tuple[str, ...]
    counts: Mapping[str, int]
    replays: str | None = None


class _HeldBy(NamedTuple):
    pk: int
    root_pk: int | None
    session_pk: int | None


class _BegunErasure(NamedTuple):
    pk: int
    receipt_id: str
    tenant: str
    began_at: float
    plan: str | None


class _AuthoredEvent(NamedTuple):
    run_pk: int
    seq: int
    data: str


class Erasures(RowStore):
    """The erasures of one database. Thread-safe."""

    # --- before ---

    def preview_erasure(self, tenant: str, person: Person) -> ErasurePreview:
        """Find out what would be erased, without changing anything. Raises ``NobodyNamed``."""
        with self.database.read() as connection:
            selected = select_rows(connection, tenant, person)
            return ErasurePreview(
                selected=selected,
                counts=count_rows(connection, selected),
                open_runs=tuple(_list_open_runs(connection, selected)),
                held=tuple(_list_holds(connection, selected)),
            )

    def begin(
        self, tenant: str, person: Person, *, by: str, takes_shared: bool = False, replays: str | None = None
    ) -> RunningErasure:
        """Begin an erasure: mark everything of a person, so that nothing new begins. Raises ``NobodyNamed``,
        ``ErasureHeld``, ``SharedWithOthers``."""
        with self.database.write() as connection:
            selected = select_rows(connection, tenant, person)
            if held := _list_holds(connection, selected):
                raise ErasureHeld(_format_held(held, tenant))
            if selected.shared and not takes_shared:
                raise SharedWithOthers(
                    f"others asked for {selected.shared} runs in the same sessions; look at the export, and add "
                    "--shared to erase these sessions with what the others said"
                )
            plan: dict[str, object] = {
                "person": person.to_json(),
                "by": by,
                "replays": replays,
                "counts": count_rows(connection, selected),
            }
            plan |= {"sessions": _list_session_ids(connection, selected), "jobs": _list_job_ids(connection, selected)}
            values = {"receipt_id": create_receipt_id(), "tenant": tenant, "plan": json.dumps(plan)}
            made = sa.insert(erasures).values(began_at=db_now(), **values).returning(erasures.c.pk)
            pk = int(connection.execute(made).scalar_one())
            _mark_selected(connection, selected, pk)
            record_action(
                connection, Act.ERASURE_BEGIN, values["receipt_id"], tenant=tenant, after={"rows": plan["counts"]}
            )
        return self._load_erasure(pk)

    def list_unfinished(self, tenant: str | None = None) -> list[RunningErasure]:
        """List the erasures without a receipt, oldest first."""
        wanted = sa.select(erasures.c.pk).where(erasures.c.ended_at.is_(None)).order_by(erasures.c.pk)
        wanted = wanted if tenant is None else wanted.where(erasures.c.tenant == tenant)
        pks = self.database.select(wanted).scalars().all()
        return [self._load_erasure(pk) for pk in pks]

    def list_open_runs(self, erasure: RunningErasure) -> list[str]:
        """List the ids of its runs that have not ended: the caller stops them first."""
        with self.database.read() as connection:
            return _list_open_runs(connection, self._select_remaining(connection, erasure))

    def list_deleted_run_ids(self, erasure: RunningErasure) -> list[str]:
        """List the ids of the runs that it has deleted."""
        gone = sa.select(deleted_runs.c.run_id).where(deleted_runs.c.tenant == erasure.tenant)
        wanted = gone.where(deleted_runs.c.erasure_pk == erasure.pk)
        return list(self.database.select(wanted).scalars())

    # --- at it ---

    def delete_stepwise(self, erasure: RunningErasure, *, patience_s: float = _PATIENCE_S) -> Iterator[str]:
        """Delete, transaction by transaction, and yield what was done. ``patience_s`` is how many seconds transactions
        from before may take to end. Raises ``RunsAtWork``, ``ErasureHeld``, ``NotYetErased``; then it can be called
        again."""
        while count_ended_rows(self.database):
            pass
        with self.database.read() as connection:
            selected = self._select_remaining(connection, erasure)
            if at_work := _list_open_runs(connection, selected):
                raise RunsAtWork(f"{len(at_work)} runs have not ended, {at_work[0]!r} among them; add --stop")
            if held := _list_holds(connection, selected):
                raise ErasureHeld(_format_held(held, erasure.tenant))
        with self.database.write() as connection:
            _mark_selected(connection, selected, erasure.pk)  # including rows written since the selection
        with self.database.write() as connection:
            for this in build_answer_conditions(connection, selected):  # before the runs by which they are found
                connection.execute(sa.delete(kept_answers).where(this))
            for this in list(build_memory_conditions(connection, selected)):
                connection.execute(sa.delete(memory_versions).where(this))
        yield "answers"
        self._reserve_row_ids(selected)
        yield "numbers"
        for root in selected.roots:
            self._strip_firings(root)
            deleting.delete_chain(
                self.database, root, partial(_chain_may_go, erasure.tenant, root), erasure_pk=erasure.pk
            )
            yield "runs"
        for session in selected.sessions:
            may_go = partial(_session_may_go, erasure.tenant, session)
            deleting.delete_session(self.database, session, may_go)
            yield "sessions"
        self._erase_rows(erasure, selected)
        yield "rows"
        self._erase_authorship(selected.authors)
        yield "authors"
        self._erase_blobs(patience_s)
        yield "blobs"
        deadline = time.monotonic() + _WORDS_S
        while time.monotonic() < deadline and merge_deleted(self.database):
            pass
        yield "words"

    def finish(
        self, erasure: RunningErasure, *, more: Mapping[str, int] | None = None, not_reached: Sequence[str] = ()
    ) -> ErasureReceipt:
        """Check that everything is gone, and write the receipt. Raises ``NotYetErased``."""
        with self.database.write() as connection:
            left = count_rows(connection, self._select_remaining(connection, erasure)) - Counter(
                {"jobs": 10**9, "firings": 10**9}
            )
            if left:
                told = ", ".join(f"{number} {name}" for name, number in sorted(left.items()))
                raise NotYetErased(f"there are still {told}; call 'hermes-worker data erase --resume' again")
            ended_at = float(connection.execute(sa.select(db_now())).scalar_one())
            receipt = ErasureReceipt(
                receipt_id=erasure.receipt_id,
                tenant=erasure.tenant,
                by=erasure.by,
                began_at=erasure.began_at,
                ended_at=ended_at,
                person=hash_subject(erasure.person),
                sessions=erasure.sessions,
                jobs=erasure.jobs,
                erased={**erasure.counts, **(more or {})},
                not_reached=tuple(not_reached),
                replays=erasure.replays,
            )
            text = _dump_receipt(self._note_pending_log(receipt))
            this = (erasures.c.pk == erasure.pk) & erasures.c.ended_at.is_(None)
            done = sa.update(erasures).where(this).values(ended_at=ended_at, plan=None, receipt=text)
            if connection.execute(done).rowcount == 0:
                raise ErasureNotFound(f"the erasure {erasure.receipt_id!r} was finished by somebody else")
        return self._empty_log(receipt)

    def _note_pending_log(self, receipt: ErasureReceipt) -> ErasureReceipt:
        """Return the receipt as it stands until SQLite's log is empty, and for ever if that is never seen: the log
        holds the deletions and the plan until then."""
        if not self.database.is_sqlite:
            return receipt
        return replace(receipt, not_reached=(*receipt.not_reached, IN_THE_LOG))

    def _empty_log(self, receipt: ErasureReceipt) -> ErasureReceipt:
        """Empty SQLite's log, and return the receipt that says whether that succeeded."""
        if not self.database.is_sqlite or not self.database.truncate_log(wait_s=_LOG_WAIT_S):
            return self._note_pending_log(receipt)
        this = erasures.c.receipt_id == receipt.receipt_id
        self.database.execute(sa.update(erasures).where(this).values(receipt=_dump_receipt(receipt)))
        return receipt

    # --- afterwards ---

    def load_receipt(self, receipt_id: str, tenant: str | None = None) -> ErasureReceipt:
        """Load a receipt; with ``tenant``, only that tenant's. Raises ``ErasureNotFound``, and ``InvalidReceipt`` for
        one that was changed."""
        this = sa.select(erasures.c.receipt).where(erasures.c.receipt_id == receipt_id)
        text = self.database.select(this).scalar()
        receipt = None if text is None else parse_receipt(text)
        if receipt is None or tenant not in (None, receipt.tenant):
            raise ErasureNotFound(
                f"there is no receipt {receipt_id[:80]!r}; 'hermes-worker data erase --receipts' lists them"
            )
        return receipt

    def list_receipts(self) -> list[ErasureReceipt]:
        """List all receipts, oldest first. Raises ``InvalidReceipt``."""
        wanted = sa.select(erasures.c.receipt).where(erasures.c.receipt.is_not(None)).order_by(erasures.c.pk)
        texts = self.database.select(wanted).scalars().all()
        return [parse_receipt(text) for text in texts if text is not None]

    def find_person_again(self, receipt: ErasureReceipt) -> Person:
        """Find the person a receipt was about, as far as their names are in this database."""
        with self.database.read() as connection:
            return find_person_again(connection, receipt)

    # --- parts ---

    def _load_erasure(self, pk: int) -> RunningErasure:
        this = sa.select(*select_columns(erasures, _BegunErasure)).where(erasures.c.pk == pk)
        row = fetch_one(self.database.select(this), _BegunErasure)
        plan = json.loads(row.plan or "{}")
        return RunningErasure(
            pk=row.pk,
            receipt_id=row.receipt_id,
            tenant=row.tenant,
            person=Person.from_json(plan["person"]),
            by=plan["by"],
            began_at=row.began_at,
            sessions=tuple(plan["sessions"]),
            jobs=tuple(plan["jobs"]),
            counts=plan["counts"],
            replays=plan["replays"],
        )

    def _select_remaining(self, connection: Connection, erasure: RunningErasure) -> SelectedRows:
        """Select what is left to erase. The definitions of its jobs, by which they could be found, are gone already."""
        person = erasure.person
        marked = sa.select(sessions.c.session_id).where(sessions.c.erasure_pk == erasure.pk)
        ids = tuple(connection.execute(marked).scalars())
        everything = Person(
            sessions=ids or ("-",),
            named=person.named,
            principals=person.principals,
            holders=person.holders,
            targets=person.targets,
            is_everybody=person.is_everybody,
        )
        return select_rows(connection, erasure.tenant, everything)

    def _reserve_row_ids(self, selected: SelectedRows) -> None:
        """Reserve the highest row ids. SQLite gives the id of a deleted last row to the next one, and ids are in
        messages. So empty rows take the highest ids, and go when they are not the last any more."""
        if not self.database.is_sqlite:
            return
        with self.database.write() as connection:
            last_run = connection.execute(sa.select(sa.func.max(runs.c.pk))).scalar()
            last_session = connection.execute(sa.select(sa.func.max(sessions.c.pk))).scalar()
            theirs = set(list_runs(connection, selected.roots))
            old = sa.select(runs.c.pk).where(runs.c.tenant == _NOBODY, runs.c.pk < (last_run or 0))
            stale = connection.execute(old).scalars().all()
            if last_run in theirs or last_session in selected.sessions:
                _insert_placeholder(connection)
            elif not stale:
                return
            connection.execute(sa.delete(runs).where(runs.c.pk.in_(stale)))
            used = sa.exists().where(runs.c.session_pk == sessions.c.pk)
            connection.execute(sa.delete(sessions).where(sessions.c.tenant == _NOBODY, sa.not_(used)))

    def _strip_firings(self, root: int) -> None:
        """Empty the firings of runs that are deleted: the slot stays settled, and nothing else of it is left."""
        theirs = sa.select(runs.c.pk).where(is_in_chains([root]))
        self.database.execute(_build_firing_erasure(firings.c.run_pk.in_(theirs)))

    def _erase_rows(self, erasure: RunningErasure, selected: SelectedRows) -> None:
        """Erase what is no conversation: jobs, keys, addresses, and everything that only a tenant has."""
        with self.database.write() as connection:
            for part in split_into_parts(selected.jobs):
                connection.execute(sa.delete(deliveries).where(deliveries.c.job_pk.in_(part)))
                connection.execute(_build_firing_erasure(firings.c.job_pk.in_(part)))
                connection.execute(_build_job_erasure(jobs.c.pk.in_(part)))
            for first in split_into_parts(range(len(erasure.jobs))):
                ids = [erasure.jobs[each] for each in first]
                connection.execute(_build_job_erasure(jobs.c.job_id.in_(ids)))
            for first in split_into_parts(range(len(erasure.sessions))):
                ids = [erasure.sessions[each] for each in first]
                # Record the ids of sessions too: a fork has no run with its id.
                tombstones = [
                    {"run_id": each, "tenant": erasure.tenant, "deleted_at": erasure.began_at} for each in ids
                ]
                connection.execute(build_insert_ignoring(connection, deleted_runs), tombstones)
                gone = deleted_runs.c.run_id.in_(ids) & (deleted_runs.c.tenant == erasure.tenant)
                connection.execute(sa.update(deleted_runs).where(gone).values(erasure_pk=erasure.pk))
            for part in split_into_parts(selected.holders):
                held = sa.select(api_keys.c.key_id).where(api_keys.c.principal_pk.in_(part))
                connection.execute(sa.delete(page_logins).where(page_logins.c.key_id.in_(held)))
                connection.execute(sa.delete(api_keys).where(api_keys.c.principal_pk.in_(part)))
                connection.execute(sa.delete(principals).where(principals.c.pk.in_(part)))
            for this in build_filter_conditions(selected):
                connection.execute(sa.delete(saved_filters).where(this))
            marked = dead_targets.c.key.in_(selected.person.targets) & (dead_targets.c.tenant == erasure.tenant)
            connection.execute(sa.delete(dead_targets).where(marked))
            delete_artifacts(connection, build_upload_condition(selected))
            for table in list_tenant_tables() if selected.person.is_everybody else ():
                connection.execute(sa.delete(table).where(table.c.tenant == erasure.tenant))

    def _erase_authorship(self, authors: Sequence[str]) -> None:
        """Erase that the person answered, stopped or steered runs of others."""
        if not authors:
            return
        answered = waits.c.answered_by.in_(authors)
        self.database.execute(sa.update(waits).where(answered).values(answered_by=None))
        mark = (0, 0)
        while True:
            beyond = sa.tuple_(events.c.run_pk, events.c.seq) > sa.tuple_(*map(sa.literal, mark))
            wanted = (
                sa.select(*select_columns(events, _AuthoredEvent)).where(beyond).order_by(events.c.run_pk, events.c.seq)
            )
            with self.database.write() as connection:
                rows = fetch_rows(connection.execute(wanted.limit(_EVENTS_AT_ONCE)), _AuthoredEvent)
                for row in rows:
                    kept = remove_author(json.loads(row.data), authors) if '"by"' in row.data else None
                    if kept is not None:
                        this = (events.c.run_pk == row.run_pk) & (events.c.seq == row.seq)
                        connection.execute(sa.update(events).where(this).values(data=json.dumps(kept)))
            if len(rows) < _EVENTS_AT_ONCE:
                return
            mark = (rows[-1].run_pk, rows[-1].seq)

    def _erase_blobs(self, patience_s: float) -> None:
        """Delete texts without references now and not in an hour: as soon as every transaction has ended that may have
        read them."""
        released_at = self.database.read_clock()
        deadline = time.monotonic() + patience_s
        while not self._have_ended(released_at):
            if time.monotonic() > deadline:
                raise NotYetErased(
                    f"a transaction of the database is older than {patience_s:g} s, so long texts cannot be deleted "
                    "yet; call 'hermes-worker data erase --resume' when it has ended"
                )
            time.sleep(_LOOK_EVERY_S)
        while deleting.delete_blobs(self.database, _EVENTS_AT_ONCE, released_before=released_at)[0]:
            pass

    def _have_ended(self, at: float) -> bool:
        """Whether all transactions from before ``at`` (epoch seconds) have ended. SQLite has one that writes at a
        time."""
        if self.database.is_sqlite:
            return True
        older = sa.text(
            "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() "
            "and backend_type = 'client backend' and state <> 'idle' and extract(epoch from xact_start) <= :at"
        )
        return int(self.database.select(older, {"at": at}).scalar_one()) == 0


def _list_open_runs(connection: Connection, selected: SelectedRows) -> list[str]:
    found: list[str] = []
    for part in split_into_parts(list_runs(connection, selected.roots)):
        is_open = sa.and_(runs.c.pk.in_(part), runs.c.exit_reason.is_(None))
        found += connection.execute(sa.select(runs.c.run_id).where(is_open).order_by(runs.c.pk)).scalars()
    return found


def _list_session_ids(connection: Connection, selected: SelectedRows) -> list[str]:
    found: list[str] = []
    for part in split_into_parts(selected.sessions):
        wanted = sa.select(sessions.c.session_id).where(sessions.c.pk.in_(part)).order_by(sessions.c.pk)
        found += connection.execute(wanted).scalars()
    return found


def _list_job_ids(connection: Connection, selected: SelectedRows) -> list[str]:
    found: list[str] = []
    for part in split_into_parts(selected.jobs):
        found += connection.execute(sa.select(jobs.c.job_id).where(jobs.c.pk.in_(part)).order_by(jobs.c.pk)).scalars()
    return found


# --- holds -----------------------------------------------------------------------------------------------------------


def _list_holds(connection: Connection, selected: SelectedRows) -> list[int]:
    """The numbers of the legal holds that keep some of it."""
    wanted = sa.select(*select_columns(legal_holds, _HeldBy)).where(legal_holds.c.tenant == selected.tenant)
    rows, roots, within = fetch_rows(connection.execute(wanted), _HeldBy), set(selected.roots), set(selected.sessions)
    return [
        row.pk
        for row in rows
        if (row.root_pk is None and row.session_pk is None) or row.root_pk in roots or row.session_pk in within
    ]


def _format_held(held: Sequence[int], tenant: str) -> str:
    named = ", ".join(map(str, held))
    release = f"hermes-worker data retention release {held[0]} --tenant {tenant}"
    look = "look at 'hermes-worker data retention holds'"
    return f"legal holds keep some of it ({named}); {look}, and '{release}' lifts one"


def _chain_may_go(tenant: str, root: int, connection: Connection) -> bool:
    """Whether a locked chain may be deleted without regard to the rules: no hold was placed on it, and no run of it is
    at work."""
    found = load_chains(connection, [root], load_holds(connection, tenant))
    return bool(found) and not found[0].is_held and not found[0].open_runs


def _session_may_go(tenant: str, session: int, connection: Connection) -> bool:
    found = load_sessions(connection, [session], load_holds(connection, tenant))
    return bool(found) and not found[0].is_held and not found[0].is_at_work


# --- statements ------------------------------------------------------------------------------------------------------


def _mark_selected(connection: Connection, selected: SelectedRows, pk: int) -> None:
    """Mark what the erasure selects: no run begins in these sessions, no slot of these jobs, nothing with these
    keys."""
    for part in split_into_parts(selected.sessions):
        connection.execute(sa.update(sessions).where(sessions.c.pk.in_(part)).values(erasure_pk=pk))
    for part in split_into_parts(selected.jobs):
        connection.execute(_build_job_removal(jobs.c.pk.in_(part)))
    for part in split_into_parts(selected.holders):
        mine = sa.and_(api_keys.c.principal_pk.in_(part), api_keys.c.revoked_at.is_(None))
        connection.execute(sa.update(api_keys).where(mine).values(revoked_at=db_now()))
    if selected.person.is_everybody:
        ours = (tenants.c.name == selected.tenant) & tenants.c.disabled_at.is_(None)
        connection.execute(sa.update(tenants).where(ours).values(disabled_at=db_now()))


def _build_job_removal(which: sa.ColumnElement[bool]) -> sa.Update:
    at = sa.func.coalesce(jobs.c.removed_at, db_now())
    return sa.update(jobs).where(which).values(removed_at=at, next_slot=None, next_fire_at=None, updated_at=db_now())


def _build_job_erasure(which: sa.ColumnElement[bool]) -> sa.Update:
    texts = {"name": "", "definition": "{}", "paused_reason": None, "last_error": None}
    return _build_job_removal(which).values(**texts)


def _build_firing_erasure(which: sa.ColumnElement[bool]) -> sa.Update:
    """Build the update that removes the texts of firings. A firing that had a run becomes one whose execution is
    over."""
    had_run = firings.c.run_pk.is_not(None)
    is_open = sa.or_(firings.c.execution.is_(None), firings.c.execution.in_(("pending", "running")))
    over = sa.case((sa.and_(is_open, sa.or_(had_run, firings.c.execution.is_not(None))), "completed"))
    return (
        sa.update(firings)
        .where(which)
        .values(
            reason="",
            collected=None,
            remark=None,
            owes_note=False,
            run_pk=None,
            is_waiting=False,
            hinted_at=None,
            lease_token=None,
            lease_owner=None,
            claimed_at=None,
            execution=sa.func.coalesce(over, firings.c.execution),
            ended_at=sa.func.coalesce(firings.c.ended_at, db_now()),
        )
    )


def _insert_placeholder(connection: Connection) -> None:
    run_id = f"run_{uuid.uuid4().hex}"
    opened = {"session_id": run_id, "tenant": _NOBODY, "system_prompt": "", "workspace": "{}"}
    opened |= {"tools_hash": store_blob(connection, "[]")}
    session = sa.insert(sessions).values(created_at=db_now(), **opened).returning(sessions.c.pk)
    pk = connection.execute(session).scalar_one()
    ended = {"run_id": run_id, "session_pk": pk, "tenant": _NOBODY, "model": "", "status": "completed"}
    limits = {"state_version": 1, "iterations_max": 0, "attempts_max": 0, "exit_reason": "completed", "is_counted": 1}
    times = {"created_at": db_now(), "updated_at": db_now(), "finished_at": db_now()}
    made = sa.insert(runs).values(**ended, **limits, **times, event_seq=1).returning(runs.c.pk)
    end = {
        "run_pk": connection.execute(made).scalar_one(),
        "seq": 1,
        "event": RunEventName.RUN_COMPLETED.value,
        "data": "{}",
    }
    connection.execute(sa.insert(events).values(**end, at=db_now()))


def _dump_receipt(receipt: ErasureReceipt) -> str:
    return json.dumps(receipt.build_document())
