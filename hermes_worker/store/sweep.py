"""The sweeper: find what lost its worker or its message, and decide on it by the same rules as everything else.

Theory of operation. The sweeper is the guarantee, Celery is not: the broker may lose, repeat or reorder messages, or be
wiped. Any number of processes may sweep; ``maintenance`` lets one of them do it per interval, and every step is a
compare-and-set, so two at once are harmless.

A sweep asks four questions, each by a partial index of open rows, so it costs what is wrong and not what there is:

    which claims lost their worker?    workers.expires_at has passed: CallLost or IterationLost, for core.step
    which rows lost their message?     due, unclaimed, and provably not in a queue any more: send the hint again
    what waits for a time?             deadlines, idle limits, parked runs, questions, postponed runs
    what was left half done?           stops, orphans, places, permits, counters, alerts

*When is a message lost?* A row that is due but unclaimed was hinted at ``hinted_at``. Queues are first in, first out:
once a worker has started a message that was hinted clearly *later* (its watermark), ours is not in the queue any more.
And an empty queue holds nothing at all. In any other case the message is waiting behind others, and sending it again
would only make the queue longer. That is why a backlog of any size is never amplified.

    queue "tools": depth 20,000, newest started hint 12:00:40, grace 5 s
    row hinted 12:00:20    before 12:00:35: its message was lost, send it again
    row hinted 12:00:38    still within the grace, wait
    row hinted 12:01:10    later than the newest started hint: it waits in the backlog, do nothing

*When may something be taken from a live worker?* When no process has swept for most of a lease, the database was away,
and all leases have lapsed at once. Sweeps take nothing then until ``hold_until``, so that live workers can
renew first. The same holds after a step of the database's clock (``store.clock``).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypedDict, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core import events as ev
from hermes_worker.core.effects import AskAuxiliary, CallEffect, Effect, Iterate, Prepare, RunTool
from hermes_worker.core.errors import Failure, UnavailableError
from hermes_worker.core.fair_share import FleetPlace
from hermes_worker.core.pricing import Pricing
from hermes_worker.core.run import STATE_VERSION, Call, CallStatus, ExitReason, Run, RunStatus
from hermes_worker.core.run_events import RunEvent, RunEventName
from hermes_worker.core.step import apply_event, compute_retry_delay_s
from hermes_worker.installed import list_upkeep
from hermes_worker.observe import log
from hermes_worker.store.clock import ClockWatch, LastSweep
from hermes_worker.store.engine.database import Database, db_now, select_db_now
from hermes_worker.store.engine.prepared import PkRow, Prepared
from hermes_worker.store.engine.sealing import KeyMissing
from hermes_worker.store.hooks.pending_calls import PRUNE_HOOK_CALLS, resend_hook_calls, take_back_hook_calls
from hermes_worker.store.inbound_files import resend_files, take_back_files
from hermes_worker.store.key_states import wake_parked
from hermes_worker.store.outbox.alerts import KEPT_S, AlertPolicy, alert_quarantines, get_alert_targets, sweep_alerts
from hermes_worker.store.outbox.deliveries import resend_deliveries, take_back_deliveries, wake_deliveries
from hermes_worker.store.row_keys import CallKey, HeldCallKey, LeaseTokenRow, LostHintsBounds, RunKey
from hermes_worker.store.rows import Hint, LoadedRun, build_insert_ignoring, lock_run
from hermes_worker.store.run_ends import RunEnd, list_uncounted_ends
from hermes_worker.store.runs.admission import sweep_places
from hermes_worker.store.runs.call_claims import TAKE_UNBEGUN
from hermes_worker.store.runs.chains import finish_stops
from hermes_worker.store.runs.children import list_orphans
from hermes_worker.store.runs.permits import sweep_permits
from hermes_worker.store.runs.step_plan import StepOutput
from hermes_worker.store.runs.step_writer import begin_postponed, end_broken, save_step
from hermes_worker.store.runs.waits import expire_question, list_expired
from hermes_worker.store.statistics import STEPS_RETRIED, add_amounts, count_ended_rows
from hermes_worker.store.tables import (
    PUT_OFF,
    alerts,
    auxiliary_calls,
    deliveries,
    firings,
    maintenance,
    runs,
    sessions,
    tool_calls,
    workers,
)

_BATCH = 200
"""Rows of one kind that one sweep repairs; the rest wait for the next."""
_RESEND_WAIT_S_MAX = 30.0
_HINTS_COUNTED = 100
_AWAY_PART = 0.6
"""Part of a lease. It is less than the three quarters that a live worker's lease has left at any time, since a worker
renews four times per lease."""
_WORKERS_KEPT_S = 86_400.0
_ANSWERS_KEPT_S = 86_400.0
_ALERTS_EVERY_S = 5.0
MODEL_QUEUE = "model"
TOOLS_QUEUE = "tools"
DELIVERY_QUEUE = "delivery"
_APART = "suspect_"
"""Prefix of a queue's name: the same work for suspects, which only lanes consume."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPolicy:
    interval_s: float
    """Seconds between two sweeps, over all processes together."""
    ttl_s: float
    resend_grace_s: float
    """Seconds that a message has to be claimed before it can count as lost."""
    model_call_s_max: float = 3600.0
    """Seconds after which the claim on a model call is taken away even from a live worker."""
    alerts: AlertPolicy = field(default_factory=AlertPolicy)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """The result of one sweep."""

    hints: tuple[Hint, ...] = ()
    workers_expired: int = 0
    iterations_lost: int = 0
    calls_lost: int = 0
    resent: int = 0
    resumed: int = 0
    expired: int = 0


