"""Questions to people: asked by a call that then waits as a row, answered once, or by time.

*Order of locks*: the calls of the iteration, the run, the wait. Under the run's lock no other transaction changes an
open wait, so of two answers the first counts and the second finds nothing open. An answer that names its question by
``wait_id`` is never applied to the question after it, which the run may have asked meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core import events as ev
from hermes_worker.core.answer_binding import format_code_line, format_question_code
from hermes_worker.core.chat_buttons import build_buttons
from hermes_worker.core.client_tools import IS_CLIENTS
from hermes_worker.core.consent import format_elsewhere, is_too_long_for_chat, read_pattern_keys, select_chat_choices
from hermes_worker.core.errors import Failure, HermesError
from hermes_worker.core.gateway import render_question
from hermes_worker.core.invisible_characters import show_invisible
from hermes_worker.core.messages import Message, Role, build_tool_body, dump_canonical_json
from hermes_worker.core.principals import TIMEOUT
from hermes_worker.core.questions import (
    ANSWER_CHARS_MAX,
    APPROVED_KEY,
    Question,
    Refusal,
    RefusedBy,
    build_answer_result,
    build_denied_result,
    build_timeout_result,
    build_unanswered_result,
)
from hermes_worker.core.remote_tasks import IS_TASKS, RemoteTask
from hermes_worker.core.run import CallStatus, ExitReason, WaitKind
from hermes_worker.core.run_events import RunEvent, RunEventName
from hermes_worker.core.run_views import AnswerView, WaitView
from hermes_worker.core.sources import CHAT_SOURCES
from hermes_worker.core.spec import RunSpec
from hermes_worker.core.step import apply_event
from hermes_worker.safety.approvals import ApprovalChoice
from hermes_worker.safety.redaction import redact
from hermes_worker.store.access.audit import Act, record_action
from hermes_worker.store.engine.database import RowStore, db_now
from hermes_worker.store.engine.prepared import Prepared, fetch_row, fetch_views
from hermes_worker.store.outbox.deliveries import enqueue_deliveries, remove_buttons
from hermes_worker.store.owners import select_tenant_of_run
from hermes_worker.store.row_keys import AtMost
from hermes_worker.store.rows import (
    CALL_OF_WAIT,
    Hint,
    LoadedRun,
    build_insert_ignoring,
    compute_blob_hash,
    load_call_ids,
    make_storable,
)
from hermes_worker.store.runs.call_claims import lock_claimed_run
from hermes_worker.store.runs.calls import CallClaim
from hermes_worker.store.runs.runs import SESSION_LABEL, find_run, lock_found_run
from hermes_worker.store.runs.step_plan import StepOutput
from hermes_worker.store.runs.step_writer import save_step
from hermes_worker.store.tables import (
    allowed_patterns,
    blobs,
    run_inputs,
    runs,
    session_documents,
    sessions,
    tool_calls,
    waits,
)

_LISTED_MAX = 500


class NotWaiting(HermesError):
    """The run has ended, or has not begun, so it has no question to answer."""


class NothingAsked(HermesError):
    """The run waits for no such answer: it was given already, or the time for it is over."""


class NotOffered(HermesError):
    """The question is open, and the answer is none of its choices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalTerms:
    """The conditions for a question about a command, beside the command itself."""

    source: str
    approvals: str | None
    allowed: frozenset[str]
    """Patterns allowed for good."""
    approval_s: float | None = None
    """Seconds for which the question stays open; ``None`` for the installation's setting."""


class _WaitRow(NamedTuple):
    """A question, without its call."""

    pk: int
    kind: str
    iteration: int
    position: int
    request: str


class NewWait(NamedTuple):
    """A question that was just inserted."""

    pk: int
    expires_at: float | None


