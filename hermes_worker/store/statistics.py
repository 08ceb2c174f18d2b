"""Counters that agree exactly with the rows after any crash, and that keep deleted rows counted.

Theory of operation. A counter in a process dies with it, and a counter in one row would make all steps wait for each
other. So nothing is counted on the way. *A row that is over does not change any more*, so it can be counted later: the
sweeper adds such rows to ``statistics`` and marks them, both in one transaction, so each counts once. What is not
counted yet is read where it stands: the rows that are over and unmarked, and the runs that are open. Three partial
indexes find them, so reading costs what is at work now and not what has ever been. A reader sees all of this in one
snapshot (``Database.snapshot``), so a total never decreases, not even while rows are being counted:

    before       statistics 100    uncounted 3    open 2      total 105
    counting     statistics +3 and the three marks, one transaction
    after        statistics 103    uncounted 0    open 2      total 105

Two things happen beside a row that is over: a claim that the sweeper takes away, and the cost of a title whose run was
counted already. They add to ``statistics`` themselves, in their own transaction (``add_amounts``).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.messages import Usage
from hermes_worker.core.pricing import Cost, count_unpriced_calls, to_doubtful_nano_usd, to_nano_usd
from hermes_worker.store.engine.database import Database
from hermes_worker.store.run_ends import load_ends, log_end
from hermes_worker.store.search.index_queue import mark_due_of_runs
from hermes_worker.store.tables import (
    RUN_IS_OPEN,
    RUN_IS_UNCOUNTED,
    deliveries,
    firings,
    runs,
    statistics,
    tool_calls,
)

RUNS_ACCEPTED = "runs_accepted"
RUNS_ENDED = "runs_ended"
"""Labels: status and exit reason."""
BUDGET_DENIALS = "budget_denials"
"""Labels: the dimension that was used up."""
STEPS_RETRIED = "steps_retried"
"""Labels: the kind of step, ``model``, ``tool`` or ``auxiliary``."""
TOOL_CALLS = "tool_calls"
"""Settled calls. Labels: status, and replay class."""
DELIVERIES = "deliveries"
"""Settled deliveries. Labels: state and platform."""
DELIVERIES_IN_DOUBT = "deliveries_in_doubt"
"""Settled deliveries that may have arrived more than once. Labels: platform."""
FIRINGS = "firings"
"""Labels: outcome."""

OF_MODELS: Mapping[str, str] = {
    "iterations": "iteration",
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cache_read_tokens": "cache_read_tokens",
    "cache_write_tokens": "cache_write_tokens",
    "reasoning_tokens": "reasoning_tokens",
    "estimated_tokens": "estimated_tokens",
    "unknown_input_tokens": "unknown_input_tokens",
    "unknown_output_tokens": "unknown_output_tokens",
    "refused_attempts": "refused_attempts",
    "unknown_attempts": "unknown_attempts",
    "cost_nano_usd": "cost_nano_usd",
    "doubtful_nano_usd": "doubtful_nano_usd",
    "unpriced_calls": "unpriced_calls",
}
"""Sums of columns of ``runs``. Labels: the model of the run."""

Labels = tuple[str, ...]
Totals = Mapping[tuple[str, Labels], int]
"""Amounts by measure and labels."""

_BATCH = 500
_BATCHES_MAX = 4
"""Batches of one look: a backlog after an upgrade is counted in several looks, so that no sweep is delayed for long."""
_ROWS_MAX = 2_000
"""More rows than this are replaced by their sums."""

_Condition = sa.TextClause | sa.ColumnElement[bool]
_DELIVERY_IS_UNCOUNTED = sa.text("deliveries.settled_at is not null and deliveries.is_counted = 0")
_FIRING_IS_UNCOUNTED = sa.text("firings.is_counted = 0")
"""Literals, as in the partial indexes."""


def load_totals(connection: Connection) -> Totals:
    """Load everything that was ever counted and everything that would be counted at this moment. Reads only;
    ``connection`` comes from ``Database.snapshot``."""
    found: Counter[tuple[str, Labels]] = Counter()
    summed = sa.select(statistics.c.measure, statistics.c.labels, sa.func.sum(statistics.c.amount))
    for measure, labels, amount in connection.execute(summed.group_by(statistics.c.measure, statistics.c.labels)):
        found[measure, tuple(json.loads(labels))] += int(amount)
    # An evaluation is marked from its beginning, and so never counted.
    for which in (sa.and_(RUN_IS_OPEN, runs.c.is_counted == 0), RUN_IS_UNCOUNTED):
        found.update(_sum_runs(connection, which))
    found.update(_sum_deliveries(connection, _DELIVERY_IS_UNCOUNTED))
    found.update(_sum_firings(connection, _FIRING_IS_UNCOUNTED))
    return found


def count_ended_rows(database: Database, *, only: Sequence[int] | None = None) -> int:
    """Add the rows that are over to ``statistics``, log the ends of the runs among them, and return the number of rows.
    Each is counted once, however many processes do this at once. With ``only``, only runs with these row ids are
    counted. Costs one look into three empty indexes when there are none. Raises ``UnavailableError``."""
    are_there = database.select(_ARE_THERE).one()
    counted = 0
    for table, is_there in zip(_COUNTED_TABLES, are_there, strict=True):
        if is_there and table[0] is runs and only is not None:
            counted += _count_all(database, table, runs.c.pk.in_(only))
        elif is_there:
            counted += _count_all(database, table)
    if counted:
        _merge_rows(database)
    return counted


def _count_all(database: Database, table: _CountedTable, *only: sa.ColumnElement[bool]) -> int:
    counted = 0
    for _ in range(_BATCHES_MAX):
        with database.write() as connection:
            pks = _count_batch(connection, table, *only)
            ends = load_ends(connection, pks) if pks and table[0] is runs else []
        # Each row is counted once, so each end is logged once; the line is lost only if the process dies here.
        for end in ends:
            log_end(end)
        counted += len(pks)
        if len(pks) < _BATCH:
            break
    return counted


def _count_batch(connection: Connection, table: _CountedTable, *only: sa.ColumnElement[bool]) -> list[int]:
    rows, which, amounts = table
    # Skip rows that another process is counting now.
    found = (
        sa.select(rows.c.pk).where(which, *only).order_by(rows.c.pk).limit(_BATCH).with_for_update(skip_locked=not only)
    )
    pks = list(connection.execute(found).scalars())
    if pks:
        these = rows.c.pk.in_(pks)
        add_amounts(connection, amounts(connection, these))
        connection.execute(sa.update(rows).where(these).values(is_counted=1))
        if rows is runs:
            mark_due_of_runs(connection, pks)  # a counted run can be indexed for search
    return pks


def count_delivery(connection: Connection, delivery_id: str) -> None:
    """Count a settled delivery now, because its row is about to change again."""
    _count_batch(connection, _COUNTED_DELIVERIES, deliveries.c.delivery_id == delivery_id)


def add_amounts(connection: Connection, amounts: Mapping[tuple[str, Labels], int]) -> None:
    """Add ``amounts`` in the caller's transaction, which is the one that makes them true."""
    values = [
        {"measure": measure, "labels": json.dumps(labels, ensure_ascii=False), "amount": amount}
        for (measure, labels), amount in amounts.items()
        if amount
    ]
    if values:
        connection.execute(sa.insert(statistics), values)


