"""The rows of a chain's budget: reserved by a claim, settled by the commit that gives the claim up, each exactly once.

Both happen in the transaction that changes the run's row, and that row says what the claim holds. So a worker that dies
in between leaves a reservation that is given back when its claim is taken away:

    claim       budgets.*_reserved += 1 iteration and the estimate;  runs.is_reserved = 1, runs.reserved_* = the same
    settle      budgets.*_reserved -= what the run's row says;       budgets.*_spent += what was really used
    lost claim  the sweeper's step gives the claim up and settles, with the cost of one lost attempt as an estimate

Only runs of trees with children, or with limits of their own, have a budget row; the others pay nothing for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypedDict

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.alert_rules import NEAR, NEAR_LEFT_PART, SPENT
from hermes_worker.core.budget import (
    Amounts,
    Budget,
    BudgetLimits,
    Dimension,
    decide_auxiliary_refusal,
    decide_reservation,
)
from hermes_worker.core.spec import RunSpec
from hermes_worker.store.engine.prepared import Prepared, Takes
from hermes_worker.store.rows import OWN_BUDGET, RunRecord
from hermes_worker.store.tables import budgets, runs, tool_calls


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """The effect of a finished step on the budget."""

    given_back: Amounts
    """The reservation of the step's claim."""
    spent: Amounts
    unknown_costs: int = 0
    """Calls whose cost is unknown."""


class _Part(NamedTuple):
    """A part of the charge: one statement, and the parameters that it takes."""

    statement: sa.Insert | sa.Update
    takes: type[Mapping[str, object]]


class _Both(Generic[Takes]):
    """Two statements that change different tables: one round trip on PostgreSQL, one after the other on SQLite."""

    def __init__(self, one: _Part, other: _Part, takes: type[Takes]) -> None:
        self._at_once = Prepared(one.statement.add_cte(other.statement.cte("other")), takes=takes)
        self._each = tuple(Prepared(part.statement, takes=part.takes) for part in (one, other))

    def run(self, connection: Connection, values: Takes) -> None:
        if connection.dialect.name == "postgresql":
            self._at_once.run(connection, values)
            return
        for statement in self._each:
            statement.run(connection, dict(values))


class _Root(TypedDict):
    root: int


class BudgetRow(NamedTuple):
    root_pk: int
    iterations_max: int
    iterations_reserved: int
    iterations_spent: int
    tokens_max: int | None
    tokens_reserved: int
    tokens_spent: int
    tool_calls_max: int | None
    tool_calls_spent: int
    nano_usd_max: int | None
    nano_usd_reserved: int
    nano_usd_spent: int
    unknown_costs: int
    turns: int


class _Estimate(_Root):
    tokens: int
    nano_usd: int


class _Hold(TypedDict):
    run: int
    tokens: int
    nano_usd: int


class _Reservation(_Estimate):
    run: int


class _Settlement(_Root):
    held: int
    iterations: int
    tokens_held: int
    tokens: int
    calls: int
    nano_usd_held: int
    nano_usd: int
    unknown: int


class _Exhausted(TypedDict):
    run: int
    dimension: str


class _EventSeq(NamedTuple):
    event_seq: int


class _Used(_Root):
    iterations: int
    tokens: int
    nano_usd: int


