"""Upgrade a database that has rows in it from one revision to the next, and say what a deployment would notice.

While a deployment rolls, code of the version before works on the schema of the version after. So a revision *expands*:
all rows stay as they are, and what the version before writes is still taken. What is taken away was not needed by the
version before either; such a revision says what that is: ``removes = {"table.column"}``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory

from hermes_worker.store.backlog import make_view
from hermes_worker.store.revisions import find_newest
from hermes_worker.store.whole_schema import load_schema

Rows = Mapping[str, Sequence[Mapping[str, Any]]]
"""Rows by the name of their table."""


@dataclass(frozen=True, slots=True)
class Upgrade:
    """From one revision to the next, of the scripts in ``scripts``."""

    scripts: Path
    before: str
    after: str

    def problems(self, url: str, rows: Rows) -> list[str]:
        """What goes wrong in the empty database at ``url`` when it has those of ``rows`` that ``before`` knows."""
        engine = sa.create_engine(url)
        try:
            return self._problems(engine, rows)
        finally:
            engine.dispose()

    def _problems(self, engine: sa.Engine, rows: Rows) -> list[str]:
        old = self.made(engine, rows)
        removed = self._removed()
        wanted = _projected(old, rows, removed)
        refused = _refused(engine, old, wanted, f"the schema before needs {sorted(removed)}")
        try:
            with engine.begin() as connection:
                self.upgrade(connection, self.after)
        except (sa.exc.DBAPIError, NotImplementedError, ValueError) as error:
            return [*refused, f"the upgrade fails where there are rows: {_first_line(error)}"]
        try:
            with engine.connect() as connection:
                lost = [f"rows of {name} changed" for name in wanted if _read(connection, old, wanted, name)]
        except sa.exc.DBAPIError as error:
            return [*refused, f"what the version before reads is not there: {_first_line(error)}"]
        return [*refused, *lost, *_refused(engine, old, wanted, "what the version before writes is refused")]

    def made(self, engine: sa.Engine, rows: Rows) -> sa.MetaData:
        """The schema before, filled."""
        with engine.begin() as connection:
            self.upgrade(connection, self.before)
            old = sa.MetaData()
            old.reflect(connection)
            _insert(connection, old, _projected(old, rows, frozenset()))
        return old

    def _removed(self) -> frozenset[str]:
        script = ScriptDirectory(str(self.scripts)).get_revision(self.after)
        return frozenset(getattr(script.module, "removes", ()))

    def upgrade(self, connection: sa.Connection, revision: str) -> None:
        """As ``store.migrate`` does it, whose view is made by whoever upgrades to the newest revision."""
        config = Config()
        config.set_main_option("script_location", str(self.scripts))
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        if revision >= find_newest():
            make_view(connection)


def steps(scripts: Path) -> list[Upgrade]:
    """Every upgrade from a revision to the next."""
    found = list(ScriptDirectory(str(scripts)).walk_revisions())
    return [
        Upgrade(scripts, str(script.down_revision), script.revision)
        for script in reversed(found)
        if script.down_revision is not None
    ]


def rows_of(connection: sa.Connection) -> Rows:
    """Every row of a database at the newest schema."""
    return {
        table.name: [dict(row) for row in connection.execute(sa.select(table)).mappings()]
        for table in load_schema().sorted_tables
    }


def _projected(schema: sa.MetaData, rows: Rows, without: frozenset[str]) -> Rows:
    """``rows`` as code writes them that knows ``schema`` and does not use ``without`` any more."""
    found = {}
    for table in schema.sorted_tables:
        known = {column.name for column in table.c if f"{table.name}.{column.name}" not in without}
        if table.name in rows:
            found[table.name] = [{key: row[key] for key in row.keys() & known} for row in rows[table.name]]
    return found


def _insert(connection: sa.Connection, schema: sa.MetaData, rows: Rows) -> None:
    for name, values in rows.items():
        for row in values:
            connection.execute(sa.insert(schema.tables[name]).values(row))


def _read(connection: sa.Connection, schema: sa.MetaData, wanted: Rows, name: str) -> bool:
    """Whether a table's rows are others than ``wanted``, as the version before sees them."""
    columns = sorted({key for row in wanted[name] for key in row})
    if not columns:
        return False
    table = schema.tables[name]
    found = connection.execute(sa.select(*(table.c[key] for key in columns))).mappings().all()
    return sorted(repr(sorted(row.items())) for row in found) != sorted(
        repr(sorted(row.items())) for row in wanted[name]
    )


def _refused(engine: sa.Engine, schema: sa.MetaData, rows: Rows, what: str) -> list[str]:
    """Whether ``rows`` cannot be written anew. Leaves everything as it was."""
    with engine.connect() as connection, connection.begin() as transaction:
        try:
            for table in reversed(schema.sorted_tables):
                if table.name in rows:
                    connection.execute(sa.text(f"delete from {table.name}"))
            _insert(connection, schema, rows)
        except sa.exc.DBAPIError as error:
            return [f"{what}: {_first_line(error)}"]
        finally:
            transaction.rollback()
    return []


def _first_line(error: Exception) -> str:
    return str(getattr(error, "orig", None) or error).strip().splitlines()[0]
