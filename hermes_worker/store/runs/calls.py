"""Tool calls: the effect ledger. Intent is committed before a tool runs, its outcome after, both fenced."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core import events as ev
from hermes_worker.core.call_descriptions import ABOUT_CHARS_MAX, describe_call
from hermes_worker.core.deferred_tools import find_written_arguments
from hermes_worker.core.delegation import TURNS_MAX, build_refusal_note, explain_background_refusal
from hermes_worker.core.effects import RunTool
from hermes_worker.core.guardrails import GUARD_FIELD, NO_PRECEDENT, Precedent, parse_precedent
from hermes_worker.core.inner_calls import InnerCall, dump_calls
from hermes_worker.core.messages import (
    RESULT_KEY_PREFIX,
    Message,
    Role,
    ToolRequest,
    build_tool_body,
    dump_canonical_json,
)
from hermes_worker.core.notices import OUTCOME_UNKNOWN
from hermes_worker.core.questions import Refusal
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import CallStatus, Run, RunStatus, WaitKind
from hermes_worker.core.run_events import RunEvent, RunEventName
from hermes_worker.core.spec import RunSpec
from hermes_worker.core.step import apply_event
from hermes_worker.safety.redaction import redact_code
from hermes_worker.store.engine.database import RowStore
from hermes_worker.store.engine.prepared import Joined, Prepared
from hermes_worker.store.engine.sealing import coalesce_texts
from hermes_worker.store.prefixes import find_prefix
from hermes_worker.store.row_keys import HeldCallKey, RunKey, SessionKey
from hermes_worker.store.rows import (
    RUN_COLUMNS,
    CallRow,
    Hint,
    LoadedRun,
    ParentCall,
    RunRecord,
    RunRow,
    lock_run_after_call,
    replace_calls,
    to_loaded,
    to_record,
)
from hermes_worker.store.runs.budgets import create_tree_budget, lock_turns, promise_turn
from hermes_worker.store.runs.call_claims import (
    BEGIN_CALL,
    IS_HELD,
    ClaimValues,
    build_claim_statement,
    build_claim_values,
    build_held_key,
    lease_lost_error,
    lock_claimed_run,
)
from hermes_worker.store.runs.children import ReplyRow, mark_joined
from hermes_worker.store.runs.inputs import load_spec
from hermes_worker.store.runs.new_children import NewChild, insert_children
from hermes_worker.store.runs.step_plan import StepOutput
from hermes_worker.store.runs.step_statements import SETTLE_CALL, SettledCall
from hermes_worker.store.runs.step_writer import StateMoved, commit_step, save_step
from hermes_worker.store.tables import blobs, messages, runs, session_documents, tool_calls

PREVIEW_CHARS = 120
"""Characters of a call's arguments that the ``tool.started`` event shows."""


