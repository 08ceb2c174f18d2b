"""Alerts for operators: said once each, as deliveries, by whichever process sweeps.

An alert is a row, unique by what it is about and which occurrence of it. Whoever writes the row owes the deliveries in
the same transaction, so any number of sweepers, killed at any moment, say it once. The same goes for its end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.alerting import TEXT_CHARS_MAX, AlertKind, OpenAlert, Trouble, steps, without_target
from hermes_worker.core.principals import DEFAULT_TENANT
from hermes_worker.core.run import ExitReason
from hermes_worker.store.access.audit import Act, record
from hermes_worker.store.backlog import read_backlog
from hermes_worker.store.engine.database import Database, db_now
from hermes_worker.store.engine.prepared import columns_for, rows_of
from hermes_worker.store.key_states import KeyStates
from hermes_worker.store.outbox.deliveries import owe
from hermes_worker.store.rows import Hint, insert_ignoring, plain
from hermes_worker.store.run_ends import RunEnd
from hermes_worker.store.tables import alerts, dead_targets

_DEAD_TARGETS_MAX = 500
KEPT_S = 30 * 86_400.0
"""How long an alert that is over is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertPolicy:
    """Who is told, and of what."""

    targets: tuple[str, ...] = ()
    """As in ``deliver``; none for no alerts."""
    backlog_age_s: float = 600.0
    """How long the oldest due step may wait."""


class AlertView(NamedTuple):
    """An alert as operators see it. Times are epoch seconds."""

    kind: str
    subject: str
    text: str
    raised_at: float
    recovered_at: float | None


def list_alerts(database: Database, *, limit: int = 50) -> list[AlertView]:
    """The newest first. Raises ``UnavailableError``."""
    newest = sa.select(*columns_for(alerts, AlertView)).order_by(alerts.c.pk.desc()).limit(limit)
    with database.read() as connection:
        return rows_of(connection.execute(newest), AlertView)


def try_alerts(database: Database, policy: AlertPolicy) -> list[Hint]:
    """Send a text to every target, to see that it arrives."""
    if not policy.targets:
        return []
    with database.write() as connection:
        record(connection, Act.ALERTS_TRY, "alerts", after={"targets": len(policy.targets)})
        return owe(connection, policy.targets, body="hermes-worker: this is a test of alerts; nothing is wrong")


def tell_quarantines(database: Database, policy: AlertPolicy, ends: Sequence[RunEnd]) -> list[Hint]:
    """Alerts about runs that were quarantined. Idempotent: call it before the ends are counted."""
    hints: list[Hint] = []
    for end in ends:
        if end.exit_reason != ExitReason.STEP_QUARANTINED.value:
            continue
        text = (
            f"run {end.run_id} was quarantined: one of its steps took down worker after worker ('runs show' says more)"
        )
        trouble = Trouble(kind=AlertKind.QUARANTINE, subject=end.run_id, epoch=1, text=text)
        hints += _raise(database, policy, trouble, None, is_over=True)
    return hints


def sweep_alerts(database: Database, policy: AlertPolicy) -> list[Hint]:
    """Say what is wrong and was not said, and what is over. Idempotent; any number of processes may do it."""
    dead = _dead_targets(database)
    troubles = [*_closed_keys(database), *dead, *_backlogs(database, policy)]
    with database.read() as connection:
        standing = sa.select(*columns_for(alerts, _StandingAlert)).where(alerts.c.recovered_at.is_(None))
        known = [
            OpenAlert(pk=row.pk, kind=row.kind, subject=row.subject, clear_since=row.clear_since)
            for row in rows_of(connection.execute(standing), _StandingAlert)
        ]
        now = connection.execute(sa.select(db_now())).scalar_one()
    wanted = steps(troubles, known, now)
    hints: list[Hint] = []
    for trouble in wanted.raised:
        hints += _raise(database, policy, trouble, dead.get(trouble))
    if wanted.cleared or wanted.returned:
        with database.write() as connection:
            _mark(connection, wanted.cleared, is_clear=True)
            _mark(connection, wanted.returned, is_clear=False)
    for pk in wanted.ended:
        hints += _end(database, policy, pk)
    return hints


