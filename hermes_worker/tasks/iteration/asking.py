"""One model call, with everything that is tried before it counts as failed (docs/behaviour.md, "Recovery").

``core.recovery.retry`` decides what to do about a failure; here it is done. What this worker can do is what it offers
as remedies: leave out of the request what was refused, ask for less output, go to the next provider of the chain, wait.
Waits over a few seconds end the call with an event that parks the run, and whoever goes on finds in the run what was
tried already.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hermes_worker.agent.prompt.amendments import has_images, has_inline_images
from hermes_worker.core import events as ev
from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.credentials import rest_s
from hermes_worker.core.errors import ConfigurationError, Failure, FailureKind, HermesError, ModelCallError
from hermes_worker.core.messages import Delta, Message, ModelReply, ModelRequest, canonical_json
from hermes_worker.core.metering import metered
from hermes_worker.core.pricing import NOTHING_SPENT, Spent
from hermes_worker.core.recovery import retry
from hermes_worker.core.recovery.classify import Classification, classification_of
from hermes_worker.core.recovery.retry import Remedy
from hermes_worker.core.recovery.scrub import ThinkScrubber
from hermes_worker.core.run import ExitReason
from hermes_worker.core.run_memory import Amendment, RunMemory, memory_document, memory_from
from hermes_worker.models.chain import ModelRoute
from hermes_worker.models.governor import KeyPlace, Permit
from hermes_worker.models.identity import described
from hermes_worker.observe import count, log
from hermes_worker.safety.redaction import redact
from hermes_worker.store.runs.runs import IterationClaim
from hermes_worker.store.runs.transcripts import CorruptTranscript
from hermes_worker.stream.live import DeltaBuffer
from hermes_worker.tasks.calls.auxiliary import Auxiliary
from hermes_worker.tasks.iteration.compacting import Bounds, Compaction, compact
from hermes_worker.tasks.iteration.metering import Attempt, Bill, Heard
from hermes_worker.tasks.iteration.requests import build_request, tokens_of
from hermes_worker.tasks.parts import Parts

STAYING_MAX = 4
"""Calls of the fleet that wait for one key inside of a worker, at most: the next ones. Were it more, workers with few
threads would be full of calls whose time has not come, and an older run's call could not even be claimed."""
RATE_LIMIT_PAUSE_S = 2.0
"""How long a credential rests after a rate limit that came without a time."""
FALLEN_BACK_S = 60.0
"""How long a provider that was left because of its limits is not gone back to (docs/behaviour.md, "Recovery")."""
LOOK_AHEAD_TOKENS = 2_000
"""A request of so many may be near the window of a small server that would cut it without a word."""
_EXIT_OF: Mapping[retry.GiveUpReason, ExitReason] = {
    retry.GiveUpReason.RETRIES_EXHAUSTED: ExitReason.ALL_RETRIES_EXHAUSTED,
    retry.GiveUpReason.CONTENT_POLICY_BLOCKED: ExitReason.CONTENT_POLICY_BLOCKED,
    retry.GiveUpReason.INTERRUPTED: ExitReason.INTERRUPTED_DURING_API_CALL,
}
_AMENDMENT_OF: Mapping[str, Amendment] = {
    "strip_signature": Amendment.NO_REASONING_REPLAY,
    "drop_encrypted_reasoning": Amendment.NO_REASONING_REPLAY,
    "strip_images": Amendment.NO_IMAGES,
    "textify_tool_images": Amendment.NO_TOOL_IMAGES,
    "strip_grammar": Amendment.PLAIN_TOOL_SCHEMAS,
}
"""Decisions that change what requests of this turn hold."""


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
    """What attempts before it may have taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unanswered:
    """There is no answer; ``event`` says why, or what for the run waits."""

    event: ev.ModelFailed | ev.CapacityAwaited | ev.Broken
    in_vain: Spent = NOTHING_SPENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    """The abort came."""

    in_vain: Spent = NOTHING_SPENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """The conversation is too long, and this makes it shorter; then the model is asked."""

    compaction: Compaction
    """What it took holds what other attempts took in vain."""
    memory: RunMemory


_ELSEWHERE_S = 30.0
"""How often a run that was given to another server is looked at again."""

Asked = Answered | Unanswered | Interrupted | Compacted


def ask(parts: Parts, claim: IterationClaim, abort: AbortSignal, *, is_watched: Callable[[], bool]) -> Asked:
    """Make the claimed call. Blocks until there is an answer, or nothing more that can be tried without a long wait."""
    bill = Bill()
    asked = _asked(parts, claim, abort, is_watched, bill)
    return asked if isinstance(asked, Compacted) else replace(asked, in_vain=bill.spent)


def _asked(
    parts: Parts, claim: IterationClaim, abort: AbortSignal, is_watched: Callable[[], bool], bill: Bill
) -> Asked:
    try:
        with parts.fair_semaphore:
            asking = _Asking(parts, claim, abort, is_watched, bill)
        return asking.elsewhere() or asking.outcome()
    except (CorruptTranscript, ValueError) as error:
        failure = Failure(kind="corrupt_transcript", message=str(error))
        return Unanswered(event=ev.Broken(reason=ExitReason.CORRUPT_STATE, failure=failure))
    except ConfigurationError as error:
        failure = Failure(kind=FailureKind.CONFIGURATION.value, message=str(error))
        return Unanswered(event=ev.ModelFailed(failure=failure, exit_reason=ExitReason.MODEL_CALL_REFUSED))


class _Asking:
    """The state of one call while it is tried. Used by one thread."""

    def __init__(
        self, parts: Parts, claim: IterationClaim, abort: AbortSignal, is_watched: Callable[[], bool], bill: Bill
    ) -> None:
        """``bill`` is for attempts that bring no reply, and for calls beside this one. Raises ``ValueError`` when the
        run's documents make no sense, and ``CorruptTranscript``."""
        run = claim.loaded.run
        self._parts = parts
        self._claim = claim
        self._abort = abort
        self._has_other_keys = False
        self._is_stalled = False
        self._window_served: int | None = None
        self._bill = bill
        self._stayed_s = 0.0
        self._memory = memory_from(run.memory)
        self._history = _history(run.recovery, self._memory.compactions)
        self._session = parts.runs.session_of(claim.loaded.session_pk)
        self._rows = parts.transcripts.load(claim.loaded.session_pk, claim.loaded.message_seq)
        self._deltas = DeltaBuffer(
            parts.live,
            claim.run_id,
            iteration=run.iteration + 1,
            # The number of the run's newest event tells this try of the call from those before it.
            attempt=claim.loaded.event_seq,
            is_watched=is_watched,
        )

    def elsewhere(self) -> Unanswered | None:
        """The run waits for a worker that asks whom it was given to; ``None`` when that is who we ask.

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
        return self._parked(_ELSEWHERE_S, reason)

    def outcome(self) -> Asked:
        while True:
            route = self._route()
            request = self._request(route)
            self._look_at_window(route, request)
            if self._is_too_long(request) and (shorter := self._compacted()) is not None:
                return shorter
            permit = self._permit(route, request)
            if permit is None:
                continue
            if not isinstance(permit, Permit):
                return permit
            spoken = _Published(self._deltas)
            attempt = Attempt(request=request, route=route, heard=Heard(spoken), usual=self._claim.loaded.usual)
            try:
                answered = route.provider.ask(request, on_delta=attempt.heard, abort=self._abort)
            except ModelCallError as error:
                self._bill.add(attempt.spent_in_vain(error, self._parts.prices))
                self._parts.governor.settle(permit, limits=error.limits)
                ended = self._after_failure(error, route, request)
                if ended is not None:
                    return ended
                continue
            reply = metered(answered, request)
            self._parts.governor.settle(permit, usage=reply.usage, limits=reply.limits)
            spoken.finish()
            return Answered(reply=reply, route=route, request=request, rows=self._rows, memory=self._memory)

    def _route(self) -> ModelRoute:
        """Where to ask now, and with which of the provider's keys."""
        chain, model, position = self._parts.chain, self._claim.loaded.model, self._memory.provider
        names = chain.credentials(model, position)
        if not names:
            self._has_other_keys = False
            return chain.route(model, position)
        is_child = self._claim.loaded.depth > 0
        chosen = self._parts.pool.choose(names, ticket=self._claim.run_id, is_child=is_child)
        self._has_other_keys = chosen.has_others
        return chain.route(model, position, chosen.name)

    def _request(self, route: ModelRoute) -> ModelRequest:
        return build_request(
            self._session,
            self._rows,
            route,
            self._memory,
            is_summary=self._claim.loaded.run.wants_summary,
            options=self._parts.model,
        )

    # --- leave to ask ---

    def _permit(self, route: ModelRoute, request: ModelRequest) -> Permit | Asked | None:
        """Leave to ask now, an outcome to end with, or ``None`` to look again."""
        run = self._claim.loaded.run
        # The same for every try of the call, so that one that was parked finds the place that was kept for it.
        ticket = f"{run.run_id}:{run.iteration + 1}"
        permit = self._parts.governor.acquire(
            _place(route), ticket=ticket, tokens=tokens_of(request), order=self._claim.loaded.root_pk
        )
        if permit.wait_s <= 0:
            return permit
        count("model.held_back")
        if self._may_stay(permit):
            self._stayed_s += permit.wait_s
            if not self._abort.wait(permit.wait_s):
                return None
            self._parts.governor.withdraw(permit)
            return Interrupted()
        is_long = permit.is_cooling and permit.wait_s > retry.PARK_OVER_S
        if is_long and (self._has_other_keys or self._has_fallback):
            self._parts.governor.withdraw(permit)
            if self._has_other_keys:
                self._parts.pool.rest(route.credential, permit.wait_s)
            else:
                self._fall_back()
            return None
        log.info("model.held_back", provider=route.name, wait_s=round(permit.wait_s, 1))
        return self._parked(permit.wait_s, f"the key of {route.name} is used as much as it may be")

    def _may_stay(self, permit: Permit) -> bool:
        """Whether the call waits here, in a worker: not for long, not again and again because older ones come first,
        and only if few are before it. All others make room for these older ones (invariant I8)."""
        return permit.ahead < STAYING_MAX and self._stayed_s + permit.wait_s <= retry.PARK_OVER_S

    # --- failures ---

    def _after_failure(self, error: ModelCallError, route: ModelRoute, request: ModelRequest) -> Asked | None:
        """What a failure makes of the turn; ``None`` to ask again now."""
        if self._abort.is_set():
            return Interrupted()
        classification = self._with_window(classification_of(error), route)
        self._tell_the_others(classification, route)
        decision = retry.decide(classification, self._history, self._situation(route, request))
        self._keep_away(decision, classification, route)
        self._history = retry.advance(self._history, decision, classification)
        count(f"model.failed.{error.kind.value}")
        log.info("model.failed", kind=error.kind.value, status=error.status, decision=decision.kind)
        match decision:
            case retry.Wait() | retry.RenewConnection():
                return self._wait(decision.seconds, classification)
            case retry.GiveUp():
                return self._given_up(decision, classification)
            case retry.CapOutput():
                self._memory = replace(self._memory, output_tokens_max=decision.tokens)
            case retry.Compact():
                return self._compacted() or self._after_stall(error, route, request)
            case retry.LowerWindow():
                self._memory = replace(self._memory, window=decision.tokens)
                if decision.is_lasting and route.window is not None:
                    route.window.learn(decision.tokens)
                return self._compacted() or self._after_stall(error, route, request)
            case retry.FallBack():
                self._fall_back()
            case retry.RefreshCredential():
                return self._renewed(route, request)
            case retry.ShrinkImages():
                return self._with_small_images(decision.side_px_max, error, route, request)
            case retry.RotateCredential():
                self._parts.pool.rest(route.credential, rest_s(classification))
            case _ if decision.kind in _AMENDMENT_OF:
                amendments = self._memory.amendments | {_AMENDMENT_OF[decision.kind]}
                self._memory = replace(self._memory, amendments=amendments)
            case _:
                raise HermesError(f"no remedy {decision.kind!r} was offered, yet it was decided on")
        return None

    def _renewed(self, route: ModelRoute, request: ModelRequest) -> Asked | None:
        """Another access token in place of the refused one; if there is none, that is the failure to decide on."""
        assert route.renew is not None
        try:
            route.renew(self._abort)
        except ModelCallError as error:
            return self._after_failure(error, route, request)
        return None

    def _with_small_images(
        self, side_px_max: int, error: ModelCallError, route: ModelRoute, request: ModelRequest
    ) -> Asked | None:
        """Ask with smaller images; if none can be made smaller, the same failure is decided on once more."""
        before = self._memory
        amendments = before.amendments | {Amendment.SMALL_IMAGES}
        self._memory = replace(before, amendments=amendments, image_side_px_max=side_px_max)
        if self._request(route).messages != request.messages:
            return None
        self._memory = before
        return self._after_failure(error, route, request)

    def _situation(self, route: ModelRoute, request: ModelRequest) -> retry.Situation:
        options = self._parts.model
        return retry.Situation(
            remedies=frozenset(self._remedies(route, request)),
            attempts_max=options.attempts_max,
            jitter=random.random(),
            window=self._window,
            request_tokens=tokens_of(request),
            output_tokens_max=request.output_tokens_max or 0,
            request_messages=len(request.messages),
            is_stopping=self._abort.is_set(),
        )

    def _remedies(self, route: ModelRoute, request: ModelRequest) -> Iterator[Remedy]:
        """What this worker can do about this request now. A remedy that would change nothing is none."""
        yield Remedy.CAP_OUTPUT
        if self._parts.model.compacts:
            yield Remedy.COMPACT
        if request.replays_reasoning:
            yield Remedy.STRIP_SIGNATURES
            yield Remedy.DROP_ENCRYPTED_REASONING
        if has_images(request.messages):
            yield Remedy.STRIP_IMAGES
        if has_inline_images(request.messages) and Amendment.SMALL_IMAGES not in self._memory.amendments:
            yield Remedy.SHRINK_IMAGES
        if has_images(request.messages, role="tool"):
            yield Remedy.TEXTIFY_TOOL_IMAGES
        if request.tools and Amendment.PLAIN_TOOL_SCHEMAS not in self._memory.amendments:
            yield Remedy.STRIP_GRAMMAR
        if not self._memory.provider and not route.is_aggregator:
            # A broken connection never goes back to the pool, so there is nothing to renew; what helps is the wait and
            # the new attempts that come with it.
            yield Remedy.RENEW_CONNECTION
        if route.renew is not None:
            yield Remedy.REFRESH_CREDENTIAL
        if self._has_other_keys:
            yield Remedy.ROTATE_CREDENTIAL
        if self._has_fallback:
            yield Remedy.FALL_BACK

    # --- a conversation that is too long ---

    @property
    def _window(self) -> int:
        return self._memory.window or self._parts.model.window or self._window_served or retry.STANDARD_WINDOW

    def _look_at_window(self, route: ModelRoute, request: ModelRequest) -> None:
        """Learn what is known of the window, without asking on anybody's time."""
        if route.window is None or self._parts.model.window:
            return
        self._window_served = route.window.known
        if route.cuts_silently and self._window_served is None and tokens_of(request) >= LOOK_AHEAD_TOKENS:
            route.window.ask_auxiliary()

    def _with_window(self, classification: Classification, route: ModelRoute) -> Classification:
        """What was refused as too long, with the window as the server tells it when it is asked."""
        is_unknown = classification.context_limit is None and not (self._parts.model.window or self._memory.window)
        is_too_long = classification.kind is FailureKind.CONTEXT_OVERFLOW and not classification.is_output_cap
        if not (is_unknown and is_too_long) or route.window is None:
            return classification
        told = route.window.ask(self._abort)
        log.info("model.window_asked", provider=route.name, window=told or 0)
        return classification if told is None else replace(classification, context_limit=told)

    @property
    def _bounds(self) -> Bounds:
        return Bounds(window=self._window, options=self._parts.model)

    def _is_too_long(self, request: ModelRequest) -> bool:
        may_compact = self._parts.model.compacts and self._history.compactions < retry.COMPACTIONS_MAX
        return may_compact and not self._is_stalled and tokens_of(request) >= self._bounds.trigger

    def _compacted(self) -> Compacted | Interrupted | None:
        """An outcome that makes the conversation shorter; ``None`` when nothing does."""
        parts = self._parts
        auxiliary = Auxiliary.of(parts, self._claim.loaded.root_pk)
        ticket = f"{self._claim.run_id}:{self._claim.loaded.run.iteration + 1}"
        try:
            made = compact(
                self._rows,
                self._bounds,
                auxiliary,
                self._abort,
                model=self._claim.loaded.model,
                ticket=ticket,
                bill=self._bill,
            )
        except ModelCallError:
            return Interrupted()
        if made is None:
            self._is_stalled = True
            return None
        return Compacted(compaction=made, memory=replace(self._memory, compactions=self._memory.compactions + 1))

    def _after_stall(self, error: ModelCallError, route: ModelRoute, request: ModelRequest) -> Asked | None:
        """The conversation cannot be made shorter: the same failure is decided on once more."""
        self._history = retry.stalled(self._history)
        return self._after_failure(error, route, request)

    @property
    def _has_fallback(self) -> bool:
        return self._memory.provider + 1 < len(self._parts.chain)

    def _fall_back(self) -> None:
        # What the last provider refused says nothing about the next one, nor does the size of its window.
        self._memory = replace(self._memory, provider=self._memory.provider + 1, amendments=frozenset(), window=0)
        self._is_stalled = False
        log.info("model.fell_back", position=self._memory.provider)

    def _tell_the_others(self, classification: Classification, route: ModelRoute) -> None:
        """One worker's rate limit is every worker's: nobody asks with this credential before it is over."""
        is_timed_overload = classification.kind is FailureKind.OVERLOADED and classification.retry_after_s
        if classification.kind is FailureKind.RATE_LIMIT or is_timed_overload:
            self._parts.governor.cool_down(_place(route), classification.retry_after_s or RATE_LIMIT_PAUSE_S)

    def _keep_away(self, decision: retry.Decision, classification: Classification, route: ModelRoute) -> None:
        """A provider that a run left because it is used up is left alone for a while: until then every turn, on every
        worker, begins where this one goes on."""
        is_used_up = classification.kind in (FailureKind.RATE_LIMIT, FailureKind.BILLING)
        if isinstance(decision, retry.FallBack) and is_used_up:
            self._parts.governor.cool_down(_place(route), max(FALLEN_BACK_S, classification.retry_after_s or 0.0))

    def _wait(self, seconds: float, classification: Classification) -> Asked | None:
        if seconds > retry.PARK_OVER_S:
            answered = f"answered {classification.status}" if classification.status else "did not answer"
            return self._parked(seconds, f"the provider {answered} ({classification.kind.value}) and is asked again")
        return Interrupted() if self._abort.wait(seconds) else None

    def _parked(self, seconds: float, reason: str = "") -> Unanswered:
        event = ev.CapacityAwaited(
            resume_at=self._parts.now() + seconds,
            recovery=canonical_json(retry.history_document(self._history)),
            memory=memory_document(self._memory),
            reason=reason,
        )
        return Unanswered(event=event)

    def _given_up(self, decision: retry.GiveUp, classification: Classification) -> Unanswered:
        message = redact(retry.explain(decision, classification))
        failure = Failure(kind=classification.kind.value, message=message)
        exit_reason = _EXIT_OF.get(decision.reason, ExitReason.MODEL_CALL_REFUSED)
        return Unanswered(event=ev.ModelFailed(failure=failure, exit_reason=exit_reason))


def _history(recovery: str | None, compactions: int) -> retry.AttemptHistory:
    """Raises ``ValueError``."""
    history = retry.history_from(json.loads(recovery)) if recovery else retry.AttemptHistory()
    return history if history.compactions >= compactions else replace(history, compactions=compactions)


def _place(route: ModelRoute) -> KeyPlace:
    return KeyPlace(provider=route.name, credential=route.credential)


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
        """The reply is whole."""
        self._show(self._scrubber.flush())
        self._publish.flush()

    def _show(self, text: str) -> None:
        if not self._has_begun:
            text = text.lstrip()  # as the stored row
        if text:
            self._has_begun = True
            self._publish(Delta(text=text))
