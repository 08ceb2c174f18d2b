"""Which schema a database has and which one this code needs.

Without Alembic, whose import is a sizeable part of the start of every process and which only a migration needs; and
``find_newest`` even without SQLAlchemy, for a start that finds everything as it should be.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.observe import log

if TYPE_CHECKING:
    from hermes_worker.store.engine.database import Database

MIGRATIONS = Path(__file__).parent / "migrations"
_VERSION_TABLE = "alembic_version"
_REVISIONS_TABLE = "schema_revisions"
_FIRST, _FOLDED = 100, 266
"""The revisions of 0.1.0 and of the step from it, which was several steps in versions that were never released."""
_LAST_WITH_STEPS = "8c3edffb"
"""The last commit that can upgrade a database between these two. It makes the schema of the second one."""


def find_newest() -> str:
    """The revision this version of the code is written for. Revisions are the numbers in the names of their scripts."""
    return max(list_revisions())


def list_revisions() -> set[str]:
    """The revisions that this code can make."""
    return {script.name.partition("_")[0] for script in (MIGRATIONS / "versions").glob("[0-9]*_*.py")}


def format_code_version() -> str:
    """Return the version of this code, with the revision that it is written for: ``0.2.0/0266``."""
    from importlib.metadata import version  # imported here because it is slow to import

    return f"{version('hermes-worker')}/{find_newest()}"


def format_advice(found: str | None, works_with: str | None = None) -> str:
    """What to do about a database at ``found`` that this code does not work on. Code that is written for ``works_with``
    does; ``None`` when the database does not say."""
    if found is None or found in list_revisions():
        return "run 'hermes-worker data migrate'"
    number = int(found) if found.isdigit() else _FOLDED
    if number < _FIRST:
        return (
            "a hermes-worker from before the first release made it, and it cannot be upgraded: "
            "name another database or --home, or remove this one"
        )
    if number < _FOLDED:
        return (
            "an unreleased hermes-worker between 0.1 and 0.2 made it, which this version cannot upgrade: "
            f"run 'hermes-worker migrate' once with the sources of commit {_LAST_WITH_STEPS}, then this version again"
        )
    which = "that version" if works_with is None else f"one that is written for {works_with} or later"
    return f"a newer hermes-worker made it: install {which} here, or name another database or --home"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaState:
    """What a database says of its schema."""

    found: str | None
    """Its revision; ``None`` when it is empty."""
    works_with: str | None
    """The oldest revision whose code works on it; ``None`` when it does not say."""

    @property
    def is_ahead(self) -> bool:
        """Whether a newer version made the schema and declares that this version still works on it, as during a rolling
        upgrade."""
        return bool(
            self.found and self.works_with and _is_later(self.found, find_newest()) and _is_known_to(self.works_with)
        )

    @property
    def is_usable(self) -> bool:
        """This code works on it."""
        return self.found == find_newest() or self.is_ahead


def _is_later(revision: str, other: str) -> bool:
    return revision.isdigit() and int(revision) > int(other)


def _is_known_to(works_with: str) -> bool:
    return works_with.isdigit() and int(works_with) <= int(find_newest())


def load_state(database: Database) -> SchemaState:
    """Load the schema's revision and which versions work on it. Raises ``UnavailableError``."""
    import sqlalchemy as sa

    found = load_revision(database)
    if found is None or found == find_newest():
        return SchemaState(found=found, works_with=found)
    with database.read() as connection:
        if not sa.inspect(connection).has_table(_REVISIONS_TABLE):
            return SchemaState(found=found, works_with=None)
        query = sa.text(f"select works_with from {_REVISIONS_TABLE} where revision = :found")
        works_with = connection.execute(query, {"found": found}).scalar()
    return SchemaState(found=found, works_with=None if works_with is None else str(works_with))


def load_revision(database: Database) -> str | None:
    """The database's revision; ``None`` when it is empty. Raises ``UnavailableError``."""
    import sqlalchemy as sa

    with database.read() as connection:
        if not sa.inspect(connection).has_table(_VERSION_TABLE):
            return None
        found = connection.execute(sa.text(f"select version_num from {_VERSION_TABLE}")).scalar()
        return None if found is None else str(found)


def require_current(database: Database) -> None:
    """Raises ``ConfigurationError`` when this code does not work on the schema.

    A schema that a newer version made is accepted while it says that this version works on it: so a fleet can be
    replaced process by process, and go back the same way.
    """
    there = load_state(database)
    if not there.is_usable:
        raise ConfigurationError(
            f"the database schema is at {there.found or 'nothing'}, this version needs {find_newest()}; "
            f"{format_advice(there.found, there.works_with)}"
        )
    if there.is_ahead:
        log.warning("schema.ahead", revision=there.found, written_for=find_newest())