def _raise(
    database: Database, policy: AlertPolicy, trouble: Trouble, dead: str | None, *, is_over: bool = False
) -> list[Hint]:
    text = plain(trouble.text)[:TEXT_CHARS_MAX]
    with database.write() as connection:
        epoch = trouble.epoch or _next_epoch(connection, trouble)
        made = connection.execute(
            insert_ignoring(connection, alerts)
            .values(
                tenant=DEFAULT_TENANT,
                kind=trouble.kind.value,
                subject=trouble.subject,
                epoch=epoch,
                text=text,
                raised_at=db_now(),
                recovered_at=db_now() if is_over else None,
            )
            .returning(alerts.c.pk)
        )
        if made.first() is None:
            return []
        return owe(connection, without_target(policy.targets, dead), body=f"hermes-worker alert: {text}")


def _next_epoch(connection: Connection, trouble: Trouble) -> int:
    last = sa.select(sa.func.max(alerts.c.epoch)).where(
        alerts.c.kind == trouble.kind.value, alerts.c.subject == trouble.subject, alerts.c.recovered_at.is_not(None)
    )
    return int(connection.execute(last).scalar() or 0) + 1


def _end(database: Database, policy: AlertPolicy, pk: int) -> list[Hint]:
    with database.write() as connection:
        text = connection.execute(
            sa.update(alerts)
            .where(alerts.c.pk == pk, alerts.c.recovered_at.is_(None), alerts.c.clear_since.is_not(None))
            .values(recovered_at=db_now())
            .returning(alerts.c.text)
        ).scalar()
        return [] if text is None else owe(connection, policy.targets, body=f"hermes-worker, over again: {text}")


def _mark(connection: Connection, pks: Sequence[int], *, is_clear: bool) -> None:
    if pks:
        connection.execute(
            sa.update(alerts)
            .where(alerts.c.pk.in_(pks), alerts.c.recovered_at.is_(None))
            .values(clear_since=db_now() if is_clear else None)
        )


def _closed_keys(database: Database) -> Iterator[Trouble]:
    for row in KeyStates(database).all():
        if row.state.is_closed:
            text = f"the key {row.credential} of {row.provider} {row.state.condition.text}"
            yield Trouble(
                kind=AlertKind.PROVIDER,
                subject=row.credential,
                epoch=row.state.epoch,
                text=f"{text}; runs wait for it ('hermes-worker providers status')",
            )


def _backlogs(database: Database, policy: AlertPolicy) -> Iterator[Trouble]:
    for queue in read_backlog(database):
        # An alert about deliveries that wait would wait with them, and would be one of them.
        if queue.oldest_age_s > policy.backlog_age_s and not queue.queue.endswith("delivery"):
            text = f"work for the queue {queue.queue} waits longer than {policy.backlog_age_s:g} s for a worker"
            yield Trouble(kind=AlertKind.BACKLOG, subject=queue.queue, epoch=0, text=text)


def _dead_targets(database: Database) -> dict[Trouble, str]:
    """Of all tenants, with the target. An alert names no person: neither its subject nor its text has the address."""
    # The oldest: one that is dead still must not leave the list because others die, or it would be said to be over.
    in_order = (dead_targets.c.marked_at, dead_targets.c.tenant, dead_targets.c.key)
    oldest = sa.select(*columns_for(dead_targets, _DeadTarget)).order_by(*in_order).limit(_DEAD_TARGETS_MAX)
    with database.read() as connection:
        rows = rows_of(connection.execute(oldest), _DeadTarget)
    found: dict[Trouble, str] = {}
    for row in rows:
        platform = row.key.partition(":")[0]
        text = f"a target on {platform} of the tenant {row.tenant} refuses what is sent there; nothing more is"
        subject = hashlib.sha256(f"{row.tenant}\0{row.key}".encode()).hexdigest()[:32]
        trouble = Trouble(
            kind=AlertKind.DEAD_TARGET,
            subject=subject,
            epoch=int(row.marked_at * 1000),
            text=f"{text} ('hermes-worker deliveries list --state failed')",
        )
        found[trouble] = row.key
    return found


class _StandingAlert(NamedTuple):
    pk: int
    kind: str
    subject: str
    clear_since: float | None


class _DeadTarget(NamedTuple):
    tenant: str
    key: str
    marked_at: float
