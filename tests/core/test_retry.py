"""A failure, what was done already and what can be done now: in. One decision: out."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_worker.core.errors import FailureKind, ModelCallError
from hermes_worker.core.recovery.classify import Classification, RawError, classify, classify_translated
from hermes_worker.core.recovery.retry import (
    AttemptHistory,
    CapOutput,
    Compact,
    Decision,
    DropEncryptedReasoning,
    DropLongContextBeta,
    FallBack,
    GiveUp,
    GiveUpReason,
    LowerWindow,
    RefreshCredential,
    Remedy,
    RenewConnection,
    RotateCredential,
    ShrinkImages,
    Situation,
    StripGrammar,
    StripImages,
    StripSignature,
    TextifyToolImages,
    Wait,
    advance_history,
    build_document,
    compute_backoff_s,
    decide_remedy,
    explain_give_up,
    mark_stalled,
    parse_history,
)

NEW = AttemptHistory()
POOR = Situation()
"""A shell that can only wait."""
RICH = Situation(remedies=frozenset(Remedy))
ALONE = Situation(remedies=frozenset(Remedy) - {Remedy.FALL_BACK})
"""A shell that can do everything with the one provider it has."""


def of(kind: FailureKind, message: str = "", *, status: int | None = None) -> Classification:
    return classify_translated(ModelCallError(kind, message, status=status))


def situation(*remedies: Remedy) -> Situation:
    return Situation(remedies=frozenset(remedies))


REFUSED = GiveUp(reason=GiveUpReason.REFUSED)
SPENT = GiveUp(reason=GiveUpReason.RETRIES_EXHAUSTED)
TOO_LONG = GiveUp(reason=GiveUpReason.COMPACTION_DISABLED)

FIRST_FAILURE = [
    # kind, a shell that can only wait, a shell that can do everything
    ("auth", REFUSED, RefreshCredential()),
    ("auth_permanent", REFUSED, FallBack()),
    ("billing", REFUSED, RotateCredential()),
    ("rate_limit", Wait(seconds=2), Wait(seconds=2)),
    ("upstream_rate_limit", Wait(seconds=2), FallBack()),
    ("overloaded", Wait(seconds=2), Wait(seconds=2)),
    ("server_error", Wait(seconds=2), Wait(seconds=2)),
    ("timeout", Wait(seconds=2), Wait(seconds=2)),
    ("unreachable", Wait(seconds=2), Wait(seconds=2)),
    ("ssl_cert_verification", REFUSED, FallBack()),
    ("context_overflow", TOO_LONG, Compact()),
    ("payload_too_large", TOO_LONG, Compact()),
    ("long_context_tier", TOO_LONG, Compact()),
    ("image_too_large", Wait(seconds=2), ShrinkImages(side_px_max=8_000)),
    ("model_not_found", REFUSED, FallBack()),
    ("provider_policy_blocked", REFUSED, FallBack()),
    ("content_policy_blocked", GiveUp(reason=GiveUpReason.CONTENT_POLICY_BLOCKED), FallBack()),
    ("format_error", REFUSED, FallBack()),
    ("invalid_encrypted_content", Wait(seconds=2), DropEncryptedReasoning()),
    ("multimodal_tool_content_unsupported", Wait(seconds=2), TextifyToolImages(is_lasting=True)),
    ("thinking_signature", Wait(seconds=2), StripSignature()),
    ("oauth_long_context_beta_forbidden", Wait(seconds=2), DropLongContextBeta()),
    ("llama_cpp_grammar_pattern", Wait(seconds=2), StripGrammar()),
    ("interrupted", GiveUp(reason=GiveUpReason.INTERRUPTED), GiveUp(reason=GiveUpReason.INTERRUPTED)),
    ("configuration", GiveUp(reason=GiveUpReason.CONFIGURATION), FallBack()),
    ("unknown", Wait(seconds=2), Wait(seconds=2)),
]


@pytest.mark.parametrize(("kind", "poor", "rich"), FIRST_FAILURE)
def test_the_first_failure_of_every_kind(kind: FailureKind, poor: Decision, rich: Decision) -> None:
    assert decide_remedy(of(FailureKind(kind)), NEW, POOR) == poor
    assert decide_remedy(of(FailureKind(kind)), NEW, RICH) == rich


def test_the_table_above_misses_no_kind() -> None:
    assert {kind for kind, *_ in FIRST_FAILURE} == {kind.value for kind in FailureKind}


def test_three_attempts_have_two_waits_between_them() -> None:
    history, answers = NEW, []
    for _ in range(3):
        answers.append(decide_remedy(of(FailureKind.SERVER_ERROR), history, POOR))
        history = advance_history(history, answers[-1], of(FailureKind.SERVER_ERROR))
    assert answers == [Wait(seconds=2), Wait(seconds=4), SPENT]


@pytest.mark.parametrize("kind", [FailureKind.RATE_LIMIT, FailureKind.UPSTREAM_RATE_LIMIT, FailureKind.OVERLOADED])
def test_a_wait_the_server_asked_for_is_kept_and_spread(kind: FailureKind) -> None:
    told = replace(of(kind), retry_after_s=100.0)
    assert decide_remedy(told, NEW, POOR) == Wait(seconds=100.0)
    assert decide_remedy(told, NEW, replace(POOR, jitter=0.5)) == Wait(seconds=105.0)
    assert decide_remedy(replace(told, retry_after_s=0.0), NEW, POOR) == Wait(seconds=2.0)


def test_retry_after_of_other_failures_is_ignored() -> None:
    assert decide_remedy(replace(of(FailureKind.TIMEOUT), retry_after_s=100.0), NEW, POOR) == Wait(seconds=2)


@pytest.mark.parametrize(
    ("attempt", "expected"),
    [(-1, 2), (0, 2), (1, 2), (2, 4), (3, 8), (5, 32), (6, 60), (10, 60), (64, 60), (10**6, 60)],
)
def test_backoff_doubles_up_to_its_cap(attempt: int, expected: float) -> None:
    assert compute_backoff_s(attempt) == expected


def test_backoff_of_an_odd_base_is_the_cap() -> None:
    assert compute_backoff_s(1, base_s=0) == 60
    assert compute_backoff_s(1, base_s=-1, cap_s=7) == 7


@given(st.integers(1, 100), st.floats(0, 1, exclude_max=True))
def test_jitter_adds_less_than_half(attempt: int, jitter: float) -> None:
    assert compute_backoff_s(attempt) <= compute_backoff_s(attempt, jitter=jitter) <= 1.5 * compute_backoff_s(attempt)


def test_a_rate_limited_credential_gets_a_second_chance_then_is_rotated() -> None:
    limited, pool = of(FailureKind.RATE_LIMIT), situation(Remedy.ROTATE_CREDENTIAL, Remedy.FALL_BACK)
    first = decide_remedy(limited, NEW, pool)
    history = advance_history(NEW, first, limited)
    second = decide_remedy(limited, history, pool)
    assert (first, second) == (Wait(seconds=2), RotateCredential())
    # The next credential has its own second chance, and the last one leaves for the next provider.
    rotated = advance_history(history, second, limited)
    assert decide_remedy(limited, rotated, pool) == Wait(seconds=4)
    assert decide_remedy(limited, rotated, situation(Remedy.FALL_BACK)) == FallBack()


def test_a_spent_quota_is_rotated_at_once() -> None:
    limited = of(FailureKind.RATE_LIMIT, "Usage limit reached, resets at noon")
    assert decide_remedy(limited, NEW, situation(Remedy.ROTATE_CREDENTIAL)) == RotateCredential()


def test_another_credential_cannot_help_against_an_upstream_limit() -> None:
    assert decide_remedy(of(FailureKind.UPSTREAM_RATE_LIMIT), NEW, situation(Remedy.ROTATE_CREDENTIAL)) == Wait(
        seconds=2
    )


@pytest.mark.parametrize("kind", [FailureKind.TIMEOUT, FailureKind.OVERLOADED, FailureKind.UNREACHABLE])
def test_transport_trouble_falls_back_at_the_second_failure(kind: FailureKind) -> None:
    chain = situation(Remedy.FALL_BACK)
    assert decide_remedy(of(kind), NEW, chain) == Wait(seconds=2)
    assert decide_remedy(of(kind), replace(NEW, retries=1), chain) == FallBack()


def test_server_errors_fall_back_only_when_retries_are_used_up() -> None:
    chain = situation(Remedy.FALL_BACK)
    assert decide_remedy(of(FailureKind.SERVER_ERROR), replace(NEW, retries=1), chain) == Wait(seconds=4)
    assert decide_remedy(of(FailureKind.SERVER_ERROR), replace(NEW, retries=2), chain) == FallBack()


def test_a_refused_credential_is_refreshed_then_rotated_then_left() -> None:
    refused, history, answers = of(FailureKind.AUTH, status=401), NEW, []
    for remedies in ([*Remedy], [*Remedy], [Remedy.REFRESH_CREDENTIAL, Remedy.FALL_BACK], [Remedy.FALL_BACK]):
        answers.append(decide_remedy(refused, history, situation(*remedies)))
        history = advance_history(history, answers[-1], refused)
    assert answers == [RefreshCredential(), RotateCredential(), RefreshCredential(), FallBack()]


def test_a_forbidden_request_tries_no_other_credential() -> None:
    assert decide_remedy(of(FailureKind.AUTH, status=403), NEW, RICH) == FallBack()


def test_a_model_without_eyes_is_sent_no_images_whatever_the_kind() -> None:
    blind = classify(RawError(status=404, message="No endpoints found that support image input"))
    assert decide_remedy(blind, NEW, RICH) == StripImages()
    assert decide_remedy(blind, advance_history(NEW, StripImages(), blind), POOR) == REFUSED


@pytest.mark.parametrize(
    ("kind", "then"),
    [
        (FailureKind.IMAGE_TOO_LARGE, StripImages()),
        (FailureKind.MULTIMODAL_TOOL_CONTENT_UNSUPPORTED, Wait(seconds=2)),
        (FailureKind.THINKING_SIGNATURE, Wait(seconds=2)),
        (FailureKind.OAUTH_LONG_CONTEXT_BETA_FORBIDDEN, Wait(seconds=2)),
        (FailureKind.INVALID_ENCRYPTED_CONTENT, Wait(seconds=2)),
        (FailureKind.LLAMA_CPP_GRAMMAR_PATTERN, Wait(seconds=2)),
    ],
)
def test_a_particular_remedy_is_tried_once_and_costs_no_retry(kind: FailureKind, then: Decision) -> None:
    history = advance_history(NEW, decide_remedy(of(kind), NEW, RICH), of(kind))
    assert history.retries == 0
    assert decide_remedy(of(kind), history, RICH) == then


def test_images_that_cannot_be_shrunk_are_left_out() -> None:
    failure = of(FailureKind.IMAGE_TOO_LARGE)
    history = advance_history(NEW, decide_remedy(failure, NEW, RICH), failure)
    assert decide_remedy(failure, history, RICH) == StripImages()
    assert decide_remedy(failure, advance_history(history, StripImages(), failure), RICH) == Wait(seconds=2)


def test_images_are_shrunk_to_the_size_the_provider_names() -> None:
    told = of(FailureKind.IMAGE_TOO_LARGE, "image dimensions exceed max allowed size: 2000 pixels")
    assert decide_remedy(told, NEW, RICH) == ShrinkImages(side_px_max=2_000)


OVERFLOW = of(FailureKind.CONTEXT_OVERFLOW)


def test_a_reported_window_is_taken_over_and_a_larger_one_is_not() -> None:
    told = of(FailureKind.CONTEXT_OVERFLOW, "maximum context length is 128000 tokens")
    assert decide_remedy(told, NEW, RICH) == LowerWindow(tokens=128_000, is_lasting=True)
    assert decide_remedy(told, NEW, replace(RICH, window=128_000)) == Compact()


def test_errors_compact_at_most_three_times_in_a_turn() -> None:
    history = NEW
    for _ in range(3):
        assert decide_remedy(OVERFLOW, history, RICH) == Compact()
        history = advance_history(history, Compact(), OVERFLOW)
    assert decide_remedy(OVERFLOW, history, ALONE) == GiveUp(reason=GiveUpReason.COMPACTION_EXHAUSTED)


def test_a_compaction_without_progress_ends_an_overflow() -> None:
    history = mark_stalled(advance_history(NEW, Compact(), OVERFLOW))
    assert decide_remedy(OVERFLOW, history, ALONE) == GiveUp(reason=GiveUpReason.COMPACTION_EXHAUSTED)


@pytest.mark.parametrize("kind", [FailureKind.CONTEXT_OVERFLOW, FailureKind.PAYLOAD_TOO_LARGE])
def test_what_cannot_be_compacted_goes_down_the_chain(kind: FailureKind) -> None:
    """Because compaction is off, made no progress, or was done as often as it may be; another window may be larger."""
    chain = situation(Remedy.FALL_BACK)
    compacting = situation(Remedy.FALL_BACK, Remedy.COMPACT)
    assert decide_remedy(of(kind), NEW, chain) == FallBack()
    assert decide_remedy(of(kind), mark_stalled(NEW), compacting) == FallBack()
    assert decide_remedy(of(kind), replace(NEW, compactions=3), compacting) == FallBack()
    assert decide_remedy(of(kind), NEW, compacting) == Compact()


@pytest.mark.parametrize("kind", [FailureKind.CONTEXT_OVERFLOW, FailureKind.PAYLOAD_TOO_LARGE])
def test_what_was_refused_bounds_the_window_from_above(kind: FailureKind) -> None:
    """Nothing is known of the window, so 200,000 tokens were assumed; what was sent is more than fits."""
    refused = replace(RICH, request_tokens=28_000)
    assert decide_remedy(of(kind), NEW, refused) == LowerWindow(tokens=28_000, is_lasting=False)
    with_answer = replace(refused, output_tokens_max=4_000)
    assert decide_remedy(of(kind), NEW, with_answer) == LowerWindow(tokens=32_000, is_lasting=False)
    assert decide_remedy(of(kind), NEW, replace(refused, window=28_000)) == Compact(), "that much was known"
    assert decide_remedy(of(kind), NEW, replace(RICH, request_tokens=10)) == LowerWindow(tokens=1_024, is_lasting=False)


def test_a_window_that_is_told_is_no_larger_than_what_was_refused() -> None:
    """28,000 tokens by our estimate were more than 32,768 by the provider's count."""
    told = of(FailureKind.CONTEXT_OVERFLOW, "maximum context length is 32768 tokens")
    assert decide_remedy(told, NEW, replace(RICH, request_tokens=28_000)) == LowerWindow(
        tokens=28_000, is_lasting=False
    )
    assert decide_remedy(told, NEW, replace(RICH, request_tokens=90_000)) == LowerWindow(tokens=32_768, is_lasting=True)


