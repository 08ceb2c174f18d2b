"""Background processes as rows: which session owns them, which are due for a look, and what the session was told of
them.

The operating-system process runs where its workspace is (``workspaces.processes``). A row is written before the process
is started, under the claim of the call that starts it. Of any number of workers one gets a row that is due for a look,
and for a minute no other does; when that worker dies, the next one takes the row.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.delegation import explain_background_refusal
from hermes_worker.core.errors import HermesError
from hermes_worker.core.processes import BURST_MAX, BURST_S, OutputWatch, ProcessRow
from hermes_worker.core.run import RunStatus
from hermes_worker.observe import log
from hermes_worker.store.engine.database import RowStore, db_now
from hermes_worker.store.engine.prepared import fetch_rows, fetch_views, select_view_columns
from hermes_worker.store.rows import Hint, load_record
from hermes_worker.store.runs import continuations as background
from hermes_worker.store.runs.budgets import create_tree_budget, lock_turns, promise_turn
from hermes_worker.store.runs.call_claims import HeldCall, lock_claimed_run
from hermes_worker.store.runs.step_writer import begin_run
from hermes_worker.store.tables import processes, runs, sessions

RUNNING_MAX: Final = 16
"""Processes of one session that run at once."""
_LOOK_S: Final = 60.0
"""Seconds for which a worker that took a row for a look has it alone."""
_STARTING_S: Final = 60.0
_KEPT_S: Final = 1800.0
"""Seconds for which the host of a process keeps what it knows of it after its end."""
OPEN: Final = ("starting", "running")
_TERMINAL: Final = [status.value for status in RunStatus if status.is_terminal]


class TooManyProcesses(HermesError):
    """The session has as many open processes as it may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewProcess:
    """The description of a process that is about to be started."""

    command: str
    """The command line, with secrets hidden."""
    lifetime_s: float
    has_terminal: bool = False
    notifies: bool = False
    """A run of the session begins when the process ends."""
    patterns: tuple[str, ...] = ()
    """A run of the session begins when one of these patterns stands in its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DueProcess:
    """A process that is due for a look."""

    pk: int
    process_id: str
    session_pk: int
    run_pk: int
    """The row id of the run that started it."""
    tenant: str
    workspace: str
    """The stored description of the workspace."""
    command: str
    state: str
    exit_code: int | None
    patterns: Sequence[str] | None
    notifies: bool
    seen: int
    """Bytes of its output that were looked at."""
    watch: OutputWatch
    notices: int
    started_at: float
    ended_at: float | None
    is_consumed: bool
    """Its session knows that it has ended."""
    is_forsaken: bool
    """It has to end: its session was ended or is being erased, the child that started it has ended, or its time is
    over."""
    now: float
    """The time of the look, in epoch seconds by the database's clock."""

    @property
    def is_open(self) -> bool:
        return self.state in OPEN

    @property
    def is_overdue_to_start(self) -> bool:
        return self.state == "starting" and self.now > self.started_at + _STARTING_S

    @property
    def may_be_forgotten(self) -> bool:
        return self.ended_at is not None and self.now > self.ended_at + _KEPT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReading:
    """The result of a look at a process, as it is to be written."""

    state: str
    exit_code: int | None = None
    seen: int = 0
    watch: OutputWatch = field(default_factory=OutputWatch)
    again_s: float | None = 2.0
    """Seconds until the next look; ``None`` for never."""
    told: str | None = None
    """The message with which a run of the session begins; ``None`` when none is to begin."""


_WAS_LEFT = sa.or_(
    sessions.c.erasure_pk.is_not(None),
    sessions.c.ended_at > processes.c.started_at,
    sa.and_(runs.c.parent_pk.is_not(None), runs.c.status.in_(_TERMINAL)),
    processes.c.deadline_at < db_now(),
)
_SEES = (
    processes.c.process_id,
    processes.c.command,
    processes.c.state,
    processes.c.exit_code,
    processes.c.has_terminal,
    processes.c.started_at,
    processes.c.ended_at,
    db_now().label("now"),
)
_DUE = processes.c.next_look_at <= db_now()
_DUE_COLUMNS = (
    *select_view_columns(processes, DueProcess),
    *(processes.c[each.name].label(f"watch_{each.name}") for each in fields(OutputWatch)),
    sessions.c.workspace,
    sa.case((_WAS_LEFT, 1), else_=0).label("is_forsaken"),
    db_now().label("now"),
)


