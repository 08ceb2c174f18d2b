"""One model call, with everything that is tried before it counts as failed.

``core.recovery.request_policy`` says what to do next; here it is done. Waits over a few seconds end the call with an
event that parks the run, and the worker that goes on finds in the run what was tried already.
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
from hermes_worker.core.compactions import build_outcome_body, parse_requested_focus
from hermes_worker.core.errors import ConfigurationError, Failure, FailureKind, ModelCallError
from hermes_worker.core.guardrails import find_halt
from hermes_worker.core.messages import Delta, Message, ModelReply, ModelRequest, dump_canonical_json
from hermes_worker.core.metering import compute_weight_percent, estimate_request_tokens, fill_missing_usage
from hermes_worker.core.moved_folders import build_folder_note
from hermes_worker.core.pricing import NOTHING_SPENT, Spent
from hermes_worker.core.recovery import request_policy as asking
from hermes_worker.core.recovery import retry
from hermes_worker.core.recovery.classify import classify_translated
from hermes_worker.core.recovery.reasoning_tags import ThinkScrubber
from hermes_worker.core.recovery.request_policy import ModelCallState
from hermes_worker.core.recovery_state import RecoveryState, dump_recovery_state, parse_recovery_state
from hermes_worker.core.run import ExitReason
from hermes_worker.models.chain import ModelRoute
from hermes_worker.models.governor import CallPermit, CredentialRef
from hermes_worker.models.identity import describe_endpoint
from hermes_worker.models.key_watch import choose_parked_wait_s
from hermes_worker.observe import count, log, record_duration
from hermes_worker.safety.redaction import redact
from hermes_worker.store.key_states import Probe
from hermes_worker.store.runs.runs import IterationClaim
from hermes_worker.store.runs.transcripts import CorruptTranscript
from hermes_worker.stream.live import DeltaBuffer
from hermes_worker.tasks.calls.auxiliary import Auxiliary
from hermes_worker.tasks.context import WorkerContext
from hermes_worker.tasks.hooks.rewriting import ask_before_compaction, ask_for_context
from hermes_worker.tasks.iteration.compaction import Bounds, Compaction, CompactionRequest, SummaryMissing, compact
from hermes_worker.tasks.iteration.requests import build_request
from hermes_worker.tasks.iteration.spending import Bill, DeltaMeter, MeteredAttempt
from hermes_worker.tracing import names
from hermes_worker.tracing.recording import add_attributes

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
    memory: RecoveryState
    in_vain: Spent = NOTHING_SPENT
    """What failed attempts before the answer may have cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unanswered:
    """There is no answer; ``event`` says why, or what the run waits for."""

    event: ev.ModelFailed | ev.CapacityAwaited | ev.RunBroken
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
    memory: RecoveryState
    is_requested: bool = False
    """Whether a person asked for the compaction: then no model is asked, and the run ends."""


Asked = Answered | Unanswered | Interrupted | Compacted


def ask(parts: WorkerContext, claim: IterationClaim, abort: AbortSignal, *, is_watched: Callable[[], bool]) -> Asked:
    """Make the claimed call. Blocks until there is an answer, or nothing more that can be tried without a long wait."""
    bill = Bill()
    try:
        context = ask_for_context(parts, claim, abort)
    except (CorruptTranscript, ValueError) as error:
        return _fail_corrupt(error)
    asked = _call_model(parts, claim, abort, is_watched, bill, context)
    return asked if isinstance(asked, Compacted) else replace(asked, in_vain=bill.spent)


def _call_model(
    parts: WorkerContext,
    claim: IterationClaim,
    abort: AbortSignal,
    is_watched: Callable[[], bool],
    bill: Bill,
    context: str,
) -> Asked:
    try:
        with parts.fair_semaphore:
            call = _ModelCall(parts, claim, abort, is_watched, bill, context)
        return call.check_guardrails() or call.check_server() or call.ask()
    except (CorruptTranscript, ValueError) as error:
        return _fail_corrupt(error)
    except ConfigurationError as error:
        failure = Failure(kind=FailureKind.CONFIGURATION.value, message=str(error))
        return Unanswered(event=ev.ModelFailed(failure=failure, exit_reason=ExitReason.MODEL_CALL_REFUSED))


