from datetime import timedelta

import pytest

from hermes_worker.channels.errors import (
    Adjustment,
    DeliveryAttempt,
    DeliveryError,
    GiveUpDelivery,
    RetryPolicy,
    SendErrorKind,
    TryAgain,
    classify_status,
    classify_text,
    compute_retry_delay_s,
    decide_next_step,
    find_dead_target_reason,
    make_dead_target_key,
)
from hermes_worker.channels.narration import is_silence_narration

POLICY = RetryPolicy()


def error(kind: SendErrorKind, message: str = "no", **changes: object) -> DeliveryError:
    return DeliveryError(kind=kind, message=message, **changes)


def attempt(number: int = 1, **changes: object) -> DeliveryAttempt:
    values = {"number": number, "age": timedelta(seconds=1), "has_idempotency_key": False}
    return DeliveryAttempt(**(values | changes))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Bad Request: message is too long", SendErrorKind.TOO_LONG),
        ("Bad Request: can't parse entities: Can't find end", SendErrorKind.BAD_FORMAT),
        ("Forbidden: bot was blocked by the user", SendErrorKind.FORBIDDEN),
        ("user is deactivated", SendErrorKind.FORBIDDEN),
        ("not enough rights to send text messages to the chat", SendErrorKind.FORBIDDEN),
        ("bot is not a member of the channel chat", SendErrorKind.FORBIDDEN),
        ("Bad Request: chat not found", SendErrorKind.NOT_FOUND),
        ("Bad Request: message thread not found", SendErrorKind.NOT_FOUND),
        ("Too Many Requests: retry after 5", SendErrorKind.RATE_LIMITED),
        ("Flood control exceeded", SendErrorKind.RATE_LIMITED),
        ("httpx.ConnectError: all attempts failed", SendErrorKind.TRANSIENT),
        ("ConnectionResetError: connection reset by peer", SendErrorKind.TRANSIENT),
        ("BrokenPipeError: Broken pipe", SendErrorKind.TRANSIENT),
        ("httpx.ReadTimeout", SendErrorKind.UNKNOWN),
        ("", SendErrorKind.UNKNOWN),
    ],
)
def test_an_error_is_known_by_its_words(text, kind):
    assert classify_text(text) is kind


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, SendErrorKind.BAD_FORMAT),
        (401, SendErrorKind.AUTH),
        (403, SendErrorKind.FORBIDDEN),
        (404, SendErrorKind.NOT_FOUND),
        (410, SendErrorKind.NOT_FOUND),
        (413, SendErrorKind.TOO_LONG),
        (429, SendErrorKind.RATE_LIMITED),
        (500, SendErrorKind.TRANSIENT),
        (502, SendErrorKind.TRANSIENT),
        (503, SendErrorKind.TRANSIENT),
        (504, SendErrorKind.AMBIGUOUS),
        (418, SendErrorKind.UNKNOWN),
    ],
)
def test_a_status_says_something_by_itself(status, kind):
    assert classify_status(status) is kind


@pytest.mark.parametrize(("number", "delay_s"), [(1, 2.5), (2, 8.5), (3, 60.5), (5, 3600.5), (5000, 3600.5)])
def test_the_waits_outlast_a_target_that_is_down_for_an_hour(number, delay_s):
    assert compute_retry_delay_s(error(SendErrorKind.TRANSIENT), number, POLICY, 0.5) == delay_s


@pytest.mark.parametrize(("asked_s", "delay_s"), [(30.0, 30.25), (0.0, 0.25), (-5.0, 0.25), (10_000_000.0, 21_600.25)])
def test_the_server_says_how_long_to_wait(asked_s, delay_s):
    failure = error(SendErrorKind.RATE_LIMITED, retry_after_s=asked_s)
    assert compute_retry_delay_s(failure, 3, POLICY, 0.25) == delay_s


@pytest.mark.parametrize("kind", [SendErrorKind.TRANSIENT, SendErrorKind.RATE_LIMITED])
def test_what_did_not_arrive_is_sent_again(kind):
    assert decide_next_step(error(kind), attempt(), POLICY, 0.0) == TryAgain(delay_s=2.0)


def test_a_wait_that_the_platform_asked_for_is_no_attempt_and_any_other_is():
    late = attempt(POLICY.attempts_max)
    asked = error(SendErrorKind.RATE_LIMITED, retry_after_s=30.0)
    assert decide_next_step(asked, late, POLICY, 0.0) == TryAgain(delay_s=30.0, is_counted=False)
    for failure in (error(SendErrorKind.RATE_LIMITED), error(SendErrorKind.TRANSIENT, retry_after_s=30.0)):
        assert isinstance(decide_next_step(failure, late, POLICY, 0.0), GiveUpDelivery)


def test_what_may_have_arrived_is_sent_again_with_a_remark():
    step = decide_next_step(error(SendErrorKind.AMBIGUOUS), attempt(), POLICY, 0.0)
    assert step == TryAgain(delay_s=2.0, adjustment=Adjustment.MARKED_DUPLICATE)