class Processes(RowStore):
    """The background processes in one database. Thread-safe."""

    def begin(self, claim: HeldCall, session_pk: int, new: NewProcess) -> str:
        """Insert the row of a process that is about to be started, under the claim of the call that starts it. Returns
        its id. Raises ``LeaseLost``, ``TooManyProcesses``."""
        process_id = f"proc_{secrets.token_hex(6)}"
        with self.database.write() as connection:
            lock_claimed_run(connection, claim)
            ours = sa.and_(processes.c.session_pk == session_pk, processes.c.state.in_(OPEN))
            running = connection.execute(sa.select(sa.func.count()).where(ours)).scalar_one()
            if running >= RUNNING_MAX:
                raise TooManyProcesses(
                    f"{running} background processes run in this session already, and no more may: end one of them "
                    "with the tool process"
                )
            tenant = sa.select(runs.c.tenant).where(runs.c.pk == claim.run_pk).scalar_subquery()
            connection.execute(
                sa.insert(processes).values(
                    process_id=process_id,
                    session_pk=session_pk,
                    run_pk=claim.run_pk,
                    tenant=tenant,
                    command=new.command,
                    state="starting",
                    has_terminal=int(new.has_terminal),
                    notifies=int(new.notifies),
                    patterns=json.dumps(list(new.patterns)) if new.patterns else None,
                    started_at=db_now(),
                    deadline_at=db_now() + new.lifetime_s,
                    next_look_at=db_now() + 2.0,
                )
            )
        return process_id

    def mark_started(self, process_id: str) -> None:
        """Record that the process runs. Idempotent."""
        self._move(process_id, "starting", state="running")

    def mark_not_started(self, process_id: str) -> None:
        """Record that the process was not started and nothing is left of it. Idempotent."""
        this = sa.and_(processes.c.process_id == process_id, processes.c.state == "starting")
        self.database.execute(sa.delete(processes).where(this))

    def list_of_session(self, session_pk: int) -> list[ProcessRow]:
        """List the last hundred processes that the session started, in order."""
        wanted = sa.select(*_SEES).where(processes.c.session_pk == session_pk, processes.c.state != "forgotten")
        rows = fetch_rows(self.database.select(wanted.order_by(processes.c.pk.desc()).limit(100)), ProcessRow)
        return rows[::-1]

    def find(self, session_pk: int, process_id: str) -> ProcessRow | None:
        wanted = sa.select(*_SEES).where(processes.c.session_pk == session_pk, processes.c.process_id == process_id)
        found = fetch_rows(self.database.select(wanted), ProcessRow)
        return found[0] if found else None

    def mark_consumed(self, process_id: str, state: str, exit_code: int | None) -> None:
        """Record that the session has seen the end of the process, so that no run begins to report it. Idempotent."""
        this = sa.and_(processes.c.process_id == process_id, processes.c.is_consumed == 0)
        is_open = processes.c.state.in_(OPEN)
        self.database.execute(
            sa.update(processes)
            .where(this)
            .values(
                is_consumed=1,
                state=sa.case((is_open, state), else_=processes.c.state),
                exit_code=sa.case((is_open, exit_code), else_=processes.c.exit_code),
                ended_at=sa.func.coalesce(processes.c.ended_at, db_now()),
            )
        )

    def claim_due(self, most: int = 20) -> list[DueProcess]:
        """Claim the processes that are due for a look. No other worker gets them for a minute."""
        if self.database.select(sa.select(processes.c.pk).where(_DUE).limit(1)).first() is None:
            return []
        with self.database.write() as connection:
            some = sa.select(processes.c.pk).where(_DUE).order_by(processes.c.next_look_at).limit(most)
            pks = list(connection.execute(some.with_for_update(skip_locked=True)).scalars())
            these = processes.c.pk.in_(pks)
            connection.execute(sa.update(processes).where(these).values(next_look_at=db_now() + _LOOK_S))
            wanted = sa.select(*_DUE_COLUMNS).join(sessions, sessions.c.pk == processes.c.session_pk)
            wanted = wanted.join(runs, runs.c.pk == processes.c.run_pk).where(these).order_by(processes.c.pk)
            return fetch_views(connection.execute(wanted), DueProcess, patterns=json.loads)

    def is_flooded(self) -> bool:
        """Whether as many runs as allowed began within a short time because of what processes wrote."""
        lately = processes.c.told_at > db_now() - BURST_S
        return int(self.database.select(sa.select(sa.func.count()).where(lately)).scalar_one()) >= BURST_MAX

    def record_look(self, due: DueProcess, found: ProcessReading, *, turns_max: int) -> tuple[bool, list[Hint]]:
        """Write what a look found, and begin the run that reports it, in one transaction; so that run begins exactly
        once, even when processes are killed.

        Returns whether it was written, and the hints to send. It is not written when another worker looked meanwhile,
        or when the new run must wait for the run that started the process. ``turns_max`` limits the runs of a chain
        that began without a person's request. Idempotent.
        """
        try:
            with self.database.write() as connection:
                # The chain is locked first, as in a deletion of the chain.
                root_pk = background.lock_chain(connection, due.run_pk) if found.told is not None else None
                if not _write_look(connection, due, found):
                    return False, []
                if found.told is None or root_pk is None:
                    return True, []
                return True, _begin_report(connection, due, root_pk, found.told, turns_max)
        except _MustWait:
            return False, []

    def postpone_look(self, due: DueProcess, after_s: float) -> None:
        """Postpone the next look by ``after_s`` seconds, because nothing could be seen now."""
        again = sa.update(processes).where(processes.c.pk == due.pk, processes.c.next_look_at.is_not(None))
        self.database.execute(again.values(next_look_at=db_now() + after_s))

    def find_known(self, names: Collection[str]) -> set[str]:
        """Return the process ids among ``names`` that have a row."""
        wanted = sa.select(processes.c.process_id).where(processes.c.process_id.in_(names))
        return set(self.database.select(wanted).scalars())

    def _move(self, process_id: str, before: str, *, state: str) -> None:
        this = sa.and_(processes.c.process_id == process_id, processes.c.state == before)
        self.database.execute(sa.update(processes).where(this).values(state=state))


