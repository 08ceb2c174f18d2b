"""Worker processes and the term of their leases.

A process that claims work owns one row here, and every claim names that row. The claim is live while the row's
``expires_at`` lies ahead by the database's clock. So one heartbeat, one statement on one row, renews everything a
process holds, whether that is one call or a thousand; and when the row lapses, everything it held lapses with it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypedDict

import sqlalchemy as sa

from hermes_worker.core.errors import HermesError
from hermes_worker.store.access.audit import Act, record
from hermes_worker.store.engine.database import Database, db_now
from hermes_worker.store.engine.prepared import Prepared
from hermes_worker.store.revisions import code_version
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
"""The number of no worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """A process's place among the workers. A process whose term lapsed registers anew and gets another one."""

    pk: int
    worker_id: str


class Renewed(NamedTuple):
    """A term that was extended."""

    draining_at: float | None
    """When the process began to drain, or was asked to; ``None`` while it takes work."""
    now: float
    """The database's time."""


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
    gives=Renewed,
)


def _old(table: sa.Table) -> sa.ColumnElement[bool]:
    """The claims of a worker that are older than a number of seconds."""
    age_s: sa.ColumnElement[float] = sa.bindparam("older_than_s", type_=sa.Double())
    return (table.c.lease_owner == sa.bindparam("worker")) & (table.c.claimed_at < db_now() - age_s)


_OLD_CLAIMS = {
    table: Prepared(sa.select(table.c.lease_token).where(_old(table)), takes=_OldClaims, gives=LeaseTokenRow)
    for table in (runs, tool_calls, deliveries, firings, artifact_gatherings, inbound_files)
}


class Workers:
    """The worker processes known to one database. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def register(self, *, name: str, queues: str, ttl_s: float, slots: int | None = None) -> Registration:
        """Enter a process; its leases run for ``ttl_s`` seconds from now. ``slots`` is how many model calls it makes at
        once, if it makes any."""
        worker_id = uuid.uuid4().hex
        with self._database.write() as connection:
            pk = connection.execute(
                sa.insert(workers)
                .values(
                    worker_id=worker_id,
                    name=name,
                    queues=queues,
                    state="alive",
                    started_at=db_now(),
                    expires_at=db_now() + ttl_s,
                    version=code_version(),
                    slots=slots,
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
    ) -> Renewed | None:
        """Extend the term. ``None`` when it lapsed and was taken away: everything held under it is lost.

        ``watermarks`` says for each queue the newest ``hinted_at`` among the messages this process has started;
        ``sandbox`` is the rung of its commands, ``None`` while nobody has tried.
        """
        renewal: _Renewal = {
            "worker": registration.pk,
            "ttl_s": ttl_s,
            "marks": json.dumps(dict(watermarks)),
            "is_draining": int(is_draining),
            "sandbox": sandbox,
        }
        with self._database.statement() as connection:
            return _RENEW.first(connection, renewal)

    def drain(self, worker_id: str) -> None:
        """Ask a process to leave in order; it hears of it with its next heartbeat. Idempotent. Raises
        ``WorkerNotFound``."""
        with self._database.write() as connection:
            name = connection.execute(
                sa.update(workers)
                .where(workers.c.worker_id == worker_id, workers.c.state == "alive")
                .values(draining_at=sa.func.coalesce(workers.c.draining_at, db_now()))
                .returning(workers.c.name)
            ).scalar()
            if name is None:
                raise WorkerNotFound(f"no worker {worker_id!r} is alive")
            record(connection, Act.WORKER_DRAIN, worker_id, after={"name": str(name)})

    def give_up(self, registration: Registration, *, except_for: Collection[str], older_than_s: float) -> int:
        """Let go of the claims of this process that are older than ``older_than_s`` and none of ``except_for``.

        The sweeper then finds them without an owner and treats them as lost. Returns how many there were.
        """
        which: _OldClaims = {"worker": registration.pk, "older_than_s": older_than_s}
        return sum(self._give_up(table, which, except_for) for table in _OLD_CLAIMS)

    def _give_up(self, table: sa.Table, which: _OldClaims, except_for: Collection[str]) -> int:
        with self._database.read() as connection:
            claims = _OLD_CLAIMS[table].all(connection, which)
        strays = [claim.lease_token for claim in claims if claim.lease_token not in except_for]
        if not strays:
            return 0
        is_stray = table.c.lease_token.in_(strays)
        with self._database.statement() as connection:
            given = connection.execute(sa.update(table).where(_old(table), is_stray).values(lease_owner=_NOBODY), which)
            return given.rowcount

    def retire(self, registration: Registration) -> None:
        """The process is leaving; whatever it still holds may be taken at once. Idempotent."""
        with self._database.statement() as connection:
            connection.execute(
                sa.update(workers)
                .where(workers.c.pk == registration.pk, workers.c.state == "alive")
                .values(state="stopped", expires_at=db_now())
            )

    def expire_named(self, name: str) -> int:
        """End the terms of all live processes called ``name``; for a supervisor that saw its child die."""
        with self._database.statement() as connection:
            ended = connection.execute(
                sa.update(workers)
                .where(workers.c.name == name, workers.c.state == "alive")
                .values(expires_at=db_now() - 1)
            )
            return ended.rowcount

    def crashed(self, name: str) -> bool:
        """Say that the process called ``name`` was seen to end by itself, in the middle of whatever it held; for the
        parent of a process that does one step at a time. False when its term was over before, for whatever reason."""
        with self._database.statement() as connection:
            ended = connection.execute(
                sa.update(workers)
                .where(workers.c.name == name, workers.c.state == "alive")
                .values(state="crashed", expires_at=db_now() - 1)
            )
            return ended.rowcount > 0

    def alive(self) -> list[dict[str, object]]:
        """Live processes, for people: name, queues, since when, and the version of the code."""
        with self._database.read() as connection:
            rows = connection.execute(
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