_WAIT = sa.select(*(waits.c[name] for name in _WaitRow._fields))
_OPEN = (
    sa.select(
        waits.c.pk.label("wait_id"),
        runs.c.run_id,
        runs.c.tenant,
        *SESSION_LABEL,
        waits.c.kind,
        waits.c.iteration,
        waits.c.position,
        tool_calls.c.name.label("tool"),
        waits.c.request,
        waits.c.request.label("choices"),
        waits.c.opened_at,
        waits.c.expires_at,
        run_inputs.c.title,
        blobs.c.body.label("tools"),
    )
    .select_from(
        waits.join(runs, runs.c.pk == waits.c.run_pk)
        .join(sessions, sessions.c.pk == runs.c.session_pk)
        .join(blobs, blobs.c.hash == sessions.c.tools_hash)
        .join(tool_calls, CALL_OF_WAIT)
        .outerjoin(run_inputs, run_inputs.c.run_pk == runs.c.pk)
    )
    .where(waits.c.closed_at.is_(None), waits.c.kind != WaitKind.TASK.value)
    .order_by(waits.c.pk)
)


_ANSWERED = (
    sa.select(
        waits.c.pk.label("wait_id"),
        waits.c.kind,
        waits.c.iteration,
        waits.c.position,
        tool_calls.c.name.label("tool"),
        waits.c.outcome,
        waits.c.answered_by.label("by"),
        waits.c.closed_at.label("at"),
    )
    .select_from(waits.join(runs, runs.c.pk == waits.c.run_pk).join(tool_calls, CALL_OF_WAIT))
    .where(waits.c.closed_at.is_not(None), waits.c.answered_by.is_not(None))
    .order_by(waits.c.pk.desc())
)


