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
from hermes_worker.core.answer_binding import code_line, question_code
from hermes_worker.core.chat_buttons import buttons_of
from hermes_worker.core.client_tools import IS_CLIENTS
from hermes_worker.core.consent import chat_choices, elsewhere, is_too_long_for_chat, keys_in
from hermes_worker.core.errors import Failure, HermesError
from hermes_worker.core.gateway import CHAT_SOURCES, asked_in_chat
from hermes_worker.core.messages import Message, Role, canonical_json, tool_body
from hermes_worker.core.principals import TIMEOUT
from hermes_worker.core.questions import (
    ANSWER_CHARS_MAX,
    APPROVED_KEY,
    Question,
    Refusal,
    RefusedBy,
    answered,
    denied,
    denied_by_time,
    unanswered,
)
from hermes_worker.core.remote_tasks import IS_TASKS, RemoteTask
from hermes_worker.core.run import CallStatus, ExitReason, WaitKind
from hermes_worker.core.run_events import RunEvent, RunEventName
from hermes_worker.core.sources import SessionLabel
from hermes_worker.core.spec import RunSpec
from hermes_worker.core.step import apply
from hermes_worker.core.unseen import show_marks
from hermes_worker.safety.approvals import Choice
from hermes_worker.safety.redaction import redact
from hermes_worker.store.access.audit import Act, record
from hermes_worker.store.engine.database import Database, db_now
from hermes_worker.store.engine.prepared import Prepared, row_of, rows_of
from hermes_worker.store.outbox.deliveries import owe, take_buttons_away
from hermes_worker.store.owners import tenant_of_run
from hermes_worker.store.row_keys import AtMost
from hermes_worker.store.rows import (
    CALL_OF_WAIT,
    Hint,
    LoadedRun,
    blob_hash,
    insert_ignoring,
    lock_run,
    plain,
    tool_call_ids,
)
from hermes_worker.store.runs.call_claims import lock_held
from hermes_worker.store.runs.calls import CallClaim
from hermes_worker.store.runs.joining import save
from hermes_worker.store.runs.runs import SESSION_LABEL, find, label_of
from hermes_worker.store.runs.stepping import Additions
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
class WaitView:
    """An open question. Times are epoch seconds."""

    wait_id: int
    run_id: str
    tenant: str
    session: SessionLabel
    kind: WaitKind
    iteration: int
    position: int
    tool: str
    request: dict[str, Any]
    choices: tuple[str, ...]
    opened_at: float
    expires_at: float | None
    tools: str
    """The tool definitions of its session, as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerView:
    """A question that was answered, or whose time was over."""

    wait_id: int
    kind: WaitKind
    iteration: int
    position: int
    tool: str
    outcome: str
    """The choice, ``answered`` or ``expired``."""
    by: str
    """The principal who answered (``core.principals``)."""
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The conditions for a question about a command, beside the command itself."""

    source: str
    approvals: str | None
    allowed: frozenset[str]
    """Patterns allowed for good."""
    approval_s: float | None = None
    """Seconds for which the question stays open; ``None`` for the installation's setting."""


class _OpenRow(NamedTuple):
    pk: int
    run_id: str
    tenant: str
    session_id: str
    session_source: str | None
    session_name: str | None
    kind: str
    iteration: int
    position: int
    name: str
    request: str
    opened_at: float
    expires_at: float | None
    tools: str


class _AnsweredRow(NamedTuple):
    pk: int
    kind: str
    iteration: int
    position: int
    name: str
    outcome: str
    answered_by: str
    closed_at: float


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
        waits.c.pk,
        runs.c.run_id,
        runs.c.tenant,
        *SESSION_LABEL,
        waits.c.kind,
        waits.c.iteration,
        waits.c.position,
        tool_calls.c.name,
        waits.c.request,
        waits.c.opened_at,
        waits.c.expires_at,
        blobs.c.body.label("tools"),
    )
    .select_from(
        waits.join(runs, runs.c.pk == waits.c.run_pk)
        .join(sessions, sessions.c.pk == runs.c.session_pk)
        .join(blobs, blobs.c.hash == sessions.c.tools_hash)
        .join(tool_calls, CALL_OF_WAIT)
    )
    .where(waits.c.closed_at.is_(None), waits.c.kind != WaitKind.TASK.value)
    .order_by(waits.c.pk)
)


