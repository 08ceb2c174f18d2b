"""The budget of a tree: reserved by a claim, settled by the commit that gives the claim up, each exactly once.

Both happen in the transaction that changes the run's row, and ``runs.is_reserved`` changes with them; so a worker that
dies in between leaves a reservation that whoever takes its claim away gives back. Only runs of trees with children, or
with limits of their own, have a budget row; all others pay nothing for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.budget import Dimension, reserve_of
from hermes_worker.core.spec import RunSpec
from hermes_worker.store.prepared import Prepared
from hermes_worker.store.rows import LoadedRun, insert_ignoring
from hermes_worker.store.tables import budgets, runs, tool_calls


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """What a model call that is over takes from the budget."""

    reserved: int
    """1 when the claim held a reservation, which is given back."""
    iterations: int
    tokens: int
    tool_calls: int


_RESERVE = Prepared(
    sa.update(budgets)
    .where(
        budgets.c.root_pk == sa.bindparam("root"),
        budgets.c.iterations_spent + budgets.c.iterations_reserved + sa.bindparam("kept", type_=sa.Integer())
        < budgets.c.iterations_max,
        sa.or_(budgets.c.tokens_max.is_(None), budgets.c.tokens_spent < budgets.c.tokens_max),
        sa.or_(budgets.c.tool_calls_max.is_(None), budgets.c.tool_calls_spent < budgets.c.tool_calls_max),
    )
    .values(iterations_reserved=budgets.c.iterations_reserved + 1)
)
_READ = Prepared(sa.select(budgets).where(budgets.c.root_pk == sa.bindparam("root")))
_SETTLE = Prepared(
    sa.update(budgets)
    .where(budgets.c.root_pk == sa.bindparam("root"))
    .values(
        iterations_reserved=budgets.c.iterations_reserved - sa.bindparam("reserved"),
        iterations_spent=budgets.c.iterations_spent + sa.bindparam("iterations"),
        tokens_spent=budgets.c.tokens_spent + sa.bindparam("tokens"),
        tool_calls_spent=budgets.c.tool_calls_spent + sa.bindparam("calls"),
    )
)
_MARK = Prepared(
    sa.update(runs)
    .where(runs.c.pk == sa.bindparam("run"))
    .values(is_reserved=sa.bindparam("reserved"), exhausted=sa.bindparam("dimension"))
)


def reserve(connection: Connection, loaded: LoadedRun) -> Dimension | None:
    """Reserve the model call that ``loaded`` was just claimed for; the dimension that refuses it, if one does.

    The caller's transaction has claimed the run. A refusal stays with the run: it may only sum up from now on. Tokens
    and tool calls are counted when they are known, so calls in flight may take them over their limit.
    """
    kept = reserve_of(loaded.depth)
    granted = _RESERVE.run(connection, {"root": loaded.root_pk, "kept": kept}) == 1
    dimension = None if granted else _refused_by(connection, loaded, kept)
    _MARK.run(connection, {"run": loaded.pk, "reserved": int(granted), "dimension": dimension and dimension.value})
    return dimension


def _refused_by(connection: Connection, loaded: LoadedRun, kept: int) -> Dimension:
    row = _READ.first(connection, {"root": loaded.root_pk})
    if row.tokens_max is not None and row.tokens_spent >= row.tokens_max:
        return Dimension.TOKENS
    if row.tool_calls_max is not None and row.tool_calls_spent >= row.tool_calls_max:
        return Dimension.TOOL_CALLS
    return Dimension.ITERATIONS


def settle(connection: Connection, root_pk: int, charge: Charge) -> None:
    """Take what a model call used. The caller's transaction gives the claim up, so this happens once."""
    _SETTLE.run(
        connection,
        {
            "root": root_pk,
            "reserved": charge.reserved,
            "iterations": charge.iterations,
            "tokens": charge.tokens,
            "calls": charge.tool_calls,
        },
    )


def open_budget(connection: Connection, run_pk: int, spec: RunSpec) -> None:
    """Give a new run with limits of its own a budget for itself and all it will delegate."""
    connection.execute(
        sa.insert(budgets).values(
            root_pk=run_pk,
            iterations_max=spec.iterations_max,
            tokens_max=spec.tokens_max,
            tool_calls_max=spec.tool_calls_max,
        )
    )
    connection.execute(sa.update(runs).where(runs.c.pk == run_pk).values(has_budget=1))


def share_budget(connection: Connection, root: LoadedRun) -> None:
    """Turn what the root has used so far into the budget of its tree, when it has its first children. Idempotent.

    The caller holds the root's row, and no model call of it is claimed: it waits for the call it is handing over.
    """
    if root.has_budget:
        return
    row = connection.execute(
        sa.select(
            runs.c.iterations_max,
            runs.c.iteration,
            (runs.c.input_tokens + runs.c.cache_read_tokens + runs.c.cache_write_tokens + runs.c.output_tokens).label(
                "tokens"
            ),
            sa.select(sa.func.count()).where(tool_calls.c.run_pk == runs.c.pk).scalar_subquery().label("calls"),
        ).where(runs.c.pk == root.pk)
    ).one()
    connection.execute(
        insert_ignoring(connection, budgets),
        {
            "root_pk": root.pk,
            "iterations_max": row.iterations_max,
            "iterations_spent": row.iteration,
            "tokens_spent": row.tokens,
            "tool_calls_spent": row.calls,
        },
    )
    connection.execute(sa.update(runs).where(runs.c.pk == root.pk).values(has_budget=1))
