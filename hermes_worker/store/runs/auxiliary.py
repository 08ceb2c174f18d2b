"""Auxiliary calls: the questions that tool calls ask of models, as rows, and the claims on them.

A worker that runs a tool holds no model's key. Its tool call leaves questions here and gives up its claim; a worker for
models claims the *tool call*, asks, and writes the answer with its price; the last answer makes the tool due again. So
an auxiliary call is a step like a model call: the same claim, the same sweeper, the same suspects, and one token that
is taken away once.

*Order of locks*: the calls of the iteration, the run, the questions. The claim on the call protects its questions.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypedDict

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core import events as ev
from hermes_worker.core.auxiliary import (
    TIMEOUT_S_MAX,
    AnsweredConsultation,
    AuxiliaryAnswer,
    AuxiliaryQuestion,
    AuxTask,
    Consultation,
)
from hermes_worker.core.budget import Dimension
from hermes_worker.core.effects import AskAuxiliary
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.core.pricing import NOTHING_SPENT, Spent
from hermes_worker.core.step import apply_event
from hermes_worker.store.engine.database import RowStore, db_now
from hermes_worker.store.engine.prepared import Prepared
from hermes_worker.store.row_keys import CallKey
from hermes_worker.store.rows import Hint, RunRecord, load_record, make_storable
from hermes_worker.store.runs.budgets import find_auxiliary_refusal
from hermes_worker.store.runs.call_claims import (
    ClaimValues,
    build_claim_statement,
    build_claim_values,
    lock_claimed_run,
)
from hermes_worker.store.runs.calls import CallClaim
from hermes_worker.store.runs.step_plan import StepOutput
from hermes_worker.store.runs.step_writer import save_step
from hermes_worker.store.tables import auxiliary_calls, tool_calls


@dataclass(frozen=True, slots=True, kw_only=True)
class AuxiliaryClaim:
    """The right to ask one question of a tool call."""

    token: str
    run_pk: int
    run_id: str
    iteration: int
    position: int
    attempt: int
    number: int
    """The number of the question among those of its call."""
    question: AuxiliaryQuestion
    refused_by: Dimension | None
    """The dimension of the chain's budget that is used up, so that the model must not be asked; else ``None``."""
    loaded: RunRecord
    """The run as it was at the claim."""

    @property
    def key(self) -> str:
        """An idempotency key: equal for every attempt at this question, and different for every other question."""
        return f"{self.run_id}.{self.iteration}.{self.position}:{self.number}"


class _Claimed(NamedTuple):
    run_pk: int


class _Question(NamedTuple):
    number: int
    task: str
    request: str


class _AskedRow(NamedTuple):
    task: str
    material: str | None
    """The material of the first question of a group that was asked together; ``None`` in the others."""
    answer: str | None
    failure_kind: str | None
    asked_at: float


class _Count(NamedTuple):
    asked: int


class _Outcome(TypedDict):
    text: str | None
    failure: str | None


class _Answered(CallKey, _Outcome):
    question: int


_CLAIM = Prepared(
    build_claim_statement(AskAuxiliary, tool_calls.c.run_pk, lasts_s=TIMEOUT_S_MAX), takes=ClaimValues, gives=_Claimed
)
"""The claim lasts for as long as any model may take."""

_of_call = (
    auxiliary_calls.c.run_pk == sa.bindparam("run"),
    auxiliary_calls.c.iteration == sa.bindparam("iter"),
    auxiliary_calls.c.position == sa.bindparam("pos"),
)
_NEXT = Prepared(
    sa.select(auxiliary_calls.c.number, auxiliary_calls.c.task, auxiliary_calls.c.request)
    .where(*_of_call, auxiliary_calls.c.answered_at.is_(None))
    .order_by(auxiliary_calls.c.number)
    .limit(1),
    takes=CallKey,
    gives=_Question,
)
_ALL = Prepared(
    sa.select(*(auxiliary_calls.c[name] for name in _AskedRow._fields))
    .where(*_of_call)
    .order_by(auxiliary_calls.c.number),
    takes=CallKey,
    gives=_AskedRow,
)
_COUNT = Prepared(
    sa.select(sa.func.count().label("asked")).select_from(auxiliary_calls).where(*_of_call), takes=CallKey, gives=_Count
)
_ANSWER = Prepared(
    sa.update(auxiliary_calls)
    .where(*_of_call, auxiliary_calls.c.number == sa.bindparam("question"), auxiliary_calls.c.answered_at.is_(None))
    .values(
        answer=sa.bindparam("text"),
        failure_kind=sa.bindparam("failure"),
        answered_at=db_now(),
        request=None,
    ),
    takes=_Answered,
)