_ANSWERED = (
    sa.select(
        waits.c.pk,
        waits.c.kind,
        waits.c.iteration,
        waits.c.position,
        tool_calls.c.name,
        waits.c.outcome,
        waits.c.answered_by,
        waits.c.closed_at,
    )
    .select_from(waits.join(runs, runs.c.pk == waits.c.run_pk).join(tool_calls, CALL_OF_WAIT))
    .where(waits.c.closed_at.is_not(None), waits.c.answered_by.is_not(None))
    .order_by(waits.c.pk.desc())
)


class Waits:
    """The questions in one database. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def terms(self, run_pk: int) -> Terms:
        """Load the conditions that decide about a dangerous command of a run. Raises ``ValueError`` when its submission
        is unreadable."""
        with self._database.read() as connection:
            text = connection.execute(sa.select(run_inputs.c.spec).where(run_inputs.c.run_pk == run_pk)).scalar_one()
            of_tenant = allowed_patterns.c.tenant == tenant_of_run(run_pk)
            allowed = connection.execute(sa.select(allowed_patterns.c.pattern_key).where(of_tenant)).scalars()
            spec = RunSpec.from_json(text)
            return Terms(
                source=spec.source_kind,
                approvals=spec.approvals,
                allowed=frozenset(allowed),
                approval_s=spec.approval_s,
            )

    def ask(self, claim: CallClaim, question: Question) -> list[Hint]:
        """Let a claimed call that has not begun wait for an answer, and give the claim up. Raises ``LeaseLost``."""
        with self._database.write() as connection:
            loaded = lock_held(connection, claim)
            after = apply(loaded.run, ev.CallParked(position=claim.position, waits_for=question.kind))
            if after.calls[claim.position].status is not CallStatus.WAITING:
                # The run is being stopped; the call was cancelled.
                return save(connection, loaded, after)
            wait = insert_wait(connection, claim, question)
            asked = asked_with(claim, question, wait)
            told = _tell_chat(connection, claim, question, wait)
            return [*save(connection, loaded, after, Additions(events=[asked])), *told]

    def open(
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
        with self._database.read() as connection:
            return [_view(row) for row in rows_of(connection.execute(statement), _OpenRow)]

    def answers(self, run_id: str, *, limit: int = _LISTED_MAX) -> list[AnswerView]:
        """List the newest answers to the questions of a run, oldest first."""
        with self._database.read() as connection:
            found = rows_of(connection.execute(_ANSWERED.where(runs.c.run_id == run_id).limit(limit)), _AnsweredRow)
        return [_answer(row) for row in reversed(found)]

    def approve(
        self,
        run_id: str,
        choice: Choice,
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
        with self._database.write() as connection:
            return settle_approval(connection, find(connection, run_id), answer, wait_id=wait_id)

    def reply(self, run_id: str, text: str, *, by: str, wait_id: int | None = None) -> list[Hint]:
        """Answer an open question of a run, by the number of a choice or by text. ``by`` is the principal who answers.
        ``wait_id`` names the question; ``None`` means the oldest. The first answer counts. Raises ``RunNotFound``,
        ``NotWaiting``, ``NothingAsked``."""
        with self._database.write() as connection:
            return settle_input(connection, find(connection, run_id), text, by=by, wait_id=wait_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalAnswer:
    """A person's answer to an approval."""

    choice: Choice
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
    if answer.is_from_chat and choice is not Choice.DENY and is_too_long_for_chat(_without_secrets(request)):
        raise NotOffered(f"the command is too long to be shown here. {elsewhere(wait.pk)}; here you can answer /deny")
    _close(connection, wait, loaded.pk, choice.value, answer.by, reason)
    own = str(request.get("arguments", "{}"))
    given = answer.arguments or own
    chosen = {"wait": wait.pk, "choice": choice.value, "changes_arguments": answer.arguments is not None}
    chosen |= {"arguments_sha256": blob_hash(given)}
    before = {"arguments_sha256": blob_hash(own)}
    record(connection, Act.APPROVAL_ANSWER, loaded.run.run_id, before=before, after=chosen)
    # The edited command differs from the one that was shown, so an event tells followers of the run which one runs.
    instead = {"changed_arguments": show_marks(redact(answer.arguments))} if answer.arguments else {}
    answered_event = _answered_event(loaded, wait, choice=choice.value, by=answer.by, **instead)
    if choice is Choice.DENY:
        description = str(request.get("description", ""))
        refusal = Refusal(by=RefusedBy.PERSON, reason=plain(reason) if reason else description)
        return _settle(connection, loaded, wait, denied(description, reason), answered_event, refusal)
    _remember(connection, loaded, choice, keys_in(request))
    _permit(connection, loaded, wait, given)
    after = apply(loaded.run, ev.CallAllowed(position=wait.position))
    return save(connection, loaded, after, Additions(events=[answered_event]))


