"""The store in a few dictionaries: the same decisions by ``core``, the same fences, no SQL.

Every method is one transaction. Broken stores at the end each leave out one thing that the real one does, to show that
the simulation notices.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, TypeVar

from hermes_worker.core import events as ev
from hermes_worker.core.auxiliary import AnsweredConsultation, AuxiliaryAnswer, Consultation
from hermes_worker.core.budget import Amounts, Budget, BudgetLimits, Dimension, decide_reservation
from hermes_worker.core.delegation import TURNS_MAX, build_refusal_note, explain_background_refusal
from hermes_worker.core.effects import (
    AskAuxiliary,
    CallEffect,
    Effect,
    Iterate,
    Prepare,
    RunTool,
    TurnEffect,
    build_turn_effect,
    list_outstanding,
)
from hermes_worker.core.errors import Failure, LeaseLost
from hermes_worker.core.guardrails import GUARD_FIELD, NO_PRECEDENT, Precedent, parse_precedent
from hermes_worker.core.messages import (
    Message,
    ModelReply,
    Role,
    ToolRequest,
    build_assistant_body,
    build_tool_body,
    build_user_body,
)
from hermes_worker.core.notices import STOPPED_ANSWER, build_missing_result
from hermes_worker.core.pricing import NOTHING_SPENT, Spent
from hermes_worker.core.questions import Question
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import TERMINAL, Call, CallStatus, ExitReason, Run, RunStatus, WaitKind
from hermes_worker.core.spec import RunSpec
from hermes_worker.core.step import apply_event, compute_retry_delay_s, step_run
from hermes_worker.safety.approvals import ApprovalChoice
from hermes_worker.store.rows import Hint, LoadedRun
from hermes_worker.store.runs.auxiliary import AuxiliaryClaim
from hermes_worker.store.runs.call_claims import OVERTIME_S
from hermes_worker.store.runs.calls import CallClaim, Settlement
from hermes_worker.store.runs.new_children import NewChild
from hermes_worker.store.runs.runs import IterationClaim, RunNotFound, SessionContext
from hermes_worker.store.runs.transcripts import CorruptTranscript
from hermes_worker.store.runs.waits import ApprovalTerms, NothingAsked
from hermes_worker.store.sweep import LOSSES, SweepPolicy
from hermes_worker.store.workers import Registration, RenewedLease

T = TypeVar("T")
BARE_PROMPT = "You are in a simulation."
"""What is known before the workspace is read."""
_OVER = TERMINAL | {RunStatus.STOPPING}
HELD_BACK_PART = 0.6
"""Of a term without any sweep, after which live workers get a moment to be heard; see ``store.sweep``."""


def filled(cls: type[T], **known: Any) -> T:
    """An instance whose fields that the simulation has no use for are ``None``."""
    return cls(**{**_nothing(cls), **known})


@cache
def _nothing(cls: type[Any]) -> Mapping[str, None]:
    """The fields that have no default."""
    return {
        field.name: None
        for field in dataclasses.fields(cls)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }


@dataclass(slots=True)
class Asked:
    """A consultation, and the answers so far."""

    consultation: Consultation
    at: float
    answers: list[AuxiliaryAnswer] = field(default_factory=list)

    @property
    def is_open(self) -> bool:
        return len(self.answers) < len(self.consultation.questions)


@dataclass(slots=True)
class CallRow:
    request: ToolRequest
    result_seq: int
    timeout_s: float
    precedent: Precedent = NO_PRECEDENT
    token: str | None = None
    unbegun: str | None = None
    """The token of a claim on a once call whose tool has not begun."""
    owner: int | None = None
    claimed_at: float = 0.0
    hinted_at: float | None = None
    hints: int = 0
    deadline_at: float = 0.0
    expires_at: float | None = None
    """When the question it waits for counts as refused."""
    is_approved: bool = False
    asked: list[Asked] = field(default_factory=list)
    children_max: int = 0
    has_sent: bool = False
    """Its children work in the background, and their answer is still to begin a turn."""


@dataclass(slots=True)
class RunRow:
    pk: int
    core: Run
    tools: str
    root: RunRow | None = None
    """The top of its tree; ``None`` for itself."""
    parent: RunRow | None = None
    place: tuple[int, int] = (0, 0)
    """The call of the parent whose work it does."""
    depth: int = 0
    is_background: bool = False
    cause: RunRow | None = None
    """The run whose background children began it."""
    is_halted: bool = False
    """Somebody stopped it with all that it caused."""
    turns: int = 0
    """Turns that the chain was promised; stands in its root."""
    messages: dict[int, Message] = field(default_factory=dict)
    message_seq: int = 0
    has_begun: bool = False
    """A child may have to wait for a place among its siblings."""
    budget: Budget | None = None
    """Of the tree; stands in its root."""
    reserved: Amounts | None = None
    ended_at: float = 0.0
    token: str | None = None
    owner: int | None = None
    claimed_at: float = 0.0
    hinted_at: float | None = None
    hints: int = 0
    calls: dict[tuple[int, int], CallRow] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)
    charged: int = 0
    """Model replies that were paid for."""
    asides_charged: int = 0
    """Answers to auxiliary calls that were paid for."""
    prompt: str = ""
    """Of its session, which is its own here."""
    arrivals: int = 0
    """Results that were brought for the current iteration; only a broken store looks at it."""
    due_of: Run | None = None
    due: frozenset[Effect] = frozenset()
    """What is outstanding in ``due_of``: asked for far more often than it changes."""

    @property
    def top(self) -> RunRow:
        return self.root or self


@dataclass(slots=True)
class WorkerRow:
    expires_at: float
    name: str = ""
    state: str = "alive"
    marks: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_alive(self) -> bool:
        return self.state == "alive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What the invariants are checked on."""

    run_id: str
    status: RunStatus
    exit_reason: str | None
    iteration: int
    charged: int
    asides_charged: int
    asides_answered: int
    """Answers to auxiliary calls that are stored."""
    events: Sequence[str]
    event_seqs: Sequence[int]
    bodies: Sequence[Mapping[str, Any]]
    """The run's rows in the transcript."""
    seqs: Sequence[int]
    is_held: bool
    is_due: bool
    root: str
    """The top of its tree, which may be the run itself."""
    is_turn: bool
    """Background answers began it."""
    ended_at: float
    budget: Budget | None
    """Of the tree whose top the run is."""


