"""A delegation tree as one thing: its shape, its budget and use, and all that happened in it, in one order.

The runs that background answers began belong to it: each stands below the run whose children answered.

*The order.* Every run numbers its own events; an order over all runs of a tree would cost each of them a lock. So
readers make the order: events that have no number yet get the next ones, by time and within a run in its own order, and
the numbers are kept in ``tree_events``. Of two readers that number at once one fails on a key and reads again. All new
events are read by one statement, so an event's cause is read with it or was numbered before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.budget import Amounts, Budget, BudgetLimits
from hermes_worker.core.run import RunStatus
from hermes_worker.core.run_events import StoredEvent
from hermes_worker.core.run_views import RunView, Share, TreeBudget
from hermes_worker.store.engine.database import Database, RowStore, db_now
from hermes_worker.store.engine.prepared import fetch_row, fetch_rows, select_columns
from hermes_worker.store.rows import BEGAN_AT, find_budget_pk, to_reserved_amounts
from hermes_worker.store.runs.budgets import load_budget
from hermes_worker.store.runs.runs import RunNotFound, find_run
from hermes_worker.store.runs.views import load_event, load_views
from hermes_worker.store.tables import events, runs, tool_calls, tree_events

CHILDREN_SHOWN_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeEvent:
    """An event of any run of a tree; ``seq`` counts from 1 over the whole tree, without gaps."""

    seq: int
    run_id: str
    parent_run_id: str | None
    """The run that delegated to it, or whose background children began it; ``None`` for the first of the tree."""
    depth: int
    """How often work was delegated on the way to its run; 0 for runs of the session that the tree began in."""
    event: StoredEvent


_tokens = (
    runs.c.input_tokens
    + runs.c.cache_read_tokens
    + runs.c.cache_write_tokens
    + runs.c.output_tokens
    + runs.c.unknown_input_tokens
    + runs.c.unknown_output_tokens
)
_nano_usd = runs.c.cost_nano_usd + runs.c.doubtful_nano_usd
"""Counted as budgets count: attempts of unknown outcome are included."""
_ROOT = sa.select(sa.func.coalesce(runs.c.root_pk, runs.c.pk)).where(runs.c.run_id == sa.bindparam("run_id"))
_in_tree = sa.or_(runs.c.pk == sa.bindparam("root"), runs.c.root_pk == sa.bindparam("root"))


class Trees(RowStore):
    """The delegation trees in one database. Thread-safe."""

    def load_budget(self, run_id: str) -> TreeBudget:
        """Load the budget that a run draws from, and how much each part of the tree used. Raises ``RunNotFound``."""
        with self.database.read() as connection:
            row = fetch_row(connection.execute(_RUN, {"run_id": run_id}), _OwnRow)
            if row is None:
                raise RunNotFound(f"there is no run {run_id!r}")
            calls = connection.execute(sa.select(sa.func.count()).where(tool_calls.c.run_pk == row.pk)).scalar_one()
            own = _to_share(row, calls=calls)
            budget_pk = find_budget_pk(row)
            owner = row.run_id if budget_pk in (None, row.pk) else _find_run_id(connection, budget_pk)
            children = _load_child_shares(connection, row.pk)
            return TreeBudget(
                owner_run_id=owner,
                budget=_build_own_budget(row, own) if budget_pk is None else load_budget(connection, budget_pk),
                wall_s=None if row.deadline_at is None else row.deadline_at - row.began_at,
                elapsed_s=max(0.0, (row.finished_at or row.now) - row.began_at),
                own=own,
                children=children,
                children_total=connection.execute(
                    sa.select(sa.func.count()).where(_is_from(runs, row.pk))
                ).scalar_one(),
            )

    def list_events_after(self, run_id: str, seq: int, *, limit: int = 500) -> list[TreeEvent]:
        """List events of the whole tree that ``run_id`` is in, numbered above ``seq``, in order. Raises
        ``RunNotFound``."""
        root_pk = self._find_root(run_id)
        while True:
            try:
                with self.database.write() as connection:
                    _number_events(connection, root_pk)
                break
            except sa.exc.IntegrityError:
                continue  # another reader numbered at the same time; its numbers are there now
        with self.database.read() as connection:
            found = connection.execute(_NUMBERED, {"root": root_pk, "after": seq, "most": limit})
            return [
                TreeEvent(
                    seq=row.tree_seq,
                    run_id=row.run_id,
                    parent_run_id=row.parent_run_id,
                    depth=row.depth,
                    event=load_event(connection, row.session_pk, row),
                )
                for row in fetch_rows(found, _NumberedRow)
            ]

    def is_over(self, run_id: str) -> bool:
        """Whether every run of the tree has ended. Raises ``RunNotFound``."""
        root_pk = self._find_root(run_id)
        still_open = sa.select(runs.c.pk).where(_in_tree, runs.c.exit_reason.is_(None)).limit(1)
        return self.database.select(still_open, {"root": root_pk}).first() is None

    def _find_root(self, run_id: str) -> int:
        root_pk = self.database.select(_ROOT, {"run_id": run_id}).scalar()
        if root_pk is None:
            raise RunNotFound(f"there is no run {run_id!r}")
        return int(root_pk)


# --- the order -------------------------------------------------------------------------------------------------------

_TOTAL = sa.select(sa.func.coalesce(sa.func.sum(runs.c.event_seq), 0)).where(_in_tree)
_LAST = sa.select(sa.func.coalesce(sa.func.max(tree_events.c.seq), 0)).where(
    tree_events.c.root_pk == sa.bindparam("root")
)
_numbered_to = (
    sa.select(sa.func.coalesce(sa.func.max(tree_events.c.event_seq), 0))
    .where(tree_events.c.run_pk == runs.c.pk)
    .correlate(runs)
    .scalar_subquery()
)
_NEW = (
    sa.select(events.c.run_pk, events.c.seq, events.c.at, runs.c.depth)
    .join(runs, runs.c.pk == events.c.run_pk)
    .where(_in_tree, events.c.seq > _numbered_to)
    .order_by(events.c.run_pk, events.c.seq)
)
_parents = runs.alias("parents")


class _NumberedRow(NamedTuple):
    tree_seq: int
    seq: int
    at: float
    event: str
    data: str
    run_id: str
    session_pk: int
    depth: int
    parent_run_id: str | None


_NUMBERED = (
    sa.select(
        tree_events.c.seq.label("tree_seq"),
        events.c.seq,
        events.c.at,
        events.c.event,
        events.c.data,
        runs.c.run_id,
        runs.c.session_pk,
        runs.c.depth,
        _parents.c.run_id.label("parent_run_id"),
    )
    .join(events, (events.c.run_pk == tree_events.c.run_pk) & (events.c.seq == tree_events.c.event_seq))
    .join(runs, runs.c.pk == tree_events.c.run_pk)
    .outerjoin(_parents, _parents.c.pk == sa.func.coalesce(runs.c.parent_pk, runs.c.cause_pk))
    .where(tree_events.c.root_pk == sa.bindparam("root"), tree_events.c.seq > sa.bindparam("after"))
    .order_by(tree_events.c.seq)
    .limit(sa.bindparam("most", type_=sa.Integer()))
)


def _number_events(connection: Connection, root_pk: int) -> None:
    """Give the events that have no number the next ones. Raises ``IntegrityError`` when another reader just did."""
    last = int(connection.execute(_LAST, {"root": root_pk}).scalar_one())
    if int(connection.execute(_TOTAL, {"root": root_pk}).scalar_one()) == last:
        return
    ordered = sort_events(fetch_rows(connection.execute(_NEW, {"root": root_pk}), NewEvent))
    values = [
        {"root_pk": root_pk, "seq": last + n, "run_pk": row.run_pk, "event_seq": row.seq}
        for n, row in enumerate(ordered, start=1)
    ]
    if values:
        connection.execute(sa.insert(tree_events), values)


class NewEvent(NamedTuple):
    """An event that has no place in the order of its tree yet."""

    run_pk: int
    seq: int
    at: float
    depth: int


def sort_events(rows: Sequence[NewEvent]) -> list[NewEvent]:
    """Sort events, given run by run, by time and never against the order of their run. A tool's start is dated back to
    when it began, so the times within a run may go back; its order does not. Of two events at the same moment the
    deeper one comes first: what a child's end does to its parent follows from it."""
    latest: dict[int, float] = {}
    keyed = []
    for row in rows:
        latest[row.run_pk] = max(latest.get(row.run_pk, 0.0), row.at)
        keyed.append(((latest[row.run_pk], -row.depth, row.run_pk, row.seq), row))
    return [row for _, row in sorted(keyed, key=lambda pair: pair[0])]


