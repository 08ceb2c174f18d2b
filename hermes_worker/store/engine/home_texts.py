"""Columns whose JSON names a path: rows hold the path relative to the home, callers see it as it is today."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.engine.interfaces import Dialect

from hermes_worker.core.home_paths import from_stored_document, to_stored_document

_HOMES = "hermes_homes"


def set_homes(engine: sa.Engine, homes: Sequence[str]) -> None:
    """Have every statement on ``engine`` read and write paths relative to the home: ``homes`` are the spellings of its
    path, the one in use first."""
    setattr(engine.dialect, _HOMES, tuple(homes))


def get_homes(dialect: Dialect) -> Sequence[str]:
    """The spellings of the home's path for the database that a connection with ``dialect`` belongs to."""
    found: Sequence[str] = getattr(dialect, _HOMES, ())
    return found


class PlacedText(sa.types.TypeDecorator[str]):
    """A JSON object with a path in ``field``. What stands in the column is not to be compared in SQL: equal places may
    be stored in several forms."""

    impl = sa.Text
    cache_ok = True

    def __init__(self, field: str) -> None:
        super().__init__()
        self.field = field

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else to_stored_document(value, self.field, get_homes(dialect))

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else from_stored_document(value, self.field, get_homes(dialect))

    def is_as_stored(self, value: str) -> bool:
        """Whether the stored text ``value`` can be given to callers unchanged."""
        return "/./" not in value