def _fail_corrupt(error: Exception) -> Unanswered:
    failure = Failure(kind="corrupt_transcript", message=str(error))
    return Unanswered(event=ev.RunBroken(reason=ExitReason.CORRUPT_STATE, failure=failure))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """A request as it would be sent now."""

    route: ModelRoute
    request: ModelRequest
    facts: asking.RequestFacts

    @property
    def key(self) -> CredentialRef:
        return CredentialRef(provider=self.route.name, credential=self.route.credential)


class _ModelCall:
    """A claimed call in this worker. Used by one thread."""

    _prepared: _Prepared
    """The request that was prepared last."""
    _permit: CallPermit
    """The newest answer of the governor."""
    _probe: Probe | None = None
    """The right to try a closed key, while this call has it."""
    _probe_wait_s = 0.0
    """How many seconds must pass after this call before the key is tried again."""

    def __init__(
        self,
        parts: WorkerContext,
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
        memory = parse_recovery_state(run.memory)
        memory = replace(memory, context=context) if context else memory
        self._rows = parts.rows.transcripts.load(claim.loaded.session_pk, claim.loaded.message_seq)
        self._focus = None if run.wants_summary else parse_requested_focus(self._rows)
        self._session = parts.rows.runs.load_session_context(claim.loaded.session_pk)
        note = build_folder_note(self._rows, self._session.workspace, self._session.system_prompt)
        if note and note not in memory.context and self._focus is None:
            memory = replace(memory, context=f"{memory.context}\n\n{note}".strip())
        self._chain = parts.find_models(claim.loaded.session_pk).chain
        rules = _build_rules(parts, len(self._chain), is_requested=self._focus is not None)
        self._begun = asking.begin_call(rules, memory, _parse_history(run.recovery))
        self._deltas = DeltaBuffer(
            parts.live,
            claim.run_id,
            iteration=run.iteration + 1,
            # The number of the run's newest event tells this try of the call from those before it.
            attempt=claim.loaded.event_seq,
            is_watched=is_watched,
        )

    def check_guardrails(self) -> Unanswered | None:
        """The end of a turn that repeats itself in vain, where guardrails may end it; ``None`` when the turn goes
        on.
        """
        reason = find_halt(self._rows, self._parts.rules.guardrails)
        if reason is None:
            return None
        count("guardrail.halted")
        failure = Failure(kind=ExitReason.GUARDRAIL_HALT.value, message=f"The turn was ended by a guardrail: {reason}.")
        return Unanswered(event=ev.ModelFailed(failure=failure, exit_reason=ExitReason.GUARDRAIL_HALT))

    def check_server(self) -> Unanswered | None:
        """The event that makes the run wait for a worker that serves the model it was given to; ``None`` when this
        worker does.

        A stand-in, or another server that happens to be configured, must not finish what was meant for a model.
        """
        given, ours = self._claim.loaded.endpoint, self._parts.rules.model.endpoint
        if given is None or ours is None or given == ours:
            return None
        log.info("model.elsewhere", given=given, ours=ours)
        reason = (
            f"it was given to {self._claim.loaded.model} at {describe_endpoint(given)}, and the "
            f"workers ask {describe_endpoint(ours)}; "
            "start them with the provider it was given to, or stop it"
        )
        return self._park_run(self._begun, _ELSEWHERE_S, reason)

    def ask(self) -> Asked:
        try:
            return self._ask_until_answered()
        finally:
            if (probe := self._find_taken_probe()) is not None:
                self._parts.models.keys.release_probe(probe, self._probe_wait_s)

    def _ask_until_answered(self) -> Asked:
        state = self._begun
        while True:
            happened = self._perform(state)
            if isinstance(happened, Asked):
                return happened
            before, state = state, asking.advance(state, happened)
            self._do_beside(before, state)

    def _perform(self, state: ModelCallState) -> asking.AskingEvent | Asked:
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
                return self._wait_briefly(act)
            case asking.AskWindow():
                return self._ask_window()
            case asking.RenewToken():
                return self._renew()
            case asking.CompareRequest():
                return self._compare(state)
            case asking.ParkRun():
                if state.failure is None and not act.keys:
                    log.info("model.held_back", provider=self._prepared.route.name, wait_s=round(act.seconds, 1))
                return self._park_run(state, act.seconds, act.reason, act.keys)
            case asking.FailCall():
                return _fail_call(act)
            case _:
                assert_never(act)

    def _do_beside(self, before: ModelCallState, state: ModelCallState) -> None:
        if state.decided is not None:
            kind = state.decided.classification.kind.value
            count(f"model.failed.{kind}")
            status, decision = state.decided.classification.status, state.decided.decision.kind
            log.info("model.failed", kind=kind, status=status, decision=decision)
        for act in state.beside:
            match act:
                case asking.CoolDown():
                    self._parts.models.governor.cool_down(self._prepared.key, act.seconds)
                case asking.RestKey():
                    self._parts.models.pool.rest_key(self._prepared.route.credential, act.seconds)
                case asking.WithdrawPermit():
                    self._parts.models.governor.withdraw(self._permit)
                case asking.LearnWindow():
                    if self._prepared.route.window is not None:
                        self._prepared.route.window.note_window(act.tokens)
                case _:
                    assert_never(act)
        if state.memory.provider != before.memory.provider:
            log.info("model.fell_back", position=state.memory.provider)

    # --- before it is sent ---

    def _prepare(self, state: ModelCallState) -> asking.RequestPrepared | asking.KeyClosed:
        found = self._choose_route(state.memory.provider)
        if found is None:
            return self._find_open_provider(state)
        route, has_other_keys = found
        request = self._build_request(route, state)
        tokens = estimate_request_tokens(request)
        served = self._find_served_window(route, tokens)
        bounds = self._build_bounds(state, state.choose_window(served), route)
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
            can_renew=route.can_renew,
            is_aggregator=route.is_aggregator,
        )
        add_attributes(provider=names.KNOWN_PROVIDERS.get(route.name, route.name), server=route.host)
        self._prepared = _Prepared(route=route, request=request, facts=facts)
        return asking.RequestPrepared(facts)

    def _choose_route(self, position: int) -> tuple[ModelRoute, bool] | None:
        """The route to ask now, with one of the provider's keys, and whether the provider has other keys; ``None`` when
        its keys are closed and this call is not the one that probes one of them.
        """
        chain, model = self._chain, self._claim.loaded.model
        names = chain.list_credentials(model, position)
        if not self._parts.models.keys.are_all_open:
            closed = [name for name in self._list_key_names(position) if self._parts.models.keys.find_closed(name)]
            names = [name for name in names if name not in closed]
            tried = next((name for name in closed if self._acquire_probe(name)), None)
            if tried is not None:
                return chain.resolve_route(model, position, tried), bool(names)
            if closed and not names:
                return None
        if not names:
            return chain.resolve_route(model, position), False
        is_child = self._claim.loaded.depth > 0
        chosen = self._parts.models.pool.choose_key(names, ticket=self._claim.run_id, is_child=is_child)
        return chain.resolve_route(model, position, chosen.name), chosen.has_others

    def _list_key_names(self, position: int) -> Sequence[str]:
        """The names of the keys of the provider at ``position``."""
        chain, model = self._chain, self._claim.loaded.model
        return chain.list_credentials(model, position) or (chain.resolve_route(model, position).credential,)

    def _acquire_probe(self, credential: str) -> bool:
        """Acquire the fleet's one probe of a closed key; ``False`` when another call has it."""
        if self._probe is not None:
            return self._probe.credential == credential
        self._probe = self._parts.models.keys.acquire_probe(credential, self._parts.leases.owner)
        return self._probe is not None

    def _find_taken_probe(self) -> Probe | None:
        probe, self._probe = self._probe, None
        return probe

    def _find_open_provider(self, state: ModelCallState) -> asking.KeyClosed:
        """Find another provider to ask, and what to wait for when there is none."""
        here, ends = state.memory.provider, len(self._chain)
        elsewhere = [*range(here + 1, ends), *(range(min(here, ends)) if state.may_go_back else ())]
        position = next((position for position in elsewhere if self._choose_route(position) is not None), None)
        rows = [
            self._parts.models.keys.find_closed(name)
            for each in (here, *elsewhere)
            for name in self._list_key_names(each)
        ]
        found = {row.credential: row for row in rows if row is not None}
        why = "; ".join(
            dict.fromkeys(f"the key of {row.provider} {row.state.condition.text}" for row in found.values())
        )
        return asking.KeyClosed(
            next_provider=position,
            keys=tuple(found),
            wait_s=choose_parked_wait_s(),
            reason=f"{why}; one call at a time tries it, and the run goes on when it works",
        )

    def _build_request(self, route: ModelRoute, state: ModelCallState) -> ModelRequest:
        return build_request(
            self._session,
            self._rows,
            route,
            state.memory,
            is_summary=self._claim.loaded.run.wants_summary,
            options=self._parts.rules.model,
        )

    def _find_served_window(self, route: ModelRoute, tokens: int) -> int | None:
        """The window that the server is known to serve, in tokens; ``None`` where it is not known. It is asked for in
        the background, so that no call waits for it.
        """
        if route.window is None or self._parts.rules.model.window:
            return None
        served = route.window.known_tokens
        if route.cuts_silently and served is None and tokens >= LOOK_AHEAD_TOKENS:
            route.window.request_in_background()
        return served

    def _build_bounds(self, state: ModelCallState, window: int, route: ModelRoute) -> Bounds:
        return Bounds(
            window=window,
            options=self._parts.rules.model,
            provider=route.name,
            model=route.model,
            weight_percent=state.memory.weight_percent,
        )

    def _shorten(
        self, state: ModelCallState, act: asking.ShortenConversation
    ) -> asking.NothingShortened | Compacted | Interrupted:
        facts = self._prepared.facts
        wish = CompactionRequest(
            tokens=facts.tokens,
            focus=self._focus,
            has_too_many_rows=facts.has_too_many_rows and facts.tokens < facts.trigger,
            may_wait=act.may_wait,
            reminder=partial(ask_before_compaction, self._parts, self._claim, self._abort),
        )
        auxiliary = Auxiliary.for_run(self._parts, self._claim.loaded, self._claim.run_id)
        bounds = self._build_bounds(state, state.window, self._prepared.route)
        try:
            made = compact(
                self._rows,
                replace(bounds, summary_window=auxiliary.find_window(AuxTask.COMPRESSION)),
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
            return self._report_unchanged(state, why)
        if made is not None:
            return Compacted(
                compaction=made, memory=asking.remember_compaction(state), is_requested=self._focus is not None
            )
        if self._abort.is_set():
            return Interrupted()
        if self._focus is not None:
            return self._report_unchanged(state, "The conversation is short: there is nothing to summarise.")
        return asking.NothingShortened()

    def _report_unchanged(self, state: ModelCallState, why: str) -> Compacted:
        made = Compaction(body=build_outcome_body(why), rows=0, spent=self._bill.spent)
        return Compacted(compaction=made, memory=state.memory, is_requested=True)

    def _acquire(self) -> asking.PermitGranted | asking.PermitDelayed:
        self._permit = self._parts.models.governor.acquire(
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
        record_duration("model.waited", permit.wait_s)
        return asking.PermitDelayed(wait_s=permit.wait_s, ahead=permit.ahead, is_cooling=permit.is_cooling)

    def _wait_briefly(self, act: asking.HoldStill) -> asking.WaitPassed | Interrupted:
        if not self._abort.wait(act.seconds):
            return asking.WaitPassed()
        if act.is_in_line:
            self._parts.models.governor.withdraw(self._permit)
        return Interrupted()

    # --- the call itself ---

    def _send(self, state: ModelCallState) -> asking.RequestFailed | Answered | Interrupted:
        route, request = self._prepared.route, self._prepared.request
        spoken = _PublishedDeltas(self._deltas)
        attempt = MeteredAttempt(request=request, route=route, heard=DeltaMeter(spoken), usual=self._claim.loaded.usual)
        try:
            answered = route.provider.ask(request, on_delta=attempt.heard, abort=self._abort)
        except ModelCallError as error:
            self._bill.add(attempt.estimate_lost_spend(error, self._parts.models.prices))
            self._parts.models.governor.settle(self._permit, limits=error.limits)
            return self._classify_failure(error)
        self._parts.models.keys.report_answer(self._prepared.key, self._find_taken_probe())
        reply = fill_missing_usage(answered, request)
        self._parts.models.governor.settle(self._permit, usage=reply.usage, limits=reply.limits)
        spoken.finish()
        weight = compute_weight_percent(answered.usage, self._prepared.facts.tokens) or state.memory.weight_percent
        memory = replace(state.memory, weight_percent=weight)
        return Answered(reply=reply, route=route, request=request, rows=self._rows, memory=memory)

    def _classify_failure(self, error: ModelCallError) -> asking.RequestFailed | Interrupted:
        if self._abort.is_set():
            return Interrupted()
        classification = classify_translated(error)
        is_key_closed = self._parts.models.keys.report_failure(
            self._prepared.key,
            classification,
            run_id=self._claim.run_id,
            probe=self._find_taken_probe(),
            is_renewable=self._prepared.route.can_renew,
        )
        return asking.RequestFailed(
            classification=classification,
            contents=_describe_contents(self._prepared.request),
            jitter=random.random(),
            is_key_closed=is_key_closed,
        )

    # --- what may help ---

    def _ask_window(self) -> asking.WindowReported | Interrupted:
        route = self._prepared.route
        told = None if route.window is None else route.window.request_window(self._abort)
        log.info("model.window_asked", provider=route.name, window=told or 0)
        return Interrupted() if self._abort.is_set() else asking.WindowReported(told)

    def _renew(self) -> asking.TokenRenewed | asking.RequestFailed | Interrupted:
        """Get another access token in place of the refused one; if there is none, return that failure to decide on."""
        try:
            self._prepared.route.renew(self._abort)
        except ModelCallError as error:
            return self._classify_failure(error)
        return asking.TokenRenewed()

    def _compare(self, state: ModelCallState) -> asking.RequestCompared | Interrupted:
        changed = self._build_request(self._prepared.route, state)
        if self._abort.is_set():
            return Interrupted()
        return asking.RequestCompared(changed.messages != self._prepared.request.messages)

    def _park_run(self, state: ModelCallState, seconds: float, reason: str, keys: tuple[str, ...] = ()) -> Unanswered:
        event = ev.CapacityAwaited(
            resume_at=self._parts.rows.now() + seconds,
            recovery=dump_canonical_json(retry.build_document(state.history)),
            memory=dump_recovery_state(state.memory),
            reason=reason,
            keys=keys,
        )
        return Unanswered(event=event)


def _build_rules(parts: WorkerContext, providers: int, *, is_requested: bool) -> asking.ModelCallRules:
    options = parts.rules.model
    return asking.ModelCallRules(
        attempts_max=options.attempts_max,
        providers=providers,
        compacts=options.compacts,
        window=options.window,
        is_requested=is_requested,
    )


def _describe_contents(request: ModelRequest) -> asking.RequestContents:
    return asking.RequestContents(
        messages=len(request.messages),
        output_tokens_max=request.output_tokens_max or 0,
        replays_reasoning=request.replays_reasoning,
        has_images=has_images(request.messages),
        has_inline_images=has_inline_images(request.messages),
        has_tool_images=has_images(request.messages, role="tool"),
        has_tools=bool(request.tools),
    )


def _fail_call(act: asking.FailCall) -> Unanswered:
    message = redact(retry.explain_give_up(act.decision, act.classification))
    failure = Failure(kind=act.classification.kind.value, message=message)
    exit_reason = _EXIT_OF.get(act.decision.reason, ExitReason.MODEL_CALL_REFUSED)
    return Unanswered(event=ev.ModelFailed(failure=failure, exit_reason=exit_reason))


def _parse_history(recovery: str | None) -> retry.AttemptHistory:
    """Parse the stored history of failed requests. Raises ``ValueError``."""
    return retry.parse_history(json.loads(recovery)) if recovery else retry.AttemptHistory()


class _PublishedDeltas:
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