def build_model_amounts(model: str, usage: Usage, cost: Cost) -> Totals:
    """Build the amounts of a model call that is written after its run was counted."""
    amounts = {
        "input_tokens": usage.input,
        "output_tokens": usage.output,
        "cache_read_tokens": usage.cache_read,
        "cache_write_tokens": usage.cache_write,
        "reasoning_tokens": usage.reasoning,
        "estimated_tokens": usage.estimated,
        "unknown_input_tokens": usage.unknown_input,
        "unknown_output_tokens": usage.unknown_output,
        "refused_attempts": usage.refused_attempts,
        "unknown_attempts": usage.unknown_attempts,
        "cost_nano_usd": to_nano_usd(cost),
        "doubtful_nano_usd": to_doubtful_nano_usd(cost),
        "unpriced_calls": count_unpriced_calls(cost),
    }
    return {(measure, (model,)): amount for measure, amount in amounts.items()}


def _merge_rows(database: Database) -> None:
    """Replace the rows by their sums when there are many. Rows that are added meanwhile stay."""
    if database.select(sa.select(sa.func.count()).select_from(statistics)).scalar_one() <= _ROWS_MAX:
        return
    with database.write() as connection:
        gone = connection.execute(
            sa.delete(statistics).returning(statistics.c.measure, statistics.c.labels, statistics.c.amount)
        )
        sums: Counter[tuple[str, Labels]] = Counter()
        for measure, labels, amount in gone:
            sums[measure, tuple(json.loads(labels))] += amount
        add_amounts(connection, sums)