_PREVIEW_LOOKS_AT_CHARS = 10 * PREVIEW_CHARS
"""Characters in which secrets are hidden before the preview is cut, because half of a secret is not recognised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallClaim:
    """The right to run one tool call, and what is needed to run it."""

    token: str
    run_pk: int
    run_id: str
    session_pk: int
    iteration: int
    position: int
    attempt: int
    result_seq: int
    request: ToolRequest
    replay: Replay
    timeout_s: float
    claimed_at: float
    is_watched: bool
    is_approved: bool
    """A person allowed the call with these very arguments, so it does not ask again."""
    is_rewritten: bool
    """Hooks gave it other arguments than the model did; these are in ``request``."""
    has_asked: bool
    """The call left questions for models, and they are answered (``store.runs.auxiliary``)."""
    precedent: Precedent = NO_PRECEDENT
    """The calls before it in its turn, for guardrails."""
    neighbours: tuple[str, ...] = ()
    """The tools of all calls of its reply, its own among them, in order."""
    loaded: RunRecord
    """The run as it was at the claim."""

    @property
    def whole_run(self) -> LoadedRun | None:
        """The whole run as it was at the claim; ``None`` when the reply has other calls beside this one."""
        return self.loaded if isinstance(self.loaded, LoadedRun) else None

    @property
    def idempotency_key(self) -> str:
        """Equal for every attempt of this call, and different for every other call."""
        return f"{self.run_id}.{self.iteration}.{self.position}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """The outcome of a call, as it is to be written."""

    status: CallStatus
    text: str
    """The result as the model will read it."""
    duration_s: float
    session_updates: Mapping[str, object]
    refusal: Refusal | None = None
    """Why it did not run, where it was not allowed to."""
    sandbox: str | None = None
    """Which sandbox confined its command; ``None`` for tools that run none."""
    network: str | None = None
    """The network that its command had, where something confined it."""


class _ClaimedCall(NamedTuple):
    run_pk: int
    position: int
    name: str
    replay: str
    segment: int
    result_seq: int
    timeout_s: float
    claimed_at: float
    approved_arguments: str | None
    rewritten_arguments: str | None
    asks: int | None
    call_deaths: int | None


class _ClaimedRun(RunKey):
    asked_at: int


class _StoredDocument(NamedTuple):
    key: str
    body: str


class _HandOver(HeldCallKey):
    children_max: int


class _Rewritten(HeldCallKey):
    arguments: str


class _NotedInner(HeldCallKey):
    inner: str


_claim_call = build_claim_statement(
    RunTool,
    tool_calls.c.run_pk,
    tool_calls.c.position,
    tool_calls.c.name,
    tool_calls.c.replay,
    tool_calls.c.segment,
    tool_calls.c.result_seq,
    tool_calls.c.timeout_s,
    tool_calls.c.claimed_at,
    tool_calls.c.approved_arguments,
    tool_calls.c.rewritten_arguments,
    tool_calls.c.asks,
    tool_calls.c.deaths.label("call_deaths"),
    lasts_s=tool_calls.c.timeout_s,
)
_CLAIM_CALL = Prepared(_claim_call, takes=ClaimValues, gives=_ClaimedCall)


def _select_run_and_reply(
    *more: sa.ColumnElement[Any],
    run_pk: sa.ColumnElement[int],
    asked_at: sa.ColumnElement[int],
    source: sa.FromClause | None = None,
) -> sa.Select[Any]:
    """The run and the reply that asked for its calls, beside ``more`` from ``source``."""
    reply_row = (messages.c.session_pk == runs.c.session_pk) & (messages.c.seq == asked_at)
    tables = runs if source is None else source.join(runs, runs.c.pk == run_pk)
    return (
        sa.select(*more, *RUN_COLUMNS, coalesce_texts(messages.c.body, blobs.c.body).label("reply"))
        .select_from(tables.join(messages, reply_row).outerjoin(blobs, blobs.c.hash == messages.c.blob_hash))
        .where(runs.c.pk == run_pk)
    )


def _build_claim_and_read() -> sa.Select[Any]:
    """Build the statement that claims and reads at once, which PostgreSQL can. The run may be older than the claim by a
    step that is being written at this moment; ``save`` notices."""
    claimed = _claim_call.cte("claimed")
    asked_at = claimed.c.result_seq - claimed.c.position - 1
    return _select_run_and_reply(*claimed.c, run_pk=claimed.c.run_pk, asked_at=asked_at, source=claimed)


_READ_CLAIMED = Prepared(
    _select_run_and_reply(run_pk=sa.bindparam("run"), asked_at=sa.bindparam("asked_at")),
    takes=_ClaimedRun,
    gives=Joined(RunRow, ReplyRow),
)
_CLAIM_AND_READ = Prepared(_build_claim_and_read(), takes=ClaimValues, gives=Joined(_ClaimedCall, RunRow, ReplyRow))

_READ_DOCUMENTS = Prepared(
    sa.select(session_documents.c.key, session_documents.c.body).where(
        session_documents.c.session_pk == sa.bindparam("session"),
        ~session_documents.c.key.startswith(RESULT_KEY_PREFIX),
    ),
    takes=SessionKey,
    gives=_StoredDocument,
)

_hand_over = sa.update(tool_calls).where(IS_HELD).values(children_max=sa.bindparam("children_max"))
_REWRITE = Prepared(
    sa.update(tool_calls).where(IS_HELD).values(rewritten_arguments=sa.bindparam("arguments")),
    takes=_Rewritten,
)
_NOTE_INNER = Prepared(
    sa.update(tool_calls).where(IS_HELD).values(inner_calls=sa.bindparam("inner")),
    takes=_NotedInner,
)
_HAND_OVER = Prepared(_hand_over, takes=_HandOver)
_HAND_OVER_AND_WAIT = Prepared(
    _hand_over.values(
        status=CallStatus.WAITING.value,
        waits_for=WaitKind.CHILDREN.value,
        lease_token=None,
        lease_owner=None,
        deadline_at=None,
    ),
    takes=_HandOver,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Handover:
    """The children that a call is handed to, and the terms."""

    new: Sequence[NewChild]
    children_max: int
    is_budget_shared: bool
    note: str | None
    turns_max: int


class ToolCalls(RowStore):
    """The tool calls in one database. Thread-safe."""

    def claim(self, effect: RunTool, owner: int) -> CallClaim | None:
        """Record the intent to run a call and take it; ``None`` when it is not available. The claim lasts for the
        tool's time-out and a little more; after that the sweeper takes it away, even from a live worker."""
        token = secrets.token_hex(16)
        wanted = build_claim_values(effect, token=token, owner=owner)
        with self.database.statement() as connection:
            if not self.database.is_sqlite:
                found = _CLAIM_AND_READ.first(connection, wanted)
                return None if found is None else _to_claim(effect, token, *found)
            row = _CLAIM_CALL.first(connection, wanted)
            if row is None:
                return None
            asked_at = row.result_seq - row.position - 1
            run, reply = _READ_CLAIMED.one(connection, {"run": row.run_pk, "asked_at": asked_at})
        return _to_claim(effect, token, row, run, reply)

    def load_documents(self, session_pk: int, keys: Sequence[str]) -> dict[str, object]:
        """The session documents among ``keys`` that exist, decoded, by key. A key that ends in a colon stands for all
        keys that begin with it."""
        if not keys:
            return {}
        with self.database.read() as connection:
            rows = _READ_DOCUMENTS.all(connection, {"session": session_pk})
        begins = tuple(key for key in keys if key.endswith(":"))
        return {row.key: json.loads(row.body) for row in rows if row.key in keys or row.key.startswith(begins)}

    def load_kept_result(self, session_pk: int, key: str) -> str | None:
        """The full text of a long result of the session; ``None`` when there is none under this key."""
        here = (session_documents.c.session_pk == session_pk) & (session_documents.c.key == key)
        with self.database.read() as connection:
            body = connection.execute(sa.select(session_documents.c.body).where(here)).scalar()
            prefix = find_prefix(connection, session_pk) if body is None else None
        if prefix is not None:
            return self.load_kept_result(prefix.session_pk, key)
        return None if body is None else str(json.loads(body))

    def load_spec(self, run_pk: int) -> RunSpec:
        """Load what was submitted for a run. Raises ``ValueError`` when it is unreadable."""
        with self.database.read() as connection:
            return load_spec(connection, run_pk)

    def settle(self, claim: CallClaim, settlement: Settlement) -> list[Hint]:
        """Write the result of a call, and return the hints for what follows when it is the last one of its segment.
        Safe to repeat: the second time the token is gone. Raises ``LeaseLost`` when the claim was taken away."""
        if claim.whole_run is not None:
            try:
                return self._settle_as_claimed(claim, claim.whole_run, settlement)
            except StateMoved:
                pass  # the run changed since the claim (a stop, say): decide again on what it is now
        with self.database.write() as connection:
            if SETTLE_CALL.run(connection, _build_settled_call(claim, settlement)) == 0:
                raise lease_lost_error(claim)
            # The locked row is settled already; the decision needs the call as it was when we claimed it.
            before = _require_claim(lock_run_after_call(connection, claim.run_pk), claim)
            return save_step(
                connection, before, _apply_settlement(before, claim, settlement), _build_output(claim, settlement)
            )

    def _settle_as_claimed(self, claim: CallClaim, before: LoadedRun, settlement: Settlement) -> list[Hint]:
        """Settle a call that is alone in its iteration on the state read with the claim, which ``save`` verifies."""
        after = _apply_settlement(before, claim, settlement)
        additions = replace(_build_output(claim, settlement), settled_call=_build_settled_call(claim, settlement))
        return commit_step(self.database, before, after, additions)

    def delegate(
        self,
        claim: CallClaim,
        new: Sequence[NewChild],
        *,
        children_max: int,
        is_budget_shared: bool = True,
        note: str | None = None,
        turns_max: int = TURNS_MAX,
    ) -> list[Hint]:
        """Hand a call to child runs: make them, start as many as may work at once, and give the claim up. The end of
        the last child settles the call.

        With a ``note`` the note is the call's result at once, the run goes on, and the end of the last child begins a
        new run of the session. That is refused when ``turns_max`` runs of the chain were promised before or its budget
        is used up: then the call fails with a result that says so, and no child is made.

        Safe to repeat: the second time the token is gone. Raises ``LeaseLost``.
        """
        handed = _Handover(
            new=new, children_max=children_max, is_budget_shared=is_budget_shared, note=note, turns_max=turns_max
        )
        if claim.whole_run is not None and note is None:
            try:
                return self._delegate(claim, handed, claim.whole_run)
            except StateMoved:
                pass  # as in ``settle``
        return self._delegate(claim, handed, None)

    def _delegate(self, claim: CallClaim, handed: _Handover, known: LoadedRun | None) -> list[Hint]:
        """Delegate on the state ``known``, which ``save`` verifies, or, without it, on the state read under the run's
        lock."""
        with self.database.write() as connection:
            hand_over = _HAND_OVER_AND_WAIT if handed.note is None else _HAND_OVER
            if hand_over.run(connection, {**build_held_key(claim), "children_max": handed.children_max}) == 0:
                raise lease_lost_error(claim)
            loaded = known or _require_claim(lock_run_after_call(connection, claim.run_pk), claim)
            if loaded.run.status is RunStatus.STOPPING:
                cancelled = apply_event(loaded.run, ev.CallParked(position=claim.position, waits_for=WaitKind.CHILDREN))
                return save_step(connection, loaded, cancelled)
            if handed.note is None:
                hints = _park_for_children(connection, claim, loaded)
            else:
                loaded, refusal = _promise_turn(connection, loaded, handed)
                if refusal is not None:
                    mark_joined(connection, _to_parent_call(claim))
                    return _settle_handed_over(
                        connection, claim, loaded, CallStatus.FAILED, build_refusal_note(refusal)
                    )
                hints = _settle_handed_over(connection, claim, loaded, CallStatus.SUCCEEDED, handed.note)
            begun = insert_children(
                connection,
                loaded,
                claim.position,
                handed.new,
                children_max=handed.children_max,
                is_budget_shared=handed.is_budget_shared,
                is_background=handed.note is not None,
            )
            return hints + [replace(hint, group=claim.run_id) for hint in begun]

    def rewrite(self, claim: CallClaim, arguments: str) -> None:
        """Store the arguments with which a claimed call runs instead of the model's, in this and every later attempt.
        Safe to repeat. Raises ``LeaseLost``."""
        with self.database.statement() as connection:
            if _REWRITE.run(connection, {**build_held_key(claim), "arguments": arguments}) == 0:
                raise lease_lost_error(claim)

    def record_inner_calls(self, claim: CallClaim, calls: Sequence[InnerCall]) -> None:
        """Record which calls the script of a claimed call has begun, before the newest of them begins. Safe to repeat.
        Raises ``LeaseLost``: then that call must not begin."""
        with self.database.statement() as connection:
            if _NOTE_INNER.run(connection, {**build_held_key(claim), "inner": dump_calls(calls)}) == 0:
                raise lease_lost_error(claim)

    def begin(self, claim: CallClaim) -> None:
        """Record that the tool of a ``once`` call begins, before it does. Safe to repeat. Raises ``LeaseLost``: then
        the tool must not begin, because the claim was taken away as one that had not begun, and another worker may have
        the call."""
        with self.database.statement() as connection:
            if BEGIN_CALL.run(connection, build_held_key(claim)) == 0:
                raise lease_lost_error(claim)

    def release(self, claim: CallClaim, *, has_begun: bool = True) -> list[Hint]:
        """Give a claim back so that another worker takes the call now. A ``once`` call can be given back as long as it
        has not begun. Raises ``LeaseLost``."""
        event = ev.CallReleased(position=claim.position, has_begun=has_begun)
        with self.database.write() as connection:
            loaded = lock_claimed_run(connection, claim)
            return save_step(connection, loaded, apply_event(loaded.run, event))


