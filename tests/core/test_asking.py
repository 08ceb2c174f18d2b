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
from hermes_worker.core.recovery.asking import (
    STAYING_MAX,
    AcquirePermit,
    Asking,
    AskingEvent,
    AskingRules,
    AskWindow,
    CompareRequest,
    CoolDown,
    FailCall,
    HoldStill,
    LearnWindow,
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
    WindowTold,
    WithdrawPermit,
    after,
    begin,
    shortened,
)
from hermes_worker.core.recovery.classify import OUTCOMES, Classification, classification_of
from hermes_worker.core.recovery.retry import PARK_OVER_S, AttemptHistory, Remedy, history_document, history_from
from hermes_worker.core.run_memory import Amendment, RunMemory, memory_document, memory_from

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


def new(*, providers: int = 1, compacts: bool = True, window: int | None = None) -> Asking:
    rules = AskingRules(providers=providers, compacts=compacts, window=window)
    return begin(rules, RunMemory(), AttemptHistory())


def sent(asking: Asking, facts: RequestFacts = FACTS) -> Asking:
    """The same call when its request is on its way."""
    ready = after(after(asking, RequestPrepared(facts)), PermitGranted())
    assert ready.act == SendRequest()
    return ready


def of(
    kind: FailureKind, message: str = "", *, status: int | None = None, after_s: float | None = None
) -> RequestFailed:
    error = ModelCallError(kind, message, status=status)
    return RequestFailed(classification=replace(classification_of(error), retry_after_s=after_s), contents=FULL)


# ------------------------------------------------------------------------------------------------------------- single


def test_a_call_that_meets_nothing_is_prepared_allowed_and_sent() -> None:
    asking = new()
    assert asking.act == PrepareRequest()
    allowed = after(asking, RequestPrepared(FACTS))
    assert allowed.act == AcquirePermit()
    assert after(allowed, PermitGranted()).act == SendRequest()


def test_an_answer_to_another_question_is_refused_and_changes_nothing() -> None:
    asking = new()
    for event in (PermitGranted(), WaitPassed(), WindowTold(1), TokenRenewed(), NothingShortened()):
        with pytest.raises(InvalidTransition, match="PrepareRequest"):
            after(asking, event)
    with pytest.raises(InvalidTransition):
        after(sent(asking), RequestPrepared(FACTS))


def test_a_long_conversation_is_made_shorter_before_it_is_sent() -> None:
    long = replace(FACTS, tokens=100_000)
    asking = after(new(), RequestPrepared(long))
    assert asking.act == ShortenConversation()
    assert shortened(asking).compactions == 1
    assert after(new(compacts=False), RequestPrepared(long)).act == AcquirePermit()
    stalled = after(asking, NothingShortened())
    assert stalled.act == AcquirePermit(), "it is sent as it is"
    failed = after(after(stalled, PermitGranted()), of(FailureKind.SERVER_ERROR))
    assert sent(after(failed, WaitPassed()), long).is_stalled, "and that is not tried again"


def test_a_long_turn_is_never_ended_by_a_count_of_compactions_that_gained() -> None:
    """90 iterations, of which every third is refused as too long until the conversation is shorter."""
    memory, long, short = RunMemory(), replace(FACTS, tokens=90_000), replace(FACTS, tokens=40_000)
    for iteration in range(90):
        asking = begin(AskingRules(), memory, AttemptHistory())
        if iteration % 3 == 0:
            refused = after(sent(asking, long), of(FailureKind.CONTEXT_OVERFLOW, "too long", status=400))
            assert isinstance(refused.act, ShortenConversation)
            memory = memory_from(memory_document(shortened(refused)))
            asking = begin(AskingRules(), memory, AttemptHistory())
        memory = sent(asking, short).memory
        assert memory.vain_compactions == 0
    assert memory.compactions == 30


