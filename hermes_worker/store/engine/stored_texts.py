"""The form in which texts stand in rows: paths relative to the home, and no character that a database cannot hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection
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


def make_storable(text: str) -> str:
    """Replace NUL, which PostgreSQL cannot store, and lone surrogates, which are no Unicode, by U+FFFD. For columns
    that are not JSON."""
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace").replace("\x00", "\ufffd")


def make_texts_storable(engine: sa.Engine) -> None:
    """Have every statement of SQLAlchemy on ``engine`` send texts through ``make_storable``: written texts can be
    stored, and a lookup finds what was written from the same text. Prepared statements (``engine.prepared``) are not
    covered: they take what the store has read or drawn itself, and their callers make other texts plain."""
    sa.event.listen(engine, "before_cursor_execute", _replace_texts, retval=True)


def _replace_texts(
    connection: Connection, cursor: Any, statement: str, parameters: Any, context: Any, executemany: bool
) -> tuple[str, Any]:
    # ``executemany`` is also true for one statement that inserts many rows, whose parameters are one row.
    if isinstance(parameters, list):
        return statement, [_make_row_storable(row) for row in parameters]
    return statement, _make_row_storable(parameters)


def _make_row_storable(parameters: Any) -> Any:
    """Return the parameters with storable texts; the same object when no text has to be changed."""
    values = parameters.values() if isinstance(parameters, Mapping) else parameters
    if not any(isinstance(value, str) and not _is_storable(value) for value in values):
        return parameters
    if isinstance(parameters, Mapping):
        return {name: _make_value_storable(value) for name, value in parameters.items()}
    return tuple(map(_make_value_storable, parameters))


def _make_value_storable(value: object) -> object:
    return make_storable(value) if isinstance(value, str) else value


def _is_storable(text: str) -> bool:
    if "\x00" in text:
        return False
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
