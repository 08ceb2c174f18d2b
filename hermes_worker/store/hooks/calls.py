"""Call observers: claim a pending call, load the facts of its event, record the outcome."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.effects import CallHook
from hermes_worker.core.errors import LeaseLost
from hermes_worker.core.hooks import HookCallState, list_beginning_calls
from hermes_worker.core.run_events import RunEvent, RunEventName
from hermes_worker.core.run_views import HookCallView
from hermes_worker.store.engine.database import RowStore, db_now
from hermes_worker.store.engine.prepared import fetch_views, select_view_columns
from hermes_worker.store.engine.sealing import coalesce_texts
from hermes_worker.store.hooks.pending_calls import enqueue_beginning
from hermes_worker.store.restore_detection import is_no_copy
from hermes_worker.store.rows import Hint, lock_run, make_storable
from hermes_worker.store.runs.step_plan import StepOutput
from hermes_worker.store.runs.step_writer import save_step
from hermes_worker.store.tables import blobs, events, hook_calls, messages, runs, sessions, tool_calls

_REASON_CHARS_MAX = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class HookCallClaim:
    """The right to tell one hook of one event. Good only while ``token`` is in its row."""

    token: str
    pk: int
    event_id: str
    hook: str
    event: str
    run_pk: int
    event_seq: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HookFacts:
    """The facts about an event, from its rows. Texts are as they are stored: secrets are redacted in transcripts."""

    run_id: str
    session_id: str
    tenant: str
    model: str
    origin: str
    status: str
    exit_reason: str | None
    failure: str | None
    parent_run_id: str | None
    parent_session_id: str | None
    data: Mapping[str, Any] = field(default_factory=dict)
    """The data of the run's event."""
    opening: str | None = None
    """The transcript row of the run's input."""
    output: str | None = None
    """The transcript row of its answer."""
    reply: str | None = None
    """The transcript row of the reply that asked for the tool call."""
    arguments: str | None = None
    """The arguments that the call ran with, where they differ from those in the reply."""
    result: str | None = None
    """The transcript row of the tool's result, or of the reply that was committed."""


class _ClaimedHookCall(NamedTuple):
    pk: int
    event: str
    run_pk: int
    event_seq: int


class _FactsRow(NamedTuple):
    run_id: str
    session_id: str
    tenant: str
    model: str
    origin: str | None
    status: str
    exit_reason: str | None
    failure_message: str | None
    session_pk: int
    output_seq: int | None
    parent_pk: int | None
    data: str | None


class HookCalls(RowStore):
    """The calls of observers in one database. Thread-safe."""

    def claim(self, effect: CallHook, owner: int) -> HookCallClaim | None:
        """Claim a call; ``None`` when it is not available (done, taken, or stale). Of any number of workers with the
        same message exactly one gets it."""
        token = secrets.token_hex(16)
        with self.database.statement() as connection:
            found = connection.execute(
                sa.update(hook_calls)
                .where(
                    hook_calls.c.event_id == effect.event_id,
                    hook_calls.c.hook == effect.hook,
                    hook_calls.c.hinted_at.is_not(None),
                    hook_calls.c.attempts == effect.attempt - 1,
                    is_no_copy(),
                )
                .values(
                    state=HookCallState.RUNNING.value,
                    attempts=hook_calls.c.attempts + 1,
                    lease_token=token,
                    lease_owner=owner,
                    claimed_at=db_now(),
                    hinted_at=None,
                    hints=0,
                )
                .returning(hook_calls.c.pk, hook_calls.c.event, hook_calls.c.run_pk, hook_calls.c.event_seq)
            ).first()
        if found is None:
            return None
        row = _ClaimedHookCall._make(found)
        return HookCallClaim(
            token=token,
            pk=row.pk,
            event_id=effect.event_id,
            hook=effect.hook,
            event=row.event,
            run_pk=row.run_pk,
            event_seq=row.event_seq,
            attempt=effect.attempt,
        )

    def load_facts(self, claim: HookCallClaim) -> HookFacts:
        """Load what the rows say about the event of a claimed call."""
        with self.database.read() as connection:
            row = _FactsRow._make(connection.execute(_select_facts(claim)).one())
            data = json.loads(row.data) if row.data else {}
            parent = connection.execute(_select_ids(row.parent_pk)).first() if row.parent_pk is not None else None
            texts = _load_texts(connection, claim, row, data)
        return HookFacts(
            run_id=row.run_id,
            session_id=row.session_id,
            tenant=row.tenant,
            model=row.model,
            origin=row.origin or "",
            status=row.status,
            exit_reason=row.exit_reason,
            failure=row.failure_message,
            parent_run_id=parent.run_id if parent else None,
            parent_session_id=parent.session_id if parent else None,
            data=data,
            **texts,
        )

    def settle(self, claim: HookCallClaim, failure: str | None = None) -> None:
        """Record that the hook was called, or in ``failure`` why not. Raises ``LeaseLost``."""
        state = HookCallState.DONE if failure is None else HookCallState.FAILED
        reason = None if failure is None else make_storable(failure)[:_REASON_CHARS_MAX]
        self._update_claimed(claim, state=state.value, reason=reason, settled_at=db_now())

    def _update_claimed(self, claim: HookCallClaim, **values: Any) -> None:
        changed = self.database.execute(
            sa.update(hook_calls)
            .where(hook_calls.c.pk == claim.pk, hook_calls.c.lease_token == claim.token)
            .values(lease_token=None, lease_owner=None, **values)
        )
        if changed == 0:
            raise LeaseLost(f"the claim on {claim.event_id!r} for {claim.hook!r} was taken over; nothing was written")

    def record_run_begin(self, run: tuple[int, str], *, is_child: bool, is_first: bool) -> list[Hint]:
        """Insert the calls of observers of the beginning of runs, for ``run``, its row id and its id. Returns the hints
        to send. Idempotent."""
        with self.database.write() as connection:
            owed = list_beginning_calls(self.database.observed, is_child=is_child, is_first=is_first)
            return enqueue_beginning(connection, run, owed)

    def record_failure(self, run_pk: int, *, hook: str, event: str, reason: str) -> None:
        """Add an event to the run that a hook failed. Nothing is written for a run that has ended, because its last
        event is its end. Not idempotent: a repetition adds a second event."""
        data = {"hook": hook, "hook_event": event, "reason": make_storable(reason)[:_REASON_CHARS_MAX]}
        with self.database.write() as connection:
            loaded = lock_run(connection, run_pk)
            if loaded is None or loaded.run.status.is_terminal:
                return
            save_step(
                connection, loaded, loaded.run, StepOutput(events=[RunEvent(name=RunEventName.HOOK_FAILED, data=data)])
            )

    def list(self, *, run_id: str | None = None, limit: int = 100) -> list[HookCallView]:
        """List the newest rows first, of one run or of all."""
        wanted = (
            sa.select(*select_view_columns(hook_calls, HookCallView), runs.c.run_id)
            .join(runs, runs.c.pk == hook_calls.c.run_pk)
            .order_by(hook_calls.c.pk.desc())
            .limit(limit)
        )
        if run_id is not None:
            wanted = wanted.where(runs.c.run_id == run_id)
        return fetch_views(self.database.select(wanted), HookCallView)