def _to_claim(effect: RunTool, token: str, row: _ClaimedCall, run: RunRow, reply: ReplyRow) -> CallClaim:
    said = json.loads(reply.reply)
    calls = said["tool_calls"]
    asked = calls[row.position]
    # A call that is alone in its iteration can be decided on without reading others; see ``settle``.
    loaded = to_loaded(run, [_to_call_row(effect, row)]) if run.call_count == 1 else to_record(run)
    return CallClaim(
        token=token,
        run_pk=row.run_pk,
        run_id=effect.run_id,
        session_pk=run.session_pk,
        iteration=effect.iteration,
        position=row.position,
        attempt=effect.attempt,
        result_seq=row.result_seq,
        request=ToolRequest(
            id=asked["id"],
            name=row.name,
            arguments=row.approved_arguments
            or row.rewritten_arguments
            or find_written_arguments(asked["function"], row.name),
        ),
        is_approved=row.approved_arguments is not None,
        is_rewritten=row.rewritten_arguments is not None,
        has_asked=row.asks is not None,
        neighbours=tuple(call["function"]["name"] for call in calls),
        precedent=parse_precedent(said[GUARD_FIELD].get(str(row.position))) if GUARD_FIELD in said else NO_PRECEDENT,
        replay=Replay(row.replay),
        timeout_s=row.timeout_s,
        claimed_at=row.claimed_at,
        is_watched=loaded.is_watched,
        loaded=loaded,
    )


