"""Leased resources: what must survive a worker and cannot be a row, such as a browser (``tables.resources``).

Theory of operation. A row holds two rights. The *lease* belongs to the host, the only process that starts and ends what
the row stands for; it renews all its leases in one statement, and a resource whose lease it could not renew is lost. A
lapsed lease admits no calls, and holds again when it is renewed before another process declares it lost. The *use*
belongs to one tool call. It has no time limit, because the call has a claim of its own: a later call of the same
session takes the use over. From then on writes of the earlier call match nothing, and the host, which compares
``use_token``, refuses its connection.

A row outlives its process. It then says why the process ended, where it was and what is needed to begin again, until
the session is deleted or the resource was not used for long.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.errors import HermesError
from hermes_worker.store.engine.database import RowStore, db_now
from hermes_worker.store.engine.prepared import fetch_row, fetch_rows, fetch_views, select_view_columns
from hermes_worker.store.rows import build_insert_ignoring, make_storable
from hermes_worker.store.tables import resources, sessions

LAPSE_PATIENCE_S = 3.0
"""Seconds. When the database comes back after more than a lease's time, all leases have lapsed at once. A caller that
wants a resource gives its host this long to renew, which it tries several times a second; the process has lost
nothing."""
REASON_CHARS_MAX = 500
NOT_STARTED = "it could not be started: "
"""The beginning of the reason of a resource that no host could start, so that it was never used."""


class ResourceKind(StrEnum):
    """The kinds of leased resources."""

    BROWSER = "browser"
    MCP_STDIO = "mcp_stdio"
    """A process that speaks MCP over its standard input and output."""


class ResourceState(StrEnum):
    """``wanted`` -> ``starting`` -> ``live`` -> ``ended`` -> ``wanted`` again; ``ended`` can follow each of them."""

    WANTED = "wanted"
    STARTING = "starting"
    """A host has it, and its process cannot be used yet."""
    LIVE = "live"
    ENDED = "ended"


class SessionUnknown(HermesError):
    """There is no session of this id, or it is being erased."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceView:
    """A resource's row as it was read. ``endpoint`` and the fields after it are for the holder of the use only."""

    resource_id: str
    tenant: str
    session_id: str
    kind: ResourceKind
    name: str
    state: ResourceState
    host: str | None
    """The host that has it, or had it last."""
    idle_s: float
    """Seconds since a call last used it."""
    endpoint: str | None = field(repr=False, default=None)
    snapshot_hash: str | None = None
    snapshot: str | None = field(repr=False, default=None)
    """The last snapshot of it that the model was shown."""
    url: str | None = field(repr=False, default=None)
    storage: str | None = field(repr=False, default=None)
    """What a new process is given so that the session goes on: cookies of a browser, a session id of a protocol."""
    reason: str | None = None
    """Why the last process ended; stays until the next one was used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceLease:
    """The right to run and to end one resource."""

    resource: ResourceView
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceUse:
    """The right of one tool call to use one resource."""

    resource: ResourceView
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceChanges:
    """The state that a call leaves for the next one. ``None`` leaves a field as it is."""

    url: str | None = None
    snapshot: str | None = field(repr=False, default=None)
    snapshot_hash: str | None = None
    storage: str | None = field(repr=False, default=None)


class _HeldResource(NamedTuple):
    resource_id: str
    lease_token: str
    idle_s: float


_ROW = sa.select(
    *select_view_columns(resources, ResourceView),
    sessions.c.session_id,
    (db_now() - resources.c.used_at).label("idle_s"),
).select_from(resources.join(sessions, sessions.c.pk == resources.c.session_pk))
_FREE: Mapping[str, None] = {"lease_token": None, "expires_at": None, "endpoint": None, "use_token": None}
_HOSTED = (ResourceState.STARTING.value, ResourceState.LIVE.value)
_IS_HOSTED = resources.c.lease_token.is_not(None)


class Resources(RowStore):
    """The resources of one database. Thread-safe; every method raises ``UnavailableError``."""

    # --- for the callers of a resource -------------------------------------------------------------------------------

    def request_resource(
        self, session_id: str, kind: ResourceKind, name: str = "", *, spares_lapsed: bool = False
    ) -> ResourceView:
        """Have a host start the session's resource of this kind and name, unless one has it. A resource whose lease has
        lapsed counts as lost, unless ``spares_lapsed``. Idempotent. Raises ``SessionUnknown``."""
        with self.database.write() as connection:
            of = sa.select(sessions.c.pk, sessions.c.tenant).where(
                sessions.c.session_id == session_id, sessions.c.erasure_pk.is_(None)
            )
            session = fetch_row(connection.execute(of), _OwningSession)
            if session is None:
                raise SessionUnknown(f"there is no session {session_id!r}")
            new = {
                "resource_id": f"res_{secrets.token_hex(16)}",
                "tenant": session.tenant,
                "session_pk": session.pk,
                "kind": kind.value,
                "name": name,
                "state": ResourceState.WANTED.value,
                "created_at": db_now(),
                "used_at": db_now(),
            }
            connection.execute(build_insert_ignoring(connection, resources).values(**new))
            this = (
                (resources.c.session_pk == session.pk) & (resources.c.kind == kind.value) & (resources.c.name == name)
            )
            if not spares_lapsed:
                _end_lapsed(connection, this)
            connection.execute(
                sa.update(resources)
                .where(this, resources.c.state == ResourceState.ENDED.value)
                .values(state=ResourceState.WANTED.value, used_at=db_now())
            )
            return fetch_views(connection.execute(_ROW.where(this)), ResourceView)[0]

    def find(self, session_id: str, kind: ResourceKind, name: str = "") -> ResourceView | None:
        """Load a session's resource; ``None`` when the session never requested one."""
        this = (sessions.c.session_id == session_id) & (resources.c.kind == kind.value) & (resources.c.name == name)
        return next(iter(fetch_views(self.database.select(_ROW.where(this)), ResourceView)), None)

    def acquire_use(self, resource_id: str) -> ResourceUse | None:
        """Take the use of a live resource, from another call if that has it; ``None`` when the resource is not live, or
        its host's lease has lapsed. Only the holder of the call's claim may do this, so the call that loses the use has
        lost its claim before."""
        token = secrets.token_hex(16)
        with self.database.write() as connection:
            taken = connection.execute(
                sa.update(resources)
                .where(
                    resources.c.resource_id == resource_id,
                    resources.c.state == ResourceState.LIVE.value,
                    resources.c.expires_at > db_now(),
                )
                .values(use_token=token, used_at=db_now())
            )
            if taken.rowcount == 0:
                return None
            [found] = fetch_views(connection.execute(_ROW.where(resources.c.resource_id == resource_id)), ResourceView)
            return ResourceUse(resource=found, token=token)

    def update_state(self, use: ResourceUse, noted: ResourceChanges) -> bool:
        """Write what the next call needs to know. Returns False when another call has the use, or the process has
        ended. Idempotent."""
        given = {"url": noted.url, "snapshot": noted.snapshot, "storage": noted.storage}
        values = {name: make_storable(text) for name, text in given.items() if text is not None}
        if noted.snapshot_hash is not None:
            values["snapshot_hash"] = noted.snapshot_hash
        written = self.database.execute(
            sa.update(resources)
            .where(resources.c.resource_id == use.resource.resource_id, resources.c.use_token == use.token)
            .values(**values, used_at=db_now(), reason=None)
        )
        return written == 1

    def delete_resource(self, session_id: str, kind: ResourceKind, name: str = "") -> bool:
        """Delete the session's resource, with its cookies. Its host finds the row gone and ends the process. Returns
        whether there was one."""
        of = sa.select(sessions.c.pk).where(sessions.c.session_id == session_id).scalar_subquery()
        this = (resources.c.session_pk == of) & (resources.c.kind == kind.value) & (resources.c.name == name)
        return self.database.execute(sa.delete(resources).where(this)) == 1

    # --- for hosts ---------------------------------------------------------------------------------------------------

    def claim(self, kind: ResourceKind, *, host: str, ttl_s: float, wants_within_s: float) -> ResourceLease | None:
        """Claim the requested resource that waits the longest for this host; ``None`` when there is none. Requests
        older than ``wants_within_s`` seconds are ignored, because their callers have given up."""
        token = secrets.token_hex(16)
        waiting = (
            (resources.c.state == ResourceState.WANTED.value)
            & (resources.c.kind == kind.value)
            & (resources.c.used_at > db_now() - wants_within_s)
        )
        with self.database.write() as connection:
            first = sa.select(resources.c.pk).where(waiting).order_by(resources.c.used_at).limit(1)
            found = connection.execute(first.with_for_update(skip_locked=True)).scalar()
            if found is None:
                return None
            connection.execute(
                sa.update(resources)
                .where(resources.c.pk == found)
                .values(state=ResourceState.STARTING.value, host=host, lease_token=token, expires_at=db_now() + ttl_s)
            )
            [begun] = fetch_views(connection.execute(_ROW.where(resources.c.pk == found)), ResourceView)
            return ResourceLease(resource=begun, token=token)

    def publish(self, lease: ResourceLease, endpoint: str) -> bool:
        """Record that the resource can be used, at ``endpoint``. Returns False when the lease was lost: then end the
        process. May be repeated."""
        done = self.database.execute(
            sa.update(resources)
            .where(_is_leased_by(lease))
            .values(state=ResourceState.LIVE.value, endpoint=endpoint, used_at=db_now())
        )
        return done == 1

    def renew(self, leases: Sequence[ResourceLease], *, ttl_s: float) -> dict[str, float]:
        """Renew leases. Returns by resource id for how many seconds each was not used. A lapsed lease holds again while
        no process has ended it: the database was away. What is missing in the result was taken away or deleted: end its
        process."""
        if not leases:
            return {}
        tokens = [lease.token for lease in leases]
        ours = resources.c.lease_token.in_(tokens)
        with self.database.write() as connection:
            connection.execute(sa.update(resources).where(ours).values(expires_at=db_now() + ttl_s))
            idle = (db_now() - resources.c.used_at).label("idle_s")
            wanted = sa.select(resources.c.resource_id, resources.c.lease_token, idle)
            rows = fetch_rows(connection.execute(wanted.where(ours)), _HeldResource)
        return {row.resource_id: row.idle_s for row in rows}

    def may_use(self, lease: ResourceLease, use_token: str) -> bool:
        """Whether a call with this token has the use of a resource that this host leases."""
        wanted = sa.select(resources.c.pk).where(_is_leased_by(lease), resources.c.use_token == use_token)
        return self.database.select(wanted).first() is not None

    def release(self, lease: ResourceLease, reason: str, *, idle_s: float = 0.0) -> bool:
        """Declare that the process is to end, for ``reason``. Returns False when the lease was lost, or a call used it
        within ``idle_s`` seconds. Call it before the process is ended, so that no call is sent to a process that is
        ending."""
        done = self.database.execute(
            sa.update(resources)
            .where(_is_leased_by(lease), resources.c.used_at <= db_now() - idle_s)
            .values(state=ResourceState.ENDED.value, reason=make_storable(reason)[:REASON_CHARS_MAX], **_FREE)
        )
        return done == 1

    def end_stale(self, kind: ResourceKind, *, host: str) -> int:
        """End the resources that an earlier process of this host had; for a host that begins. Returns how many.
        Idempotent."""
        had = sa.update(resources).where(
            resources.c.kind == kind.value, resources.c.host == host, resources.c.lease_token.is_not(None)
        )
        values = {"state": ResourceState.ENDED.value, "reason": "its host was lost", **_FREE}
        return self.database.execute(had.values(**values))

    def end_lapsed(self) -> int:
        """End the resources whose host has not renewed its lease. Returns how many. Any process may; idempotent."""
        with self.database.statement() as connection:
            return _end_lapsed(connection, sa.true())

    def delete_unused(self, kind: ResourceKind, *, older_than_s: float) -> int:
        """Delete rows that have no process and were not used for ``older_than_s`` seconds. Returns how many.
        Idempotent."""
        gone = (
            (resources.c.kind == kind.value)
            & resources.c.lease_token.is_(None)
            & (resources.c.used_at < db_now() - older_than_s)
        )
        return self.database.execute(sa.delete(resources).where(gone))

    def list_hosted(self, kind: ResourceKind) -> list[ResourceView]:
        """List the resources that have a host, for people; the oldest first."""
        wanted = _ROW.where(resources.c.kind == kind.value, resources.c.state.in_(_HOSTED))
        return fetch_views(self.database.select(wanted.order_by(resources.c.pk)), ResourceView)


class _OwningSession(NamedTuple):
    pk: int
    tenant: str


def _is_leased_by(lease: ResourceLease) -> sa.ColumnElement[bool]:
    this = resources.c.resource_id == lease.resource.resource_id
    return this & (resources.c.lease_token == lease.token) & (resources.c.expires_at > db_now())


def _end_lapsed(connection: Connection, which: sa.ColumnElement[bool]) -> int:
    lapsed = (
        sa.update(resources)
        .where(which, _IS_HOSTED, resources.c.expires_at <= db_now())
        .values(state=ResourceState.ENDED.value, reason="its host was lost", **_FREE)
    )
    return connection.execute(lapsed).rowcount
