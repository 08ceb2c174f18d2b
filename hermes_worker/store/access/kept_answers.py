"""The stored answers of requests of the last day, by the idempotency keys that their callers chose.

For requests that change something and begin no run; those that begin one are in ``idempotency_keys``. A request that is
at work holds its row for a while, and renews that as long as its process lives. When the process died, the next request
with the same key takes over and does the work again.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.errors import HermesError
from hermes_worker.store.access.idempotency_keys import IdempotencyConflict
from hermes_worker.store.engine.database import RowStore, db_now
from hermes_worker.store.engine.prepared import fetch_row, select_columns
from hermes_worker.store.engine.stored_texts import make_storable
from hermes_worker.store.rows import build_insert_ignoring
from hermes_worker.store.tables import kept_answers

HELD_S = 30.0
"""Seconds for which a request counts as being at work after its last renewal."""


class RequestAtWork(HermesError):
    """An equal request is being processed at this moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestIdentity:
    """The identity of a request: equal for a repetition, different for any other request."""

    tenant: str
    principal: str
    key: str
    operation: str
    fingerprint: str
    """Hash of the body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAnswer:
    """The stored answer of a request."""

    status: int
    headers: Sequence[tuple[str, str]]
    body: str


class _KeptRow(NamedTuple):
    operation: str
    fingerprint: str
    status: int | None
    headers: str | None
    body: str | None
    held_until: float | None


class StoredAnswers(RowStore):
    """The stored answers in one database. Thread-safe."""

    def begin(self, name: RequestIdentity) -> str | StoredAnswer:
        """Return the token with which to process the request, or its stored answer. Of two at once one gets a token.
        Raises ``IdempotencyConflict``, ``RequestAtWork``."""
        token = secrets.token_hex(16)
        values = {"operation": name.operation, "fingerprint": name.fingerprint, "token": token}
        ours = {"tenant": name.tenant, "principal": name.principal, "key": make_storable(name.key)}
        with self.database.write() as connection:
            made = build_insert_ignoring(connection, kept_answers).values(
                **ours, **values, held_until=db_now() + HELD_S, created_at=db_now()
            )
            if connection.execute(made.returning(kept_answers.c.key)).first() is not None:
                return token
            found = self._load_answer(connection, name)
            if isinstance(found, StoredAnswer):
                return found
            taken = sa.update(kept_answers).where(_is_request(name), kept_answers.c.held_until <= db_now())
            if connection.execute(taken.values(token=token, held_until=db_now() + HELD_S)).rowcount == 0:
                raise RequestAtWork("the same request is at work; repeat it in a moment")
        return token

    def _load_answer(self, connection: Connection, name: RequestIdentity) -> StoredAnswer | None:
        """Load the stored answer of a request; ``None`` while there is none. Raises ``IdempotencyConflict``."""
        wanted = sa.select(*select_columns(kept_answers, _KeptRow)).where(_is_request(name)).with_for_update()
        row = fetch_row(connection.execute(wanted), _KeptRow)
        if row is None:
            raise RequestAtWork("the same request was at work until now; repeat it")
        if (row.operation, row.fingerprint) != (name.operation, name.fingerprint):
            raise IdempotencyConflict(f"Idempotency-Key {name.key!r} was used with another request; use a new key")
        if row.status is None:
            return None
        headers = [(str(each), str(value)) for each, value in json.loads(row.headers or "[]")]
        return StoredAnswer(status=row.status, headers=headers, body=row.body or "")

    def renew_hold(self, name: RequestIdentity, token: str) -> bool:
        """Renew the hold of a request that is being processed. Returns False when another process has taken over."""
        moved = sa.update(kept_answers).where(_is_request(name), kept_answers.c.token == token)
        return self.database.execute(moved.values(held_until=db_now() + HELD_S)) == 1

    def store_answer(self, name: RequestIdentity, token: str, answer: StoredAnswer) -> None:
        """Store the answer of a request. Does nothing when another process has taken over."""
        values = {"status": answer.status, "headers": json.dumps(list(answer.headers)), "body": answer.body}
        ours = sa.update(kept_answers).where(_is_request(name), kept_answers.c.token == token)
        self.database.execute(ours.values(**values, token=None, held_until=None))

    def release_key(self, name: RequestIdentity, token: str) -> None:
        """Delete the row of a request that changed nothing, so that its key is free again."""
        self.database.execute(sa.delete(kept_answers).where(_is_request(name), kept_answers.c.token == token))


def _is_request(name: RequestIdentity) -> sa.ColumnElement[bool]:
    return sa.and_(
        kept_answers.c.tenant == name.tenant,
        kept_answers.c.principal == name.principal,
        kept_answers.c.key == make_storable(name.key),
    )
