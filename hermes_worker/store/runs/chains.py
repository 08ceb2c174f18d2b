"""Chains: everything that a run caused, and how it is stopped or paused with the run.

A run causes its children, and the runs that the answers of its background children began. A stop or a pause goes top
down, one transaction for each run: the run's row says that nothing it caused may begin any more (``runs.halt``), and
then its children and the runs it caused are read. A transaction that writes one of those locks the row first, so none
is missed. Runs that have ended are passed on the way to what they caused; children that have ended are not, because
only a run at the top delegates into the background.
"""

from __future__ import annotations

from typing import TypedDict

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core import events as ev
from hermes_worker.core.errors import Failure, UnavailableError
from hermes_worker.core.run import ExitReason, Halt, Run, RunStatus
from hermes_worker.core.step import apply_event
from hermes_worker.observe import log
from hermes_worker.store.engine.database import Database
from hermes_worker.store.engine.prepared import PkRow, Prepared
from hermes_worker.store.row_keys import AtMost, RunKey
from hermes_worker.store.rows import Hint, LoadedRun, lock_run
from hermes_worker.store.runs.children import detach_child, list_caused_runs, list_open_children
from hermes_worker.store.runs.step_plan import StepOutput
from hermes_worker.store.runs.step_writer import end_broken, save_step
from hermes_worker.store.tables import runs

STOPPED_MAX = 200
"""Runs that one call stops; the sweeper stops the rest."""


class _NewHalt(RunKey):
    new_halt: str | None


class _Cause(TypedDict):
    cause: int


_HALT = Prepared(
    sa.update(runs)
    .where(runs.c.pk == sa.bindparam("run"))
    .values(halt=sa.bindparam("new_halt", type_=runs.c.halt.type)),
    takes=_NewHalt,
)
_HALTED = Prepared(
    sa.update(runs)
    .where(runs.c.pk == sa.bindparam("run"), runs.c.halt == Halt.STOPPING.value)
    .values(halt=Halt.STOPPED.value),
    takes=RunKey,
)
_HALTING = Prepared(
    sa.select(runs.c.pk)
    .where(sa.text("runs.halt = 'stopping'"))
    .order_by(runs.c.pk)
    .limit(sa.bindparam("most", type_=sa.Integer())),
    takes=AtMost,
    gives=PkRow,
)
_OPEN_TURN = Prepared(
    sa.select(runs.c.pk).where(runs.c.cause_pk == sa.bindparam("cause"), runs.c.exit_reason.is_(None)).limit(1),
    takes=_Cause,
    gives=PkRow,
)
_BROKEN = ev.RunBroken(
    reason=ExitReason.CORRUPT_STATE,
    failure=Failure(kind="corrupt_state", message="a stored row of this run cannot be read; see the log"),
)


def set_halt(connection: Connection, run_pk: int, what: Halt | None) -> None:
    """Write that a run and everything it caused is stopped or paused; ``None`` takes that back. The caller holds the
    run's row."""
    _HALT.run(connection, {"run": run_pk, "new_halt": what.value if what is not None else None})


def is_halted(connection: Connection, run_pk: int, what: Halt) -> bool:
    found = connection.execute(sa.select(runs.c.halt).where(runs.c.pk == run_pk)).scalar()
    return found == what.value


def pause_caused(connection: Connection, run_pk: int) -> None:
    """Let nothing begin that a run caused. A stop is not weakened to a pause. The caller holds the row."""
    connection.execute(_build_halt_update(run_pk, halt=None).values(halt=Halt.PAUSED.value))


def resume_caused(connection: Connection, run_pk: int) -> bool:
    """Let what a run caused begin again. Returns whether it was paused. The caller holds the row."""
    return connection.execute(_build_halt_update(run_pk, halt=Halt.PAUSED).values(halt=None)).rowcount > 0


def _build_halt_update(run_pk: int, *, halt: Halt | None) -> sa.Update:
    return sa.update(runs).where(runs.c.pk == run_pk, runs.c.halt.is_not_distinct_from(halt.value if halt else None))


def is_any_caused_open(connection: Connection, run_pk: int) -> bool:
    """Whether anything that a run caused has not ended."""
    waiting = [run_pk]
    while waiting:
        cause = waiting.pop()
        turns = list_caused_runs(connection, cause)
        if list_open_children(connection, cause, most=1) or _OPEN_TURN.first(connection, {"cause": cause}) is not None:
            return True
        waiting += turns
    return False


def stop_run(connection: Connection, loaded: LoadedRun, by: str | None = None) -> tuple[Run, list[Hint]]:
    """Ask a locked run to stop, and let nothing begin that it caused. Returns the run after the step, and the hints to
    send. ``by`` is the principal who asks."""
    set_halt(connection, loaded.pk, Halt.STOPPING)
    after = apply_event(loaded.run, ev.StopRequested())
    return after, [] if after == loaded.run else save_step(connection, loaded, after, StepOutput(by=by))


def stop_caused(database: Database, run_pk: int, *, most: int = STOPPED_MAX) -> dict[str, list[Hint]]:
    """Stop everything that a run caused and that has not ended, whether or not the run has. Returns the hints to send,
    by run id. What is left after ``most`` runs, or when this process dies half-way, is stopped by the sweeper.
    Idempotent."""
    stopped: dict[str, list[Hint]] = {}
    waiting = [run_pk]
    while waiting and len(stopped) < most:
        cause = waiting.pop()
        with database.read() as connection:
            turns = list_caused_runs(connection, cause)
            found = list_open_children(connection, cause, most=most - len(stopped))
        for pk in (*found, *turns):
            stopped |= _stop_below(database, pk)
        waiting += (*found, *turns)
    if not waiting:
        with database.statement() as connection:
            _HALTED.run(connection, {"run": run_pk})
    return stopped


def _stop_below(database: Database, pk: int) -> dict[str, list[Hint]]:
    """Stop one run; the result is empty for a run that has ended. A run that cannot be read is ended, so that it holds
    up no other."""
    try:
        with database.write() as connection:
            loaded = lock_run(connection, pk)
            if loaded is None:
                return {}
            set_halt(connection, pk, Halt.STOPPED)
            if loaded.run.status.is_terminal or loaded.run.status is RunStatus.STOPPING:
                return {}
            loaded = detach_child(connection, loaded)
            return {loaded.run.run_id: save_step(connection, loaded, apply_event(loaded.run, ev.StopRequested()))}
    except UnavailableError:
        raise
    except Exception as error:
        log.error("run.broken", run_pk=pk, error=f"{type(error).__name__}: {error}")
        return {f"#{pk}": end_broken(database, pk, _BROKEN)}


def finish_stops(database: Database, *, most: int) -> list[Hint]:
    """Go on with stops whose process died half-way, or that had more to stop than one call stops. Returns the hints to
    send."""
    with database.read() as connection:
        halting = [int(row.pk) for row in _HALTING.all(connection, {"most": most})]
    return [hint for run_pk in halting for hints in stop_caused(database, run_pk, most=most).values() for hint in hints]
