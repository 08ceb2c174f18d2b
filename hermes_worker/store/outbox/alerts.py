"""Alerts for operators: sent once each, as deliveries, by any process that sweeps.

An alert is a row, unique by its subject and its occurrence. The transaction that inserts the row inserts its deliveries
too, so any number of sweepers, killed at any moment, send it once. The end of an alert is sent in the same way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.alert_rules import (
    BUDGET_KINDS,
    NEAR,
    TEXT_CHARS_MAX,
    AlertKind,
    OpenAlert,
    Trouble,
    compute_budget_level,
    decide_alert_steps,
    remove_target,
)
from hermes_worker.core.limits import Limit, LimitName, Spending, compute_periods, select_period_use
from hermes_worker.core.principals import DEFAULT_TENANT
from hermes_worker.core.run import ExitReason
from hermes_worker.store.access.audit import Act, record_action
from hermes_worker.store.backlog import read_backlog
from hermes_worker.store.engine.database import Database, db_now
from hermes_worker.store.engine.prepared import fetch_row, fetch_rows, fetch_views, select_columns, select_view_columns
from hermes_worker.store.key_states import KeyStates
from hermes_worker.store.outbox.deliveries import enqueue_deliveries
from hermes_worker.store.rows import Hint, build_insert_ignoring, make_storable
from hermes_worker.store.run_ends import RunEnd
from hermes_worker.store.runs.limits import Owner, fetch_limits, load_spending
from hermes_worker.store.runs.permits import holds_for_spending, sum_open_usage
from hermes_worker.store.tables import alert_targets, alerts, budgets, dead_targets, runs, tenants

_DEAD_TARGETS_MAX = 500
_NEWS_S = 3_600.0
"""No alert is sent about a budget whose chain ended more than this many seconds ago."""
KEPT_S = 30 * 86_400.0
"""Seconds for which an alert that is over is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertPolicy:
    """The targets of alerts, and their thresholds."""

    targets: tuple[str, ...] = ()
    """Targets as in ``deliver``; empty for no alerts."""
    backlog_age_s: float = 600.0
    """Seconds that the oldest due step may wait."""


class AlertView(NamedTuple):
    """An alert as operators see it. Times are epoch seconds."""

    kind: str
    subject: str
    text: str
    raised_at: float
    recovered_at: float | None


def list_alerts(database: Database, *, limit: int = 50) -> list[AlertView]:
    """List alerts, the newest first. Raises ``UnavailableError``."""
    newest = sa.select(*select_columns(alerts, AlertView)).order_by(alerts.c.pk.desc()).limit(limit)
    return fetch_rows(database.select(newest), AlertView)


def send_test_alert(database: Database, policy: AlertPolicy) -> list[Hint]:
    """Send a test text to every target. Returns the hints to send."""
    if not policy.targets:
        return []
    with database.write() as connection:
        record_action(connection, Act.ALERTS_TRY, "alerts", after={"targets": len(policy.targets)})
        return enqueue_deliveries(
            connection, policy.targets, body="hermes-worker: this is a test of alerts; nothing is wrong"
        )


def alert_quarantines(database: Database, policy: AlertPolicy, ends: Sequence[RunEnd]) -> list[Hint]:
    """Send alerts about runs that were quarantined. Idempotent: call it before the ends are counted. Returns the hints
    to send."""
    hints: list[Hint] = []
    for end in ends:
        if end.exit_reason != ExitReason.STEP_QUARANTINED.value:
            continue
        text = (
            f"run {end.run_id} was quarantined: one of its steps took down worker after worker ('runs show' says more)"
        )
        trouble = Trouble(kind=AlertKind.QUARANTINE, subject=end.run_id, epoch=1, text=text)
        hints += _raise_alert(database, policy, trouble, None, is_over=True)
    return hints