def _select_facts(claim: HookCallClaim) -> sa.Select[Any]:
    happened = sa.and_(events.c.run_pk == runs.c.pk, events.c.seq == claim.event_seq)
    return (
        sa.select(
            runs.c.run_id,
            sessions.c.session_id,
            runs.c.tenant,
            runs.c.model,
            runs.c.origin,
            runs.c.status,
            runs.c.exit_reason,
            runs.c.failure_message,
            runs.c.session_pk,
            runs.c.output_seq,
            runs.c.parent_pk,
            events.c.data,
        )
        .select_from(runs.join(sessions, sessions.c.pk == runs.c.session_pk).outerjoin(events, happened))
        .where(runs.c.pk == claim.run_pk)
    )


def _select_ids(run_pk: int) -> sa.Select[Any]:
    return (
        sa.select(runs.c.run_id, sessions.c.session_id)
        .join(sessions, sessions.c.pk == runs.c.session_pk)
        .where(runs.c.pk == run_pk)
    )


def _load_texts(
    connection: Connection, claim: HookCallClaim, row: _FactsRow, data: Mapping[str, Any]
) -> dict[str, Any]:
    """Load the rows of the transcript that the event is about, by the fields of ``HookFacts``."""
    first = sa.select(sa.func.min(messages.c.seq)).where(
        messages.c.session_pk == row.session_pk, messages.c.run_pk == claim.run_pk
    )
    found = {"opening": _load_body(connection, row, connection.execute(first).scalar())}
    if row.output_seq is not None:
        found["output"] = _load_body(connection, row, row.output_seq)
    if "position" in data and "iteration" in data:
        call = connection.execute(
            sa.select(
                tool_calls.c.result_seq,
                coalesce_texts(tool_calls.c.approved_arguments, tool_calls.c.rewritten_arguments).label("arguments"),
            ).where(
                tool_calls.c.run_pk == claim.run_pk,
                tool_calls.c.iteration == data["iteration"],
                tool_calls.c.position == data["position"],
            )
        ).first()
        if call is not None:
            result_seq, found["arguments"] = call
            found["result"] = _load_body(connection, row, result_seq)
            found["reply"] = _load_body(connection, row, result_seq - int(data["position"]) - 1)
    elif isinstance(data.get("message_seq"), int):
        found["result"] = _load_body(connection, row, data["message_seq"])
    return found


def _load_body(connection: Connection, row: _FactsRow, seq: int | None) -> str | None:
    wanted = (
        sa.select(coalesce_texts(messages.c.body, blobs.c.body))
        .select_from(messages.outerjoin(blobs, blobs.c.hash == messages.c.blob_hash))
        .where(messages.c.session_pk == row.session_pk, messages.c.seq == seq)
    )
    found: str | None = connection.execute(wanted).scalar()
    return found