def settle_input(connection: Connection, pk: int, text: str, *, by: str, wait_id: int | None = None) -> list[Hint]:
    """Answer a question within a transaction, for the run with the row id ``pk``; otherwise like ``Waits.reply``."""
    loaded, wait = _lock_open(connection, pk, WaitKind.INPUT, wait_id)
    request = json.loads(wait.request)
    _close(connection, wait, loaded.pk, "answered", by, None)
    record(connection, Act.QUESTION_ANSWER, loaded.run.run_id, after={"wait": wait.pk})
    if request.get(IS_TASKS):
        return _hand_on(connection, loaded, wait, text, _answered_event(loaded, wait, by=by))
    result = answered(request, request.get("choices", ()), text)
    event = _answered_event(loaded, wait, by=by)
    return _settle(connection, loaded, wait, result, event)


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


def expired(connection: Connection, *, now: float, most: int) -> list[int]:
    """List the row ids of runs with a question whose time is over by ``now`` (epoch seconds)."""
    return list(dict.fromkeys(row.run_pk for row in _EXPIRED.all(connection, {"now": now, "most": most})))


def expire(connection: Connection, loaded: LoadedRun) -> list[Hint] | None:
    """Settle the oldest question of a locked run whose time is over: as refused, or as not answered. ``None`` when
    there is none."""
    late = _WAIT.where(waits.c.run_pk == loaded.pk, waits.c.closed_at.is_(None), waits.c.expires_at < db_now())
    wait = row_of(connection.execute(late.order_by(waits.c.pk).limit(1)), _WaitRow)
    if wait is None:
        return None
    if wait.kind == WaitKind.TASK.value:
        return _look_again(connection, loaded, wait)
    request = json.loads(wait.request)
    _close(connection, wait, loaded.pk, "expired", TIMEOUT, None)
    if loaded.run.status.is_terminal:
        return []
    if wait.kind == WaitKind.APPROVAL.value:
        event = _answered_event(loaded, wait, choice=Choice.DENY.value, by=TIMEOUT)
        description = str(request.get("description", ""))
        refusal = Refusal(by=RefusedBy.TIMEOUT, reason=description)
        return _settle(connection, loaded, wait, denied_by_time(description), event, refusal)
    event = _answered_event(loaded, wait, by=TIMEOUT)
    if request.get(IS_CLIENTS):
        # The client left and would not read an answer, so do not pay for a call of the model.
        given_up = ev.DeadlinePassed(reason=ExitReason.IDLE_EXCEEDED, failure=_CLIENT_GONE)
        return save(connection, loaded, apply(loaded.run, given_up), Additions(events=[event]))
    text = unanswered(request, request.get("choices", ()))
    return _settle(connection, loaded, wait, text, event)


def _look_again(connection: Connection, loaded: LoadedRun, wait: _WaitRow) -> list[Hint]:
    """Make the call due whose task is to be polled now, if it still waits for it."""
    connection.execute(sa.update(waits).where(waits.c.pk == wait.pk).values(expires_at=None))
    run = loaded.run
    if run.status.is_terminal or run.iteration != wait.iteration:
        return []
    if run.calls[wait.position].waits_for is not WaitKind.TASK:
        return []
    return save(connection, loaded, apply(run, ev.CallAllowed(position=wait.position)))