def test_compactions_that_gain_nothing_end_a_call() -> None:
    memory, long = RunMemory(), replace(FACTS, tokens=90_000)
    for _ in range(retry.COMPACTIONS_MAX):
        refused = after(
            sent(begin(AskingRules(), memory, AttemptHistory()), long),
            of(FailureKind.CONTEXT_OVERFLOW, "too long", status=400),
        )
        assert isinstance(refused.act, ShortenConversation)
        memory = memory_from(memory_document(shortened(refused)))
    last = sent(begin(AskingRules(), memory, AttemptHistory()), replace(long, trigger=10_000))
    failed = after(last, of(FailureKind.CONTEXT_OVERFLOW, "too long", status=400))
    assert isinstance(failed.act, FailCall)
    assert failed.act.decision.reason is retry.GiveUpReason.COMPACTION_EXHAUSTED


def test_compactions_because_of_many_messages_are_a_gain() -> None:
    memory, many = RunMemory(), replace(FACTS, has_too_many_rows=True)
    for _ in range(10):
        asking = after(begin(AskingRules(), memory, AttemptHistory()), RequestPrepared(many))
        assert isinstance(asking.act, ShortenConversation)
        memory = shortened(asking)
    assert (memory.compactions, memory.vain_compactions) == (10, 0)


def test_a_summary_forgives_those_that_no_model_wrote() -> None:
    asking = begin(AskingRules(), RunMemory(unsummarised=1), AttemptHistory())
    long = after(asking, RequestPrepared(replace(FACTS, tokens=100_000)))
    assert shortened(long).unsummarised == 0


def test_a_conversation_of_very_many_messages_is_made_shorter_however_short_they_are() -> None:
    many = replace(FACTS, has_too_many_rows=True)
    assert after(new(), RequestPrepared(many)).act == ShortenConversation(may_wait=False)
    assert after(new(compacts=False), RequestPrepared(many)).act == AcquirePermit()


def test_a_call_waits_for_its_turn_only_while_few_are_before_it_and_not_for_long() -> None:
    waiting = after(new(), RequestPrepared(FACTS))
    held = after(waiting, PermitDelayed(wait_s=3.0, ahead=STAYING_MAX - 1))
    assert held.act == HoldStill(3.0, is_in_line=True)
    again = after(after(held, WaitPassed()), RequestPrepared(FACTS))
    assert isinstance(after(again, PermitDelayed(wait_s=3.0)).act, ParkRun), "3 s and 3 s are more than 5"
    assert isinstance(after(waiting, PermitDelayed(wait_s=1.0, ahead=STAYING_MAX)).act, ParkRun)


def test_a_key_that_rests_for_long_is_left_for_another_key_then_for_another_provider() -> None:
    rest = PermitDelayed(wait_s=60.0, is_cooling=True)
    other_key = after(after(new(providers=2), RequestPrepared(replace(FACTS, has_other_keys=True))), rest)
    assert (other_key.act, other_key.beside) == (PrepareRequest(), (WithdrawPermit(), RestKey(60.0)))
    assert other_key.memory.provider == 0
    fallen_back = after(after(new(providers=2), RequestPrepared(FACTS)), rest)
    assert (fallen_back.act, fallen_back.beside) == (PrepareRequest(), (WithdrawPermit(),))
    assert fallen_back.memory.provider == 1
    parked = after(after(new(), RequestPrepared(FACTS)), rest)
    assert parked.act == ParkRun(60.0, "the key of p is used as much as it may be")
    assert parked.beside == ()


def test_a_short_wait_holds_still_and_a_long_one_parks() -> None:
    held = after(sent(new()), of(FailureKind.SERVER_ERROR))
    assert held.act == HoldStill(2.0)
    assert after(held, WaitPassed()).act == PrepareRequest()
    parked = after(sent(new()), of(FailureKind.RATE_LIMIT, status=429, after_s=30.0))
    assert isinstance(parked.act, ParkRun)
    assert parked.act.seconds == 30.0
    assert parked.act.reason == "the provider answered 429 (rate_limit) and is asked again"
    assert parked.beside == (CoolDown(30.0),)