# --- the budget ------------------------------------------------------------------------------------------------------


class _OwnRow(NamedTuple):
    """The run's own use, and which budget it draws from."""

    pk: int
    run_id: str
    root_pk: int | None
    child_index: int | None
    status: str
    iterations_max: int
    has_budget: int
    iterations: int
    tokens: int
    nano_usd: int
    unknown: int
    is_reserved: int
    reserved_tokens: int
    reserved_nano_usd: int
    deadline_at: float | None
    began_at: float
    finished_at: float | None
    now: float


class _ShareRow(NamedTuple):
    pk: int
    run_id: str
    child_index: int | None
    status: str
    iterations_max: int


class _SumRow(NamedTuple):
    """The use by a run and everything below it."""

    child_pk: int
    iterations: int
    tokens: int
    nano_usd: int
    unknown: int
    is_reserved: int
    reserved_tokens: int
    reserved_nano_usd: int


_RUN = sa.select(
    runs.c.pk,
    runs.c.run_id,
    runs.c.root_pk,
    runs.c.child_index,
    runs.c.status,
    runs.c.iterations_max,
    runs.c.has_budget,
    (runs.c.iteration - runs.c.refunds).label("iterations"),
    _tokens.label("tokens"),
    _nano_usd.label("nano_usd"),
    runs.c.unpriced_calls.label("unknown"),
    runs.c.is_reserved,
    runs.c.reserved_tokens,
    runs.c.reserved_nano_usd,
    runs.c.deadline_at,
    BEGAN_AT.label("began_at"),
    runs.c.finished_at,
    db_now().label("now"),
).where(runs.c.run_id == sa.bindparam("run_id"))