_Orphan = TypeVar("_Orphan", bound="OrphanedCall | OrphanedTurn")


class Sweeper:
    """Repairs one database. Thread-safe; harmless in any number of processes."""

    def __init__(
        self,
        database: Database,
        policy: SweepPolicy,
        pricing: Pricing | None = None,
        *,
        tell: Callable[[Sequence[RunEnd]], None] | None = None,
    ) -> None:
        """``pricing`` says what model calls cost whose claims are taken away; ``tell`` is called with runs that are
        over."""
        self._tell = tell
        self._database = database
        self._pricing = pricing
        self._policy = policy
        self._next_alerts = 0.0
        self.clock = ClockWatch(swept_every_s=policy.interval_s)

    def sweep(self, depths: Mapping[str, int] | None) -> SweepResult | None:
        """Do one round if it is due; ``None`` when another process did it in this interval.

        ``depths`` is the number of messages in each queue; ``None`` when the broker cannot be asked, and then nothing
        is sent again.
        """
        sweep = self._claim_sweep()
        if sweep is None:
            return None
        now, may_expire = sweep
        expired_workers = self._expire_workers() if may_expire else 0
        lost_calls, call_hints = self._take_back_calls(sweep)
        lost_iterations, iteration_hints = self._take_back_iterations(sweep)
        wake_parked(self._database)
        resumed = self._resume_due()
        ended = self._advance_each(self._find_runs(_PAST_DEADLINE, now), lambda run: _WALL_CLOCK)
        idle = self._advance_each(self._find_runs(_PAST_IDLE, now), lambda run: _IDLE) if may_expire else []
        stopped = self._advance_each(self._find_orphans(), lambda run: ev.StopRequested())
        stopped += finish_stops(self._database, most=_BATCH)
        unanswered = self._expire_questions(now)
        again = self._resend_lost(depths) if depths is not None else []
        lost_deliveries = take_back_deliveries(self._database)
        if lost_deliveries:
            log.warning("lease.expired", step="delivery", count=lost_deliveries)
        woken = wake_deliveries(self._database)
        woken += take_back_hook_calls(self._database)
        woken += take_back_files(self._database)
        woken += [hint for _, sweep_rows in list_upkeep("sweep_rows") for hint in sweep_rows(self._database)]
        woken += sweep_places(self._database)
        woken += sweep_permits(self._database)
        woken += self._count_ended()
        if policy_alerts := self._take_alert_turn():
            woken += sweep_alerts(self._database, policy_alerts)
        return SweepResult(
            hints=(*call_hints, *iteration_hints, *resumed, *ended, *idle, *stopped, *unanswered, *again, *woken),
            workers_expired=expired_workers,
            iterations_lost=lost_iterations,
            calls_lost=lost_calls,
            resent=len(again),
            resumed=len(resumed),
            expired=len(ended) + len(idle),
        )

    def _take_alert_turn(self) -> AlertPolicy | None:
        """Return the policy for alerts if it is time to look for troubles; else ``None``."""
        now = time.monotonic()
        if now < self._next_alerts or not (self._policy.alerts.targets or get_alert_targets(self._database)):
            return None
        self._next_alerts = now + _ALERTS_EVERY_S
        return self._policy.alerts

    def _count_ended(self) -> list[Hint]:
        """Report runs that are over to ``tell``, then count them: each is reported at least once. A failure here is
        logged and does not stop the sweep, so its hints are sent all the same."""
        try:
            if self._tell is None and not self._policy.alerts.targets:
                count_ended_rows(self._database)
                return []
            ends = list_uncounted_ends(self._database)
            if self._tell is not None:
                self._tell(ends)
            hints = alert_quarantines(self._database, self._policy.alerts, ends) if self._policy.alerts.targets else []
            count_ended_rows(self._database, only=[end.pk for end in ends])
            return hints
        except UnavailableError:
            raise
        except Exception:
            log.exception("thread.failed", doing="count")
            return []

    def prune(self) -> None:
        """Delete rows that are not needed any more and have no retention rule: used answers, workers long gone, and
        what deleted rows left in SQLite's log. Idempotent. Rows with rules are deleted by ``features.retention``."""
        with self._database.write() as connection:
            for statement in _PRUNE:
                statement.run(connection, {})
        self._database.truncate_log()

    def _claim_sweep(self) -> _Round | None:
        """Claim this interval's sweep; ``None`` when another process has it."""
        with self._database.write() as connection:
            seen, look = self.clock.read_clocks(connection)
            if seen is None or look is None:
                values = {"name": "sweep", "ran_at": 0.0, "hold_until": 0.0}
                connection.execute(build_insert_ignoring(connection, maintenance), values)
                return None
            step_s, last = self.clock.correct_times(connection, look, term_s=self._policy.ttl_s)
            sweep = None if step_s is None else self._claim_round(connection, seen, is_stepped=step_s != 0)
        self.clock.last = last
        return sweep

    def _claim_round(self, connection: Connection, seen: LastSweep, *, is_stepped: bool) -> _Round | None:
        interval_s, ttl_s = self._policy.interval_s, self._policy.ttl_s
        if not is_stepped and abs(seen.now - seen.ran_at) < interval_s * 0.9:
            return None
        # No process swept for most of a lease: the database or all processes were down. Leases of living workers may
        # have run out meanwhile; give the workers time to renew them before their claims are taken.
        was_away = seen.ran_at > 0 and seen.now - seen.ran_at > ttl_s * _AWAY_PART
        hold_until = seen.now + ttl_s / 3 if was_away or is_stepped else seen.hold_until
        turn: _TakenSweep = {"seen_ran_at": seen.ran_at, "now": seen.now, "new_hold_until": hold_until}
        if _TAKE_SWEEP.run(connection, turn) == 0:
            return None
        return _Round(now=seen.now, may_expire=seen.now >= hold_until)

    def _expire_workers(self) -> int:
        with self._database.statement() as connection:
            return _EXPIRE_WORKERS.run(connection, {})

    def _take_back_calls(self, sweep: _Round) -> tuple[int, list[Hint]]:
        with self._database.read() as connection:
            orphans = _LOST_CALLS.all(connection, {"now": sweep.now, "may_expire": sweep.may_expire})

        def lose(connection: Connection, loaded: LoadedRun, orphan: OrphanedCall) -> list[Hint] | None:
            if not _still_holds(connection, orphan):
                return None
            _end_lane_of(connection, orphan, loaded.run.calls[orphan.position])
            has_begun = not _forbid_begin(connection, orphan)
            event = ev.CallLost(position=orphan.position, loss=LOSSES[orphan.state], has_begun=has_begun)
            step = "auxiliary" if loaded.run.calls[orphan.position].asks else "tool"
            return _save_loss(connection, loaded, event, f"{step}:{orphan.name}", self._pricing)

        return self._take_back_each(orphans, lose)

    def _take_back_iterations(self, sweep: _Round) -> tuple[int, list[Hint]]:
        too_old_at = sweep.now - self._policy.model_call_s_max
        terms: _LostIterations = {"too_old_at": too_old_at, "may_expire": sweep.may_expire}
        with self._database.read() as connection:
            orphans = _LOST_ITERATIONS.all(connection, terms)

        def lose(connection: Connection, loaded: LoadedRun, orphan: OrphanedTurn) -> list[Hint] | None:
            if loaded.lease_token != orphan.lease_token:
                return None
            _end_lane_of(connection, orphan, loaded.run)
            event = ev.IterationLost(loss=LOSSES[orphan.state])
            step = "prepare" if loaded.run.wants_preparing else "model"
            return _save_loss(connection, loaded, event, step, self._pricing)

        return self._take_back_each(orphans, lose)

    def _take_back_each(
        self, orphans: Sequence[_Orphan], lose: Callable[[Connection, LoadedRun, _Orphan], list[Hint] | None]
    ) -> tuple[int, list[Hint]]:
        """Take the claims of ``orphans`` away, each under its run's lock. Returns how many there were, and the hints to
        send."""
        hints: list[Hint] = []
        lost = 0
        for orphan in orphans:

            def act(connection: Connection, loaded: LoadedRun, orphan: _Orphan = orphan) -> list[Hint] | None:
                return lose(connection, loaded, orphan)

            sent = self._repair_run(orphan.run_pk, act)
            if sent is None:
                continue
            lost += 1
            hints += sent
            what = orphan.name if isinstance(orphan, OrphanedCall) else "model"
            log.warning("lease.expired", run_id=orphan.run_id, step=what, worker=orphan.lease_owner, state=orphan.state)
        return lost, hints

    def _repair_run(self, pk: int, act: Callable[[Connection, LoadedRun], list[Hint] | None]) -> list[Hint] | None:
        """Call ``act`` with one run under its lock. A run whose rows make no sense is ended, one whose texts need a
        missing key waits for it, and neither holds up another run."""
        try:
            with self._database.write() as connection:
                loaded = lock_run(connection, pk)
                return None if loaded is None else act(connection, loaded)
        except KeyMissing as error:
            log.warning("encryption.key_missing", run_pk=pk, error=str(error))
            return None
        except UnavailableError:
            raise
        except Exception as error:
            log.error("run.broken", run_pk=pk, error=f"{type(error).__name__}: {error}")
            failure = Failure(kind="corrupt_state", message="a stored row of this run cannot be read; see the log")
            return end_broken(self._database, pk, ev.RunBroken(reason=ExitReason.CORRUPT_STATE, failure=failure))

    def _find_runs(self, statement: Prepared[_AsOf, PkRow], now: float) -> list[int]:
        """Find the row ids of the runs that ``statement`` selects."""
        with self._database.read() as connection:
            return [row.pk for row in statement.all(connection, {"now": now})]

    def _expire_questions(self, now: float) -> list[Hint]:
        """Answer questions to people whose time is over, as their kind prescribes."""
        with self._database.read() as connection:
            pks = list_expired(connection, now=now, most=_BATCH)
        hints: list[Hint] = []
        for pk in pks:
            hints += self._repair_run(pk, expire_question) or []
        return hints

    def _resume_due(self) -> list[Hint]:
        """Continue runs that waited for a time, and begin postponed ones."""
        with self._database.read() as connection:
            found = _DUE_BY_TIME.all(connection, {})
        hints = self._advance_each([row.pk for row in found if not row.is_put_off], lambda run: ev.WaitEnded())
        for row in found:
            if row.is_put_off:
                hints += self._repair_run(row.pk, begin_postponed) or []
        return hints

    def _find_orphans(self) -> list[int]:
        """Find runs whose parent ended or is being stopped. The process that ends a parent stops them too; this is for
        those that died before they did."""
        with self._database.read() as connection:
            return list_orphans(connection, most=_BATCH)

    def _advance_each(self, pks: Iterable[int], event_for: Callable[[LoadedRun], ev.Event]) -> list[Hint]:
        hints: list[Hint] = []

        def advance(connection: Connection, loaded: LoadedRun) -> list[Hint] | None:
            event = event_for(loaded)
            was_resumed = isinstance(event, ev.WaitEnded) and loaded.run.resume_at is None
            if loaded.run.status.is_terminal or was_resumed:
                return None
            return save_step(connection, loaded, apply_event(loaded.run, event), StepOutput(pricing=self._pricing))

        for pk in pks:
            hints += self._repair_run(pk, advance) or []
        return hints

    def _resend_lost(self, depths: Mapping[str, int]) -> list[Hint]:
        marks, has_suspects = self._load_watermarks()
        grace = self._policy.resend_grace_s
        hints: list[Hint] = []
        with self._database.write() as connection:
            for is_suspect in (False, True) if has_suspects else (False,):
                for queue, statements in _RESEND.items():
                    before = _decide_lost_before(_APART + queue if is_suspect else queue, depths, marks, grace)
                    for statement in statements[is_suspect]:
                        rows = statement.all(connection, {"grace": grace, "before": before})
                        hints += [Hint(effect=_to_effect(row, is_suspect=is_suspect), at=row.hinted_at) for row in rows]
        for is_suspect in (False, True) if has_suspects else (False,):
            before = _decide_lost_before(
                _APART + DELIVERY_QUEUE if is_suspect else DELIVERY_QUEUE, depths, marks, grace
            )
            hints += resend_deliveries(self._database, grace_s=grace, before=before, is_suspect=is_suspect)
        hints += resend_files(
            self._database, grace_s=grace, before=_decide_lost_before(DELIVERY_QUEUE, depths, marks, grace)
        )
        before = _decide_lost_before(TOOLS_QUEUE, depths, marks, grace)
        hints += resend_hook_calls(self._database, grace_s=grace, before=before)
        return hints + [
            hint
            for _, resend_rows in list_upkeep("resend_rows")
            for hint in resend_rows(self._database, grace_s=grace, before=before)
        ]

    def _load_watermarks(self) -> tuple[dict[str, float], bool]:
        """Load for each queue the newest hint that any live worker has started; and whether any suspect is due."""
        with self._database.read() as connection:
            rows = _WATERMARKS.all(connection, {})
        newest: dict[str, float] = {}
        for worker in rows:
            for queue, at in json.loads(worker.watermarks or "{}").items():
                newest[queue] = max(newest.get(queue, 0.0), float(at))
        return newest, bool(rows[0].are_due)