def _to_call_row(effect: RunTool, row: _ClaimedCall) -> CallRow:
    """Build the call's row as the claim left it."""
    return CallRow(
        position=row.position,
        name=row.name,
        replay=row.replay,
        segment=row.segment,
        status=CallStatus.RUNNING.value,
        waits_for=None,
        asks=0,
        attempt=effect.attempt,
        deaths=row.call_deaths,
        timeout_s=row.timeout_s,
        result_seq=row.result_seq,
    )


def _build_settled_call(claim: CallClaim, settlement: Settlement) -> SettledCall:
    return {**build_held_key(claim), "call_status": settlement.status.value}


def _apply_settlement(before: LoadedRun, claim: CallClaim, settlement: Settlement) -> Run:
    return apply_event(before.run, ev.CallSettled(position=claim.position, status=settlement.status))


def _build_output(claim: CallClaim, settlement: Settlement) -> StepOutput:
    body = build_tool_body(claim.request.id, settlement.text)
    # The result and the events of a call that was lost with its host are written by the step itself.
    is_known = settlement.status is not CallStatus.UNKNOWN or OUTCOME_UNKNOWN not in settlement.text
    return StepOutput(
        messages=[Message(seq=claim.result_seq, role=Role.TOOL, body=body)] if is_known else [],
        events=[build_started_event(claim), _build_completed_event(claim, settlement)] if is_known else [],
        written_calls=frozenset({claim.position}),
        documents=[
            {"session_pk": claim.session_pk, "key": key, "body": dump_canonical_json(value)}
            for key, value in settlement.session_updates.items()
            if value is not None
        ],
        documents_gone=[key for key, value in settlement.session_updates.items() if value is None],
    )