def test_a_payload_that_cannot_be_compacted_loses_its_tool_images_for_one_request() -> None:
    payload = of(FailureKind.PAYLOAD_TOO_LARGE)
    history = mark_stalled(advance_history(NEW, Compact(), payload))
    assert decide_remedy(payload, history, RICH) == TextifyToolImages(is_lasting=False)
    history = advance_history(history, TextifyToolImages(is_lasting=False), payload)
    assert decide_remedy(payload, history, RICH) == Compact()
    assert decide_remedy(payload, mark_stalled(history), ALONE) == GiveUp(reason=GiveUpReason.COMPACTION_EXHAUSTED)


def test_the_tier_of_an_account_lowers_the_window_for_now() -> None:
    tier = of(FailureKind.LONG_CONTEXT_TIER)
    assert decide_remedy(tier, NEW, replace(RICH, window=1_000_000)) == LowerWindow(tokens=200_000, is_lasting=False)
    assert decide_remedy(tier, mark_stalled(NEW), RICH) == Wait(seconds=2)
    assert decide_remedy(tier, replace(NEW, compactions=3), RICH) == Wait(seconds=2)


CAPPED = of(FailureKind.CONTEXT_OVERFLOW, "Range of max_tokens should be [1, 65536]")


@pytest.mark.parametrize(
    ("request_tokens", "tokens"), [(0, 65_536 - 64), (190_000, 10_000 - 64), (300_000, 65_536 - 64), (199_990, 1)]
)
def test_an_output_cap_takes_the_smaller_room_with_a_margin(request_tokens: int, tokens: int) -> None:
    assert decide_remedy(CAPPED, NEW, replace(RICH, request_tokens=request_tokens)) == CapOutput(tokens=tokens)