def _decide_lost_before(queue: str, depths: Mapping[str, int], marks: Mapping[str, float], grace: float) -> float:
    """Return the time (epoch seconds) such that rows of this queue hinted before it have lost their message."""
    if depths.get(queue, 0) == 0:
        return _ALWAYS
    return marks.get(queue, 0.0) - grace


_ALWAYS = 1e18
_WALL_CLOCK = ev.DeadlinePassed(
    reason=ExitReason.WALL_CLOCK_EXCEEDED,
    failure=Failure(
        kind="wall_clock_exceeded",
        message="the run took longer than its wall-clock limit; submit it with a larger max_wall_s if it needs more",
    ),
)
_IDLE = ev.DeadlinePassed(
    reason=ExitReason.IDLE_EXCEEDED,
    failure=Failure(kind="idle_exceeded", message="the run made no progress for longer than its idle limit"),
)


class _Round(NamedTuple):
    """A sweep that this process does. Deadlines are compared with ``now`` and not with the clock at the time of the
    statement, which may have been stepped since it was checked."""

    now: float
    may_expire: bool
    """Whether anything may be taken from live workers."""


class _AsOf(TypedDict):
    now: float


class _TakenSweep(TypedDict):
    seen_ran_at: float
    now: float
    new_hold_until: float