def sweep_alerts(database: Database, policy: AlertPolicy) -> list[Hint]:
    """Raise alerts for new troubles, and end those that are over. Idempotent; any number of processes may do it.
    Returns the hints to send."""
    dead = _find_dead_targets(database) if policy.targets else {}
    own = get_alert_targets(database)
    troubles = [*_find_spent_limits(database, policy, own)]
    if policy.targets:
        troubles += [*_find_closed_keys(database), *dead, *_find_backlogs(database, policy)]
    hints = _alert_budgets(database, policy, own)
    with database.read() as connection:
        standing = sa.select(*select_view_columns(alerts, OpenAlert)).where(alerts.c.recovered_at.is_(None))
        known = fetch_views(connection.execute(standing), OpenAlert)
        now = connection.execute(sa.select(db_now())).scalar_one()
    wanted = decide_alert_steps(troubles, known, now)
    for trouble in wanted.raised:
        hints += _raise_alert(database, policy, trouble, dead.get(trouble))
    if wanted.cleared or wanted.returned:
        with database.write() as connection:
            _mark_clear(connection, wanted.cleared, is_clear=True)
            _mark_clear(connection, wanted.returned, is_clear=False)
    for pk in wanted.ended:
        hints += _end_alert(database, policy, pk)
    return hints