class MemoryWorkers:
    """``store.workers.Workers``."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.rows: dict[int, WorkerRow] = {}
        self._numbers = itertools.count(1)

    def register(
        self,
        *,
        name: str,
        queues: str,
        ttl_s: float,
        slots: int | None = None,
        sends_with: Collection[str] | None = None,
    ) -> Registration:
        pk = next(self._numbers)
        self.rows[pk] = WorkerRow(expires_at=self._store.now() + ttl_s, name=name)
        return Registration(pk=pk, worker_id=f"{name}#{pk}")

    def renew(
        self,
        registration: Registration,
        *,
        ttl_s: float,
        watermarks: Mapping[str, float],
        is_draining: bool = False,
        sandbox: str | None = None,
    ) -> RenewedLease | None:
        row = self.rows[registration.pk]
        if not row.is_alive:
            return None
        row.expires_at = self._store.now() + ttl_s
        row.marks = dict(watermarks)
        return RenewedLease(draining_at=self._store.now() if is_draining else None, now=self._store.now())

    def retire(self, registration: Registration) -> None:
        if self.rows[registration.pk].is_alive:
            self.rows[registration.pk].state = "stopped"

    def mark_crashed(self, name: str) -> bool:
        living = [row for row in self.rows.values() if row.is_alive and row.name == name]
        for row in living:
            row.state = "crashed"
        return bool(living)

    def loss_of(self, owner: int | None) -> ev.Loss:
        return LOSSES[self.rows[owner].state if owner in self.rows else None]

    def release_stray_claims(
        self, registration: Registration, *, except_for: Collection[str], older_than_s: float
    ) -> int:
        return self._store.give_up(registration.pk, except_for, self._store.now() - older_than_s)

    def is_gone(self, owner: int | None) -> bool:
        return owner not in self.rows or not self.rows[owner].is_alive


class MemoryStore:
    """``Runs``, ``ToolCalls``, ``Transcripts`` and the ``Sweeper`` in one."""

    def __init__(self, clock: Callable[[], float], policy: SweepPolicy, tools: str) -> None:
        self.now = clock
        self.policy = policy
        self.workers = MemoryWorkers(self)
        self.runs = self.calls = self.transcripts = self.waits = self
        self.auxiliary_calls = MemoryAsides(self)
        self._tools = tools
        self._rows: dict[str, RunRow] = {}
        self._by_pk: list[RunRow] = []
        self._tokens = itertools.count(1)
        self._swept_at = 0.0
        self._hold_until = 0.0

    # --- accepting and ending ---

    def submit(self, run_id: str, *, iterations_max: int, attempts_max: int, prepares: bool) -> list[Hint]:
        core = Run(run_id=run_id, iterations_max=iterations_max, attempts_max=attempts_max, is_prepared=not prepares)
        row = self._insert(RunRow(pk=len(self._by_pk), core=core, tools=self._tools, prompt=BARE_PROMPT))
        return [self._begin(row)]

    def _insert(self, row: RunRow) -> RunRow:
        self._rows[row.core.run_id] = row
        self._by_pk.append(row)
        return row

    def _begin(self, row: RunRow) -> Hint:
        row.messages[1] = Message(seq=1, role=Role.USER, body=build_user_body("go"))
        row.message_seq = 1
        row.has_begun, row.due_of = True, None
        row.hinted_at = self.now()
        return Hint(effect=build_turn_effect(row.core), at=self.now())

    def stop(self, run_id: str, *, is_whole: bool) -> tuple[list[str], list[Hint]]:
        """With ``is_whole`` the run and all below it; without, whoever did it died after the first of them."""
        if run_id not in self._rows:
            raise RunNotFound(f"there is no run {run_id!r}")
        row = self._rows[run_id]
        row.is_halted = True
        hints = self._write(row, ev.StopRequested())
        if not is_whole:
            return [run_id], hints
        below = [one for one in self._by_pk if _is_below(one, row)]
        for one in below:
            one.is_halted = True
            hints += self._write(one, ev.StopRequested())
        return [run_id, *(one.core.run_id for one in below)], hints

    def end_broken_step(self, effect: Effect, owner: int, message: str) -> list[Hint]:
        row = self._rows[effect.run_id]
        if not self._is_open_to(row, effect, owner):
            return []
        failure = Failure(kind="internal_error", message=message)
        return self._write(row, ev.RunBroken(reason=ExitReason.INTERNAL_ERROR, failure=failure))

    def _is_open_to(self, row: RunRow, effect: Effect, owner: int) -> bool:
        if row.core.status.is_terminal:
            return False
        if isinstance(effect, TurnEffect):
            is_same = (row.core.iteration + 1, row.core.attempt) == (effect.iteration, effect.attempt)
            return (is_same and row.token is None) or row.owner == owner
        call = row.calls.get((effect.iteration, effect.position))
        if call is None or row.core.iteration != effect.iteration:
            return False
        of_core = row.core.calls[effect.position]
        is_same = not of_core.status.is_settled and of_core.attempt == effect.attempt
        return is_same and (call.token is None or call.owner == owner)

    def stopping(self, run_ids: Collection[str]) -> set[str]:
        return {run_id for run_id in run_ids if self._rows[run_id].core.status in _OVER}

    # --- model calls ---

    def claim_iteration(self, effect: Iterate, owner: int) -> IterationClaim | None:
        row = self._rows.get(effect.run_id)
        if row is None or row.hinted_at is None or effect not in self._outstanding(row):
            return None
        row.core = self._apply_claim(row)
        self._reserve(row)
        row.token, row.owner, row.claimed_at = f"t{next(self._tokens)}", owner, self.now()
        row.hinted_at, row.hints = None, 0
        return IterationClaim(token=row.token, loaded=self._loaded(row))

    def claim_preparation(self, effect: Prepare, owner: int) -> IterationClaim | None:
        row = self._rows.get(effect.run_id)
        if row is None or row.hinted_at is None or effect not in self._outstanding(row):
            return None
        row.core = self._apply_claim(row)
        row.token, row.owner, row.claimed_at = f"t{next(self._tokens)}", owner, self.now()
        row.hinted_at, row.hints = None, 0
        return IterationClaim(token=row.token, loaded=self._loaded(row))

    def commit_preparation(
        self, claim: IterationClaim, section: str, documents: Mapping[str, object] | None = None
    ) -> list[Hint]:
        row = self._held_iteration(claim)
        if row.prompt == BARE_PROMPT:
            row.prompt = f"{BARE_PROMPT}\n\n{section}"
        return self._write(row, ev.PromptCompleted())

    def _apply_claim(self, row: RunRow) -> Run:
        return apply_event(row.core, ev.IterationClaimed())

    def load_output_schema(self, run_pk: int) -> None:
        """Simulated runs want text."""

    def load_session_context(self, session_pk: int) -> SessionContext:
        row = self._by_pk[session_pk]
        facts = {"session_id": f"s{session_pk}", "system_prompt": row.prompt, "tools": row.tools, "workspace": "{}"}
        return filled(SessionContext, **facts)

    def commit_reply(
        self,
        claim: IterationClaim,
        reply: ModelReply,
        reading: Sequence[ev.PlannedCall] | ev.ModelReplied,
        cost: Any = None,
    ) -> list[Hint]:
        row = self._held_iteration(claim)
        event = reading if isinstance(reading, ev.ModelReplied) else ev.ModelReplied(calls=tuple(reading))
        row.charged += 1
        return self._write(row, event, reply=reply)

    def commit_discarded_reply(
        self, claim: IterationClaim, event: ev.AskedAgain | ev.ModelFailed, reply: ModelReply, cost: Any = None
    ) -> list[Hint]:
        row = self._held_iteration(claim)
        row.charged += 1
        return self._write(row, event)

    def commit_failure(
        self, claim: IterationClaim, event: ev.ModelFailed | ev.CapacityAwaited | ev.RunBroken, *_: Any
    ) -> list[Hint]:
        return self._write(self._held_iteration(claim), event)

    def release_iteration(self, claim: IterationClaim, *_: Any) -> list[Hint]:
        return self._write(self._held_iteration(claim), ev.IterationReleased())

    def _held_iteration(self, claim: IterationClaim) -> RunRow:
        row = self._rows[claim.run_id]
        if row.token != claim.token:
            raise LeaseLost(f"the claim on the model call of {claim.run_id} was taken over")
        return row

    # --- tool calls ---

    def claim(self, effect: RunTool, owner: int) -> CallClaim | None:
        if not self._take_call(effect, owner):
            return None
        row = self._rows[effect.run_id]
        call = row.calls[effect.iteration, effect.position]
        return filled(
            CallClaim,
            token=call.token,
            run_pk=row.pk,
            run_id=effect.run_id,
            session_pk=row.pk,
            iteration=effect.iteration,
            position=effect.position,
            attempt=effect.attempt,
            result_seq=call.result_seq,
            request=call.request,
            replay=row.core.calls[effect.position].replay,
            timeout_s=call.timeout_s,
            claimed_at=self.now(),
            is_approved=call.is_approved,
            has_asked=bool(call.asked),
            precedent=call.precedent,
            loaded=self._loaded(row),
        )

    def _take_call(self, effect: CallEffect, owner: int) -> bool:
        row = self._rows.get(effect.run_id)
        if row is None or effect not in list_outstanding(row.core):
            return False
        call = row.calls[effect.iteration, effect.position]
        if call.hinted_at is None:
            return False
        row.core = apply_event(row.core, ev.CallClaimed(position=effect.position))
        call.token, call.owner, call.claimed_at = f"c{next(self._tokens)}", owner, self.now()
        call.hinted_at, call.hints = None, 0
        call.unbegun = call.token if row.core.calls[effect.position].replay is Replay.ONCE else None
        call.deadline_at = self.now() + call.timeout_s + OVERTIME_S
        return True

    def load_documents(self, session_pk: int, keys: Sequence[str]) -> dict[str, Any]:
        return {}

    def load_kept_result(self, session_pk: int, key: str) -> str | None:
        return None

    def settle(self, claim: CallClaim, settlement: Settlement) -> list[Hint]:
        row = self._held_call(claim)
        event = ev.CallSettled(position=claim.position, status=settlement.status)
        return self._write(row, event, result=settlement.text)

    def begin(self, claim: CallClaim) -> None:
        call = self._held_call(claim).calls[claim.iteration, claim.position]
        call.unbegun = None

    def release(self, claim: CallClaim, *_: Any, has_begun: bool = True) -> list[Hint]:
        return self._write(self._held_call(claim), ev.CallReleased(position=claim.position, has_begun=has_begun))

    def _held_call(self, claim: CallClaim | AuxiliaryClaim) -> RunRow:
        row = self._rows[claim.run_id]
        if row.calls[claim.iteration, claim.position].token != claim.token:
            raise LeaseLost(f"the claim on call {claim.position} of {claim.run_id} was taken over")
        return row

    # --- questions ---

    def load_terms(self, run_pk: int) -> ApprovalTerms:
        return ApprovalTerms(source="api", approvals=None, allowed=frozenset())

    def ask(self, claim: CallClaim, question: Question, **_: Any) -> list[Hint]:
        row = self._held_call(claim)
        hints = self._write(row, ev.CallParked(position=claim.position, waits_for=question.kind))
        assert question.expires_s is not None
        row.calls[claim.iteration, claim.position].expires_at = self.now() + question.expires_s
        return hints

    def approve(self, run_id: str, choice: ApprovalChoice) -> list[Hint]:
        row = self._rows[run_id]
        for call in row.core.calls:
            if call.waits_for is WaitKind.APPROVAL:
                if choice is ApprovalChoice.DENY:
                    return self._refuse(row, call.position)
                row.calls[row.core.iteration, call.position].is_approved = True
                return self._write(row, ev.CallAllowed(position=call.position))
        raise NothingAsked(f"{run_id} waits for no approval")

    def _refuse(self, row: RunRow, position: int) -> list[Hint]:
        return self._write(row, ev.CallSettled(position=position, status=CallStatus.FAILED), result="refused")

    def _expire_questions(self, row: RunRow) -> list[Hint]:
        return [
            hint
            for call in row.core.calls
            if call.waits_for is WaitKind.APPROVAL
            and (row.calls[row.core.iteration, call.position].expires_at or 0.0) < self.now()
            for hint in self._refuse(row, call.position)
        ]

    # --- children ---

    def load_spec(self, run_pk: int) -> RunSpec:
        return RunSpec(input="go", model="scripted")

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
        row = self._held_call(claim)
        assert is_budget_shared, "nobody in here asks for anything else"
        call = row.calls[claim.iteration, claim.position]
        if note is None or row.core.status is RunStatus.STOPPING:
            hints = self._write(row, ev.CallParked(position=claim.position, waits_for=WaitKind.CHILDREN))
            if row.core.status.is_terminal or row.core.status is RunStatus.STOPPING:
                return hints
            self._share_budget(row.top)
        elif (refusal := self._promise_turn(row.top, turns_max)) is not None:
            refused = ev.CallSettled(position=claim.position, status=CallStatus.FAILED)
            return self._write(row, refused, result=build_refusal_note(refusal))
        else:
            call.has_sent = True
            sent = ev.CallSettled(position=claim.position, status=CallStatus.SUCCEEDED)
            hints = self._write(row, sent, result=note)
        call.children_max = children_max
        self._insert_children(row, claim, new, is_background=note is not None)
        return hints + self._start_children(row, children_max)

    def _share_budget(self, top: RunRow) -> Budget:
        if top.budget is None:
            spent = Amounts(iterations=top.core.iteration)
            top.budget = Budget(limits=BudgetLimits(iterations=top.core.iterations_max), spent=spent)
        return top.budget

    def _promise_turn(self, top: RunRow, turns_max: int) -> str | None:
        """Count the turn that the answer will begin, or why there shall be none."""
        budget = self._share_budget(top)
        refusal = explain_background_refusal(budget, turns=top.turns, turns_max=turns_max, is_shared=True)
        top.turns += int(refusal is None)
        return refusal

    def _insert_children(self, row: RunRow, claim: CallClaim, new: Sequence[NewChild], *, is_background: bool) -> None:
        for child in new:
            core = Run(
                run_id=child.run_id,
                iterations_max=min(child.spec.iterations_max, row.core.iterations_max),
                attempts_max=row.core.attempts_max,
            )
            self._insert(
                RunRow(
                    pk=len(self._by_pk),
                    core=core,
                    tools=child.tools,
                    root=row.top,
                    parent=row,
                    place=(claim.iteration, claim.position),
                    depth=row.depth + 1,
                    is_background=is_background,
                )
            )

    def _start_children(self, parent: RunRow, children_max: int) -> list[Hint]:
        open_ones = [row for row in self._by_pk if row.parent is parent and not row.core.status.is_terminal]
        free = children_max - sum(row.has_begun for row in open_ones)
        return [self._begin(row) for row in [one for one in open_ones if not one.has_begun][: max(0, free)]]

    def _join(self, child: RunRow) -> list[Hint]:
        """After the end of a child, in its transaction: ``store.runs.step_writer.join_parent``."""
        parent = child.parent
        if parent is not None and child.is_background:
            return self._join_background(parent, child)
        if parent is None or parent.core.iteration != child.place[0]:
            return []
        position = child.place[1]
        if parent.core.calls[position].waits_for is not WaitKind.CHILDREN:
            return []
        hints = self._start_children(parent, parent.calls[child.place].children_max)
        siblings = [row for row in self._by_pk if row.parent is parent and row.place == child.place]
        if not all(row.core.status.is_terminal for row in siblings):
            return hints
        answered = any(row.core.status is RunStatus.COMPLETED for row in siblings)
        status = CallStatus.SUCCEEDED if answered else CallStatus.FAILED
        return hints + self._write(parent, ev.CallSettled(position=position, status=status), result="they ended")

    def _join_background(self, parent: RunRow, child: RunRow) -> list[Hint]:
        call = parent.calls[child.place]
        if not call.has_sent:
            return []
        hints = self._start_children(parent, call.children_max)
        siblings = [row for row in self._by_pk if row.parent is parent and row.place == child.place]
        if not all(row.core.status.is_terminal for row in siblings):
            return hints
        call.has_sent = False
        if parent.is_halted or parent.core.status in (RunStatus.CANCELLED, RunStatus.STOPPING):
            return hints
        return [*hints, self._begin(self._insert(self._turn(parent)))]

    def _turn(self, cause: RunRow) -> RunRow:
        """The turn that the answer of background children begins: ``store.runs.continuations.insert_continuation``."""
        pk = len(self._by_pk)
        core = replace(_new(cause.core), run_id=f"turn{pk}")
        return RunRow(pk=pk, core=core, tools=cause.tools, root=cause.top, cause=cause)

    # --- budgets ---

    def _reserve(self, row: RunRow) -> None:
        """What the claimed model call takes out of the tree's budget: ``store.runs.budgets.reserve_call``."""
        top = row.top
        if top.budget is None or row.core.wants_summary:
            return
        granted = decide_reservation(top.budget, Amounts(iterations=row.core.iteration), depth=row.depth)
        if isinstance(granted, Dimension):
            row.core = replace(row.core, exhausted=granted)
            return
        row.reserved = granted
        held = top.budget.reserved.iterations + granted.iterations
        top.budget = replace(top.budget, reserved=Amounts(iterations=held))

    def _settle_budget(self, row: RunRow, replies: int) -> None:
        """The claim that held something is given up, by whoever does that."""
        budget, held = row.top.budget, row.reserved
        if held is None or budget is None:
            return
        row.reserved = None
        row.top.budget = replace(
            budget,
            reserved=Amounts(iterations=budget.reserved.iterations - held.iterations),
            spent=Amounts(iterations=budget.spent.iterations + replies),
        )

    # --- transcripts ---

    def load(self, session_pk: int, last: int) -> Sequence[Message]:
        row = self._by_pk[session_pk]
        missing = [seq for seq in range(1, last + 1) if seq not in row.messages]
        if missing:
            raise CorruptTranscript(f"rows {missing} are missing")
        return [row.messages[seq] for seq in range(1, last + 1)]

    # --- the one way in which a run changes ---

    def _write(self, row: RunRow, event: ev.Event, *, reply: ModelReply | None = None, result: str = "") -> list[Hint]:
        before = row.core
        after, _ = step_run(before, event)
        if after == before:
            return []
        was_due = self._outstanding(row)
        if isinstance(event, ev.ModelReplied) and reply is not None and before.status is not RunStatus.STOPPING:
            self._write_reply(row, before, event, reply)
        if isinstance(event, ev.CallSettled):
            self._write_result(row, event.position, result)
        row.core = after
        if before.is_asking and not after.is_asking:
            self._settle_budget(row, after.iteration - before.iteration)
        if after.iteration == before.iteration:
            self._write_notices(row, before, after, event)
        if not after.is_asking:
            row.token = row.owner = None
        if after.status.is_terminal:
            self._write_end(row, before, after)
        added = self._outstanding(row) - was_due
        self._mark_due(row, added)
        hints = [Hint(effect=effect, at=self.now()) for effect in sorted(added, key=_order)]
        return hints + self._join(row) if after.status.is_terminal else hints

    def _write_reply(self, row: RunRow, before: Run, event: ev.ModelReplied, reply: ModelReply) -> None:
        seq = row.message_seq + 1
        calls = () if before.wants_summary else event.calls
        kept = reply if calls else replace(reply, tool_requests=())
        row.messages[seq] = Message(seq=seq, role=Role.ASSISTANT, body=build_assistant_body(kept))
        row.message_seq = seq + len(calls)
        row.events.append("message.completed")
        row.arrivals = 0
        for position, (request, planned) in enumerate(zip(kept.tool_requests, calls, strict=True)):
            place = (before.iteration + 1, position)
            guard = kept.row_fields.get(GUARD_FIELD)
            follows = guard.get(str(position)) if isinstance(guard, Mapping) else None
            row.calls[place] = CallRow(
                request=request,
                result_seq=seq + 1 + position,
                timeout_s=planned.timeout_s,
                precedent=parse_precedent(follows),
            )

    def _write_result(self, row: RunRow, position: int, text: str) -> None:
        call = row.calls[row.core.iteration, position]
        body = build_tool_body(call.request.id, text)
        row.messages[call.result_seq] = Message(seq=call.result_seq, role=Role.TOOL, body=body)
        row.events += ["tool.started", "tool.completed"]
        call.token = call.owner = None

    def _write_notices(self, row: RunRow, before: Run, after: Run, event: ev.Event) -> None:
        """What calls that ended, or were handed back, without their tool's own answer leave behind."""
        for was, now in zip(before.calls, after.calls, strict=True):
            is_settled_here = isinstance(event, ev.CallSettled) and event.position == now.position
            if was.status.is_settled or is_settled_here:
                continue
            call = row.calls[after.iteration, now.position]
            if now.status is not CallStatus.RUNNING:
                call.token = call.owner = None
            if now.status.is_settled:
                call.hinted_at = None
                body = build_tool_body(call.request.id, _notice(was, now))
                row.messages[call.result_seq] = Message(seq=call.result_seq, role=Role.TOOL, body=body)
                row.events.append("tool.completed")

    def _write_end(self, row: RunRow, before: Run, after: Run) -> None:
        row.ended_at = self.now()
        if after.status is not RunStatus.COMPLETED and after.iteration:
            row.message_seq += 1
            closing = build_assistant_body(ModelReply(text=STOPPED_ANSWER))
            row.messages[row.message_seq] = Message(seq=row.message_seq, role=Role.ASSISTANT, body=closing)
        names = {RunStatus.COMPLETED: "run.completed", RunStatus.CANCELLED: "run.cancelled"}
        row.events.append(names.get(after.status, "run.failed"))

    def _mark_due(self, row: RunRow, added: frozenset[Effect]) -> None:
        is_asking_due = any(isinstance(effect, TurnEffect) for effect in self._outstanding(row))
        row.hinted_at, row.hints = (self.now() if is_asking_due else None), 0
        for effect in added:
            if isinstance(effect, CallEffect):
                call = row.calls[effect.iteration, effect.position]
                call.hinted_at, call.hints = self.now(), 0

    def _outstanding(self, row: RunRow) -> frozenset[Effect]:
        if row.due_of is not row.core:
            row.due_of, row.due = row.core, list_outstanding(row.core) if row.has_begun else frozenset()
        return row.due

    def _loaded(self, row: RunRow) -> LoadedRun:
        return filled(
            LoadedRun,
            pk=row.pk,
            session_pk=row.pk,
            model="scripted",
            run=replace(row.core, calls=()),
            replies=row.core.iteration,
            message_seq=row.message_seq,
            result_seqs=(),
            lease_token=row.token,
            root_pk=row.top.pk,
            depth=row.depth,
            used=Amounts(),
            output_tokens=0,
        )

    # --- repair ---

    def sweep(self, depths: Mapping[str, int] | None) -> list[Hint]:
        now, policy = self.now(), self.policy
        if now - self._swept_at > policy.ttl_s * HELD_BACK_PART:
            self._hold_until = now + policy.ttl_s / 3
        self._swept_at = now
        may_expire = now >= self._hold_until
        if may_expire:
            for worker in self.workers.rows.values():
                if worker.is_alive and worker.expires_at < now:
                    worker.state = "dead"
        hints: list[Hint] = []
        for row in self._by_pk:
            if not row.core.status.is_terminal:
                hints += self._repair(row, may_expire)
        return hints + (self._resend(depths) if depths is not None else [])

    def _repair(self, row: RunRow, may_expire: bool) -> list[Hint]:
        hints: list[Hint] = []
        for call in row.core.calls:
            place = row.calls[row.core.iteration, call.position]
            is_late = may_expire and place.deadline_at < self.now()
            if place.token is not None and (self.workers.is_gone(place.owner) or is_late):
                loss = self.workers.loss_of(place.owner)
                if place.owner in self.workers.rows and call.is_suspect:
                    self.workers.rows[place.owner].state = self.workers.rows[place.owner].state.replace("alive", "dead")
                has_begun = place.unbegun != place.token
                lost = ev.CallLost(position=call.position, loss=loss, has_begun=has_begun)
                hints += self._put_off(row, self._write(row, lost))
        if row.token is not None and self.workers.is_gone(row.owner):
            loss = self.workers.loss_of(row.owner)
            hints += self._put_off(row, self._write(row, ev.IterationLost(loss=loss)))
        if row.core.resume_at is not None and row.core.resume_at < self.now():
            hints += self._write(row, ev.WaitEnded())
        if row.core.status is RunStatus.WAITING_FOR_APPROVAL or row.core.unsettled_calls:
            hints += self._expire_questions(row)
        return hints + self._stop_orphan(row)

    def _put_off(self, row: RunRow, hints: list[Hint]) -> list[Hint]:
        """Of the step that was lost; the sweeper sends the hint when its time has come."""
        kept = []
        for hint in hints:
            effect = hint.effect
            delay_s = compute_retry_delay_s(effect.attempt) if isinstance(effect, Effect) else 0.0
            if not delay_s:
                kept.append(hint)
                continue
            due = row.calls[effect.iteration, effect.position] if isinstance(effect, CallEffect) else row
            assert due.hinted_at is not None
            due.hinted_at += delay_s
        return kept

    def _stop_orphan(self, row: RunRow) -> list[Hint]:
        if row.core.status in _OVER:
            return []
        above = row.parent or row.cause
        stopped = (RunStatus.CANCELLED, RunStatus.STOPPING)
        is_orphan = row.parent is not None and row.parent.core.status in (stopped if row.is_background else _OVER)
        while above is not None and not is_orphan:
            is_orphan = above.is_halted
            above = above.parent or above.cause
        return self._write(row, ev.StopRequested()) if is_orphan else []

    def _resend(self, depths: Mapping[str, int]) -> list[Hint]:
        hints: list[Hint] = []
        for row in self._by_pk:
            for effect in sorted(self._outstanding(row), key=_order):
                queue = "tools" if isinstance(effect, RunTool | Prepare) else "model"
                queue = f"suspect_{queue}" if effect.is_suspect else queue
                due = row if isinstance(effect, TurnEffect) else row.calls[effect.iteration, effect.position]
                if due.hinted_at is not None and self._is_lost(queue, due, depths):
                    due.hinted_at, due.hints = self.now(), due.hints + 1
                    hints.append(Hint(effect=effect, at=self.now()))
        return hints

    def _is_lost(self, queue: str, due: RunRow | CallRow, depths: Mapping[str, int]) -> bool:
        assert due.hinted_at is not None
        grace = self.policy.resend_grace_s
        marks = [worker.marks.get(queue, 0.0) for worker in self.workers.rows.values() if worker.is_alive]
        was_overtaken = due.hinted_at < max(marks, default=0.0) - grace
        waited = self.now() - due.hinted_at
        return waited > min(grace * 2 ** min(due.hints, 3), 30.0) and (not depths[queue] or was_overtaken)

    def give_up(self, owner: int, held: Collection[str], before: float) -> int:
        strays = 0
        for row in self._rows.values():
            places: list[RunRow | CallRow] = [row, *row.calls.values()]
            for place in places:
                is_ours = place.token is not None and place.owner == owner and place.claimed_at < before
                if is_ours and place.token not in held:
                    place.owner = 0
                    strays += 1
        return strays

    # --- for the invariants ---

    def ended(self) -> bool:
        return all(row.core.status.is_terminal for row in self._by_pk)

    def reports(self) -> list[Report]:
        return [self._report(row) for row in self._rows.values()]

    def _report(self, row: RunRow) -> Report:
        seqs = sorted(row.messages)
        return Report(
            run_id=row.core.run_id,
            status=row.core.status,
            exit_reason=row.core.exit_reason.value if row.core.exit_reason else None,
            iteration=row.core.iteration,
            charged=row.charged,
            asides_charged=row.asides_charged,
            asides_answered=sum(
                answer.text is not None
                for call in row.calls.values()
                for asked in call.asked
                for answer in asked.answers
            ),
            events=row.events,
            event_seqs=range(1, len(row.events) + 1),
            bodies=[json.loads(row.messages[seq].body) for seq in seqs],
            seqs=seqs,
            is_held=row.token is not None or any(call.token is not None for call in row.calls.values()),
            is_due=bool(self._outstanding(row)),
            root=row.top.core.run_id,
            is_turn=row.cause is not None,
            ended_at=row.ended_at,
            budget=row.budget,
        )

    def close(self) -> None:
        pass


