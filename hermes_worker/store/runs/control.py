"""Control of a run at work by an operator or a user: pause it, resume it, steer it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core import events as ev
from hermes_worker.core.errors import HermesError
from hermes_worker.core.principals import build_author_field
from hermes_worker.core.run import Halt, RunStatus
from hermes_worker.core.run_events import RunEvent, RunEventName
from hermes_worker.core.step import apply_event
from hermes_worker.store.access.audit import Act, record_action
from hermes_worker.store.engine.database import RowStore, db_now
from hermes_worker.store.rows import Hint, LoadedRun, ParentCall, lock_run
from hermes_worker.store.runs import steering
from hermes_worker.store.runs.chains import is_any_caused_open, is_halted, pause_caused, resume_caused
from hermes_worker.store.runs.children import (
    list_begun_children,
    list_caused_runs,
    load_children_max,
    lock_background_call,
    lock_waiting_call,
)
from hermes_worker.store.runs.runs import find_run, lock_found_run
from hermes_worker.store.runs.step_plan import StepOutput
from hermes_worker.store.runs.step_writer import begin_run, save_step, start_children
from hermes_worker.store.tables import runs, sessions

STEER_CHARS_MAX = 100_000


class NotAtWork(HermesError):
    """The run has ended, is ending, or has not begun, so it cannot be paused, resumed or steered."""


class NothingToSay(HermesError):
    """The text is empty, or longer than ``STEER_CHARS_MAX``."""


class Control(RowStore):
    """Pauses, resumes and steers the runs in one database. Thread-safe; everything is idempotent but ``steer``."""

    def pause(self, run_id: str, *, by: str | None = None) -> RunStatus:
        """Begin nothing new in a run and in everything it caused; what is in flight ends as it would. Returns the run's
        status.

        ``by``, here and below, is the principal who asks (``core.principals``), for the run's events. The run comes
        first and those below it from the top down, so that none of them begins another meanwhile. The status returned
        for a run that has ended is ``paused`` while something goes on that it caused. Raises ``RunNotFound`` and
        ``NotAtWork``.
        """
        with self.database.write() as connection:
            loaded = _lock_at_work(connection, run_id, is_enough=lambda pk: is_any_caused_open(connection, pk))
            status = _pause(connection, loaded, by)
            record_action(connection, Act.RUN_PAUSE, run_id, before={"status": loaded.run.status.value})
        for pk in self._iterate_caused(loaded.pk):
            with self.database.write() as connection:
                below = _lock_caused(connection, pk)
                if below is not None:
                    _pause(connection, below, by)
        return RunStatus.PAUSED if status.is_terminal else status

    def resume(self, run_id: str, *, by: str | None = None) -> tuple[RunStatus, list[Hint]]:
        """Let a run, and everything it caused, go on where they were. The status returned for a run that has ended is
        ``running`` when it was paused. Raises ``RunNotFound`` and ``NotAtWork``."""
        with self.database.write() as connection:
            loaded = _lock_at_work(connection, run_id, is_enough=lambda pk: is_halted(connection, pk, Halt.PAUSED))
            status, hints = _resume(connection, loaded, by)
            record_action(connection, Act.RUN_RESUME, run_id, before={"status": loaded.run.status.value})
        for pk in self._iterate_caused(loaded.pk):
            with self.database.write() as connection:
                below = _lock_caused(connection, pk)
                if below is not None:
                    hints += _resume(connection, below, by)[1]
        return RunStatus.RUNNING if status.is_terminal else status, hints

    def _iterate_caused(self, run_pk: int) -> Iterator[int]:
        """Iterate over what a run caused, from the top down: the open runs that it delegated and that have begun, at
        any depth, and the runs that background answers began. Children that wait for the cap need nothing done to them:
        no child of a paused run is started."""
        waiting = [run_pk]
        while waiting:
            cause = waiting.pop()
            with self.database.read() as connection:
                found = [*list_begun_children(connection, cause), *list_caused_runs(connection, cause)]
            yield from found
            waiting += found

    def steer(self, run_id: str, text: str, *, by: str | None = None) -> None:
        """Say something to a run at work; the model reads it with the next tool result. Raises ``NothingToSay``,
        ``RunNotFound``, and ``NotAtWork`` also for a run that waits in its session."""
        if not text.strip():
            raise NothingToSay("there is nothing to say: the text is empty")
        if len(text) > STEER_CHARS_MAX:
            raise NothingToSay(f"the text has more than {STEER_CHARS_MAX} characters")
        with self.database.write() as connection:
            loaded = _lock_at_work(connection, run_id)
            if _lock_session(connection, loaded)[0] != loaded.pk:
                raise NotAtWork(f"run {run_id!r} has not begun; it waits for the active run of its session")
            insert_steer(connection, loaded, text, by=by)
            record_action(connection, Act.RUN_STEER, run_id)


def insert_steer(connection: Connection, loaded: LoadedRun, text: str, *, by: str | None = None) -> None:
    """Store a steering text for a locked run that is its session's active one."""
    steering.insert_text(connection, loaded.pk, text)
    steered = RunEvent(name=RunEventName.STEERED, data={"text": text, **build_author_field(by)})
    save_step(connection, loaded, loaded.run, StepOutput(events=[steered]))