class _Watermarks(NamedTuple):
    watermarks: str | None
    are_due: bool


class _DueByTime(NamedTuple):
    pk: int
    is_put_off: int


class _LostCalls(_AsOf):
    may_expire: bool


class _LostIterations(TypedDict):
    too_old_at: float
    may_expire: bool


class OrphanedCall(NamedTuple):
    """A tool call whose claim is over, and the state of the worker that held it."""

    run_pk: int
    run_id: str
    iteration: int
    position: int
    lease_token: str | None
    lease_owner: int
    name: str
    state: str | None


class OrphanedTurn(NamedTuple):
    """A model call whose claim is over, and the state of the worker that held it."""

    run_pk: int
    run_id: str
    lease_token: str | None
    lease_owner: int
    state: str | None


class _Resent(NamedTuple):
    run_id: str
    iteration: int
    position: int | None
    """``None`` for a model call."""
    asks: int | None
    attempt: int
    hinted_at: float
    prepares: int | None
    """Not null for what is due before the first model call."""


class _WorkerKey(TypedDict):
    worker: int


class _DelayedTurn(RunKey):
    delay_s: float


class _DelayedCall(CallKey):
    delay_s: float


_TAKE_SWEEP = Prepared(
    sa.update(maintenance)
    .where(maintenance.c.name == "sweep", maintenance.c.ran_at == sa.bindparam("seen_ran_at"))
    .values(ran_at=sa.bindparam("now"), hold_until=sa.bindparam("new_hold_until")),
    takes=_TakenSweep,
)

