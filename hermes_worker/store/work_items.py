"""Work items: rows beside a run that workers claim and settle one by one, such as calls of hooks, gatherings of
artifacts and files of chats.

Such a row is due while it has ``hinted_at``, and claimed while it has a lease. The sweeper treats all of them alike: a
row whose worker vanished is due again, or given up after ``ATTEMPTS_MAX`` claims; a row whose message is lost is hinted
again, at growing intervals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

import sqlalchemy as sa

from hermes_worker.store.engine.database import Database, db_now, select_db_now
from hermes_worker.store.engine.prepared import PkRow, Prepared
from hermes_worker.store.row_keys import LostHintsBounds
from hermes_worker.store.tables import runs, workers

ATTEMPTS_MAX = 3
_BATCH = 200
_HINTS_COUNTED = 100
Row = TypeVar("Row", bound=tuple[object, ...])


class WorkItems(Generic[Row]):
    """The statements on the work items of one table.

    ``gives`` is a ``NamedTuple``: columns of the table, or of the run that a row belongs to (``run_id``). ``lost`` are
    the values written to a row that is given up; those that are no ``state`` are also written to every row whose worker
    vanished.
    """

    def __init__(self, table: sa.Table, key: str, *, gives: type[Row], lost: Mapping[str, str]) -> None:
        self._table, self._key, self._gives = table, table.c[key], gives
        returned = [self._find_column(name) for name in gives._fields]  # type: ignore[attr-defined]
        self._first_orphan = Prepared(self._orphans.limit(1), gives=PkRow)
        self._lose = Prepared(self._build_take_back(lost).returning(*returned), gives=gives)
        self._first_unheard = Prepared(self._lost_rows.limit(1), takes=LostHintsBounds, gives=PkRow)
        self._resend = Prepared(self._resend_update.returning(*returned), takes=LostHintsBounds, gives=gives)

    def take_back(self, database: Database) -> Sequence[Row]:
        """Take back the rows of workers that are gone, and return them. Idempotent."""
        with database.read() as connection:
            if self._first_orphan.first(connection, {}) is None:
                return []
        with database.statement() as connection:
            return self._lose.all(connection, {})

    def take_lost(self, database: Database, *, grace_s: float, before: float) -> Sequence[Row]:
        """Return the due rows whose message is lost: hinted before ``before`` (epoch seconds) and longer ago than
        ``grace_s``. Their hint time is renewed."""
        values: LostHintsBounds = {"grace": grace_s, "before": before}
        with database.read() as connection:
            if self._first_unheard.first(connection, values) is None:
                return []
        with database.statement() as connection:
            return self._resend.all(connection, values)

    def _find_column(self, name: str) -> sa.ColumnElement[object]:
        if name != "run_id":
            return self._table.c[name]
        return sa.select(runs.c.run_id).where(runs.c.pk == self._table.c.run_pk).scalar_subquery().label(name)

    @property
    def _orphans(self) -> sa.Select[int]:
        columns = self._table.c
        is_gone = sa.or_(workers.c.state.is_(None), workers.c.state != "alive")
        return (
            sa.select(self._key.label("pk"))
            .outerjoin(workers, workers.c.pk == columns.lease_owner)
            .where(columns.lease_owner.is_not(None), is_gone)
            .limit(_BATCH)
        )

    def _build_take_back(self, lost: Mapping[str, str]) -> sa.Update:
        columns = self._table.c
        is_given_up = columns.attempts >= ATTEMPTS_MAX
        return (
            sa.update(self._table)
            .where(self._key.in_(self._orphans), columns.lease_owner.is_not(None))
            .values(
                **{name: value for name, value in lost.items() if name != "state"},
                state=sa.case((is_given_up, lost["state"]), else_="pending"),
                settled_at=sa.case((is_given_up, db_now()), else_=None),
                hinted_at=sa.case((is_given_up, None), else_=db_now()),
                lease_token=None,
                lease_owner=None,
            )
        )

    @property
    def _lost_rows(self) -> sa.Select[int]:
        columns = self._table.c
        wait: sa.ColumnElement[float] = sa.bindparam("grace", type_=sa.Double()) * sa.case(
            (columns.hints == 0, 1.0), (columns.hints == 1, 2.0), (columns.hints < 5, 8.0), else_=60.0
        )
        return (
            sa.select(self._key.label("pk"))
            .where(
                columns.hinted_at < sa.bindparam("before", type_=sa.Double()),
                columns.hinted_at < select_db_now() - wait,
            )
            .order_by(columns.hinted_at)
            .limit(_BATCH)
        )

    @property
    def _resend_update(self) -> sa.Update:
        columns = self._table.c
        return (
            sa.update(self._table)
            .where(self._key.in_(self._lost_rows.with_for_update(skip_locked=True)), columns.hinted_at.is_not(None))
            .values(
                hinted_at=db_now(),
                hints=sa.case((columns.hints < _HINTS_COUNTED, columns.hints + 1), else_=columns.hints),
            )
        )
