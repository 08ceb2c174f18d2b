"""Error in, meaning out. The original vectors are those computed with Hermes Agent 0.19.0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_worker.core.errors import FailureKind, ModelCallError
from hermes_worker.core.recovery.classify import (
    OUTCOMES,
    RETRY_AFTER_MAX_S,
    Classification,
    RawError,
    RequestSize,
    build_raw_error,
    classify,
    classify_translated,
    is_output_cap_error,
    is_reasoning_model,
    parse_available_output_tokens,
    parse_context_limit,
    parse_retry_after,
    parse_wait,
)

LARGE = RequestSize(tokens=150_000, window=200_000)


def flags(found: Classification) -> str:
    """R retryable, C compress, K rotate the credential (key), F fall back: the notation of the original."""
    held = {
        "R": found.is_retryable,
        "C": found.should_compress,
        "K": found.should_rotate,
        "F": found.should_fall_back,
    }
    return "".join(letter for letter, is_set in held.items() if is_set)


REFERENCE = [
    (401, "Unauthorized", "auth", "KF"),
    (403, "Forbidden", "auth", "F"),
    (403, "Key limit exceeded", "billing", "KF"),
    (402, "Payment Required", "billing", "KF"),
    (402, "Usage limit reached, try again in 5 minutes", "rate_limit", "RKF"),
    (402, "quota exceeded", "billing", "KF"),
    (404, "Not Found", "unknown", "F"),  # the original retries it (R)
    (404, "model_not_found", "model_not_found", "F"),
    (404, "No endpoints available matching your guardrail restrictions", "provider_policy_blocked", ""),
    (413, "anything", "payload_too_large", "RC"),
    (429, "Too Many Requests", "rate_limit", "RKF"),
    (429, "service is temporarily overloaded", "overloaded", "R"),
    (429, "Extra usage is required for long context requests", "long_context_tier", "RC"),
    (400, "Bad", "format_error", "F"),
    (400, "max_tokens too large", "context_overflow", "RC"),
    (400, "Unsupported parameter: max_tokens", "format_error", "F"),
    (400, "thinking signature invalid", "thinking_signature", "R"),
    (400, "image exceeds 5 MB maximum", "image_too_large", "R"),
    (400, "tool message content must be a string", "multimodal_tool_content_unsupported", "R"),
    (400, "insufficient credits", "billing", "KF"),
    (400, "rate limit hit", "rate_limit", "RKF"),
    (400, "violates usage policies", "content_policy_blocked", "F"),
    (500, "unknown parameter foo", "format_error", "F"),
    (500, "context length exceeded", "context_overflow", "RC"),
    (500, "plain", "server_error", "R"),
    (502, "plain", "server_error", "R"),
    (504, "plain", "server_error", "R"),
    (503, "plain", "overloaded", "R"),
    (529, "plain", "overloaded", "R"),
    (408, "plain", "timeout", "R"),
    (418, "plain", "format_error", "F"),
    (None, "invalid api key", "auth", "KF"),
    (None, "quota exceeded", "billing", "KF"),
    (None, "quota exceeded, retry later", "rate_limit", "RKF"),
    (None, "prompt is too long", "context_overflow", "RC"),
    (None, "CERTIFICATE_VERIFY_FAILED", "ssl_cert_verification", ""),
    (None, "ssl alert bad record mac", "timeout", "R"),
    (None, "returned an empty response", "server_error", "R"),
    (None, "weird", "unknown", "R"),
]


@pytest.mark.parametrize(("status", "text", "kind", "expected"), REFERENCE)
def test_reference_vectors_of_status_and_text(status: int | None, text: str, kind: str, expected: str) -> None:
    found = classify(RawError(status=status, message=text))
    assert (found.kind, flags(found)) == (kind, expected)


@pytest.mark.parametrize(
    ("error", "size", "kind", "expected"),
    [
        (RawError(status=400, message="Error"), RequestSize(tokens=90_000), "context_overflow", "RC"),
        (
            RawError(message="server disconnected", class_name="RemoteProtocolError"),
            LARGE,
            "context_overflow",
            "RC",
        ),
        (RawError(message="server disconnected"), RequestSize(tokens=1_000), "timeout", "R"),
        (RawError(message="x", class_name="RateLimitError"), RequestSize(), "rate_limit", "RKF"),
        (
            RawError(
                status=429,
                provider="openrouter",
                message="Error code: 429",
                body={"error": {"message": "Provider returned error", "metadata": {"provider_name": "DeepSeek"}}},
            ),
            RequestSize(),
            "upstream_rate_limit",
            "RF",
        ),
    ],
)
def test_reference_vectors_that_need_more_than_text(
    error: RawError, size: RequestSize, kind: str, expected: str
) -> None:
    found = classify(error, size)
    assert (found.kind, flags(found)) == (kind, expected)


PATTERN_FAMILIES = [
    (400, "Trusted access for cyber is required", "content_policy_blocked", "F"),
    (None, "new_sensitive", "content_policy_blocked", "F"),
    (400, "thinking blocks in the latest message cannot be modified", "thinking_signature", "R"),
    (400, "The long context beta is not yet available", "oauth_long_context_beta_forbidden", "R"),
    (400, "error parsing grammar: unknown escape", "llama_cpp_grammar_pattern", "R"),
    (400, "Unable to generate parser for this template", "llama_cpp_grammar_pattern", "R"),
    (None, "You do not have an active Grok subscription", "auth", "F"),
    (403, "monthly spending limit reached", "billing", "KF"),
    (404, "not available on the free tier", "billing", "KF"),
    (404, "No endpoints found that support tool use", "model_not_found", "F"),
    (429, "Rate limit reached for requests", "rate_limit", "RKF"),
    (500, "The model returned an empty response", "server_error", "R"),
    (503, "input is too long", "context_overflow", "RC"),
    (529, "empty response stream", "server_error", "R"),
    (422, "plain", "format_error", "F"),
    (599, "plain", "server_error", "R"),
    (400, "上下文长度", "context_overflow", "RC"),
    (400, "the encrypted content for item rs_1 could not be verified", "invalid_encrypted_content", "R"),
    (400, "requests per minute", "rate_limit", "RKF"),
    (None, "error code: 413", "payload_too_large", "RC"),
    (None, "image_too_large", "image_too_large", "R"),
    (None, "expected string, got list", "multimodal_tool_content_unsupported", "R"),
    (None, "usage limit reached", "billing", "KF"),
    (None, "server is overloaded", "overloaded", "R"),
    (None, "out of funds", "billing", "KF"),
    (None, "too many concurrent requests", "rate_limit", "RKF"),
    (None, "access denied", "auth", "KF"),
    (None, "no endpoints found matching your data policy", "provider_policy_blocked", ""),
    (None, "no such model", "model_not_found", "F"),
    (None, "deadline exceeded", "timeout", "R"),
]


@pytest.mark.parametrize(("status", "text", "kind", "expected"), PATTERN_FAMILIES)
def test_every_family_leads_to_its_kind(status: int | None, text: str, kind: str, expected: str) -> None:
    found = classify(RawError(status=status, message=text))
    assert (found.kind, flags(found)) == (kind, expected)


@pytest.mark.parametrize(
    ("code", "kind", "expected"),
    [
        # The original forgets the fallback for the first three.
        ("rate_limit_exceeded", "rate_limit", "RKF"),
        ("RESOURCE_EXHAUSTED", "rate_limit", "RKF"),
        ("throttled", "rate_limit", "RKF"),
        ("insufficient_quota", "billing", "KF"),
        ("billing_not_active", "billing", "KF"),
        ("personal-team-blocked:spending-limit", "billing", "KF"),
        ("model_not_available", "model_not_found", "F"),
        ("max_tokens_exceeded", "context_overflow", "RC"),
        ("invalid_encrypted_content", "invalid_encrypted_content", "R"),
        ("overloaded_error", "overloaded", "R"),
        ("api_error", "server_error", "R"),
        ("authentication_error", "auth", "KF"),
        ("permission_error", "auth", "F"),
        ("request_too_large", "payload_too_large", "RC"),
        ("something_else", "unknown", "R"),
    ],
)
@pytest.mark.parametrize("status", [None, 200])
def test_the_code_decides_when_there_is_no_error_status(
    status: int | None, code: str, kind: str, expected: str
) -> None:
    """An error inside a stream comes under status 200."""
    found = classify(RawError(status=status, message="x", body={"error": {"code": code, "message": "x"}}))
    assert (found.kind, flags(found)) == (kind, expected)


@pytest.mark.parametrize(
    "body",
    [
        {
            "error": {
                "message": "Provider returned error",
                "metadata": {"raw": '{"error":{"message":"CONTEXT LENGTH"}}'},
            }
        },
        {"message": "Provider returned error", "metadata": {"raw": '{"error":{"message":"context length"}}'}},
        {"error": {"message": "context length"}},
        {"message": "context length"},
        {"error": "context length"},
    ],
)
def test_text_is_found_wherever_a_body_keeps_it(body: Mapping[str, object]) -> None:
    assert classify(RawError(status=400, message="Error code: 400", body=body)).kind == "context_overflow"


def test_a_code_inside_json_text_inside_a_message_is_found() -> None:
    body = {"error": {"message": '{"error":{"code":"unknown_parameter","message":"nope"}}', "code": 400}}
    assert classify(RawError(status=500, body=body)).kind == "format_error"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"error": None},
        {"error": []},
        {"error": {"message": None, "metadata": 7}},
        {"error": {"metadata": {"raw": "{not json"}}},
        {"error": {"metadata": {"raw": "[1]"}}},
        {"error": {"message": "{" * 5_000}},
    ],
)
def test_odd_bodies_are_survived(body: Mapping[str, object]) -> None:
    assert classify(RawError(message="x", body=body)).kind == "unknown"


def test_a_bare_400_counts_as_overflow_by_share_of_a_big_window_only() -> None:
    bare = RawError(status=400, message="Error")
    assert classify(bare, RequestSize(tokens=100_000, window=1_000_000, messages=500)).kind == "format_error"
    assert classify(bare, RequestSize(tokens=450_000, window=1_000_000)).kind == "context_overflow"
    assert classify(bare, RequestSize(tokens=10, window=200_000, messages=81)).kind == "context_overflow"


def test_a_disconnect_of_a_reasoning_model_is_a_timeout_however_long_the_history() -> None:
    dropped = RawError(message="server disconnected", model="openai/o3-mini")
    assert classify(dropped, LARGE).kind == "timeout"
    assert classify(replace(dropped, model="olmo-1"), LARGE).kind == "context_overflow"


@pytest.mark.parametrize(
    ("cause", "size", "kind"),
    [
        (
            "ConnectError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed",
            RequestSize(),
            "ssl_cert_verification",
        ),
        ("ConnectError: [Errno 111] Connection refused", RequestSize(), "unreachable"),
        ("ConnectTimeout: ", RequestSize(), "unreachable"),
        ("RemoteProtocolError: Server disconnected without sending a response.", RequestSize(), "timeout"),
        ("RemoteProtocolError: Server disconnected without sending a response.", LARGE, "context_overflow"),
        ("SSLError: [SSL: BAD_RECORD_MAC]", LARGE, "timeout"),
        ("ReadError: ", LARGE, "timeout"),
    ],
)
def test_the_cause_behind_a_connection_error_is_read(cause: str, size: RequestSize, kind: str) -> None:
    error = RawError(message="Connection error.", class_name="APIConnectionError", causes=(cause,))
    assert classify(error, size).kind == kind


def test_unreachable_needs_a_transport_error_behind_the_words() -> None:
    told = RawError(message="the tool said: connection refused")
    assert classify(told).kind == "unknown"
    assert classify(replace(told, is_os_error=True)).kind == "unreachable"


def test_our_own_bug_is_not_retried_but_an_odd_reply_is() -> None:
    assert flags(classify(RawError(message="bad literal", class_name="ValueError"))) == "F"
    odd = RawError(message="'NoneType' object is not iterable", class_name="TypeError")
    assert flags(classify(odd)) == "R"
    assert flags(classify(RawError(message="Expecting value", class_name="JSONDecodeError"))) == "R"


def test_max_tokens_means_size_only_beside_a_word_of_size() -> None:
    assert classify(RawError(status=400, message="max_tokens: expected an integer")).kind == "format_error"
    assert classify(RawError(status=400, message="max_tokens exceeds 4096")).kind == "context_overflow"


def test_a_model_without_eyes_is_noticed_whatever_the_kind() -> None:
    blind = "This model does not support image input"
    assert classify(RawError(status=400, message=blind)).rejects_images
    assert classify(RawError(status=404, message="No endpoints found that support image input")).rejects_images
    assert classify(RawError(message=blind)).rejects_images
    assert not classify(RawError(status=500, message=blind)).rejects_images


def test_the_message_kept_is_the_provider_s_and_short() -> None:
    found = classify(RawError(status=400, message="Error code: 400 - {...}", body={"error": {"message": "y" * 900}}))
    assert found.message == "y" * 500


@given(
    message=st.text(max_size=60),
    status=st.none() | st.integers(100, 700),
    class_name=st.sampled_from(["", "ReadTimeout", "ValueError", "RateLimitError"]),
    body=st.none() | st.dictionaries(st.sampled_from(["error", "message", "code", "type"]), st.text() | st.none()),
)
def test_classification_is_total(message: str, status: int | None, class_name: str, body: dict[str, object]) -> None:
    found = classify(RawError(message=message, status=status, class_name=class_name, body=body))
    assert isinstance(found.kind, FailureKind)


@pytest.mark.parametrize("kind", list(FailureKind))
def test_every_kind_has_usual_flags(kind: FailureKind) -> None:
    assert classify_translated(ModelCallError(kind, "x")).kind is kind


def test_a_translated_error_keeps_what_the_table_and_the_message_say() -> None:
    denied = classify_translated(ModelCallError(FailureKind.AUTH, "Forbidden", status=403))
    assert flags(denied) == "F"
    capped = classify_translated(
        ModelCallError(FailureKind.CONTEXT_OVERFLOW, "Range of max_tokens should be [1, 65536]")
    )
    assert (capped.is_output_cap, capped.output_tokens_available, flags(capped)) == (True, 65_536, "R")
    waiting = classify_translated(ModelCallError(FailureKind.RATE_LIMIT, "slow down", retry_after_s=7.0))
    assert waiting.retry_after_s == 7.0


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("openai/o3-mini", True),
        ("o1", True),
        ("olmo-1", False),
        ("llama-4-70b-o1-preview", False),
        ("qwen/qwen3-235b-a22b-thinking", True),
        ("some-other-qwen3", False),
        ("anthropic/claude-opus-4-6", True),
        ("gpt-4o", False),
        ("", False),
    ],
)
def test_reasoning_models_are_known_by_the_start_of_their_name(model: str, expected: bool) -> None:
    assert is_reasoning_model(model) is expected


ANTHROPIC_CAP = "max_tokens: 32768 > context_window: 200000 - input_tokens: 190000 = available_tokens: 10000"
VLLM_CAP = (
    "This model's maximum context length is 32768 tokens. However, you requested 32768 output tokens and your prompt "
    "contains at least 1000 input tokens, for a total of at least 33768 tokens."
)
OPENROUTER_CAP = (
    "This endpoint's maximum context length is 65536 tokens. However, you requested about 70000 tokens "
    "(1000 of text input, 500 of tool input, 68500 in the output)."
)
LM_STUDIO_CAP = (
    "This model's maximum context length is 65536 tokens. However, you requested 65536 output tokens and your prompt "
    "contains 77409 characters"
)


@pytest.mark.parametrize(
    ("message", "available", "is_cap"),
    [
        (ANTHROPIC_CAP, 10_000, True),
        ("Range of max_tokens should be [1, 65536]", 65_536, True),
        (VLLM_CAP, 31_768, False),
        (OPENROUTER_CAP, 64_036, False),
        (LM_STUDIO_CAP, 39_733, False),
        ("prompt is too long: 210000 > 200000", None, False),
        ("max_tokens must be less than or equal to 8192", None, True),
        ("max_completion_tokens should be <= 4096", None, True),
        ("max_tokens too large", None, False),
        ("Please reduce the length; max_tokens must be smaller", None, False),
        (VLLM_CAP.replace("1000", "40000"), None, False),
        (
            "max_tokens is too large: 200000. This model supports at most 128000 completion tokens, whereas you "
            "provided 200000.",
            128_000,
            False,
        ),
        (
            "max_tokens: 300000 > 128000, which is the maximum allowed number of output tokens for claude-x",
            128_000,
            True,
        ),
        ("", None, False),
    ],
)
def test_output_caps_are_read_from_messages(message: str, available: int | None, is_cap: bool) -> None:
    assert parse_available_output_tokens(message) == available
    assert is_output_cap_error(message) is is_cap


@pytest.mark.parametrize(
    ("message", "limit"),
    [
        ("This model's maximum context length is 32768 tokens", 32_768),
        ("context_length_exceeded: maximum context length is 131,072 tokens", 131_072),
        ("Maximum context size 32768 exceeded", 32_768),
        ("the max_model_len (32768)", 32_768),
        ("exceeds the maximum model length 131072", 131_072),
        ("prompt is too long: 210000 > 200000", 200_000),
        ("prompt is too long: 250000 tokens > 200000 maximum", 200_000),
        (VLLM_CAP, 32_768),
        ("context window exceeds limit (2013)", None),
        ("maximum context length is 512", None),
        ("maximum context length is 99999999999", None),
        ("maximum context length is " + "9" * 5_000, None),
        ("no numbers here", None),
    ],
)
def test_context_limits_are_read_from_messages(message: str, limit: int | None) -> None:
    assert parse_context_limit(message) == limit


def test_an_output_cap_is_never_answered_by_compressing() -> None:
    found = classify(RawError(status=400, message=ANTHROPIC_CAP))
    assert (found.kind, found.should_compress, found.output_tokens_available) == ("context_overflow", False, 10_000)


def test_a_long_page_of_a_gateway_is_searched_quickly() -> None:
    page = "limit " + " " * 200_000 + "<html>" + "1" * 200_000
    assert parse_context_limit(page) is None
    assert parse_available_output_tokens("in the output maximum context length" + page) is None


NOW_S = 1_445_412_480.0
"""Wed, 21 Oct 2015 07:28:00 GMT."""


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("", None),
        ("soon", None),
        ("nan", None),
        ("7", 7.0),
        (" 1.5 ", 1.5),
        ("-3", 0.0),
        ("inf", RETRY_AFTER_MAX_S),
        ("86400", RETRY_AFTER_MAX_S),
        ("Wed, 21 Oct 2015 07:28:30 GMT", 30.0),
        ("Wed, 21 Oct 2015 07:00:00 GMT", 0.0),
        ("Thu, 22 Oct 2015 07:28:00 GMT", RETRY_AFTER_MAX_S),
        ("Wed, 99 Foo 2015 07:28:30 GMT", None),
    ],
)
def test_retry_after_is_seconds_or_a_date_and_never_absurd(value: str | None, expected: float | None) -> None:
    assert parse_retry_after(value, now_s=NOW_S) == expected


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after-ms": "-1"}, 0.0),
        ({"retry-after-ms": "1e99"}, RETRY_AFTER_MAX_S),
        ({"retry-after-ms": "nan", "retry-after": "9"}, 9.0),
        ({"retry-after-ms": "soon", "Retry-After": "9"}, 9.0),
        ({"Retry-After": "9"}, 9.0),
        ({}, None),
    ],
)
def test_a_wait_in_milliseconds_is_the_more_exact_one(headers: dict[str, str], expected: float | None) -> None:
    assert parse_wait(headers, now_s=NOW_S) == expected


TELLING = [
    # A text or a status alone would say something else.
    (
        400,
        "The response was filtered due to the prompt triggering a policy",
        "content_filter",
        "content_policy_blocked",
    ),
    (400, "Your messages are a lot", "context_length_exceeded", "context_overflow"),
    (500, "Your messages are a lot", "context_length_exceeded", "context_overflow"),
    (400, "Your messages are a lot", "exceed_context_size_error", "context_overflow"),
    (429, "See your plan, too many requests", "insufficient_quota", "billing"),
    (403, "See your plan", "billing_not_active", "billing"),
    (404, "The API deployment for this resource is not there", "DeploymentNotFound", "model_not_found"),
    (400, "No such thing", "invalid_api_key", "auth"),
]


@pytest.mark.parametrize(("status", "text", "code", "kind"), TELLING)
@pytest.mark.parametrize("place", ["code", "type", "innererror"])
def test_a_telling_code_is_asked_before_text_and_status(
    status: int, text: str, code: str, kind: str, place: str
) -> None:
    told = {"code": code} if place == "innererror" else code
    body = {"error": {"message": text, place: told, "param": None}}
    assert classify(RawError(status=status, message=f"Error code: {status}", body=body)).kind == kind


MALFORMED = ["invalid_request_error", "invalid_prompt", "BadRequestError", "INVALID_ARGUMENT"]


@pytest.mark.parametrize("code", MALFORMED)
def test_a_malformed_request_stays_one_inside_a_stream(code: str) -> None:
    told = RawError(status=200, message="a tool call has no result", body={"type": code, "message": "no result"})
    assert (classify(told).kind, flags(classify(told))) == ("format_error", "F")
    known = replace(told, body={"type": code, "code": "rate_limit_exceeded"})
    assert classify(known).kind == "rate_limit", "the more particular code decides"
    long = replace(told, message="prompt is too long")
    assert classify(long).kind == "context_overflow"


PROVOKED: list[RawError] = [
    *(RawError(status=status, message=text) for status, text, *_ in [*REFERENCE, *PATTERN_FAMILIES]),
    RawError(message="x", class_name="ConnectError", causes=("ConnectError: [Errno 111] Connection refused",)),
    RawError(message="5 consecutive stale attempts, aborting this call"),
    RawError(message="bad literal", class_name="ValueError"),
    RawError(status=429, body={"error": {"message": "Provider returned error", "metadata": {"raw": "{}"}}}),
    RawError(status=400, message="The reasoning_content in the thinking mode must be passed back to the API."),
]
"""Errors of which there is one for every judgement."""


def _bare(found: Classification) -> Classification:
    """The judgement, without what the particular error told."""
    return Classification(
        kind=found.kind,
        is_retryable=found.is_retryable,
        should_compress=found.should_compress,
        should_rotate=found.should_rotate,
        should_fall_back=found.should_fall_back,
        lacks_thoughts=found.lacks_thoughts,
    )


def test_every_judgement_survives_the_error_that_carries_it() -> None:
    """A wire raises what it found, and the loop on the other side decides on the same."""
    for provoked in PROVOKED:
        found = classify(provoked)
        carried = ModelCallError(
            found.kind,
            "redacted",
            status=found.status,
            retry_after_s=found.retry_after_s,
            classification=found,
        )
        assert classify_translated(carried) == replace(found, message="redacted")
    assert {_bare(classify(provoked)) for provoked in PROVOKED} == OUTCOMES


class _Response:
    headers: ClassVar = {"retry-after": "12"}


class _SdkError(Exception):
    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.status_code = 429
        self.body = {"message": "slow down"}
        self.response = _Response()


def _raised(wrapped: bool) -> BaseException:
    try:
        try:
            raise _SdkError("Error code: 429")
        except _SdkError as cause:
            if wrapped:
                raise RuntimeError("stream failed") from cause
            raise
    except (RuntimeError, _SdkError) as error:
        return error


@pytest.mark.parametrize("wrapped", [False, True])
def test_facts_are_read_along_the_chain_of_causes(wrapped: bool) -> None:
    facts = build_raw_error(_raised(wrapped), provider="p", model="m", now_s=NOW_S)
    assert (facts.status, facts.body, facts.retry_after_s) == (429, {"message": "slow down"}, 12.0)
    assert facts.causes == (("_SdkError: Error code: 429",) if wrapped else ())
    assert classify(facts).retry_after_s == 12.0


def test_an_error_that_was_being_handled_and_hidden_is_no_cause() -> None:
    try:
        try:
            raise _SdkError("hidden")
        except _SdkError:
            raise TimeoutError("late") from None
    except TimeoutError as error:
        facts = build_raw_error(error, now_s=NOW_S)
    assert (facts.status, facts.causes, facts.is_os_error) == (None, (), True)
