"""Runs: accept them, claim their model calls, commit replies, stop them."""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypedDict

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core import events as ev
from hermes_worker.core.budget import Amounts, Dimension, is_wall_spent
from hermes_worker.core.effects import Effect, Iterate, Prepare, TurnEffect
from hermes_worker.core.errors import Failure, HermesError, LeaseLost, UnavailableError
from hermes_worker.core.fair_share import FleetPlace
from hermes_worker.core.messages import Message, ModelReply, Role, Usage, build_assistant_body, dump_canonical_json
from hermes_worker.core.pricing import (
    NOTHING_SPENT,
    Cost,
    CostStatus,
    Spent,
    choose_worst,
    count_unpriced_calls,
    to_doubtful_nano_usd,
    to_nano_usd,
)
from hermes_worker.core.principals import DEFAULT_TENANT
from hermes_worker.core.prompt_places import AssembledPrompt, Gap, PromptPlace, fill_gaps, find_gap
from hermes_worker.core.recovery_state import RecoveryState, dump_recovery_state
from hermes_worker.core.run import STATE_VERSION, TERMINAL, ExitReason, RunStatus
from hermes_worker.core.run_events import RunEvent, RunEventName
from hermes_worker.core.sources import RequestKeys, SessionLabel, is_session_id
from hermes_worker.core.spec import SPECIFIED, Multitask, RunSpec, RunTerms
from hermes_worker.core.step import apply_event
from hermes_worker.core.titles import build_run_title
from hermes_worker.observe import log
from hermes_worker.safety.redaction import redact
from hermes_worker.store.access import idempotency_keys as keys
from hermes_worker.store.access.audit import Act, AuditEntry, record_action, record_actions
from hermes_worker.store.clock import is_clock_trusted
from hermes_worker.store.engine.database import Database, db_now
from hermes_worker.store.engine.prepared import Prepared, fetch_row, select_columns
from hermes_worker.store.prefixes import load_system_prompt
from hermes_worker.store.rewinds import Rewind, match_calls_of, record_rewind
from hermes_worker.store.row_keys import SessionKey
from hermes_worker.store.rows import (
    RUN_COLUMNS,
    Hint,
    LoadedRun,
    RunRow,
    build_insert_ignoring,
    insert_messages,
    is_suspect,
    lock_run,
    make_storable,
    replace_calls,
    store_blob,
    to_loaded,
)
from hermes_worker.store.runs import budgets, sharing, steering
from hermes_worker.store.runs.admission import fill_places
from hermes_worker.store.runs.chains import stop_caused, stop_run
from hermes_worker.store.runs.inputs import insert_specs, require_spec
from hermes_worker.store.runs.limits import require_within_limits
from hermes_worker.store.runs.permits import has_limits, pass_permits_on, require_permit
from hermes_worker.store.runs.step_plan import StepOutput, build_event_rows, build_exhausted_event
from hermes_worker.store.runs.step_statements import INSERT_EVENT, DocumentRow
from hermes_worker.store.runs.step_writer import (
    StateMoved,
    activate,
    begin_run,
    commit_step,
    end_broken,
    hold_for_place,
    save_step,
)
from hermes_worker.store.runs.transcripts import SESSIONS_KEPT
from hermes_worker.store.statistics import add_amounts, build_model_amounts
from hermes_worker.store.tables import blobs, deleted_runs, run_tags, runs, sessions, tool_calls


class RunNotFound(HermesError):
    """No run has this id."""


class RunDeleted(RunNotFound):
    """The run of this id was deleted (docs/retention.md)."""


class SessionNotFound(HermesError):
    """No session has this id."""


class SessionErased(SessionNotFound):
    """The session is being erased (docs/erasure.md)."""


class SessionBusy(HermesError):
    """Too many runs already wait in this session."""


class SessionActive(HermesError):
    """The session has an active run, and the submission is not to wait for it."""


class SessionMoved(HermesError):
    """The session is no longer where the submission takes it to be."""


class _ActiveRunChanged(Exception):
    """Another run became the session's active one between two reads; read again."""


