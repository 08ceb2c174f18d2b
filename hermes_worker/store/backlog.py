"""What waits and what is at work, by queue: the view ``hermes_backlog``, which scalers and people read.

A queue in the broker holds hints, and a hint may be lost, repeated or late. So its length is not the backlog; the rows
are. The view counts them by the partial indexes that hold only what is due and what is claimed, so it costs what there
is to do.

*Capacity needed* is the number of steps that should be at work at the same time, so that within ``CLEARED_IN_S`` a
worker has taken everything that is due now. Every claimed step keeps its place for that long. The others need places
according to how long a step takes. Nobody records that, but it can be read from the ages of the steps at work: twice
their median is never less than the mean length of a step. (Of all ages, the part below x is at most x divided by that
mean.) Few long steps do not move a median far. It is mixed with one imagined step of ``CLEARED_IN_S``, which is all
that is known while nothing is at work: then every step that is due gets a place.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.store.engine.database import Database
from hermes_worker.store.engine.prepared import Prepared

CLEARED_IN_S: Final = 60
"""``capacity_needed`` is enough to take everything that is due within so many seconds."""
STEP_S_MIN: Final[Mapping[str, int]] = MappingProxyType(
    {"model": 10, "tools": 5, "delivery": 2, "suspect_model": 10, "suspect_tools": 5, "suspect_delivery": 2}
)
"""By queue, the least that a step is taken to last: just after many were claimed at once, all of them are young."""


class QueueBacklog(NamedTuple):
    """What waits for workers of one queue, and what they hold, at one moment of the database's clock."""

    queue: str
    due: int
    """Steps that a worker could take now. One whose next try has to wait is not among them."""
    claimed: int
    """Steps at work, or held by a worker that is lost and whose loss nobody has noticed yet."""
    oldest_age_s: float
    """How long the oldest due step has waited since its latest hint; 0 when nothing is due."""
    step_s: float
    """What a step is taken to last, at most ``CLEARED_IN_S``."""
    capacity_needed: int
    """How many steps should be at work at the same time; never fewer than ``claimed``."""


_view = sa.table("hermes_backlog", *(sa.column(name) for name in QueueBacklog._fields))
_READ = Prepared(sa.select(*_view.c), gives=QueueBacklog)


def read_backlog(database: Database) -> list[QueueBacklog]:
    """The backlog of every queue whose work stands in rows, in the order of ``STEP_S_MIN``; one statement. Raises
    ``UnavailableError``."""
    with database.read() as connection:
        found = {row.queue: row for row in _READ.all(connection, {})}
    return [found[queue] for queue in STEP_S_MIN]


def make_view(connection: Connection) -> None:
    """Make the view, or make it anew. On PostgreSQL a role that was granted to read it can go on reading it."""
    dialect = connection.dialect.name
    if dialect == "sqlite":
        connection.exec_driver_sql("drop view if exists hermes_backlog")
    connection.exec_driver_sql(build_view_statement(dialect))


def build_view_statement(dialect: str) -> str:
    """The statement that makes the view, for ``postgresql`` or ``sqlite``. Whoever upgrades a schema runs it; a change
    of it needs a new revision, or databases that exist keep the old view."""
    return _CREATE.format(
        queues=",\n    ".join(f"('{queue}', {seconds}.0)" for queue, seconds in STEP_S_MIN.items()),
        window=f"{CLEARED_IN_S}.0",
        **_DIALECTS[dialect],
    )


_DIALECTS: Mapping[str, Mapping[str, str]] = {
    "postgresql": {
        "create": "create or replace",
        "now": "cast(extract(epoch from clock_timestamp()) as double precision)",
        "least": "least",
        "greatest": "greatest",
        "needed": f"ceil(due * step_s / {CLEARED_IN_S}.0)",
        "integer": "bigint",
    },
    "sqlite": {
        "create": "create",
        "now": "(julianday('now') - 2440587.5) * 86400.0",
        "least": "min",
        "greatest": "max",
        # SQLite may be built without ceil().
        "needed": f"(due * step_s / {CLEARED_IN_S}.0 > cast(due * step_s / {CLEARED_IN_S}.0 as integer)) "
        f"+ cast(due * step_s / {CLEARED_IN_S}.0 as integer)",
        "integer": "integer",
    },
}

