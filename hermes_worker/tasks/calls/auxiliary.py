"""Model calls beside the conversation, such as summaries of it.

Each task may have providers of its own, tried before those of the installation. Failures are decided on by the same
table as those of the loop, but no call waits for long: a call beside the conversation that would have to wait goes to
the next provider, and when there is none, its caller goes on without an answer.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.auxiliary import AuxTask
from hermes_worker.core.errors import Classification, ConfigurationError, FailureKind, ModelCallError
from hermes_worker.core.messages import ModelReply, ModelRequest
from hermes_worker.core.metering import fill_missing_usage
from hermes_worker.core.pricing import Price, Spent
from hermes_worker.core.recovery import retry
from hermes_worker.core.recovery.classify import classify_translated
from hermes_worker.core.recovery.reasoning_tags import strip_think_blocks
from hermes_worker.models.chain import ModelRoute
from hermes_worker.models.credentials import FirstKey, KeyPool
from hermes_worker.models.governor import CallGovernor, CallPermit, CredentialRef
from hermes_worker.models.key_watch import KeyStateLookup, NoKeyStates
from hermes_worker.observe import count, log
from hermes_worker.store.rows import RunRecord
from hermes_worker.tasks.context import ModelChain, WorkerContext
from hermes_worker.tasks.iteration.spending import Bill, DeltaMeter, MeteredAttempt, compute_reply_cost

WAIT_S_MAX = 8.0
_TIMED_OUT = "timeout"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuxiliaryReply:
    text: str
    """The reply without the model's thinking."""
    reply: ModelReply


@dataclass(frozen=True, slots=True, kw_only=True)
class Auxiliary:
    """The providers, keys and prices that serve model calls beside the conversation."""

    main: ModelChain
    governor: CallGovernor
    pool: KeyPool = field(default_factory=FirstKey)
    own: Mapping[str, ModelChain] = field(default_factory=dict)
    """Providers for single tasks; each entry names its model."""
    prices: Mapping[tuple[str, str], Price] = field(default_factory=dict)
    """The prices that the installation sets itself."""
    keys: KeyStateLookup = field(default_factory=NoKeyStates)
    """Keys and their states. A closed key is not used, since a call beside the conversation is no probe; what the call
    finds out about a key is recorded here.
    """
    run_id: str = ""
    """The run that the call is made for: several runs have to find a server down before its keys are closed."""
    order: int | None = None
    """The run's place in the governor's order."""

    @classmethod
    def for_run(cls, parts: WorkerContext, loaded: RunRecord, run_id: str) -> Auxiliary:
        """Build it from what a worker has for the tenant of a run."""
        models = parts.find_models(loaded.session_pk)
        return cls(
            main=models.chain,
            governor=parts.models.governor,
            pool=parts.models.pool,
            own=models.auxiliary,
            prices=parts.models.prices,
            keys=parts.models.keys,
            run_id=run_id,
            order=loaded.root_pk,
        )

    def find_window(self, task: AuxTask) -> int | None:
        """The smallest known context window of the providers of ``task``, in tokens; ``None`` where the task has no
        provider of its own, or no window is known.
        """
        own = self.own.get(task)
        windows = [own.resolve_route("", position).window for position in range(len(own))] if own else []
        return min((known for window in windows if window is not None and (known := window.known_tokens)), default=None)

    def ask(
        self, task: AuxTask, request: ModelRequest, abort: AbortSignal, *, ticket: str, bill: Bill
    ) -> AuxiliaryReply:
        """Return the answer of the first provider that gives one. ``request.model`` is the model of the installation's
        own provider. Everything spent, on failed attempts too, is added to ``bill``. Raises ``ModelCallError``, with
        kind ``interrupted`` when ``abort`` was set.
        """
        failure = ModelCallError(FailureKind.CONFIGURATION, "no provider is set up for this call")
        with _Deadline(abort, task.timeout_s) as limited:
            routes = list(self._iterate_routes(task, request.model, ticket))
            if not routes and not self.keys.are_all_open:
                failure = ModelCallError(FailureKind.UNREACHABLE, "the keys of all its providers are closed")
            for number, route in enumerate(routes):
                try:
                    call = _AuxiliaryAttempts(self, task, route, limited, f"{ticket}:{task}:{number}", bill)
                    return call.answer(replace(request, model=route.model), is_last=number + 1 == len(routes))
                except ModelCallError as error:
                    if abort.is_set():
                        raise
                    failure = error
                    count("auxiliary.failed")
                    log.info("auxiliary.failed", task=task.value, provider=route.name, kind=error.kind.value)
                if limited.is_set():
                    message = f"no answer within {task.timeout_s:g} s"
                    raise ModelCallError(FailureKind.TIMEOUT, message)
        raise failure

    def _iterate_routes(self, task: AuxTask, model: str, ticket: str) -> Iterator[ModelRoute]:
        own = self.own.get(task)
        for chain, named in ([(own, "")] if own else []) + [(self.main, model)]:
            for position in range(len(chain)):
                try:
                    names = chain.list_credentials(named, position)
                    usable = [name for name in names if self.keys.find_closed(name) is None]
                    if names and not usable:
                        continue
                    key = self.pool.choose_key(usable, ticket=f"{ticket}:{task}").name if usable else ""
                    route = chain.resolve_route(named, position, key)
                    if self.keys.find_closed(route.credential) is None:
                        yield route
                except ConfigurationError as error:
                    log.info("auxiliary.failed", task=task.value, provider="", kind=str(error))