def _hand_on(connection: Connection, loaded: LoadedRun, wait: _WaitRow, text: str, event: RunEvent) -> list[Hint]:
    """Store the answer with the task of the call; the next poll sends it."""
    of_task = (
        (waits.c.run_pk == loaded.pk)
        & (waits.c.iteration == wait.iteration)
        & (waits.c.position == wait.position)
        & (waits.c.kind == WaitKind.TASK.value)
        & waits.c.closed_at.is_(None)
    )
    kept = connection.execute(sa.select(waits.c.request).where(of_task)).scalar_one()
    task = replace(RemoteTask.from_json(kept), answer=plain(text)[:ANSWER_CHARS_MAX])
    connection.execute(sa.update(waits).where(of_task).values(request=task.to_json()))
    allowed = apply(loaded.run, ev.CallAllowed(position=wait.position))
    return save(connection, loaded, allowed, Additions(events=[event]))


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
            request=canonical_json(request),
            opened_at=db_now(),
            expires_at=None if question.expires_s is None else db_now() + question.expires_s,
        )
        .returning(waits.c.pk, waits.c.expires_at)
    ).one()
    return NewWait._make(inserted)


def _tell_chat(connection: Connection, claim: CallClaim, question: Question, wait: NewWait) -> list[Hint]:
    """Insert the delivery of the question, with its buttons, to the chat in which the chain began, in the transaction
    that asks; nothing when it began elsewhere."""
    asked = replace(question, request=_without_secrets(question.request))
    text = asked_in_chat(asked, wait.pk)
    if text is None:
        return []
    first = sa.select(sa.func.coalesce(runs.c.root_pk, runs.c.pk)).where(runs.c.pk == claim.run_pk).scalar_subquery()
    chat = sa.select(runs.c.deliver).join(sessions, sessions.c.pk == runs.c.session_pk)
    targets = connection.execute(chat.where(runs.c.pk == first, sessions.c.source.in_(CHAT_SOURCES))).scalar()
    if targets is None:
        return []
    if question.kind is WaitKind.APPROVAL:
        asked = replace(asked, choices=chat_choices(asked.request, question.choices))
    buttons = [replace(button, label=show_marks(redact(button.label))) for button in buttons_of(asked, wait.pk)]
    may_allow = question.kind is not WaitKind.APPROVAL or not is_too_long_for_chat(asked.request)
    body = f"{redact(text)}\n\n{code_line(question.kind, question_code(wait.pk), may_allow=may_allow)}"
    run = (claim.run_pk, claim.run_id)
    return owe(connection, json.loads(targets), run=run, body=body, buttons=buttons, wait_pk=wait.pk)


def _without_secrets(request: Mapping[str, Any]) -> dict[str, Any]:
    """Redact the secrets in ``request``, for display."""
    command = request.get("command")
    return {**request, "command": redact(command)} if isinstance(command, str) else dict(request)


def asked_with(claim: CallClaim, question: Question, asked: NewWait) -> RunEvent:
    """Build the event that a call asks a question."""
    shown = {name: value for name, value in _without_secrets(question.request).items() if name != "arguments"}
    shown |= {name: show_marks(str(shown[name])) for name in ("command", "description", "question") if name in shown}
    data = {
        **shown,
        "wait_id": asked.pk,
        "code": question_code(asked.pk),
        "choices": list(question.choices),
        "expires_at": asked.expires_at,
        "tool": claim.request.name,
        "tool_call_id": claim.request.id,
        "iteration": claim.iteration,
        "position": claim.position,
    }
    is_approval = question.kind is WaitKind.APPROVAL
    return RunEvent(name=RunEventName.APPROVAL_REQUESTED if is_approval else RunEventName.INPUT_REQUESTED, data=data)


def _answered_event(loaded: LoadedRun, wait: _WaitRow, **more: str) -> RunEvent:
    data = {"resolved": 1, "wait_id": wait.pk, "iteration": wait.iteration, "position": wait.position, **more}
    is_approval = wait.kind == WaitKind.APPROVAL.value
    return RunEvent(name=RunEventName.APPROVAL_ANSWERED if is_approval else RunEventName.INPUT_ANSWERED, data=data)