def test_a_rate_limit_is_told_to_everybody_and_a_provider_that_was_left_is_left_alone() -> None:
    limited = after(sent(new()), of(FailureKind.RATE_LIMIT))
    assert limited.beside == (CoolDown(2.0),)
    fallen_back = after(sent(new(providers=2)), of(FailureKind.BILLING))
    assert (fallen_back.act, fallen_back.beside) == (PrepareRequest(), (CoolDown(60.0),))
    assert after(sent(new()), of(FailureKind.OVERLOADED)).beside == ()
    assert after(sent(new()), of(FailureKind.OVERLOADED, after_s=4.0)).beside == (CoolDown(4.0),)


def test_a_window_is_asked_for_when_nobody_knows_it_and_is_lowered_for_good() -> None:
    curious = replace(FACTS, can_ask_window=True, tokens=90_000)
    asking = after(sent(new(), curious), of(FailureKind.CONTEXT_OVERFLOW))
    assert asking.act == AskWindow()
    told = after(asking, WindowTold(32_768))
    assert (told.act, told.beside) == (ShortenConversation(), (LearnWindow(32_768),))
    assert told.window == 32_768
    untold = after(asking, WindowTold(None))
    assert (untold.act, untold.beside) == (ShortenConversation(), ())
    assert untold.window == 94_000, "no more than what was refused"
    known = after(sent(new(window=50_000), curious), of(FailureKind.CONTEXT_OVERFLOW))
    assert known.act == ShortenConversation(), "the settings say it"


def test_a_conversation_that_cannot_be_made_shorter_is_decided_on_once_more() -> None:
    asking = after(sent(new()), of(FailureKind.CONTEXT_OVERFLOW))
    assert asking.act == ShortenConversation()
    ended = after(asking, NothingShortened())
    assert isinstance(ended.act, FailCall)
    assert ended.act.decision.reason is retry.GiveUpReason.COMPACTION_EXHAUSTED
    elsewhere = after(after(sent(new(providers=2)), of(FailureKind.CONTEXT_OVERFLOW)), NothingShortened())
    assert (elsewhere.act, elsewhere.memory.provider, elsewhere.memory.window) == (PrepareRequest(), 1, 0)


def test_a_refused_token_is_renewed_once_and_why_it_cannot_be_is_what_counts() -> None:
    renewable = replace(FACTS, can_renew=True)
    asking = after(sent(new(), renewable), of(FailureKind.AUTH, status=401))
    assert asking.act == RenewToken()
    assert after(asking, TokenRenewed()).act == PrepareRequest()
    refused = after(asking, of(FailureKind.AUTH, "sign in again", status=401))
    assert isinstance(refused.act, FailCall)
    assert "sign in again" in refused.act.classification.message


def test_images_that_cannot_be_made_smaller_leave_no_trace_and_are_left_out() -> None:
    asking = after(sent(new()), of(FailureKind.IMAGE_TOO_LARGE, "max allowed size: 2000"))
    assert asking.act == CompareRequest()
    assert (asking.memory.image_side_px_max, asking.memory.amendments) == (2_000, {Amendment.SMALL_IMAGES})
    smaller = after(asking, RequestCompared(has_changed=True))
    assert (smaller.act, smaller.memory) == (PrepareRequest(), asking.memory)
    same = after(asking, RequestCompared(has_changed=False))
    assert same.act == PrepareRequest()
    assert same.memory == RunMemory(amendments=frozenset({Amendment.NO_IMAGES}))