def _park_for_children(connection: Connection, claim: CallClaim, loaded: LoadedRun) -> list[Hint]:
    waiting = apply_event(loaded.run, ev.CallParked(position=claim.position, waits_for=WaitKind.CHILDREN))
    return save_step(
        connection,
        loaded,
        waiting,
        StepOutput(events=[build_started_event(claim)], written_calls=frozenset({claim.position})),
    )


def _promise_turn(connection: Connection, loaded: LoadedRun, handed: _Handover) -> tuple[LoadedRun, str | None]:
    """Count the run that the background answer will begin in the budget of the chain, which the chain has from now on.
    Returns the run, and why there shall be no such run, or ``None``. The caller holds the run's row."""
    create_tree_budget(connection, loaded)
    budget_pk = loaded.budget_pk or loaded.pk
    loaded = replace(loaded, budget_pk=budget_pk)
    budget, turns = lock_turns(connection, budget_pk)
    refusal = explain_background_refusal(
        budget, turns=turns, turns_max=handed.turns_max, is_shared=handed.is_budget_shared
    )
    if refusal is None:
        promise_turn(connection, budget_pk)
    return loaded, refusal


def _to_parent_call(claim: CallClaim) -> ParentCall:
    return ParentCall(run_pk=claim.run_pk, iteration=claim.iteration, position=claim.position)