def _is_from(table: sa.FromClause, run_pk: sa.ColumnElement[int] | int) -> sa.ColumnElement[bool]:
    """Condition that a run is a child of another, or a run that its background children began."""
    return sa.or_(table.c.parent_pk == run_pk, table.c.cause_pk == run_pk)


def _build_descendants() -> sa.CTE:
    first = (
        sa.select(runs.c.pk.label("pk"), runs.c.pk.label("child_pk"))
        .where(_is_from(runs, sa.bindparam("run")))
        .cte("below", recursive=True)
    )
    deeper = runs.alias("deeper")
    return first.union_all(sa.select(deeper.c.pk, first.c.child_pk).join(first, _is_from(deeper, first.c.pk)))


BELOW = _build_descendants()
"""Everything that a run (``:run``) caused, at any depth: ``pk``, and ``child_pk``, the direct child or caused run that
it is, or is below of."""
_SUMS = (
    sa.select(
        BELOW.c.child_pk,
        sa.func.sum(runs.c.iteration - runs.c.refunds).label("iterations"),
        sa.func.sum(_tokens).label("tokens"),
        sa.func.sum(_nano_usd).label("nano_usd"),
        sa.func.max(runs.c.unpriced_calls).label("unknown"),
        sa.func.sum(runs.c.is_reserved).label("is_reserved"),
        sa.func.sum(runs.c.reserved_tokens * runs.c.is_reserved).label("reserved_tokens"),
        sa.func.sum(runs.c.reserved_nano_usd * runs.c.is_reserved).label("reserved_nano_usd"),
    )
    .join(runs, runs.c.pk == BELOW.c.pk)
    .group_by(BELOW.c.child_pk)
    .order_by(BELOW.c.child_pk)
    .limit(CHILDREN_SHOWN_MAX)
)
_CALLS = (
    sa.select(BELOW.c.child_pk, sa.func.count().label("calls"))
    .join(tool_calls, tool_calls.c.run_pk == BELOW.c.pk)
    .group_by(BELOW.c.child_pk)
)


def _load_child_shares(connection: Connection, run_pk: int) -> list[Share]:
    sums = fetch_rows(connection.execute(_SUMS, {"run": run_pk}), _SumRow)
    if not sums:
        return []
    calls = {child_pk: int(count) for child_pk, count in connection.execute(_CALLS, {"run": run_pk})}
    wanted = sa.select(*select_columns(runs, _ShareRow)).where(runs.c.pk.in_([row.child_pk for row in sums]))
    facts = {row.pk: row for row in fetch_rows(connection.execute(wanted), _ShareRow)}
    return [
        Share(
            run_id=facts[row.child_pk].run_id,
            index=facts[row.child_pk].child_index,
            status=RunStatus(facts[row.child_pk].status),
            iterations_max=facts[row.child_pk].iterations_max,
            reserved=Amounts(
                iterations=int(row.is_reserved),
                tokens=int(row.reserved_tokens),
                nano_usd=int(row.reserved_nano_usd),
            ),
            spent=_to_amounts(row, calls.get(row.child_pk, 0)),
            has_unknown_cost=bool(row.unknown),
        )
        for row in sums
    ]


