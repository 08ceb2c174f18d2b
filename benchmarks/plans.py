"""How PostgreSQL executes what the store sends: every statement of an act is explained in the place where it is sent.

What is explained with ANALYZE is executed. So that happens on the connection on which the statement is about to run,
and is taken back before it does.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import psycopg
import sqlalchemy as sa
from psycopg.pq import TransactionStatus

from hermes_worker.store.engine.database import Database
from hermes_worker.store.engine.prepared import Prepared

_EXPLAINED = ("select", "insert", "update", "delete", "with")


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """One statement, and PostgreSQL's plan of it with the buffers that it touched."""

    statement: str
    plan: dict[str, Any]

    def accesses(self, small: Collection[str]) -> list[str]:
        """What is read and how, in order: by which index, or the whole table. ``small`` are indexes that hold only what
        is at work; which of them serves a statement, and how the few rows are sorted, says nothing."""
        return [_access(node, small) for node in nodes_of(self.plan) if _names(node) & {"Relation Name", "Index Name"}]


def _names(node: dict[str, Any]) -> set[str]:
    # The heap of a bitmap is reached through its index, which is a node of its own.
    return set() if node["Node Type"] in ("Bitmap Heap Scan", "ModifyTable") else set(node)


def _access(node: dict[str, Any], small: Collection[str]) -> str:
    index = node.get("Index Name")
    if index is None:
        return f"all of {node['Relation Name']}"
    return "an index of what is at work" if index in small else f"the index {index}"


def nodes_of(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes_of(child)


@dataclass(slots=True)
class Plans:
    found: list[Explained] = field(default_factory=list)

    def note(self, connection: sa.Connection, statement: str, parameters: Any, cursors: type[psycopg.Cursor]) -> None:
        if not statement.lstrip().lower().startswith(_EXPLAINED):
            return
        if isinstance(parameters, list) and parameters and isinstance(parameters[0], list | dict):
            parameters = parameters[0]
        driver: Any = connection.connection.dbapi_connection
        is_within = driver.info.transaction_status == TransactionStatus.INTRANS
        before, after = ("savepoint p", "rollback to savepoint p; release p") if is_within else ("begin", "rollback")
        cursor = cursors(driver)
        cursor.execute(before.encode())
        question = f"explain (analyze, buffers, format json) {statement}"
        [answer] = cursor.execute(question.encode(), parameters, prepare=False).fetchone() or [[]]
        found = answer if isinstance(answer, list) else json.loads(answer)
        psycopg.Cursor(driver).execute(after.encode())
        self.found.append(Explained(statement=statement, plan=found[0]["Plan"]))


@contextmanager
def explaining(database: Database) -> Iterator[Plans]:
    """The plans of what is sent meanwhile."""
    plans = Plans()

    def note(connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        plans.note(connection, statement, parameters, psycopg.Cursor)

    def note_one(prepared: Prepared[Any, Any], connection: Any, compiled: Any, values: Any) -> Any:
        plans.note(connection, compiled.sql, compiled.build_parameters(values, connection.dialect), psycopg.RawCursor)
        return run_one(prepared, connection, compiled, values)

    def note_many(prepared: Prepared[Any, Any], connection: Any, compiled: Any, rows: Any) -> None:
        plans.note(connection, compiled.sql, compiled.build_parameters(rows[0], connection.dialect), psycopg.RawCursor)
        run_many(prepared, connection, compiled, rows)

    run_one, run_many = Prepared._run, Prepared._run_many
    # What is prepared goes to the driver past SQLAlchemy, and past its events.
    with patch.multiple(Prepared, _run=note_one, _run_many=note_many):
        for engine in database.engines:
            sa.event.listen(engine, "before_cursor_execute", note)
        try:
            yield plans
        finally:
            for engine in database.engines:
                sa.event.remove(engine, "before_cursor_execute", note)