# --- what rows add up to ---------------------------------------------------------------------------------------------


def _sum_runs(connection: Connection, which: _Condition) -> Totals:
    found: Counter[tuple[str, Labels]] = Counter()
    ends = sa.select(runs.c.status, runs.c.exit_reason, runs.c.exhausted, sa.func.count()).where(which)
    for status, reason, dimension, number in connection.execute(
        ends.group_by(runs.c.status, runs.c.exit_reason, runs.c.exhausted)
    ):
        found[RUNS_ACCEPTED, ()] += number
        if reason is not None:
            found[RUNS_ENDED, (status, reason)] += number
        if dimension is not None:
            found[BUDGET_DENIALS, (dimension,)] += number
    sums = [sa.func.sum(runs.c[column]).label(measure) for measure, column in OF_MODELS.items()]
    for model, *amounts in connection.execute(sa.select(runs.c.model, *sums).where(which).group_by(runs.c.model)):
        for measure, amount in zip(OF_MODELS, amounts, strict=True):
            found[measure, (model,)] += int(amount)
    calls = (
        sa.select(tool_calls.c.status, tool_calls.c.replay, sa.func.count())
        .join(runs, runs.c.pk == tool_calls.c.run_pk)
        .where(which, runs.c.iteration > 0, tool_calls.c.settled_at.is_not(None))
        .group_by(tool_calls.c.status, tool_calls.c.replay)
    )
    for status, replay, number in connection.execute(calls):
        found[TOOL_CALLS, (status, replay)] += number
    return found


def _sum_deliveries(connection: Connection, which: _Condition) -> Totals:
    found: Counter[tuple[str, Labels]] = Counter()
    rows = sa.select(deliveries.c.state, deliveries.c.target, deliveries.c.is_in_doubt).where(which)
    for state, target, is_in_doubt in connection.execute(rows):
        platform = str(target).partition(":")[0].lower()[:40]
        found[DELIVERIES, (state, platform)] += 1
        found[DELIVERIES_IN_DOUBT, (platform,)] += int(is_in_doubt)
    return found


def _sum_firings(connection: Connection, which: _Condition) -> Totals:
    rows = sa.select(firings.c.outcome, sa.func.count()).where(which).group_by(firings.c.outcome)
    return {(FIRINGS, (outcome,)): number for outcome, number in connection.execute(rows)}


_CountedTable = tuple[sa.Table, _Condition, Callable[[Connection, _Condition], Totals]]
_COUNTED_DELIVERIES: _CountedTable = (deliveries, _DELIVERY_IS_UNCOUNTED, _sum_deliveries)
_COUNTED_TABLES: Sequence[_CountedTable] = (
    (runs, RUN_IS_UNCOUNTED, _sum_runs),
    _COUNTED_DELIVERIES,
    (firings, _FIRING_IS_UNCOUNTED, _sum_firings),
)
"""Each table, the condition for its rows that are over and not counted, and the function that sums rows of it."""
_ARE_THERE = sa.select(
    *(
        sa.exists(sa.select(rows.c.pk).where(which)).label(f"has_{number}")
        for number, (rows, which, _) in enumerate(_COUNTED_TABLES)
    )
)
