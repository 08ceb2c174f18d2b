"""What an operator or a user does to a run at work: pause it, let it go on, say something to it."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core import events as ev
from hermes_worker.core.errors import HermesError
from hermes_worker.core.run import RunStatus
from hermes_worker.core.run_events import RunEvent, RunEventName
from hermes_worker.core.step import apply
from hermes_worker.store import steering
from hermes_worker.store.database import Database
from hermes_worker.store.rows import Hint, LoadedRun, lock_run
from hermes_worker.store.runs import find
from hermes_worker.store.tables import runs, sessions
from hermes_worker.store.transitions import Additions, activate, save

STEER_CHARS_MAX = 100_000


class NotAtWork(HermesError):
    """The run has ended, is ending, or has not begun: there is nothing to do this to."""


class Control:
    """Control over the runs in one database. Thread-safe; everything is idempotent but ``steer``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def pause(self, run_id: str) -> RunStatus:
        """Begin nothing new; what is in flight ends as it would. Raises ``RunNotFound`` and ``NotAtWork``."""
        with self._database.write() as connection:
            loaded = _lock(connection, run_id)
            after = apply(loaded.run, ev.PauseRequested())
            if after != loaded.run:
                save(connection, loaded, after)
            return after.status

    def resume(self, run_id: str) -> tuple[RunStatus, list[Hint]]:
        """Let a paused run go on where it was. Raises ``RunNotFound`` and ``NotAtWork``."""
        with self._database.write() as connection:
            loaded = _lock(connection, run_id)
            if loaded.run.status is not RunStatus.PAUSED:
                return loaded.run.status, []
            active, message_seq = _turn(connection, loaded)
            after = apply(loaded.run, ev.ResumeRequested(has_turn=active == loaded.pk))
            resumed = Additions(events=[RunEvent(name=RunEventName.RESUMED)])
            hints = save(connection, loaded, after, resumed)
            if active == loaded.pk:
                return after.status, hints
            # It was paused while it waited for its session's turn: it takes the turn if nobody has it, or waits again.
            connection.execute(sa.update(runs).where(runs.c.pk == loaded.pk).values(hinted_at=None))
            if active is not None:
                return after.status, []
            return after.status, [activate(connection, loaded.session_pk, loaded.pk, run_id, message_seq)]

    def steer(self, run_id: str, text: str) -> None:
        """Say something to a run at work; it reads it with the next tool result.

        Raises ``RunNotFound``, and ``NotAtWork`` also for a run that waits for its turn.
        """
        with self._database.write() as connection:
            loaded = _lock(connection, run_id)
            if _turn(connection, loaded)[0] != loaded.pk:
                raise NotAtWork(f"run {run_id!r} has not begun; it waits for its session's turn")
            say(connection, loaded, text)


def say(connection: Connection, loaded: LoadedRun, text: str) -> None:
    """Keep what was said to a locked run that has its session's turn."""
    steering.keep(connection, loaded.pk, text)
    save(connection, loaded, loaded.run, Additions(events=[RunEvent(name=RunEventName.STEERED, data={"text": text})]))


def _lock(connection: Connection, run_id: str) -> LoadedRun:
    loaded = lock_run(connection, find(connection, run_id))
    assert loaded is not None
    if loaded.run.status.is_terminal or loaded.run.status is RunStatus.STOPPING:
        raise NotAtWork(f"run {run_id!r} is not at work any more ({loaded.run.status.value})")
    return loaded


def _turn(connection: Connection, loaded: LoadedRun) -> tuple[int | None, int]:
    """Who has the turn of the run's session, and the session's length; its row is locked."""
    row = connection.execute(
        sa.select(sessions.c.active_run_pk, sessions.c.message_seq)
        .where(sessions.c.pk == loaded.session_pk)
        .with_for_update()
    ).one()
    return row.active_run_pk, row.message_seq
