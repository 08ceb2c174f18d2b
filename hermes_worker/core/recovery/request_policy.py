"""The state machine of one model call: what to do next (prepare, wait for leave, send, repair, end). Pure.

Theory of operation. A call is tried until there is an answer, or nothing more that can be tried without a long wait. An
``ModelCallState`` says what to do now (``act``) and what to do besides (``beside``). The shell does it and reports the
outcome as an event; ``advance`` returns the next ``ModelCallState``. ``core.recovery.retry`` decides about a failure;
this module turns the decision into acts, and into what the run remembers of them.

    PrepareRequest -> RequestPrepared -> AcquirePermit -> PermitGranted -> SendRequest -> a reply: the end
         |                  |                 |                                |
         | KeyClosed        | too long        | PermitDelayed                  | RequestFailed
         v                  v                 v                                v
    another provider,  ShortenConversation  HoldStill, ParkRun,        retry.decide: HoldStill, RenewToken,
    or ParkRun                              another key or provider    CompareRequest, another key or provider,
                                                                       ParkRun, FailCall

Nothing here waits or sends, so a test can walk every path. Each path ends: every decision uses up a remedy, a
compaction, a retry, a key or a provider, and ``stayed_s`` bounds how long a call waits inside a worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import assert_never

from hermes_worker.core.credentials import compute_rest_s
from hermes_worker.core.errors import FailureKind, InvalidTransition
from hermes_worker.core.key_states import decide_finding
from hermes_worker.core.recovery import retry
from hermes_worker.core.recovery.classify import Classification
from hermes_worker.core.recovery.retry import Remedy
from hermes_worker.core.recovery_state import Amendment, RecoveryState

STAYING_MAX = 4
"""The most calls of the fleet that wait for one key inside a worker: the next ones. With more, workers with few threads
would be full of calls whose time has not come, and an older run's call could not even be claimed."""
RATE_LIMIT_PAUSE_S = 2.0
"""Seconds for which a credential rests after a rate limit without a stated time."""
FALLEN_BACK_S = 60.0
"""Seconds for which a provider is avoided that was left because of its limits."""
CLOSED_REST_S = 60.0
"""Seconds for which other keys are preferred to one that was closed and is open again."""
FITS_PART = 0.95
"""Part of the room for a request: a request with at most so many estimated tokens is expected to fit."""
UNSUMMARISED_MAX = 2
"""Summaries in a row that no model wrote in one turn, after which none is requested while the request fits."""
GAINED_PART = 0.95
"""A request with at most this part of its former tokens after a compaction counts as shortened."""
_AMENDMENT_OF: Mapping[str, Amendment] = {
    "strip_signature": Amendment.NO_REASONING_REPLAY,
    "echo_reasoning": Amendment.REASONING_ECHO,
    "drop_encrypted_reasoning": Amendment.NO_REASONING_REPLAY,
    "strip_images": Amendment.NO_IMAGES,
    "textify_tool_images": Amendment.NO_TOOL_IMAGES,
    "strip_grammar": Amendment.PLAIN_TOOL_SCHEMAS,
}
"""Decisions that change what requests of this run hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCallRules:
    """The rules that stay the same while one call is made."""

    attempts_max: int = retry.ATTEMPTS_MAX
    """Calls of one provider before it is given up on."""
    providers: int = 1
    """The length of the chain of providers."""
    compacts: bool = True
    """A conversation that is too long is shortened; otherwise its run fails."""
    window: int | None = None
    """Context window in tokens, as configured; ``None`` when it is not."""
    is_requested: bool = False
    """A person asks for a summary of the conversation, and not a model for an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFacts:
    """Facts about a request that can be sent, and about its provider."""

    provider: str
    tokens: int
    """Estimate of messages and tools."""
    trigger: int
    """Tokens from which on the conversation is shortened first."""
    room: int = 0
    """Tokens that a request may have at all."""
    has_too_many_rows: bool = False
    """It has more messages than a conversation should have, however short they are."""
    is_futile: bool = False
    """Shortening the conversation gained nothing, twice, and little was said since."""
    window_served: int | None = None
    """Context window that the server reported earlier; ``None`` when it did not."""
    has_other_keys: bool = False
    """The provider has another key that may be used now."""
    can_ask_window: bool = False
    """The server can be asked how large its window is."""
    can_renew: bool = False
    """The key is an access token, and another can be had in its place."""
    is_aggregator: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContents:
    """The contents of a request, as far as they can be changed. Read only after a failure, because it takes time."""

    messages: int = 0
    output_tokens_max: int = 0
    """0 when that was left to the provider."""
    replays_reasoning: bool = False
    has_images: bool = False
    has_inline_images: bool = False
    has_tool_images: bool = False
    has_tools: bool = False