def test_an_output_cap_is_never_compacted() -> None:
    unnumbered = of(FailureKind.CONTEXT_OVERFLOW, "max_tokens must be less than or equal to 8192")
    ends = GiveUp(reason=GiveUpReason.OUTPUT_CAP)
    assert decide_remedy(unnumbered, NEW, ALONE) == ends
    assert decide_remedy(unnumbered, NEW, RICH) == FallBack(), "another model may write more"
    assert decide_remedy(CAPPED, NEW, POOR) == ends
    assert decide_remedy(CAPPED, replace(NEW, compactions=3), ALONE) == ends


def test_a_connection_is_renewed_once_when_retries_are_used_up() -> None:
    spent = replace(NEW, retries=2)
    own = situation(Remedy.RENEW_CONNECTION)
    assert decide_remedy(of(FailureKind.TIMEOUT), spent, own) == RenewConnection(seconds=6.0)
    renewed = advance_history(spent, RenewConnection(seconds=6.0), of(FailureKind.TIMEOUT))
    assert decide_remedy(of(FailureKind.TIMEOUT), renewed, own) == Wait(seconds=2)
    assert decide_remedy(of(FailureKind.TIMEOUT), replace(renewed, retries=2), own) == SPENT
    assert decide_remedy(of(FailureKind.SERVER_ERROR), spent, own) == SPENT