class AuxiliaryCalls(RowStore):
    """The auxiliary calls in one database. Thread-safe."""

    def enqueue_questions(self, claim: CallClaim, consultation: Consultation) -> list[Hint]:
        """Write the questions of a claimed call that has had no effect, and give the claim up. Safe to repeat: the
        second time the token is gone. Raises ``LeaseLost``."""
        with self.database.write() as connection:
            loaded = lock_claimed_run(connection, claim)
            after = apply_event(loaded.run, ev.CallAsked(position=claim.position))
            if after.calls[claim.position].asks:  # otherwise the run is being stopped, and the call was cancelled
                _insert(connection, claim, consultation)
            return save_step(connection, loaded, after)

    def claim(self, effect: AskAuxiliary, owner: int) -> AuxiliaryClaim | None:
        """Claim the first open question of a call; ``None`` when it is not available. The claim lasts for as long as
        any model may take and a little more; then the sweeper takes it away. Raises ``LookupError`` and ``ValueError``
        when the question cannot be read."""
        token = secrets.token_hex(16)
        with self.database.write() as connection:
            row = _CLAIM.first(connection, build_claim_values(effect, token=token, owner=owner))
            if row is None:
                return None
            asked = _NEXT.first(connection, {"run": row.run_pk, "iter": effect.iteration, "pos": effect.position})
            loaded = load_record(connection, row.run_pk)
            refused_by = find_auxiliary_refusal(connection, loaded)
        if asked is None:
            raise LookupError(f"call {effect.position} of run {effect.run_id!r} waits for no answer")
        return AuxiliaryClaim(
            token=token,
            run_pk=row.run_pk,
            run_id=effect.run_id,
            iteration=effect.iteration,
            position=effect.position,
            attempt=effect.attempt,
            number=asked.number,
            question=AuxiliaryQuestion.from_json(AuxTask(asked.task), asked.request),
            refused_by=refused_by,
            loaded=loaded,
        )

    def settle_question(
        self, claim: AuxiliaryClaim, answer: AuxiliaryAnswer, spent: Spent = NOTHING_SPENT
    ) -> list[Hint]:
        """Write the answer to a question, and its usage and price; the last answer of a call makes its tool due. Safe
        to repeat: the second time the token is gone. Raises ``LeaseLost``."""
        with self.database.write() as connection:
            loaded = lock_claimed_run(connection, claim)
            _ANSWER.run(
                connection, {**_build_call_key(claim), "question": claim.number, **_build_outcome_columns(answer)}
            )
            is_last = _NEXT.first(connection, _build_call_key(claim)) is None
            after = apply_event(loaded.run, ev.CallAnswered(position=claim.position, is_last=is_last))
            return save_step(connection, loaded, after, _book_usage(claim, spent))

    def release(self, claim: AuxiliaryClaim, spent: Spent = NOTHING_SPENT) -> list[Hint]:
        """Give the claim on a question up so that another worker asks it, and book what failed attempts took. Raises
        ``LeaseLost``."""
        with self.database.write() as connection:
            loaded = lock_claimed_run(connection, claim)
            after = apply_event(loaded.run, ev.CallReleased(position=claim.position))
            return save_step(connection, loaded, after, _book_usage(claim, spent))

    def list_answers(self, claim: CallClaim) -> list[AnsweredConsultation]:
        """List what a claimed call asked of models, in order, with the answers."""
        with self.database.read() as connection:
            rows = _ALL.all(connection, _build_call_key(claim))
        if not rows:
            return []  # it has a task of a server and asked no model
        starts = [index for index, row in enumerate(rows) if row.material is not None]
        return [_to_consulted(rows[start:end]) for start, end in zip(starts, [*starts[1:], len(rows)], strict=True)]


def _insert(connection: Connection, claim: CallClaim, consultation: Consultation) -> None:
    asked_before = _COUNT.one(connection, _build_call_key(claim)).asked
    connection.execute(
        sa.insert(auxiliary_calls).values(asked_at=db_now()),
        [
            {
                "run_pk": claim.run_pk,
                "iteration": claim.iteration,
                "position": claim.position,
                "number": asked_before + index,
                "task": question.task.value,
                "request": question.to_json(),
                "material": dump_canonical_json(consultation.material) if index == 0 else None,
            }
            for index, question in enumerate(consultation.questions)
        ],
    )


def _build_outcome_columns(answer: AuxiliaryAnswer) -> _Outcome:
    failure = answer.failure or "unknown" if answer.text is None else None
    return {"text": None if answer.text is None else make_storable(answer.text), "failure": failure}


def _book_usage(claim: AuxiliaryClaim, spent: Spent) -> StepOutput:
    return StepOutput(usage=spent.usage, cost=spent.cost, held_call=claim.position)


def _build_call_key(claim: CallClaim | AuxiliaryClaim) -> CallKey:
    return {"run": claim.run_pk, "iter": claim.iteration, "pos": claim.position}


def _to_consulted(rows: Sequence[_AskedRow]) -> AnsweredConsultation:
    """Build one ``AnsweredConsultation`` from the rows that were asked together."""
    return AnsweredConsultation(
        task=AuxTask(rows[0].task),
        material=json.loads(rows[0].material or "null"),
        answers=[AuxiliaryAnswer(text=row.answer, failure=row.failure_kind) for row in rows],
        asked_at=rows[0].asked_at,
    )