def test_what_one_provider_refused_says_nothing_about_the_next() -> None:
    asking = after(sent(new(providers=2)), of(FailureKind.THINKING_SIGNATURE))
    assert asking.memory.amendments == {Amendment.NO_REASONING_REPLAY}
    fallen_back = after(sent(asking), of(FailureKind.MODEL_NOT_FOUND))
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
    RunMemory,
    amendments=st.frozensets(st.sampled_from(Amendment)),
    provider=st.integers(0, 3),
    compactions=st.integers(0, 4),
    window=st.sampled_from([0, 8_192, 200_000]),
)
rules = st.builds(
    AskingRules,
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
    given_rules: AskingRules,
    memory: RunMemory,
    history: AttemptHistory,
    request: RequestFacts,
    classification: Classification,
    sent_contents: RequestContents,
) -> None:
    prepared = after(begin(given_rules, memory, history), RequestPrepared(request))
    if prepared.act == ShortenConversation():
        prepared = after(prepared, NothingShortened())
    failed = RequestFailed(classification=classification, contents=sent_contents)

    decided = after(after(prepared, PermitGranted()), failed)

    assert not isinstance(decided.act, SendRequest | AcquirePermit), "a failed request is never sent as it is"
    if isinstance(decided.act, AskWindow):
        # What the wire made of the failure is decided on as it is, but for the window.
        assert decided.failure == failed
        decided = after(decided, WindowTold(4_096))
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

    def answer(self, asking: Asking) -> AskingEvent | None:
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
                return WindowTold(draw(st.none() | st.integers(1_024, 300_000)))
            case RenewToken():
                return TokenRenewed() if draw(st.booleans()) else self.failure()
            case CompareRequest():
                return RequestCompared(draw(st.booleans()))
            case _:
                assert isinstance(act, ENDS)
                return None

    def failure(self) -> RequestFailed:
        return RequestFailed(classification=self.data.draw(classifications), contents=self.data.draw(contents))

    def take_in(self, asking: Asking, after_it: Asking) -> None:
        for act in after_it.beside:
            if isinstance(act, RestKey):
                assert asking.facts is not None and asking.facts.has_other_keys, "there was nothing to go to"
                self.keys[asking.memory.provider] -= 1


@settings(max_examples=150, deadline=None)
@given(st.data(), rules, st.integers(0, 2))
def test_whatever_happens_the_call_ends_after_a_bounded_number_of_requests(
    data: st.DataObject, given_rules: AskingRules, keys: int
) -> None:
    world = World(data=data, keys=dict.fromkeys(range(given_rules.providers), keys))
    asking = begin(given_rules, RunMemory(), AttemptHistory())
    for _ in range(600):
        event = world.answer(asking)
        if event is None:
            break
        before, asking = asking, after(asking, event)
        world.take_in(before, asking)
    else:
        raise AssertionError(f"still asking: {world.acts}")
    # Of each provider, with each key: the attempts, as many again after the connection was renewed, and one for each
    # remedy. A conversation that is made shorter ends the call, so caps of the output are what compactions leave.
    a_provider = (keys + 1) * (2 * given_rules.attempts_max + len(Remedy)) + retry.COMPACTIONS_MAX
    assert world.acts["SendRequest"] <= given_rules.providers * a_provider


@settings(max_examples=150, deadline=None)
@given(st.data(), rules)
def test_a_parked_call_goes_on_with_all_it_knew(data: st.DataObject, given_rules: AskingRules) -> None:
    """By what is stored with the run and nothing else, on whichever worker."""
    world = World(data=data, keys=dict.fromkeys(range(given_rules.providers), 1))
    asking = begin(given_rules, RunMemory(), AttemptHistory())
    for _ in range(600):
        event = world.answer(asking)
        if event is None:
            break
        before, asking = asking, after(asking, event)
        world.take_in(before, asking)
    if not isinstance(asking.act, ParkRun):
        return
    recovery = json.loads(json.dumps(history_document(asking.history)))

    resumed = begin(given_rules, memory_from(memory_document(asking.memory)), history_from(recovery))

    assert (resumed.memory, resumed.history) == (asking.memory, asking.history)
    assert resumed.act == PrepareRequest()
    assert resumed.stayed_s == 0.0, "a run that was parked may stay for a moment again"