class Waits(RowStore):
    """The questions in one database. Thread-safe."""

    def load_terms(self, run_pk: int) -> ApprovalTerms:
        """Load the conditions that decide about a dangerous command of a run. Raises ``ValueError`` when its submission
        is unreadable."""
        with self.database.read() as connection:
            text = connection.execute(sa.select(run_inputs.c.spec).where(run_inputs.c.run_pk == run_pk)).scalar_one()
            of_tenant = allowed_patterns.c.tenant == select_tenant_of_run(run_pk)
            allowed = connection.execute(sa.select(allowed_patterns.c.pattern_key).where(of_tenant)).scalars()
            spec = RunSpec.from_json(text)
            return ApprovalTerms(
                source=spec.source_kind,
                approvals=spec.approvals,
                allowed=frozenset(allowed),
                approval_s=spec.approval_s,
            )

    def has_expired(self, run_pk: int) -> bool:
        """Whether a question of a run for permission was not answered in time."""
        late = sa.and_(waits.c.kind == WaitKind.APPROVAL.value, waits.c.outcome == "expired")
        found = sa.select(waits.c.pk).where(waits.c.run_pk == run_pk, late).limit(1)
        return self.database.select(found).scalar() is not None

    def ask(self, claim: CallClaim, question: Question) -> list[Hint]:
        """Let a claimed call that has not begun wait for an answer, and give the claim up. Raises ``LeaseLost``."""
        with self.database.write() as connection:
            loaded = lock_claimed_run(connection, claim)
            after = apply_event(loaded.run, ev.CallParked(position=claim.position, waits_for=question.kind))
            if after.calls[claim.position].status is not CallStatus.WAITING:
                # The run is being stopped; the call was cancelled.
                return save_step(connection, loaded, after)
            wait = insert_wait(connection, claim, question)
            asked = build_asked_event(claim, question, wait)
            told = _enqueue_question(connection, claim, question, wait)
            return [*save_step(connection, loaded, after, StepOutput(events=[asked])), *told]

    def list_open(
        self,
        *,
        tenant: str | None = None,
        run_id: str | None = None,
        kind: WaitKind | None = None,
        limit: int = 100,
    ) -> list[WaitView]:
        """List the unanswered questions of a tenant, or of a run, oldest first."""
        statement = _OPEN.limit(min(limit, _LISTED_MAX))
        if tenant is not None:
            statement = statement.where(runs.c.tenant == tenant)
        if run_id is not None:
            statement = statement.where(runs.c.run_id == run_id)
        if kind is not None:
            statement = statement.where(waits.c.kind == kind.value)
        found = self.database.select(statement)
        return fetch_views(found, WaitView, request=_read_request, choices=_read_choices)

    def list_answers(self, run_id: str, *, limit: int = _LISTED_MAX) -> list[AnswerView]:
        """List the newest answers to the questions of a run, oldest first."""
        found = self.database.select(_ANSWERED.where(runs.c.run_id == run_id).limit(limit))
        return fetch_views(found, AnswerView)[::-1]

    def approve(
        self,
        run_id: str,
        choice: ApprovalChoice,
        *,
        by: str,
        reason: str | None = None,
        arguments: str | None = None,
        wait_id: int | None = None,
    ) -> list[Hint]:
        """Answer an open approval of a run; ``arguments`` (JSON) replace the model's. ``by`` is the principal who
        answers (``core.principals``). ``wait_id`` names the question; ``None`` means the oldest. The first answer
        counts. Raises ``RunNotFound``, ``NotWaiting``, ``NothingAsked``, ``NotOffered``."""
        answer = ApprovalAnswer(choice=choice, by=by, reason=reason, arguments=arguments)
        with self.database.write() as connection:
            return settle_approval(connection, find_run(connection, run_id), answer, wait_id=wait_id)

    def reply(self, run_id: str, text: str, *, by: str, wait_id: int | None = None) -> list[Hint]:
        """Answer an open question of a run, by the number of a choice or by text. ``by`` is the principal who answers.
        ``wait_id`` names the question; ``None`` means the oldest. The first answer counts. Raises ``RunNotFound``,
        ``NotWaiting``, ``NothingAsked``."""
        with self.database.write() as connection:
            return settle_input(connection, find_run(connection, run_id), text, by=by, wait_id=wait_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalAnswer:
    """A person's answer to an approval."""

    choice: ApprovalChoice
    by: str
    reason: str | None = None
    arguments: str | None = None
    is_from_chat: bool = False
    """The person read the question in a chat, which shows only parts of a very long one."""


def settle_approval(
    connection: Connection, pk: int, answer: ApprovalAnswer, *, wait_id: int | None = None
) -> list[Hint]:
    """Answer an approval within a transaction, for the run with the row id ``pk``; otherwise like ``Waits.approve``."""
    loaded, wait = _lock_open(connection, pk, WaitKind.APPROVAL, wait_id)
    request, choice, reason = json.loads(wait.request), answer.choice, answer.reason
    if request.get("choices") and choice.value not in request["choices"]:
        raise NotOffered(f"the choices here are {', '.join(request['choices'])}")
    if answer.is_from_chat and choice is not ApprovalChoice.DENY and is_too_long_for_chat(_redact_request(request)):
        raise NotOffered(
            f"the command is too long to be shown here. {format_elsewhere(wait.pk)}; here you can answer /deny"
        )
    _close(connection, wait, loaded.pk, choice.value, answer.by, reason)
    own = str(request.get("arguments", "{}"))
    given = answer.arguments or own
    chosen = {"wait": wait.pk, "choice": choice.value, "changes_arguments": answer.arguments is not None}
    chosen |= {"arguments_sha256": compute_blob_hash(given)}
    before = {"arguments_sha256": compute_blob_hash(own)}
    record_action(connection, Act.APPROVAL_ANSWER, loaded.run.run_id, before=before, after=chosen)
    # The edited command differs from the one that was shown, so an event tells followers of the run which one runs.
    instead = {"changed_arguments": show_invisible(redact(answer.arguments))} if answer.arguments else {}
    answered_event = _build_answered_event(loaded, wait, choice=choice.value, by=answer.by, **instead)
    if choice is ApprovalChoice.DENY:
        description = str(request.get("description", ""))
        refusal = Refusal(by=RefusedBy.PERSON, reason=make_storable(reason) if reason else description)
        return _settle_call(connection, loaded, wait, build_denied_result(description, reason), answered_event, refusal)
    _store_permission(connection, loaded, choice, read_pattern_keys(request))
    _allow_call(connection, loaded, wait, given)
    after = apply_event(loaded.run, ev.CallAllowed(position=wait.position))
    return save_step(connection, loaded, after, StepOutput(events=[answered_event]))


def settle_input(connection: Connection, pk: int, text: str, *, by: str, wait_id: int | None = None) -> list[Hint]:
    """Answer a question within a transaction, for the run with the row id ``pk``; otherwise like ``Waits.reply``."""
    loaded, wait = _lock_open(connection, pk, WaitKind.INPUT, wait_id)
    request = json.loads(wait.request)
    _close(connection, wait, loaded.pk, "answered", by, None)
    record_action(connection, Act.QUESTION_ANSWER, loaded.run.run_id, after={"wait": wait.pk})
    if request.get(IS_TASKS):
        return _pass_to_task(connection, loaded, wait, text, _build_answered_event(loaded, wait, by=by))
    result = build_answer_result(request, request.get("choices", ()), text)
    event = _build_answered_event(loaded, wait, by=by)
    return _settle_call(connection, loaded, wait, result, event)


class _OfRun(NamedTuple):
    run_pk: int


class _ExpiredBy(AtMost):
    now: float


_EXPIRED = Prepared(
    sa.select(waits.c.run_pk)
    .where(
        waits.c.expires_at < sa.bindparam("now", type_=sa.Double()),
        sa.text("closed_at is null and expires_at is not null"),
    )
    .limit(sa.bindparam("most", type_=sa.Integer())),
    takes=_ExpiredBy,
    gives=_OfRun,
)


def list_expired(connection: Connection, *, now: float, most: int) -> list[int]:
    """List the row ids of runs with a question whose time is over by ``now`` (epoch seconds)."""
    return list(dict.fromkeys(row.run_pk for row in _EXPIRED.all(connection, {"now": now, "most": most})))


def expire_question(connection: Connection, loaded: LoadedRun) -> list[Hint] | None:
    """Settle the oldest question of a locked run whose time is over: as refused, or as not answered. ``None`` when
    there is none."""
    late = _WAIT.where(waits.c.run_pk == loaded.pk, waits.c.closed_at.is_(None), waits.c.expires_at < db_now())
    wait = fetch_row(connection.execute(late.order_by(waits.c.pk).limit(1)), _WaitRow)
    if wait is None:
        return None
    if wait.kind == WaitKind.TASK.value:
        return _make_task_due(connection, loaded, wait)
    request = json.loads(wait.request)
    _close(connection, wait, loaded.pk, "expired", TIMEOUT, None)
    if loaded.run.status.is_terminal:
        return []
    if wait.kind == WaitKind.APPROVAL.value:
        event = _build_answered_event(loaded, wait, choice=ApprovalChoice.DENY.value, by=TIMEOUT)
        description = str(request.get("description", ""))
        refusal = Refusal(by=RefusedBy.TIMEOUT, reason=description)
        return _settle_call(connection, loaded, wait, build_timeout_result(description), event, refusal)
    event = _build_answered_event(loaded, wait, by=TIMEOUT)
    if request.get(IS_CLIENTS):
        # The client left and would not read an answer, so do not pay for a call of the model.
        given_up = ev.DeadlinePassed(reason=ExitReason.IDLE_EXCEEDED, failure=_CLIENT_GONE)
        return save_step(connection, loaded, apply_event(loaded.run, given_up), StepOutput(events=[event]))
    text = build_unanswered_result(request, request.get("choices", ()))
    return _settle_call(connection, loaded, wait, text, event)


def _make_task_due(connection: Connection, loaded: LoadedRun, wait: _WaitRow) -> list[Hint]:
    """Make the call due whose task is to be polled now, if it still waits for it."""
    connection.execute(sa.update(waits).where(waits.c.pk == wait.pk).values(expires_at=None))
    run = loaded.run
    if run.status.is_terminal or run.iteration != wait.iteration:
        return []
    if run.calls[wait.position].waits_for is not WaitKind.TASK:
        return []
    return save_step(connection, loaded, apply_event(run, ev.CallAllowed(position=wait.position)))


def _pass_to_task(connection: Connection, loaded: LoadedRun, wait: _WaitRow, text: str, event: RunEvent) -> list[Hint]:
    """Store the answer with the task of the call; the next poll sends it."""
    of_task = (
        (waits.c.run_pk == loaded.pk)
        & (waits.c.iteration == wait.iteration)
        & (waits.c.position == wait.position)
        & (waits.c.kind == WaitKind.TASK.value)
        & waits.c.closed_at.is_(None)
    )
    kept = connection.execute(sa.select(waits.c.request).where(of_task)).scalar_one()
    task = replace(RemoteTask.from_json(kept), answer=make_storable(text)[:ANSWER_CHARS_MAX])
    connection.execute(sa.update(waits).where(of_task).values(request=task.to_json()))
    allowed = apply_event(loaded.run, ev.CallAllowed(position=wait.position))
    return save_step(connection, loaded, allowed, StepOutput(events=[event]))


_CLIENT_GONE = Failure(
    kind="client_tool_timeout",
    message="the client did not bring the results of its tools in time (client_tools.timeout_s); send the whole "
    "conversation again",
)


# --- steps of the above ----------------------------------------------------------------------------------------------


def insert_wait(connection: Connection, claim: CallClaim, question: Question) -> NewWait:
    """Insert a question. Returns its row id and when it expires."""
    request = {**question.request, "choices": list(question.choices)}
    inserted = connection.execute(
        sa.insert(waits)
        .values(
            run_pk=claim.run_pk,
            iteration=claim.iteration,
            position=claim.position,
            kind=question.kind.value,
            request=dump_canonical_json(request),
            opened_at=db_now(),
            expires_at=None if question.expires_s is None else db_now() + question.expires_s,
        )
        .returning(waits.c.pk, waits.c.expires_at)
    ).one()
    return NewWait._make(inserted)


def _enqueue_question(connection: Connection, claim: CallClaim, question: Question, wait: NewWait) -> list[Hint]:
    """Insert the delivery of the question, with its buttons, to the chat in which the chain began, in the transaction
    that asks; nothing when it began elsewhere."""
    asked = replace(question, request=_redact_request(question.request))
    text = render_question(asked, wait.pk)
    if text is None:
        return []
    first = sa.select(sa.func.coalesce(runs.c.root_pk, runs.c.pk)).where(runs.c.pk == claim.run_pk).scalar_subquery()
    chat = sa.select(runs.c.deliver).join(sessions, sessions.c.pk == runs.c.session_pk)
    targets = connection.execute(chat.where(runs.c.pk == first, sessions.c.source.in_(CHAT_SOURCES))).scalar()
    if targets is None:
        return []
    if question.kind is WaitKind.APPROVAL:
        asked = replace(asked, choices=select_chat_choices(asked.request, question.choices))
    buttons = [replace(button, label=show_invisible(redact(button.label))) for button in build_buttons(asked, wait.pk)]
    may_allow = question.kind is not WaitKind.APPROVAL or not is_too_long_for_chat(asked.request)
    body = f"{redact(text)}\n\n{format_code_line(question.kind, format_question_code(wait.pk), may_allow=may_allow)}"
    run = (claim.run_pk, claim.run_id)
    return enqueue_deliveries(connection, json.loads(targets), run=run, body=body, buttons=buttons, wait_pk=wait.pk)


def _redact_request(request: Mapping[str, Any]) -> dict[str, Any]:
    """Redact the secrets in ``request``, for display."""
    command = request.get("command")
    return {**request, "command": redact(command)} if isinstance(command, str) else dict(request)


def build_asked_event(claim: CallClaim, question: Question, asked: NewWait) -> RunEvent:
    """Build the event that a call asks a question."""
    shown = {name: value for name, value in _redact_request(question.request).items() if name != "arguments"}
    shown |= {
        name: show_invisible(str(shown[name])) for name in ("command", "description", "question") if name in shown
    }
    data = {
        **shown,
        "wait_id": asked.pk,
        "code": format_question_code(asked.pk),
        "choices": list(question.choices),
        "expires_at": asked.expires_at,
        "tool": claim.request.name,
        "tool_call_id": claim.request.id,
        "iteration": claim.iteration,
        "position": claim.position,
    }
    is_approval = question.kind is WaitKind.APPROVAL
    return RunEvent(name=RunEventName.APPROVAL_REQUESTED if is_approval else RunEventName.INPUT_REQUESTED, data=data)


def _build_answered_event(loaded: LoadedRun, wait: _WaitRow, **more: str) -> RunEvent:
    data = {"resolved": 1, "wait_id": wait.pk, "iteration": wait.iteration, "position": wait.position, **more}
    is_approval = wait.kind == WaitKind.APPROVAL.value
    return RunEvent(name=RunEventName.APPROVAL_ANSWERED if is_approval else RunEventName.INPUT_ANSWERED, data=data)


def _lock_open(connection: Connection, pk: int, kind: WaitKind, wait_id: int | None) -> tuple[LoadedRun, _WaitRow]:
    loaded = lock_found_run(connection, pk)
    if loaded.run.status.is_terminal:
        raise NotWaiting(f"run {loaded.run.run_id!r} has ended ({loaded.run.status.value})")
    asked = _WAIT.where(waits.c.run_pk == pk, waits.c.kind == kind.value, waits.c.closed_at.is_(None))
    if wait_id is not None:
        asked = asked.where(waits.c.pk == wait_id)
    wait = fetch_row(connection.execute(asked.order_by(waits.c.pk).limit(1)), _WaitRow)
    if wait is None:
        which = "" if wait_id is None else f" {wait_id}, which was answered, or expired, or is none of its own"
        raise NothingAsked(f"run {loaded.run.run_id!r} waits for no {kind.value}{which}")
    return loaded, wait


def _close(connection: Connection, wait: _WaitRow, run_pk: int, outcome: str, by: str, reason: str | None) -> None:
    connection.execute(
        sa.update(waits)
        .where(waits.c.pk == wait.pk, waits.c.closed_at.is_(None))
        .values(
            closed_at=db_now(),
            outcome=outcome,
            answered_by=make_storable(by),
            reason=make_storable(reason) if reason else None,
        )
    )
    remove_buttons(connection, run_pk, wait.pk)


def _settle_call(
    connection: Connection,
    loaded: LoadedRun,
    wait: _WaitRow,
    text: str,
    event: RunEvent,
    refusal: Refusal | None = None,
) -> list[Hint]:
    """Settle the call without having run it: ``text`` is its result. It failed if it was refused."""
    status = CallStatus.FAILED if refusal else CallStatus.SUCCEEDED
    position = int(wait.position)
    tool_call_id = load_call_ids(connection, loaded)[position]
    data = {
        "tool": loaded.run.calls[position].name,
        "tool_call_id": tool_call_id,
        "iteration": wait.iteration,
        "position": position,
        "duration": 0.0,
        "error": refusal is not None,
        **(refusal.build_event_fields() if refusal else {}),
    }
    message = Message(seq=loaded.result_seqs[position], role=Role.TOOL, body=build_tool_body(tool_call_id, text))
    additions = StepOutput(messages=[message], events=[event, RunEvent(name=RunEventName.TOOL_COMPLETED, data=data)])
    return save_step(
        connection, loaded, apply_event(loaded.run, ev.CallSettled(position=position, status=status)), additions
    )


def _store_permission(
    connection: Connection, loaded: LoadedRun, choice: ApprovalChoice, pattern_keys: Sequence[str]
) -> None:
    """Store the permission beyond this one call, for every danger that it was asked about, as far as ``choice``
    says."""
    if choice is ApprovalChoice.ALWAYS:
        for key in pattern_keys:
            allowed = {"tenant": select_tenant_of_run(loaded.pk), "pattern_key": key, "created_at": db_now()}
            connection.execute(build_insert_ignoring(connection, allowed_patterns).values(**allowed))
    if choice is not ApprovalChoice.SESSION:
        return
    here = (session_documents.c.session_pk == loaded.session_pk) & (session_documents.c.key == APPROVED_KEY)
    known = connection.execute(sa.select(session_documents.c.body).where(here)).scalar()
    body = dump_canonical_json(sorted({*(json.loads(known) if known else ()), *pattern_keys}))
    if known is not None:
        connection.execute(sa.update(session_documents).where(here).values(body=body))
        return
    values = {"session_pk": loaded.session_pk, "key": APPROVED_KEY, "body": body}
    connection.execute(build_insert_ignoring(connection, session_documents), values)


def _allow_call(connection: Connection, loaded: LoadedRun, wait: _WaitRow, arguments: str) -> None:
    connection.execute(
        sa.update(tool_calls)
        .where(
            tool_calls.c.run_pk == loaded.pk,
            tool_calls.c.iteration == wait.iteration,
            tool_calls.c.position == wait.position,
        )
        .values(approved_arguments=arguments)
    )


def _read_request(text: str) -> dict[str, object]:
    return {name: value for name, value in json.loads(text).items() if name != "choices"}


def _read_choices(text: str) -> tuple[str, ...]:
    return tuple(json.loads(text).get("choices", ()))
