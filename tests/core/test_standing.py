"""Why a run is where it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_worker.core.run import CallStatus, RunStatus
from hermes_worker.core.status_reason import CallFacts, StandingFacts, StandingReason, decide_status_reason

NOW = 1_000.0
RUNNING = StandingFacts(
    status=RunStatus.RUNNING, now=NOW, due_since=None, asking_since=None, worker=None, queues=("model", "tools")
)


def call(status: CallStatus, **changes: Any) -> CallFacts:
    facts = CallFacts(name="terminal", status=status, since=990.0, worker=None)
    return replace(facts, **changes)


@pytest.mark.parametrize(
    ("changes", "reason", "words"),
    [
        ({"asking_since": 988.0, "worker": "w1", "attempt": 2}, "asking_model", "asking the model on w1, attempt 2"),
        ({"due_since": 990.0}, "due", "its model call waits in the queue 'model'"),
        ({"due_since": 990.0, "queues": ("tools",)}, "no_worker", "no worker consumes the queue 'model'"),
        ({"calls": [call(CallStatus.PENDING)], "queues": ("model",)}, "no_worker", "the queue 'tools', where terminal"),
        ({"calls": [call(CallStatus.PENDING)]}, "due", "terminal waits in the queue 'tools'"),
        ({"due_since": 990.0, "is_suspect": True}, "due", "its model call waits to be tried apart"),
        ({"calls": [call(CallStatus.PENDING, is_suspect=True)]}, "due", "terminal waits to be tried apart"),
        (
            {"asking_since": 988.0, "worker": "lane-1", "attempt": 2, "is_suspect": True},
            "asking_model",
            "on lane-1, attempt 2, apart from all other work",
        ),
        ({"calls": [call(CallStatus.RUNNING, worker="t1")]}, "calling_tools", "running terminal on t1"),
        ({"status": RunStatus.QUEUED, "active_run": "run_a"}, "behind_session", "run run_a of its session goes first"),
        ({"status": RunStatus.QUEUED, "parent_run": "run_p"}, "behind_siblings", "children of run_p"),
        ({"status": RunStatus.PAUSED}, "paused", "'runs resume'"),
        ({"status": RunStatus.STOPPING}, "stopping", "a stop was asked for"),
        ({"status": RunStatus.WAITING_FOR_APPROVAL}, "waiting_for_person", "allow a command"),
        ({"status": RunStatus.WAITING_FOR_INPUT}, "waiting_for_person", "answer a question"),
        (
            {"status": RunStatus.WAITING_FOR_CHILDREN, "children_total": 5, "children_ended": 3},
            "waiting_for_children",
            "3 of 5 children have ended",
        ),
        (
            {"status": RunStatus.WAITING_FOR_CHILDREN, "tasks": 2},
            "waiting_for_children",
            "it waits for 2 tasks that servers work on",
        ),
        (
            {"status": RunStatus.WAITING_FOR_CAPACITY, "waits_because": "the provider answered 500"},
            "waiting_for_provider",
            "the provider answered 500",
        ),
        ({"status": RunStatus.COMPLETED}, "ended", "completed"),
    ],
)
def test_every_state_has_its_reason_and_a_sentence(changes: dict[str, Any], reason: str, words: str) -> None:
    found = decide_status_reason(replace(RUNNING, **changes))
    assert found.reason == reason
    assert words in found.text


def test_what_lasts_is_counted_by_the_databases_clock() -> None:
    found = decide_status_reason(replace(RUNNING, asking_since=988.0))
    assert (found.since, found.lasts_s) == (988.0, 12.0)


def test_calls_that_run_are_told_before_those_that_wait() -> None:
    calls = [call(CallStatus.PENDING, name="a"), call(CallStatus.RUNNING, name="b")]
    assert decide_status_reason(replace(RUNNING, calls=calls)).text == "running b"


def test_many_calls_are_counted_not_listed() -> None:
    calls = [call(CallStatus.RUNNING, name=f"t{n}") for n in range(9)]
    assert decide_status_reason(replace(RUNNING, calls=calls)).text == "running t0, t1, t2, t3 and 5 more"


@given(
    status=st.sampled_from(RunStatus),
    times=st.tuples(*[st.none() | st.floats(0, 2e9) for _ in range(3)]),
    calls=st.lists(
        st.builds(
            CallFacts,
            name=st.text(max_size=5),
            status=st.sampled_from(CallStatus),
            since=st.none() | st.floats(0, 2e9),
            worker=st.none() | st.text(max_size=5),
        ),
        max_size=3,
    ),
)
def test_every_combination_of_facts_has_a_standing(
    status: RunStatus, times: tuple[float | None, ...], calls: list[CallFacts]
) -> None:
    due, asking, resume = times
    facts = replace(RUNNING, status=status, due_since=due, asking_since=asking, resume_at=resume, calls=calls)
    found = decide_status_reason(facts)
    assert found.text
    assert found.reason in StandingReason
    assert (found.lasts_s is None) == (found.since is None)
