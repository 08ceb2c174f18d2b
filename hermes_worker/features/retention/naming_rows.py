"""Look up the person that an operator names for an export or an erasure, before anything is done.

A word that names nothing is an error: an erasure that found nothing would end with a receipt, and the intended data
would still be there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import eq
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.errors import HermesError
from hermes_worker.features.retention.erasure_rules import Person
from hermes_worker.features.retention.selection_rows import load_targets
from hermes_worker.store.engine.database import Database
from hermes_worker.store.runs.runs import SessionNotFound
from hermes_worker.store.session_references import HOW_SHOWN, find_session
from hermes_worker.store.tables import audit_log, memory_versions, principals, runs, sessions, waits

_IsTheirs = Callable[[sa.Column[Any]], sa.ColumnElement[bool]]


class NothingNamed(HermesError):
    """A word names nothing of the tenant; the message says what to do. ``field`` is the field in which it was given."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def resolve_person(database: Database, tenant: str, source: str, person: Person) -> tuple[Person, Sequence[str]]:
    """Return the person with ids of sessions in the place of names, and the words that name nothing beside others that
    do. Raises ``NothingNamed`` for an unknown session, and when no word names anything."""
    with database.read() as connection:
        try:
            ids = tuple(find_session(connection, tenant, source, each)[1] for each in person.sessions)
        except SessionNotFound as error:
            raise NothingNamed("sessions", str(error)) from None
        looked_up = list(_look_words_up(connection, tenant, person))
    missing = [(field, word) for field, word, is_there in looked_up if not is_there]
    lost = [each for each in missing if each[0] == "named"]
    if not lost and (ids or person.is_everybody or len(missing) < len(looked_up)):
        return replace(person, sessions=ids), [f"nothing is known by {word}" for _, word in missing]
    field, _ = (lost or missing)[0]
    told = " or ".join(word for _, word in lost or missing)
    raise NothingNamed(field, f"nothing of the tenant {tenant!r} is known by {told}; {_WHERE_SHOWN[field]}")


_WHERE_SHOWN: Final = {
    "named": HOW_SHOWN,
    "principals": "'hermes-worker runs show' says who asked for a run, as 'cli:alice'",
    "holders": "'hermes-worker tenants keys list' shows the holders of keys",
    "targets": "'hermes-worker gateway deliveries list' shows addresses, as 'telegram:4711'",
}


def _look_words_up(connection: Connection, tenant: str, person: Person) -> Iterator[tuple[str, str, bool]]:
    """Yield for each word, except those for sessions: the field in which it was given, its description, and whether it
    names something."""

    def exists(wanted: sa.Select[Any]) -> bool:
        return connection.execute(wanted.limit(1)).first() is not None

    one = sa.select(sa.literal(1))
    for source, name in person.named:
        its = one.where(sessions.c.tenant == tenant, sessions.c.source == source, sessions.c.name == name)
        yield "named", f"the name {name!r} of {source!r}", exists(its)
    for principal in person.principals:
        told = f"the principal {principal!r}"
        yield "principals", told, any(map(exists, _select_traces(tenant, partial(eq, principal))))
    for holder in person.holders:
        held = one.where(principals.c.tenant == tenant, principals.c.name == holder)
        traces = _select_traces(tenant, partial(_begins_with, f"api:{holder}/"))
        yield "holders", f"the holder {holder!r}", any(map(exists, (held, *traces)))
    known = load_targets(connection, tenant) if person.targets else set()
    for target in person.targets:
        yield "targets", f"the address {target!r}", target in known


def _begins_with(start: str, column: sa.Column[Any]) -> sa.ColumnElement[bool]:
    return column.startswith(start, autoescape=True)


def _select_traces(tenant: str, is_theirs: _IsTheirs) -> Iterator[sa.Select[Any]]:
    """Yield selects of the rows in which a person's name stands: what they submitted, answered, wrote into a memory, or
    did."""
    one = sa.select(sa.literal(1))
    yield one.where(runs.c.tenant == tenant, is_theirs(runs.c.principal))
    yield one.where(audit_log.c.tenant == tenant, is_theirs(audit_log.c.actor))
    yield one.where(memory_versions.c.tenant == tenant, is_theirs(memory_versions.c.author))
    answered = one.join_from(waits, runs, runs.c.pk == waits.c.run_pk)
    yield answered.where(runs.c.tenant == tenant, is_theirs(waits.c.answered_by))
