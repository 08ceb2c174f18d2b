"""Worker processes and their leases.

Theory of operation. A process that claims work owns one row here, and every claim names that row as its owner. A claim
is live while the row's ``expires_at`` lies ahead by the database's clock. So one heartbeat, one statement on one row,
renews everything a process holds, whether that is one call or a thousand; and when the row lapses, everything it held
lapses with it.

    register      state alive, expires_at = now + ttl
    renew         expires_at = now + ttl, four times per ttl; zero rows: the lease is lost, stop working
    the sweeper   expires_at has passed: state dead; its claims are taken away, each with its own token
    retire        state stopped, expires_at = now: a worker that leaves in order
    crashed       state crashed: the parent saw the process end by itself; only this speaks against a suspect

A row that is not alive never becomes alive again. A process whose lease lapsed registers anew and gets another row, so
a frozen process that wakes up cannot renew what was taken from it. Tokens, not times, protect the data: a worker that
overlooks the end of its lease writes nothing, because its token is gone from the rows (I2). The lease only decides when
another worker may take over.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypedDict

import sqlalchemy as sa

from hermes_worker.core.errors import HermesError
from hermes_worker.store.access.audit import Act, record_action
from hermes_worker.store.engine.database import RowStore, db_now
from hermes_worker.store.engine.prepared import Prepared
from hermes_worker.store.revisions import format_code_version
from hermes_worker.store.row_keys import LeaseTokenRow
from hermes_worker.store.tables import (
    artifact_gatherings,
    deliveries,
    firings,
    inbound_files,
    runs,
    tool_calls,
    workers,
)

_NOBODY = 0
"""A row id that no worker has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """The row of a live process. A process whose lease lapsed registers anew and gets another row."""

    pk: int
    worker_id: str


class RenewedLease(NamedTuple):
    """A lease that was renewed."""

    draining_at: float | None
    """When the process began to drain, or was asked to; ``None`` while it takes work."""
    now: float
    """Epoch seconds by the database's clock."""


class WorkerNotFound(HermesError):
    """No process of this id is alive."""


class _Renewal(TypedDict):
    worker: int
    ttl_s: float
    marks: str
    is_draining: int
    sandbox: str | None


class _OldClaims(TypedDict):
    worker: int
    older_than_s: float


_RENEW = Prepared(
    sa.update(workers)
    .where(workers.c.pk == sa.bindparam("worker"), workers.c.state == "alive")
    .values(
        expires_at=db_now() + sa.bindparam("ttl_s", type_=sa.Double()),
        watermarks=sa.bindparam("marks"),
        draining_at=sa.func.coalesce(
            workers.c.draining_at,
            sa.case((sa.bindparam("is_draining", type_=sa.Integer()) == 1, db_now())),
        ),
        sandbox=sa.func.coalesce(sa.bindparam("sandbox", type_=sa.String()), workers.c.sandbox),
    )
    .returning(workers.c.draining_at, db_now().label("now")),
    takes=_Renewal,
    gives=RenewedLease,
)


def _is_old_claim(table: sa.Table) -> sa.ColumnElement[bool]:
    """Condition for the claims of a worker that are older than a number of seconds."""
    age_s: sa.ColumnElement[float] = sa.bindparam("older_than_s", type_=sa.Double())
    return (table.c.lease_owner == sa.bindparam("worker")) & (table.c.claimed_at < db_now() - age_s)


_OLD_CLAIMS = {
    table: Prepared(sa.select(table.c.lease_token).where(_is_old_claim(table)), takes=_OldClaims, gives=LeaseTokenRow)
    for table in (runs, tool_calls, deliveries, firings, artifact_gatherings, inbound_files)
}