class _AuxiliaryAttempts:
    """The attempts at one provider."""

    def __init__(
        self, auxiliary: Auxiliary, task: AuxTask, route: ModelRoute, abort: AbortSignal, ticket: str, bill: Bill
    ) -> None:
        self._bill = bill
        self._tries_max = task.tries_max
        self._governor = auxiliary.governor
        self._order = auxiliary.order
        self._keys = auxiliary.keys
        self._run_id = auxiliary.run_id
        self._prices = auxiliary.prices
        self._route = route
        self._abort = abort
        self._ticket = ticket
        self._place = CredentialRef(provider=route.name, credential=route.credential)

    def answer(self, request: ModelRequest, *, is_last: bool) -> AuxiliaryReply:
        history = retry.AttemptHistory()
        remedies = frozenset({retry.Remedy.CAP_OUTPUT} | (set() if is_last else {retry.Remedy.FALL_BACK}))
        while True:
            permit = self._acquire_permit(request)
            attempt = MeteredAttempt(request=request, route=self._route, heard=DeltaMeter(lambda _: None))
            try:
                answered = self._route.provider.ask(request, on_delta=attempt.heard, abort=self._abort)
            except ModelCallError as error:
                self._bill.add(attempt.estimate_lost_spend(error, self._prices))
                self._governor.settle(permit, limits=error.limits)
                classification = classify_translated(error)
                if classification.kind is FailureKind.RATE_LIMIT:
                    self._governor.cool_down(self._place, classification.retry_after_s or 2.0)
                situation = retry.Situation(remedies=remedies, attempts_max=self._tries_max, jitter=random.random())
                if self._record_failure(classification):
                    raise
                decision = retry.decide_remedy(classification, history, situation)
                history = retry.advance_history(history, decision, classification)
                match decision:
                    case retry.CapOutput():
                        request = replace(request, output_tokens_max=decision.tokens)
                    case retry.Wait() if decision.seconds <= WAIT_S_MAX and not self._abort.wait(decision.seconds):
                        pass
                    case _:
                        raise
            else:
                self._keys.report_answer(self._place, None)
                reply = fill_missing_usage(answered, request)
                self._governor.settle(permit, usage=reply.usage, limits=reply.limits)
                self._bill.add(Spent(usage=reply.usage, cost=compute_reply_cost(reply, self._route, self._prices)))
                return AuxiliaryReply(text=strip_think_blocks(reply.text).strip(), reply=reply)

    def _record_failure(self, failure: Classification) -> bool:
        """Record what the failure says about the key, and return whether the key is closed now. A call that was aborted
        says nothing about it.
        """
        if self._abort.is_set():
            return False
        return self._keys.report_failure(
            self._place, failure, run_id=self._run_id, probe=None, is_renewable=self._route.can_renew
        )

    def _acquire_permit(self, request: ModelRequest) -> CallPermit:
        """Acquire a permit to ask, waiting for it when the wait is short. Raises ``ModelCallError``."""
        tokens = sum(map(len, request.messages)) // 4
        while True:
            permit = self._governor.acquire(self._place, ticket=self._ticket, tokens=tokens, order=self._order)
            if permit.wait_s <= 0:
                return permit
            if permit.wait_s > WAIT_S_MAX or self._abort.wait(permit.wait_s):
                self._governor.withdraw(permit)
                message = f"{self._route.name} may not be asked for {permit.wait_s:.0f} s"
                raise ModelCallError(FailureKind.RATE_LIMIT, message)


class _Deadline:
    """An abort signal that is also set when the time is up."""

    def __init__(self, abort: AbortSignal, seconds: float) -> None:
        self._signal = AbortSignal()
        self._timer = threading.Timer(seconds, self._signal.set, [_TIMED_OUT])
        self._timer.daemon = True
        abort.on_abort(lambda: self._signal.set("abort"))

    def __enter__(self) -> AbortSignal:
        self._timer.start()
        return self._signal

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
