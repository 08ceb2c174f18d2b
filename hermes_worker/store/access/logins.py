"""Logins whose tokens the workers share: one worker claims an exchange, all use its outcome.

A claim on an exchange never passes to another worker by itself. Its outcome is written under it however late it comes,
even after the login was declared dead because the outcome was missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import sqlalchemy as sa

from hermes_worker.core.logins import LoginState, compute_fresh_s
from hermes_worker.store.engine.database import RowStore, db_now
from hermes_worker.store.engine.prepared import fetch_row
from hermes_worker.store.rows import build_insert_ignoring, make_storable
from hermes_worker.store.tables import logins


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeOutcome:
    """The tokens that an exchange returned."""

    sealed: str = field(repr=False)
    lifetime_s: float | None
    """Seconds for which the access token is valid; ``None`` when the server did not say."""


class _LoginRow(NamedTuple):
    version: int
    sealed: str | None
    expires_at: float | None
    renew_at: float | None
    claim: str | None
    claimed_until: float | None
    dead_reason: str | None
    now: float


_NO_CLAIM = {"claim": None, "claimed_until": None}


class Logins(RowStore):
    """The logins of one database. Thread-safe; every method raises ``UnavailableError``."""

    def find(self, name: str) -> LoginState:
        """Load the state of a login; an empty state for a login without a row."""
        wanted = sa.select(*(logins.c[each] for each in _LoginRow._fields[:-1]), db_now().label("now"))
        row = fetch_row(self.database.select(wanted.where(logins.c.name == name)), _LoginRow)
        if row is None:
            return LoginState()
        return LoginState(
            version=row.version,
            sealed=row.sealed,
            left_s=None if row.expires_at is None else row.expires_at - row.now,
            fresh_s=None if row.renew_at is None else row.renew_at - row.now,
            claim=row.claim,
            has_lapsed=row.claimed_until is not None and row.claimed_until < row.now,
            dead_reason=row.dead_reason,
        )

    def claim(self, name: str, state: LoginState, claim: str, *, ttl_s: float) -> bool:
        """Claim the exchange that follows ``state``. Of any number of workers one gets it, unless the state has
        changed. A claim in ``state`` is replaced when it has lapsed: only for a login whose tokens may be exchanged
        twice."""
        if state.claim is None:
            of_state: sa.ColumnElement[bool] = logins.c.claim.is_(None)
        else:
            of_state = (logins.c.claim == state.claim) & (logins.c.claimed_until < db_now())
        with self.database.write() as connection:
            connection.execute(build_insert_ignoring(connection, logins).values(name=name, updated_at=db_now()))
            taken = connection.execute(
                sa.update(logins)
                .where(logins.c.name == name, logins.c.version == state.version, logins.c.dead_reason.is_(None))
                .where(of_state)
                .values(claim=claim, claimed_until=db_now() + ttl_s, updated_at=db_now())
            )
            return taken.rowcount == 1

    def commit(self, name: str, claim: str, outcome: ExchangeOutcome) -> bool:
        """Write the outcome of an exchange. Returns False when the claim was replaced. May be repeated after an unknown
        outcome of the COMMIT: what the first call wrote is not written again, and the answer is False."""
        values = {
            "version": logins.c.version + 1,
            "sealed": outcome.sealed,
            "expires_at": _compute_time_from_now(outcome.lifetime_s),
            "renew_at": _compute_time_from_now(compute_fresh_s(outcome.lifetime_s)),
            "dead_reason": None,
        }
        return self._end_claim(name, claim, values | _NO_CLAIM)

    def release(self, name: str, claim: str) -> bool:
        """Give a claim up without an exchange. Returns False when the claim was replaced."""
        return self._end_claim(name, claim, _NO_CLAIM)

    def revoke(self, name: str, claim: str, reason: str) -> bool:
        """Mark a login as dead, so that its refresh token is not exchanged again; ``reason`` is a sentence for people.
        The claim stays, for an outcome that comes late."""
        return self._end_claim(name, claim, {"dead_reason": make_storable(reason)})

    def _end_claim(self, name: str, claim: str, values: Mapping[str, object]) -> bool:
        ended = self.database.execute(
            sa.update(logins)
            .where(logins.c.name == name, logins.c.claim == claim)
            .values(**values, updated_at=db_now())
        )
        return ended == 1


def _compute_time_from_now(seconds: float | None) -> sa.ColumnElement[float] | None:
    return None if seconds is None else db_now() + seconds