# -------------------------------------------------------------------------------------------------------- what to do


@dataclass(frozen=True, slots=True)
class PrepareRequest:
    """Choose the key and build the request. Answer with ``RequestPrepared``, or ``KeyClosed``."""


@dataclass(frozen=True, slots=True)
class ShortenConversation:
    """Make the conversation fit into ``ModelCallState.window``. Success ends this call, with the memory of
    ``remember_compaction``; otherwise answer with ``NothingShortened``."""

    may_wait: bool = False
    """The request fits as it is: it is sent so when no summary is written."""


@dataclass(frozen=True, slots=True)
class AcquirePermit:
    """Ask the governor for leave. Answer with ``PermitGranted`` or ``PermitDelayed``."""


@dataclass(frozen=True, slots=True)
class SendRequest:
    """Send the request. A reply ends this call; otherwise answer with ``RequestFailed``."""


@dataclass(frozen=True, slots=True)
class HoldStill:
    """Wait for ``seconds`` in this worker. Answer with ``WaitPassed``."""

    seconds: float
    is_in_line: bool = False
    """The governor keeps a place for the call meanwhile."""


@dataclass(frozen=True, slots=True)
class AskWindow:
    """Ask the server for the size of its window. Answer with ``WindowReported``."""


@dataclass(frozen=True, slots=True)
class RenewToken:
    """Get another access token in place of the refused one. Answer with ``TokenRenewed``, or ``RequestFailed`` with the
    reason."""


@dataclass(frozen=True, slots=True)
class CompareRequest:
    """Build the request as ``ModelCallState.memory`` now wants it, and compare it with the one that failed. Answer with
    ``RequestCompared``."""


@dataclass(frozen=True, slots=True)
class ParkRun:
    """The end of this call: the run waits as a row and goes on later, with what it remembers."""

    seconds: float
    reason: str
    keys: tuple[str, ...] = ()
    """The closed keys that it waits for: it goes on as soon as one of them is open."""


@dataclass(frozen=True, slots=True)
class FailCall:
    """The end of this call: nothing is left to try."""

    decision: retry.GiveUp
    classification: Classification


Act = (
    PrepareRequest
    | ShortenConversation
    | AcquirePermit
    | SendRequest
    | HoldStill
    | AskWindow
    | RenewToken
    | CompareRequest
    | ParkRun
    | FailCall
)


@dataclass(frozen=True, slots=True)
class CoolDown:
    """No worker sends requests with this key for ``seconds``."""

    seconds: float


@dataclass(frozen=True, slots=True)
class RestKey:
    """Every run takes another key of this provider for ``seconds``."""

    seconds: float


@dataclass(frozen=True, slots=True)
class WithdrawPermit:
    """The call leaves the queue in which it waited for this key."""


@dataclass(frozen=True, slots=True)
class LearnWindow:
    """Store the size of the model's window, for all runs."""

    tokens: int


SideAct = CoolDown | RestKey | WithdrawPermit | LearnWindow
"""Acts on the way, which are answered by no event."""


# ------------------------------------------------------------------------------------------------------ what happened


@dataclass(frozen=True, slots=True)
class RequestPrepared:
    facts: RequestFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyClosed:
    """The provider's keys are closed (``core.key_states``)."""

    next_provider: int | None
    """The position in the chain of an open key, or of one that this call may probe; ``None`` when there is none."""
    keys: tuple[str, ...]
    wait_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class NothingShortened:
    is_summary_missing: bool = False
    """It could be shortened, and no model wrote the summary."""