_this = budgets.c.root_pk == sa.bindparam("root")
BUDGET_COLUMNS = [budgets.c[name] for name in BudgetRow._fields]
_LOCK = Prepared(sa.select(*BUDGET_COLUMNS).where(_this).with_for_update(), takes=_Root, gives=BudgetRow)
_READ = Prepared(sa.select(*BUDGET_COLUMNS).where(_this), takes=_Root, gives=BudgetRow)
_reserve = (
    sa.update(budgets)
    .where(_this)
    .values(
        iterations_reserved=budgets.c.iterations_reserved + 1,
        tokens_reserved=budgets.c.tokens_reserved + sa.bindparam("tokens"),
        nano_usd_reserved=budgets.c.nano_usd_reserved + sa.bindparam("nano_usd"),
    )
)
_hold = (
    sa.update(runs)
    .where(runs.c.pk == sa.bindparam("run"))
    .values(is_reserved=1, reserved_tokens=sa.bindparam("tokens"), reserved_nano_usd=sa.bindparam("nano_usd"))
)
_RESERVE = _Both(_Part(_reserve, _Estimate), _Part(_hold, _Hold), _Reservation)
_tokens_after = budgets.c.tokens_spent + sa.bindparam("tokens")
_usd_after = budgets.c.nano_usd_spent + sa.bindparam("nano_usd")
# The comparison with a missing limit (NULL) is NULL, which ``case`` treats as false.
_level_after = sa.case(
    (sa.or_(_tokens_after >= budgets.c.tokens_max, _usd_after >= budgets.c.nano_usd_max), SPENT),
    (
        sa.or_(
            _tokens_after >= budgets.c.tokens_max - budgets.c.tokens_max // NEAR_LEFT_PART,
            _usd_after >= budgets.c.nano_usd_max - budgets.c.nano_usd_max // NEAR_LEFT_PART,
        ),
        sa.case((budgets.c.level > NEAR, budgets.c.level), else_=NEAR),
    ),
    else_=budgets.c.level,
)
"""Computed in the statement that writes what was spent, so that alerts cost a step nothing. A level never falls."""
_SETTLE = Prepared(
    sa.update(budgets)
    .where(_this)
    .values(
        iterations_reserved=budgets.c.iterations_reserved - sa.bindparam("held"),
        iterations_spent=budgets.c.iterations_spent + sa.bindparam("iterations"),
        tokens_reserved=budgets.c.tokens_reserved - sa.bindparam("tokens_held"),
        tokens_spent=_tokens_after,
        tool_calls_spent=budgets.c.tool_calls_spent + sa.bindparam("calls"),
        nano_usd_reserved=budgets.c.nano_usd_reserved - sa.bindparam("nano_usd_held"),
        nano_usd_spent=_usd_after,
        level=_level_after,
        unknown_costs=budgets.c.unknown_costs + sa.bindparam("unknown"),
    ),
    takes=_Settlement,
)
_USED_UP = Prepared(sa.update(budgets).where(_this).values(level=SPENT), takes=_Root)
_EXHAUST = Prepared(
    sa.update(runs)
    .where(runs.c.pk == sa.bindparam("run"))
    .values(exhausted=sa.bindparam("dimension"), event_seq=runs.c.event_seq + 1)
    .returning(runs.c.event_seq),
    takes=_Exhausted,
    gives=_EventSeq,
)


def reserve_call(connection: Connection, loaded: RunRecord) -> Amounts | Dimension:
    """Reserve in its budget the model call that ``loaded`` was just claimed for. Returns the reserved amounts, or the
    dimension that refuses the call. The caller's transaction has claimed the run."""
    budget_pk = loaded.budget_pk or loaded.pk  # the claim asks for a run with a budget; without one this fails
    budget = to_budget(_LOCK.one(connection, {"root": budget_pk}))
    granted = decide_reservation(budget, _sum_own_use(loaded), depth=_compute_budget_depth(loaded))
    if isinstance(granted, Dimension):
        return granted
    _RESERVE.run(
        connection,
        {"root": budget_pk, "run": loaded.pk, "tokens": granted.tokens, "nano_usd": granted.nano_usd},
    )
    return granted


def _compute_budget_depth(loaded: RunRecord) -> int:
    """The depth of a run below the owner of its budget: a run with a budget of its own has no level above it to leave
    something to."""
    return 0 if loaded.budget_pk == loaded.pk else loaded.depth


def _sum_own_use(loaded: RunRecord) -> Amounts:
    """Sum what the run used, with doubtful costs: replies whose tokens were not counted are expected to cost as much as
    the earlier ones may have cost."""
    return replace(loaded.used, nano_usd=loaded.used.nano_usd + loaded.doubtful.nano_usd)


def find_auxiliary_refusal(connection: Connection, loaded: RunRecord) -> Dimension | None:
    """Return the dimension of the budget that refuses a run an auxiliary call; ``None`` when the call is allowed.
    Nothing is reserved for an auxiliary call: several at once may exceed the budget by what they take."""
    if loaded.budget_pk is None:
        return None
    return decide_auxiliary_refusal(
        load_budget(connection, loaded.budget_pk), _sum_own_use(loaded), depth=_compute_budget_depth(loaded)
    )


def mark_exhausted(connection: Connection, run_pk: int, dimension: Dimension, budget_pk: int | None = None) -> int:
    """Write that the run may only write a summary from now on; where tokens or money are used up, note that on the
    budget too. Returns the number for the event that reports it."""
    seq = int(_EXHAUST.one(connection, {"run": run_pk, "dimension": dimension.value}).event_seq)
    if budget_pk is not None and dimension in (Dimension.TOKENS, Dimension.COST):
        _USED_UP.run(connection, {"root": budget_pk})
    return seq


def load_budget(connection: Connection, budget_pk: int) -> Budget:
    """Load the budget as it is at the moment, without a lock."""
    return to_budget(_READ.one(connection, {"root": budget_pk}))


def to_budget(row: BudgetRow) -> Budget:
    return Budget(
        limits=BudgetLimits(
            iterations=row.iterations_max,
            tokens=row.tokens_max,
            tool_calls=row.tool_calls_max,
            nano_usd=row.nano_usd_max,
        ),
        reserved=Amounts(
            iterations=row.iterations_reserved, tokens=row.tokens_reserved, nano_usd=row.nano_usd_reserved
        ),
        spent=Amounts(
            iterations=row.iterations_spent,
            tokens=row.tokens_spent,
            tool_calls=row.tool_calls_spent,
            nano_usd=row.nano_usd_spent,
        ),
        has_unknown_cost=row.unknown_costs > 0,
    )