class _MustWait(Exception):
    """The run that started the process is at work, so the new run cannot begin yet."""


def _write_look(connection: Connection, due: DueProcess, found: ProcessReading) -> bool:
    """Write what was seen, unless the row has changed meanwhile. Returns whether it was written."""
    this = sa.and_(processes.c.pk == due.pk, processes.c.notices == due.notices, processes.c.seen == due.seen)
    ends, watch = due.is_open and found.state not in OPEN, found.watch
    is_told = found.told is not None
    written = connection.execute(
        sa.update(processes)
        .where(this, processes.c.state == due.state, processes.c.is_consumed == int(due.is_consumed))
        .values(
            state=found.state,
            exit_code=found.exit_code,
            ended_at=db_now() if ends else processes.c.ended_at,
            seen=found.seen,
            told_at=watch.told_at,
            strikes=watch.strikes,
            suppressed=watch.suppressed,
            is_off=int(watch.is_off),
            notices=processes.c.notices + int(is_told),
            is_consumed=1 if ends and is_told else processes.c.is_consumed,
            next_look_at=None if found.again_s is None else db_now() + found.again_s,
        )
    )
    return written.rowcount == 1


def _begin_report(connection: Connection, due: DueProcess, root_pk: int, text: str, turns_max: int) -> list[Hint]:
    """Begin the run that reports, unless the chain may begin none any more. The caller holds the chain. Raises
    ``_MustWait``."""
    root = load_record(connection, root_pk)
    if root.budget_pk is None:
        status = connection.execute(sa.select(runs.c.status).where(runs.c.pk == root_pk)).scalar_one()
        if status not in _TERMINAL:
            # The root may be in a model call that a new budget would not include. Its session is busy anyway.
            raise _MustWait
        create_tree_budget(connection, root)
    budget, turns = lock_turns(connection, root_pk)
    refusal = explain_background_refusal(budget, turns=turns, turns_max=turns_max, is_shared=False)
    if refusal is not None:
        log.info("process.not_told", process=due.process_id, reason=refusal)
        return []
    metadata = {"process_id": due.process_id, "notice": str(due.notices + 1)}
    turn = background.insert_message_run(connection, due.run_pk, text, metadata)
    if turn is None:
        return []
    promise_turn(connection, root_pk)
    if not turn.is_next:
        return []
    return list(begin_run(connection, turn.session_pk, turn.run_pk, turn.run_id, turn.message_seq, turn.place))
