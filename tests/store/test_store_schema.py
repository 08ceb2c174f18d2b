"""The schema: migrations build exactly what the code is written for, once, and refuse what is not ours."""

from __future__ import annotations

import hashlib
import importlib
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy.engine import Connection
from support.previous import ROOT, NoPreviousVersion, git
from support.store import Store, check

from hermes_worker.core.errors import ConfigurationError, UnavailableError
from hermes_worker.store.backlog import build_view_statement, make_view
from hermes_worker.store.engine.database import Database
from hermes_worker.store.migrate import find_newest, load_revision, migrate, require_current
from hermes_worker.store.revisions import MIGRATIONS, format_advice, list_revisions, load_state
from hermes_worker.store.tables import schema_revisions
from hermes_worker.store.whole_schema import load_schema

HOW = "the revisions do not build what tables.py says: CONTRIBUTING.md tells how to write one"


def opened(url: str) -> Database:
    return Database(url, pool_size=20)


def tables(database: Database) -> set[str]:
    """Without those of SQLite's index of words, whose kind belongs to SQLite."""
    return {name for name in sa.inspect(database.engine).get_table_names() if not name.startswith("search_words")}


def words_index(database: Database) -> list[str]:
    """How SQLite's index of words was made."""
    if not database.is_sqlite:
        return []
    with database.engine.connect() as connection:
        return list(connection.exec_driver_sql("select sql from sqlite_master where name = 'search_words'").scalars())


def is_ours(name: str | None, kind: str, *_: object) -> bool:
    return kind != "table" or not (name or "").startswith("search_words")


def views(database: Database) -> dict[str, str]:
    inspector = sa.inspect(database.engine)
    return {name: inspector.get_view_definition(name).strip() for name in inspector.get_view_names()}


