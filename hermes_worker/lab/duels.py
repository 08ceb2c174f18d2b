"""Duels: two workers are brought to one row on purpose, and the one that lost it is let go at the worst moment.

Each duel is a run of its own, whose workers find its fault plan in their environment. In a held duel the first process
that passes the point freezes itself (SIGSTOP) and says so by the file that its fault plan names; a worker that takes
the row over stalls at the same point, and just then the frozen one is woken. In a doubled duel the first claim stalls
there and says so, and its message is sent again meanwhile. The messages of all other claims are doubled as well,
once each, and for rows that are due for another attempt the message of the attempt before is sent once more.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import cycle, islice
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.broker.queue import HintPublisher
from hermes_worker.core.effects import Iterate, RunTool, SendDelivery
from hermes_worker.lab.fleet import LabFleet, LabWorker
from hermes_worker.store.rows import Hint
from hermes_worker.store.tables import deliveries, runs, tool_calls
from hermes_worker.system.faults import FaultPoint

_STALL_S = 2.0
"""How long a writer waits at the point: long enough for the other to do what it was about to."""
_HELD_TTLS_MAX = 10.0
"""A frozen worker whom nobody relieves within so many leases is woken all the same."""


class DuelKind(StrEnum):
    """Which row two workers meet at."""

    HELD_DELIVERY = "held_delivery"
    """Frozen before it sends a delivery."""
    HELD_CALL = "held_call"
    """Frozen with the result of a ``keyed`` call."""
    HELD_MEMORY = "held_memory"
    """Frozen after it wrote to the agent's memory, with the result of the call."""
    HELD_BEGIN = "held_begin"
    """Frozen before a ``once`` call counts as begun."""
    HELD_ONCE = "held_once"
    """Frozen with the result of a ``once`` call."""
    HELD_REPLY = "held_reply"
    """Frozen with a reply of the model."""
    HELD_PROCESS = "held_process"
    """Frozen after it started a background process."""
    HELD_SENT = "held_sent"
    """Frozen after it sent a delivery."""
    DOUBLED_TURN = "doubled_turn"
    DOUBLED_CALL = "doubled_call"
    """Claimed a second time when a ``once`` call has acted and not settled."""
    DOUBLED_DELIVERY = "doubled_delivery"

    @property
    def is_held(self) -> bool:
        return self.value.startswith("held")

    @property
    def delivers(self) -> bool:
        return self in (DuelKind.HELD_DELIVERY, DuelKind.HELD_SENT, DuelKind.DOUBLED_DELIVERY)


_POINTS: Mapping[DuelKind, FaultPoint] = {
    DuelKind.HELD_DELIVERY: FaultPoint.DELIVER_AFTER_CLAIM,
    DuelKind.HELD_CALL: FaultPoint.CALL_TOOL_AFTER_RUN,
    DuelKind.HELD_MEMORY: FaultPoint.CALL_TOOL_AFTER_RUN,
    DuelKind.HELD_BEGIN: FaultPoint.CALL_TOOL_BEFORE_BEGIN,
    DuelKind.HELD_ONCE: FaultPoint.CALL_TOOL_AFTER_RUN,
    DuelKind.HELD_REPLY: FaultPoint.ITERATE_AFTER_REPLY,
    DuelKind.HELD_PROCESS: FaultPoint.CALL_TOOL_AFTER_RUN,
    DuelKind.HELD_SENT: FaultPoint.DELIVER_AFTER_SEND,
    DuelKind.DOUBLED_TURN: FaultPoint.ITERATE_AFTER_CLAIM,
    DuelKind.DOUBLED_CALL: FaultPoint.CALL_TOOL_AFTER_RUN,
    DuelKind.DOUBLED_DELIVERY: FaultPoint.DELIVER_AFTER_CLAIM,
}


def choose_duels(count: int, seed: int, kinds: Iterable[DuelKind] = ()) -> dict[str, DuelKind]:
    """Choose ``count`` duels, taking all kinds in turn, and one more for each entry of ``kinds``. Returns the kind of
    each duel by the id that its run will have."""
    chosen = [*islice(cycle(DuelKind), count), *kinds]
    return {f"run_d0e1{seed % 0xFFFF:04x}{number:024x}": kind for number, kind in enumerate(chosen)}


def write_duel_plan(duels: Mapping[str, DuelKind], directory: Path) -> str:
    """Write the fault plan that every worker of the fleet is armed with."""
    return ";".join(_plan_one(run_id, kind, directory) for run_id, kind in duels.items())


def _plan_one(run_id: str, kind: DuelKind, directory: Path) -> str:
    point = _POINTS[kind].value
    first, second = (directory / f"{run_id}.{which}" for which in ("first", "second"))
    if not kind.is_held:
        return f"{point}=stall:{_STALL_S}?{run_id}!{first}"
    return f"{point}=stop?{run_id}!{first};{point}=stall:{_STALL_S}?{run_id}!{second}"


@dataclass(slots=True)
class _FrozenWorker:
    """A worker that froze itself in a duel."""

    worker: LabWorker
    at: float


