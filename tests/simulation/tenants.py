"""Worlds in which tenants share a fleet, over the real store: who gives places away dies on the way as well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import sqlalchemy as sa
from simulation.database import SqlStore
from simulation.world import EPOCH_S, TROUBLE_ENDS_S, Violation, World
from support.store import new_run

from hermes_worker.core.fair_share import FleetPlace
from hermes_worker.core.limits import Limit, LimitName
from hermes_worker.core.run import RunStatus
from hermes_worker.store.access.principals import Tenants
from hermes_worker.store.engine.database import Database
from hermes_worker.store.rows import Hint
from hermes_worker.store.runs import runs as module_of_runs
from hermes_worker.store.runs.admission import fill_places
from hermes_worker.store.runs.limits import TenantLimits
from hermes_worker.store.sweep import SweepPolicy
from hermes_worker.store.tables import runs

PLACES = 3
MANY, FEW, LIMITED = "acme", "beta", "coda"
RUNS_MAX = 2
"""Runs of ``LIMITED`` at work."""
CALLS_MAX = 1
"""Model calls of ``LIMITED`` in flight."""
runs_module: Any = module_of_runs
TENANTS = (MANY, MANY, FEW, MANY, LIMITED, MANY, MANY, FEW, MANY, LIMITED, MANY, LIMITED)
"""Whose each submission is."""
HABITS = (4, 3, 3, 3, 2, 2, 0, 1)
"""No tool that a person has to be asked about: who answers brings a run back to work that nobody counted."""
_ITERATIONS_MAX = 3
_DIES_BEFORE, _DIES_AFTER = 0.3, 0.15
"""How often whoever ended a run, or accepted one, dies before it gives the place away, and before it sends the hint."""
_REPAIR_S = 25.0
"""For a message that was lost, a worker that was killed and a process that died: a lease, some sweeps, a back-off."""
_AT_WORK = [
    each.value for each in (RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.WAITING_FOR_CHILDREN, RunStatus.STOPPING)
]


class TenantStore(SqlStore):
    """The product's store, shared by three tenants, one of which has limits. Each run has a session of its own."""

    def __init__(self, clock: Callable[[], float], policy: SweepPolicy, tools: str, *, seed: int, peace: bool) -> None:
        super().__init__(clock, policy, tools)
        self.seen: Counter[str] = Counter()
        self._clock = clock
        self._chance = Random(seed)
        self._is_peace = peace
        self._set_up()
        self._before = runs_module.fill_places
        runs_module.fill_places = self._fill

    def _set_up(self) -> None:
        tenants, known = Tenants(self.database), TenantLimits(self.database)
        for name in (MANY, FEW, LIMITED):
            tenants.create_tenant(name)
        known.set_places(PLACES)
        known.set_limit(LIMITED, Limit(name=LimitName.RUNS, value=RUNS_MAX, waits=True))
        known.set_limit(LIMITED, Limit(name=LimitName.MODEL_CALLS, value=CALLS_MAX, waits=True))

    def submit(self, run_id: str, *, iterations_max: int, attempts_max: int, prepares: bool) -> list[Hint]:
        tenant = TENANTS[int(run_id.removeprefix("run")) % len(TENANTS)]
        new = new_run(
            run_id=run_id,
            tenant=tenant,
            tools=self._tools,
            prepares=prepares,
            iterations_max=min(iterations_max, _ITERATIONS_MAX),
            attempts_max=attempts_max,
        )
        created = self.runs.create(new)
        self.seen["held"] += created.is_held and not created.hints
        return list(created.hints)

    def sweep(self, depths: Mapping[str, int] | None) -> Sequence[Hint]:
        hints = super().sweep(depths)
        self._require_caps()
        return hints

    def _fill(self, database: Database, *, expects_place: bool = False) -> list[Hint]:
        """``fill_places`` of a process that may die before it, or after it."""
        if self._dies(_DIES_BEFORE):
            return []
        hints = fill_places(database, expects_place=expects_place)
        self._require_caps()
        return [] if hints and self._dies(_DIES_AFTER) else hints

    def _dies(self, part: float) -> bool:
        is_over = self._is_peace or self._clock() > EPOCH_S + TROUBLE_ENDS_S
        dies = not is_over and self._chance.random() < part
        self.seen["died at places"] += dies
        return dies

    def _require_caps(self) -> None:
        by_tenant = Counter(dict.fromkeys((MANY, FEW, LIMITED), 0))
        parked, calls = 0, 0
        with self.database.read() as connection:
            found = sa.select(runs.c.tenant, runs.c.status, runs.c.place, runs.c.permit, runs.c.lease_token)
            for row in connection.execute(found.where(runs.c.exit_reason.is_(None))):
                is_placed = row.place == FleetPlace.TAKEN.value
                by_tenant[row.tenant] += is_placed and row.status in _AT_WORK
                is_parked = is_placed and row.status == RunStatus.WAITING_FOR_CAPACITY.value
                parked += is_parked and row.tenant == LIMITED
                calls += row.tenant == LIMITED and row.permit is not None and row.permit == row.lease_token
        self.seen["full"] += sum(by_tenant.values()) >= PLACES
        # Whoever has fewer than its part goes beyond the fleet's places, one run for each of three tenants.
        _require(sum(by_tenant.values()) <= PLACES + len(by_tenant), f"{dict(by_tenant)} are at work")
        _require(by_tenant[LIMITED] + parked <= RUNS_MAX, f"{LIMITED} has {by_tenant[LIMITED]} + {parked} runs at work")
        _require(calls <= CALLS_MAX, f"{LIMITED} has {calls} model calls in flight")

    def require_rest(self, *, away_s: float) -> None:
        """Of a world that is over: every place was given back, all can be given away again, and nobody starved."""
        with self.database.read() as connection:
            kept = connection.execute(sa.select(runs.c.run_id, runs.c.place).where(runs.c.place.is_not(None))).all()
            _require(not kept, f"{kept} have ended and keep a place")
            self._require_waits(connection, away_s)
        again = [self.runs.create(new_run(run_id=f"again{n}", tenant=FEW)) for n in range(PLACES)]
        begun = sum(len(each.hints) for each in again)
        _require(begun == PLACES, f"{begun} of {PLACES} places are left")

    def _require_waits(self, connection: Any, away_s: float) -> None:
        """The first run of the one that asks for little begins within the length of a run, the next within two, ...,
        however much the other one asked for before."""
        times = (runs.c.tenant, runs.c.created_at, runs.c.started_at, runs.c.finished_at)
        tops = sa.select(*times).where(runs.c.parent_pk.is_(None), runs.c.cause_pk.is_(None))
        rows = connection.execute(tops.order_by(runs.c.created_at, runs.c.pk)).all()
        slot_s = max((row.finished_at - row.started_at for row in rows if row.started_at), default=0.0)
        spare_s = 0.5 if self._is_peace else _REPAIR_S + away_s
        for number, row in enumerate([row for row in rows if row.tenant == FEW]):
            waited_s = (row.started_at or row.finished_at) - row.created_at
            most_s = (number + 1) * slot_s + spare_s
            _require(waited_s <= most_s, f"run {number} of {FEW} waited {waited_s:.1f} s, and a run takes {slot_s:.1f}")

    def close(self) -> None:
        runs_module.fill_places = self._before
        super().close()


class TenantWorld(World):
    """A world whose store is shared; at its end nothing of a place is left."""

    def check(self) -> None:
        World.check(self)
        backend = self.backend
        assert isinstance(backend, TenantStore)
        for _ in range(4):
            self.now += 5.0
            backend.sweep(self.count_waiting())
        backend.require_rest(away_s=sum(end - begin for begin, end in self._outages))
        self.seen += backend.seen


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise Violation(message)
