"""The states of provider keys in a fleet (``core.key_states``), stored as rows: they survive a loss of the broker.

A failure that says something about a key is written here under the lock of the key's row. The right to try a closed
key, a *probe*, is given by one UPDATE, so over the whole fleet one call at a time has it; it is free again when its
worker is gone. The sweeper wakes the runs that are parked on a key: one when a probe is due, and all of them, some in
each round, when the key is open.
"""

from __future__ import annotations

import json
import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.errors import HermesError
from hermes_worker.core.key_states import (
    Finding,
    KeyCondition,
    KeyRules,
    KeyState,
    apply_answer,
    apply_failure,
    apply_probe_answer,
    apply_probe_failure,
    apply_probe_release,
    dump_evidence,
    parse_evidence,
)
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.core.run import RunStatus
from hermes_worker.store.access.audit import Act, record_action
from hermes_worker.store.engine.database import Database, db_now, select_db_now
from hermes_worker.store.engine.prepared import Nothing, Prepared, fetch_row, fetch_rows
from hermes_worker.store.rows import build_insert_ignoring, make_storable
from hermes_worker.store.tables import key_states, parked_on_keys, runs, workers

PROBE_S = 900.0
"""The longest time in seconds for which a probe keeps others out, if its worker lives so long."""
_WAKE_EVERY_S = 10.0
"""Seconds that a run that was woken to make a probe has to begin."""
_WOKEN_AT_ONCE = 50
"""Runs of one key that one sweep wakes when it is open, so that they come in a stream."""
_KEYS_MAX = 1_000
_REASON_CHARS_MAX = 300


class KeyUnknown(HermesError):
    """There is no row for a key of this name: it never failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRow:
    """The stored state of one key."""

    credential: str
    provider: str
    state: KeyState
    reason: str | None
    """What the provider said when the key was closed, or when a probe failed; redacted and cut."""
    is_probed: bool
    """A probe is in flight."""
    parked: int = 0
    """Runs that wait for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """The right to try a closed key once."""

    credential: str
    token: str


