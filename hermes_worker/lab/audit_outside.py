"""What left the fleet or came into it, against the rows: deliveries, answers, slots, messages, processes, memories."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.run_events import RunEventName
from hermes_worker.lab.findings import AuditFinding, BrokenInvariant
from hermes_worker.lab.people import CHAT, CRON
from hermes_worker.store.tables import (
    deliveries,
    events,
    firings,
    inbound,
    memory_versions,
    processes,
    runs,
    sessions,
    tool_calls,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideFacts:
    """What the world outside saw of the experiment."""

    taken: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The bodies that the sink of deliveries took, by idempotency key."""
    frozen_before_sending: Collection[str] = ()
    """Runs of which a worker froze before it sent their delivery, and lost it meanwhile."""
    process_marks: Path | None = None
    """The file into which background processes wrote."""
    wrong_answers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Answers that people should not have got, by invariant."""


def check_outside(connection: Connection, facts: OutsideFacts) -> list[AuditFinding]:
    """Check what crosses the border of the fleet."""
    return [
        *_check_deliveries(connection, facts),
        _find_answered_twice(connection),
        _find_slots_off(connection),
        _find_messages_off(connection),
        _find_processes_off(connection, facts.process_marks),
        _find_memories_off(connection),
        *(
            AuditFinding(
                invariant=name, broken=len(facts.wrong_answers.get(name, ())), examples=_list_first(facts, name)
            )
            for name in (
                "requests taken twice",
                "answers that met no question",
                "messages taken by a gateway that lost its account",
            )
        ),
    ]


def _list_first(facts: OutsideFacts, name: str) -> tuple[str, ...]:
    return tuple(facts.wrong_answers.get(name, ())[:5])


def _check_deliveries(connection: Connection, facts: OutsideFacts) -> list[AuditFinding]:
    """A delivery that is said to have arrived did, under one key and with one text; and it was sent as often as an
    attempt was made that could send. Where no attempt was lost or failed, that is once, however many were begun."""
    lost, repeated = BrokenInvariant(), BrokenInvariant()
    sent = sa.case((deliveries.c.error_kind.is_(None), 1), else_=deliveries.c.attempts)
    wanted = sa.select(deliveries.c.delivery_id, deliveries.c.state, sent.label("sent"), runs.c.run_id)
    known = set()
    for row in connection.execute(wanted.join(runs, runs.c.pk == deliveries.c.run_pk)):
        key = f"{row.delivery_id}:0"
        known.add(key)
        taken = facts.taken.get(key, ())
        sent_max = row.sent - int(row.run_id in facts.frozen_before_sending)
        if row.state in ("failed", "abandoned") or (row.state == "delivered" and not taken):
            lost.add(f"{row.delivery_id} is {row.state}, and was taken {len(taken)} times")
        if len(taken) > sent_max or len(set(taken)) > 1:
            repeated.add(f"{row.delivery_id} was taken {len(taken)} times in {sent_max} attempts that could send")
    for key in facts.taken.keys() - known:
        repeated.add(f"something was taken under the key {key!r}, which belongs to no delivery")
    return [lost.make_finding("deliveries lost"), repeated.make_finding("deliveries repeated")]


def _find_answered_twice(connection: Connection) -> AuditFinding:
    broken = BrokenInvariant()
    answered: Counter[int] = Counter()
    told = events.c.event == RunEventName.APPROVAL_ANSWERED.value
    for row in connection.execute(sa.select(events.c.data).where(told)):
        answered[json.loads(row.data)["wait_id"]] += 1
    for wait_id, count in answered.items():
        if count > 1:
            broken.add(f"question {wait_id} was answered {count} times")
    return broken.make_finding("questions answered twice")


def _find_slots_off(connection: Connection) -> AuditFinding:
    """Each slot is one row and at most one run, and no run of a job is without its slot."""
    broken = BrokenInvariant()
    without = ~sa.exists().where(firings.c.run_pk == runs.c.pk)
    for row in connection.execute(sa.select(runs.c.run_id).where(runs.c.origin == CRON, without)):
        broken.add(f"{row.run_id} began for a slot that has another run")
    return broken.make_finding("slots that began twice")


def _find_messages_off(connection: Connection) -> AuditFinding:
    """Each message that was taken began one run, and each run of a chat belongs to one message."""
    broken = BrokenInvariant()
    begun = {row.run_id for row in connection.execute(sa.select(inbound.c.run_id))}
    began = sa.select(runs.c.run_id).join(sessions, sessions.c.pk == runs.c.session_pk).where(sessions.c.source == CHAT)
    for run_id in {row.run_id for row in connection.execute(began)} ^ begun:
        broken.add(f"{run_id} is the run of a message or stands with one, and not both")
    return broken.make_finding("messages taken twice or lost")


def _find_processes_off(connection: Connection, marks: Path | None) -> AuditFinding:
    """A background process has one row and ran once; at rest none is said to run."""
    broken = BrokenInvariant()
    ran = Counter(marks.read_text(encoding="utf-8").split()) if marks is not None and marks.exists() else Counter()
    for mark, count in ran.items():
        if count > 1:
            broken.add(f"{mark} ran {count} times")
    rows = connection.execute(sa.select(processes.c.command, processes.c.process_id, processes.c.ended_at)).all()
    for row in rows:
        if row.ended_at is None:
            broken.add(f"{row.process_id} is said to run")
    if len(rows) < len(ran):
        broken.add(f"{len(ran)} processes ran, and {len(rows)} have a row")
    return broken.make_finding("background processes repeated or forgotten")


def _find_memories_off(connection: Connection) -> AuditFinding:
    """A call that wrote to the memory wrote once, and says so."""
    broken = BrokenInvariant()
    written = Counter(connection.execute(sa.select(memory_versions.c.call_key)).scalars())
    wanted = sa.select(runs.c.run_id, tool_calls.c.iteration, tool_calls.c.position, tool_calls.c.status)
    calls = wanted.join(runs, runs.c.pk == tool_calls.c.run_pk).where(tool_calls.c.name == "memory")
    for row in connection.execute(calls):
        key = f"{row.run_id}.{row.iteration}.{row.position}"
        is_told = row.status not in ("succeeded", "failed") or (row.status == "succeeded") == (written[key] == 1)
        if written[key] > 1 or not is_told:
            broken.add(f"{key} {row.status} and wrote {written[key]} times")
    return broken.make_finding("memories written twice or not at all")