def _lock_at_work(
    connection: Connection, run_id: str, *, is_enough: Callable[[int], bool] = lambda pk: False
) -> LoadedRun:
    """Lock and load a run. ``is_enough`` is asked about a run that has ended, whether it counts as at work all the
    same."""
    loaded = lock_found_run(connection, find_run(connection, run_id))
    status = loaded.run.status
    if status is RunStatus.STOPPING or (status.is_terminal and not is_enough(loaded.pk)):
        raise NotAtWork(f"run {run_id!r} is not at work any more ({status.value})")
    return loaded


def _lock_caused(connection: Connection, pk: int) -> LoadedRun | None:
    """Lock and load a run that another caused; ``None`` when it is being stopped. A run that has ended is returned too,
    because it may have caused more, to which the pause has to go on."""
    loaded = lock_run(connection, pk)
    return None if loaded is None or loaded.run.status is RunStatus.STOPPING else loaded


def _pause(connection: Connection, loaded: LoadedRun, by: str | None) -> RunStatus:
    pause_caused(connection, loaded.pk)
    after = apply_event(loaded.run, ev.PauseRequested())
    if after != loaded.run:
        save_step(connection, loaded, after, StepOutput(by=by))
    return after.status


def _resume(connection: Connection, loaded: LoadedRun, by: str | None) -> tuple[RunStatus, list[Hint]]:
    was_halted = resume_caused(connection, loaded.pk)
    if loaded.run.status is not RunStatus.PAUSED:
        is_over = loaded.run.status.is_terminal
        return loaded.run.status, _start_waiting(connection, loaded.pk) if was_halted and is_over else []
    active, message_seq = _lock_session(connection, loaded)
    after = apply_event(loaded.run, ev.ResumeRequested(is_active_run=active == loaded.pk))
    hints = save_step(
        connection, loaded, after, StepOutput(events=[RunEvent(name=RunEventName.RESUMED, data=build_author_field(by))])
    )
    if active == loaded.pk:
        return after.status, hints + _start_waiting(connection, loaded.pk)
    # It was paused before it was the active run or had a place: start it if that is possible now, else it waits again.
    connection.execute(sa.update(runs).where(runs.c.pk == loaded.pk).values(hinted_at=None))
    if loaded.parent is not None:
        return after.status, _start_next_sibling(connection, loaded.parent)
    if active is not None or _is_postponed(connection, loaded.pk):
        return after.status, []
    return after.status, begin_run(connection, loaded.session_pk, loaded.pk, after.run_id, message_seq, loaded.place)


def _is_postponed(connection: Connection, pk: int) -> bool:
    """Whether a run that has not begun may not begin yet; the sweeper begins it when its time has come."""
    later = sa.select(runs.c.pk).where(runs.c.pk == pk, runs.c.not_before > db_now())
    return connection.execute(later).first() is not None


def _start_waiting(connection: Connection, run_pk: int) -> list[Hint]:
    """Start children of a run for which the cap has room. The run is locked with its calls."""
    cap = load_children_max(connection, run_pk)
    return start_children(connection, run_pk, cap) if cap is not None else []


def _start_next_sibling(connection: Connection, parent: ParentCall) -> list[Hint]:
    """Start the sibling that is next. The parent's call is locked before the parent, as everywhere."""
    if parent.is_background:
        cap = lock_background_call(connection, parent)
    else:
        waiting = lock_waiting_call(connection, parent)
        cap = waiting.children_max if waiting is not None else None
    return start_children(connection, parent.run_pk, cap) if cap is not None else []


def _lock_session(connection: Connection, loaded: LoadedRun) -> tuple[int | None, int]:
    """Lock the run's session. Returns the row id of its active run, or ``None``, and the length of its transcript."""
    active_run_pk, message_seq = connection.execute(
        sa.select(sessions.c.active_run_pk, sessions.c.message_seq)
        .where(sessions.c.pk == loaded.session_pk)
        .with_for_update()
    ).one()
    return active_run_pk, message_seq