def _raise_alert(
    database: Database, policy: AlertPolicy, trouble: Trouble, dead: str | None, *, is_over: bool = False
) -> list[Hint]:
    text = make_storable(trouble.text)[:TEXT_CHARS_MAX]
    with database.write() as connection:
        epoch = trouble.epoch or _compute_next_epoch(connection, trouble)
        made = connection.execute(
            build_insert_ignoring(connection, alerts)
            .values(
                tenant=trouble.tenant,
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
        told = remove_target(policy.targets, dead)
        return _enqueue_alert(connection, told, trouble.tenant, f"hermes-worker alert: {text}")


def _compute_next_epoch(connection: Connection, trouble: Trouble) -> int:
    last = sa.select(sa.func.max(alerts.c.epoch)).where(
        alerts.c.kind == trouble.kind.value, alerts.c.subject == trouble.subject, alerts.c.recovered_at.is_not(None)
    )
    return int(connection.execute(last).scalar() or 0) + 1


def _end_alert(database: Database, policy: AlertPolicy, pk: int) -> list[Hint]:
    with database.write() as connection:
        ended = connection.execute(
            sa.update(alerts)
            .where(alerts.c.pk == pk, alerts.c.recovered_at.is_(None), alerts.c.clear_since.is_not(None))
            .values(recovered_at=db_now())
            .returning(*select_columns(alerts, _EndedAlert))
        )
        row = fetch_row(ended, _EndedAlert)
        if row is None or not AlertKind(row.kind).has_end:
            return []
        return _enqueue_alert(connection, policy.targets, row.tenant, f"hermes-worker, over again: {row.text}")


def _enqueue_alert(connection: Connection, targets: Sequence[str], tenant: str, body: str) -> list[Hint]:
    """Insert deliveries to the operators, and to the tenant that the alert is about: the tenant's own, to targets it
    may use."""
    hints = enqueue_deliveries(connection, targets, body=body)
    if tenant != DEFAULT_TENANT:
        own = sa.select(alert_targets.c.target).where(alert_targets.c.tenant == tenant).order_by(alert_targets.c.target)
        hints += enqueue_deliveries(connection, list(connection.execute(own).scalars()), body=body, tenant=tenant)
    return hints


def get_alert_targets(database: Database) -> Mapping[str, Sequence[str]]:
    """The targets of tenants for alerts about themselves, by tenant. At most half a second old."""

    def read() -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        rows = sa.select(*select_columns(alert_targets, _OwnTarget)).order_by(
            alert_targets.c.tenant, alert_targets.c.target
        )
        for row in fetch_rows(database.select(rows), _OwnTarget):
            found.setdefault(row.tenant, []).append(row.target)
        return found

    return database.remembered.get("alert_targets", read)


def load_alert_targets(database: Database, tenant: str) -> list[str]:
    """Load one tenant's targets for alerts about itself, in alphabetical order."""
    wanted = sa.select(alert_targets.c.target).where(alert_targets.c.tenant == tenant)
    return sorted(database.select(wanted).scalars())


def set_alert_targets(database: Database, tenant: str, targets: Sequence[str]) -> None:
    """Replace all targets of a tenant for alerts about itself. The caller has checked that it may send there.
    Idempotent."""
    with database.write() as connection:
        # Lock the tenant, so that concurrent requests replace the targets one after the other.
        connection.execute(sa.select(tenants.c.name).where(tenants.c.name == tenant).with_for_update()).first()
        gone = sa.delete(alert_targets).where(alert_targets.c.tenant == tenant).returning(alert_targets.c.target)
        before = len(connection.execute(gone).all())
        wanted = [{"tenant": tenant, "target": target} for target in dict.fromkeys(targets)]
        if wanted:
            connection.execute(sa.insert(alert_targets), wanted)
        facts = {"before": {"targets": before}, "after": {"targets": len(wanted)}}
        record_action(connection, Act.ALERT_TARGETS_SET, tenant, tenant=tenant, **facts)
    database.remembered.forget()


def _find_spent_limits(database: Database, policy: AlertPolicy, own: Mapping[str, Sequence[str]]) -> Iterator[Trouble]:
    """Find limits of spending of tenants and keys of which 80 % or all are used, including use by runs at work."""
    known = {
        owner: spending
        for owner, limits in fetch_limits(database).items()
        if (policy.targets or owner.tenant in own)
        and (spending := [limit for name, limit in limits.items() if name.is_spending])
    }
    if not known:
        return
    with database.read() as connection:
        now = connection.execute(sa.select(db_now())).scalar_one()
        ended = load_spending(connection, sorted({owner.tenant for owner in known}), now)
        for owner, limits in known.items():
            at_work = sum_open_usage(connection, owner)
            working = Spending(tokens=at_work.tokens, nano_usd=at_work.nano_usd)
            for limit in limits:
                used = select_period_use(limit, ended.get(owner, {}), now) + working
                amount = used.nano_usd if limit.name.is_money else used.tokens
                level = compute_budget_level(amount, limit.value)
                if level == NEAR and holds_for_spending(connection, owner, now):
                    level = compute_budget_level(amount, limit.value, holds_runs=True)
                if level:
                    yield _build_limit_trouble(owner, limit, level, compute_periods(now))


def _build_limit_trouble(owner: Owner, limit: Limit, level: int, period: tuple[str, str]) -> Trouble:
    day, month = period
    when = day if limit.name in (LimitName.TOKENS_PER_DAY, LimitName.USD_PER_DAY) else month
    whose = f"the key {owner.key_id} of the tenant {owner.tenant}" if owner.key_id else f"the tenant {owner.tenant}"
    said = "has used 80 % of" if level == NEAR else "has used up"
    held = "" if level == NEAR else "; nothing more is begun for it in this time"
    return Trouble(
        kind=BUDGET_KINDS[level],
        subject=f"{owner.tenant}/{owner.key_id or '-'}/{limit.name.value}/{when}",
        epoch=0,
        text=f"{whose} {said} its limit {limit.name.value} ({limit.value_text}) for {when}{held}",
        tenant=owner.tenant,
    )


def _alert_budgets(database: Database, policy: AlertPolicy, own: Mapping[str, Sequence[str]]) -> list[Hint]:
    """Send alerts about budgets of chains. An index finds those without an alert, and the transaction that notes the
    alert sends it: to the tenant whose chain it is, or, for ``default``, to the operators."""
    rows = fetch_rows(database.select(_UNTOLD), _UntoldBudget)
    hints: list[Hint] = []
    for row in rows:
        targets = policy.targets if row.tenant == DEFAULT_TENANT else own.get(row.tenant, ())
        # Budgets that ended long ago raise no alert, for instance when a target was configured only now.
        is_news = bool(targets) and row.ended_s < _NEWS_S
        said = "80 % of its budget is used" if row.level == NEAR else "its budget is used up"
        text = f"the chain of run {row.run_id}: {said} ('runs budget {row.run_id}' says more)"
        with database.write() as connection:
            note = (
                sa.update(budgets)
                .where(budgets.c.root_pk == row.root_pk, budgets.c.told < row.level, budgets.c.level >= row.level)
                .values(told=row.level)
            )
            if connection.execute(note).rowcount == 0 or not is_news:
                continue
            values = {"kind": BUDGET_KINDS[row.level].value, "subject": row.run_id, "epoch": 1, "text": text}
            times = {"raised_at": db_now(), "recovered_at": db_now()}
            connection.execute(build_insert_ignoring(connection, alerts).values(tenant=row.tenant, **values, **times))
            hints += enqueue_deliveries(connection, targets, body=f"hermes-worker alert: {text}", tenant=row.tenant)
    return hints


def _mark_clear(connection: Connection, pks: Sequence[int], *, is_clear: bool) -> None:
    if pks:
        connection.execute(
            sa.update(alerts)
            .where(alerts.c.pk.in_(pks), alerts.c.recovered_at.is_(None))
            .values(clear_since=db_now() if is_clear else None)
        )


def _find_closed_keys(database: Database) -> Iterator[Trouble]:
    for row in KeyStates(database).list_keys():
        if row.state.is_closed:
            text = f"the key {row.credential} of {row.provider} {row.state.condition.text}"
            yield Trouble(
                kind=AlertKind.PROVIDER,
                subject=row.credential,
                epoch=row.state.epoch,
                text=f"{text}; runs wait for it ('hermes-worker fleet providers status')",
            )


def _find_backlogs(database: Database, policy: AlertPolicy) -> Iterator[Trouble]:
    for queue in read_backlog(database):
        # No alert about a backlog of deliveries: the alert is a delivery itself and would wait behind them.
        if queue.oldest_age_s > policy.backlog_age_s and not queue.queue.endswith("delivery"):
            text = f"work for the queue {queue.queue} waits longer than {policy.backlog_age_s:g} s for a worker"
            yield Trouble(kind=AlertKind.BACKLOG, subject=queue.queue, epoch=0, text=text)


def _find_dead_targets(database: Database) -> dict[Trouble, str]:
    """Find dead targets of all tenants, each with its target. An alert names no person: neither its subject nor its
    text has the address."""
    # List the oldest first: newer dead targets must not push one off the list, which would report it as recovered.
    in_order = (dead_targets.c.marked_at, dead_targets.c.tenant, dead_targets.c.key)
    oldest = sa.select(*select_columns(dead_targets, _DeadTarget)).order_by(*in_order).limit(_DEAD_TARGETS_MAX)
    rows = fetch_rows(database.select(oldest), _DeadTarget)
    found: dict[Trouble, str] = {}
    for row in rows:
        platform = row.key.partition(":")[0]
        text = f"a target on {platform} of the tenant {row.tenant} refuses what is sent there; nothing more is"
        subject = hashlib.sha256(f"{row.tenant}\0{row.key}".encode()).hexdigest()[:32]
        trouble = Trouble(
            kind=AlertKind.DEAD_TARGET,
            subject=subject,
            epoch=int(row.marked_at * 1000),
            text=f"{text} ('hermes-worker gateway deliveries list --state failed')",
        )
        found[trouble] = row.key
    return found


class _EndedAlert(NamedTuple):
    kind: str
    tenant: str
    text: str


class _OwnTarget(NamedTuple):
    tenant: str
    target: str


class _UntoldBudget(NamedTuple):
    root_pk: int
    level: int
    run_id: str
    tenant: str
    ended_s: float
    """Seconds since the first run of the chain ended; 0 while it has not."""


_UNTOLD = (
    sa.select(
        budgets.c.root_pk,
        budgets.c.level,
        runs.c.run_id,
        runs.c.tenant,
        sa.func.coalesce(db_now() - runs.c.finished_at, 0.0).label("ended_s"),
    )
    .join(runs, runs.c.pk == budgets.c.root_pk)
    .where(sa.text("level > told"))
    .order_by(budgets.c.root_pk)
    .limit(200)
)


class _DeadTarget(NamedTuple):
    tenant: str
    key: str
    marked_at: float
