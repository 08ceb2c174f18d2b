"""Requests that were accepted in the last day, by their idempotency keys and signatures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.errors import HermesError
from hermes_worker.core.sources import Repetition, RequestKeys, decide_repetition
from hermes_worker.store.engine.database import db_now
from hermes_worker.store.engine.prepared import fetch_rows, select_columns
from hermes_worker.store.engine.stored_texts import make_storable
from hermes_worker.store.rows import build_insert_ignoring
from hermes_worker.store.tables import idempotency_keys


class IdempotencyConflict(HermesError):
    """The idempotency key was used before, with another request."""


class RequestReplayed(HermesError):
    """A signed request was accepted before, under another idempotency key."""


class KeyTaken(Exception):
    """Another transaction wrote one of these names at the same time: read again."""


class _NameRow(NamedTuple):
    key: str
    fingerprint: str
    run_pk: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierRequest:
    """An earlier acceptance of a request; ``run_pk`` is the run that it made, if any."""

    run_pk: int | None


def find_earlier(connection: Connection, keys: RequestKeys) -> EarlierRequest | None:
    """Find the earlier acceptance of the same request; ``None`` when the request is new. Raises
    ``IdempotencyConflict``, ``RequestReplayed``."""
    if not keys.names:
        return None
    if keys.key is not None:
        keys = replace(keys, key=make_storable(keys.key))  # in the form in which it was stored
    found = connection.execute(
        sa.select(*select_columns(idempotency_keys, _NameRow)).where(
            idempotency_keys.c.tenant == keys.tenant,
            idempotency_keys.c.source == keys.source,
            idempotency_keys.c.key.in_(keys.names),
        )
    )
    rows = fetch_rows(found, _NameRow)
    match decide_repetition(keys, {row.key: row.fingerprint for row in rows}):
        case Repetition.NEW:
            return None
        case Repetition.DUPLICATE:
            return EarlierRequest(run_pk=next(row.run_pk for row in rows if row.key == keys.key))
        case Repetition.CONFLICT:
            raise IdempotencyConflict(
                f"Idempotency-Key {keys.key!r} was already used with another request; use a new key"
            )
        case Repetition.REPLAY:
            raise RequestReplayed("this signed request was accepted before, under another id")


def claim_names(connection: Connection, keys: RequestKeys, run_pk: int | None) -> None:
    """Insert the names of a request, in the transaction that accepts it. Of two at once one succeeds; the other waits
    for it and raises ``KeyTaken``."""
    known = {"tenant": keys.tenant, "source": keys.source, "fingerprint": keys.fingerprint, "run_pk": run_pk}
    for name in keys.names:
        written = connection.execute(
            build_insert_ignoring(connection, idempotency_keys)
            .values(**known, key=name, created_at=db_now())
            .returning(idempotency_keys.c.key)
        )
        if written.first() is None:
            raise KeyTaken
