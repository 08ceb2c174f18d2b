"""What the counters should say, counted from all rows there are, by other ways than the product's."""

from __future__ import annotations

import json
from collections import Counter

import sqlalchemy as sa

from hermes_worker.core.run_events import RunEventName
from hermes_worker.store.engine.database import Database
from hermes_worker.store.statistics import OF_MODELS, load_totals
from hermes_worker.store.tables import deliveries, events, firings, runs, tool_calls

Counted = dict[tuple[str, tuple[str, ...]], int]


def recounted(connection: sa.Connection) -> Counted:
    """From every row, one by one; only right while no row was deleted and no delivery was sent again."""
    found: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for run in connection.execute(sa.select(runs)):
        found["runs_accepted", ()] += 1
        if run.exit_reason:
            found["runs_ended", (run.status, run.exit_reason)] += 1
        if run.exhausted:
            found["budget_denials", (run.exhausted,)] += 1
        for measure, column in OF_MODELS.items():
            found[measure, (run.model,)] += getattr(run, column)
    for call in connection.execute(sa.select(tool_calls).where(tool_calls.c.settled_at.is_not(None))):
        found["tool_calls", (call.status, call.replay)] += 1
    for firing in connection.execute(sa.select(firings)):
        found["firings", (firing.outcome,)] += 1
    for delivery in connection.execute(sa.select(deliveries).where(deliveries.c.settled_at.is_not(None))):
        platform = delivery.target.split(":")[0]
        found["deliveries", (delivery.state, platform)] += 1
        found["deliveries_in_doubt", (platform,)] += bool(delivery.is_in_doubt)
    retried = sa.select(events.c.data).where(events.c.event == RunEventName.STEP_RETRIED.value)
    for data in connection.execute(retried).scalars():
        found["steps_retried", (json.loads(data)["step"].split(":")[0],)] += 1
    return dict(+found)


def counted(database: Database) -> tuple[Counted, Counted]:
    """What the product says, and what the rows say at the same moment."""
    with database.snapshot() as connection:
        return {key: amount for key, amount in load_totals(connection).items() if amount}, recounted(connection)
