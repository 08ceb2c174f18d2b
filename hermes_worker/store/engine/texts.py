"""Make texts storable in one place: what callers choose may hold anything that JSON can, and databases cannot hold all
of that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection


def plain(text: str) -> str:
    """Replace NUL, which PostgreSQL cannot store, and lone surrogates, which are no Unicode, by U+FFFD. For columns
    that are not JSON."""
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace").replace("\x00", "\ufffd")


def keep_texts_plain(engine: sa.Engine) -> None:
    """Have every statement of SQLAlchemy on ``engine`` send ``plain`` texts: written texts can be stored, and a lookup
    finds what was written from the same text. Prepared statements (``engine.prepared``) are not covered: they take what
    the store has read or drawn itself, and their callers make other texts plain."""
    sa.event.listen(engine, "before_cursor_execute", _with_plain_texts, retval=True)


def _with_plain_texts(
    connection: Connection, cursor: Any, statement: str, parameters: Any, context: Any, executemany: bool
) -> tuple[str, Any]:
    # ``executemany`` is also true for one statement that inserts many rows, whose parameters are one row.
    if isinstance(parameters, list):
        return statement, [_plain_row(row) for row in parameters]
    return statement, _plain_row(parameters)


def _plain_row(parameters: Any) -> Any:
    """Return the parameters with storable texts; the same object when no text has to be changed."""
    values = parameters.values() if isinstance(parameters, Mapping) else parameters
    if not any(isinstance(value, str) and not _is_plain(value) for value in values):
        return parameters
    if isinstance(parameters, Mapping):
        return {name: _plain_value(value) for name, value in parameters.items()}
    return tuple(map(_plain_value, parameters))


def _plain_value(value: object) -> object:
    return plain(value) if isinstance(value, str) else value


def _is_plain(text: str) -> bool:
    if "\x00" in text:
        return False
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