_EXPIRE_WORKERS = Prepared(
    sa.update(workers).where(workers.c.state == "alive", workers.c.expires_at < db_now()).values(state="dead")
)


def _has_suspects(table: sa.Table) -> sa.ColumnElement[bool]:
    return sa.exists().where(table.c.hinted_at < select_db_now(), table.c.deaths.is_not(None))


_suspects = sa.select(sa.or_(*map(_has_suspects, (runs, tool_calls, deliveries))).label("are_due")).subquery()
_WATERMARKS = Prepared(
    sa.select(workers.c.watermarks, _suspects.c.are_due).select_from(
        _suspects.outerjoin(workers, workers.c.state == "alive")
    ),
    gives=_Watermarks,
)
"""A row for each live worker; one without watermarks when there is none."""

_CLAIMABLE = (runs, tool_calls, deliveries, firings)
_PRUNE = (
    Prepared(
        sa.delete(auxiliary_calls).where(
            sa.exists().where(
                tool_calls.c.run_pk == auxiliary_calls.c.run_pk,
                tool_calls.c.iteration == auxiliary_calls.c.iteration,
                tool_calls.c.position == auxiliary_calls.c.position,
                tool_calls.c.settled_at < db_now() - _ANSWERS_KEPT_S,
            )
        )
    ),
    Prepared(
        sa.delete(workers).where(
            workers.c.state != "alive",
            workers.c.expires_at < db_now() - _WORKERS_KEPT_S,
            # Keep the row of a worker while it has claims: how the worker ended decides what happens to them.
            *(sa.not_(sa.exists().where(table.c.lease_owner == workers.c.pk)) for table in _CLAIMABLE),
        )
    ),
    PRUNE_HOOK_CALLS,
    Prepared(sa.delete(alerts).where(alerts.c.recovered_at < db_now() - KEPT_S)),
)

