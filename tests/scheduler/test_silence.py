import pytest

from hermes_worker.core.errors import FailureKind
from scheduler.silence import (
    SUMMARY_CHARS_MAX,
    JobLabel,
    JobOutcome,
    is_empty,
    is_silent,
    render_delivery,
    summarize_failure,
)

JOB = JobLabel(id="0a1b2c3d4e5f", name="Morning news")


@pytest.mark.parametrize(
    "response",
    [
        "[SILENT]",
        "silent",
        "NO_REPLY",
        "No  reply",
        "[SILENT] nothing",
        "2 deals\n\n[SILENT]",
        "[silent]\nnote",
        "  no reply \n",
    ],
)
def test_a_response_may_ask_for_silence(response):
    assert is_silent(response)


@pytest.mark.parametrize(
    "response",
    [
        "I stay [SILENT] but",
        "Silent retry succeeded",
        "",
        "  \n",
        "**[SILENT]**",
        "a\nsilent\nb",
    ],
)
def test_other_responses_are_delivered(response):
    assert not is_silent(response)


@pytest.mark.parametrize("response", ["", " \n ", "(No response generated)"])
def test_saying_nothing_at_all_is_empty_not_silent(response):
    assert is_empty(response)
    assert not is_silent(response)


def test_a_silence_token_is_not_empty():
    assert not is_empty("[SILENT]")


def test_a_response_is_wrapped_between_header_and_footer():
    assert render_delivery(JOB, JobOutcome(response="Rain.\n")) == (
        "Cronjob Response: Morning news\n(job_id: 0a1b2c3d4e5f)\n-------------\n\nRain.\n\n"
        "To stop this job: hermes-worker cron remove 0a1b2c3d4e5f"
    )


def test_a_response_may_be_sent_bare():
    assert render_delivery(JOB, JobOutcome(response=" Rain. "), is_wrapped=False) == "Rain."


def test_a_silent_success_sends_nothing():
    assert render_delivery(JOB, JobOutcome(response="[SILENT]")) is None


def test_a_failure_is_never_silent():
    outcome = JobOutcome(response="[SILENT]", failure="ValueError: no such file")
    assert render_delivery(JOB, outcome, is_wrapped=False) == "⚠️ Job 'Morning news' failed: no such file"


def test_a_name_with_newlines_stays_on_the_header_line():
    text = render_delivery(JobLabel(id="x", name="a\n(job_id: y)"), JobOutcome(response="r"))
    assert text.splitlines()[0] == "Cronjob Response: a (job_id: y)"


@pytest.mark.parametrize(
    ("message", "summary"),
    [
        (
            "RuntimeError: HTTP 429 Too Many Requests",
            "the model provider's rate limit was reached; the next run tries again",
        ),
        (
            "openai.RateLimitError: slow down, rate_limit_exceeded",
            "the model provider's rate limit was reached; the next run tries again",
        ),
        (
            "You have hit your weekly usage limit",
            "the weekly limit of the model provider is used up; it resets by itself",
        ),
        (
            "insufficient_quota: check your plan",
            "the quota of the model provider is used up; check its plan and billing",
        ),
        ("TimeoutError: idle for 600 s", "it timed out"),
        ("the request timed out", "it timed out"),
        ("Error code: 401 - bad key", "the model provider refused the credentials; check the API key"),
        ("AuthenticationError", "the model provider refused the credentials; check the API key"),
        ("KeyError: 'name'", "'name'"),
        ("builtins.ValueError: RuntimeError: bad\n  line", "bad line"),
        ("", "no reason was given"),
        ("read 4290 rows and 14010 more", "read 4290 rows and 14010 more"),
    ],
)
def test_a_failure_is_summarised_in_a_line(message, summary):
    assert summarize_failure(message) == summary


def test_the_kind_of_a_failure_says_more_than_its_message():
    assert summarize_failure("upstream said no", FailureKind.BILLING).startswith("the quota")


def test_an_unknown_kind_falls_back_to_the_message():
    assert summarize_failure("disk full", FailureKind.UNKNOWN) == "disk full"


def test_a_summary_has_at_most_180_characters():
    summary = summarize_failure("x" * 5000)
    assert len(summary) == SUMMARY_CHARS_MAX
    assert summary.endswith("…")