def test_a_fallback_starts_counting_anew() -> None:
    history = AttemptHistory(
        retries=2,
        compactions=3,
        was_rate_limited=True,
        used=frozenset({Remedy.REFRESH_CREDENTIAL, Remedy.RENEW_CONNECTION, Remedy.SHRINK_IMAGES}),
    )
    after = advance_history(history, FallBack(), OVERFLOW)
    assert after == AttemptHistory(used=frozenset({Remedy.SHRINK_IMAGES}))


@pytest.mark.parametrize("reason", list(GiveUpReason))
def test_every_end_is_explained(reason: GiveUpReason) -> None:
    text = explain_give_up(GiveUp(reason=reason), replace(OVERFLOW, message="too bad"))
    assert text.endswith(". The provider said: too bad")
    assert explain_give_up(GiveUp(reason=reason), replace(OVERFLOW, message="")).endswith(".")


histories = st.builds(
    AttemptHistory,
    retries=st.integers(0, 5),
    compactions=st.integers(0, 5),
    used=st.frozensets(st.sampled_from(Remedy)),
    was_rate_limited=st.booleans(),
    is_compaction_stalled=st.booleans(),
)


@given(histories)
def test_a_history_survives_being_parked(history: AttemptHistory) -> None:
    assert parse_history(json.loads(json.dumps(build_document(history)))) == history