_resuming = (
    sa.select(runs.c.pk, sa.literal(0).label("is_put_off"))
    .where(runs.c.resume_at < select_db_now(), runs.c.state_version <= STATE_VERSION)
    .order_by(runs.c.resume_at)
    .limit(_BATCH)
    .subquery()
)
_beginning = (
    sa.select(runs.c.pk, sa.literal(1).label("is_put_off"))
    .join(sessions, sessions.c.pk == runs.c.session_pk)
    .where(
        sa.text(f"runs.{PUT_OFF}".replace(" and ", " and runs.")),
        runs.c.not_before <= select_db_now(),
        sa.func.coalesce(runs.c.place, FleetPlace.WAITS.value) == FleetPlace.WAITS.value,
        sessions.c.active_run_pk.is_(None),
        sa.func.coalesce(runs.c.place, FleetPlace.WAITS.value) == FleetPlace.WAITS.value,
        runs.c.state_version <= STATE_VERSION,
    )
    .order_by(runs.c.not_before, runs.c.pk)
    .limit(_BATCH)
    .subquery()
)
_DUE_BY_TIME = Prepared(sa.union_all(sa.select(_resuming), sa.select(_beginning)), gives=_DueByTime)
"""Runs that wait for capacity until now, and runs that were to begin later whose session is free."""

_now: sa.ColumnElement[float] = sa.bindparam("now", type_=sa.Double())
_PAST_DEADLINE = Prepared(
    sa.select(runs.c.pk)
    .where(
        runs.c.deadline_at < _now,
        runs.c.deadline_at.is_not(None),
        sa.text("status not in ('completed', 'failed', 'cancelled', 'expired')"),
        runs.c.state_version <= STATE_VERSION,
    )
    .order_by(runs.c.deadline_at)
    .limit(_BATCH),
    takes=_AsOf,
    gives=PkRow,
)

_PAST_IDLE = Prepared(
    sa.select(runs.c.pk)
    .where(
        sa.text("idle_s_max is not null and status = 'running'"),
        runs.c.updated_at + runs.c.idle_s_max < _now,
        runs.c.state_version <= STATE_VERSION,
    )
    .limit(_BATCH),
    takes=_AsOf,
    gives=PkRow,
)

_LOST_CALLS = Prepared(
    sa.select(
        tool_calls.c.run_pk,
        runs.c.run_id,
        tool_calls.c.iteration,
        tool_calls.c.position,
        tool_calls.c.lease_token,
        tool_calls.c.lease_owner,
        tool_calls.c.name,
        workers.c.state,
    )
    .join(runs, runs.c.pk == tool_calls.c.run_pk)
    .outerjoin(workers, workers.c.pk == tool_calls.c.lease_owner)
    .where(
        tool_calls.c.lease_owner.is_not(None),
        runs.c.state_version <= STATE_VERSION,
        sa.or_(
            workers.c.state.is_(None),
            workers.c.state != "alive",
            sa.and_(sa.bindparam("may_expire", type_=sa.Boolean()), tool_calls.c.deadline_at < _now),
        ),
    )
    .limit(_BATCH),
    takes=_LostCalls,
    gives=OrphanedCall,
)

_LOST_ITERATIONS = Prepared(
    sa.select(runs.c.pk.label("run_pk"), runs.c.run_id, runs.c.lease_token, runs.c.lease_owner, workers.c.state)
    .outerjoin(workers, workers.c.pk == runs.c.lease_owner)
    .where(
        runs.c.lease_owner.is_not(None),
        runs.c.state_version <= STATE_VERSION,
        sa.or_(
            workers.c.state.is_(None),
            workers.c.state != "alive",
            sa.and_(
                sa.bindparam("may_expire", type_=sa.Boolean()),
                runs.c.claimed_at < sa.bindparam("too_old_at", type_=sa.Double()),
            ),
        ),
    )
    .limit(_BATCH),
    takes=_LostIterations,
    gives=OrphanedTurn,
)


def _build_wait_s(hints: sa.Column[int]) -> sa.ColumnElement[float]:
    """Seconds that a hint has before it counts as lost, by how often it was sent: the grace, doubled each time, at most
    ``_RESEND_WAIT_S_MAX``."""
    doubled = sa.case((hints == 0, 1.0), (hints == 1, 2.0), (hints == 2, 4.0), else_=8.0)
    wait: sa.ColumnElement[float] = sa.bindparam("grace", type_=sa.Double()) * doubled
    return sa.case((wait > _RESEND_WAIT_S_MAX, _RESEND_WAIT_S_MAX), else_=wait)


def _increment(hints: sa.Column[int]) -> sa.ColumnElement[int]:
    """Count a hint, up to ``_HINTS_COUNTED``: the column is a small integer and must not overflow while no worker is
    there."""
    return sa.case((hints < _HINTS_COUNTED, hints + 1), else_=hints)