class Workers(RowStore):
    """The worker processes known to one database. Thread-safe."""

    def register(
        self,
        *,
        name: str,
        queues: str,
        ttl_s: float,
        slots: int | None = None,
        sends_with: Collection[str] | None = None,
    ) -> Registration:
        """Insert the row of a process; its lease lasts ``ttl_s`` seconds from now. ``slots`` is how many model calls it
        makes at once, if it makes any; ``sends_with`` are the names of the variables that it delivers with, if it
        does."""
        worker_id = uuid.uuid4().hex
        with self.database.write() as connection:
            pk = connection.execute(
                sa.insert(workers)
                .values(
                    worker_id=worker_id,
                    name=name,
                    queues=queues,
                    state="alive",
                    started_at=db_now(),
                    expires_at=db_now() + ttl_s,
                    version=format_code_version(),
                    slots=slots,
                    sends_with=None if sends_with is None else " ".join(sorted(sends_with)),
                )
                .returning(workers.c.pk)
            ).scalar_one()
        return Registration(pk=int(pk), worker_id=worker_id)

    def renew(
        self,
        registration: Registration,
        *,
        ttl_s: float,
        watermarks: Mapping[str, float],
        is_draining: bool = False,
        sandbox: str | None = None,
    ) -> RenewedLease | None:
        """Renew the lease of a process. ``None`` when it lapsed and was taken away: everything held under it is lost.

        ``watermarks`` says for each queue the newest ``hinted_at`` among the messages this process has started;
        ``sandbox`` is the kind of sandbox of its commands, ``None`` while no command has run.
        """
        renewal: _Renewal = {
            "worker": registration.pk,
            "ttl_s": ttl_s,
            "marks": json.dumps(dict(watermarks)),
            "is_draining": int(is_draining),
            "sandbox": sandbox,
        }
        with self.database.statement() as connection:
            return _RENEW.first(connection, renewal)

    def drain(self, worker_id: str) -> None:
        """Ask a process to drain; it sees that with its next heartbeat. Idempotent. Raises ``WorkerNotFound``."""
        with self.database.write() as connection:
            name = connection.execute(
                sa.update(workers)
                .where(workers.c.worker_id == worker_id, workers.c.state == "alive")
                .values(draining_at=sa.func.coalesce(workers.c.draining_at, db_now()))
                .returning(workers.c.name)
            ).scalar()
            if name is None:
                raise WorkerNotFound(f"no worker {worker_id!r} is alive")
            record_action(connection, Act.WORKER_DRAIN, worker_id, after={"name": str(name)})

    def release_stray_claims(
        self, registration: Registration, *, except_for: Collection[str], older_than_s: float
    ) -> int:
        """Release the claims of this process that are older than ``older_than_s`` seconds and not among the tokens
        ``except_for``. The sweeper then finds them without an owner and treats them as lost. Returns how many there
        were."""
        which: _OldClaims = {"worker": registration.pk, "older_than_s": older_than_s}
        return sum(self._release_claims(table, which, except_for) for table in _OLD_CLAIMS)

    def _release_claims(self, table: sa.Table, which: _OldClaims, except_for: Collection[str]) -> int:
        with self.database.read() as connection:
            claims = _OLD_CLAIMS[table].all(connection, which)
        strays = [claim.lease_token for claim in claims if claim.lease_token not in except_for]
        if not strays:
            return 0
        is_stray = table.c.lease_token.in_(strays)
        return self.database.execute(
            sa.update(table).where(_is_old_claim(table), is_stray).values(lease_owner=_NOBODY), which
        )

    def retire(self, registration: Registration) -> None:
        """End the lease of a process that leaves; what it still holds may be taken at once. Idempotent."""
        self.database.execute(
            sa.update(workers)
            .where(workers.c.pk == registration.pk, workers.c.state == "alive")
            .values(state="stopped", expires_at=db_now())
        )

    def expire_leases(self, name: str) -> int:
        """End the leases of all live processes called ``name``; for a supervisor that saw its child die. Returns how
        many."""
        return self.database.execute(
            sa.update(workers).where(workers.c.name == name, workers.c.state == "alive").values(expires_at=db_now() - 1)
        )

    def mark_crashed(self, name: str) -> bool:
        """Record that the process called ``name`` was seen to end by itself, in the middle of its work; for the parent
        of a process that does one step at a time. Returns False when its lease was over before, for any reason."""
        ended = self.database.execute(
            sa.update(workers)
            .where(workers.c.name == name, workers.c.state == "alive")
            .values(state="crashed", expires_at=db_now() - 1)
        )
        return ended > 0

    def list_senders(self) -> list[frozenset[str]]:
        """List the names of the variables that each live process delivers with; none of a process that does not say."""
        is_alive = (workers.c.state == "alive") & (workers.c.expires_at > db_now())
        rows = self.database.select(sa.select(workers.c.sends_with).where(is_alive, workers.c.sends_with.is_not(None)))
        return [frozenset(names.split()) for (names,) in rows]

    def list_alive(self) -> list[dict[str, object]]:
        """List live processes, for people: name, queues, since when, and the version of the code."""
        rows = self.database.select(
            sa.select(
                workers.c.name,
                workers.c.queues,
                workers.c.started_at,
                workers.c.expires_at,
                workers.c.version,
            )
            .where(workers.c.state == "alive", workers.c.expires_at > db_now())
            .order_by(workers.c.pk)
        )
        return [dict(row) for row in rows.mappings()]
