"""A model that sends somebody into the background in every turn: that ends by its limits, or by a stop."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from support.commandline import CommandLine, Running, script, wait_for

pytestmark = pytest.mark.e2e
Shared = tuple[CommandLine, Running]
TURNS = 8


def sends_for_ever(child: str) -> str:
    """Every turn sends a subagent into the background, and ends."""
    sent = {"name": "delegate_task", "arguments": {"goal": child, "background": True}}
    steps = [{"text": "I send somebody.", "calls": [sent]}, {"text": "Somebody is under way."}]
    return script(*steps * TURNS)


def runs_of(hermes: CommandLine, session: str) -> list[dict[str, Any]]:
    """The turns of a session, oldest first."""
    listed = hermes.inline("runs", "list", "--session", session, "--limit", "1000", "--json")
    return [json.loads(line) for line in reversed(listed.out.splitlines())]


def submitted(hermes: CommandLine, session: str, prompt: str, *limits: str) -> str:
    accepted = hermes.inline("submit", prompt, "--session", session, *limits)
    assert accepted.code == 0, accepted.said
    return accepted.out.strip()


def chain_of(hermes: CommandLine, run_id: str) -> dict[str, Any]:
    """The budget of a run and of all that it caused, and who used what of it."""
    budget: dict[str, Any] = hermes.run_of(run_id)["budget"]
    return budget


def all_ended(hermes: CommandLine, run_id: str) -> bool:
    """Whether the run, what it delegated, and every turn that began with that have ended."""
    waiting, seen = [run_id], set()
    while waiting:
        document = hermes.run_of(waiting.pop())
        seen.add(document["run_id"])
        if document["status"] not in ("completed", "failed", "cancelled", "expired"):
            return False
        waiting += [child["run_id"] for child in document["budget"]["children"] if child["run_id"] not in seen]
    return True


def test_a_run_that_sends_somebody_in_every_turn_stops_within_its_limits(shared: Shared) -> None:
    hermes, _ = shared
    limits = ("--max-iterations", "3", "--max-tokens", "10000")
    run_id = submitted(hermes, "for-ever", sends_for_ever(script(final="nothing to do")), *limits)

    wait_for(lambda: all_ended(hermes, run_id))
    turns = runs_of(hermes, "for-ever")
    spent = chain_of(hermes, run_id)["dimensions"]
    print(f"\n{len(turns)} turns; spent {spent}")
    assert spent["iterations"]["spent"] <= 3
    assert spent["tokens"]["spent"] <= 10_000
    assert len(turns) <= 3


def test_iterations_alone_end_a_chain_and_are_counted_over_all_of_it(shared: Shared) -> None:
    hermes, _ = shared
    run_id = submitted(hermes, "counted", sends_for_ever(script(final="nothing to do")), "--max-iterations", "12")

    wait_for(lambda: all_ended(hermes, run_id))
    turns = runs_of(hermes, "counted")
    budget = chain_of(hermes, run_id)
    own, *children = [budget["own"], *(child["dimensions"] for child in budget["children"])]
    assert 1 < len(turns) <= 6
    assert budget["dimensions"]["iterations"]["spent"] <= 12
    for dimension in ("iterations", "tokens"):
        used = own[dimension]["spent"] + sum(child[dimension]["spent"] for child in children)
        assert used == budget["dimensions"][dimension]["spent"]


def test_a_stop_of_a_run_that_has_ended_ends_what_it_set_in_motion(shared: Shared) -> None:
    hermes, _ = shared
    slow = script({"text": "I take my time.", "delay_s": 600}, final="never said")
    sent = {"name": "delegate_task", "arguments": {"goal": script(final="nothing to do"), "background": True}}
    later = {"name": "delegate_task", "arguments": {"goal": slow, "background": True}}
    steps = [
        {"calls": [sent]},
        {"text": "Somebody is under way."},
        {"calls": [later]},
        {"text": "Somebody else is under way."},
    ]
    run_id = submitted(hermes, "stopped", script(*steps))

    def second_turn_ended() -> bool:
        turns = runs_of(hermes, "stopped")
        return len(turns) == 2 and all(turn["status"] == "completed" for turn in turns)

    wait_for(second_turn_ended)
    stopped = hermes.inline("runs", "stop", run_id)
    assert stopped.out.split() == [run_id, "completed"], stopped.said
    [child] = re.findall(r"run_[0-9a-f]{32}", stopped.err)
    wait_for(lambda: hermes.run_of(child)["status"] == "cancelled")
    assert all_ended(hermes, run_id)
    assert len(runs_of(hermes, "stopped")) == 2