def _has_lost_its_hint(table: sa.Table, *, is_suspect: bool) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        table.c.hinted_at < select_db_now() - sa.bindparam("grace", type_=sa.Double()),
        table.c.hinted_at < sa.bindparam("before", type_=sa.Double()),
        table.c.hinted_at < select_db_now() - _build_wait_s(table.c.hints),
        table.c.deaths.is_not(None) if is_suspect else table.c.deaths.is_(None),
    )


def _build_resend_iterations(*, prepares: bool, is_suspect: bool) -> Prepared[LostHintsBounds, _Resent]:
    due = (
        sa.select(runs.c.pk)
        .where(
            *_has_lost_its_hint(runs, is_suspect=is_suspect),
            runs.c.state_version <= STATE_VERSION,
            runs.c.prepares.is_not(None) if prepares else runs.c.prepares.is_(None),
        )
        .order_by(runs.c.hinted_at)
        .limit(_BATCH)
        .with_for_update(skip_locked=True)
    )
    return Prepared(
        sa.update(runs)
        .where(runs.c.pk.in_(due))
        .values(hinted_at=db_now(), hints=_increment(runs.c.hints))
        .returning(
            runs.c.run_id,
            runs.c.iteration,
            sa.null().label("position"),
            sa.null().label("asks"),
            runs.c.attempt,
            runs.c.hinted_at,
            runs.c.prepares,
        ),
        takes=LostHintsBounds,
        gives=_Resent,
    )


def _build_resend_calls(*, asks: bool, is_suspect: bool) -> Prepared[LostHintsBounds, _Resent]:
    due = (
        sa.select(tool_calls.c.run_pk, tool_calls.c.iteration, tool_calls.c.position)
        .where(
            *_has_lost_its_hint(tool_calls, is_suspect=is_suspect),
            # As in the partial index.
            sa.text("tool_calls.asks = 1" if asks else "coalesce(tool_calls.asks, 0) = 0"),
            sa.exists().where(runs.c.pk == tool_calls.c.run_pk, runs.c.state_version <= STATE_VERSION),
        )
        .order_by(tool_calls.c.hinted_at)
        .limit(_BATCH)
        .with_for_update(skip_locked=True)
    )
    return Prepared(
        sa.update(tool_calls)
        .where(
            sa.tuple_(tool_calls.c.run_pk, tool_calls.c.iteration, tool_calls.c.position).in_(due),
            tool_calls.c.hinted_at.is_not(None),
        )
        .values(hinted_at=db_now(), hints=_increment(tool_calls.c.hints))
        .returning(
            sa.select(runs.c.run_id).where(runs.c.pk == tool_calls.c.run_pk).scalar_subquery().label("run_id"),
            tool_calls.c.iteration,
            tool_calls.c.position,
            tool_calls.c.asks,
            tool_calls.c.attempt,
            tool_calls.c.hinted_at,
            sa.null().label("prepares"),
        ),
        takes=LostHintsBounds,
        gives=_Resent,
    )


_Resends = Sequence[Prepared[LostHintsBounds, _Resent]]
_RESEND: Mapping[str, tuple[_Resends, _Resends]] = {
    MODEL_QUEUE: (
        (_build_resend_iterations(prepares=False, is_suspect=False), _build_resend_calls(asks=True, is_suspect=False)),
        (_build_resend_iterations(prepares=False, is_suspect=True), _build_resend_calls(asks=True, is_suspect=True)),
    ),
    TOOLS_QUEUE: (
        (_build_resend_iterations(prepares=True, is_suspect=False), _build_resend_calls(asks=False, is_suspect=False)),
        (_build_resend_iterations(prepares=True, is_suspect=True), _build_resend_calls(asks=False, is_suspect=True)),
    ),
}
"""By queue: the statements for ordinary steps, and those for suspects."""


def _to_effect(row: _Resent, *, is_suspect: bool) -> Effect:
    if row.prepares is not None and row.iteration == 0:
        return Prepare(run_id=row.run_id, attempt=row.attempt, is_suspect=is_suspect)
    if row.position is None:
        return Iterate(run_id=row.run_id, iteration=row.iteration + 1, attempt=row.attempt, is_suspect=is_suspect)
    effect = AskAuxiliary if row.asks == 1 else RunTool
    return effect(
        run_id=row.run_id,
        iteration=row.iteration,
        position=row.position,
        attempt=row.attempt,
        is_suspect=is_suspect,
    )


LOSSES: Mapping[str | None, ev.Loss] = {
    None: ev.Loss.GIVEN_UP,
    "stopped": ev.Loss.GIVEN_UP,
    "dead": ev.Loss.UNSEEN,
    "crashed": ev.Loss.SEEN,
    "alive": ev.Loss.SEEN,
}
"""What the state of a claim's owner says about the loss of the claim. Only a lane claims suspects, and it does one step
at a time, so when a lane is seen to end by itself, its suspect caused it."""

