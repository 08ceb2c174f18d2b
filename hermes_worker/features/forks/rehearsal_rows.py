"""The copy of a database on which an upgrade is rehearsed, and what its rows say."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.run import OPEN_STATUSES, RunStatus, WaitKind
from hermes_worker.core.sources import EVALUATION_SOURCE
from hermes_worker.store.clock import SWEEP
from hermes_worker.store.engine.database import Database
from hermes_worker.store.engine.prepared import fetch_rows
from hermes_worker.store.migrate import build_schema
from hermes_worker.store.tables import maintenance, runs, schema_revisions, waits
from hermes_worker.store.whole_database import copy_sqlite

_NOT_COMPARED = frozenset({"alembic_version", "schema_revisions", "maintenance", "workers"})
"""Tables that a migration, or a stack at work, writes as a matter of course."""


class RehearsedRun(NamedTuple):
    """A run of the copy."""

    run_id: str
    session_pk: int
    message_seq: int
    status: str
    exit_reason: str | None
    model: str
    iteration: int


@contextmanager
def copy_database(source: Database, folder: Path, target: str | None) -> Iterator[str]:
    """Copy a database that others write to, and yield the URL of the copy. It is gone afterwards, but for a ``target``
    that somebody named. Raises ``ConfigurationError``, ``UnavailableError``."""
    if source.is_sqlite:
        copy_sqlite(Path(str(source.url.database)), folder / "hermes-worker.db")
        yield f"sqlite:///{folder / 'hermes-worker.db'}"
    elif target is not None:
        _copy_postgres(source, target)
        yield target
    else:
        name = f"hermes_rehearsal_{uuid4().hex[:12]}"
        url = source.url.set(database=name).render_as_string(hide_password=False)
        _administer(source, f"create database {name} encoding 'UTF8' template template0")
        try:
            _copy_postgres(source, url)
            yield url
        finally:
            _administer(source, f"drop database if exists {name} with (force)")


def _administer(database: Database, statement: str) -> None:
    try:
        with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql(statement)
    except sa.exc.ProgrammingError as error:
        raise ConfigurationError(
            f"the copy needs a database of its own, and this role may make none ({str(error.orig).strip()}); make an "
            "empty one and name it with --copy-to"
        ) from error


def _copy_postgres(source: Database, url: str) -> None:
    """Copy all rows, as they stood at one moment, into an empty database with the same schema."""
    target = Database(url, pool_size=2)
    try:
        with source.snapshot() as reading:
            revision = str(reading.scalar(sa.text("select version_num from alembic_version")))
            if sa.inspect(target.engine).get_table_names():
                raise ConfigurationError("the database of --copy-to is not empty; name an empty one")
            build_schema(target, revision)
            tables = sa.MetaData()
            tables.reflect(target.engine)
            with target.write() as writing:
                for table in reversed(tables.sorted_tables):
                    if table.name != "alembic_version":
                        writing.execute(sa.delete(table))
                for table in tables.sorted_tables:
                    if table.name != "alembic_version":
                        _copy_table(reading, writing, table)
    finally:
        target.close()


def _copy_table(reading: Connection, writing: Connection, table: sa.Table) -> None:
    columns = ", ".join(f'"{column.name}"' for column in table.columns if column.computed is None)
    out, into = (
        each.connection.driver_connection.cursor()  # type: ignore[union-attr]
        for each in (reading, writing)
    )
    with (
        out.copy(f'copy "{table.name}" ({columns}) to stdout (format binary)') as rows,
        into.copy(f'copy "{table.name}" ({columns}) from stdin (format binary)') as copied,
    ):
        for data in rows:
            copied.write(data)
    for column in table.primary_key.columns:
        name = {"table": table.name, "column": column.name}
        sequence = writing.scalar(sa.text("select pg_get_serial_sequence(:table, :column)"), name)
        if sequence is not None:
            newest = sa.select(sa.func.coalesce(sa.func.max(column), 0) + 1).scalar_subquery()
            writing.execute(sa.select(sa.func.setval(sequence, newest, sa.false())))


def digest_columns(database: Database) -> dict[str, str]:
    """Digest whatever stands in each column, by ``table.column``, and count the rows of each table."""
    tables, found = sa.MetaData(), dict[str, str]()
    with database.engine.connect() as connection:
        for name in sorted(sa.inspect(connection).get_table_names()):
            if name not in _NOT_COMPARED and not name.startswith("search_"):
                table = sa.Table(name, tables, autoload_with=connection, resolve_fks=False)
                found.update(_digest_table(connection, table))
    return found


def _digest_table(connection: Connection, table: sa.Table) -> Mapping[str, str]:
    names = [column.name for column in table.columns]
    hashes, rows = [hashlib.sha256() for _ in names], 0
    order = ", ".join(f'"{column.name}"' for column in table.primary_key.columns or table.columns)
    chosen = ", ".join(f'"{name}"' for name in names)
    for row in connection.exec_driver_sql(f'select {chosen} from "{table.name}" order by {order}'):
        rows += 1
        for digest, value in zip(hashes, row, strict=True):
            digest.update(repr(bytes(value) if isinstance(value, memoryview) else value).encode())
            digest.update(b"\0")
    columns = {f"{table.name}.{name}": each.hexdigest() for name, each in zip(names, hashes, strict=True)}
    return {table.name: f"{rows} rows", **columns}


def list_open(database: Database) -> Sequence[RehearsedRun]:
    """List the runs that have not ended."""
    return _list_runs(database, runs.c.status.in_(OPEN_STATUSES), None)


def list_completed(database: Database, most: int) -> Sequence[RehearsedRun]:
    """List the newest runs that completed, at most so many, without evaluations and children."""
    return _list_runs(database, runs.c.status == RunStatus.COMPLETED.value, most)


def _list_runs(database: Database, which: sa.ColumnElement[bool], most: int | None) -> Sequence[RehearsedRun]:
    columns = {column.name: column for column in runs.c}
    wanted = sa.select(*(columns[name] for name in RehearsedRun._fields)).where(which)
    if most is not None:
        is_original = sa.func.coalesce(runs.c.origin, "") != EVALUATION_SOURCE
        wanted = wanted.where(is_original, runs.c.parent_pk.is_(None)).limit(most)
    return fetch_rows(database.select(wanted.order_by(runs.c.pk.desc())), RehearsedRun)


def list_undone(database: Database) -> frozenset[str]:
    """List the runs of which a step is due, or was begun and not ended. Others wait for a person, a time, or a run."""
    is_at_work = runs.c.status.in_((RunStatus.RUNNING.value, RunStatus.STOPPING.value))
    is_due = runs.c.status.in_(OPEN_STATUSES) & (runs.c.hinted_at.is_not(None) | runs.c.lease_token.is_not(None))
    return frozenset(database.select(sa.select(runs.c.run_id).where(is_at_work | is_due)).scalars())


def stop_clocks(database: Database) -> None:
    """Have no question and no run of the copy run out of time, and no sweep wait for workers to come back: how long a
    rehearsal takes, and how old the rows are, must not matter."""
    with database.write() as connection:
        swept = sa.update(maintenance).where(maintenance.c.name == SWEEP)
        connection.execute(swept.values(ran_at=0.0, hold_until=0.0))
        is_open = waits.c.closed_at.is_(None) & (waits.c.kind != WaitKind.TASK.value)
        connection.execute(sa.update(waits).where(is_open).values(expires_at=None))
        at_work = sa.update(runs).where(runs.c.status.in_(OPEN_STATUSES))
        connection.execute(at_work.values(deadline_at=None, idle_s_max=None, watched_until=0))


def load_works_with(database: Database, found: str) -> str:
    """Load the oldest revision whose code works on a schema that was migrated from the revision ``found``."""
    newer = sa.select(sa.func.max(schema_revisions.c.works_with)).where(schema_revisions.c.revision > found)
    return str(database.select(newer).scalar() or found)