_CREATE = """{create} view hermes_backlog as
with clock(now) as (select {now}),
queues(queue, step_s_min) as (values
    {queues}
),
due(queue, steps, since) as (
    select case when deaths is null then 'model' else 'suspect_model' end, count(*), min(hinted_at)
    from runs
    where hinted_at is not null and hinted_at <= (select now from clock)
    group by 1
    union all
    select 'model', count(*), min(created_at)
    from runs
    where place = 0
    union all
    select case when asks = 1 then case when deaths is null then 'model' else 'suspect_model' end
                else case when deaths is null then 'tools' else 'suspect_tools' end end, count(*), min(hinted_at)
    from tool_calls
    where hinted_at is not null and hinted_at <= (select now from clock)
    group by 1
    union all
    select 'tools', count(*), min(hinted_at)
    from firings
    where hinted_at is not null and hinted_at <= (select now from clock)
    union all
    select 'tools', count(*), min(hinted_at)
    from hook_calls
    where hinted_at is not null and hinted_at <= (select now from clock)
    union all
    select 'tools', count(*), min(hinted_at)
    from artifact_gatherings
    where hinted_at is not null and hinted_at <= (select now from clock)
    union all
    select case when deaths is null then 'delivery' else 'suspect_delivery' end, count(*), min(hinted_at)
    from deliveries
    where hinted_at is not null and hinted_at <= (select now from clock)
    group by 1
    union all
    select 'delivery', count(*), min(hinted_at)
    from inbound_files
    where hinted_at is not null and hinted_at <= (select now from clock)
),
claimed(queue, claimed_at) as (
    select case when deaths is null then 'model' else 'suspect_model' end, claimed_at
    from runs
    where lease_owner is not null
    union all
    select case when asks = 1 then case when deaths is null then 'model' else 'suspect_model' end
                else case when deaths is null then 'tools' else 'suspect_tools' end end, claimed_at
    from tool_calls
    where lease_owner is not null
    union all
    select 'tools', claimed_at
    from firings
    where lease_owner is not null
    union all
    select 'tools', claimed_at
    from hook_calls
    where lease_owner is not null
    union all
    select 'tools', claimed_at
    from artifact_gatherings
    where lease_owner is not null
    union all
    select case when deaths is null then 'delivery' else 'suspect_delivery' end, claimed_at
    from deliveries
    where lease_owner is not null
    union all
    select 'delivery', claimed_at
    from inbound_files
    where lease_owner is not null
),
ranked(queue, claimed_at, place, steps) as (
    select queue, claimed_at,
           row_number() over (partition by queue order by claimed_at), count(*) over (partition by queue)
    from claimed
),
at_work(queue, steps, median_age_s) as (
    select queue, max(steps), {greatest}(0.0, (select now from clock) - avg(claimed_at))
    from ranked
    where place in ((steps + 1) / 2, (steps + 2) / 2)
    group by queue
),
measured(queue, due, claimed, oldest_age_s, step_s) as (
    select queues.queue,
           coalesce(d.steps, 0),
           coalesce(c.steps, 0),
           {greatest}(0.0, coalesce((select now from clock) - d.since, 0.0)),
           {least}({window}, {greatest}(queues.step_s_min,
                   ({window} + 2.0 * coalesce(c.median_age_s * c.steps, 0.0)) / (1.0 + coalesce(c.steps, 0))))
    from queues
    left join (select queue, sum(steps) as steps, min(since) as since from due group by queue) d
        on d.queue = queues.queue
    left join at_work c on c.queue = queues.queue
)
select queue,
       cast(due as {integer}) as due,
       cast(claimed as {integer}) as claimed,
       oldest_age_s,
       step_s,
       cast(claimed + {needed} as {integer}) as capacity_needed
from measured"""
