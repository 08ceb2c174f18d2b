"""Prepared statements say what they take and what they give, and are held to it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any, NamedTuple, TypedDict

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from support.store import Store

import hermes_worker.store
from hermes_worker.store.engine.prepared import Joined, Prepared, fetch_row, fetch_rows
from hermes_worker.store.runs import step_statements as steps
from hermes_worker.store.tables import runs, sessions

DIALECTS = (postgresql.psycopg.dialect(), sqlite.dialect())


class Key(TypedDict):
    run: int


class Row(NamedTuple):
    pk: int
    run_id: str


class Session(NamedTuple):
    session_id: str


BY_PK = sa.select(runs.c.pk, runs.c.run_id).where(runs.c.pk == sa.bindparam("run"))


def prepared_in(value: object) -> Iterator[Prepared[Any, Any]]:
    """The statements in a global of a module."""
    if isinstance(value, Prepared):
        yield value
    elif isinstance(value, dict):
        yield from prepared_in(list(value.values()))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from prepared_in(each)
    elif type(value).__name__ == "_Both":
        yield from prepared_in([value._at_once, *value._each])  # type: ignore[attr-defined]


def statements_of_the_store() -> list[Prepared[Any, Any]]:
    found = {
        id(statement): statement
        for module in pkgutil.walk_packages(hermes_worker.store.__path__, "hermes_worker.store.")
        if ".migrations" not in module.name
        for value in vars(importlib.import_module(module.name)).values()
        for statement in prepared_in(value)
    }
    assert len(found) > 90
    return list(found.values())


def test_every_statement_of_the_store_takes_and_gives_what_it_says() -> None:
    for statement in statements_of_the_store():
        for dialect in DIALECTS:
            statement.check(dialect)


def test_postgresql_knows_the_types_of_every_parameter(store: Store) -> None:
    if store.database.is_sqlite:
        return
    with store.database.read() as connection:
        driver: Any = connection.connection.dbapi_connection
        for statement in [*statements_of_the_store(), steps._build_statement(True, 4, 4, 4, 4)]:
            compiled = statement._compile(connection)
            result = driver.pgconn.prepare(b"once", compiled.query, compiled.types)
            assert result.status == 1, (compiled.sql, result.error_message)
            driver.pgconn.exec_(b"deallocate once")


def test_a_statement_that_the_server_keeps_answers_as_before(store: Store) -> None:
    ids = [store.submit(session_id=f"s{number}").run_id for number in range(3)]
    every = Prepared(sa.select(runs.c.pk, runs.c.run_id).order_by(runs.c.pk), gives=Row)
    by_id = sa.select(runs.c.pk, runs.c.run_id).where(runs.c.run_id == sa.bindparam("run"))
    named = Prepared(by_id, names={"run"}, gives=Row)
    raised = Prepared(
        sa.update(runs).where(runs.c.run_id == sa.bindparam("run")).values(hints=runs.c.hints + 1), names={"run"}
    )
    for _ in range(12):
        with store.database.read() as connection:
            assert [row.run_id for row in every.all(connection, {})] == ids
            assert named.first(connection, {"run": "none \u20ac"}) is None
        with store.database.write() as connection:
            assert raised.run(connection, {"run": ids[0]}) == 1
            assert raised.run(connection, {"run": "none"}) == 0
            raised.run_each(connection, [{"run": run_id} for run_id in ids[1:]])
            row = named.first(connection, {"run": ids[0]})
            assert row is not None and row.run_id == ids[0]


def test_a_statement_that_the_server_was_told_to_forget_is_prepared_anew(store: Store) -> None:
    if store.database.is_sqlite:
        pytest.skip("SQLite keeps its statements in this process")
    run_id = store.submit().run_id
    by_id = sa.select(runs.c.pk, runs.c.run_id).where(runs.c.run_id == sa.bindparam("run"))
    named = Prepared(by_id, names={"run"}, gives=Row)
    kept = "select count(*) from pg_prepared_statements where name like 'hermes_%%'"
    with store.database.read() as connection:
        for round_trip in range(24):
            if round_trip == 12:
                assert connection.exec_driver_sql(kept).scalar_one() > 0, "nothing was kept: this shows nothing"
                connection.exec_driver_sql("deallocate all")
                assert connection.exec_driver_sql(kept).scalar_one() == 0
            row = named.first(connection, {"run": run_id})
            assert row is not None and row.run_id == run_id


def test_a_transaction_that_a_kept_statement_broke_is_rolled_back_whole(store: Store) -> None:
    run_id = store.submit(session_id="s").run_id
    taken = Prepared(
        sa.update(runs).values(pk=sa.bindparam("to")).where(runs.c.run_id == sa.bindparam("run")), names={"to", "run"}
    )
    other = store.submit(session_id="t").run_id
    with store.database.read() as connection:
        pks = dict(connection.execute(sa.select(runs.c.run_id, runs.c.pk)).all())
    for _ in range(8):
        with store.database.write() as connection:
            assert taken.run(connection, {"to": pks[run_id], "run": run_id}) == 1
            assert taken.run(connection, {"to": pks[run_id], "run": run_id}) == 1
        with pytest.raises(sa.exc.IntegrityError), store.database.write() as connection:
            assert taken.run(connection, {"to": pks[run_id] + 1_000, "run": run_id}) == 1
            taken.run(connection, {"to": pks[run_id] + 1_000, "run": other})
    with store.database.read() as connection:
        assert dict(connection.execute(sa.select(runs.c.run_id, runs.c.pk)).all()) == pks


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: str(dialect.name))
def test_a_statement_that_takes_another_parameter_than_it_says_is_refused(dialect: Any) -> None:
    other = sa.select(runs.c.pk, runs.c.run_id).where(runs.c.pk == sa.bindparam("pk"))
    with pytest.raises(TypeError, match="takes pk, and is said to take run"):
        Prepared(other, takes=Key, gives=Row).check(dialect)
    with pytest.raises(TypeError, match="takes run, and is said to take nothing"):
        Prepared(BY_PK, gives=Row).check(dialect)


def test_a_statement_that_is_put_together_says_its_parameters_then() -> None:
    for settles, counts in ((False, (0, 0, 0, 0)), (True, (2, 3, 1, 1))):
        steps._build_statement(settles, *counts).check(DIALECTS[0])
    with pytest.raises(TypeError, match="takes run, and is said to take pk"):
        Prepared(BY_PK, names={"pk"}, gives=Row).check(DIALECTS[0])


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: str(dialect.name))
def test_a_statement_that_gives_other_columns_than_it_says_is_refused(dialect: Any) -> None:
    turned = sa.select(runs.c.run_id, runs.c.pk).where(runs.c.pk == sa.bindparam("run"))
    with pytest.raises(TypeError, match="gives run_id, pk, and is said to give pk, run_id"):
        Prepared(turned, takes=Key, gives=Row).check(dialect)
    with pytest.raises(TypeError, match="gives pk, run_id, and is said to give nothing"):
        Prepared(BY_PK, takes=Key).check(dialect)


def test_a_joined_row_is_given_as_the_rows_it_consists_of(store: Store) -> None:
    run_id = store.submit(session_id="s").run_id
    joined = BY_PK.add_columns(sessions.c.session_id).join(sessions, sessions.c.pk == runs.c.session_pk)
    statement = Prepared(joined, takes=Key, gives=Joined(Row, Session))
    with store.database.read() as connection:
        pk = connection.execute(sa.select(runs.c.pk)).scalar_one()
        session_id = connection.execute(sa.select(sessions.c.session_id)).scalar_one()
        assert statement.first(connection, {"run": pk}) == (Row(pk, run_id), Session(session_id))
        assert statement.first(connection, {"run": pk + 1}) is None
        with pytest.raises(LookupError, match="'run'"):
            statement.one(connection, {"run": pk + 1})


def test_rows_of_other_statements_are_held_to_their_columns_too(store: Store) -> None:
    run_id = store.submit().run_id
    turned = sa.select(runs.c.run_id, runs.c.pk)
    with store.database.read() as connection:
        [row] = fetch_rows(connection.execute(sa.select(runs.c.pk, runs.c.run_id)), Row)
        assert row.run_id == run_id
        with pytest.raises(TypeError, match="Row has other fields than the columns run_id, pk"):
            fetch_row(connection.execute(turned), Row)
