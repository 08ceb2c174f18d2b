"""A tree of runs on the command line: its budget, its limits, its one off switch."""

from __future__ import annotations

import json
from dataclasses import replace

import click
from support.commandline import CommandLine
from support.store import SPEC, Store, asks, settlement

from hermes_worker.cli.children import FamilyWatch
from hermes_worker.core.questions import Refusal, RefusedBy
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import CallStatus
from hermes_worker.services.sheets import load_news
from hermes_worker.store.runs.new_children import NewChild


def tree(store: Store) -> tuple[str, str]:
    root = store.with_tools(Replay.PURE, iterations_max=10, tokens_max=1_000)
    child = NewChild(
        run_id="run_child", spec=replace(SPEC, iterations_max=99), system_prompt="", tools="[]", workspace="{}"
    )
    store.calls.delegate(store.call(root), [child], children_max=1)
    return root, child.run_id


def test_show_says_what_a_tree_may_use_and_who_used_it(hermes: CommandLine, store: Store) -> None:
    root, child = tree(store)
    store.turn(child)
    shown = hermes.inline("runs", "show", root)
    assert shown.code == 0
    lines = [line.split() for line in shown.out.splitlines()]
    assert ["iterations", "10", "1", "1"] in lines
    assert ["tokens", "1,000", "15", "15"] in lines
    assert ["run_child", "running", "0", "1", "0", "0", "$0.00"] in lines
    document = json.loads(hermes.inline("runs", "show", root, "--json").out)
    assert document["budget"]["dimensions"]["iterations"] == {"limit": 10, "reserved": 1, "spent": 1}
    assert document["budget"]["children"][0]["run_id"] == child


def test_stop_reaches_every_descendant_and_may_be_said_twice(hermes: CommandLine, store: Store) -> None:
    root, child = tree(store)
    store.ask_tools(child, asks(Replay.PURE))
    for _ in range(2):
        stopped = hermes.inline("runs", "stop", root)
        assert (stopped.code, stopped.out.split()) == (0, [root, "cancelled"])
    assert store.status(child).value == "cancelled"


def test_a_stop_of_a_run_that_has_ended_says_what_it_stopped(hermes: CommandLine, store: Store) -> None:
    root = store.with_tools(Replay.PURE)
    [child] = store.delegate(root, 1, note="dispatched")
    store.answer(root)
    stopped = hermes.inline("runs", "stop", root)
    assert (stopped.code, stopped.out.split()) == (0, [root, "completed"])
    assert f"stopped with it: {child}\n" in stopped.err
    assert store.status(child).value == "cancelled"


def test_limits_of_a_submission_are_stored_with_its_run(hermes: CommandLine, store: Store) -> None:
    limits = ("--max-iterations", "5", "--max-tokens", "700", "--max-tool-calls", "8", "--budget", "mixed")
    accepted = hermes.inline("submit", "hello", "--model", "m", *limits)
    assert accepted.code == 0, accepted.err
    claim = store.turn(accepted.out.strip())
    spec = store.calls.load_spec(claim.loaded.pk)
    assert (spec.iterations_max, spec.tokens_max, spec.tool_calls_max, spec.budget) == (5, 700, 8, "mixed")


def test_a_limit_in_money_needs_a_price(hermes: CommandLine, store: Store) -> None:
    hermes.environ |= {"HERMES_PROVIDER": "custom", "HERMES_BASE_URL": "http://127.0.0.1:1/v1"}
    refused = hermes.inline("submit", "hello", "--max-cost-usd", "0.5", "--model", "nobody-knows")
    assert refused.code == 2
    assert "it is not known what 'nobody-knows' costs" in refused.err


def test_a_tree_shows_its_children_and_what_was_refused_to_them(hermes: CommandLine, store: Store) -> None:
    root, child = tree(store)
    claim = store.turn(child)
    store.ask_tools_with(claim, asks(Replay.ONCE))
    refusal = Refusal(by=RefusedBy.RULES, reason="Blocked: it removes everything")
    store.calls.settle(store.call(child), replace(settlement("no", status=CallStatus.FAILED), refusal=refusal))
    shown = hermes.inline("runs", "show", root).out
    assert ["run_child", "running", "-", "hello"] in [line.split() for line in shown.splitlines()]
    assert "run_child: tool0 refused by the rules of this installation: Blocked: it removes everything" in shown

    watch = FamilyWatch()

    def news() -> list[str]:
        return watch.render_changes(load_news(store.database, root))

    told = [click.unstyle(line) for line in news()]
    assert told == [
        "child 1 running: hello (run_child)",
        "run_child: tool0 refused by the rules of this installation: Blocked: it removes everything",
    ]
    assert news() == []
    store.answer(child)
    assert [line.partition(":")[0] for line in news()] == ["child 1 completed"]