def test_a_history_of_a_newer_worker_is_read_as_far_as_known() -> None:
    assert parse_history({"used": ["teleport", "compact"], "colour": 1}) == AttemptHistory(
        used=frozenset({Remedy.COMPACT})
    )


@pytest.mark.parametrize("document", [{"retries": "2"}, {"retries": True}, {"compactions": -1}, {"used": "compact"}])
def test_a_history_that_makes_no_sense_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must be"):
        parse_history(document)


failures = st.builds(
    lambda error, message, retry_after_s: replace(
        classify(RawError(status=error, message=message)), retry_after_s=retry_after_s
    ),
    st.sampled_from([None, 400, 401, 402, 403, 404, 413, 429, 500, 503, 529]),
    st.sampled_from(
        [
            "x",
            "rate limit",
            "prompt is too long: 210000 > 150000",
            "Range of max_tokens should be [1, 65536]",
            "image exceeds 5 MB maximum",
            "thinking signature",
            "does not support images",
            "extra usage long context",
            "timed out",
        ]
    ),
    st.none() | st.floats(0, 600),
)


@given(failures, histories, st.frozensets(st.sampled_from(Remedy)))
def test_a_decision_never_asks_for_a_remedy_that_is_not_there(
    failure: Classification, history: AttemptHistory, remedies: frozenset[Remedy]
) -> None:
    needed = {
        "refresh_credential": Remedy.REFRESH_CREDENTIAL,
        "rotate_credential": Remedy.ROTATE_CREDENTIAL,
        "shrink_images": Remedy.SHRINK_IMAGES,
        "strip_images": Remedy.STRIP_IMAGES,
        "textify_tool_images": Remedy.TEXTIFY_TOOL_IMAGES,
        "strip_signature": Remedy.STRIP_SIGNATURES,
        "drop_encrypted_reasoning": Remedy.DROP_ENCRYPTED_REASONING,
        "drop_long_context_beta": Remedy.DROP_LONG_CONTEXT_BETA,
        "strip_grammar": Remedy.STRIP_GRAMMAR,
        "compact": Remedy.COMPACT,
        "lower_window": Remedy.COMPACT,
        "cap_output": Remedy.CAP_OUTPUT,
        "renew_connection": Remedy.RENEW_CONNECTION,
        "fall_back": Remedy.FALL_BACK,
    }
    decision = decide_remedy(failure, history, Situation(remedies=remedies))
    assert decision.kind in ("wait", "give_up") or needed[decision.kind] in remedies


@settings(max_examples=200)
@given(st.data(), st.frozensets(st.sampled_from(Remedy)), st.integers(0, 3), st.integers(0, 3))
def test_whatever_fails_the_recovery_ends(
    data: st.DataObject, remedies: frozenset[Remedy], credentials: int, providers: int
) -> None:
    """Only a pool and a chain can run dry by themselves; everything else is bounded by the history."""
    history = NEW
    for _ in range(400):
        spent = {Remedy.ROTATE_CREDENTIAL} if credentials == 0 else set()
        spent |= {Remedy.FALL_BACK} if providers == 0 else set()
        failure = data.draw(failures)
        decision = decide_remedy(failure, history, Situation(remedies=remedies - spent))
        if isinstance(decision, GiveUp):
            return
        credentials -= isinstance(decision, RotateCredential)
        providers -= isinstance(decision, FallBack)
        history = advance_history(history, decision, failure)
        if isinstance(decision, Compact) and data.draw(st.booleans()):
            history = mark_stalled(history)
    raise AssertionError("still recovering after 400 decisions")
