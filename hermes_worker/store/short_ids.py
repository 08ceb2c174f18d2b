"""Abbreviated ids: the beginning of an id stands for it as long as only one id begins with it."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.short_ids import AmbiguousId

_NAMED_MAX = 5


def complete_id(
    connection: Connection,
    column: sa.Column[str],
    written: str,
    *,
    prefix: str = "",
    where: sa.ColumnElement[bool] | None = None,
) -> str:
    """Find the one id in ``column`` that is or begins with ``written``, with or without ``prefix``. Returns ``written``
    itself when there is none, so that the caller's lookup reports that. Raises ``AmbiguousId`` with the candidates."""
    if connection.execute(sa.select(column).where(column == written)).first() is not None:
        return written
    digits = written.strip().removeprefix(prefix).lower()
    if not digits or not all(character in "0123456789abcdef" for character in digits):
        return written
    begins = begins_with(column, f"{prefix}{digits}")
    conditions = (begins,) if where is None else (begins, where)
    statement = sa.select(column).where(*conditions).order_by(column).limit(_NAMED_MAX + 1)
    found = [str(candidate) for candidate in connection.execute(statement).scalars()]
    if len(found) > 1:
        more = " and more" if len(found) > _NAMED_MAX else ""
        raise AmbiguousId(
            f"{written!r} is the beginning of several ids: {', '.join(found[:_NAMED_MAX])}{more}; write more of it"
        )
    return found[0] if found else written


def begins_with(column: sa.Column[str] | sa.Column[str | None], text: str) -> sa.ColumnElement[bool]:
    """Build the condition that a text begins with another, letter by letter on every database."""
    return sa.func.substr(column, 1, len(text)) == text
