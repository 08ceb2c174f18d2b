"""Write the statements of the first revision anew, from the tables: ``python tests/support/first_schema.py``.

Only while nothing is released. Afterwards the first revision is frozen, and a change of the tables is a revision.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from hermes_worker.store.revisions import MIGRATIONS
from hermes_worker.store.tables import metadata

FIRST = MIGRATIONS / "versions" / "0100_first_schema"


def statements(dialect: sa.Dialect) -> str:
    """What creates every table and index, in an order in which each may name those before it."""
    made = []
    for table in metadata.sorted_tables:
        indexes = sorted(table.indexes, key=lambda index: str(index.name))
        for element in (CreateTable(table), *map(CreateIndex, indexes)):
            lines = str(element.compile(dialect=dialect)).strip().splitlines()
            made.append("\n".join(line.rstrip() for line in lines))
    return "".join(f"{statement};\n\n" for statement in made)


def main() -> None:
    for dialect in (postgresql.dialect(), sqlite.dialect()):
        path = FIRST.with_suffix(f".{dialect.name}.sql")
        path.write_text(statements(dialect), encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