class KeyStates:
    """The keys of one database. Thread-safe; every method raises ``UnavailableError``."""

    def __init__(self, database: Database, rules: KeyRules | None = None) -> None:
        self._database = database
        self._rules = rules or KeyRules()

    def list_keys(self) -> list[KeyRow]:
        """List the state of every key that ever failed, those that were closed last first."""
        return [_to_key_row(row) for row in fetch_rows(self._database.select(_ALL), _StateRow)]

    def record_failure(self, key: tuple[str, str], found: Finding, *, run_id: str, reason: str) -> KeyRow | None:
        """Record that a call of ``run_id``, no probe, failed with the key (provider, credential). Returns the key's new
        state; ``None`` when ``found`` says nothing about the key. A second report by the same run changes nothing."""
        if found.condition is None:
            return None
        provider, credential = key
        with self._database.write() as connection:
            new = _build_values(KeyState()) | {"credential": credential, "provider": provider[:100], "probes": 0}
            connection.execute(build_insert_ignoring(connection, key_states).values(**new))

            def change(state: KeyState, now: float) -> KeyState:
                return apply_failure(state, found, run_id, now, self._rules, random.random())

            return self._change_state(connection, credential, change, reason=reason)

    def record_answer(self, credential: str) -> KeyRow | None:
        """Record that a call with a key, no probe, was answered."""
        with self._database.write() as connection:
            return self._change_state(connection, credential, lambda state, now: apply_answer(state))

    def claim_probe(self, credential: str, owner: int) -> Probe | None:
        """Claim the right to try a closed key; ``None`` when no probe is due, or another call has it. ``owner`` is the
        worker's row."""
        token = secrets.token_hex(16)
        taken = self._database.execute(
            sa.update(key_states)
            .where(key_states.c.credential == credential, *_PROBE_IS_DUE)
            .values(probe_token=token, probe_owner=owner, probe_until=db_now() + PROBE_S)
        )
        return Probe(credential=credential, token=token) if taken else None

    def record_probe_answer(self, probe: Probe) -> KeyRow | None:
        """Record that a probe was answered, so the key works. Returns ``None`` when the probe was taken away; then its
        new holder decides."""
        return self._end_probe(probe, apply_probe_answer)

    def record_probe_failure(self, probe: Probe, found: Finding, *, reason: str) -> KeyRow | None:
        """Record that a probe failed. Returns ``None`` when the probe was taken away; then its new holder decides."""
        return self._end_probe(
            probe,
            lambda state, now: apply_probe_failure(state, found, now, self._rules, random.random()),
            reason=reason,
        )

    def release_probe(self, probe: Probe, *, wait_s: float = 0.0) -> KeyRow | None:
        """Give a probe back that was not sent; another may be sent after ``wait_s`` seconds."""
        return self._end_probe(probe, lambda state, now: apply_probe_release(state, now, wait_s))

    def open(self, credential: str) -> KeyRow:
        """Open a key because an operator says so. Idempotent. Raises ``KeyUnknown``."""
        with self._database.write() as connection:
            before = fetch_row(connection.execute(_ALL.where(key_states.c.credential == credential)), _StateRow)
            after = before and self._change_state(connection, credential, apply_probe_answer, ends_probe=True)
            if before is None or after is None:
                known = "'hermes-worker fleet providers status' lists those of which something is"
                raise KeyUnknown(f"nothing is known of a key {credential!r}; {known}")
            record_action(connection, Act.PROVIDER_KEY_OPEN, credential, before={"condition": before.condition})
            return after

    def _end_probe(
        self, probe: Probe, change: Callable[[KeyState, float], KeyState], *, reason: str | None = None
    ) -> KeyRow | None:
        with self._database.write() as connection:
            held = sa.select(key_states.c.credential).where(
                key_states.c.credential == probe.credential, key_states.c.probe_token == probe.token
            )
            if connection.execute(held.with_for_update()).first() is None:
                return None
            return self._change_state(connection, probe.credential, change, reason=reason, ends_probe=True)

    def _change_state(
        self,
        connection: Connection,
        credential: str,
        change: Callable[[KeyState, float], KeyState],
        *,
        reason: str | None = None,
        ends_probe: bool = False,
    ) -> KeyRow | None:
        """Write what ``change`` makes of a key's state, under the lock of its row."""
        locked = _ALL.where(key_states.c.credential == credential).with_for_update(of=key_states)
        row = fetch_row(connection.execute(locked), _StateRow)
        if row is None:
            return None
        before = _to_state(row)
        after = change(before, row.now)
        values = _build_values(after)
        if ends_probe or not after.is_closed:
            values |= {"probe_token": None, "probe_owner": None, "probe_until": None}
        if reason is not None and after.is_closed and after != before:
            values["reason"] = make_storable(reason)[:_REASON_CHARS_MAX]
        if after != before or ends_probe:
            connection.execute(sa.update(key_states).where(key_states.c.credential == credential).values(**values))
        return KeyRow(
            credential=credential,
            provider=row.provider,
            state=after,
            reason=str(values.get("reason", row.reason) or "") or None,
            is_probed=bool(row.is_probed) and not ends_probe,
            parked=row.parked,
        )


def park_on_keys(connection: Connection, run_pk: int, credentials: tuple[str, ...]) -> None:
    """Have a parked run woken when one of these keys is open. Idempotent."""
    rows = [{"run_pk": run_pk, "credential": credential} for credential in dict.fromkeys(credentials)]
    if rows:
        connection.execute(build_insert_ignoring(connection, parked_on_keys), rows)


def wake_parked(database: Database) -> int:
    """Wake runs that are parked on keys: one where a probe is due, several where the key is open. Returns how many.
    Idempotent; any number of processes may do it."""
    with database.read() as connection:
        waited_for = _WAITED_FOR.all(connection, {})
    woken = 0
    for key in waited_for:
        if key.is_open:
            woken += _wake(database, key.credential, most=_WOKEN_AT_ONCE)
        elif key.is_due:
            woken += _wake_prober(database, key.credential)
    return woken


