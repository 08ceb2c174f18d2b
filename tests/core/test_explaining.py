"""Every state that the core can be in has an explanation, and each reason is given for a state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from hermes_worker.core.effects import AskAuxiliary, Iterate, Prepare, RunTool, list_outstanding
from hermes_worker.core.explanations import (
    ExplainedReason,
    Explanation,
    HolderFacts,
    QuestionFacts,
    RunFacts,
    TaskFacts,
    explain_run,
    find_queue,
)
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import TERMINAL, Call, CallStatus, Run, RunStatus, WaitKind
from hermes_worker.core.status_reason import CallFacts, StandingFacts

NOW = 1_000.0
HOLDER = HolderFacts(worker="w1", since=990.0, lease_until=1_010.0, is_alive=True)


def facts(seen: dict[str, Any] | None = None, **changes: Any) -> RunFacts:
    standing = StandingFacts(
        status=RunStatus.RUNNING, now=NOW, due_since=None, asking_since=None, worker=None, queues=("model", "tools")
    )
    found = RunFacts(run_id="run_1", tenant="acme", standing=replace(standing, **(seen or {})))
    return replace(found, **changes)


def call(status: CallStatus, **changes: Any) -> CallFacts:
    return replace(CallFacts(name="terminal", status=status, since=990.0, worker=None), **changes)


PENDING, HELD = call(CallStatus.PENDING), call(CallStatus.RUNNING, worker="w1")
QUEUED: dict[str, Any] = {"status": RunStatus.QUEUED}
QUESTION = QuestionFacts(wait_id=7, kind=WaitKind.APPROVAL, tool="terminal", opened_at=980.0, expires_at=1_300.0)
OF_CLIENT = QuestionFacts(
    wait_id=8, kind=WaitKind.INPUT, tool="get_weather", opened_at=980.0, expires_at=1_580.0, is_clients=True
)
TASK = TaskFacts(tool="print", source="mcp-desk", begun_at=980.0, looks_at=1_020.0)
CASES: list[tuple[ExplainedReason, str, RunFacts]] = [
    (
        ExplainedReason.CLIENT_TOOL,
        "its own tools (get_weather) with its next request until 1970-01-01 00:26:20 UTC",
        facts({"status": RunStatus.WAITING_FOR_INPUT}, questions=[OF_CLIENT]),
    ),
    (
        ExplainedReason.ENDED,
        "completed (text_response)",
        facts({"status": RunStatus.COMPLETED}, exit_reason="text_response"),
    ),
    (
        ExplainedReason.ENDED,
        "2 deliveries are of its answer not settled",
        facts({"status": RunStatus.FAILED}, exit_reason="x", deliveries_open=2),
    ),
    (ExplainedReason.QUARANTINED, "quarantined", facts({"status": RunStatus.FAILED}, exit_reason="step_quarantined")),
    (ExplainedReason.PAUSED, "'runs resume'", facts({"status": RunStatus.PAUSED})),
    (ExplainedReason.STOPPING, "when w1 lets go", facts({"status": RunStatus.STOPPING}, holder=HOLDER)),
    (ExplainedReason.ORPHANED, "run_p, has ended", facts({"parent_run": "run_p"}, parent_ended_at=999.0)),
    (ExplainedReason.OVERDUE, "deadline has passed", facts({"due_since": 990.0}, deadline_at=999.0)),
    (ExplainedReason.NOT_BEFORE, "not before 1970-01-01 00:33:20 UTC", facts(QUEUED | {"not_before": 2_000.0})),
    (ExplainedReason.SESSION_AT_WORK, "run run_a of its session", facts(QUEUED | {"active_run": "run_a"})),
    (
        ExplainedReason.CHILDREN_AT_WORK,
        "it is child 3 of 5, and as many children of run_p",
        facts(QUEUED | {"parent_run": "run_p"}, child_number=3, siblings=5),
    ),
    (ExplainedReason.FLEET_IS_SHARED, "the next place of the tenant 'acme'", facts(QUEUED, is_held=True)),
    (ExplainedReason.ABOUT_TO_BEGIN, "about to begin", facts(QUEUED)),
    (ExplainedReason.ABOUT_TO_BEGIN, "about to begin", facts(QUEUED | {"not_before": 999.0})),
    (ExplainedReason.NO_WORKER, "no worker consumes the queue 'model'", facts({"due_since": 990.0, "queues": ()})),
    (ExplainedReason.QUEUED, "its model call waits in the queue 'model' for", facts({"due_since": 990.0}, ahead=4)),
    (ExplainedReason.QUEUED, "; 4 before it", facts({"calls": [PENDING]}, ahead=4)),
    (ExplainedReason.QUEUED, "; at least 10000 before it", facts({"calls": [PENDING]}, ahead=10_000)),
    (ExplainedReason.QUEUED, "a question of terminal to a model", facts({"calls": [replace(PENDING, asks=True)]})),
    (ExplainedReason.SUSPECT, "apart from all other work", facts({"due_since": 990.0, "is_suspect": True})),
    (ExplainedReason.SUSPECT, "apart from all other work", facts({"calls": [replace(PENDING, is_suspect=True)]})),
    (
        ExplainedReason.RETRY_LATER,
        "tried again at 1970-01-01 00:25:00",
        facts({"due_since": 1_500.0, "is_suspect": True}),
    ),
    (ExplainedReason.WORKER_LOST, "w1, which holds", facts({"calls": [HELD]}, holder=replace(HOLDER, is_alive=False))),
    (
        ExplainedReason.QUEUED,
        "reading its workspace waits in the queue 'tools' for a worker that is free; 4 before it",
        facts({"due_since": 990.0, "wants_preparing": True}, ahead=4),
    ),
    (
        ExplainedReason.NO_WORKER,
        "no worker consumes the queue 'tools', where reading its workspace waits",
        facts({"due_since": 990.0, "wants_preparing": True, "queues": ("model",)}),
    ),
    (
        ExplainedReason.PREPARING,
        "reading the workspace on w1",
        facts({"asking_since": 990.0, "worker": "w1", "wants_preparing": True}, holder=HOLDER),
    ),
    (
        ExplainedReason.ASKING_MODEL,
        "asking the model on w1",
        facts({"asking_since": 990.0, "worker": "w1"}, holder=HOLDER),
    ),
    (ExplainedReason.CALLING_TOOLS, "running terminal on w1", facts({"calls": [HELD]}, holder=HOLDER)),
    (
        ExplainedReason.PROVIDER,
        "until 1970-01-01 00:33:20 UTC: the provider answered 429",
        facts(
            {
                "status": RunStatus.WAITING_FOR_CAPACITY,
                "resume_at": 2_000.0,
                "waits_because": "the provider answered 429",
            }
        ),
    ),
    (
        ExplainedReason.LIMIT,
        "its next model call waits: the limit model_calls",
        facts(
            {
                "status": RunStatus.WAITING_FOR_CAPACITY,
                "resume_at": 2_000.0,
                "waits_because": "the limit model_calls of the tenant 'acme' (2) is reached",
            },
            waits_for_permit=True,
        ),
    ),
    (
        ExplainedReason.APPROVAL,
        "somebody has to allow a command (of terminal), until 1970-01-01 00:21:40 UTC: whoever has a key of the tenant "
        "'acme' with the scope 'approve'",
        facts({"status": RunStatus.WAITING_FOR_APPROVAL}, questions=[QUESTION]),
    ),
    (ExplainedReason.QUESTION, "'runs answer'", facts({"status": RunStatus.WAITING_FOR_INPUT})),
    (
        ExplainedReason.CHILDREN,
        "2 of 5 children have ended",
        facts({"status": RunStatus.WAITING_FOR_CHILDREN, "children_total": 5, "children_ended": 2}),
    ),
    (
        ExplainedReason.CHILDREN,
        "2 of 5 children have ended; and for a task that a server works on",
        facts(
            {"status": RunStatus.WAITING_FOR_CHILDREN, "children_total": 5, "children_ended": 2, "tasks": 1},
            tasks=[TASK],
        ),
    ),
    (
        ExplainedReason.REMOTE_TASK,
        "it waits for a task that a server works on (print of mcp-desk); it is looked at again at 1970-01-01 00:17:00 "
        "UTC; the last 3 looks brought nothing",
        facts({"status": RunStatus.WAITING_FOR_CHILDREN, "tasks": 1}, tasks=[replace(TASK, failures=3)]),
    ),
]


@pytest.mark.parametrize(("because", "words", "known"), CASES, ids=lambda each: str(each)[:30])
def test_each_reason_says_why(because: ExplainedReason, words: str, known: RunFacts) -> None:
    found = explain_run(known)

    assert found.because is because
    assert words in found.text


def test_every_reason_is_given_for_a_state() -> None:
    assert {because for because, _, _ in CASES} == set(ExplainedReason)


def test_a_used_up_budget_is_named() -> None:
    found = explain_run(facts({"due_since": 990.0}, exhausted="tokens"))

    assert (found.because, found.facts["budget_dimension"]) == (ExplainedReason.QUEUED, "tokens")
    assert found.text.endswith("the budget of tokens is used up, so it only sums up")


def test_the_facts_say_who_holds_it_and_until_when() -> None:
    found = explain_run(
        facts({"asking_since": 990.0, "worker": "w1", "attempt": 2}, holder=HOLDER, deadline_at=5_000.0)
    )

    assert (found.facts["worker"], found.facts["held_since"], found.facts["lease_until"]) == ("w1", 990.0, 1_010.0)
    assert (found.facts["attempt"], found.facts["deadline_at"], found.since) == (2, 5_000.0, 990.0)


# --- whatever the core can be in -------------------------------------------------------------------------------------


def states() -> Iterator[tuple[Run, str]]:
    """A run of each status, with each kind of step due, held, waiting for each thing, or suspected."""
    for status in RunStatus:
        bare = Run(run_id="run_1", status=status, iteration=1)
        yield bare, "nothing"
        yield replace(bare, is_asking=True), "asking"
        yield replace(bare, deaths=0), "suspect"
        if bare.status in (RunStatus.QUEUED, RunStatus.RUNNING):
            unprepared = replace(bare, iteration=0, is_prepared=False)
            yield unprepared, "preparing"
            yield replace(unprepared, is_asking=True), "preparing"
        for call_status in CallStatus:
            for asks in (False, True):
                for kind in WaitKind if call_status is CallStatus.WAITING else (None,):
                    one = Call(
                        position=0,
                        name="t",
                        replay=Replay.ONCE,
                        segment=0,
                        timeout_s=1.0,
                        status=call_status,
                        asks=asks,
                    )
                    yield replace(bare, calls=(replace(one, waits_for=kind, deaths=0 if asks else None),)), "call"


def seen_of(run: Run, *, queues: tuple[str, ...]) -> StandingFacts:
    """As the rows would tell it."""
    due = list_outstanding(run)
    return StandingFacts(
        status=run.status,
        now=NOW,
        due_since=990.0 if any(isinstance(effect, Iterate | Prepare) for effect in due) else None,
        wants_preparing=run.wants_preparing,
        asking_since=990.0 if run.is_asking else None,
        worker="w1" if run.is_asking else None,
        is_suspect=run.is_suspect,
        calls=[
            CallFacts(name=c.name, status=c.status, since=990.0, worker=None, is_suspect=c.is_suspect, asks=c.asks)
            for c in run.unsettled_calls
        ],
        queues=queues,
    )


@pytest.mark.parametrize("queues", [(), ("model", "tools")])
@pytest.mark.parametrize("with_parent", [False, True])
def test_every_state_of_the_core_is_explained(queues: tuple[str, ...], with_parent: bool) -> None:
    kinds = set()
    for run, what in states():
        seen = seen_of(run, queues=queues)
        seen = replace(seen, parent_run="run_p" if with_parent else None)
        found = explain_run(RunFacts(run_id="run_1", tenant="default", standing=seen))
        due = list_outstanding(run)
        kinds |= {type(effect) for effect in due}

        assert found.text, (run, what)
        assert (found.because in (ExplainedReason.ENDED, ExplainedReason.QUARANTINED)) == (run.status in TERMINAL), run
        if due and not run.is_held and run.status is not RunStatus.STOPPING:
            assert found.because in (ExplainedReason.QUEUED, ExplainedReason.NO_WORKER, ExplainedReason.SUSPECT), (
                run,
                found,
            )
            expected = "tools" if any(isinstance(effect, RunTool | Prepare) for effect in due) else "model"
            assert find_queue(seen) == expected
        if run.is_held and run.status is RunStatus.RUNNING:
            assert (found.because is ExplainedReason.PREPARING) == run.wants_preparing, (run, found)
        if run.status.is_parked:
            assert found.because in PARKED_BECAUSE[run.status], (run, found)
    assert kinds == {Prepare, Iterate, RunTool, AskAuxiliary}


PARKED_BECAUSE = {
    RunStatus.PAUSED: {ExplainedReason.PAUSED},
    RunStatus.WAITING_FOR_APPROVAL: {ExplainedReason.APPROVAL},
    RunStatus.WAITING_FOR_INPUT: {ExplainedReason.QUESTION},
    RunStatus.WAITING_FOR_CHILDREN: {ExplainedReason.CHILDREN},
    RunStatus.WAITING_FOR_CAPACITY: {ExplainedReason.PROVIDER},
}


def test_an_explanation_holds_no_fact_that_nobody_knows() -> None:
    assert None not in explain_run(facts()).facts.values()
    assert isinstance(explain_run(facts()), Explanation)