def _lock_open(connection: Connection, pk: int, kind: WaitKind, wait_id: int | None) -> tuple[LoadedRun, _WaitRow]:
    loaded = lock_run(connection, pk)
    assert loaded is not None
    if loaded.run.status.is_terminal:
        raise NotWaiting(f"run {loaded.run.run_id!r} has ended ({loaded.run.status.value})")
    asked = _WAIT.where(waits.c.run_pk == pk, waits.c.kind == kind.value, waits.c.closed_at.is_(None))
    if wait_id is not None:
        asked = asked.where(waits.c.pk == wait_id)
    wait = row_of(connection.execute(asked.order_by(waits.c.pk).limit(1)), _WaitRow)
    if wait is None:
        which = "" if wait_id is None else f" {wait_id}, which was answered, or expired, or is none of its own"
        raise NothingAsked(f"run {loaded.run.run_id!r} waits for no {kind.value}{which}")
    return loaded, wait


def _close(connection: Connection, wait: _WaitRow, run_pk: int, outcome: str, by: str, reason: str | None) -> None:
    connection.execute(
        sa.update(waits)
        .where(waits.c.pk == wait.pk, waits.c.closed_at.is_(None))
        .values(closed_at=db_now(), outcome=outcome, answered_by=plain(by), reason=plain(reason) if reason else None)
    )
    take_buttons_away(connection, run_pk, wait.pk)


def _settle(
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
    tool_call_id = tool_call_ids(connection, loaded)[position]
    data = {
        "tool": loaded.run.calls[position].name,
        "tool_call_id": tool_call_id,
        "iteration": wait.iteration,
        "position": position,
        "duration": 0.0,
        "error": refusal is not None,
        **(refusal.fields() if refusal else {}),
    }
    message = Message(seq=loaded.result_seqs[position], role=Role.TOOL, body=tool_body(tool_call_id, text))
    additions = Additions(messages=[message], events=[event, RunEvent(name=RunEventName.TOOL_COMPLETED, data=data)])
    return save(connection, loaded, apply(loaded.run, ev.CallSettled(position=position, status=status)), additions)


def _remember(connection: Connection, loaded: LoadedRun, choice: Choice, pattern_keys: Sequence[str]) -> None:
    """Store the permission beyond this one call, for every danger that it was asked about, as far as ``choice``
    says."""
    if choice is Choice.ALWAYS:
        for key in pattern_keys:
            allowed = {"tenant": tenant_of_run(loaded.pk), "pattern_key": key, "created_at": db_now()}
            connection.execute(insert_ignoring(connection, allowed_patterns).values(**allowed))
    if choice is not Choice.SESSION:
        return
    here = (session_documents.c.session_pk == loaded.session_pk) & (session_documents.c.key == APPROVED_KEY)
    known = connection.execute(sa.select(session_documents.c.body).where(here)).scalar()
    body = canonical_json(sorted({*(json.loads(known) if known else ()), *pattern_keys}))
    if known is not None:
        connection.execute(sa.update(session_documents).where(here).values(body=body))
        return
    values = {"session_pk": loaded.session_pk, "key": APPROVED_KEY, "body": body}
    connection.execute(insert_ignoring(connection, session_documents), values)


def _permit(connection: Connection, loaded: LoadedRun, wait: _WaitRow, arguments: str) -> None:
    connection.execute(
        sa.update(tool_calls)
        .where(
            tool_calls.c.run_pk == loaded.pk,
            tool_calls.c.iteration == wait.iteration,
            tool_calls.c.position == wait.position,
        )
        .values(approved_arguments=arguments)
    )


def _answer(row: _AnsweredRow) -> AnswerView:
    return AnswerView(
        wait_id=row.pk,
        kind=WaitKind(row.kind),
        iteration=row.iteration,
        position=row.position,
        tool=row.name,
        outcome=row.outcome,
        by=row.answered_by,
        at=row.closed_at,
    )


def _view(row: _OpenRow) -> WaitView:
    request = json.loads(row.request)
    choices: Sequence[str] = request.pop("choices", ())
    return WaitView(
        wait_id=row.pk,
        run_id=row.run_id,
        tenant=row.tenant,
        session=label_of(row),
        kind=WaitKind(row.kind),
        iteration=row.iteration,
        position=row.position,
        tool=row.name,
        request=request,
        choices=tuple(choices),
        opened_at=row.opened_at,
        expires_at=row.expires_at,
        tools=row.tools,
    )