@pytest.fixture
def second_url(empty_database_url: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Another empty database of the same kind as ``empty_database_url``."""
    if empty_database_url.startswith("sqlite"):
        yield f"sqlite:///{tmp_path / 'second.db'}"
        return
    with request.getfixturevalue("shared_postgres_farm").database() as url:
        yield url


def test_the_migrations_build_exactly_the_tables_of_the_code(empty_database_url: str, second_url: str) -> None:
    migrated, made = opened(empty_database_url), opened(second_url)
    migrate(migrated)
    load_schema().create_all(made.engine)
    with made.write() as connection:
        make_view(connection)

    with migrated.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "include_name": is_ours})
        assert compare_metadata(context, load_schema()) == [], HOW
    assert tables(migrated) == {*load_schema().tables, "alembic_version"}
    for table in load_schema().tables:
        assert described(migrated, table) == described(made, table), HOW
    assert views(migrated) == views(made), HOW
    assert [" ".join(sql.split()) for sql in words_index(migrated)] == [
        " ".join(sql.split()) for sql in words_index(made)
    ], HOW
    migrated.close()
    made.close()


def described(database: Database, table: str) -> dict[str, object]:
    """A table as the database tells it, with what autogeneration does not compare: defaults, CHECKs, predicates."""
    inspector = sa.inspect(database.engine)
    columns = {
        column["name"]: (str(column["type"]), column["nullable"], column["default"])
        for column in inspector.get_columns(table)
    }
    return {
        "columns": columns,
        "primary key": inspector.get_pk_constraint(table),
        "unique": sorted(str(constraint) for constraint in inspector.get_unique_constraints(table)),
        "foreign keys": sorted(str(constraint) for constraint in inspector.get_foreign_keys(table)),
        "checks": sorted(
            (str(check["name"]), str(check["sqltext"])) for check in inspector.get_check_constraints(table)
        ),
        "indexes": sorted(
            (
                str(index["name"]),
                str(index["column_names"]),
                bool(index["unique"]),
                sorted((key, str(value)) for key, value in index.get("dialect_options", {}).items()),
            )
            for index in inspector.get_indexes(table)
        ),
    }


RELEASED = {
    "0100_first_schema.py": "ee09ec93fba5cab344dec2728952fb4698050588cc7171313978baa146f864a7",
    "0100_first_schema.postgresql.sql": "003ac109509865eb6d5befe86fc10367d6556c2eaf0aa282dedd34f7743d17b2",
    "0100_first_schema.sqlite.sql": "d1d7af5bc314c152d181abd0f26230cf09bc330ffd83d7af33e23845350bf1ed",
    "0266_since_0_1.py": "6e74a879443d70b2a7ebc0cfa7dcbbac94ac03cc1f25f8ac45b37286dc7be957",
    "0267_run_titles.py": "fcee97ce18c354da8af476e45d015592009a6d9ac7010f0796c7cb64de89cd42",
    "0268_workspace_heads.py": "3af8f3a13ea7749cfbeb26291fd8042171c4ac5adcaf15f2d4c0fafcc0a6079e",
}
"""The files of revisions that databases have been built with, and their SHA-256."""
VIEW = {
    "postgresql": "1f98a53263c390f3e826df2c58b9f4118ba710a84984418e38a24503eb3f8720",
    "sqlite": "26fa844141b5b996772f85ec1e65f6350fd4514967cd064156d51617c78807f1",
}
"""SHA-256 of the statement that makes the view, at revision 0268."""


@pytest.mark.parametrize("name", RELEASED)
def test_a_revision_that_databases_were_built_with_is_never_changed(name: str) -> None:
    found = hashlib.sha256((MIGRATIONS / "versions" / name).read_bytes()).hexdigest()
    assert found == RELEASED[name], (
        f"{name} was changed: databases that have this revision would never get the change. Put it back, and add a new "
        "revision with the next number (CONTRIBUTING.md)."
    )


@pytest.mark.parametrize("dialect", VIEW)
def test_the_view_changes_with_a_revision_only(dialect: str) -> None:
    found = hashlib.sha256(build_view_statement(dialect).encode()).hexdigest()
    assert (find_newest(), found) == ("0270", VIEW[dialect]), (
        "a database that has the newest revision keeps the view that it has: add a revision (CONTRIBUTING.md), and "
        "write its number and the new hash here"
    )


def test_migrating_again_changes_nothing(empty_database_url: str) -> None:
    database = opened(empty_database_url)

    assert migrate(database) is None
    assert migrate(database) == find_newest()
    assert load_revision(database) == find_newest()
    database.close()


def test_eight_processes_may_migrate_at_once(empty_database_url: str) -> None:
    databases = [opened(empty_database_url) for _ in range(8)]
    start = threading.Barrier(8)

    def run(database: Database) -> None:
        start.wait()
        migrate(database)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(run, databases))

    for database in databases:
        assert load_revision(database) == find_newest()
        require_current(database)
        database.close()


def test_a_database_that_is_not_migrated_is_refused_by_the_workers(empty_database_url: str) -> None:
    database = opened(empty_database_url)

    with pytest.raises(ConfigurationError, match="hermes-worker data migrate"):
        require_current(database)
    assert tables(database) == set()
    database.close()


def test_a_newer_schema_is_refused_and_left_alone(own_store: Store) -> None:
    store = own_store
    store.submit()
    with store.database.write() as connection:
        connection.execute(sa.text("update alembic_version set version_num = '9999'"))

    for step in (migrate, require_current):
        with pytest.raises(ConfigurationError, match="9999"):
            step(store.database)
    assert load_revision(store.database) == "9999"
    assert len(store.views.list_runs()) == 1


def test_a_newer_schema_that_this_version_works_on_is_accepted_and_left_alone(own_store: Store) -> None:
    _make_newer(own_store, works_with=find_newest())

    require_current(own_store.database)

    assert migrate(own_store.database) == "9999"
    assert load_revision(own_store.database) == "9999"
    assert load_state(own_store.database).is_ahead


def test_a_newer_schema_that_needs_newer_code_is_refused_with_which(own_store: Store) -> None:
    _make_newer(own_store, works_with="9998")

    for step in (migrate, require_current):
        with pytest.raises(ConfigurationError, match=r"9999.*written for 9998 or later"):
            step(own_store.database)


def _make_newer(store: Store, *, works_with: str) -> None:
    """As a later version does it."""
    with store.database.write() as connection:
        connection.execute(sa.text("update alembic_version set version_num = '9999'"))
        row = {"revision": "9999", "works_with": works_with, "applied_at": 1.0}
        connection.execute(sa.insert(schema_revisions).values(row))


def test_every_revision_says_which_code_works_on_its_schema(own_store: Store) -> None:
    with own_store.database.read() as connection:
        rows = connection.execute(sa.select(schema_revisions).order_by(schema_revisions.c.revision)).all()
    assert [row.revision for row in rows] == sorted(list_revisions())
    for earlier, later in pairwise(rows):
        assert earlier.works_with <= later.works_with <= later.revision
        removes = getattr(_script(later.revision), "removes", set())
        assert not removes or later.works_with > earlier.works_with, f"{later.revision} takes away {removes}"


def test_a_revision_says_so_itself() -> None:
    silent = [name for name in list_revisions() if name > "0100" and not hasattr(_script(name), "works_with")]
    assert silent == [], "write works_with = ... into the revision: docs/migrations.md"


def _script(name: str) -> ModuleType:
    (path,) = (MIGRATIONS / "versions").glob(f"{name}_*.py")
    return importlib.import_module(f"hermes_worker.store.migrations.versions.{path.stem}")


@pytest.mark.parametrize("found", ["0001", "0005"])
def test_a_schema_from_before_the_first_release_is_refused_with_what_to_do(own_store: Store, found: str) -> None:
    with own_store.database.write() as connection:
        connection.execute(sa.text("update alembic_version set version_num = :found"), {"found": found})

    for step in (migrate, require_current):
        with pytest.raises(ConfigurationError, match=r"before the first release.*cannot be upgraded.*--home"):
            step(own_store.database)
    assert load_revision(own_store.database) == found


@pytest.mark.parametrize("found", ["0101", "0182", "0264"])
def test_a_schema_of_a_version_between_releases_is_refused_with_the_way_out(own_store: Store, found: str) -> None:
    """Before anything is changed: also the indexes that are built ahead are not built."""
    with own_store.database.write() as connection:
        connection.execute(sa.text("update alembic_version set version_num = :found"), {"found": found})
        connection.exec_driver_sql("drop view hermes_backlog")
        connection.exec_driver_sql("drop index ix_runs_session_pk")

    for step in (migrate, require_current):
        with pytest.raises(ConfigurationError, match=rf"{found}.*migrate' once with the sources of commit [0-9a-f]+,"):
            step(own_store.database)

    assert load_revision(own_store.database) == found
    assert views(own_store.database) == {}
    assert "ix_runs_session_pk" not in str(described(own_store.database, "runs")["indexes"])


def test_a_schema_that_the_last_of_these_versions_made_goes_on(own_store: Store) -> None:
    with own_store.database.write() as connection:
        connection.execute(sa.update(schema_revisions).values(works_with="0103"))
        rows = [{"revision": name, "works_with": "0103", "applied_at": 1.0} for name in ("0182", "0264")]
        connection.execute(sa.insert(schema_revisions), rows)
    own_store.submit()

    require_current(own_store.database)
    assert migrate(own_store.database) == find_newest()
    own_store.answer(own_store.views.list_runs()[0].run_id)
    check(own_store)


def test_the_way_out_is_a_commit_that_made_the_schema_of_today() -> None:
    [commit] = re.findall("commit ([0-9a-f]+)", format_advice("0182"))
    try:
        listed = git("ls-tree", "--name-only", commit, f"{(MIGRATIONS / 'versions').relative_to(ROOT)}/")
        git("merge-base", "--is-ancestor", commit, "HEAD")
    except NoPreviousVersion as why:
        pytest.skip(str(why))
    made = {Path(name).name.partition("_")[0] for name in listed.splitlines() if name.endswith(".py")} - {""}
    assert {"0100", "0101", "0182", "0264"} < made
    assert max(made) == "0266"


@pytest.mark.parametrize("name", ["runs", "messages", "sessions", "workers"])
def test_a_database_with_somebody_elses_tables_is_refused_and_left_alone(empty_database_url: str, name: str) -> None:
    """Any of our names may be taken, not only the most telling one."""
    database = opened(empty_database_url)
    with database.write() as connection:
        connection.execute(sa.text(f"create table {name} (id integer primary key, theirs text)"))
        connection.execute(sa.text(f"insert into {name} (id, theirs) values (1, 'precious')"))

    with pytest.raises(ConfigurationError, match=f"{name!r}.*its own database"):
        migrate(database)

    assert tables(database) == {name}
    with database.read() as connection:
        assert connection.execute(sa.text(f"select theirs from {name}")).scalar_one() == "precious"
    database.close()


def test_a_migration_that_fails_half_way_leaves_nothing(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash in the middle must not leave a database that neither is empty nor can be migrated."""
    database = opened(empty_database_url)
    execute = Connection.exec_driver_sql
    made: list[str] = []

    def failing(connection: Connection, statement: str, *more: Any, **options: Any) -> Any:
        if statement.startswith("CREATE TABLE"):
            if len(made) == 4:
                raise RuntimeError("killed")
            made.append(statement)
        return execute(connection, statement, *more, **options)

    monkeypatch.setattr(Connection, "exec_driver_sql", failing)
    with pytest.raises(RuntimeError, match="killed"):
        migrate(database)
    monkeypatch.undo()

    assert len(made) == 4
    assert tables(database) == set()
    migrate(database)
    check(Store.over(database))
    database.close()


@pytest.mark.parametrize("url", ["mysql://localhost/x", "oracle://localhost/x"])
def test_another_kind_of_database_is_refused_by_name(url: str) -> None:
    with pytest.raises(ConfigurationError, match="HERMES_DATABASE_URL"):
        Database(url)


def test_a_database_that_cannot_keep_every_text_is_refused(postgres_url: str) -> None:
    usual = sa.make_url(postgres_url)
    name = f"{usual.database}_ascii"
    engine = sa.create_engine(usual, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with engine.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0"))
        database = Database(usual.set(database=name).render_as_string(hide_password=False))
        try:
            with pytest.raises(ConfigurationError, match="the database has the encoding SQL_ASCII"):
                migrate(database)
        finally:
            database.close()
            connection.execute(sa.text(f"DROP DATABASE {name}"))


def test_a_server_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    database = Database(f"postgresql://nobody@/nothing?host={tmp_path}")

    with pytest.raises(UnavailableError):
        load_revision(database)
    database.close()


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "torn.db"
    content = b"this is not a database at all, not even nearly" * 100
    path.write_bytes(content)
    database = Database(f"sqlite:///{path}")

    with pytest.raises(sa.exc.DatabaseError, match="not a database"):
        migrate(database)
    database.close()
    assert path.read_bytes() == content