@dataclass(slots=True)
class DuelReferee:
    """Sees to the duels while the experiment runs: call ``tend`` at every look."""

    duels: Mapping[str, DuelKind]
    directory: Path
    fleet: LabFleet
    publisher: HintPublisher
    ttl_s: float
    fought: dict[str, int] = field(default_factory=dict)
    """Duels in which two workers met, by kind."""
    frozen_before_sending: set[str] = field(default_factory=set)
    """Runs whose delivery a worker was about to send when it froze, and lost before it woke."""
    _frozen: dict[str, _FrozenWorker] = field(default_factory=dict)
    _known: set[str] = field(default_factory=set)
    _doubled: set[str] = field(default_factory=set)

    @property
    def is_over(self) -> bool:
        """Whether no worker is frozen in a duel."""
        return not self._frozen

    def tend(self, connection: Connection) -> None:
        """Replace who froze itself, wake who is to be woken, and send messages a second time."""
        for run_id, kind in self.duels.items():
            if kind.is_held:
                self._tend_held(connection, run_id, kind)
        if self.duels:
            self._double_messages(connection)

    def _tend_held(self, connection: Connection, run_id: str, kind: DuelKind) -> None:
        if run_id not in self._known and (pid := _read_latch(self.directory / f"{run_id}.first")) is not None:
            self._known.add(run_id)
            worker = next((one for one in self.fleet.workers if one.pid == pid), None)
            if worker is None or worker.is_frozen:
                self.fleet.wake(pid)  # it was replaced meanwhile, or is frozen by the schedule, which wakes it
                return
            self.fleet.relieve(worker)
            self._frozen[run_id] = _FrozenWorker(worker, time.monotonic())
        frozen = self._frozen.get(run_id)
        if frozen is None:
            return
        has_met = (self.directory / f"{run_id}.second").exists()
        leases = (time.monotonic() - frozen.at) / self.ttl_s
        if has_met or leases > _HELD_TTLS_MAX or (leases > 1 and _is_settled(connection, run_id, kind)):
            del self._frozen[run_id]
            if kind is DuelKind.HELD_DELIVERY and _is_lost(connection, run_id):
                self.frozen_before_sending.add(run_id)
            self.fleet.thaw(frozen.worker)
            self._count(kind)

    def _double_messages(self, connection: Connection) -> None:
        again = []
        for row, hint in _list_claims(connection):
            run_id = hint.effect.run_id
            kind = self.duels.get(run_id)
            is_duel = kind is not None and not kind.is_held
            if row in self._doubled or (is_duel and not (self.directory / f"{run_id}.first").exists()):
                continue
            self._doubled.add(row)
            again += [hint, hint]
            if kind is not None and is_duel:
                self._count(kind)
        self.publisher.send(again)

    def _count(self, kind: DuelKind) -> None:
        self.fought[kind.value] = self.fought.get(kind.value, 0) + 1


def _read_latch(path: Path) -> int | None:
    with suppress(OSError, ValueError):
        return int(path.read_text(encoding="utf-8"))
    return None


def _is_lost(connection: Connection, run_id: str) -> bool:
    """Whether a delivery of the run was taken away from its worker. One that was not is given back, and then its
    attempt does not count."""
    its = sa.select(deliveries.c.pk).join(runs, runs.c.pk == deliveries.c.run_pk).where(runs.c.run_id == run_id)
    return connection.execute(its.where(deliveries.c.losses > 0)).first() is not None


def _is_settled(connection: Connection, run_id: str, kind: DuelKind) -> bool:
    """Whether the run has ended or, in a duel over deliveries, all its deliveries are settled: no worker claims it
    again."""
    if kind.delivers:
        its = sa.select(deliveries.c.pk).join(runs, runs.c.pk == deliveries.c.run_pk).where(runs.c.run_id == run_id)
        return connection.execute(its.where(deliveries.c.settled_at.is_(None))).first() is None
    ended = sa.select(runs.c.pk).where(runs.c.run_id == run_id, runs.c.exit_reason.is_not(None))
    return connection.execute(ended).first() is not None


def _list_claims(connection: Connection) -> Iterable[tuple[str, Hint]]:
    """List what is claimed at the moment, each with the message of its claim; and what is due again, each with the
    message of the attempt before. The names are the same however often a row is claimed for one attempt, and for a
    delivery ever: a guard that is gone must not feed itself."""
    at = time.time()
    turns = sa.select(runs.c.run_id, runs.c.iteration, runs.c.attempt, runs.c.lease_token)
    for row in connection.execute(turns.where(runs.c.lease_token.is_not(None))):
        turn = Iterate(run_id=row.run_id, iteration=row.iteration + 1, attempt=row.attempt)
        yield f"{turn}", Hint(effect=turn, at=at)
    calls = sa.select(
        runs.c.run_id,
        tool_calls.c.iteration,
        tool_calls.c.position,
        tool_calls.c.attempt,
        tool_calls.c.lease_token,
    ).join(runs, runs.c.pk == tool_calls.c.run_pk)
    is_due_again = tool_calls.c.hinted_at.is_not(None) & (tool_calls.c.attempt > 1)
    for call in connection.execute(calls.where(sa.or_(tool_calls.c.lease_token.is_not(None), is_due_again))):
        attempt = call.attempt if call.lease_token else call.attempt - 1
        effect = RunTool(run_id=call.run_id, iteration=call.iteration, position=call.position, attempt=attempt)
        yield f"{effect} {call.lease_token is None}", Hint(effect=effect, at=at)
    sent = sa.select(deliveries.c.delivery_id, deliveries.c.attempts, deliveries.c.lease_token, runs.c.run_id)
    sent = sent.outerjoin(runs, runs.c.pk == deliveries.c.run_pk).where(deliveries.c.lease_token.is_not(None))
    for held in connection.execute(sent):
        owner = held.run_id or held.delivery_id
        send = SendDelivery(run_id=owner, delivery_id=held.delivery_id, attempt=held.attempts)
        yield held.delivery_id, Hint(effect=send, at=at)
