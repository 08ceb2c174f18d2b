"""The runs of one tree, each with its parent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa

from hermes_worker.core.run_views import RunView
from hermes_worker.store.engine.database import Database
from hermes_worker.store.engine.prepared import fetch_rows
from hermes_worker.store.runs.runs import find_run
from hermes_worker.store.runs.views import load_views
from hermes_worker.store.tables import runs

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


_parents = runs.alias("parents")
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
