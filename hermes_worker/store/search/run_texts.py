"""Find runs by the text of their input or answer, for the text filter of ``store.runs.listing``.

Theory of operation. A run matches when its input or its answer does (``core.search_queries.count_hits``), so the texts
decide, as they do in a search of sessions. The index of that search only says which runs are worth reading
(``find_runs_to_read``): those that wrote a message with the wanted words, and those that may not be indexed yet. Where
there are too many of them, or where texts are encrypted and there is no index, runs are read one after the other: a
page of runs with very common words is soon full.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.messages import Role
from hermes_worker.core.search_queries import Query, build_filters, count_hits, extract_text, fold_text
from hermes_worker.store.engine.prepared import fetch_rows
from hermes_worker.store.owners import is_of_tenant
from hermes_worker.store.search.finding import build_index_query, list_indexed_rows
from hermes_worker.store.search.index_queue import BODY, STORED
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
"""Rows of the index, and runs that may not be indexed: with more of either the index is of no use."""
_AT_ONCE = 500
_SAID = (Role.USER, Role.ASSISTANT)


class _InputOfRun(NamedTuple):
    run_pk: int
    spec: str


class _AnswerOfRun(NamedTuple):
    run_pk: int
    body: str


def find_runs_to_read(connection: Connection, tenant: str, query: Query) -> Sequence[int] | None:
    """Find the row ids of all runs of a tenant that can match, newest first; ``None`` when there are too many. Only for
    texts in clear (``due.is_searchable``)."""
    # Read the unindexed runs first: a run that is indexed in between is then found by both reads.
    unindexed = _find_unindexed(connection, tenant)
    if unindexed is None:
        return None
    # Do not apply NOT: a message may have words that the input it was made from does not have.
    filters = [each._replace(none_of=()) for each in build_filters(query)]
    rows = list_indexed_rows(
        connection, build_index_query(connection.dialect.name, tenant, _SAID, filters), TO_READ_MAX
    )
    if len(rows) == TO_READ_MAX:
        return None
    found = set(unindexed)
    place = sa.and_(messages.c.session_pk == search_rows.c.session_pk, messages.c.seq == search_rows.c.seq)
    for begin in range(0, len(rows), _AT_ONCE):
        wrote = sa.select(messages.c.run_pk).join(search_rows, place)
        here = wrote.where(search_rows.c.pk.in_(rows[begin : begin + _AT_ONCE]), messages.c.run_pk > 0)
        found.update(connection.execute(here).scalars())
    return sorted(found, reverse=True)


def _find_unindexed(connection: Connection, tenant: str) -> Collection[int] | None:
    """Find the runs of sessions in which something is not indexed: a run is at work or not counted yet, or the session
    is due. ``None`` when there are too many."""
    found: set[int] = set()
    theirs = is_of_tenant(tenant, runs)
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


def find_matching_runs(connection: Connection, query: Query, pks: Sequence[int]) -> set[int]:
    """Find the runs among ``pks`` whose input or answer matches."""
    inputs = sa.select(run_inputs.c.run_pk, run_inputs.c.spec).where(run_inputs.c.run_pk.in_(pks))
    asked = {row.run_pk: _extract_input_text(row.spec) for row in fetch_rows(connection.execute(inputs), _InputOfRun)}
    found = {pk for pk, text in asked.items() if count_hits(query, fold_text(text))}
    its_end = sa.and_(messages.c.session_pk == runs.c.session_pk, messages.c.seq == runs.c.output_seq)
    answers = sa.select(runs.c.pk.label("run_pk"), BODY).select_from(runs.join(STORED, its_end))
    left = [pk for pk in pks if pk not in found]
    said = fetch_rows(connection.execute(answers.where(runs.c.pk.in_(left))), _AnswerOfRun)
    return found | {row.run_pk for row in said if count_hits(query, fold_text(extract_text(row.body)))}


def _extract_input_text(spec: str) -> str:
    """The text of an input; empty for one that cannot be read."""
    try:
        document: object = json.loads(spec)
    except ValueError:
        return ""
    content = document.get("input") if isinstance(document, Mapping) else None
    return extract_text(json.dumps({"content": content}))
