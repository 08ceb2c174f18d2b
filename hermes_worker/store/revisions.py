"""Which schema a database has and which one this code needs.

Without Alembic, whose import is a sizeable part of the start of every process and which only a migration needs; and
``newest`` even without SQLAlchemy, for a start that finds everything as it should be.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hermes_worker.core.errors import ConfigurationError

if TYPE_CHECKING:
    from hermes_worker.store.engine.database import Database

MIGRATIONS = Path(__file__).parent / "migrations"
_VERSION_TABLE = "alembic_version"
_UNRELEASED = frozenset({"0001", "0002", "0003", "0004", "0005"})
"""Of versions before the first release. What they made cannot be upgraded."""


def newest() -> str:
    """The revision this version of the code is written for. Revisions are the numbers in the names of their scripts."""
    return max(_known())


def _known() -> set[str]:
    return {script.name.partition("_")[0] for script in (MIGRATIONS / "versions").glob("[0-9]*_*.py")}


def advice(found: str | None) -> str:
    """What to do about a database whose revision is ``found`` and not ``newest()``."""
    if found is None or found in _known():
        return "run 'hermes-worker migrate'"
    if found in _UNRELEASED:
        return (
            "a hermes-worker from before the first release made it, and it cannot be upgraded: "
            "name another database or --home, or remove this one"
        )
    return "a newer hermes-worker made it: install that version here, or name another database or --home"


def revision(database: Database) -> str | None:
    """The database's revision; ``None`` when it is empty. Raises ``UnavailableError``."""
    import sqlalchemy as sa

    with database.read() as connection:
        if not sa.inspect(connection).has_table(_VERSION_TABLE):
            return None
        found = connection.execute(sa.text(f"select version_num from {_VERSION_TABLE}")).scalar()
        return None if found is None else str(found)


def require_current(database: Database) -> None:
    """Raises ``ConfigurationError`` when the schema is not the one this code was written for."""
    found = revision(database)
    if found != newest():
        raise ConfigurationError(
            f"the database schema is at {found or 'nothing'}, this version needs {newest()}; {advice(found)}"
        )
