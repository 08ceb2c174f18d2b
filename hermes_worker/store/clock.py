"""Steps of the database's clock: how they are noticed, and how stored times are moved with it.

A time that lies ahead (a deadline, the end of a wait) stays as far ahead as it was; a time from which an age is
measured keeps the age. Times of past events (when a run ended, an audit entry) stay as they were written, and the slots
of jobs follow the clock. A row that was written after the step and before it was noticed is right already, and is
recognised by its own stamp:

    clock set back by one hour at 12:00       before    after the correction
    resume_at (ahead)                         12:10     11:10     still in ten minutes
    hinted_at (measures an age)               11:58     10:58     still two minutes old
    finished_at (an event)                    11:50     11:50     the record of it stays
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.clock_steps import ClockLook, decide_step
from hermes_worker.observe import log
from hermes_worker.store.engine.database import db_now
from hermes_worker.store.engine.prepared import Nothing, Prepared
from hermes_worker.store.rows import build_insert_ignoring
from hermes_worker.store.tables import (
    RUN_IS_OPEN,
    alerts,
    api_keys,
    artifact_gatherings,
    artifacts,
    blobs,
    channels,
    chat_people,
    chats,
    deliveries,
    firings,
    hook_calls,
    idempotency_keys,
    inbound_files,
    kept_answers,
    key_states,
    logins,
    maintenance,
    mcp_servers,
    page_logins,
    processes,
    resources,
    runs,
    submit_rates,
    text_keys,
    tool_calls,
    waits,
    webhook_events,
    workers,
)

CLOCK = "clock"
"""The row of ``maintenance`` whose ``hold_until`` is the sum of all steps that stored times were moved by."""
SWEEP = "sweep"


STEADY_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""A clock of this machine that cannot be set and that, where the system has one, goes on while the machine sleeps."""
_SWEPT_WITHIN_S = 60.0


class LastSweep(NamedTuple):
    """When the last sweep was, until when nothing is taken from live workers, and what time it is."""

    ran_at: float
    hold_until: float
    now: float
    shifted_s: float


_shifted = sa.select(maintenance.c.hold_until).where(maintenance.c.name == CLOCK).scalar_subquery()
_LAST_SWEEP: Prepared[Nothing, LastSweep] = Prepared(
    sa.select(
        maintenance.c.ran_at,
        maintenance.c.hold_until,
        db_now().label("now"),
        sa.func.coalesce(_shifted, 0.0).label("shifted_s"),
    ).where(maintenance.c.name == SWEEP),
    gives=LastSweep,
)


def is_clock_trusted(connection: Connection) -> bool:
    """Whether the clock is where the last sweep saw it, so that what is over by it may be ended. When no process has
    swept for a while, or the clock was set since, the next sweep has to decide."""
    seen = _LAST_SWEEP.first(connection, {})
    return seen is None or not seen.ran_at or abs(seen.now - seen.ran_at) < _SWEPT_WITHIN_S


@dataclass(slots=True, kw_only=True)
class ClockWatch:
    """The memory of one sweeping process about the clocks. Not thread-safe: one thread sweeps."""

    swept_every_s: float
    last: ClockLook | None = field(default=None)

    def read_clocks(self, connection: Connection) -> tuple[LastSweep | None, ClockLook | None]:
        """Read the clocks. Returns the last sweep of any process, and what this look found; ``None`` for both before
        the first sweep."""
        began = time.clock_gettime(STEADY_CLOCK)
        seen = _LAST_SWEEP.first(connection, {})
        if seen is None:
            return None, None
        ended = time.clock_gettime(STEADY_CLOCK)
        return seen, ClockLook(at=seen.now, began=began, ended=ended, shifted_s=seen.shifted_s, swept_at=seen.ran_at)

    def correct_times(
        self, connection: Connection, look: ClockLook, *, term_s: float
    ) -> tuple[float | None, ClockLook | None]:
        """Move stored times if the clock was stepped. Returns by how many seconds, ``None`` when no process may sweep
        before the next look; and what to store in ``last`` once the transaction is committed."""
        step_s = decide_step(self.last, look, swept_every_s=self.swept_every_s)
        if self.last is None or not step_s:
            return step_s, look
        connection.execute(
            build_insert_ignoring(connection, maintenance), {"name": CLOCK, "ran_at": 0.0, "hold_until": 0.0}
        )
        this = (maintenance.c.name == CLOCK) & (maintenance.c.hold_until == look.shifted_s)
        after = replace(look, shifted_s=look.shifted_s + step_s, swept_at=look.at)
        counted = sa.update(maintenance).where(this).values(ran_at=look.at, hold_until=after.shifted_s)
        if connection.execute(counted).rowcount == 0:
            return None, self.last  # another process corrects the clock
        for table in MOVED:
            connection.execute(_build_move(table, step_s, now=look.at, since_s=look.ended - self.last.began))
        alive = workers.c.state == "alive"
        connection.execute(sa.update(workers).where(alive).values(expires_at=look.at + term_s))
        log.warning("clock.stepped", seconds=round(step_s, 1))
        return step_s, after