def test_a_key_that_the_platform_knows_makes_the_remark_unnecessary():
    step = decide_next_step(error(SendErrorKind.AMBIGUOUS), attempt(has_idempotency_key=True), POLICY, 0.0)
    assert step == TryAgain(delay_s=2.0)


def test_the_remark_stays_once_an_attempt_may_have_arrived():
    later = attempt(2, applied=frozenset({Adjustment.MARKED_DUPLICATE}))
    assert (
        decide_next_step(error(SendErrorKind.TRANSIENT), later, POLICY, 0.0).adjustment is Adjustment.MARKED_DUPLICATE
    )


@pytest.mark.parametrize(
    "kind",
    [
        SendErrorKind.FORBIDDEN,
        SendErrorKind.NOT_FOUND,
        SendErrorKind.TOO_LONG,
        SendErrorKind.AUTH,
        SendErrorKind.REFUSED,
        SendErrorKind.UNKNOWN,
    ],
)
def test_a_refusal_is_final(kind):
    assert decide_next_step(error(kind, "go away"), attempt(), POLICY, 0.0) == GiveUpDelivery(
        reason="go away", is_abandoned=False
    )


def test_a_format_that_is_not_understood_is_sent_as_plain_text_once():
    failure = error(SendErrorKind.BAD_FORMAT)
    assert decide_next_step(failure, attempt(), POLICY, 0.5) == TryAgain(delay_s=0.0, adjustment=Adjustment.PLAIN_TEXT)
    again = attempt(2, applied=frozenset({Adjustment.PLAIN_TEXT}))
    assert isinstance(decide_next_step(failure, again, POLICY, 0.5), GiveUpDelivery)


def test_a_thread_that_is_gone_is_left_out_once():
    failure = error(SendErrorKind.NOT_FOUND, is_thread_missing=True)
    assert decide_next_step(failure, attempt(), POLICY, 0.5) == TryAgain(
        delay_s=0.0, adjustment=Adjustment.WITHOUT_THREAD
    )
    again = attempt(2, applied=frozenset({Adjustment.WITHOUT_THREAD}))
    assert isinstance(decide_next_step(failure, again, POLICY, 0.5), GiveUpDelivery)


def test_attempts_run_out():
    assert decide_next_step(error(SendErrorKind.TRANSIENT, "down"), attempt(6), POLICY, 0.0) == GiveUpDelivery(
        reason="6 attempts failed: down", is_abandoned=True
    )


def test_a_message_that_is_a_day_old_is_given_up():
    step = decide_next_step(error(SendErrorKind.TRANSIENT, "down"), attempt(2, age=timedelta(hours=24)), POLICY, 0.0)
    assert step == GiveUpDelivery(reason="not delivered within 1 day, 0:00:00: down", is_abandoned=True)


@pytest.mark.parametrize(
    ("failure", "is_dead"),
    [
        (error(SendErrorKind.FORBIDDEN, "bot was blocked by the user"), True),
        (error(SendErrorKind.NOT_FOUND, "Bad Request: chat not found"), True),
        (error(SendErrorKind.NOT_FOUND, "channel_not_found"), True),
        (error(SendErrorKind.NOT_FOUND, "Unknown Channel"), True),
        (error(SendErrorKind.NOT_FOUND, "message thread not found"), False),
        (error(SendErrorKind.NOT_FOUND, "chat not found", is_thread_missing=True), False),
        (error(SendErrorKind.NOT_FOUND, "topic not found"), False),
        (error(SendErrorKind.NOT_FOUND, "message to be replied not found"), False),
        (error(SendErrorKind.NOT_FOUND, "404"), False),
        (error(SendErrorKind.TRANSIENT, "chat not found"), False),
        (error(SendErrorKind.AUTH, "unauthorized"), False),
    ],
)
def test_a_target_is_dead_when_the_whole_chat_refuses_or_is_gone(failure, is_dead):
    assert (find_dead_target_reason("telegram", failure) is not None) is is_dead


@pytest.mark.parametrize("platform", ["local", "webhook", "apprise"])
def test_files_and_urls_never_die(platform):
    assert find_dead_target_reason(platform, error(SendErrorKind.FORBIDDEN)) is None


def test_the_reason_of_a_death_is_short():
    assert len(find_dead_target_reason("telegram", error(SendErrorKind.FORBIDDEN, "x" * 999))) == 200
    assert make_dead_target_key("telegram", "-1") == "telegram:-1"


@pytest.mark.parametrize(
    "text",
    ["*(silent)*", "_Silence_", "🔇", ".", "...", "…", "no response", "No Reply.", "(silence)", " `silent` ", "🔇🔇"],
)
def test_a_message_that_only_says_nothing_is_recognised(text):
    assert is_silence_narration(text)


@pytest.mark.parametrize(
    "text", ["Silence is golden", "the job ran silently", "", "   ", "x" * 65, "silent night", "." * 65, "ok."]
)
def test_a_message_that_says_something_is_not_held_back(text):
    assert not is_silence_narration(text)
