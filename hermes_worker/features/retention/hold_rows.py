"""Retention rules of tenants, legal holds, and the tombstones of deleted runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.errors import HermesError
from hermes_worker.core.principals import DEFAULT_TENANT
from hermes_worker.core.retention_rules import RetentionKind, RetentionRule, parse_rule
from hermes_worker.store.access.audit import Act, record_action
from hermes_worker.store.engine.database import Database, db_now
from hermes_worker.store.engine.prepared import fetch_rows, fetch_views, select_columns, select_view_columns
from hermes_worker.store.rows import make_storable
from hermes_worker.store.runs.runs import RunNotFound, SessionNotFound, find_run
from hermes_worker.store.session_references import find_session
from hermes_worker.store.tables import legal_holds, retention_marks, retention_rules, runs, sessions, tenants


class _HeldThing(NamedTuple):
    root_pk: int | None
    session_pk: int | None


class _RuleRow(NamedTuple):
    kind: str
    rule: str


class HoldNotFound(HermesError):
    """The tenant has no legal hold of this number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LegalHold:
    """A legal hold. ``placed_at`` in epoch seconds."""

    number: int
    tenant: str
    run_id: str | None
    """The first run of the chain that is held; ``None`` for a hold on a session or on everything."""
    session_id: str | None
    reason: str
    placed_by: str
    placed_at: float


class Retention:
    """The rules and legal holds in one database. Thread-safe."""

    def __init__(self, database: Database, defaults: Mapping[RetentionKind, RetentionRule]) -> None:
        """``defaults`` are the rules of tenants without a rule of their own."""
        self._database = database
        self._defaults = defaults

    def load_rules(self, tenant: str) -> dict[RetentionKind, RetentionRule]:
        """Load the rules of a tenant."""
        with self._database.read() as connection:
            return load_rules(connection, tenant, self._defaults)

    def set_rule(self, tenant: str, kind: RetentionKind, rule: RetentionRule) -> None:
        this = _is_rule(tenant, kind)
        with self._database.write() as connection:
            kept = load_rules(connection, tenant, self._defaults)[kind]
            connection.execute(sa.delete(retention_rules).where(this))
            before, after = {"rule": str(kept)}, {"rule": str(rule)}
            record_action(connection, Act.RULE_SET, kind.value, tenant=tenant, before=before, after=after)
            values = {"tenant": tenant, "kind": kind.value, "rule": str(rule)}
            connection.execute(sa.insert(retention_rules).values(values))

    def unset_rule(self, tenant: str, kind: RetentionKind) -> None:
        """Let the installation's rule hold again. Idempotent."""
        with self._database.write() as connection:
            connection.execute(sa.delete(retention_rules).where(_is_rule(tenant, kind)))
            record_action(connection, Act.RULE_UNSET, kind.value, tenant=tenant)

    def place_hold(
        self,
        tenant: str,
        *,
        reason: str,
        by: str,
        run_id: str | None = None,
        session_id: str | None = None,
        source: str = "api",
    ) -> LegalHold:
        """Keep the chain of a run, a session with all its chains, or without both everything of a tenant, until it is
        released. ``session_id`` may be a name (``find_session``). Raises ``RunNotFound``, ``SessionNotFound``."""
        with self._database.write() as connection:
            if session_id is not None:
                session_id = find_session(connection, tenant, source, session_id)[1]
            values = {
                "tenant": tenant,
                "root_pk": None if run_id is None else _find_root(connection, run_id, tenant),
                "session_pk": None if session_id is None else _find_session_pk(connection, session_id, tenant),
                "reason": make_storable(reason),
                "placed_by": by,
                "placed_at": db_now(),
            }
            made = connection.execute(sa.insert(legal_holds).values(values).returning(legal_holds.c.pk)).scalar_one()
            held = {"run": run_id, "session": session_id}
            record_action(connection, Act.HOLD_PLACE, made, tenant=tenant, after=held)
        return next(view for view in self.list_holds(tenant) if view.number == made)

    def list_holds(self, tenant: str) -> list[LegalHold]:
        """List a tenant's legal holds, the oldest first."""
        wanted = (
            sa.select(
                legal_holds.c.pk.label("number"),
                *select_view_columns(legal_holds, LegalHold),
                runs.c.run_id,
                sessions.c.session_id,
            )
            .outerjoin(runs, runs.c.pk == legal_holds.c.root_pk)
            .outerjoin(sessions, sessions.c.pk == legal_holds.c.session_pk)
            .where(legal_holds.c.tenant == tenant)
            .order_by(legal_holds.c.pk)
        )
        return fetch_views(self._database.select(wanted), LegalHold)

    def release(self, tenant: str, number: int) -> None:
        """End a legal hold. The pruner then looks again from the beginning at what it kept. Raises ``HoldNotFound``."""
        this = (legal_holds.c.tenant == tenant) & (legal_holds.c.pk == number)
        with self._database.write() as connection:
            if connection.execute(sa.delete(legal_holds).where(this)).rowcount == 0:
                raise HoldNotFound(f"there is no hold {number} of the tenant {tenant!r}")
            connection.execute(sa.delete(retention_marks).where(retention_marks.c.tenant == tenant))
            record_action(connection, Act.HOLD_RELEASE, number, tenant=tenant)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holds:
    """The parts of a tenant that are under a legal hold, by row ids."""

    is_whole: bool
    """Everything of the tenant is held."""
    roots: frozenset[int]
    sessions: frozenset[int]