@dataclass(frozen=True, slots=True, kw_only=True)
class _MovedColumns:
    """The columns of a table that move with the clock."""

    where: sa.ColumnElement[bool] = field(default_factory=sa.true)
    behind: tuple[str, ...] = ()
    """Columns that hold the time at which they were written."""
    ahead: Mapping[str, str] = field(default_factory=dict)
    """Columns that lie ahead of the time at which they were written, and the column of the row that tells that time."""
    terms: tuple[str, ...] = ()
    """Columns that lie ahead by little and are rewritten again and again."""


_HINTED = ("hinted_at", "claimed_at")


def _open(table: sa.Table) -> sa.ColumnElement[bool]:
    return table.c.settled_at.is_(None)


MOVED: Mapping[sa.Table, _MovedColumns] = {
    runs: _MovedColumns(
        where=sa.and_(RUN_IS_OPEN),
        behind=(*_HINTED, "updated_at", "started_at"),
        ahead={"deadline_at": "created_at", "not_before": "created_at", "resume_at": "updated_at"},
    ),
    tool_calls: _MovedColumns(where=_open(tool_calls), behind=_HINTED, ahead={"deadline_at": "claimed_at"}),
    waits: _MovedColumns(where=waits.c.closed_at.is_(None), behind=("opened_at",), ahead={"expires_at": "opened_at"}),
    artifact_gatherings: _MovedColumns(where=_open(artifact_gatherings), behind=_HINTED),
    inbound_files: _MovedColumns(where=_open(inbound_files), behind=_HINTED, ahead={"gathers_until": "created_at"}),
    hook_calls: _MovedColumns(where=_open(hook_calls), behind=_HINTED),
    firings: _MovedColumns(where=firings.c.ended_at.is_(None), behind=_HINTED),
    deliveries: _MovedColumns(
        where=_open(deliveries),
        behind=(*_HINTED, "first_attempt_at", "shown_at", "updated_at"),
        ahead={"not_before": "updated_at"},
    ),
    processes: _MovedColumns(
        where=processes.c.next_look_at.is_not(None) | processes.c.told_at.is_not(None),
        behind=("told_at",),
        ahead={"deadline_at": "started_at"},
        terms=("next_look_at",),
    ),
    key_states: _MovedColumns(behind=("since", "woken_at"), ahead={"probe_at": "since"}, terms=("probe_until",)),
    idempotency_keys: _MovedColumns(behind=("created_at",)),
    kept_answers: _MovedColumns(behind=("created_at",), terms=("held_until",)),
    api_keys: _MovedColumns(
        behind=("created_at",), ahead={"expires_at": "created_at"}
    ),  # so a new key keeps its lifetime
    page_logins: _MovedColumns(ahead={"expires_at": "created_at"}),
    logins: _MovedColumns(ahead={"expires_at": "updated_at", "renew_at": "updated_at"}, terms=("claimed_until",)),
    chat_people: _MovedColumns(behind=("asked_at",), ahead={"expires_at": "asked_at"}),
    chats: _MovedColumns(behind=("updated_at",)),
    channels: _MovedColumns(behind=("looked_at", "error_at"), terms=("lease_until", "locked_until")),
    webhook_events: _MovedColumns(behind=("received_at",)),
    resources: _MovedColumns(behind=("used_at",), terms=("expires_at",)),
    mcp_servers: _MovedColumns(behind=("looked_at",), terms=("due_at",)),
    submit_rates: _MovedColumns(behind=("at",)),
    text_keys: _MovedColumns(behind=("last_used_at",)),
    artifacts: _MovedColumns(where=artifacts.c.expires_at.is_not(None), ahead={"expires_at": "created_at"}),
    blobs: _MovedColumns(where=blobs.c.released_at.is_not(None), behind=("released_at",)),
    alerts: _MovedColumns(where=alerts.c.recovered_at.is_(None), behind=("raised_at", "clear_since")),
    maintenance: _MovedColumns(
        where=maintenance.c.name.not_in((CLOCK, SWEEP)) & (maintenance.c.ran_at > 0), behind=("ran_at",)
    ),
}
"""The tables in the order in which a step locks them."""


def _build_move(table: sa.Table, step_s: float, *, now: float, since_s: float) -> sa.Update:
    """Build the update that moves the times a table's rows had before the step, which was at most ``since_s`` seconds
    ago."""

    def move_column(column: sa.Column[Any], is_old: sa.ColumnElement[bool]) -> sa.ColumnElement[Any]:
        return sa.case((is_old, column + step_s), else_=column)

    def is_written_before(column: sa.Column[Any]) -> sa.ColumnElement[bool]:
        return sa.or_(column <= now - since_s, column > now)

    rule = MOVED[table]
    values = {name: move_column(table.c[name], is_written_before(table.c[name])) for name in rule.behind}
    values |= {
        name: move_column(table.c[name], is_written_before(table.c[stamp])) for name, stamp in rule.ahead.items()
    }
    # After a step forward, a term in the future may be new, so only those in the past are moved; an old one that is
    # still in the future ends earlier by the step.
    for name in rule.terms:
        values[name] = move_column(table.c[name], table.c[name] <= now) if step_s > 0 else table.c[name] + step_s
    return sa.update(table).where(rule.where).values(values)