def settle_charge(connection: Connection, budget_pk: int, charge: Charge) -> None:
    """Settle a step: return its reservation and add what it used. Exactly once, because the caller's transaction gives
    the claim up."""
    held, spent = charge.given_back, charge.spent
    _SETTLE.run(
        connection,
        {
            "root": budget_pk,
            "held": held.iterations,
            "tokens_held": held.tokens,
            "nano_usd_held": held.nano_usd,
            "iterations": spent.iterations,
            "tokens": spent.tokens,
            "calls": spent.tool_calls,
            "nano_usd": spent.nano_usd,
            "unknown": charge.unknown_costs,
        },
    )


def has_limits(spec: RunSpec) -> bool:
    """Whether the run has limits beside its model calls and its time."""
    return (spec.tokens_max, spec.tool_calls_max, spec.nano_usd_max) != (None, None, None)


def create_budget(connection: Connection, run_pk: int, spec: RunSpec) -> None:
    """Create the budget of a new run that has limits of its own, for itself and everything it will delegate."""
    connection.execute(sa.insert(budgets).values(_build_budget_values(run_pk, spec)))
    connection.execute(sa.update(runs).where(runs.c.pk == run_pk).values(has_budget=1))


def create_budgets(connection: Connection, started: Sequence[tuple[int, RunSpec]]) -> None:
    """Create the budgets of many new runs, whose rows say already that they have one."""
    connection.execute(sa.insert(budgets), [_build_budget_values(run_pk, spec) for run_pk, spec in started])


def create_child_budgets(connection: Connection, children: Sequence[tuple[int, RunSpec]]) -> None:
    """Create a budget for each of several new children, whose limits hold for each of them alone."""
    create_budgets(connection, children)
    pks = [run_pk for run_pk, _ in children]
    connection.execute(sa.update(runs).where(runs.c.pk.in_(pks)).values(has_budget=OWN_BUDGET))


def _build_budget_values(run_pk: int, spec: RunSpec) -> dict[str, int | None]:
    return {
        "root_pk": run_pk,
        "iterations_max": spec.iterations_max,
        "tokens_max": spec.tokens_max,
        "tool_calls_max": spec.tool_calls_max,
        "nano_usd_max": spec.nano_usd_max,
    }


_share = sa.insert(budgets).from_select(
    [
        "root_pk",
        "iterations_max",
        "iterations_spent",
        "tokens_spent",
        "nano_usd_spent",
        "tool_calls_spent",
        "unknown_costs",
    ],
    sa.select(
        runs.c.pk,
        runs.c.iterations_max,
        sa.cast(sa.bindparam("iterations"), budgets.c.iterations_spent.type),
        sa.cast(sa.bindparam("tokens"), budgets.c.tokens_spent.type),
        sa.cast(sa.bindparam("nano_usd"), budgets.c.nano_usd_spent.type),
        sa.select(sa.func.count()).where(tool_calls.c.run_pk == runs.c.pk).scalar_subquery(),
        runs.c.unpriced_calls,
    ).where(runs.c.pk == sa.bindparam("root")),
    include_defaults=False,
)
_has_budget = sa.update(runs).where(runs.c.pk == sa.bindparam("root")).values(has_budget=1)
_SHARE = _Both(_Part(_has_budget, _Root), _Part(_share, _Used), _Used)


_PROMISE_TURN = Prepared(sa.update(budgets).where(_this).values(turns=budgets.c.turns + 1), takes=_Root)


def lock_turns(connection: Connection, budget_pk: int) -> tuple[Budget, int]:
    """Lock the chain's budget. Returns it, and how many runs of the chain were promised to background answers so
    far."""
    row = _LOCK.one(connection, {"root": budget_pk})
    return to_budget(row), int(row.turns)


def promise_turn(connection: Connection, budget_pk: int) -> None:
    """Count a run that a background answer will begin. The caller has locked the row."""
    _PROMISE_TURN.run(connection, {"root": budget_pk})


def create_tree_budget(connection: Connection, root: RunRecord) -> None:
    """Create the budget of a tree from what its root has used so far, when the root has its first children. Idempotent.
    The caller holds the root's row, and no model call of it is claimed: it waits for the call it is handing over."""
    if root.budget_pk is not None:
        return
    used, doubtful = root.used, root.doubtful
    _SHARE.run(
        connection,
        {
            "root": root.pk,
            "iterations": used.iterations,
            "tokens": used.tokens + doubtful.tokens,
            "nano_usd": used.nano_usd + doubtful.nano_usd,
        },
    )
