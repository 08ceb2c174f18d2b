"""Jobs on a clock that the test moves."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from hermes_worker.settings import ModelSettings, Settings
from hermes_worker.store.jobs.executions import ExecutionClaim, Executions, ExecutionState
from hermes_worker.store.jobs.job_rows import JobRow
from hermes_worker.store.jobs.jobs import Jobs
from scheduler import jobs as work
from scheduler import ticking
from scheduler.jobtext import CollectedTexts
from support.store import Store

NOON = datetime(2027, 3, 10, 12, tzinfo=UTC).timestamp()


class Desk:
    """Jobs on a clock that the test moves: a row of the database, as the database's own clock would be."""

    def __init__(self, store: Store, home: Path) -> None:
        self.store = store
        home.mkdir(exist_ok=True)
        self.settings = Settings(home=home, model=ModelSettings(provider="scripted"))
        with store.database.write() as connection:
            connection.execute(sa.text("create table simulated_clock (t double precision)"))
            connection.execute(sa.text(f"insert into simulated_clock values ({NOON})"))
        clock = sa.select(sa.column("t", sa.Double())).select_from(sa.table("simulated_clock")).scalar_subquery()
        self.jobs = Jobs(store.database, clock=clock)

    def at(self, seconds: float) -> None:
        """The time is ``seconds`` after noon."""
        with self.store.database.write() as connection:
            connection.execute(sa.text("update simulated_clock set t = :t"), {"t": NOON + seconds})

    def add(self, schedule: str = "every 10m", **more: Any) -> JobRow:
        fields = {name: more.pop(name) for name in ("deliver", "repeat", "timezone", "name") if name in more}
        prompt = more.pop("prompt", "Look around")
        request = work.JobRequest(prompt=prompt, schedule=schedule, more=more, **fields)
        return work.create(self.jobs, request)

    def tick(self) -> list[Any]:
        return list(ticking.tick(self.jobs, self.settings).settled.hints)

    def tick_all(self) -> ticking.TickResult:
        return ticking.tick(self.jobs, self.settings)

    # --- a worker's part ---

    def claim(self, hint: Any) -> ExecutionClaim:
        claim = Executions(self.store.database).claim(hint.effect.firing_id, self.store.owner)
        assert claim is not None
        return claim

    def collect(self, hint: Any, collected: CollectedTexts, state: ExecutionState = ExecutionState.COMPLETED) -> None:
        Executions(self.store.database).finish(self.claim(hint), state, collected.to_json())

    # --- what came of it ---

    def ledger(self, row: JobRow) -> list[tuple[int, str]]:
        """Minutes after noon and the outcome, oldest first."""
        views = self.jobs.list_firings(row.pk, limit=500)
        return [(round((view.slot - NOON) / 60), view.outcome) for view in reversed(views)]

    def run_ids(self, row: JobRow) -> list[str]:
        return [view.run_id for view in reversed(self.jobs.list_firings(row.pk, limit=500)) if view.run_id]