class MemoryAsides:
    """``store.runs.auxiliary.AuxiliaryCalls``."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def enqueue_questions(self, claim: CallClaim, consultation: Consultation) -> list[Hint]:
        row = self._store._held_call(claim)
        hints = self._store._write(row, ev.CallAsked(position=claim.position))
        if row.core.calls[claim.position].asks:
            asked = Asked(consultation=consultation, at=self._store.now())
            row.calls[claim.iteration, claim.position].asked.append(asked)
        return hints

    def claim(self, effect: AskAuxiliary, owner: int) -> AuxiliaryClaim | None:
        if not self._store._take_call(effect, owner):
            return None
        row = self._store._rows[effect.run_id]
        call = row.calls[effect.iteration, effect.position]
        asked = next(one for one in call.asked if one.is_open)
        assert call.token is not None
        return AuxiliaryClaim(
            token=call.token,
            run_pk=row.pk,
            run_id=effect.run_id,
            iteration=effect.iteration,
            position=effect.position,
            attempt=effect.attempt,
            number=sum(len(one.answers) for one in call.asked),
            question=asked.consultation.questions[len(asked.answers)],
            refused_by=None,
            loaded=self._store._loaded(row),
        )

    def settle_question(
        self, claim: AuxiliaryClaim, answer: AuxiliaryAnswer, spent: Spent = NOTHING_SPENT
    ) -> list[Hint]:
        row = self._store._held_call(claim)
        asked = next(one for one in row.calls[claim.iteration, claim.position].asked if one.is_open)
        asked.answers.append(answer)
        row.asides_charged += spent.usage.cache_read
        return self._store._write(row, ev.CallAnswered(position=claim.position, is_last=not asked.is_open))

    def release(self, claim: AuxiliaryClaim, spent: Spent = NOTHING_SPENT) -> list[Hint]:
        row = self._store._held_call(claim)
        row.asides_charged += spent.usage.cache_read
        return self._store._write(row, ev.CallReleased(position=claim.position))

    def list_answers(self, claim: CallClaim) -> list[AnsweredConsultation]:
        call = self._store._rows[claim.run_id].calls[claim.iteration, claim.position]
        return [
            AnsweredConsultation(
                task=asked.consultation.questions[0].task,
                material=asked.consultation.material,
                answers=asked.answers,
                asked_at=asked.at,
            )
            for asked in call.asked
        ]


def _order(effect: Effect) -> int:
    return effect.position if isinstance(effect, CallEffect) else -1


def _is_below(row: RunRow | None, top: RunRow) -> bool:
    while row is not None:
        row = row.parent or row.cause
        if row is top:
            return True
    return False


def _new(core: Run) -> Run:
    return Run(run_id=core.run_id, iterations_max=core.iterations_max, attempts_max=core.attempts_max)


def _notice(was: Call, now: Call) -> str:
    was_running = was.may_have_acted or was.waits_for is WaitKind.CHILDREN
    return build_missing_result(now.status, was_running=was_running)


# --- stores that leave something out ---------------------------------------------------------------------------------


class WithoutFence(MemoryStore):
    """Takes whatever is brought for a run that has not ended, whoever brings it."""

    def _held_iteration(self, claim: IterationClaim) -> RunRow:
        row = self._rows[claim.run_id]
        if row.core.status.is_terminal:
            raise LeaseLost("it has ended")
        row.core = replace(row.core, is_asking=True)
        return row

    def _held_call(self, claim: CallClaim | AuxiliaryClaim) -> RunRow:
        row = self._rows[claim.run_id]
        if row.core.status.is_terminal or row.core.iteration != claim.iteration:
            raise LeaseLost("it has moved on")
        calls = row.core.calls
        if calls[claim.position].status is CallStatus.PENDING:
            running = replace(calls[claim.position], status=CallStatus.RUNNING)
            row.core = replace(row.core, calls=(*calls[: claim.position], running, *calls[claim.position + 1 :]))
        return row


class CountingArrivals(MemoryStore):
    """Joins like a chord: when as many results were brought as calls were made, whoever brought them."""

    def settle(self, claim: CallClaim, settlement: Settlement) -> list[Hint]:
        row = self._rows[claim.run_id]
        before = self._outstanding(row)
        row.arrivals += 1
        try:
            super().settle(claim, settlement)
        finally:
            self._mark_due(row, frozenset())
        return [Hint(effect=effect, at=self.now()) for effect in self._outstanding(row) - before]

    def _outstanding(self, row: RunRow) -> frozenset[Effect]:
        due = list_outstanding(row.core)
        calls = row.core.calls
        if not calls or row.core.is_asking or row.core.status is not RunStatus.RUNNING:
            return due
        tools = frozenset(effect for effect in due if isinstance(effect, CallEffect))
        if row.arrivals < len(calls):
            return tools
        core = row.core
        ask = Iterate(
            run_id=core.run_id, iteration=core.iteration + 1, attempt=core.attempt, is_suspect=core.is_suspect
        )
        return frozenset({ask})

    def _apply_claim(self, row: RunRow) -> Run:
        return replace(row.core, is_asking=True, status=RunStatus.RUNNING)

    def load(self, session_pk: int, last: int) -> Sequence[Message]:
        row = self._by_pk[session_pk]
        return [row.messages[seq] for seq in sorted(row.messages) if seq <= last]


class ChargingAttempts(MemoryStore):
    """Counts a model call when it is made, not when its reply is written."""

    def claim_iteration(self, effect: Iterate, owner: int) -> IterationClaim | None:
        claim = super().claim_iteration(effect, owner)
        if claim is not None:
            self._rows[effect.run_id].charged += 1
        return claim

    def commit_reply(self, claim: IterationClaim, reply: ModelReply, reading: Any, cost: Any = None) -> list[Hint]:
        hints = super().commit_reply(claim, reply, reading, cost)
        self._rows[claim.run_id].charged -= 1
        return hints


class ReadingAgain(MemoryStore):
    """Has what a workspace says read before each of the first tries of a model call, and takes the last."""

    def release_iteration(self, claim: IterationClaim, *more: Any) -> list[Hint]:
        self._held_iteration(claim)
        row = self._rows[claim.run_id]
        row.core = replace(row.core, is_prepared=row.core.iteration > 0)
        return super().release_iteration(claim, *more)

    def commit_failure(
        self, claim: IterationClaim, event: ev.ModelFailed | ev.CapacityAwaited | ev.RunBroken, *more: Any
    ) -> list[Hint]:
        self._held_iteration(claim)
        row = self._rows[claim.run_id]
        row.core = replace(row.core, is_prepared=row.core.iteration > 0)
        return super().commit_failure(claim, event, *more)

    def commit_preparation(
        self, claim: IterationClaim, section: str, documents: Mapping[str, object] | None = None
    ) -> list[Hint]:
        row = self._held_iteration(claim)
        row.prompt = f"{BARE_PROMPT}\n\n{section}"
        return self._write(row, ev.PromptCompleted())


class ForgettingAnswers(MemoryStore):
    """Pays for the answer of an auxiliary call and lets the tool ask again."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.auxiliary_calls = _ForgettingAsides(self)


