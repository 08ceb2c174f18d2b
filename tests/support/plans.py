"""What goes to the database, and how PostgreSQL would execute it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import psycopg
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.store.engine.database import Database
from hermes_worker.store.engine.prepared import Prepared


@contextmanager
def statements(database: Database) -> Iterator[list[tuple[str, Any]]]:
    """What goes to the server meanwhile, with its parameters: a list of them where there are many. What is remembered
    of the fleet is not read again in between, however long that takes."""
    seen: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        seen.append((statement, parameters))

    def note_one(prepared: Prepared, connection: Any, compiled: Any, values: Any) -> Any:
        seen.append((compiled.sql, compiled.build_parameters(values, connection.dialect)))
        return run_one(prepared, connection, compiled, values)

    def note_many(prepared: Prepared, connection: Any, compiled: Any, rows: Any) -> None:
        seen.append((compiled.sql, [compiled.build_parameters(values, connection.dialect) for values in rows]))
        run_many(prepared, connection, compiled, rows)

    run_one, run_many = Prepared._run, Prepared._run_many
    # What is prepared goes to the driver past SQLAlchemy, and past its events.
    remembered = patch.object(database.remembered, "every_s", float("inf"))
    with patch.multiple(Prepared, _run=note_one, _run_many=note_many), remembered:
        for engine in database.engines:
            sa.event.listen(engine, "before_cursor_execute", note)
        try:
            yield seen
        finally:
            for engine in database.engines:
                sa.event.remove(engine, "before_cursor_execute", note)


def plan_of(
    database: Database, statement: str, parameters: Any, *, executes: bool = False, on: Connection | None = None
) -> list[dict[str, Any]]:
    """Every node of the plan that PostgreSQL would execute; where it is sent many times, with the first parameters.

    With ``executes`` it is executed, and the nodes tell how many rows they read. ``on`` is a connection to ask on.
    """
    if isinstance(parameters, list) and parameters and isinstance(parameters[0], list | dict):
        parameters = parameters[0]
    question = f"explain ({'analyze, ' if executes else ''}format json) {statement}"
    with nullcontext(on) if on is not None else database.write() as connection:
        if isinstance(parameters, dict):
            [explained] = connection.exec_driver_sql(question, parameters).one()
        else:  # prepared: with the server's own placeholders
            driver: Any = connection.connection.dbapi_connection
            [explained] = psycopg.RawCursor(driver).execute(question.encode(), parameters).fetchone()
    nodes: list[dict[str, Any]] = []
    todo = [(explained if isinstance(explained, list) else json.loads(explained))[0]["Plan"]]
    while todo:
        node = todo.pop()
        nodes.append(node)
        todo += node.get("Plans", ())
    return nodes
