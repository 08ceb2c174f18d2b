"""Indexes on PostgreSQL: built while everybody writes, and none that every step has to write."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from alembic.script import ScriptDirectory
from support.patience import PATIENCE_S
from support.store import asks, opened, settlement
from support.upgrades import Upgrade

from hermes_worker.core.replay import Replay
from hermes_worker.store.engine.database import Database
from hermes_worker.store.migrate import migrate, newest, revision
from hermes_worker.store.revisions import MIGRATIONS
from hermes_worker.store.tables import metadata, runs, tool_calls

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
        Upgrade(MIGRATIONS, "", "")._upgrade(connection, name)
    return database


@pytest.fixture
def before(postgres_url: str) -> Iterator[Database]:
    database = at_revision(postgres_url, str(FIRST.down_revision))
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
    assert (revision(before), is_valid(before), is_valid(before, "ix_runs_idle")) == (newest(), True, None)


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
    assert (revision(before), is_valid(before)) == (newest(), True)


def test_indexes_of_0106_may_be_built_before_as_the_document_says(postgres_url: str) -> None:
    database = at_revision(postgres_url, "0105")
    document = (Path(__file__).parents[2] / "docs" / "migrations.md").read_text(encoding="utf-8")
    [block] = re.findall(r"^```sql\n(.*?)^```$", document, re.MULTILINE | re.DOTALL)
    statements = block.strip().splitlines()
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    built = {name: oid for name, oid in oids(database).items() if name != "ix_runs_idle"}

    migrate(database)

    assert len(statements) == 9 and revision(database) == newest()
    assert built.items() <= oids(database).items(), "built once, and not again"
    for table in metadata.sorted_tables:
        made = {index["name"]: index["column_names"] for index in sa.inspect(database.engine).get_indexes(table.name)}
        for index in table.indexes:
            assert made[index.name] == [column.name for column in index.columns]
    database.close()


def oids(database: Database) -> dict[str, int]:
    with database.read() as connection:
        rows = connection.exec_driver_sql(
            "select relname, oid from pg_class where relkind = 'i' and relname like 'ix_%%'"
        )
        return {str(name): int(oid) for name, oid in rows}


def test_new_revisions_build_indexes_on_old_tables_ahead() -> None:
    for script in ScriptDirectory(str(MIGRATIONS)).walk_revisions():
        text = Path(script.path).read_text(encoding="utf-8")
        made = set(re.findall(r'create_table\(\s*"(\w+)"', text))
        added = set(re.findall(r'create_index\(\s*"(\w+)",\s*"(\w+)"', text))
        if script.revision < FIRST.revision:
            continue
        ahead = getattr(script.module, "builds_ahead", {})
        # A partial index over a column that the revision itself adds cannot be built before, and is empty.
        fresh = set(re.findall(r'add_column\(\s*"(\w+)",\s*sa\.Column\(\s*"(\w+)"', text))
        conditions = " ".join(re.findall(r'sa\.text\("([^"]*)"\)', text))
        empty = {table for table, column in fresh if re.search(rf"\b{column}\b", conditions)}
        missing = {name for name, table in added if table not in made | empty and name not in ahead}
        assert not missing, f"{script.revision} stops writers while it builds {missing}; docs/migrations.md"


def test_a_result_that_is_not_the_last_of_its_batch_writes_no_index(postgres_url: str) -> None:
    with opened(postgres_url) as store:
        owner = store.owner
        run_id = store.submit(idle_s_max=600.0).run_id
        store.ask_tools(run_id, asks(*[Replay.PURE] * 10))
        claims = [store.call(run_id, position, owner) for position in range(10)]
    before, _ = counted_updates(postgres_url)
    with opened(postgres_url, is_migrated=True) as store:
        for claim in claims:
            store.calls.settle(claim, settlement("x"))
    updates, hot = counted_updates(postgres_url)
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
