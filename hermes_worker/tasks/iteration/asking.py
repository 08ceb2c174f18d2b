"""One model call, with everything that is tried before it counts as failed.

``core.recovery.asking`` says what to do next; here it is done. Waits over a few seconds end the call with an event that
parks the run, and the worker that goes on finds in the run what was tried already.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import assert_never

from hermes_worker.agent.prompt.amendments import has_images, has_inline_images
from hermes_worker.agent.prompt.compaction import ROWS_MAX, is_futile
from hermes_worker.core import events as ev
from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.auxiliary import AuxTask
from hermes_worker.core.compactions import outcome_body, requested_focus
from hermes_worker.core.errors import ConfigurationError, Failure, FailureKind, ModelCallError
from hermes_worker.core.guardrails import halted
from hermes_worker.core.messages import Delta, Message, ModelReply, ModelRequest, canonical_json
from hermes_worker.core.metering import metered, request_tokens, weight_of
from hermes_worker.core.moved_folders import folder_note
from hermes_worker.core.pricing import NOTHING_SPENT, Spent
from hermes_worker.core.recovery import asking, retry
from hermes_worker.core.recovery.asking import Asking
from hermes_worker.core.recovery.classify import classification_of
from hermes_worker.core.recovery.scrub import ThinkScrubber
from hermes_worker.core.run import ExitReason
from hermes_worker.core.run_memory import RunMemory, memory_document, memory_from
from hermes_worker.models.chain import ModelRoute
from hermes_worker.models.governor import KeyPlace, Permit
from hermes_worker.models.identity import described
from hermes_worker.models.key_watch import parked_wait_s
from hermes_worker.observe import count, log, took
from hermes_worker.safety.redaction import redact
from hermes_worker.store.key_states import Probe
from hermes_worker.store.runs.runs import IterationClaim
from hermes_worker.store.runs.transcripts import CorruptTranscript
from hermes_worker.stream.live import DeltaBuffer
from hermes_worker.tasks.calls.auxiliary import Auxiliary
from hermes_worker.tasks.hooks.rewriting import before_compaction, context_of
from hermes_worker.tasks.iteration.compacting import Bounds, Compaction, SummaryMissing, Wish, compact
from hermes_worker.tasks.iteration.metering import Attempt, Bill, Heard
from hermes_worker.tasks.iteration.requests import build_request
from hermes_worker.tasks.parts import Parts

_ELSEWHERE_S = 30.0
"""How often a run that was given to another server is looked at again, in seconds."""
LOOK_AHEAD_TOKENS = 2_000
"""A request of at least so many tokens may be near the window of a small server, which would cut it without a word."""
_EXIT_OF: Mapping[retry.GiveUpReason, ExitReason] = {
    retry.GiveUpReason.RETRIES_EXHAUSTED: ExitReason.ALL_RETRIES_EXHAUSTED,
    retry.GiveUpReason.CONTENT_POLICY_BLOCKED: ExitReason.CONTENT_POLICY_BLOCKED,
    retry.GiveUpReason.INTERRUPTED: ExitReason.INTERRUPTED_DURING_API_CALL,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The model answered."""

    reply: ModelReply
    route: ModelRoute
    request: ModelRequest
    rows: Sequence[Message]
    """The transcript the request was made of."""
    memory: RunMemory
    in_vain: Spent = NOTHING_SPENT
    """What failed attempts before the answer may have cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unanswered:
    """There is no answer; ``event`` says why, or what the run waits for."""

    event: ev.ModelFailed | ev.CapacityAwaited | ev.Broken
    in_vain: Spent = NOTHING_SPENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    """The abort signal was set before an answer came."""

    in_vain: Spent = NOTHING_SPENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """The conversation is too long. ``compaction`` makes it shorter; then the model is asked."""

    compaction: Compaction
    """The row to write, with the cost of its summary and of failed attempts."""
    memory: RunMemory
    is_requested: bool = False
    """Whether a person asked for the compaction: then no model is asked, and the run ends."""


Asked = Answered | Unanswered | Interrupted | Compacted


def ask(parts: Parts, claim: IterationClaim, abort: AbortSignal, *, is_watched: Callable[[], bool]) -> Asked:
    """Make the claimed call. Blocks until there is an answer, or nothing more that can be tried without a long wait."""
    bill = Bill()
    try:
        context = context_of(parts, claim, abort)
    except (CorruptTranscript, ValueError) as error:
        return _corrupt(error)
    asked = _asked(parts, claim, abort, is_watched, bill, context)
    return asked if isinstance(asked, Compacted) else replace(asked, in_vain=bill.spent)


def _asked(
    parts: Parts, claim: IterationClaim, abort: AbortSignal, is_watched: Callable[[], bool], bill: Bill, context: str
) -> Asked:
    try:
        with parts.fair_semaphore:
            call = _ModelCall(parts, claim, abort, is_watched, bill, context)
        return call.halted() or call.elsewhere() or call.outcome()
    except (CorruptTranscript, ValueError) as error:
        return _corrupt(error)
    except ConfigurationError as error:
        failure = Failure(kind=FailureKind.CONFIGURATION.value, message=str(error))
        return Unanswered(event=ev.ModelFailed(failure=failure, exit_reason=ExitReason.MODEL_CALL_REFUSED))


def _corrupt(error: Exception) -> Unanswered:
    failure = Failure(kind="corrupt_transcript", message=str(error))
    return Unanswered(event=ev.Broken(reason=ExitReason.CORRUPT_STATE, failure=failure))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """A request as it would be sent now."""

    route: ModelRoute
    request: ModelRequest
    facts: asking.RequestFacts

    @property
    def key(self) -> KeyPlace:
        return KeyPlace(provider=self.route.name, credential=self.route.credential)


class _ModelCall:
    """A claimed call in this worker. Used by one thread."""

    _prepared: _Prepared
    """The request that was prepared last."""
    _permit: Permit
    """The newest answer of the governor."""
    _probe: Probe | None = None
    """The right to try a closed key, while this call has it."""
    _probe_wait_s = 0.0
    """How many seconds must pass after this call before the key is tried again."""

    def __init__(
        self,
        parts: Parts,
        claim: IterationClaim,
        abort: AbortSignal,
        is_watched: Callable[[], bool],
        bill: Bill,
        context: str = "",
    ) -> None:
        """``context`` is what hooks add to the requests of a turn that begins. ``bill`` is for attempts that bring no
        reply, and for calls beside this one. Raises ``ValueError`` when the run's documents make no sense, and
        ``CorruptTranscript``."""
        run = claim.loaded.run
        self._parts = parts
        self._claim = claim
        self._abort = abort
        self._bill = bill
        # The same for every try of the call, so that one that was parked finds the place that was kept for it.
        self._ticket = f"{run.run_id}:{run.iteration + 1}"
        memory = memory_from(run.memory)
        memory = replace(memory, context=context) if context else memory
        self._rows = parts.transcripts.load(claim.loaded.session_pk, claim.loaded.message_seq)
        self._focus = None if run.wants_summary else requested_focus(self._rows)
        self._session = parts.runs.session_of(claim.loaded.session_pk)
        note = folder_note(self._rows, self._session.workspace, self._session.system_prompt)
        if note and note not in memory.context and self._focus is None:
            memory = replace(memory, context=f"{memory.context}\n\n{note}".strip())
        self._chain = parts.models_of(claim.loaded.session_pk).chain
        rules = _rules(parts, len(self._chain), is_requested=self._focus is not None)
        self._begun = asking.begin(rules, memory, _history(run.recovery))
        self._deltas = DeltaBuffer(
            parts.live,
            claim.run_id,
            iteration=run.iteration + 1,
            # The number of the run's newest event tells this try of the call from those before it.
            attempt=claim.loaded.event_seq,
            is_watched=is_watched,
        )

    def halted(self) -> Unanswered | None:
        """The end of a turn that repeats itself in vain, where guardrails may end it; ``None`` when the turn goes
        on.
        """
        reason = halted(self._rows, self._parts.guardrails)
        if reason is None:
            return None
        count("guardrail.halted")
        failure = Failure(kind=ExitReason.GUARDRAIL_HALT.value, message=f"The turn was ended by a guardrail: {reason}.")
        return Unanswered(event=ev.ModelFailed(failure=failure, exit_reason=ExitReason.GUARDRAIL_HALT))

    def elsewhere(self) -> Unanswered | None:
        """The event that makes the run wait for a worker that serves the model it was given to; ``None`` when this
        worker does.

        A stand-in, or another server that happens to be configured, must not finish what was meant for a model.
        """
        given, ours = self._claim.loaded.endpoint, self._parts.model.endpoint
        if given is None or ours is None or given == ours:
            return None
        log.info("model.elsewhere", given=given, ours=ours)
        reason = (
            f"it was given to {self._claim.loaded.model} at {described(given)}, and the workers ask {described(ours)}; "
            "start them with the provider it was given to, or stop it"
        )
        return self._parked(self._begun, _ELSEWHERE_S, reason)

    def outcome(self) -> Asked:
        try:
            return self._outcome()
        finally:
            if (probe := self._probe_taken()) is not None:
                self._parts.keys.give_back(probe, self._probe_wait_s)

    def _outcome(self) -> Asked:
        state = self._begun
        while True:
            happened = self._done(state)
            if isinstance(happened, Asked):
                return happened
            before, state = state, asking.after(state, happened)
            self._do_beside(before, state)

    def _done(self, state: Asking) -> asking.AskingEvent | Asked:
        """Do what ``state`` says is next, and return the event that comes of it or the outcome of the call."""
        act = state.act
        match act:
            case asking.PrepareRequest():
                return self._prepare(state)
            case asking.ShortenConversation():
                return self._shorten(state, act)
            case asking.AcquirePermit():
                return self._acquire()
            case asking.SendRequest():
                return self._send(state)
            case asking.HoldStill():
                return self._hold_still(act)
            case asking.AskWindow():
                return self._ask_window()
            case asking.RenewToken():
                return self._renew()
            case asking.CompareRequest():
                return self._compare(state)
            case asking.ParkRun():
                if state.failure is None and not act.keys:
                    log.info("model.held_back", provider=self._prepared.route.name, wait_s=round(act.seconds, 1))
                return self._parked(state, act.seconds, act.reason, act.keys)
            case asking.FailCall():
                return _failed(act)
            case _:
                assert_never(act)

    def _do_beside(self, before: Asking, state: Asking) -> None:
        if state.decided is not None:
            kind = state.decided.classification.kind.value
            count(f"model.failed.{kind}")
            status, decision = state.decided.classification.status, state.decided.decision.kind
            log.info("model.failed", kind=kind, status=status, decision=decision)
        for act in state.beside:
            match act:
                case asking.CoolDown():
                    self._parts.governor.cool_down(self._prepared.key, act.seconds)
                case asking.RestKey():
                    self._parts.pool.rest(self._prepared.route.credential, act.seconds)
                case asking.WithdrawPermit():
                    self._parts.governor.withdraw(self._permit)
                case asking.LearnWindow():
                    if self._prepared.route.window is not None:
                        self._prepared.route.window.learn(act.tokens)
                case _:
                    assert_never(act)
        if state.memory.provider != before.memory.provider:
            log.info("model.fell_back", position=state.memory.provider)

    # --- before it is sent ---

    def _prepare(self, state: Asking) -> asking.RequestPrepared | asking.KeyClosed:
        found = self._route(state.memory.provider)
        if found is None:
            return self._closed(state)
        route, has_other_keys = found
        request = self._request(route, state)
        tokens = request_tokens(request)
        served = self._window_served(route, tokens)
        bounds = self._bounds(state, state.window_with(served), route)
        trigger = bounds.trigger
        facts = asking.RequestFacts(
            provider=route.name,
            tokens=tokens,
            trigger=trigger,
            room=bounds.room,
            has_too_many_rows=len(request.messages) >= ROWS_MAX,
            is_futile=tokens >= trigger and is_futile(self._rows, trigger=trigger),
            window_served=served,
            has_other_keys=has_other_keys,
            can_ask_window=route.window is not None,
            can_renew=route.renew is not None,
            is_aggregator=route.is_aggregator,
        )
        self._prepared = _Prepared(route=route, request=request, facts=facts)
        return asking.RequestPrepared(facts)

    def _route(self, position: int) -> tuple[ModelRoute, bool] | None:
        """The route to ask now, with one of the provider's keys, and whether the provider has other keys; ``None`` when
        its keys are closed and this call is not the one that probes one of them.
        """
        chain, model = self._chain, self._claim.loaded.model
        names = chain.credentials(model, position)
        if not self._parts.keys.are_all_open:
            closed = [name for name in self._names(position) if self._parts.keys.closed(name)]
            names = [name for name in names if name not in closed]
            tried = next((name for name in closed if self._may_try(name)), None)
            if tried is not None:
                return chain.route(model, position, tried), bool(names)
            if closed and not names:
                return None
        if not names:
            return chain.route(model, position), False
        is_child = self._claim.loaded.depth > 0
        chosen = self._parts.pool.choose(names, ticket=self._claim.run_id, is_child=is_child)
        return chain.route(model, position, chosen.name), chosen.has_others

    def _names(self, position: int) -> Sequence[str]:
        """The names of the keys of the provider at ``position``."""
        chain, model = self._chain, self._claim.loaded.model
        return chain.credentials(model, position) or (chain.route(model, position).credential,)

    def _may_try(self, credential: str) -> bool:
        """Acquire the fleet's one probe of a closed key; ``False`` when another call has it."""
        if self._probe is not None:
            return self._probe.credential == credential
        self._probe = self._parts.keys.probe(credential, self._parts.leases.owner)
        return self._probe is not None

    def _probe_taken(self) -> Probe | None:
        probe, self._probe = self._probe, None
        return probe

    def _closed(self, state: Asking) -> asking.KeyClosed:
        """Find another provider to ask, and what to wait for when there is none."""
        here, ends = state.memory.provider, len(self._chain)
        elsewhere = [*range(here + 1, ends), *(range(min(here, ends)) if state.may_go_back else ())]
        position = next((position for position in elsewhere if self._route(position) is not None), None)
        rows = [self._parts.keys.closed(name) for each in (here, *elsewhere) for name in self._names(each)]
        found = {row.credential: row for row in rows if row is not None}
        why = "; ".join(
            dict.fromkeys(f"the key of {row.provider} {row.state.condition.text}" for row in found.values())
        )
        return asking.KeyClosed(
            next_provider=position,
            keys=tuple(found),
            wait_s=parked_wait_s(),
            reason=f"{why}; one call at a time tries it, and the run goes on when it works",
        )

    def _request(self, route: ModelRoute, state: Asking) -> ModelRequest:
        return build_request(
            self._session,
            self._rows,
            route,
            state.memory,
            is_summary=self._claim.loaded.run.wants_summary,
            options=self._parts.model,
        )

    def _window_served(self, route: ModelRoute, tokens: int) -> int | None:
        """The window that the server is known to serve, in tokens; ``None`` where it is not known. It is asked for in
        the background, so that no call waits for it.
        """
        if route.window is None or self._parts.model.window:
            return None
        served = route.window.known
        if route.cuts_silently and served is None and tokens >= LOOK_AHEAD_TOKENS:
            route.window.ask_auxiliary()
        return served

    def _bounds(self, state: Asking, window: int, route: ModelRoute) -> Bounds:
        return Bounds(
            window=window,
            options=self._parts.model,
            provider=route.name,
            model=route.model,
            weight_percent=state.memory.weight_percent,
        )

    def _shorten(
        self, state: Asking, act: asking.ShortenConversation
    ) -> asking.NothingShortened | Compacted | Interrupted:
        facts = self._prepared.facts
        wish = Wish(
            tokens=facts.tokens,
            focus=self._focus,
            has_too_many_rows=facts.has_too_many_rows and facts.tokens < facts.trigger,
            may_wait=act.may_wait,
            reminder=partial(before_compaction, self._parts, self._claim, self._abort),
        )
        auxiliary = Auxiliary.of(self._parts, self._claim.loaded, self._claim.run_id)
        bounds = self._bounds(state, state.window, self._prepared.route)
        try:
            made = compact(
                self._rows,
                replace(bounds, summary_window=auxiliary.window_of(AuxTask.COMPRESSION)),
                auxiliary,
                self._abort,
                model=self._claim.loaded.model,
                ticket=self._ticket,
                bill=self._bill,
                wish=wish,
            )
        except ModelCallError:
            return Interrupted()
        except SummaryMissing as missing:
            if self._focus is None:
                return asking.NothingShortened(is_summary_missing=True)
            why = f"No model wrote a summary ({missing}), so the conversation is as it was."
            return self._unchanged(state, why)
        if made is not None:
            return Compacted(compaction=made, memory=asking.shortened(state), is_requested=self._focus is not None)
        if self._abort.is_set():
            return Interrupted()
        if self._focus is not None:
            return self._unchanged(state, "The conversation is short: there is nothing to summarise.")
        return asking.NothingShortened()

    def _unchanged(self, state: Asking, why: str) -> Compacted:
        made = Compaction(body=outcome_body(why), rows=0, spent=self._bill.spent)
        return Compacted(compaction=made, memory=state.memory, is_requested=True)

    def _acquire(self) -> asking.PermitGranted | asking.PermitDelayed:
        self._permit = self._parts.governor.acquire(
            self._prepared.key,
            ticket=self._ticket,
            tokens=self._prepared.facts.tokens,
            order=self._claim.loaded.root_pk,
        )
        permit = self._permit
        if permit.wait_s <= 0:
            return asking.PermitGranted()
        self._probe_wait_s = permit.wait_s
        count("model.held_back")
        took("model.waited", permit.wait_s)
        return asking.PermitDelayed(wait_s=permit.wait_s, ahead=permit.ahead, is_cooling=permit.is_cooling)

    def _hold_still(self, act: asking.HoldStill) -> asking.WaitPassed | Interrupted:
        if not self._abort.wait(act.seconds):
            return asking.WaitPassed()
        if act.is_in_line:
            self._parts.governor.withdraw(self._permit)
        return Interrupted()

    # --- the call itself ---

    def _send(self, state: Asking) -> asking.RequestFailed | Answered | Interrupted:
        route, request = self._prepared.route, self._prepared.request
        spoken = _Published(self._deltas)
        attempt = Attempt(request=request, route=route, heard=Heard(spoken), usual=self._claim.loaded.usual)
        try:
            answered = route.provider.ask(request, on_delta=attempt.heard, abort=self._abort)
        except ModelCallError as error:
            self._bill.add(attempt.spent_in_vain(error, self._parts.prices))
            self._parts.governor.settle(self._permit, limits=error.limits)
            return self._failure(error)
        self._parts.keys.answered(self._prepared.key, self._probe_taken())
        reply = metered(answered, request)
        self._parts.governor.settle(self._permit, usage=reply.usage, limits=reply.limits)
        spoken.finish()
        weight = weight_of(answered.usage, self._prepared.facts.tokens) or state.memory.weight_percent
        memory = replace(state.memory, weight_percent=weight)
        return Answered(reply=reply, route=route, request=request, rows=self._rows, memory=memory)

    def _failure(self, error: ModelCallError) -> asking.RequestFailed | Interrupted:
        if self._abort.is_set():
            return Interrupted()
        classification = classification_of(error)
        is_key_closed = self._parts.keys.failed(
            self._prepared.key,
            classification,
            run_id=self._claim.run_id,
            probe=self._probe_taken(),
            is_renewable=self._prepared.route.renew is not None,
        )
        return asking.RequestFailed(
            classification=classification,
            contents=_contents(self._prepared.request),
            jitter=random.random(),
            is_key_closed=is_key_closed,
        )

    # --- what may help ---

    def _ask_window(self) -> asking.WindowTold | Interrupted:
        route = self._prepared.route
        assert route.window is not None
        told = route.window.ask(self._abort)
        log.info("model.window_asked", provider=route.name, window=told or 0)
        return Interrupted() if self._abort.is_set() else asking.WindowTold(told)

    def _renew(self) -> asking.TokenRenewed | asking.RequestFailed | Interrupted:
        """Get another access token in place of the refused one; if there is none, return that failure to decide on."""
        renew = self._prepared.route.renew
        assert renew is not None
        try:
            renew(self._abort)
        except ModelCallError as error:
            return self._failure(error)
        return asking.TokenRenewed()

    def _compare(self, state: Asking) -> asking.RequestCompared | Interrupted:
        changed = self._request(self._prepared.route, state)
        if self._abort.is_set():
            return Interrupted()
        return asking.RequestCompared(changed.messages != self._prepared.request.messages)

    def _parked(self, state: Asking, seconds: float, reason: str, keys: tuple[str, ...] = ()) -> Unanswered:
        event = ev.CapacityAwaited(
            resume_at=self._parts.now() + seconds,
            recovery=canonical_json(retry.history_document(state.history)),
            memory=memory_document(state.memory),
            reason=reason,
            keys=keys,
        )
        return Unanswered(event=event)


