"""Reviews as rows: since when nothing of a conversation was kept, and the run that looks back at it.

A review is a run in a session of its own, which another run caused (``runs.cause_pk``), so it is stopped, paused,
deleted and billed with its chain. Its id follows from that of the run which it comes after, so two processes that begin
the same review make one. No process remembers that a review is due: the end of each run counts in the rows, and a
review that was not begun, because a worker died, is begun after the next run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.compactions import is_compaction
from hermes_worker.core.fair_share import FleetPlace
from hermes_worker.core.messages import Message, Role
from hermes_worker.core.priority import Priority
from hermes_worker.core.run import STATE_VERSION, Halt, RunStatus
from hermes_worker.core.spec import RunSpec
from hermes_worker.features.memory.review_rules import KEEPING, ReviewTopic, SinceKept
from hermes_worker.store.engine.database import RowStore, db_now
from hermes_worker.store.engine.prepared import fetch_one, fetch_row, fetch_rows
from hermes_worker.store.rows import OWN_BUDGET, Hint, build_insert_ignoring, make_storable, store_blob
from hermes_worker.store.runs import continuations as background
from hermes_worker.store.runs.budgets import create_budgets
from hermes_worker.store.runs.inputs import insert_specs
from hermes_worker.store.runs.step_writer import begin_run
from hermes_worker.store.search.index_queue import BODY, STORED
from hermes_worker.store.tables import messages, run_tags, runs, sessions, tool_calls

_ROWS_MAX = 400
"""The most rows of a transcript that one review reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewReview:
    """A review that is to begin."""

    spec: RunSpec
    """The submission of the review, with its limits and its tags."""
    system_prompt: str
    tools: str
    """Tool definitions, as a JSON array."""


class _FollowedRun(NamedTuple):
    run_id: str
    session_pk: int
    root_pk: int | None
    tenant: str
    principal: str | None
    endpoint: str | None
    origin: str | None
    network: str | None
    overrides: str | None
    attempts_max: int
    place_rank: int | None
    halt: str | None
    workspace: str
    erasure_pk: int | None


class _CountedRuns(NamedTuple):
    turns: int
    iterations: int


class _RecordRow(NamedTuple):
    seq: int
    role: str
    body: str


_FOLLOWED = (
    sa.select(
        *(runs.c[name] for name in _FollowedRun._fields[:-2]),
        sessions.c.workspace,
        sessions.c.erasure_pk,
    )
    .join(sessions, sessions.c.pk == runs.c.session_pk)
    .where(runs.c.pk == sa.bindparam("run"))
)


def derive_review_id(run_id: str) -> str:
    """Derive the id of the review that comes after a run."""
    return f"run_{hashlib.sha256(f'review:{run_id}'.encode()).hexdigest()[:32]}"


class Reviews(RowStore):
    """The reviews in one database. Thread-safe; every method raises ``UnavailableError``."""

    def count_since_kept(self, session_pk: int, topic: ReviewTopic) -> SinceKept:
        """Count what happened in a session since something of ``topic`` was kept, or since it was reviewed for that."""
        with self.database.read() as connection:
            last = max(
                _find_last_reviewed(connection, session_pk, topic), _find_last_kept(connection, session_pk, topic)
            )
            later = sa.and_(runs.c.session_pk == session_pk, runs.c.pk > last)
            asked_for = sa.case((runs.c.cause_pk.is_(None), 1))
            iterations = sa.func.coalesce(sa.func.sum(runs.c.iteration), 0)
            counted = sa.select(sa.func.count(asked_for).label("turns"), iterations.label("iterations")).where(later)
            row = fetch_one(connection.execute(counted), _CountedRuns)
        return SinceKept(run_pk=last, turns=row.turns, iterations=int(row.iterations))

    def list_messages(self, session_pk: int, after_run: int) -> Sequence[Message]:
        """List what was said in the runs of a session after the row id ``after_run``, in order; at most the newest
        ``_ROWS_MAX`` rows."""
        wanted = (
            sa.select(messages.c.seq, messages.c.role, BODY)
            .select_from(STORED)
            .where(messages.c.session_pk == session_pk, messages.c.run_pk > after_run)
            .order_by(messages.c.seq.desc())
            .limit(_ROWS_MAX)
        )
        rows = fetch_rows(self.database.select(wanted), _RecordRow)
        found = [Message(seq=row.seq, role=Role(row.role), body=row.body) for row in reversed(rows)]
        return [message for message in found if not is_compaction(message)]

    def begin(self, run_pk: int, new: NewReview) -> list[Hint]:
        """Insert the review after a run, and begin it. Returns the hints to send. Does nothing when it was made before,
        or when the run was stopped, paused, deleted or is being erased meanwhile. Idempotent."""
        with self.database.write() as connection:
            if connection.execute(sa.select(runs.c.pk).where(runs.c.pk == run_pk)).first() is None:
                return []
            root_pk = background.lock_chain(connection, run_pk)
            followed = fetch_row(connection.execute(_FOLLOWED, {"run": run_pk}), _FollowedRun)
            halts = connection.execute(sa.select(runs.c.halt).where(runs.c.pk.in_((root_pk, run_pk)))).scalars()
            if followed is None or followed.erasure_pk is not None or any(Halt(halt) for halt in halts if halt):
                return []
            return _insert_review(connection, run_pk, followed, new)