def _to_share(row: _OwnRow, *, calls: int) -> Share:
    return Share(
        run_id=row.run_id,
        index=None,
        status=RunStatus(row.status),
        iterations_max=row.iterations_max,
        reserved=to_reserved_amounts(row),
        spent=_to_amounts(row, calls),
        has_unknown_cost=bool(row.unknown),
    )


def _to_amounts(row: _OwnRow | _SumRow, calls: int) -> Amounts:
    return Amounts(iterations=int(row.iterations), tokens=int(row.tokens), tool_calls=calls, nano_usd=int(row.nano_usd))


def _build_own_budget(row: _OwnRow, own: Share) -> Budget:
    """Build the budget of a run that draws from none: only its own model calls are limited."""
    return Budget(
        limits=BudgetLimits(iterations=row.iterations_max),
        reserved=own.reserved,
        spent=own.spent,
        has_unknown_cost=own.has_unknown_cost,
    )


def _find_run_id(connection: Connection, pk: int | None) -> str:
    return str(connection.execute(sa.select(runs.c.run_id).where(runs.c.pk == pk)).scalar_one())


TREE_RUNS_MAX = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeNode:
    """A run of a tree."""

    run: RunView
    parent_run_id: str | None
    """The run that delegated to it, or whose background answer began it; ``None`` for the first."""
    depth: int
    """How often work was delegated on the way to it; 0 for runs at the top."""
    child_index: int | None
    """The index of its task in the call that delegated to it; ``None`` for runs that were not delegated to."""
    call: tuple[int, int] | None
    """Iteration and position of that call."""
    is_background: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeShape:
    """The oldest ``TREE_RUNS_MAX`` runs of a tree, in the order in which they began."""

    nodes: Sequence[TreeNode]
    total: int


class _NodeRow(NamedTuple):
    pk: int
    parent_run_id: str | None
    depth: int
    child_index: int | None
    parent_iteration: int | None
    parent_position: int | None
    is_background: int


_NODE = sa.select(
    runs.c.pk,
    _parents.c.run_id.label("parent_run_id"),
    runs.c.depth,
    runs.c.child_index,
    runs.c.parent_iteration,
    runs.c.parent_position,
    runs.c.is_background,
).outerjoin(_parents, _parents.c.pk == sa.func.coalesce(runs.c.parent_pk, runs.c.cause_pk))


def load_tree(database: Database, run_id: str, *, limit: int = TREE_RUNS_MAX) -> TreeShape:
    """Load the tree that a run is in, at most ``limit`` runs. Raises ``RunNotFound``."""
    with database.read() as connection:
        pk = find_run(connection, run_id)
        root = connection.execute(sa.select(sa.func.coalesce(runs.c.root_pk, runs.c.pk)).where(runs.c.pk == pk))
        root_pk = int(root.scalar_one())
        in_tree = sa.or_(runs.c.pk == root_pk, runs.c.root_pk == root_pk)
        total = connection.execute(sa.select(sa.func.count()).select_from(runs).where(in_tree)).scalar_one()
        rows = fetch_rows(connection.execute(_NODE.where(in_tree).order_by(runs.c.pk).limit(limit)), _NodeRow)
        views = load_views(connection, runs.c.pk.in_([row.pk for row in rows]), limit=limit)
    return TreeShape(nodes=[_to_node(row, views[row.pk][0]) for row in rows if row.pk in views], total=int(total))


def _to_node(row: _NodeRow, view: RunView) -> TreeNode:
    is_called = row.parent_iteration is not None and row.parent_position is not None
    return TreeNode(
        run=view,
        parent_run_id=row.parent_run_id,
        depth=row.depth,
        child_index=row.child_index,
        call=(row.parent_iteration or 0, row.parent_position or 0) if is_called else None,
        is_background=bool(row.is_background),
    )
