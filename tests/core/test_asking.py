"""One model call as a decision: whatever happens to it, there is a next act, and after a bounded number an end."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_worker.core.errors import FailureKind, InvalidTransition, ModelCallError
from hermes_worker.core.recovery import retry
from hermes_worker.core.recovery.classify import OUTCOMES, Classification, classify_translated
from hermes_worker.core.recovery.request_policy import (
    STAYING_MAX,
    AcquirePermit,
    AskingEvent,
    AskWindow,
    CompareRequest,
    CoolDown,
    FailCall,
    HoldStill,
    LearnWindow,
    ModelCallRules,
    ModelCallState,
    NothingShortened,
    ParkRun,
    PermitDelayed,
    PermitGranted,
    PrepareRequest,
    RenewToken,
    RequestCompared,
    RequestContents,
    RequestFacts,
    RequestFailed,
    RequestPrepared,
    RestKey,
    SendRequest,
    ShortenConversation,
    TokenRenewed,
    WaitPassed,
    WindowReported,
    WithdrawPermit,
    advance,
    begin_call,
    remember_compaction,
)
from hermes_worker.core.recovery.retry import PARK_OVER_S, AttemptHistory, Remedy, build_document, parse_history
from hermes_worker.core.recovery_state import Amendment, RecoveryState, dump_recovery_state, parse_recovery_state

FACTS = RequestFacts(provider="p", tokens=1_000, trigger=100_000)
FULL = RequestContents(
    messages=3,
    output_tokens_max=4_000,
    replays_reasoning=True,
    has_images=True,
    has_inline_images=True,
    has_tool_images=True,
    has_tools=True,
)
EMPTY = RequestContents()
ENDS = (ParkRun, FailCall)


def new(*, providers: int = 1, compacts: bool = True, window: int | None = None) -> ModelCallState:
    rules = ModelCallRules(providers=providers, compacts=compacts, window=window)
    return begin_call(rules, RecoveryState(), AttemptHistory())


def sent(asking: ModelCallState, facts: RequestFacts = FACTS) -> ModelCallState:
    """The same call when its request is on its way."""
    ready = advance(advance(asking, RequestPrepared(facts)), PermitGranted())
    assert ready.act == SendRequest()
    return ready


def of(
    kind: FailureKind, message: str = "", *, status: int | None = None, after_s: float | None = None
) -> RequestFailed:
    error = ModelCallError(kind, message, status=status)
    return RequestFailed(classification=replace(classify_translated(error), retry_after_s=after_s), contents=FULL)


# ------------------------------------------------------------------------------------------------------------- single


def test_a_call_that_meets_nothing_is_prepared_allowed_and_sent() -> None:
    asking = new()
    assert asking.act == PrepareRequest()
    allowed = advance(asking, RequestPrepared(FACTS))
    assert allowed.act == AcquirePermit()
    assert advance(allowed, PermitGranted()).act == SendRequest()


def test_an_answer_to_another_question_is_refused_and_changes_nothing() -> None:
    asking = new()
    for event in (PermitGranted(), WaitPassed(), WindowReported(1), TokenRenewed(), NothingShortened()):
        with pytest.raises(InvalidTransition, match="PrepareRequest"):
            advance(asking, event)
    with pytest.raises(InvalidTransition):
        advance(sent(asking), RequestPrepared(FACTS))


def test_a_long_conversation_is_made_shorter_before_it_is_sent() -> None:
    long = replace(FACTS, tokens=100_000)
    asking = advance(new(), RequestPrepared(long))
    assert asking.act == ShortenConversation()
    assert remember_compaction(asking).compactions == 1
    assert advance(new(compacts=False), RequestPrepared(long)).act == AcquirePermit()
    stalled = advance(asking, NothingShortened())
    assert stalled.act == AcquirePermit(), "it is sent as it is"
    failed = advance(advance(stalled, PermitGranted()), of(FailureKind.SERVER_ERROR))
    assert sent(advance(failed, WaitPassed()), long).is_stalled, "and that is not tried again"


def test_a_long_turn_is_never_ended_by_a_count_of_compactions_that_gained() -> None:
    """90 iterations, of which every third is refused as too long until the conversation is shorter."""
    memory, long, short = RecoveryState(), replace(FACTS, tokens=90_000), replace(FACTS, tokens=40_000)
    for iteration in range(90):
        asking = begin_call(ModelCallRules(), memory, AttemptHistory())
        if iteration % 3 == 0:
            refused = advance(sent(asking, long), of(FailureKind.CONTEXT_OVERFLOW, "too long", status=400))
            assert isinstance(refused.act, ShortenConversation)
            memory = parse_recovery_state(dump_recovery_state(remember_compaction(refused)))
            asking = begin_call(ModelCallRules(), memory, AttemptHistory())
        memory = sent(asking, short).memory
        assert memory.vain_compactions == 0
    assert memory.compactions == 30


def test_compactions_that_gain_nothing_end_a_call() -> None:
    memory, long = RecoveryState(), replace(FACTS, tokens=90_000)
    for _ in range(retry.COMPACTIONS_MAX):
        refused = advance(
            sent(begin_call(ModelCallRules(), memory, AttemptHistory()), long),
            of(FailureKind.CONTEXT_OVERFLOW, "too long", status=400),
        )
        assert isinstance(refused.act, ShortenConversation)
        memory = parse_recovery_state(dump_recovery_state(remember_compaction(refused)))
    last = sent(begin_call(ModelCallRules(), memory, AttemptHistory()), replace(long, trigger=10_000))
    failed = advance(last, of(FailureKind.CONTEXT_OVERFLOW, "too long", status=400))
    assert isinstance(failed.act, FailCall)
    assert failed.act.decision.reason is retry.GiveUpReason.COMPACTION_EXHAUSTED


def test_compactions_because_of_many_messages_are_a_gain() -> None:
    memory, many = RecoveryState(), replace(FACTS, has_too_many_rows=True)
    for _ in range(10):
        asking = advance(begin_call(ModelCallRules(), memory, AttemptHistory()), RequestPrepared(many))
        assert isinstance(asking.act, ShortenConversation)
        memory = remember_compaction(asking)
    assert (memory.compactions, memory.vain_compactions) == (10, 0)


def test_a_summary_forgives_those_that_no_model_wrote() -> None:
    asking = begin_call(ModelCallRules(), RecoveryState(unsummarised=1), AttemptHistory())
    long = advance(asking, RequestPrepared(replace(FACTS, tokens=100_000)))
    assert remember_compaction(long).unsummarised == 0


def test_a_conversation_of_very_many_messages_is_made_shorter_however_short_they_are() -> None:
    many = replace(FACTS, has_too_many_rows=True)
    assert advance(new(), RequestPrepared(many)).act == ShortenConversation(may_wait=False)
    assert advance(new(compacts=False), RequestPrepared(many)).act == AcquirePermit()


def test_a_call_waits_for_its_turn_only_while_few_are_before_it_and_not_for_long() -> None:
    waiting = advance(new(), RequestPrepared(FACTS))
    held = advance(waiting, PermitDelayed(wait_s=3.0, ahead=STAYING_MAX - 1))
    assert held.act == HoldStill(3.0, is_in_line=True)
    again = advance(advance(held, WaitPassed()), RequestPrepared(FACTS))
    assert isinstance(advance(again, PermitDelayed(wait_s=3.0)).act, ParkRun), "3 s and 3 s are more than 5"
    assert isinstance(advance(waiting, PermitDelayed(wait_s=1.0, ahead=STAYING_MAX)).act, ParkRun)


def test_a_key_that_rests_for_long_is_left_for_another_key_then_for_another_provider() -> None:
    rest = PermitDelayed(wait_s=60.0, is_cooling=True)
    other_key = advance(advance(new(providers=2), RequestPrepared(replace(FACTS, has_other_keys=True))), rest)
    assert (other_key.act, other_key.beside) == (PrepareRequest(), (WithdrawPermit(), RestKey(60.0)))
    assert other_key.memory.provider == 0
    fallen_back = advance(advance(new(providers=2), RequestPrepared(FACTS)), rest)
    assert (fallen_back.act, fallen_back.beside) == (PrepareRequest(), (WithdrawPermit(),))
    assert fallen_back.memory.provider == 1
    parked = advance(advance(new(), RequestPrepared(FACTS)), rest)
    assert parked.act == ParkRun(60.0, "the key of p is used as much as it may be")
    assert parked.beside == ()


def test_a_short_wait_holds_still_and_a_long_one_parks() -> None:
    held = advance(sent(new()), of(FailureKind.SERVER_ERROR))
    assert held.act == HoldStill(2.0)
    assert advance(held, WaitPassed()).act == PrepareRequest()
    parked = advance(sent(new()), of(FailureKind.RATE_LIMIT, status=429, after_s=30.0))
    assert isinstance(parked.act, ParkRun)
    assert parked.act.seconds == 30.0
    assert parked.act.reason == "the provider answered 429 (rate_limit) and is asked again"
    assert parked.beside == (CoolDown(30.0),)


def test_a_rate_limit_is_told_to_everybody_and_a_provider_that_was_left_is_left_alone() -> None:
    limited = advance(sent(new()), of(FailureKind.RATE_LIMIT))
    assert limited.beside == (CoolDown(2.0),)
    fallen_back = advance(sent(new(providers=2)), of(FailureKind.BILLING))
    assert (fallen_back.act, fallen_back.beside) == (PrepareRequest(), (CoolDown(60.0),))
    assert advance(sent(new()), of(FailureKind.OVERLOADED)).beside == ()
    assert advance(sent(new()), of(FailureKind.OVERLOADED, after_s=4.0)).beside == (CoolDown(4.0),)


def test_a_window_is_asked_for_when_nobody_knows_it_and_is_lowered_for_good() -> None:
    curious = replace(FACTS, can_ask_window=True, tokens=90_000)
    asking = advance(sent(new(), curious), of(FailureKind.CONTEXT_OVERFLOW))
    assert asking.act == AskWindow()
    told = advance(asking, WindowReported(32_768))
    assert (told.act, told.beside) == (ShortenConversation(), (LearnWindow(32_768),))
    assert told.window == 32_768
    untold = advance(asking, WindowReported(None))
    assert (untold.act, untold.beside) == (ShortenConversation(), ())
    assert untold.window == 94_000, "no more than what was refused"
    known = advance(sent(new(window=50_000), curious), of(FailureKind.CONTEXT_OVERFLOW))
    assert known.act == ShortenConversation(), "the settings say it"


def test_a_conversation_that_cannot_be_made_shorter_is_decided_on_once_more() -> None:
    asking = advance(sent(new()), of(FailureKind.CONTEXT_OVERFLOW))
    assert asking.act == ShortenConversation()
    ended = advance(asking, NothingShortened())
    assert isinstance(ended.act, FailCall)
    assert ended.act.decision.reason is retry.GiveUpReason.COMPACTION_EXHAUSTED
    elsewhere = advance(advance(sent(new(providers=2)), of(FailureKind.CONTEXT_OVERFLOW)), NothingShortened())
    assert (elsewhere.act, elsewhere.memory.provider, elsewhere.memory.window) == (PrepareRequest(), 1, 0)


def test_a_refused_token_is_renewed_once_and_why_it_cannot_be_is_what_counts() -> None:
    renewable = replace(FACTS, can_renew=True)
    asking = advance(sent(new(), renewable), of(FailureKind.AUTH, status=401))
    assert asking.act == RenewToken()
    assert advance(asking, TokenRenewed()).act == PrepareRequest()
    refused = advance(asking, of(FailureKind.AUTH, "sign in again", status=401))
    assert isinstance(refused.act, FailCall)
    assert "sign in again" in refused.act.classification.message


def test_images_that_cannot_be_made_smaller_leave_no_trace_and_are_left_out() -> None:
    asking = advance(sent(new()), of(FailureKind.IMAGE_TOO_LARGE, "max allowed size: 2000"))
    assert asking.act == CompareRequest()
    assert (asking.memory.image_side_px_max, asking.memory.amendments) == (2_000, {Amendment.SMALL_IMAGES})
    smaller = advance(asking, RequestCompared(has_changed=True))
    assert (smaller.act, smaller.memory) == (PrepareRequest(), asking.memory)
    same = advance(asking, RequestCompared(has_changed=False))
    assert same.act == PrepareRequest()
    assert same.memory == RecoveryState(amendments=frozenset({Amendment.NO_IMAGES}))


def test_what_one_provider_refused_says_nothing_about_the_next() -> None:
    asking = advance(sent(new(providers=2)), of(FailureKind.THINKING_SIGNATURE))
    assert asking.memory.amendments == {Amendment.NO_REASONING_REPLAY}
    fallen_back = advance(sent(asking), of(FailureKind.MODEL_NOT_FOUND))
    assert (fallen_back.memory.provider, fallen_back.memory.amendments) == (1, frozenset())


# --------------------------------------------------------------------------------------------------------------- laws

classifications = st.builds(
    lambda outcome, status, after_s, limit, message: replace(
        outcome, status=status, retry_after_s=after_s, context_limit=limit, message=message
    ),
    st.sampled_from(sorted(OUTCOMES, key=repr)),
    st.sampled_from([None, 400, 401, 413, 429, 500]),
    st.none() | st.floats(0, 600),
    st.none() | st.integers(1_024, 300_000),
    st.sampled_from(["", "max allowed size: 2000", "usage limit reached"]),
)
contents = st.builds(
    RequestContents,
    messages=st.integers(0, 200),
    output_tokens_max=st.integers(0, 10_000),
    replays_reasoning=st.booleans(),
    has_images=st.booleans(),
    has_inline_images=st.booleans(),
    has_tool_images=st.booleans(),
    has_tools=st.booleans(),
)
histories = st.builds(
    AttemptHistory,
    retries=st.integers(0, 5),
    compactions=st.integers(0, 5),
    used=st.frozensets(st.sampled_from(Remedy)),
    was_rate_limited=st.booleans(),
    is_compaction_stalled=st.booleans(),
)
memories = st.builds(
    RecoveryState,
    amendments=st.frozensets(st.sampled_from(Amendment)),
    provider=st.integers(0, 3),
    compactions=st.integers(0, 4),
    window=st.sampled_from([0, 8_192, 200_000]),
)
rules = st.builds(
    ModelCallRules,
    attempts_max=st.integers(1, 4),
    providers=st.integers(1, 3),
    compacts=st.booleans(),
    window=st.none() | st.just(100_000),
)
facts = st.builds(
    RequestFacts,
    provider=st.just("p"),
    tokens=st.integers(0, 400_000),
    trigger=st.integers(1, 400_000),
    window_served=st.none() | st.integers(1_024, 300_000),
    has_other_keys=st.booleans(),
    can_ask_window=st.booleans(),
    can_renew=st.booleans(),
    is_aggregator=st.booleans(),
)


@given(rules, memories, histories, facts, classifications, contents)
def test_every_failure_in_every_situation_has_a_next_act(
    given_rules: ModelCallRules,
    memory: RecoveryState,
    history: AttemptHistory,
    request: RequestFacts,
    classification: Classification,
    sent_contents: RequestContents,
) -> None:
    prepared = advance(begin_call(given_rules, memory, history), RequestPrepared(request))
    if prepared.act == ShortenConversation():
        prepared = advance(prepared, NothingShortened())
    failed = RequestFailed(classification=classification, contents=sent_contents)

    decided = advance(advance(prepared, PermitGranted()), failed)

    assert not isinstance(decided.act, SendRequest | AcquirePermit), "a failed request is never sent as it is"
    if isinstance(decided.act, AskWindow):
        # What the wire made of the failure is decided on as it is, but for the window.
        assert decided.failure == failed
        decided = advance(decided, WindowReported(4_096))
        assert decided.decided is not None
        assert decided.decided.classification == replace(classification, context_limit=4_096)
    assert decided.decided is not None
    assert decided.decided.classification.kind is classification.kind
    assert decided.memory.provider <= max(memory.provider, given_rules.providers - 1)


@dataclass(slots=True)
class World:
    """Everything outside of the decision, as hostile as Hypothesis makes it: only keys and providers are finite."""

    data: st.DataObject
    keys: dict[int, int]
    """How many other keys each provider has."""
    acts: Counter[str] = field(default_factory=Counter)

    def answer(self, asking: ModelCallState) -> AskingEvent | None:
        act = asking.act
        self.acts[type(act).__name__] += 1
        draw = self.data.draw
        match act:
            case PrepareRequest():
                position = asking.memory.provider
                return RequestPrepared(replace(draw(facts), has_other_keys=self.keys.get(position, 0) > 0))
            case ShortenConversation():
                return NothingShortened() if draw(st.booleans()) else None
            case AcquirePermit():
                delays = st.builds(
                    PermitDelayed,
                    wait_s=st.floats(0.5, 100),
                    ahead=st.integers(0, STAYING_MAX),
                    is_cooling=st.booleans(),
                )
                return draw(st.just(PermitGranted()) | delays)
            case SendRequest():
                return self.failure()
            case HoldStill():
                assert act.seconds <= PARK_OVER_S
                return WaitPassed()
            case AskWindow():
                return WindowReported(draw(st.none() | st.integers(1_024, 300_000)))
            case RenewToken():
                return TokenRenewed() if draw(st.booleans()) else self.failure()
            case CompareRequest():
                return RequestCompared(draw(st.booleans()))
            case _:
                assert isinstance(act, ENDS)
                return None

    def failure(self) -> RequestFailed:
        return RequestFailed(classification=self.data.draw(classifications), contents=self.data.draw(contents))

    def take_in(self, asking: ModelCallState, after_it: ModelCallState) -> None:
        for act in after_it.beside:
            if isinstance(act, RestKey):
                assert asking.facts is not None and asking.facts.has_other_keys, "there was nothing to go to"
                self.keys[asking.memory.provider] -= 1


@settings(max_examples=150, deadline=None)
@given(st.data(), rules, st.integers(0, 2))
def test_whatever_happens_the_call_ends_after_a_bounded_number_of_requests(
    data: st.DataObject, given_rules: ModelCallRules, keys: int
) -> None:
    world = World(data=data, keys=dict.fromkeys(range(given_rules.providers), keys))
    asking = begin_call(given_rules, RecoveryState(), AttemptHistory())
    for _ in range(600):
        event = world.answer(asking)
        if event is None:
            break
        before, asking = asking, advance(asking, event)
        world.take_in(before, asking)
    else:
        raise AssertionError(f"still asking: {world.acts}")
    # Of each provider, with each key: the attempts, as many again after the connection was renewed, and one for each
    # remedy. A conversation that is made shorter ends the call, so caps of the output are what compactions leave.
    a_provider = (keys + 1) * (2 * given_rules.attempts_max + len(Remedy)) + retry.COMPACTIONS_MAX
    assert world.acts["SendRequest"] <= given_rules.providers * a_provider


@settings(max_examples=150, deadline=None)
@given(st.data(), rules)
def test_a_parked_call_goes_on_with_all_it_knew(data: st.DataObject, given_rules: ModelCallRules) -> None:
    """By what is stored with the run and nothing else, on whichever worker."""
    world = World(data=data, keys=dict.fromkeys(range(given_rules.providers), 1))
    asking = begin_call(given_rules, RecoveryState(), AttemptHistory())
    for _ in range(600):
        event = world.answer(asking)
        if event is None:
            break
        before, asking = asking, advance(asking, event)
        world.take_in(before, asking)
    if not isinstance(asking.act, ParkRun):
        return
    recovery = json.loads(json.dumps(build_document(asking.history)))

    resumed = begin_call(given_rules, parse_recovery_state(dump_recovery_state(asking.memory)), parse_history(recovery))

    assert (resumed.memory, resumed.history) == (asking.memory, asking.history)
    assert resumed.act == PrepareRequest()
    assert resumed.stayed_s == 0.0, "a run that was parked may stay for a moment again"