_END_PLACE = Prepared(
    sa.update(workers).where(workers.c.pk == sa.bindparam("worker"), workers.c.state == "alive").values(state="dead"),
    takes=_WorkerKey,
)

_delay: sa.ColumnElement[float] = sa.bindparam("delay_s", type_=sa.Double())
_DELAY_ITERATION = Prepared(
    sa.update(runs).where(runs.c.pk == sa.bindparam("run")).values(hinted_at=runs.c.hinted_at + _delay),
    takes=_DelayedTurn,
)
_DELAY_CALL = Prepared(
    sa.update(tool_calls)
    .where(
        tool_calls.c.run_pk == sa.bindparam("run"),
        tool_calls.c.iteration == sa.bindparam("iter"),
        tool_calls.c.position == sa.bindparam("pos"),
    )
    .values(hinted_at=tool_calls.c.hinted_at + _delay),
    takes=_DelayedCall,
)

_TOKEN_OF_CALL = Prepared(
    sa.select(tool_calls.c.lease_token).where(
        tool_calls.c.run_pk == sa.bindparam("run"),
        tool_calls.c.iteration == sa.bindparam("iter"),
        tool_calls.c.position == sa.bindparam("pos"),
    ),
    takes=CallKey,
    gives=LeaseTokenRow,
)


def _forbid_begin(connection: Connection, orphan: OrphanedCall) -> bool:
    """Whether the claim is on a ``once`` call that has not begun. If so, it cannot begin under this claim any more."""
    if orphan.lease_token is None:
        return False
    place: HeldCallKey = {
        "run": orphan.run_pk,
        "iter": orphan.iteration,
        "pos": orphan.position,
        "token": orphan.lease_token,
    }
    return TAKE_UNBEGUN.run(connection, place) > 0


def _still_holds(connection: Connection, orphan: OrphanedCall) -> bool:
    found = _TOKEN_OF_CALL.first(connection, {"run": orphan.run_pk, "iter": orphan.iteration, "pos": orphan.position})
    return found is not None and bool(found.lease_token == orphan.lease_token)


def _save_loss(
    connection: Connection,
    loaded: LoadedRun,
    event: ev.IterationLost | ev.CallLost,
    step: str,
    pricing: Pricing | None = None,
) -> list[Hint]:
    """Write the loss of a claim, with an event for followers of the run that its step is tried again or is in doubt."""
    after = apply_event(loaded.run, event)
    tried: Run | Call = after
    is_retried = after.status is RunStatus.RUNNING
    if isinstance(event, ev.CallLost):
        tried = after.calls[event.position]
        is_retried = tried.status is CallStatus.PENDING
    happened = [_build_retry_event(step, tried)] if is_retried else []
    if is_retried:
        add_amounts(connection, {(STEPS_RETRIED, (step.partition(":")[0],)): 1})
    hints = save_step(connection, loaded, after, StepOutput(events=happened, pricing=pricing))
    return _postpone_retry(connection, loaded, tried, hints)


def _build_retry_event(step: str, tried: Run | Call) -> RunEvent:
    data: dict[str, object] = {"step": step, "attempt": tried.attempt}
    if tried.deaths is not None:
        data["deaths"] = tried.deaths
    return RunEvent(name=RunEventName.STEP_RETRIED, data=data)


def _postpone_retry(connection: Connection, loaded: LoadedRun, tried: Run | Call, hints: list[Hint]) -> list[Hint]:
    """Return the hints to send at once, without the hint of a step whose next try has to wait. The step is due later,
    and the sweeper that finds it due then sends its hint."""
    delay_s = compute_retry_delay_s(tried.attempt)
    effects = [hint.effect for hint in hints if isinstance(hint.effect, Effect)]
    if not delay_s or len(effects) != 1 or effects[0].attempt != tried.attempt:
        return hints
    [effect] = effects
    if isinstance(effect, CallEffect):
        _DELAY_CALL.run(
            connection,
            {"run": loaded.pk, "iter": effect.iteration, "pos": effect.position, "delay_s": delay_s},
        )
    else:
        _DELAY_ITERATION.run(connection, {"run": loaded.pk, "delay_s": delay_s})
    return [hint for hint in hints if hint.effect != effect]


def _end_lane_of(connection: Connection, orphan: OrphanedCall | OrphanedTurn, lost: Run | Call) -> None:
    """End the lane whose only step exceeds its time, because it would do nothing else for ever: it finds its row
    expired, and exits."""
    if orphan.state == "alive" and lost.is_suspect:
        _END_PLACE.run(connection, {"worker": orphan.lease_owner})