@dataclass(frozen=True, slots=True)
class PermitGranted:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class PermitDelayed:
    wait_s: float
    """More than 0."""
    ahead: int = 0
    """How many waiting calls go before this one."""
    is_cooling: bool = False
    """The wait is for the end of a cool-down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFailed:
    classification: Classification
    contents: RequestContents
    jitter: float = 0.0
    """A random number, 0 <= jitter < 1."""
    is_key_closed: bool = False
    """The key was closed, by this failure or by others meanwhile."""


@dataclass(frozen=True, slots=True)
class WaitPassed:
    pass


@dataclass(frozen=True, slots=True)
class WindowReported:
    tokens: int | None
    """``None`` when the server does not report it."""


@dataclass(frozen=True, slots=True)
class TokenRenewed:
    pass


@dataclass(frozen=True, slots=True)
class RequestCompared:
    has_changed: bool


AskingEvent = (
    RequestPrepared
    | KeyClosed
    | NothingShortened
    | PermitGranted
    | PermitDelayed
    | RequestFailed
    | WaitPassed
    | WindowReported
    | TokenRenewed
    | RequestCompared
)


# ------------------------------------------------------------------------------------------------------------ the call


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureDecision:
    classification: Classification
    decision: retry.Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCallState:
    """The state of one model call while it is tried."""

    rules: ModelCallRules
    memory: RecoveryState = field(default_factory=RecoveryState)
    """What the run remembers for its next requests. Stored with the end of the call."""
    history: retry.AttemptHistory = field(default_factory=retry.AttemptHistory)
    """What was already done about failures of this iteration. Stored while the run is parked."""
    act: Act = field(default_factory=PrepareRequest)
    beside: tuple[SideAct, ...] = ()
    """To be done before ``act``."""
    decided: FailureDecision | None = None
    """The newest decision about a failure, for the log."""
    facts: RequestFacts | None = None
    """The newest request."""
    failure: RequestFailed | None = None
    """The failure that is being handled."""
    stayed_s: float = 0.0
    """Seconds for which the call has waited for leave inside this worker."""
    is_stalled: bool = False
    """The conversation cannot be shortened, so that is not tried again before a failure."""
    refused_memory: RecoveryState | None = None
    """The memory from before images were made smaller, while that is being tried."""
    moves: int = 0
    """How often the call moved to another provider because keys were closed."""
    left_wait_s: float | None = None
    """Seconds until a provider that this call left because of its limits may be used again."""

    @property
    def has_fallback(self) -> bool:
        """The chain has another provider."""
        return self.memory.provider + 1 < self.rules.providers

    @property
    def may_go_back(self) -> bool:
        """An earlier provider of the chain may replace closed ones, because it refused nothing in this iteration."""
        return Remedy.FALL_BACK not in self.history.used and self.left_wait_s is None

    @property
    def window(self) -> int:
        """The context window to plan with, in tokens."""
        return self.choose_window(self.facts.window_served if self.facts is not None else None)

    def choose_window(self, served: int | None) -> int:
        """The window, if the server reports ``served``. A refusal of this run takes precedence, and so do the
        settings."""
        return self.memory.window or self.rules.window or served or retry.STANDARD_WINDOW


def begin_call(rules: ModelCallRules, memory: RecoveryState, history: retry.AttemptHistory) -> ModelCallState:
    """The state of a call that begins, or goes on after its run was parked."""
    compactions = max(history.compactions, memory.vain_compactions)
    return ModelCallState(rules=rules, memory=memory, history=replace(history, compactions=compactions))


def advance(asking: ModelCallState, event: AskingEvent) -> ModelCallState:
    """The next state after ``event``. Raises ``InvalidTransition`` when ``event`` does not answer the present act."""
    was = replace(asking, beside=(), decided=None)
    match event:
        case RequestPrepared():
            return _on_preparation(_require_act(was, PrepareRequest), event.facts)
        case KeyClosed():
            return _on_key_closed(_require_act(was, PrepareRequest), event)
        case PermitGranted():
            return replace(_require_act(was, AcquirePermit), act=SendRequest())
        case PermitDelayed():
            return _on_delay(_require_act(was, AcquirePermit), event)
        case WaitPassed():
            return replace(_require_act(was, HoldStill), act=PrepareRequest())
        case RequestFailed():
            return _on_failure(_require_act(was, SendRequest, RenewToken), event)
        case WindowReported():
            return _on_window_report(_require_act(was, AskWindow), event.tokens)
        case TokenRenewed():
            return _prepare_again(_require_act(was, RenewToken))
        case RequestCompared():
            return _on_comparison(_require_act(was, CompareRequest), event)
        case NothingShortened():
            return _on_nothing_shortened(_require_act(was, ShortenConversation), event)
        case _:
            assert_never(event)


def remember_compaction(asking: ModelCallState) -> RecoveryState:
    """Build what the run remembers after its conversation was shortened. Fewer messages are a gain, where there were
    too many; any other gain shows in the next request."""
    facts, memory = _require_facts(asking), asking.memory
    is_open = not facts.has_too_many_rows
    return replace(
        memory,
        compactions=memory.compactions + 1,
        vain_compactions=memory.vain_compactions + is_open,
        shortened_from=facts.tokens if is_open else 0,
        unsummarised=0,
    )


def _require_act(asking: ModelCallState, *acts: type[Act]) -> ModelCallState:
    if not isinstance(asking.act, acts):
        raise InvalidTransition(f"a model call that has to {type(asking.act).__name__} cannot go on like this")
    return asking


def _prepare_again(asking: ModelCallState) -> ModelCallState:
    """Prepare the request again, with what has changed."""
    return replace(asking, act=PrepareRequest(), failure=None)


# --- before it is sent ---


def _on_preparation(asking: ModelCallState, facts: RequestFacts) -> ModelCallState:
    asking = _credit_gain(asking, facts.tokens)
    may_wait = facts.tokens <= facts.room * FITS_PART
    is_useless = may_wait and (facts.is_futile or asking.memory.unsummarised >= UNSUMMARISED_MAX)
    may_shorten = asking.rules.compacts and asking.history.compactions < retry.COMPACTIONS_MAX and not is_useless
    is_long = facts.tokens >= facts.trigger or facts.has_too_many_rows
    is_too_long = may_shorten and not asking.is_stalled and is_long
    if is_too_long or asking.rules.is_requested:
        return replace(asking, facts=facts, act=ShortenConversation(may_wait=may_wait or asking.rules.is_requested))
    return replace(asking, facts=facts, act=AcquirePermit())


def _credit_gain(asking: ModelCallState, tokens: int) -> ModelCallState:
    """A compaction that gained something uses up no attempt: a long turn may have any number of them."""
    before = asking.memory.shortened_from
    if not before:
        return asking
    memory, history = replace(asking.memory, shortened_from=0), asking.history
    if tokens <= before * GAINED_PART:
        memory, history = replace(memory, vain_compactions=0), replace(history, compactions=0)
    return replace(asking, memory=memory, history=history)


def _on_key_closed(asking: ModelCallState, event: KeyClosed) -> ModelCallState:
    """Move to a provider with an open key, or park. Keys may close and open meanwhile, so the number of moves is
    limited."""
    position = event.next_provider
    if position is not None and asking.moves <= 2 * asking.rules.providers:
        return replace(_move_to(asking, position), moves=asking.moves + 1)
    wait_s = event.wait_s if asking.left_wait_s is None else min(event.wait_s, asking.left_wait_s)
    return replace(asking, act=ParkRun(wait_s, event.reason, event.keys), failure=None)


def _on_nothing_shortened(asking: ModelCallState, event: NothingShortened) -> ModelCallState:
    """The conversation cannot be shortened: it is sent as it is, or the same failure is decided on once more."""
    missing = asking.memory.unsummarised + event.is_summary_missing
    stalled = replace(asking, is_stalled=True, memory=replace(asking.memory, unsummarised=missing))
    if stalled.failure is None:
        return replace(stalled, act=AcquirePermit())
    return _decide_failure(replace(stalled, history=retry.mark_stalled(stalled.history)), stalled.failure)


def _on_delay(asking: ModelCallState, event: PermitDelayed) -> ModelCallState:
    """Decide whether the call waits in this worker: only for a short time, not again and again because older calls come
    first, and only if few are before it. Other calls make room for these older ones (invariant I8)."""
    facts = _require_facts(asking)
    stayed_s = asking.stayed_s + event.wait_s
    if event.ahead < STAYING_MAX and stayed_s <= retry.PARK_OVER_S:
        return replace(asking, act=HoldStill(event.wait_s, is_in_line=True), stayed_s=stayed_s)
    is_long = event.is_cooling and event.wait_s > retry.PARK_OVER_S
    if is_long and facts.has_other_keys:
        return replace(_prepare_again(asking), beside=(WithdrawPermit(), RestKey(event.wait_s)))
    if is_long and asking.has_fallback:
        return replace(_fall_back(asking), beside=(WithdrawPermit(),), left_wait_s=event.wait_s)
    return replace(asking, act=ParkRun(event.wait_s, f"the key of {facts.provider} is used as much as it may be"))


def _require_facts(asking: ModelCallState) -> RequestFacts:
    if asking.facts is None:
        raise InvalidTransition("a model call has no request yet")
    return asking.facts


# --- failures ---


def _on_failure(asking: ModelCallState, event: RequestFailed) -> ModelCallState:
    if _wants_window(asking, event.classification):
        return replace(asking, act=AskWindow(), failure=event)
    return _decide_failure(asking, event)


def _wants_window(asking: ModelCallState, classification: Classification) -> bool:
    """Whether the server is asked for its window before a refusal as too long is decided on, because it is not known
    otherwise."""
    is_unknown = classification.context_limit is None and not (asking.rules.window or asking.memory.window)
    is_too_long = classification.kind is FailureKind.CONTEXT_OVERFLOW and not classification.is_output_cap
    return is_unknown and is_too_long and _require_facts(asking).can_ask_window


def _on_window_report(asking: ModelCallState, tokens: int | None) -> ModelCallState:
    event = _require_failure(asking)
    if tokens is None:
        return _decide_failure(asking, event)
    return _decide_failure(asking, replace(event, classification=replace(event.classification, context_limit=tokens)))


def _require_failure(asking: ModelCallState) -> RequestFailed:
    if asking.failure is None:
        raise InvalidTransition("a model call has not failed")
    return asking.failure


def _decide_failure(asking: ModelCallState, event: RequestFailed) -> ModelCallState:
    decision = retry.decide_remedy(event.classification, asking.history, _build_situation(asking, event))
    if event.is_key_closed and isinstance(decision, retry.Wait | retry.RenewConnection | retry.GiveUp):
        # Another run caused this failure, so no attempt is counted: fall back, or wait for the key.
        decided = FailureDecision(classification=event.classification, decision=decision)
        return replace(_prepare_again(asking), decided=decided)
    known = replace(
        asking,
        history=retry.advance_history(asking.history, decision, event.classification),
        failure=event,
        decided=FailureDecision(classification=event.classification, decision=decision),
        beside=() if event.is_key_closed else tuple(_list_cool_downs(event.classification, decision)),
    )
    return _carry_out(known, decision, event.classification)


def _list_cool_downs(classification: Classification, decision: retry.Decision) -> Iterator[CoolDown]:
    """Yield cool-downs for a failure. One worker's rate limit is every worker's: none uses this key before it is over.
    A provider that a run left because it is used up is avoided for longer: until then every run begins where this one
    goes on."""
    kind, told_s = classification.kind, classification.retry_after_s
    if kind is FailureKind.RATE_LIMIT or (kind is FailureKind.OVERLOADED and told_s):
        yield CoolDown(told_s or RATE_LIMIT_PAUSE_S)
    if isinstance(decision, retry.FallBack) and kind in (FailureKind.RATE_LIMIT, FailureKind.BILLING):
        yield CoolDown(max(FALLEN_BACK_S, told_s or 0.0))


def _carry_out(asking: ModelCallState, decision: retry.Decision, classification: Classification) -> ModelCallState:
    memory, beside = asking.memory, asking.beside
    match decision:
        case retry.Wait() | retry.RenewConnection():
            return _hold_or_park(asking, decision.seconds, classification)
        case retry.GiveUp():
            return replace(asking, act=FailCall(decision, classification))
        case retry.CapOutput():
            return _prepare_again(replace(asking, memory=replace(memory, output_tokens_max=decision.tokens)))
        case retry.Compact():
            return replace(asking, act=ShortenConversation())
        case retry.LowerWindow():
            learned = (LearnWindow(decision.tokens),) if decision.is_lasting else ()
            lowered = replace(memory, window=decision.tokens)
            return replace(asking, act=ShortenConversation(), memory=lowered, beside=(*beside, *learned))
        case retry.FallBack():
            return _fall_back(_forbid_return(asking, classification))
        case retry.RefreshCredential():
            return replace(asking, act=RenewToken())
        case retry.ShrinkImages():
            return _shrink_images(asking, decision.side_px_max)
        case retry.RotateCredential():
            is_closed = asking.failure is not None and asking.failure.is_key_closed
            rest = CLOSED_REST_S if is_closed else compute_rest_s(classification)
            return replace(_prepare_again(asking), beside=(*beside, RestKey(rest)))
        case (
            retry.StripSignature()
            | retry.EchoReasoning()
            | retry.DropEncryptedReasoning()
            | retry.StripImages()
            | retry.TextifyToolImages()
            | retry.StripGrammar()
        ):
            amendments = memory.amendments | {_AMENDMENT_OF[decision.kind]}
            return _prepare_again(replace(asking, memory=replace(memory, amendments=amendments)))
        case retry.DropLongContextBeta():
            raise InvalidTransition(f"no remedy {decision.kind!r} was offered, yet it was decided on")
        case _:
            assert_never(decision)


def _hold_or_park(asking: ModelCallState, seconds: float, classification: Classification) -> ModelCallState:
    if seconds <= retry.PARK_OVER_S:
        return replace(asking, act=HoldStill(seconds), failure=None)
    answered = f"answered {classification.status}" if classification.status else "did not answer"
    reason = f"the provider {answered} ({classification.kind.value}) and is asked again"
    return replace(asking, act=ParkRun(seconds, reason))


def _forbid_return(asking: ModelCallState, classification: Classification) -> ModelCallState:
    """Exclude an earlier provider that refused this request, as it would refuse it again; a closed key may be open
    later."""
    if decide_finding(classification).condition is not None:
        return asking
    return replace(asking, history=replace(asking.history, used=asking.history.used | {Remedy.FALL_BACK}))


def _fall_back(asking: ModelCallState) -> ModelCallState:
    return _move_to(asking, asking.memory.provider + 1)


def _move_to(asking: ModelCallState, position: int) -> ModelCallState:
    # The next provider may accept what the last one refused, and may have a larger window.
    memory = replace(asking.memory, provider=position, amendments=frozenset(), window=0)
    return _prepare_again(replace(asking, memory=memory, is_stalled=False))


def _shrink_images(asking: ModelCallState, side_px_max: int) -> ModelCallState:
    before = asking.memory
    amendments = before.amendments | {Amendment.SMALL_IMAGES}
    memory = replace(before, amendments=amendments, image_side_px_max=side_px_max)
    return replace(asking, act=CompareRequest(), memory=memory, refused_memory=before)


def _on_comparison(asking: ModelCallState, event: RequestCompared) -> ModelCallState:
    """Send the request with smaller images; if none could be made smaller, the same failure is decided on once more."""
    before = asking.refused_memory
    tried = replace(asking, refused_memory=None)
    if event.has_changed or before is None:
        return _prepare_again(tried)
    return _decide_failure(replace(tried, memory=before), _require_failure(asking))


def _build_situation(asking: ModelCallState, event: RequestFailed) -> retry.Situation:
    return retry.Situation(
        remedies=frozenset(_list_remedies(asking, event.contents)),
        attempts_max=asking.rules.attempts_max,
        jitter=event.jitter,
        window=asking.window,
        request_tokens=_require_facts(asking).tokens,
        output_tokens_max=event.contents.output_tokens_max,
    )


def _list_remedies(asking: ModelCallState, contents: RequestContents) -> Iterator[Remedy]:
    """Yield what can be done about this request now. A remedy that would change nothing is left out."""
    facts, amendments = _require_facts(asking), asking.memory.amendments
    yield Remedy.CAP_OUTPUT
    if asking.rules.compacts:
        yield Remedy.COMPACT
    if Amendment.REASONING_ECHO not in amendments:
        yield Remedy.ECHO_REASONING
    if contents.replays_reasoning:
        yield Remedy.STRIP_SIGNATURES
        yield Remedy.DROP_ENCRYPTED_REASONING
    if contents.has_images:
        yield Remedy.STRIP_IMAGES
    if contents.has_inline_images and Amendment.SMALL_IMAGES not in amendments:
        yield Remedy.SHRINK_IMAGES
    if contents.has_tool_images:
        yield Remedy.TEXTIFY_TOOL_IMAGES
    if contents.has_tools and Amendment.PLAIN_TOOL_SCHEMAS not in amendments:
        yield Remedy.STRIP_GRAMMAR
    if not asking.memory.provider and not facts.is_aggregator:
        # A broken connection never goes back to the pool, so there is nothing to renew; the remedy only adds a wait and
        # new attempts.
        yield Remedy.RENEW_CONNECTION
    if facts.can_renew:
        yield Remedy.REFRESH_CREDENTIAL
    if facts.has_other_keys:
        yield Remedy.ROTATE_CREDENTIAL
    if asking.has_fallback:
        yield Remedy.FALL_BACK