GOES_FIRST = -100
"""The rank of a run for which another was stopped: before all others of its tenant."""
SESSION_QUEUE_MAX = 32
"""Runs that may wait in one session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NudgedRuns:
    """The state of runs that nudges named; ids of unknown runs are in neither set."""

    stopping: frozenset[str]
    """Runs that were asked to stop, or have ended: work for them is to be given up."""
    watched: frozenset[str]
    """Runs whose streams a client follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun(RunTerms):
    """Everything ``Runs.create`` needs."""

    spec: RunSpec
    tenant: str = DEFAULT_TENANT
    principal: str | None = None
    """The principal who submits the run (``core.principals``); ``None`` when the product does."""
    run_id: str | None = None
    """``run_`` and 32 hexadecimal digits, for a caller who must know the id before the run exists."""
    system_prompt: str
    """Stored with a new session, and used as stored ever after (invariant I7)."""
    gaps: tuple[Gap, ...] = ()
    """Where in the prompt ``blocks`` and the files of the project may stand."""
    prepares: bool = False
    """The workspace of a new session is read before the run's first model call."""
    blocks: Callable[[Connection], Mapping[PromptPlace, str]] | None = None
    """Reads the parts of a new session's prompt that stand in rows. Called in the transaction that opens the session,
    and for no other run, so that later runs of the session pay nothing."""
    tools: str
    """The tool definitions of a new session: a JSON array in its final bytes."""
    workspace: str
    """The workspace of a new session, as JSON."""
    fingerprint: str = ""
    """Hash of the request that ``idempotency_key`` stands for."""
    deliver: Sequence[str] = ()
    """Targets to which the end of the run is delivered."""
    is_held: bool = False
    """Do not begin, even when the session is free: ``begin_held`` begins it."""
    retry_of: str | None = None
    """The id of the run whose submission this repeats."""
    skills: str | None = None
    """The hash of the set of skills that the run may see until its end (``features.skills.rows``)."""
    open_session: Callable[[Connection], None] | None = None
    """Opens the session ``session_id`` in the transaction that accepts the run, once it is certain that it is new."""

    @property
    def is_put_off(self) -> bool:
        """The run may have to wait for a time."""
        return self.not_before is not None or bool(self.delay_s)

    @property
    def keys(self) -> RequestKeys:
        return RequestKeys(
            tenant=self.tenant,
            source=self.spec.source,
            key=self.idempotency_key,
            fingerprint=self.fingerprint,
            proof=self.proof,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Created:
    run_id: str
    session_id: str
    """How its caller names the session in later requests: by the name it gave, or by the id."""
    hints: Sequence[Hint]
    was_replayed: bool
    """An earlier request with the same idempotency key made this run; nothing new was written."""
    was_steered: bool = False
    """No run was made: the text was said to the run ``run_id``, which is at work."""
    interrupted: str | None = None
    """The id of the run that is being stopped for this one; ``None`` when there is none."""
    not_before: float | None = None
    """Epoch seconds at which it begins, if that is later."""
    is_held: bool = False
    """It could begin, and waits for a place in a fleet that several tenants share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopResult:
    """The outcome of a request to stop."""

    status: RunStatus
    """The status of the run itself."""
    run_ids: Sequence[str]
    """The ids of the run and of everything it caused that had not ended: the workers that hold their steps are to be
    nudged."""
    hints: Sequence[Hint]
    was_new: bool
    """The run was at work until now."""

    @property
    def caused_run_ids(self) -> Sequence[str]:
        """The runs that were stopped with it: children, and turns that background answers began."""
        return self.run_ids[1:]


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationClaim:
    """The right to make one model call. Good only while ``token`` is in the run's row."""

    token: str
    loaded: LoadedRun

    @property
    def run_id(self) -> str:
        return self.loaded.run.run_id


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionContext:
    """The beginning of every prompt of a session. Immutable, so a worker may cache it."""

    session_id: str
    system_prompt: str
    tools: str
    workspace: str
    tenant: str = DEFAULT_TENANT
    is_fork: bool = False
    """It was forked from another session, so its calls may have been made before."""


class _TurnKey(TypedDict):
    id: str
    iter: int
    att: int
    suspect: int
    token: str
    owner: int


class _TurnClaimed(_TurnKey):
    budget: int


class _SessionRow(NamedTuple):
    session_id: str
    tenant: str
    system_prompt: str
    context_at: int | None
    workspace: str
    forked_from: str | None
    tools: str


class _UnpreparedSession(NamedTuple):
    system_prompt: str
    context_at: int | None


class _HeldRow(NamedTuple):
    run_id: str
    session_pk: int
    place: int | None
    message_seq: int


class _LockedSession(NamedTuple):
    pk: int
    active_run_pk: int | None
    message_seq: int
    erasure_pk: int | None
    context_at: int | None


_claiming = (
    sa.update(runs)
    .where(
        runs.c.run_id == sa.bindparam("id"),
        runs.c.hinted_at.is_not(None),
        runs.c.lease_token.is_(None),
        runs.c.iteration == sa.bindparam("iter"),
        runs.c.attempt == sa.bindparam("att"),
        is_suspect(runs) == sa.bindparam("suspect"),
        runs.c.state_version <= STATE_VERSION,
    )
    .values(
        status=RunStatus.RUNNING.value,
        lease_token=sa.bindparam("token"),
        lease_owner=sa.bindparam("owner"),
        claimed_at=db_now(),
        hinted_at=None,
        hints=0,
        started_at=sa.func.coalesce(runs.c.started_at, db_now()),
        updated_at=db_now(),
    )
    .returning(*RUN_COLUMNS)
)
_CLAIM_ITERATION = Prepared(
    _claiming.where(
        sa.or_(runs.c.prepares.is_(None), runs.c.iteration > 0),
        sa.case((runs.c.has_budget > 0, 1), else_=0) == sa.bindparam("budget"),
    ),
    takes=_TurnClaimed,
    gives=RunRow,
)
_CLAIM_PREPARATION = Prepared(_claiming.where(runs.c.prepares.is_not(None)), takes=_TurnKey, gives=RunRow)

_READ_SESSION = Prepared(
    sa.select(
        sessions.c.session_id,
        sessions.c.tenant,
        sessions.c.system_prompt,
        sessions.c.context_at,
        sessions.c.workspace,
        sessions.c.forked_from,
        blobs.c.body.label("tools"),
    )
    .join(blobs, blobs.c.hash == sessions.c.tools_hash)
    .where(sessions.c.pk == sa.bindparam("session")),
    takes=SessionKey,
    gives=_SessionRow,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRow:
    """A row of the transcript that replaces earlier ones in prompts."""

    body: str
    rows: int
    number: int
    """How many compactions the turn has had, including this one."""
    usage: Usage


class Runs:
    """The runs in one database. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._sessions: OrderedDict[int, SessionContext] = OrderedDict()
        self._lock = threading.Lock()
        self._found_place = True
        """The last submission that was held began at once."""

    def create(self, new: NewRun, also: Callable[[Connection, Created], None] | None = None) -> Created:
        """Accept a run durably. Idempotent under ``new.idempotency_key``. ``also`` makes further writes in the same
        transaction; an exception in it rolls back everything.

        Raises ``IdempotencyConflict`` when the key belongs to another request, ``RequestReplayed`` when the signed
        request was accepted under another key, ``SessionNotFound`` for an id that no session has, ``SessionBusy`` when
        32 runs already wait in the session, ``SessionActive`` when it has an active run and ``new.multitask`` is
        reject, ``SessionMoved`` when it is not where ``new.after`` says, and ``core.limits.LimitReached``.
        """
        created = self.create_unplaced(new, also)
        if not created.is_held:
            return created
        hints = fill_places(self._database, expects_place=self._found_place)
        self._found_place = bool(hints)
        return replace(created, hints=hints)

    def create_unplaced(self, new: NewRun, also: Callable[[Connection, Created], None] | None = None) -> Created:
        """Do what ``create`` does, and leave it to the sweeper to give the run a place: nobody sees yet what an open
        transaction wrote."""
        while True:
            try:
                with self._database.write() as connection:
                    earlier = keys.find_earlier(connection, new.keys)
                    if earlier is not None:
                        return _replay_created(connection, new, earlier)
                    require_within_limits(connection, new.tenant, new.principal)
                    if new.open_session is not None:
                        new.open_session(connection)
                    if new.multitask is not Multitask.QUEUE and new.session_id is not None and not new.is_put_off:
                        created = _admit(connection, new, new.session_id)
                    else:
                        created = insert_run(connection, new)[1]
                    record_submissions(connection, [(new, created)])
                    if also is not None:
                        also(connection, created)
                    return created
            except _ActiveRunChanged:
                continue
            except keys.KeyTaken:
                continue  # by a concurrent request, whose run the next round finds

    def claim_iteration(self, effect: Iterate, owner: int) -> IterationClaim | None:
        """Claim the model call that ``effect`` names; ``None`` when it is not available (done, taken, or stale). One
        statement: of any number of workers with the same message exactly one gets a row."""
        token = secrets.token_hex(16)
        wanted: _TurnKey = {
            "id": effect.run_id,
            "iter": effect.iteration - 1,
            "att": effect.attempt,
            "suspect": int(effect.is_suspect),
            "token": token,
            "owner": owner,
        }
        with self._database.statement() as connection:
            row = _CLAIM_ITERATION.first(connection, {**wanted, "budget": 0})
        loaded = self._claim_with_budget(wanted) if row is None else to_loaded(row, ())
        if loaded is None or not self._is_permitted(loaded):
            return None
        return IterationClaim(token=token, loaded=self._exhaust_if_late(loaded))

    def claim_preparation(self, effect: Prepare, owner: int) -> IterationClaim | None:
        """Claim the preparation before a run's first model call; ``None`` when it is not available. One statement, as
        in ``claim_iteration``. The claim is lost, taken away and given up as a model call's."""
        token = secrets.token_hex(16)
        wanted: _TurnKey = {
            "id": effect.run_id,
            "iter": 0,
            "att": effect.attempt,
            "suspect": int(effect.is_suspect),
            "token": token,
            "owner": owner,
        }
        with self._database.statement() as connection:
            row = _CLAIM_PREPARATION.first(connection, wanted)
        return None if row is None else IterationClaim(token=token, loaded=to_loaded(row, ()))

    def commit_preparation(
        self, claim: IterationClaim, section: str, documents: Mapping[str, object] = MappingProxyType({})
    ) -> list[Hint]:
        """Write what the workspace says into the prompt of the session, and give the claim up. Written once: when the
        worker of an earlier run did it, its bytes stay. ``documents`` of the session are written with it. Raises
        ``LeaseLost``."""
        with self._database.write() as connection:
            loaded = lock_run(connection, claim.loaded.pk)
            if loaded is None or loaded.lease_token != claim.token:
                raise LeaseLost(f"the claim on what run {claim.run_id!r} begins with was taken over")
            written = () if loaded.run.status is RunStatus.STOPPING else tuple(documents.items())
            if not _complete_prompt(connection, loaded.session_pk, section):
                written = ()
            connection.execute(sa.update(runs).where(runs.c.pk == loaded.pk).values(prepares=None))
            rows: list[DocumentRow] = [
                {"session_pk": loaded.session_pk, "key": key, "body": dump_canonical_json(value)}
                for key, value in written
            ]
            return save_step(
                connection,
                loaded,
                apply_event(loaded.run, ev.PromptCompleted()),
                StepOutput(is_of_holder=True, documents=rows),
            )

    def _is_permitted(self, loaded: LoadedRun) -> bool:
        """Whether the claimed call may be made; if not, the claim is given up and the run waits as a row."""
        if loaded.place is None or not has_limits(self._database):
            return True
        return require_permit(self._database, loaded, self.load_session_context(loaded.session_pk).tenant)

    def _claim_with_budget(self, wanted: _TurnKey) -> LoadedRun | None:
        """Claim the model call of a run that draws from a budget, and reserve it there, in one transaction."""
        with self._database.write() as connection:
            row = _CLAIM_ITERATION.first(connection, {**wanted, "budget": 1})
            if row is None:
                return None
            loaded = to_loaded(row, ())
            if loaded.run.wants_summary:
                return loaded  # a summary is not counted
            granted = budgets.reserve_call(connection, loaded)
            if isinstance(granted, Dimension):
                return _mark_exhausted(connection, loaded, granted)
            return replace(loaded, reserved=granted)

    def _exhaust_if_late(self, loaded: LoadedRun) -> LoadedRun:
        """Return the claimed run; when its time is almost over, it may only write a summary."""
        if loaded.run.wants_summary or not is_wall_spent(loaded.left_s, loaded.wall_s):
            return loaded
        with self._database.write() as connection:
            is_spent = is_clock_trusted(connection)
            return _mark_exhausted(connection, loaded, Dimension.WALL_CLOCK) if is_spent else loaded

    def load_output_schema(self, run_pk: int) -> Mapping[str, object] | None:
        """Load the JSON schema that the answer of a run has to fit; ``None`` when there is none. Raises
        ``CorruptInput``."""
        with self._database.read() as connection:
            return require_spec(connection, run_pk).output_schema

    def load_session_context(self, session_pk: int) -> SessionContext:
        """Load the beginning of the session's prompts. It never changes, so the last ones are cached in memory."""
        with self._lock:
            kept = self._sessions.get(session_pk)
            if kept is not None:
                self._sessions.move_to_end(session_pk)
                return kept
        with self._database.read() as connection:
            row = _READ_SESSION.one(connection, {"session": session_pk})
            is_fork = row.forked_from is not None
            inherits = is_fork and not row.system_prompt
            prompt = load_system_prompt(connection, session_pk) if inherits else row.system_prompt
        context = SessionContext(
            session_id=row.session_id,
            tenant=row.tenant,
            system_prompt=prompt,
            tools=row.tools,
            workspace=row.workspace,
            is_fork=is_fork,
        )
        if row.context_at is not None:
            return context  # its prompt is not whole yet
        with self._lock:
            self._sessions[session_pk] = context
            if len(self._sessions) > SESSIONS_KEPT:
                self._sessions.popitem(last=False)
        return context

    def set_title(self, claim: IterationClaim, title: str | None, *, usage: Usage, cost: Cost) -> None:
        """Set the title of the session of a run that has ended, and add the usage to the run; ``None`` leaves the title
        as it is."""
        loaded = claim.loaded
        nano_usd, doubtful = to_nano_usd(cost), to_doubtful_nano_usd(cost)
        with self._database.write() as connection:
            # The run's row is locked first, as everywhere.
            known, is_counted = connection.execute(
                sa.select(runs.c.cost_status, runs.c.is_counted).where(runs.c.pk == loaded.pk).with_for_update()
            ).one()
            connection.execute(
                sa.update(runs)
                .where(runs.c.pk == loaded.pk)
                .values(
                    input_tokens=runs.c.input_tokens + usage.input,
                    output_tokens=runs.c.output_tokens + usage.output,
                    cache_read_tokens=runs.c.cache_read_tokens + usage.cache_read,
                    cache_write_tokens=runs.c.cache_write_tokens + usage.cache_write,
                    reasoning_tokens=runs.c.reasoning_tokens + usage.reasoning,
                    estimated_tokens=runs.c.estimated_tokens + usage.estimated,
                    refused_attempts=runs.c.refused_attempts + usage.refused_attempts,
                    unknown_attempts=runs.c.unknown_attempts + usage.unknown_attempts,
                    unknown_input_tokens=runs.c.unknown_input_tokens + usage.unknown_input,
                    unknown_output_tokens=runs.c.unknown_output_tokens + usage.unknown_output,
                    cost_nano_usd=runs.c.cost_nano_usd + nano_usd,
                    doubtful_nano_usd=runs.c.doubtful_nano_usd + doubtful,
                    unpriced_calls=runs.c.unpriced_calls + count_unpriced_calls(cost),
                    cost_status=choose_worst(CostStatus(known) if known else None, cost.status).value,
                )
            )
            if is_counted:
                add_amounts(connection, build_model_amounts(loaded.model, usage, cost))
            if loaded.budget_pk is not None:
                spent = Amounts(tokens=usage.chargeable, nano_usd=nano_usd + doubtful)
                charge = budgets.Charge(given_back=Amounts(), spent=spent, unknown_costs=count_unpriced_calls(cost))
                budgets.settle_charge(connection, loaded.budget_pk, charge)
            if title is not None:
                connection.execute(sa.update(sessions).where(sessions.c.pk == loaded.session_pk).values(title=title))

    def commit_reply(
        self,
        claim: IterationClaim,
        reply: ModelReply,
        reading: Sequence[ev.PlannedCall] | ev.ModelReplied,
        cost: Cost | None = None,
    ) -> list[Hint]:
        """Write a reply, its usage and its calls, and give the claim up. Returns the hints to send. ``reading`` is what
        the reply means; calls alone mean an ordinary reply. Safe to repeat: the second time the token is gone. Raises
        ``LeaseLost`` when the claim was taken away."""
        event = reading if isinstance(reading, ev.ModelReplied) else ev.ModelReplied(calls=tuple(reading))

        def build_additions(loaded: LoadedRun) -> StepOutput:
            return replace(_build_reply_output(loaded, reply, event), cost=cost)

        return self._finish_iteration(claim, event, build_additions)

    def commit_discarded_reply(
        self, claim: IterationClaim, event: ev.AskedAgain | ev.ModelFailed, reply: ModelReply, cost: Cost | None = None
    ) -> list[Hint]:
        """Write what follows from a reply that is not stored, and its cost, and give the claim up. Raises
        ``LeaseLost``."""

        def build_additions(loaded: LoadedRun) -> StepOutput:
            data = {"iteration": loaded.run.iteration + 1, "finish_reason": reply.finish_reason}
            discarded = [RunEvent(name=RunEventName.REPLY_DISCARDED, data=data)]
            is_asked_again = isinstance(event, ev.AskedAgain) and loaded.run.status is not RunStatus.STOPPING
            return StepOutput(events=discarded if is_asked_again else (), usage=reply.usage, cost=cost)

        return self._finish_iteration(claim, event, build_additions)

    def commit_compaction(
        self, claim: IterationClaim, event: ev.AskedAgain, compaction: CompactionRow, cost: Cost | None = None
    ) -> list[Hint]:
        """Write a compaction and its cost, and give the claim up. Raises ``LeaseLost``."""

        return self._finish_iteration(claim, event, partial(_build_compaction_output, compaction, cost))

    def commit_requested_compaction(
        self, claim: IterationClaim, compaction: CompactionRow, cost: Cost | None = None
    ) -> list[Hint]:
        """Write a compaction that a person asked for, and its cost, as the answer of a run that asked for nothing else.
        Raises ``LeaseLost``."""

        def build_additions(loaded: LoadedRun) -> StepOutput:
            added = _build_compaction_output(compaction, cost, loaded)
            if not added.messages:
                return added
            data = {"iteration": loaded.run.iteration + 1, "message_seq": added.message_seq, "finish_reason": "stop"}
            answered = RunEvent(name=RunEventName.MESSAGE_COMPLETED, data=data)
            told = added.events if compaction.rows else ()
            return replace(added, events=[*told, answered], output_seq=added.message_seq)

        return self._finish_iteration(claim, ev.ModelReplied(), build_additions)

    def commit_failure(
        self,
        claim: IterationClaim,
        event: ev.ModelFailed | ev.CapacityAwaited | ev.RunBroken,
        spent: Spent = NOTHING_SPENT,
    ) -> list[Hint]:
        """Write how a model call ended without a reply, and what its attempts took, and give the claim up. Raises
        ``LeaseLost``."""
        added = StepOutput(usage=spent.usage, cost=spent.cost)
        if isinstance(event, ev.CapacityAwaited):
            added = replace(added, waits_for=event.reason, keys=event.keys)
        return self._finish_iteration(claim, event, lambda loaded: added)

    def release_iteration(self, claim: IterationClaim, spent: Spent = NOTHING_SPENT) -> list[Hint]:
        """Give an unfinished model call back so that another worker takes it now, and write what its attempts took.
        Raises ``LeaseLost``."""
        return self._finish_iteration(
            claim, ev.IterationReleased(), lambda loaded: StepOutput(usage=spent.usage, cost=spent.cost)
        )

    def _finish_iteration(
        self, claim: IterationClaim, event: ev.Event, additions: Callable[[LoadedRun], StepOutput]
    ) -> list[Hint]:
        loaded: LoadedRun = claim.loaded
        while True:
            after, added = apply_event(loaded.run, event), replace(additions(loaded), is_of_holder=True)
            try:
                hints = commit_step(self._database, loaded, after, added)
            except StateMoved:
                loaded = self._require_claim(claim)
                continue
            if loaded.place is not None:
                hints += self._hand_on_capacity(loaded, after.status)
            return hints

    def _hand_on_capacity(self, loaded: LoadedRun, status: RunStatus) -> list[Hint]:
        """Return hints for other runs of a shared fleet that may go on now. If this fails, the sweeper does it
        again."""
        hints = fill_places(self._database) if status.is_terminal else []
        try:
            if has_limits(self._database):
                hints += pass_permits_on(self._database, self.load_session_context(loaded.session_pk).tenant)
            return hints
        except UnavailableError as error:
            log.warning("permits.put_off", error=str(error))
            return hints

    def _require_claim(self, claim: IterationClaim) -> LoadedRun:
        with self._database.write() as connection:
            loaded = lock_run(connection, claim.loaded.pk)
        if loaded is None or loaded.lease_token != claim.token:
            raise LeaseLost(f"the claim on the model call of run {claim.run_id!r} was taken over; nothing was written")
        # The calls of the previous iteration are settled, and this step does not need them.
        return replace_calls(loaded, ())

    def request_stop(self, run_id: str) -> tuple[RunStatus, list[Hint]]:
        """Ask a run to stop. Idempotent; a run that has ended stays as it is. Raises ``RunNotFound``."""
        stopped = self._stop_once(run_id)
        return stopped.status, list(stopped.hints)

    def _stop_once(self, run_id: str, by: str | None = None) -> StopResult:
        with self._database.write() as connection:
            loaded = lock_found_run(connection, find_run(connection, run_id))
            after, hints = stop_run(connection, loaded, by)
            before = {"status": loaded.run.status.value}
            record_action(connection, Act.RUN_STOP, run_id, before=before, after={"status": after.status.value})
        return StopResult(status=after.status, run_ids=(run_id,), hints=hints, was_new=after != loaded.run)

    def stop_tree(self, run_id: str, *, by: str | None = None) -> StopResult:
        """Ask a run, and everything that it caused, to stop: what it delegated, and the runs that background answers
        began, also when the run itself has ended. ``by`` is the principal who asks (``core.principals``). Idempotent;
        what has ended stays as it is. Raises ``RunNotFound``."""
        stopped = self._stop_once(run_id, by)
        below = self.stop_descendants(run_id)
        hints = [*stopped.hints, *(hint for more in below.values() for hint in more)]
        return replace(stopped, run_ids=(run_id, *below), hints=hints)

    def stop_descendants(self, run_id: str) -> dict[str, list[Hint]]:
        """Stop what a run that ended or is being stopped had caused, at any depth. Returns the hints to send, by run
        id. See ``chains.stop_caused``. Idempotent. Raises ``RunNotFound``."""
        with self._database.read() as connection:
            pk = find_run(connection, run_id)
        return stop_caused(self._database, pk)

    def end_broken(self, run_id: str, event: ev.RunBroken) -> list[Hint]:
        """End a run that cannot go on, even while another worker holds a step of it. Raises ``RunNotFound``."""
        with self._database.read() as connection:
            pk = find_run(connection, run_id)
        return end_broken(self._database, pk, event)

    def end_broken_step(self, effect: Effect, owner: int, message: str) -> list[Hint]:
        """End a run because our own code failed at this step of it. Raises ``RunNotFound``.

        Nothing happens when the step no longer belongs to ``owner``: settled, in a later attempt, or in another
        worker's hands. A worker that came back from the dead must not end what others carry on (I2).
        """
        with self._database.read() as connection:
            pk = find_run(connection, effect.run_id)
        failure = Failure(kind=ExitReason.INTERNAL_ERROR.value, message=message)
        event = ev.RunBroken(reason=ExitReason.INTERNAL_ERROR, failure=failure)
        return end_broken(self._database, pk, event, lambda connection: _is_open_to(connection, pk, effect, owner))

    def find_stopping(self, run_ids: Collection[str]) -> set[str]:
        """Return the ids among ``run_ids`` of runs that were asked to stop or have ended: work for them is to be given
        up."""
        if not run_ids:
            return set()
        over = [RunStatus.STOPPING.value, *(status.value for status in TERMINAL)]
        rows = self._database.select(
            sa.select(runs.c.run_id).where(runs.c.run_id.in_(run_ids), runs.c.status.in_(over))
        )
        return set(rows.scalars())

    def load_nudged(self, run_ids: Collection[str]) -> NudgedRuns:
        """Load the state of runs that nudges named."""
        over = [RunStatus.STOPPING.value, *(status.value for status in TERMINAL)]
        rows = self._database.select(
            sa.select(
                runs.c.run_id,
                runs.c.status.in_(over).label("is_over"),
                (runs.c.watched_until > db_now()).label("is_watched"),
            ).where(runs.c.run_id.in_(run_ids))
        ).all()
        return NudgedRuns(
            stopping=frozenset(run_id for run_id, is_over, _ in rows if is_over),
            watched=frozenset(run_id for run_id, _, is_watched in rows if is_watched),
        )

    def mark_watched(self, run_id: str, for_s: float) -> None:
        """Record that a client follows this run's stream for the next ``for_s`` seconds; a longer time that was
        recorded stays."""
        self.mark_all_watched([run_id], for_s)

    def mark_all_watched(self, run_ids: Collection[str], for_s: float) -> None:
        """Record for many runs, in one statement, that clients follow their streams for the next ``for_s`` seconds."""
        if not run_ids:
            return
        self._database.execute(
            sa.update(runs)
            .where(
                runs.c.run_id.in_(run_ids),
                runs.c.status.not_in([s.value for s in TERMINAL]),
                runs.c.watched_until < db_now() + for_s,
            )
            .values(watched_until=db_now() + for_s)
        )


def _is_open_to(connection: Connection, pk: int, effect: Effect, owner: int) -> bool:
    """Whether the step is still open and no worker other than ``owner`` holds it."""
    if isinstance(effect, TurnEffect):
        table = runs
        same = (runs.c.pk == pk) & (runs.c.iteration == effect.iteration - 1) & (runs.c.attempt == effect.attempt)
        is_open = runs.c.exit_reason.is_(None)
    else:
        table = tool_calls
        same = (tool_calls.c.run_pk == pk) & (tool_calls.c.iteration == effect.iteration)
        same &= (tool_calls.c.position == effect.position) & (tool_calls.c.attempt == effect.attempt)
        is_open = tool_calls.c.settled_at.is_(None)
    is_ours = sa.or_(table.c.lease_token.is_(None), table.c.lease_owner == owner)
    return connection.execute(sa.select(sa.literal(1)).where(same, is_open, is_ours)).first() is not None


def _mark_exhausted(connection: Connection, loaded: LoadedRun, dimension: Dimension) -> LoadedRun:
    """Write that the claimed run may only write a summary. A step that another process wrote between the claim and here
    is noticed by the commit: the number of the last event is then not the expected one."""
    seq = budgets.mark_exhausted(connection, loaded.pk, dimension, loaded.budget_pk)
    INSERT_EVENT.run_each(connection, build_event_rows(loaded.pk, seq - 1, [build_exhausted_event(dimension)]))
    return replace(loaded, run=replace(loaded.run, exhausted=dimension), event_seq=loaded.event_seq + 1)


def find_run(connection: Connection, run_id: str, tenant: str | None = None) -> int:
    """Return the row id of a run; with ``tenant``, only if it is that tenant's. Raises ``RunNotFound``."""
    wanted = sa.select(runs.c.pk).where(runs.c.run_id == run_id)
    pk = connection.execute(wanted if tenant is None else wanted.where(runs.c.tenant == tenant)).scalar()
    if pk is None:
        raise run_missing_error(connection, run_id, tenant)
    return int(pk)


def lock_found_run(connection: Connection, pk: int) -> LoadedRun:
    """Lock and load a run that was found before. Raises ``RunNotFound`` when it was deleted since."""
    loaded = lock_run(connection, pk)
    if loaded is None:
        raise RunNotFound("the run was deleted")
    return loaded


def run_missing_error(connection: Connection, run_id: str, tenant: str | None = None) -> RunNotFound:
    """Build the error for a run that does not exist. With ``tenant``, only that tenant learns that the run was
    deleted."""
    gone = sa.select(deleted_runs.c.run_id).where(deleted_runs.c.run_id == run_id)
    if tenant is not None:
        gone = gone.where(deleted_runs.c.tenant == tenant)
    if connection.execute(gone).first() is None:
        return RunNotFound(f"there is no run {run_id!r}")
    return RunDeleted(f"the run {run_id!r} was deleted, as the rules of retention say")


def _build_compaction_output(compaction: CompactionRow, cost: Cost | None, loaded: LoadedRun) -> StepOutput:
    if loaded.run.status is RunStatus.STOPPING:
        return StepOutput(usage=compaction.usage, cost=cost)
    seq = loaded.message_seq + 1
    data = {"rows": compaction.rows, "compression_count": compaction.number, "message_seq": seq}
    return StepOutput(
        messages=[Message(seq=seq, role=Role.USER, body=compaction.body)],
        events=[RunEvent(name=RunEventName.COMPACTED, data=data)],
        usage=compaction.usage,
        cost=cost,
        message_seq=seq,
    )


def _build_reply_output(loaded: LoadedRun, reply: ModelReply, event: ev.ModelReplied) -> StepOutput:
    if loaded.run.status is RunStatus.STOPPING:
        return StepOutput(usage=reply.usage)  # the words of an interrupted call do not enter the transcript (D7)
    seq = loaded.message_seq + 1
    # A summary may not ask for tools. Calls that a model makes anyway are not run, so they stay out of the transcript.
    calls = () if loaded.run.wants_summary else event.calls
    kept = reply if calls else replace(reply, tool_requests=())
    data = {"iteration": loaded.run.iteration + 1, "message_seq": seq, "finish_reason": reply.finish_reason}
    return StepOutput(
        messages=[Message(seq=seq, role=Role.ASSISTANT, body=build_assistant_body(kept))],
        events=[RunEvent(name=RunEventName.MESSAGE_COMPLETED, data=data)],
        usage=reply.usage,
        output_seq=None if calls else seq,
        message_seq=seq + len(calls),
    )


def _replay_created(connection: Connection, new: NewRun, earlier: keys.EarlierRequest) -> Created:
    run_id, stored_id, not_before = connection.execute(
        sa.select(runs.c.run_id, sessions.c.session_id, sa.case((runs.c.not_before > db_now(), runs.c.not_before)))
        .join(sessions, sessions.c.pk == runs.c.session_pk)
        .where(runs.c.pk == earlier.run_pk)
    ).one()
    return Created(
        run_id=run_id,
        session_id=new.session_id or stored_id,
        hints=(),
        was_replayed=True,
        not_before=not_before,
    )


SESSION_LABEL = (
    sessions.c.session_id,
    sessions.c.source.label("session_source"),
    sessions.c.name.label("session_name"),
)


class LabelRow(Protocol):
    """A row with the columns ``SESSION_LABEL``."""

    @property
    def session_id(self) -> str: ...

    @property
    def session_source(self) -> str | None: ...

    @property
    def session_name(self) -> str | None: ...


def to_label(row: LabelRow) -> SessionLabel:
    """Build the label of a session from a row with the columns ``SESSION_LABEL``."""
    return SessionLabel(id=row.session_id, source=row.session_source, name=row.session_name)


def session_is(tenant: str, source: str, reference: str) -> sa.ColumnElement[bool]:
    """Condition that selects the session that a caller of ``tenant`` from ``source`` means: by its id, or by a name of
    that caller's."""
    if is_session_id(reference):
        return sa.and_(sessions.c.session_id == reference, sessions.c.tenant == tenant)
    return sa.and_(sessions.c.tenant == tenant, sessions.c.source == source, sessions.c.name == reference)


def require_not_erased(connection: Connection, session_pk: int) -> None:
    """Raise ``SessionErased`` when the session, whose row is locked, is being erased and accepts nothing any more."""
    this = sa.select(sessions.c.session_id).where(sessions.c.pk == session_pk, sessions.c.erasure_pk.is_not(None))
    session_id = connection.execute(this).scalar()
    if session_id is not None:
        raise SessionErased(f"the session {session_id!r} is being erased; nothing begins in it any more")


def create_run_id() -> str:
    return f"run_{uuid.uuid4().hex}"


def record_submissions(connection: Connection, submitted: Iterable[tuple[NewRun, Created]]) -> None:
    """Write the submissions that persons made to the audit log."""
    record_actions(connection, [_build_audit_entry(new, created) for new, created in submitted])


def _build_audit_entry(new: NewRun, created: Created) -> AuditEntry:
    after: dict[str, object] = {"session": created.session_id, "model": new.spec.model, "source": new.spec.source}
    if created.interrupted is not None:
        after["interrupted"] = created.interrupted
    act = Act.RUN_STEER if created.was_steered else Act.RUN_SUBMIT
    return AuditEntry(act=act, subject=created.run_id, after=after)


def _admit(connection: Connection, new: NewRun, session_id: str) -> Created:
    """Accept a submission that does not simply wait when the session is busy. The run at work is locked before the
    session, in the usual order of locks. Raises ``_ActiveRunChanged`` when another run became active meanwhile."""
    this = session_is(new.tenant, new.spec.source, session_id)
    seen = connection.execute(sa.select(sessions.c.active_run_pk).where(this)).scalar()
    if seen is None:
        _, created = insert_run(connection, new)
        if not created.hints and not created.is_held:
            raise _ActiveRunChanged  # another run became active before ours; nothing of ours is kept
        return created
    loaded = lock_run(connection, seen)
    active = connection.execute(sa.select(sessions.c.active_run_pk).where(this).with_for_update()).scalar()
    if loaded is None or active != seen:
        raise _ActiveRunChanged
    if new.multitask is Multitask.REJECT:
        raise SessionActive(f"run {loaded.run.run_id!r} is at work in session {session_id!r}")
    said = new.spec.input
    if new.multitask is Multitask.STEER and isinstance(said, str) and loaded.run.status is not RunStatus.STOPPING:
        steering.insert_text(connection, loaded.pk, said)
        _add_targets(connection, loaded.pk, new.deliver)
        event = RunEvent(name=RunEventName.STEERED, data={"text": said})
        save_step(connection, loaded, loaded.run, StepOutput(events=[event]))
        keys.claim_names(connection, new.keys, loaded.pk)
        return Created(run_id=loaded.run.run_id, session_id=session_id, hints=(), was_replayed=False, was_steered=True)
    if new.multitask is not Multitask.INTERRUPT:
        return insert_run(connection, new)[1]
    pk, created = insert_run(connection, new)
    first_rank = sa.case((runs.c.place_rank.is_(None), None), else_=GOES_FIRST)
    connection.execute(sa.update(runs).where(runs.c.pk == pk).values(goes_first=True, place_rank=first_rank))
    _, hints = stop_run(connection, loaded)
    return replace(created, hints=hints, interrupted=loaded.run.run_id)


def _add_targets(connection: Connection, pk: int, targets: Sequence[str]) -> None:
    """Add delivery targets to a run that is steered, so that the caller who steers it gets its answer too. The run is
    locked."""
    if not targets:
        return
    stored = connection.execute(sa.select(runs.c.deliver).where(runs.c.pk == pk)).scalar()
    known = json.loads(stored) if stored else []
    merged = json.dumps(list(dict.fromkeys([*known, *targets])))
    connection.execute(sa.update(runs).where(runs.c.pk == pk).values(deliver=merged))


_AS_SUBMITTED = tuple(column.name for column in runs.c if column.name in SPECIFIED - {"artifacts", "overrides"})
"""Columns of a run that have the name and the value of a field of its spec."""


def build_submission_values(new: NewRun) -> dict[str, object]:
    """Build the columns of a run that say what was submitted."""
    spec = new.spec
    return {
        **{name: getattr(spec, name) for name in _AS_SUBMITTED},
        "tenant": new.tenant,
        "principal": new.principal,
        "origin": spec.source_kind,
        "skills_hash": new.skills,
        "has_output_schema": int(spec.output_schema is not None),
        "memory": dump_recovery_state(RecoveryState(forced_tools=tuple(spec.forced_tools))),
        "artifacts": 1 if spec.artifacts else None,
        "overrides": dump_canonical_json(dict(spec.overrides)) if spec.overrides else None,
        "deliver": json.dumps(list(new.deliver)) if new.deliver else None,
    }


def insert_run(connection: Connection, new: NewRun) -> tuple[int, Created]:
    """Insert a run in the caller's transaction. Returns also its row id. Raises the errors of ``Runs.create``."""
    run_id = new.run_id or create_run_id()
    session_pk, active, message_seq, prepares = _open_session(connection, run_id, new)
    spec = new.spec
    if new.retry_of is not None:
        record_rewind(connection, session_pk, Rewind(calls=match_calls_of(new.retry_of)))
    is_free, is_shared = active is None and not new.is_held, sharing.is_shared(connection)
    inserted = connection.execute(
        sa.insert(runs)
        .values(
            run_id=run_id,
            session_pk=session_pk,
            status=RunStatus.QUEUED.value,
            state_version=STATE_VERSION,
            prepares=1 if prepares or spec.files == "kept" else None,
            **build_submission_values(new),
            **_build_times(new),
            **(build_place_values(new, begins=is_free and not new.is_put_off) if is_shared else {}),
            retry_of_pk=_select_repeated(new),
        )
        .returning(runs.c.pk, runs.c.not_before)
    )
    run_pk, not_before = inserted.one()
    insert_specs(connection, [(int(run_pk), spec)])
    if spec.tags:
        insert_tags(connection, [(int(run_pk), new)])
    if budgets.has_limits(spec):
        budgets.create_budget(connection, int(run_pk), spec)
    keys.claim_names(connection, new.keys, int(run_pk))
    hints: list[Hint] = []
    begins = is_free and not_before is None
    if begins and not is_shared:
        hints = [activate(connection, session_pk, int(run_pk), run_id, message_seq)]
    elif begins:
        hold_for_place(connection, int(run_pk))
    created = Created(
        run_id=run_id,
        session_id=new.session_id or run_id,
        hints=hints,
        was_replayed=False,
        not_before=not_before,
        is_held=begins and is_shared,
    )
    return int(run_pk), created


def _build_times(new: NewRun) -> dict[str, object]:
    """Build the columns of a run that say when it was made, may begin, and has to end."""
    begins: sa.ColumnElement[float] = db_now()
    values: dict[str, object] = {"created_at": db_now(), "updated_at": db_now()}
    if new.is_put_off:
        said = sa.literal(new.not_before, sa.Double()) if new.not_before is not None else db_now() + new.delay_s
        values["not_before"] = sa.case((said > db_now(), said), else_=None)
        begins = sa.case((said > db_now(), said), else_=db_now())
    ends = begins + new.spec.wall_s_max
    if new.deadline is not None:
        ends = sa.case((ends > new.deadline, new.deadline), else_=ends)
    return {**values, "deadline_at": ends}


def _select_repeated(new: NewRun) -> sa.ScalarSelect[int] | None:
    return sa.select(runs.c.pk).where(runs.c.run_id == new.retry_of).scalar_subquery() if new.retry_of else None


def insert_tags(connection: Connection, news: Iterable[tuple[int, NewRun]]) -> None:
    """Insert the tags of runs, each with its row id."""
    rows = [
        {"run_pk": pk, "tag": tag, "tenant": new.tenant} for pk, new in news for tag in dict.fromkeys(new.spec.tags)
    ]
    if rows:
        connection.execute(sa.insert(run_tags), rows)


def build_place_values(new: NewRun, *, begins: bool) -> dict[str, int]:
    """Build the columns of a new run that shares the fleet. Urgent runs go first; of equally urgent ones, those that do
    not run on a schedule."""
    place = FleetPlace.HELD if begins else FleetPlace.WAITS
    is_scheduled = new.spec.source_kind == "cron"
    return {"place": place.value, "place_rank": int(is_scheduled) - 2 * new.spec.priority}


def begin_held(connection: Connection, run_pk: int) -> list[Hint]:
    """Begin a run that was written as held. Returns the hints to send; does nothing when it has ended or begun."""
    found = connection.execute(
        sa.select(runs.c.run_id, runs.c.session_pk, runs.c.place, sessions.c.message_seq)
        .join(sessions, sessions.c.pk == runs.c.session_pk)
        .where(
            runs.c.pk == run_pk,
            runs.c.status == RunStatus.QUEUED.value,
            runs.c.hinted_at.is_(None),
            runs.c.lease_token.is_(None),
            sessions.c.active_run_pk.is_(None),
        )
        .with_for_update()
    )
    row = fetch_row(found, _HeldRow)
    if row is None:
        return []
    return begin_run(connection, row.session_pk, run_pk, row.run_id, row.message_seq, row.place)


def build_session_values(new: NewRun, tools_hash: str) -> dict[str, object]:
    """Build the columns of a session that ``new`` opens, without its id and its time. The prompt is without
    ``new.blocks``, which ``fill_prompt`` puts in once it is certain that there is a new session."""
    return {
        "tenant": new.tenant,
        "source": new.spec.source if new.session_id is not None else None,
        "name": new.session_id,
        "system_prompt": (text := make_storable(new.system_prompt)),
        "context_at": _find_context_offset(new, AssembledPrompt(text=text, gaps=new.gaps)),
        "tools_hash": tools_hash,
        "workspace": new.workspace,
        "title": build_run_title(new.spec, redact),
    }


def fill_prompt(connection: Connection, session_pk: int, new: NewRun) -> None:
    """Put the parts that stand in rows into the prompt of a session that was opened in this transaction."""
    blocks = new.blocks(connection) if new.blocks is not None else {}
    if not blocks:
        return
    plain_blocks = {place: make_storable(text) for place, text in blocks.items()}
    prompt = fill_gaps(AssembledPrompt(text=make_storable(new.system_prompt), gaps=new.gaps), plain_blocks)
    this = sa.update(sessions).where(sessions.c.pk == session_pk)
    connection.execute(this.values(system_prompt=prompt.text, context_at=_find_context_offset(new, prompt)))


def _find_context_offset(new: NewRun, prompt: AssembledPrompt) -> int | None:
    """The offset in the prompt at which the files of the project will stand; ``None`` when the workspace is not
    read."""
    return find_gap(prompt.gaps, PromptPlace.PROJECT) if new.prepares else None


def _complete_prompt(connection: Connection, session_pk: int, section: str) -> bool:
    """Put the files of the project into the prompt of a session whose run is locked; ``False`` when that was done
    before. The UPDATE names what was read, so it happens once."""
    this = sessions.c.pk == session_pk
    found = connection.execute(sa.select(*select_columns(sessions, _UnpreparedSession)).where(this).with_for_update())
    row = fetch_row(found, _UnpreparedSession)
    if row is None or row.context_at is None:
        return False
    gap = Gap(PromptPlace.PROJECT, row.context_at)
    prompt = fill_gaps(
        AssembledPrompt(text=row.system_prompt, gaps=(gap,)), {PromptPlace.PROJECT: make_storable(section)}
    )
    write = sa.update(sessions).where(this, sessions.c.context_at == row.context_at)
    return connection.execute(write.values(system_prompt=prompt.text, context_at=None)).rowcount == 1


def _open_session(connection: Connection, run_id: str, new: NewRun) -> tuple[int, int | None, int, bool]:
    """Find or open the session of a submission and lock its row. Returns its row id, its active run, its length, and
    whether its workspace is still to be read."""
    if new.session_id is None or not is_session_id(new.session_id):
        tools_hash = store_blob(connection, new.tools)
        inserted = connection.execute(
            build_insert_ignoring(connection, sessions)
            .values(**build_session_values(new, tools_hash), session_id=run_id, created_at=db_now(), active_at=db_now())
            .returning(sessions.c.pk)
        ).scalar()
        if inserted is not None:
            if new.after:
                raise SessionMoved(f"there is no session {new.session_id!r} any more")
            fill_prompt(connection, int(inserted), new)
            message_seq = insert_history(connection, int(inserted), new.spec)
            return int(inserted), None, message_seq, new.prepares
    reference = new.session_id or run_id
    found = connection.execute(
        sa.select(*select_columns(sessions, _LockedSession))
        .where(session_is(new.tenant, new.spec.source, reference))
        .with_for_update()
    )
    row = fetch_row(found, _LockedSession)
    if row is None:
        raise SessionNotFound(f"no session has the id {reference!r}; a name of your own must not look like an id")
    if row.erasure_pk is not None:
        raise SessionErased(f"the session {reference!r} is being erased; nothing begins in it any more")
    if new.after is not None:
        _require_newest(connection, row.pk, new.after)
    if row.active_run_pk is not None or sharing.is_shared(connection):
        _refuse_overflow(connection, row.pk, reference)
    return row.pk, row.active_run_pk, row.message_seq, row.context_at is not None


def _require_newest(connection: Connection, session_pk: int, run_id: str) -> None:
    """Require that ``run_id`` is the newest run of a session, which is locked. Raises ``SessionMoved``."""
    newest = sa.select(runs.c.run_id).where(runs.c.session_pk == session_pk).order_by(runs.c.pk.desc()).limit(1)
    found = connection.execute(newest).scalar()
    if found != run_id:
        raise SessionMoved(f"the newest run of the session is {found!r}, and not {run_id!r}")


def _refuse_overflow(connection: Connection, session_pk: int, session_id: str) -> None:
    waiting = connection.execute(
        sa.select(sa.func.count())
        .select_from(runs)
        .where(
            runs.c.session_pk == session_pk,
            runs.c.status == RunStatus.QUEUED.value,
            runs.c.hinted_at.is_(None),
            sa.func.coalesce(runs.c.not_before, 0.0) <= db_now(),
        )
    ).scalar_one()
    if waiting >= SESSION_QUEUE_MAX:
        raise SessionBusy(f"{waiting} runs already wait in session {session_id!r}; wait for one to end or stop one")


def insert_history(connection: Connection, session_pk: int, spec: RunSpec) -> int:
    """Insert what was said before a session's first run as its first rows. Returns their number."""
    rows = [
        Message(seq=seq, role=Role(str(row.get("role"))), body=dump_canonical_json(dict(row)))
        for seq, row in enumerate(spec.history, start=1)
    ]
    insert_messages(connection, session_pk, 0, rows)
    if rows:  # the first run of the session continues after these messages
        connection.execute(sa.update(sessions).where(sessions.c.pk == session_pk).values(message_seq=len(rows)))
    return len(rows)


def compute_fingerprint(document: object) -> str:
    """Hash a request for its idempotency key: equal requests give the same text."""
    return hashlib.sha256(dump_canonical_json(document).encode("utf-8")).hexdigest()
