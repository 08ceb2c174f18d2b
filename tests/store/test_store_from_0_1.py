"""A database of 0.1 becomes one of this version: every row that code of 0.1 wrote is there, and its runs go on.

``cases/rows_of_0_1.json`` holds what code of 0.1 wrote while it played runs of many kinds: ended, waiting, steered, at
work, in trees, of two tenants, with workspaces below its home, beside it and on another machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.store import Store, check
from support.upgrades import Rows, Upgrade

from hermes_worker.core.run import RunStatus
from hermes_worker.store.engine.database import Database
from hermes_worker.store.migrate import migrate
from hermes_worker.store.revisions import MIGRATIONS, find_newest, load_revision
from hermes_worker.store.runs.workspaces import RunWorkspaces
from hermes_worker.store.sessions import Sessions
from hermes_worker.store.tables import jobs

_RECORDED = json.loads((Path(__file__).parents[1] / "cases" / "rows_of_0_1.json").read_text(encoding="utf-8"))
ROWS: Rows = {
    name: [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]] for name, table in _RECORDED.items()
}
GIVEN_BY_SINGLE_STEPS = "b493d9a674a31707e3fb1e256bd0c187962edcb5ee912ce75c4c47e4387a4f11"
"""SHA-256 of all rows that the revisions 0101 to 0266 made of these, one after the other, on SQLite and on PostgreSQL.
Nobody has these revisions any more."""
_NOT_COMPARED = ("search_words", "schema_revisions", "alembic_version")
"""What belongs to SQLite, and what tells of the revisions themselves."""
OLD_HOME, HOME = "/srv/hermes", "/srv/moved"


def run_id(number: int) -> str:
    return "run_" + f"{number:02x}" * 16


@pytest.fixture
def database(empty_database_url: str) -> Iterator[Database]:
    """A database at the revision of 0.1, with its rows."""
    found = Database(empty_database_url, pool_size=20, homes=(HOME,))
    upgrade = Upgrade(MIGRATIONS, "0100", "0266")
    schema = upgrade.made(found.engine, ROWS)
    if not found.is_sqlite:
        with found.write() as connection:
            for table in schema.sorted_tables:
                if ROWS.get(table.name) and (counted := table.autoincrement_column) is not None:
                    number = max(row[counted.name] for row in ROWS[table.name])
                    sequence = sa.func.pg_get_serial_sequence(table.name, counted.name)
                    connection.execute(sa.select(sa.func.setval(sequence, number)))
    yield found
    found.close()


def read_rows(database: Database) -> dict[str, list[dict[str, Any]]]:
    schema = sa.MetaData()
    with database.read() as connection:
        schema.reflect(connection)
        return {
            table.name: sorted((dict(row) for row in connection.execute(sa.select(table)).mappings()), key=repr)
            for table in schema.sorted_tables
            if not table.name.startswith(_NOT_COMPARED)
        }


def test_the_revision_gives_the_rows_that_its_single_steps_gave(database: Database) -> None:
    with database.engine.begin() as connection:
        Upgrade(MIGRATIONS, "0100", "0266").upgrade(connection, "0266")

    found = json.dumps(read_rows(database), sort_keys=True)

    assert hashlib.sha256(found.encode()).hexdigest() == GIVEN_BY_SINGLE_STEPS


def test_every_row_of_0_1_stays_and_what_is_new_is_empty(database: Database) -> None:
    before = read_rows(database)

    assert migrate(database) == "0100"

    assert load_revision(database) == find_newest()
    after = read_rows(database)
    for name, rows in before.items():
        moved = {"sessions": "workspace", "jobs": "definition"}.get(name)
        kept = [key for key in rows[0] if key != moved]
        there = [{key: row[key] for key in kept} for row in after[name]]
        wanted = [{key: row[key] for key in kept} for row in rows]
        if name == "maintenance":
            there = [row for row in there if row["name"] != "paths_related"]
        assert sorted(there, key=repr) == sorted(wanted, key=repr), name
        added = {(key, row[key]) for row in after[name] for key in row.keys() - rows[0].keys()}
        assert {value for _, value in added} <= {None, 0}, added
    assert {name for name in after.keys() - before.keys() if after[name]} == {"search_due"}
    assert sorted(row["session_pk"] for row in after["search_due"]) == sorted(row["pk"] for row in ROWS["sessions"])


def test_what_named_the_old_home_is_found_in_the_new_one(database: Database) -> None:
    migrate(database)

    places = RunWorkspaces(database)
    roots = {
        number: json.loads(places.load_workspace(run_id(number)).workspace)["root"] for number in (1, 2, 3, 4, 5, 6)
    }
    assert roots == {
        1: f"{HOME}/workspaces/{run_id(1)}",
        2: f"{HOME}/workspaces/{run_id(1)}",
        3: "/srv/project",
        4: f"{HOME}/workspaces/{run_id(4)}",
        5: f"{HOME}/workspaces/{run_id(1)}/src",
        6: f"{OLD_HOME}/workspaces/x",
    }
    with database.read() as connection:
        definitions = connection.execute(sa.select(jobs.c.definition).order_by(jobs.c.pk)).scalars().all()
    assert [json.loads(text)["directory"] for text in definitions] == [
        f"{HOME}/workspaces/{run_id(1)}",
        f"{HOME}/scripts",
        "/srv/project",
        None,
    ]


def test_runs_of_0_1_are_read_and_go_on(database: Database) -> None:
    migrate(database)
    store = Store.over(database)

    check(store)
    assert store.status(run_id(1)) is RunStatus.COMPLETED
    assert [len(text) for text in store.results(run_id(1))] == [16_500, 5]
    assert Sessions(database).get(run_id(1)).title == "Café №5 ✓"

    store.answer(run_id(2))
    store.settle(run_id(3), 0)
    store.answer(run_id(18))
    assert {store.status(run_id(number)) for number in (2, 18)} == {RunStatus.COMPLETED}
    check(store)
