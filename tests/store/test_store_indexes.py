"""Indexes on PostgreSQL: built while everybody writes, and none that every step has to write."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping

import psycopg
import pytest
import sqlalchemy as sa
from alembic.script import Script, ScriptDirectory
from support.patience import PATIENCE_S
from support.store import Store, asks, opened, settlement
from support.upgrades import Upgrade

from hermes_worker.core.replay import Replay
from hermes_worker.store.engine.database import Database
from hermes_worker.store.migrate import _build_ahead, find_newest, load_revision, migrate
from hermes_worker.store.revisions import MIGRATIONS
from hermes_worker.store.tables import runs, tool_calls

IDLE = "ix_runs_idle_limit"
FIRST = next(
    script
    for script in ScriptDirectory(str(MIGRATIONS)).walk_revisions()
    if IDLE in getattr(script.module, "builds_ahead", ())
)
"""The first revision that builds an index ahead."""


def at_revision(url: str, name: str) -> Database:
    database = Database(url, pool_size=20)
    with database.engine.begin() as connection:
        Upgrade(MIGRATIONS, "", "").upgrade(connection, name)
    return database


@pytest.fixture
def before(empty_postgres_url: str) -> Iterator[Database]:
    database = at_revision(empty_postgres_url, str(FIRST.down_revision))
    yield database
    database.close()


def is_valid(database: Database, name: str = IDLE) -> bool | None:
    with database.read() as connection:
        found = sa.text("select indisvalid from pg_index where indexrelid = to_regclass(:name)")
        return connection.execute(found, {"name": name}).scalar()


def test_others_write_while_an_index_is_built(before: Database) -> None:
    """A transaction that has written to the table holds up the builder; it must hold up nobody else."""
    with before.engine.connect() as earlier:
        earlier.exec_driver_sql("lock table runs in row exclusive mode")  # as every writer does
        migrating = threading.Thread(target=migrate, args=(before,))
        migrating.start()
        await_builder(before)
        with before.engine.begin() as writer:
            writer.exec_driver_sql("set local lock_timeout = '10s'")
            writer.execute(sa.insert(runs).from_select(["pk"], sa.select(runs.c.pk).where(sa.false())))
        assert migrating.is_alive()
        earlier.commit()
    migrating.join()
    assert (load_revision(before), is_valid(before), is_valid(before, "ix_runs_idle")) == (find_newest(), True, None)


def await_builder(database: Database) -> None:
    asked = sa.text(
        "select 1 from pg_stat_activity where query ilike 'create index concurrently%' and state = 'active'"
    )
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with database.read() as connection:
            if connection.execute(asked).scalar():
                return
        assert time.monotonic() < deadline, "nobody builds an index ahead"
        time.sleep(0.02)


def test_what_a_builder_that_died_left_is_made_anew(before: Database) -> None:
    with before.engine.begin() as connection:
        connection.exec_driver_sql(f"create index {IDLE} on runs (updated_at)")
        connection.exec_driver_sql(f"update pg_index set indisvalid = false where indexrelid = '{IDLE}'::regclass")
    migrate(before)
    assert is_valid(before)
    [found] = [each for each in sa.inspect(before.engine).get_indexes("runs") if each["name"] == IDLE]
    assert found["column_names"] == ["pk"]


def test_four_migrators_build_one_index(before: Database) -> None:
    threads = [threading.Thread(target=migrate, args=(before,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (load_revision(before), is_valid(before)) == (find_newest(), True)


def test_revisions_build_indexes_on_old_tables_ahead(empty_postgres_url: str) -> None:
    """One that needs a column of its own revision cannot be built before: only that table's rows are looked through."""
    scripts = {script.revision: script for script in ScriptDirectory(str(MIGRATIONS)).walk_revisions()}
    first, *later = sorted(scripts)
    database = at_revision(empty_postgres_url, first)
    before = described(database)
    for name in later:
        with database.engine.begin() as connection:
            Upgrade(MIGRATIONS, "", "").upgrade(connection, name)
        after = described(database)
        for table, (columns, indexes) in before.items():
            there, made = after[table]
            needs_new = {index for index, words in made.items() if words & (there - columns)}
            missing = made.keys() - indexes.keys() - needs_new - builds_ahead(scripts[name]).keys()
            assert not missing, f"{name} stops writers while it builds {missing}; CONTRIBUTING.md"
        before = after
    database.close()


def described(database: Database) -> dict[str, tuple[set[str], dict[str, set[str]]]]:
    """By table, its columns and the words of its indexes' columns and conditions."""
    inspector = sa.inspect(database.engine)
    return {
        table: (
            {column["name"] for column in inspector.get_columns(table)},
            {str(each["name"]): set(re.findall(r"\w+", str(each))) for each in inspector.get_indexes(table)},
        )
        for table in inspector.get_table_names()
    }


def test_what_is_built_ahead_is_what_the_revision_would_build(before: Database, own_postgres_store: Store) -> None:
    """Nothing is built twice, and each index has the columns and the condition that it has in a new database."""
    tables = set(sa.inspect(before.engine).get_table_names())  # those of others are made on the way
    _build_ahead(before, "0100")
    built = indexes(before, "oid::text")
    migrate(before)
    scripts = ScriptDirectory(str(MIGRATIONS)).walk_revisions()
    ahead = {
        name for script in scripts for name, what in builds_ahead(script).items() if what.partition(" ")[0] in tables
    }
    assert IDLE in ahead
    assert {name: built[name] for name in ahead}.items() <= indexes(before, "oid::text").items()
    assert indexes(before, "pg_get_indexdef(oid)") == indexes(own_postgres_store.database, "pg_get_indexdef(oid)")


def builds_ahead(script: Script) -> Mapping[str, str]:
    return getattr(script.module, "builds_ahead", {})


def indexes(database: Database, what: str) -> dict[str, str]:
    query = sa.text(f"select relname, {what} from pg_class where relkind = 'i' and relname like 'ix_%'")
    with database.read() as connection:
        return {row.relname: str(row[1]) for row in connection.execute(query)}


def test_a_result_that_is_not_the_last_of_its_batch_writes_no_index(empty_postgres_url: str) -> None:
    with opened(empty_postgres_url) as store:
        owner = store.owner
        run_id = store.submit(idle_s_max=600.0).run_id
        store.ask_tools(run_id, asks(*[Replay.PURE] * 10))
        claims = [store.call(run_id, position, owner) for position in range(10)]
    before, _ = counted_updates(empty_postgres_url)
    with opened(empty_postgres_url, is_migrated=True) as store:
        for claim in claims:
            store.calls.settle(claim, settlement("x"))
    updates, hot = counted_updates(empty_postgres_url)
    assert (updates - before, hot) == (10, 9)


def counted_updates(url: str) -> tuple[int, int]:
    """Of runs, and how many of them were HOT; once the sessions of others have ended, which then tell what they did."""
    alone = "select count(*) = 1 from pg_stat_activity where datname = current_database()"
    asked = "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relname = 'runs'"
    deadline = time.monotonic() + PATIENCE_S
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        while connection.execute(alone).fetchone() != (True,):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        updates, hot = connection.execute(asked).fetchone() or (0, 0)
        return int(updates), int(hot)


def test_no_index_holds_a_column_that_every_step_writes() -> None:
    for index in (*runs.indexes, *tool_calls.indexes):
        condition = str(index.dialect_options["postgresql"]["where"])
        columns = {column.name for column in index.columns} | set(re.findall(r"\w+", condition))
        assert not columns & {"updated_at", "event_seq", "watched_until"}, index.name