def _rules(parts: Parts, providers: int, *, is_requested: bool) -> asking.AskingRules:
    options = parts.model
    return asking.AskingRules(
        attempts_max=options.attempts_max,
        providers=providers,
        compacts=options.compacts,
        window=options.window,
        is_requested=is_requested,
    )


def _contents(request: ModelRequest) -> asking.RequestContents:
    return asking.RequestContents(
        messages=len(request.messages),
        output_tokens_max=request.output_tokens_max or 0,
        replays_reasoning=request.replays_reasoning,
        has_images=has_images(request.messages),
        has_inline_images=has_inline_images(request.messages),
        has_tool_images=has_images(request.messages, role="tool"),
        has_tools=bool(request.tools),
    )


def _failed(act: asking.FailCall) -> Unanswered:
    message = redact(retry.explain(act.decision, act.classification))
    failure = Failure(kind=act.classification.kind.value, message=message)
    exit_reason = _EXIT_OF.get(act.decision.reason, ExitReason.MODEL_CALL_REFUSED)
    return Unanswered(event=ev.ModelFailed(failure=failure, exit_reason=exit_reason))


def _history(recovery: str | None) -> retry.AttemptHistory:
    """Raises ``ValueError``."""
    return retry.history_from(json.loads(recovery)) if recovery else retry.AttemptHistory()


class _Published:
    """Deltas as people may see them: without thinking between tags, and without the blank lines before an answer."""

    def __init__(self, publish: DeltaBuffer) -> None:
        self._publish = publish
        self._scrubber = ThinkScrubber()
        self._has_begun = False

    def __call__(self, delta: Delta) -> None:
        if delta.text:
            self._show(self._scrubber.feed(delta.text))
        else:
            self._publish(delta)

    def finish(self) -> None:
        """Publish what was held back: the reply is whole."""
        self._show(self._scrubber.flush())
        self._publish.flush()

    def _show(self, text: str) -> None:
        if not self._has_begun:
            text = text.lstrip()  # as the stored row
        if text:
            self._has_begun = True
            self._publish(Delta(text=text))
