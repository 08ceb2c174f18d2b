"""A database in which much has happened, at random, and what must hold of it whatever is deleted from it."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import sqlalchemy as sa

from hermes_worker.core.effects import Iterate, RunTool
from hermes_worker.core.messages import ModelReply, Usage
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import RunStatus
from hermes_worker.features.retention.hold_rows import LegalHold, Retention
from hermes_worker.store.engine.database import db_now
from hermes_worker.store.tables import (
    blobs,
    deliveries,
    events,
    firings,
    idempotency_keys,
    jobs,
    legal_holds,
    messages,
    runs,
    sessions,
    tenants,
    tool_calls,
    tree_events,
)
from hermes_worker.store.whole_schema import load_schema
from support.store import Store, asks, due_of

TENANTS = ("default", "acme")
_LONG = "long " * 20_000
_POINTERS: Sequence[tuple[sa.Column[Any], sa.Column[Any]]] = (
    (runs.c.parent_pk, runs.c.pk),
    (runs.c.cause_pk, runs.c.pk),
    (runs.c.root_pk, runs.c.pk),
    (sessions.c.active_run_pk, runs.c.pk),
    (idempotency_keys.c.run_pk, runs.c.pk),
    (firings.c.run_pk, runs.c.pk),
    (tree_events.c.run_pk, runs.c.pk),
    (messages.c.blob_hash, blobs.c.hash),
    (sessions.c.tools_hash, blobs.c.hash),
)
"""What refers to a row without a foreign key."""


class History:
    """Runs of all kinds, made step by step; time passes between them."""

    def __init__(self, store: Store, random: Random) -> None:
        self.store = store
        self._random = random
        self._job_pks: list[int] = []
        with store.database.write() as connection:
            connection.execute(sa.insert(tenants).values(name="acme", created_at=db_now()))

    def play(self, count: int) -> None:
        """So many runs, over about a hundred days."""
        for number in range(count):
            run_id = self._submit(number)
            self._work(run_id)
            if self._random.random() < 0.4:
                self._fire(run_id)
            if self._random.random() < 0.5:
                self._settle_deliveries()
            self.store.let_pass(self._random.choice((60.0, 7_200.0, 5 * 86_400.0, 20 * 86_400.0)))

    def _submit(self, number: int) -> str:
        draw = self._random
        more: dict[str, Any] = {"session_id": f"chat{draw.randrange(3)}"} if draw.random() < 0.4 else {}
        more["tools"] = draw.choice(("[]", f"[{number}]"))
        if draw.random() < 0.3:
            more |= {"idempotency_key": f"k{number}", "fingerprint": "f"}
        if draw.random() < 0.3:
            more["tokens_max"] = 1_000_000
        said = draw.choice(("hello", f"{_LONG}{draw.randrange(3)}"))
        return self.store.submit(tenant=draw.choice(TENANTS), input=said, deliver=["local"], **more).run_id

    def _work(self, run_id: str) -> None:
        """To its end, or until something is left open."""
        if not any(isinstance(effect, Iterate) for effect in self.store.due(run_id)):
            return  # behind another run of its session
        kind = self._random.choice(("answers", "calls", "open", "delegates", "background", "stops"))
        if kind in ("calls", "open", "delegates", "background"):
            self.store.ask_tools(run_id, asks(Replay.PURE))
        match kind:
            case "calls":
                self.store.settle(run_id, text=self._random.choice(("ok", _LONG)))
            case "delegates" | "background":
                note = "in the background" if kind == "background" else None
                for child in self.store.delegate(run_id, self._random.randint(1, 3), note=note):
                    if self._random.random() < 0.9:
                        self.store.answer(child)
            case "stops":
                self.store.runs.stop_tree(run_id)
        self._random.choice((self._finish, self._finish, lambda _: None))(run_id)

    def _finish(self, run_id: str) -> None:
        if any(isinstance(effect, Iterate) for effect in self.store.due(run_id)):
            self.store.answer(run_id)

    def _fire(self, run_id: str) -> None:
        """As if a job had started the run."""
        with self.store.database.write() as connection:
            row = connection.execute(sa.select(runs).where(runs.c.run_id == run_id)).one()
            if not self._job_pks or self._random.random() < 0.2:
                values = {"name": "j", "definition": "{}", "state": "paused", "created_at": 1.0, "updated_at": 1.0}
                new = sa.insert(jobs).values(job_id=f"{len(self._job_pks):012x}", tenant="default", **values)
                self._job_pks.append(connection.execute(new.returning(jobs.c.pk)).scalar_one())
            fired = {"outcome": "fired", "reason": "on time", "run_pk": row.pk, "settled_at": db_now()}
            ended = None if row.exit_reason is None else db_now()
            connection.execute(
                sa.insert(firings).values(
                    job_pk=self._random.choice(self._job_pks), slot=db_now(), ended_at=ended, **fired
                )
            )

    def _settle_deliveries(self) -> None:
        arrived = sa.update(deliveries).where(deliveries.c.settled_at.is_(None), deliveries.c.state == "pending")
        with self.store.database.write() as connection:
            connection.execute(arrived.values(state="delivered", hinted_at=None, not_before=None, settled_at=db_now()))


def dangling(store: Store) -> list[str]:
    """Every row that names another which is not there."""
    pointers = [*_POINTERS]
    for table in load_schema().tables.values():
        pointers += [(key.parent, key.column) for key in table.foreign_keys]
    found = []
    with store.database.read() as connection:
        for column, target in pointers:
            there = target.table.alias("there")
            lost = sa.select(column).where(
                column.is_not(None), sa.not_(sa.exists().where(there.c[target.name] == column))
            )
            found += [f"{column} = {value}" for value in connection.execute(lost).scalars()]
    return found


def ends_of_streams(store: Store) -> list[str]:
    """What is wrong with the streams that are left: one that is going on has gaps, or one that is over has no end."""
    wrong = []
    with store.database.read() as connection:
        known = connection.execute(sa.select(runs.c.run_id, runs.c.status, runs.c.event_seq)).all()
    for run in known:
        seqs = [event.seq for event in store.views.list_events_after(run.run_id, 0)]
        is_over = RunStatus(run.status).is_terminal
        names = {event.name for event in store.views.list_events_after(run.run_id, 0)}
        if is_over and not names & {"run.completed", "run.failed", "run.cancelled"}:
            wrong.append(f"{run.run_id} has no end")
        if not is_over and seqs != list(range(1, run.event_seq + 1)):
            wrong.append(f"{run.run_id} has gaps")
        store.views.load_run(run.run_id)
    return wrong


def go_on(store: Store) -> None:
    """Finish every open run, joins included, and take another turn in every session."""
    for _ in range(200):
        with store.database.read() as connection:
            rows = connection.execute(sa.select(runs).where(runs.c.exit_reason.is_(None))).all()
        effects = [effect for row in rows for effect in _due(store, row)]
        if not effects:
            break
        for effect in effects:
            if isinstance(effect, Iterate):
                store.runs.commit_reply(store.turn(effect.run_id), ModelReply(text="done", usage=Usage()), ())
            elif isinstance(effect, RunTool):
                store.settle(effect.run_id, effect.position)
            break  # what was due may have changed by this
    with store.database.read() as connection:
        assert connection.execute(sa.select(runs.c.run_id).where(runs.c.exit_reason.is_(None))).all() == []
        every = connection.execute(sa.select(sessions)).all()
    for session in every:
        assert len(store.transcripts.load(session.pk, session.message_seq)) == session.message_seq
        store.runs.load_session_context(session.pk)
        run_id = store.submit(session_id=session.session_id, tenant=session.tenant).run_id
        store.answer(run_id)
        assert store.status(run_id) is RunStatus.COMPLETED


def _due(store: Store, row: Any) -> list[Any]:
    with store.database.read() as connection:
        calls = sa.select(tool_calls).where(tool_calls.c.run_pk == row.pk, tool_calls.c.hinted_at.is_not(None))
        return due_of(row, connection.execute(calls).all())


def hold_some(store: Store, retention: Retention, random: Random) -> list[LegalHold]:
    """A legal hold on a run, and one on a session."""
    with store.database.read() as connection:
        run = random.choice(connection.execute(sa.select(runs.c.run_id, runs.c.tenant).order_by(runs.c.pk)).all())
        session = random.choice(
            connection.execute(sa.select(sessions.c.session_id, sessions.c.tenant).order_by(sessions.c.pk)).all()
        )
    return [
        retention.place_hold(run.tenant, run_id=run.run_id, reason="a court", by="test"),
        retention.place_hold(session.tenant, session_id=session.session_id, reason="a court", by="test"),
    ]


def held_rows(store: Store) -> dict[str, list[Any]]:
    """Every row that a legal hold keeps: chains, their events and messages, by their tables."""
    root = sa.func.coalesce(runs.c.root_pk, runs.c.pk)
    with store.database.read() as connection:
        holds = connection.execute(sa.select(legal_holds)).all()
        held_sessions = {hold.session_pk for hold in holds if hold.session_pk is not None}
        within = sa.select(root).where(runs.c.session_pk.in_(held_sessions))
        roots = {hold.root_pk for hold in holds if hold.root_pk is not None} | set(connection.execute(within).scalars())
        members = connection.execute(sa.select(runs.c.pk, runs.c.session_pk).where(root.in_(roots))).all()
        pks = [row.pk for row in members]
        everywhere = held_sessions | {row.session_pk for row in members}
        wanted = {
            "runs": sa.select(runs.c.run_id).where(runs.c.pk.in_(pks)),
            "events": sa.select(events.c.run_pk, events.c.seq).where(events.c.run_pk.in_(pks)),
            "deliveries": sa.select(deliveries.c.pk).where(deliveries.c.run_pk.in_(pks)),
            "firings": sa.select(firings.c.pk).where(firings.c.run_pk.in_(pks)),
            "messages": sa.select(messages.c.session_pk, messages.c.seq).where(messages.c.session_pk.in_(everywhere)),
        }
        return {name: sorted(map(tuple, connection.execute(query).all())) for name, query in wanted.items()}