def _settle_handed_over(
    connection: Connection, claim: CallClaim, loaded: LoadedRun, status: CallStatus, note: str
) -> list[Hint]:
    """Settle a call that works in the background, with ``note`` as its result."""
    done = Settlement(status=status, text=note, duration_s=0.0, session_updates={})
    additions = StepOutput(
        messages=[Message(seq=claim.result_seq, role=Role.TOOL, body=build_tool_body(claim.request.id, note))],
        events=[build_started_event(claim), _build_completed_event(claim, done)],
    )
    settled = apply_event(loaded.run, ev.CallSettled(position=claim.position, status=done.status))
    return save_step(connection, loaded, settled, additions)


def build_started_event(claim: CallClaim) -> RunEvent:
    """Build the event that the call began, dated to when it did. It becomes a row together with the result; until then
    the live stream shows it."""
    tool, arguments = claim.request.name, claim.request.arguments
    data = {
        "tool": tool,
        "preview": redact_code(arguments[:_PREVIEW_LOOKS_AT_CHARS])[:PREVIEW_CHARS],
        "tool_call_id": claim.request.id,
        "iteration": claim.iteration,
        "position": claim.position,
        "attempt": claim.attempt,
    }
    if len(arguments) > PREVIEW_CHARS:  # else the preview is all of them, and readers describe it
        data["about"] = redact_code(describe_call(tool, arguments))[:ABOUT_CHARS_MAX]
    return RunEvent(name=RunEventName.TOOL_STARTED, data=data, at=claim.claimed_at)


def _require_claim(loaded: LoadedRun, claim: CallClaim) -> LoadedRun:
    calls = loaded.run.calls
    ours = replace(calls[claim.position], status=CallStatus.RUNNING, waits_for=None)
    return replace_calls(loaded, (*calls[: claim.position], ours, *calls[claim.position + 1 :]))


_DOUBTFUL: Final = {CallStatus.UNKNOWN: {"outcome": CallStatus.UNKNOWN.value, "is_answered": True}}
"""Event data for a call whose tool came back and does not know what it did."""


def _build_completed_event(claim: CallClaim, settlement: Settlement) -> RunEvent:
    data = {
        "tool": claim.request.name,
        "tool_call_id": claim.request.id,
        "iteration": claim.iteration,
        "position": claim.position,
        "duration": round(settlement.duration_s, 3),
        "error": settlement.status is not CallStatus.SUCCEEDED,
        **_DOUBTFUL.get(settlement.status, {}),
        **(settlement.refusal.build_event_fields() if settlement.refusal else {}),
        **({"sandbox": settlement.sandbox} if settlement.sandbox else {}),
        **({"network": settlement.network} if settlement.network else {}),
    }
    return RunEvent(name=RunEventName.TOOL_COMPLETED, data=data)