def load_holds(connection: Connection, tenant: str) -> Holds:
    held = sa.select(*select_columns(legal_holds, _HeldThing)).where(legal_holds.c.tenant == tenant)
    rows = fetch_rows(connection.execute(held), _HeldThing)
    return Holds(
        is_whole=any(row.root_pk is None and row.session_pk is None for row in rows),
        roots=frozenset(row.root_pk for row in rows if row.root_pk is not None),
        sessions=frozenset(row.session_pk for row in rows if row.session_pk is not None),
    )


def load_rules(
    connection: Connection, tenant: str, defaults: Mapping[RetentionKind, RetentionRule]
) -> dict[RetentionKind, RetentionRule]:
    """Load the rules of a tenant; where it has none, the installation's."""
    wanted = sa.select(*select_columns(retention_rules, _RuleRow)).where(retention_rules.c.tenant == tenant)
    own = fetch_rows(connection.execute(wanted), _RuleRow)
    known = {kind.value: kind for kind in RetentionKind}
    return {**defaults, **{known[row.kind]: parse_rule(known[row.kind], row.rule) for row in own if row.kind in known}}


def list_tenants(connection: Connection) -> list[str]:
    """List the names of all tenants, the default one first."""
    others = connection.execute(sa.select(tenants.c.name).where(tenants.c.name != DEFAULT_TENANT)).scalars()
    return [DEFAULT_TENANT, *sorted(others)]


def _is_rule(tenant: str, kind: RetentionKind) -> sa.ColumnElement[bool]:
    return sa.and_(retention_rules.c.tenant == tenant, retention_rules.c.kind == kind.value)


def _find_root(connection: Connection, run_id: str, tenant: str) -> int:
    pk = find_run(connection, run_id, tenant)
    root = sa.select(sa.func.coalesce(runs.c.root_pk, runs.c.pk)).where(runs.c.pk == pk).scalar_subquery()
    # A process that is deleting the chain has this lock: after waiting for it, the run no longer exists.
    locked = connection.execute(sa.select(runs.c.pk).where(runs.c.pk == root).with_for_update()).scalar()
    if locked is None:
        raise RunNotFound(f"there is no run {run_id!r}")
    return int(locked)


def _find_session_pk(connection: Connection, session_id: str, tenant: str) -> int:
    this = (sessions.c.session_id == session_id) & (sessions.c.tenant == tenant)
    pk = connection.execute(sa.select(sessions.c.pk).where(this).with_for_update()).scalar()
    if pk is None:
        raise SessionNotFound(f"there is no session {session_id!r}")
    return int(pk)
