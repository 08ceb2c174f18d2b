"""What a model may delegate, and what it is told when its children have ended."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from hermes_worker.core.budget import Amounts, Budget, BudgetLimits
from hermes_worker.core.delegation import (
    BLOCKED_TOOLS,
    SUMMARY_CHARS_MAX,
    ChildOutcome,
    ChildRole,
    ChildTask,
    DelegationPolicy,
    InvalidDelegation,
    build_background_message,
    build_dispatch_note,
    build_report,
    compute_summary_chars,
    derive_delegation_id,
    explain_background_refusal,
    may_be_background,
    parse_tasks,
    require_allowed,
    select_child_tools,
    shorten_middle,
)
from hermes_worker.core.messages import Usage
from hermes_worker.core.run import ExitReason, RunStatus


def outcome(index: int = 0, **changes: object) -> ChildOutcome:
    facts: dict[str, object] = {
        "run_id": f"run_{index}",
        "status": RunStatus.COMPLETED,
        "exit_reason": ExitReason.TEXT_RESPONSE.value,
        "model": "m",
        "iterations": 2,
        "duration_s": 1.234,
        "usage": Usage(input=10, cache_read=5, output=3),
        "summary": "found it",
        "error": None,
        "tools": [("terminal", "succeeded")],
    }
    return ChildOutcome(index=index, **{**facts, **changes})  # type: ignore[arg-type]


def test_a_goal_is_one_task_and_a_batch_is_many() -> None:
    assert parse_tasks({"goal": " look ", "context": "here"}) == (ChildTask(goal="look", context="here"),)
    batch = {"tasks": [{"goal": "a"}, {"goal": "b", "context": "own", "role": "orchestrator"}], "context": "all"}
    assert parse_tasks(batch) == (
        ChildTask(goal="a", context="all"),
        ChildTask(goal="b", context="own", role=ChildRole.ORCHESTRATOR),
    )


@pytest.mark.parametrize("arguments", [{}, {"goal": "  "}, {"tasks": []}, {"tasks": [{"goal": "a"}, {"goal": ""}]}])
def test_a_call_that_asks_for_nothing_is_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(InvalidDelegation, match="nothing was delegated"):
        parse_tasks(arguments)


def test_depth_and_number_of_tasks_are_bounded() -> None:
    tasks = (ChildTask(goal="a"),) * 3
    require_allowed(DelegationPolicy(depth_max=1, tasks_max=3), tasks, depth=0)
    with pytest.raises(InvalidDelegation, match="level"):
        require_allowed(DelegationPolicy(depth_max=1), tasks, depth=1)
    with pytest.raises(InvalidDelegation, match="at most 2"):
        require_allowed(DelegationPolicy(tasks_max=2), tasks, depth=0)


def test_a_leaf_gets_its_parents_tools_without_the_blocked_ones() -> None:
    names = {"terminal", "delegate_task", *BLOCKED_TOOLS}
    assert select_child_tools(names, DelegationPolicy(depth_max=9), ChildRole.LEAF, depth=1) == {"terminal"}


def test_an_orchestrator_delegates_only_where_the_depth_allows_it() -> None:
    names = {"terminal", "delegate_task", "memory"}
    policy = DelegationPolicy(depth_max=2)
    assert select_child_tools(names, policy, ChildRole.ORCHESTRATOR, depth=1) == {"terminal", "delegate_task"}
    assert select_child_tools(names, policy, ChildRole.ORCHESTRATOR, depth=2) == {"terminal"}


@pytest.mark.parametrize(
    ("changes", "status", "exit_reason"),
    [
        ({}, "completed", "completed"),
        ({"exit_reason": "max_iterations_reached"}, "completed", "max_iterations"),
        ({"summary": ""}, "failed", "error"),
        ({"status": RunStatus.FAILED, "exit_reason": "internal_error"}, "failed", "error"),
        ({"status": RunStatus.CANCELLED, "exit_reason": "interrupted_by_user"}, "interrupted", "interrupted"),
        ({"status": RunStatus.EXPIRED, "exit_reason": "wall_clock_exceeded"}, "timeout", "timeout"),
    ],
)
def test_every_end_has_its_word(changes: dict[str, object], status: str, exit_reason: str) -> None:
    [entry] = json.loads(build_report([outcome(**changes)]))["results"]  # type: ignore[arg-type]
    assert (entry["status"], entry["exit_reason"]) == (status, exit_reason)
    assert ("error" in entry) == (status == "failed")


def test_a_report_names_what_a_child_did_and_used() -> None:
    document = json.loads(build_report([outcome(0), outcome(1)]))
    assert document["total_duration_seconds"] == 1.23
    assert document["results"][1] == {
        "task_index": 1,
        "run_id": "run_1",
        "status": "completed",
        "summary": "found it",
        "api_calls": 2,
        "duration_seconds": 1.23,
        "model": "m",
        "exit_reason": "completed",
        "tokens": {"input": 15, "output": 3},
        "tool_trace": [{"tool": "terminal", "status": "succeeded"}],
    }


@pytest.mark.parametrize("children", [1, 3, 16, 17, 100, 1_000])
def test_all_summaries_together_fit_and_none_is_too_long(children: int) -> None:
    text = "x" * 1_000_000
    document = json.loads(build_report([outcome(index, summary=text) for index in range(children)]))
    lengths = [len(entry["summary"]) for entry in document["results"]]
    assert max(lengths) <= SUMMARY_CHARS_MAX + 60
    assert sum(lengths) <= 470_000
    assert all(entry["summary_truncated"] for entry in document["results"])


def test_a_shortened_text_keeps_three_quarters_of_its_room_for_the_beginning() -> None:
    text = shorten_middle("a" * 500 + "b" * 500, 100)
    assert text == "a" * 75 + "\n[... 900 characters left out ...]\n" + "b" * 25
    assert shorten_middle("short", 100) == "short"
    assert compute_summary_chars(1) == SUMMARY_CHARS_MAX


def test_only_who_talks_to_somebody_may_be_answered_later() -> None:
    assert may_be_background(depth=0, source="api")
    assert not may_be_background(depth=1, source="api")
    assert not may_be_background(depth=0, source="cron")


def test_a_dispatch_has_the_same_name_in_its_note_and_in_its_result() -> None:
    note = json.loads(build_dispatch_note("run_1.1.0", [ChildTask(goal="x" * 1_000)] * 50))
    assert (note["status"], note["mode"], note["count"]) == ("dispatched", "background", 50)
    assert (len(note["goals"]), len(note["goals"][0])) == (20, 200)
    assert f"[BACKGROUND RESULT {note['delegation_id']}:" in build_background_message("run_1.1.0", [])
    assert note["delegation_id"] == derive_delegation_id("run_1.1.0") != derive_delegation_id("run_1.1.1")


# --- background ---


def chain_budget(**spent: int) -> Budget:
    limits = BudgetLimits(iterations=10, tokens=1_000, tool_calls=5, nano_usd=1_000)
    return Budget(limits=limits, spent=Amounts(**spent))


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        (chain_budget(), None),
        (chain_budget(iterations=7), None),
        (chain_budget(iterations=8), "model calls"),
        (chain_budget(iterations=2, tokens=400), None),
        (chain_budget(iterations=2, tokens=402), "tokens"),
        (chain_budget(iterations=2, tool_calls=5), "tool calls"),
        (chain_budget(iterations=2, nano_usd=402), "US dollars"),
        (replace(chain_budget(), has_unknown_cost=True), "US dollars"),
        (replace(chain_budget(iterations=6), reserved=Amounts(iterations=2)), "model calls"),
    ],
)
def test_nobody_is_sent_into_the_background_without_room_for_three_more_answers(
    budget: Budget, said: str | None
) -> None:
    """That of the turn which sends, that of the child, and that of the turn which the child's begins."""
    refusal = explain_background_refusal(budget, turns=0, turns_max=1, is_shared=True)
    assert refusal is None if said is None else refusal is not None and f"of the {said} " in refusal


def test_children_with_a_budget_of_their_own_need_no_room_in_the_chains() -> None:
    budget = chain_budget(iterations=8)
    assert explain_background_refusal(budget, turns=0, turns_max=1, is_shared=False) is None
    assert explain_background_refusal(budget, turns=0, turns_max=1, is_shared=True) is not None


@pytest.mark.parametrize(("turns", "turns_max"), [(20, 20), (21, 20), (0, 0)])
def test_a_chain_goes_on_for_as_many_turns_as_allowed_and_the_refusal_says_so(turns: int, turns_max: int) -> None:
    refusal = explain_background_refusal(chain_budget(), turns=turns, turns_max=turns_max, is_shared=True)
    assert refusal is not None
    assert f"for {turns_max} turn(s)" in refusal
    assert explain_background_refusal(chain_budget(), turns=turns, turns_max=turns + 1, is_shared=True) is None