class _ForgettingAsides(MemoryAsides):
    def enqueue_questions(self, claim: CallClaim, consultation: Consultation) -> list[Hint]:
        self._store._held_call(claim).calls[claim.iteration, claim.position].asked.clear()
        return super().enqueue_questions(claim, consultation)

    def list_answers(self, claim: CallClaim) -> list[AnsweredConsultation]:
        return []


class PayingLosers(MemoryStore):
    """Bills an answer to whoever brings it, and looks at the claim afterwards."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.auxiliary_calls = _PayingLosers(self)


class _PayingLosers(MemoryAsides):
    def settle_question(
        self, claim: AuxiliaryClaim, answer: AuxiliaryAnswer, spent: Spent = NOTHING_SPENT
    ) -> list[Hint]:
        row = self._store._rows[claim.run_id]
        before = row.asides_charged + spent.usage.cache_read
        try:
            return super().settle_question(claim, answer, spent)
        finally:
            row.asides_charged = before


class WithoutSweeper(MemoryStore):
    """Trusts the broker."""

    def sweep(self, depths: Mapping[str, int] | None) -> list[Hint]:
        return []


class KeepingStrays(MemoryStore):
    """Leaves a claim alone as long as the process that made it lives, whether or not it still works on it."""

    def give_up(self, owner: int, held: Collection[str], before: float) -> int:
        return 0


class RerunningOnce(MemoryStore):
    """Tries every lost call again, whatever its tool says about that."""

    def _write(self, row: RunRow, event: ev.Event, **more: Any) -> list[Hint]:
        if not isinstance(event, ev.CallLost):
            return super()._write(row, event, **more)
        declared = row.core.calls[event.position].replay
        self._call_it(row, event.position, Replay.KEYED)
        hints = super()._write(row, event, **more)
        # A worker does not begin a ``once`` tool under another class; it is told that nothing happened before.
        self._call_it(row, event.position, declared)
        return hints

    @staticmethod
    def _call_it(row: RunRow, position: int, replay: Replay) -> None:
        calls = list(row.core.calls)
        if position < len(calls):
            calls[position] = replace(calls[position], replay=replay)
            row.core = replace(row.core, calls=tuple(calls))


class JoiningAnswersOnly(MemoryStore):
    """Tells a parent of its child's end when the child has answered, and not when it failed or was stopped."""

    def _join(self, child: RunRow) -> list[Hint]:
        return super()._join(child) if child.core.status is RunStatus.COMPLETED else []