def _wake_prober(database: Database, credential: str) -> int:
    taken = database.execute(
        sa.update(key_states)
        .where(
            key_states.c.credential == credential,
            sa.func.coalesce(key_states.c.woken_at, 0.0) < db_now() - _WAKE_EVERY_S,
            *_PROBE_IS_DUE,
        )
        .values(woken_at=db_now())
    )
    if taken == 0:
        return 0
    return _wake(database, credential, most=1)


def _wake(database: Database, credential: str, *, most: int) -> int:
    with database.write() as connection:
        first = (
            sa.select(parked_on_keys.c.run_pk)
            .where(parked_on_keys.c.credential == credential)
            .order_by(parked_on_keys.c.run_pk)
            .limit(most)
        )
        pks = list(connection.execute(first.with_for_update(skip_locked=True)).scalars())
        if not pks:
            return 0
        # The run's own row says whether it waits; a run that goes on for another reason is not touched.
        woken = connection.execute(
            sa.update(runs)
            .where(
                runs.c.pk.in_(pks),
                runs.c.status == RunStatus.WAITING_FOR_CAPACITY.value,
                runs.c.resume_at > db_now(),
            )
            .values(resume_at=db_now() - 0.01)
        )
        connection.execute(sa.delete(parked_on_keys).where(parked_on_keys.c.run_pk.in_(pks)))
        return woken.rowcount


_prober = sa.select(workers.c.pk).where(workers.c.pk == key_states.c.probe_owner, workers.c.state == "alive")
_IS_FREE = sa.or_(
    key_states.c.probe_token.is_(None), key_states.c.probe_until < select_db_now(), sa.not_(sa.exists(_prober))
)
_PROBE_IS_DUE = (
    key_states.c.condition != KeyCondition.OPEN.value,
    key_states.c.probe_at <= select_db_now(),
    _IS_FREE,
)


class _WaitedFor(NamedTuple):
    credential: str
    is_open: bool
    is_due: bool


_parked = sa.select(parked_on_keys.c.credential).distinct().limit(_KEYS_MAX).subquery()
_WAITED_FOR: Prepared[Nothing, _WaitedFor] = Prepared(
    sa.select(
        _parked.c.credential,
        (sa.func.coalesce(key_states.c.condition, KeyCondition.OPEN.value) == KeyCondition.OPEN.value).label("is_open"),
        sa.func.coalesce(key_states.c.probe_at <= select_db_now(), sa.false()).label("is_due"),
    ).select_from(_parked.outerjoin(key_states, key_states.c.credential == _parked.c.credential)),
    gives=_WaitedFor,
)


class _StateRow(NamedTuple):
    credential: str
    provider: str
    condition: str
    epoch: int
    since: float | None
    evidence: str
    probes: int
    probe_at: float | None
    reason: str | None
    is_probed: bool
    parked: int
    now: float


_waiting = (
    sa.select(sa.func.count())
    .select_from(parked_on_keys)
    .where(parked_on_keys.c.credential == key_states.c.credential)
    .scalar_subquery()
)
_ALL = (
    sa.select(
        *(key_states.c[name] for name in _StateRow._fields[:-3]),
        sa.not_(_IS_FREE).label("is_probed"),
        _waiting.label("parked"),
        db_now().label("now"),
    )
    .order_by(key_states.c.condition == KeyCondition.OPEN.value, key_states.c.since.desc(), key_states.c.credential)
    .limit(_KEYS_MAX)
)


def _to_state(row: _StateRow) -> KeyState:
    return KeyState(
        condition=KeyCondition(row.condition),
        epoch=row.epoch,
        since=row.since,
        evidence=parse_evidence(json.loads(row.evidence)),
        probes=row.probes,
        probe_at=row.probe_at,
    )


def _to_key_row(row: _StateRow) -> KeyRow:
    return KeyRow(
        credential=row.credential,
        provider=row.provider,
        state=_to_state(row),
        reason=row.reason,
        is_probed=bool(row.is_probed),
        parked=row.parked,
    )


def _build_values(state: KeyState) -> dict[str, object]:
    return {
        "condition": state.condition.value,
        "epoch": state.epoch,
        "since": state.since,
        "evidence": dump_canonical_json(dump_evidence(state.evidence)),
        "probes": state.probes,
        "probe_at": state.probe_at,
    }