def _find_last_reviewed(connection: Connection, session_pk: int, topic: ReviewTopic) -> int:
    review, followed = runs.alias("review"), runs.alias("followed")
    last = (
        sa.select(sa.func.max(followed.c.pk))
        .select_from(
            followed.join(review, review.c.cause_pk == followed.c.pk).join(
                run_tags, sa.and_(run_tags.c.run_pk == review.c.pk, run_tags.c.tag == topic.tag)
            )
        )
        .where(followed.c.session_pk == session_pk, review.c.session_pk != session_pk)
    )
    return int(connection.execute(last).scalar() or 0)


def _find_last_kept(connection: Connection, session_pk: int, topic: ReviewTopic) -> int:
    of_session = runs.join(tool_calls, tool_calls.c.run_pk == runs.c.pk)
    last = (
        sa.select(sa.func.max(runs.c.pk))
        .select_from(of_session)
        .where(runs.c.session_pk == session_pk, tool_calls.c.name == KEEPING[topic])
    )
    return int(connection.execute(last).scalar() or 0)


def _insert_review(connection: Connection, run_pk: int, followed: _FollowedRun, new: NewReview) -> list[Hint]:
    run_id = derive_review_id(followed.run_id)
    opened = build_insert_ignoring(connection, sessions).values(
        session_id=run_id,
        tenant=followed.tenant,
        system_prompt=make_storable(new.system_prompt),
        tools_hash=store_blob(connection, new.tools),
        workspace=followed.workspace,
        created_at=db_now(),
    )
    session_pk = connection.execute(opened.returning(sessions.c.pk)).scalar()
    if session_pk is None:
        return []
    place = None if followed.place_rank is None else FleetPlace.WAITS.value
    inserted = (
        sa.insert(runs)
        .values(
            run_id=run_id,
            session_pk=session_pk,
            tenant=followed.tenant,
            principal=followed.principal,
            model=new.spec.model,
            endpoint=followed.endpoint,
            origin=followed.origin,
            network=followed.network,
            overrides=followed.overrides,
            status=RunStatus.QUEUED.value,
            cause_pk=run_pk,
            root_pk=followed.root_pk or run_pk,
            has_budget=OWN_BUDGET,
            state_version=STATE_VERSION,
            iterations_max=new.spec.iterations_max,
            attempts_max=followed.attempts_max,
            deadline_at=db_now() + new.spec.wall_s_max,
            priority=Priority.LOW.value,
            place=place,
            place_rank=followed.place_rank,
            created_at=db_now(),
            updated_at=db_now(),
        )
        .returning(runs.c.pk)
    )
    review_pk = int(connection.execute(inserted).scalar_one())
    insert_specs(connection, [(review_pk, new.spec)])
    tags = [{"run_pk": review_pk, "tag": tag, "tenant": followed.tenant} for tag in new.spec.tags]
    connection.execute(sa.insert(run_tags), tags)
    create_budgets(connection, [(review_pk, new.spec)])
    return begin_run(connection, int(session_pk), review_pk, run_id, 0, place)