class JoiningTheFirst(MemoryStore):
    """Goes on as soon as one child has ended, and leaves the others to themselves."""

    def _join(self, child: RunRow) -> list[Hint]:
        parent = child.parent
        if parent is None or parent.core.iteration != child.place[0]:
            return []
        if parent.core.calls[child.place[1]].waits_for is not WaitKind.CHILDREN:
            return []
        event = ev.CallSettled(position=child.place[1], status=CallStatus.SUCCEEDED)
        return self._write(parent, event, result="one ended")


class LeavingOrphans(MemoryStore):
    """Stops the one run that was named."""

    def stop(self, run_id: str, *, is_whole: bool) -> tuple[list[str], list[Hint]]:
        return super().stop(run_id, is_whole=False)

    def _stop_orphan(self, row: RunRow) -> list[Hint]:
        return []


class GivingFreshLimits(MemoryStore):
    """Begins with what background children left as with what a person says."""

    def _turn(self, cause: RunRow) -> RunRow:
        return replace(super()._turn(cause), root=None)


class LettingChainsGoOn(MemoryStore):
    """Stops the run that was named and what it waits for, and forgets the stop when the run had ended."""

    def _join_background(self, parent: RunRow, child: RunRow) -> list[Hint]:
        parent.is_halted = False
        if parent.core.status is RunStatus.CANCELLED:
            parent.core = replace(parent.core, status=RunStatus.COMPLETED)
        return super()._join_background(parent, child)

    def _stop_orphan(self, row: RunRow) -> list[Hint]:
        return [] if row.cause is not None or row.is_background else super()._stop_orphan(row)


class AskingForGood(MemoryStore):
    """Waits for an answer for as long as it takes."""

    def _expire_questions(self, row: RunRow) -> list[Hint]:
        return []


class WithoutReservation(MemoryStore):
    """Looks whether there is something left of the budget, and takes it when the call is over."""

    def _reserve(self, row: RunRow) -> None:
        super()._reserve(row)
        if row.reserved is not None and row.top.budget is not None:
            row.top.budget = replace(row.top.budget, reserved=Amounts())
            row.reserved = Amounts()
