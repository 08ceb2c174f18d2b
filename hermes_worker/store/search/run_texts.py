"""Which runs were asked or answered something: what ``store.runs.listing`` needs for its filter by text.

Theory of operation. A run matches when its input or its answer does (``core.searching.hits``), so the texts
decide, as they do in a search of sessions. The index of that search only says which runs are worth reading
(``runs_to_read``): those that wrote a message with the wanted words, and those that it may not have yet. Where it has
too many of them, or where texts are encrypted and there is no index, runs are read one after the other: of words that
are everywhere a page is soon full.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.messages import Role
from hermes_worker.core.searching import Query, filters_of, folded, hits, text_of
from hermes_worker.store.engine.prepared import rows_of
from hermes_worker.store.owners import owned_by
from hermes_worker.store.search.due import BODY, STORED
from hermes_worker.store.search.finding import index_query, indexed_rows
from hermes_worker.store.tables import (
    RUN_IS_OPEN,
    RUN_IS_UNCOUNTED,
    messages,
    run_inputs,
    runs,
    search_due,
    search_rows,
)

TO_READ_MAX = 3_000
"""Rows of the index, and runs that it may not have: with more of either it says nothing of use."""
_AT_ONCE = 500
_SAID = (Role.USER, Role.ASSISTANT)


class _InputOfRun(NamedTuple):
    run_pk: int
    spec: str


class _AnswerOfRun(NamedTuple):
    run_pk: int
    body: str


def runs_to_read(connection: Connection, tenant: str, query: Query) -> Sequence[int] | None:
    """The numbers of all runs of a tenant that can match, newest first; ``None`` where these are too many to be told.
    Only for texts in clear (``due.is_searchable``)."""
    # In this order: a run that is indexed between the two is of both.
    unindexed = _unindexed(connection, tenant)
    if unindexed is None:
        return None
    # A message may have more words than the input that it was made of, so none is a reason to leave it out.
    filters = [each._replace(none_of=()) for each in filters_of(query)]
    rows = indexed_rows(connection, index_query(connection.dialect.name, tenant, _SAID, filters), TO_READ_MAX)
    if len(rows) == TO_READ_MAX:
        return None
    found = set(unindexed)
    place = sa.and_(messages.c.session_pk == search_rows.c.session_pk, messages.c.seq == search_rows.c.seq)
    for begin in range(0, len(rows), _AT_ONCE):
        wrote = sa.select(messages.c.run_pk).join(search_rows, place)
        here = wrote.where(search_rows.c.pk.in_(rows[begin : begin + _AT_ONCE]), messages.c.run_pk > 0)
        found.update(connection.execute(here).scalars())
    return sorted(found, reverse=True)


def _unindexed(connection: Connection, tenant: str) -> Collection[int] | None:
    """Runs of sessions in which something is not indexed: a run is at work or not counted yet, or it is due."""
    found: set[int] = set()
    theirs = owned_by(tenant, runs)
    for which in (
        sa.select(search_due.c.session_pk),
        sa.select(runs.c.session_pk).where(theirs, RUN_IS_OPEN),
        sa.select(runs.c.session_pk).where(theirs, RUN_IS_UNCOUNTED),
    ):
        these = sa.select(runs.c.pk).where(theirs, runs.c.session_pk.in_(which)).limit(TO_READ_MAX)
        found.update(connection.execute(these).scalars())
        if len(found) >= TO_READ_MAX:
            return None
    return found


def matching_runs(connection: Connection, query: Query, pks: Sequence[int]) -> set[int]:
    """Those of these runs that match."""
    inputs = sa.select(run_inputs.c.run_pk, run_inputs.c.spec).where(run_inputs.c.run_pk.in_(pks))
    asked = {row.run_pk: _text_of_input(row.spec) for row in rows_of(connection.execute(inputs), _InputOfRun)}
    found = {pk for pk, text in asked.items() if hits(query, folded(text))}
    its_end = sa.and_(messages.c.session_pk == runs.c.session_pk, messages.c.seq == runs.c.output_seq)
    answers = sa.select(runs.c.pk.label("run_pk"), BODY).select_from(runs.join(STORED, its_end))
    left = [pk for pk in pks if pk not in found]
    said = rows_of(connection.execute(answers.where(runs.c.pk.in_(left))), _AnswerOfRun)
    return found | {row.run_pk for row in said if hits(query, folded(text_of(row.body)))}


def _text_of_input(spec: str) -> str:
    """Nothing of an input that cannot be read."""
    try:
        document: object = json.loads(spec)
    except ValueError:
        return ""
    content = document.get("input") if isinstance(document, Mapping) else None
    return text_of(json.dumps({"content": content}))
