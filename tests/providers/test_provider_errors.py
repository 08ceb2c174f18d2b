"""From what an SDK raises to our error: nothing that the loop decides by is lost on the way."""

from __future__ import annotations

from dataclasses import replace

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_worker.core.errors import FailureKind, ModelCallError
from hermes_worker.core.recovery.classify import (
    OUTCOMES,
    Classification,
    RawError,
    build_raw_error,
    classify,
    classify_translated,
)
from hermes_worker.core.recovery.retry import AttemptHistory, FallBack, GiveUp, Remedy, Situation, decide_remedy
from hermes_worker.models.errors import CallPlace, translate_error

PLACE = CallPlace(base_url="https://models.example/v1", model="m", secrets=("top-secret",))


def _raised(class_name: str, message: str, status: int | None = None, body: object = None) -> Exception:
    """An exception with the attributes that SDKs agree on."""
    error = type(class_name, (Exception,), {})(message)
    if status is not None:
        request = httpx2.Request("POST", f"{PLACE.base_url}/chat/completions")
        error.status_code = status
        error.response = httpx2.Response(status, request=request)
    error.body = body
    return error


LOST_ONCE = [
    ("ValueError", "bad literal", None),
    ("RuntimeError", "5 consecutive stale attempts; aborting this call", None),
    ("RuntimeError", "You do not have an active Grok subscription", None),
    ("NotFoundError", "Not Found", 404),
]


@pytest.mark.parametrize(("class_name", "message", "status"), LOST_ONCE)
def test_what_cannot_succeed_later_is_not_tried_again(class_name: str, message: str, status: int | None) -> None:
    """A bug of ours, a line that went dead too often, a plan that does not allow it, an address with nothing there."""
    found = classify_translated(translate_error(_raised(class_name, message, status), PLACE))
    assert (found.is_retryable, found.should_rotate, found.should_fall_back) == (False, False, True)
    assert isinstance(decide_remedy(found, AttemptHistory(), Situation()), GiveUp)
    assert decide_remedy(found, AttemptHistory(), Situation(remedies=frozenset({Remedy.FALL_BACK}))) == FallBack()


@pytest.mark.parametrize("outcome", sorted(OUTCOMES, key=repr), ids=lambda outcome: outcome.kind.value)
def test_no_flag_is_lost_between_the_wire_and_the_loop(outcome: Classification) -> None:
    carried = ModelCallError(outcome.kind, "said", classification=replace(outcome, message="unredacted"))
    assert classify_translated(carried) == replace(outcome, message="said")


@settings(deadline=None)
@given(
    st.sampled_from(["ValueError", "RuntimeError", "APIConnectionError", "RateLimitError", "OSError"]),
    st.text(max_size=60) | st.sampled_from(["prompt is too long: 9000 > 8192", "top-secret"]),
    st.none() | st.integers(400, 599),
    st.none() | st.dictionaries(st.sampled_from(["message", "code", "type", "n_ctx"]), st.text() | st.integers()),
)
def test_translating_changes_no_judgement(
    class_name: str, message: str, status: int | None, body: dict[str, object] | None
) -> None:
    error = _raised(class_name, message, status, body)
    judged = classify(build_raw_error(error, model="m", now_s=0.0))
    translated = translate_error(error, PLACE)
    found = classify_translated(translated)
    assert replace(found, message="", status=None) == replace(judged, message="", status=None)
    assert "top-secret" not in found.message


def test_an_error_that_nobody_judged_has_the_usual_flags_of_its_kind() -> None:
    assert classify_translated(ModelCallError(FailureKind.AUTH, "x", status=403)).should_rotate is False
    assert classify(RawError(message="x")) == classify_translated(ModelCallError(FailureKind.UNKNOWN, "x"))


def test_a_provider_s_own_words_for_too_long_are_known_for_it_alone() -> None:
    said = "invalid request: total number of tokens (prompt and prediction) cannot exceed 4081 - received 4292"
    error = _raised("APIStatusError", said, 400, {"error": {"message": said}})

    assert translate_error(error, replace(PLACE, provider="cohere")).kind is FailureKind.CONTEXT_OVERFLOW
    assert translate_error(error, replace(PLACE, provider="groq")).kind is FailureKind.FORMAT_ERROR
