"""Trees, calls, approvals, workers and spend on the command line, over a database of its own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.commandline import CommandLine, Finished
from support.questions import DANGER, QUESTION
from support.store import Store, asks

from hermes_worker.core.pricing import CostStatus
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import RunStatus
from hermes_worker.store.runs.waits import Waits
from hermes_worker.store.tables import runs
from hermes_worker.store.worker_claims import load_workers


def documents(finished: Finished) -> list[dict[str, Any]]:
    assert finished.code == 0, finished.err
    return [json.loads(line) for line in finished.out.splitlines()]


def asked(store: Store, question: Any = DANGER, **spec: Any) -> str:
    run_id = store.with_tools(Replay.ONCE, **spec)
    Waits(store.database).ask(store.call(run_id), question)
    return run_id


# --- lists -----------------------------------------------------------------------------------------------------------


def test_a_list_has_the_columns_that_were_asked_for(hermes: CommandLine, store: Store) -> None:
    root = store.with_tools(Replay.PURE, source="cli", tags=("nightly",))
    [child] = store.delegate(root, 1)
    store.answer(child)

    assert hermes("runs", "list", "--all", "--columns", "status,run").out.splitlines() == [
        "STATUS     RUN",
        f"completed  {child}",
        f"running    {root}",
    ]
    wide = hermes("runs", "list", "-o", "wide").out.splitlines()
    assert wide[0].split()[:4] == ["TITLE", "STATUS", "CREATED", "TOOK"]
    assert "nightly" in wide[1]
    wrong = hermes("runs", "list", "--columns", "run,stauts")
    assert wrong.code == 2
    assert "Did you mean 'status'?" in wrong.err
    assert hermes("runs", "list", "--columns", "run", "-o", "wide").code == 2


def test_runs_are_listed_by_where_they_came_from_and_by_who_began_them(hermes: CommandLine, store: Store) -> None:
    root = store.with_tools(Replay.PURE, source="cli")
    [child] = store.delegate(root, 1)
    other = store.submit(source="cron").run_id

    def listed(*words: str) -> list[str]:
        return hermes("runs", "list", "--columns", "run", *words).out.splitlines()[1:]

    assert listed("--source", "cron") == [other]
    assert listed("--parent", root[:20]) == [child]
    dry = hermes("runs", "stop", "--parent", root, "--dry-run").out
    assert dry.split()[0] == child


@pytest.mark.parametrize(
    ("columns", "named"),
    [("80", "TITLE STATUS WHEN RUN"), ("120", "TITLE STATUS WHEN TOOK COST MODEL RUN")],
)
def test_a_list_says_what_was_asked_and_folds_what_was_delegated(
    hermes: CommandLine, store: Store, columns: str, named: str
) -> None:
    root = store.with_tools(Replay.PURE, input="Compare the offers\nof these three")
    [child] = store.delegate(root, 1)
    store.ask_tools(child, asks(Replay.PURE))
    [grandchild] = store.delegate(child, 1)
    hermes.environ["COLUMNS"] = columns

    [header, line] = hermes("runs", "list").out.splitlines()
    assert [name for name in header.split() if name in named.split()] == named.split()
    assert ("MODEL" in header) == ("MODEL" in named), "it is spared first where there is no room"
    assert line.startswith("Compare the offers (+2)  waiting_for_children  ")
    assert line.split()[-1] in root
    opened = hermes("runs", "list", "--tree").out.splitlines()[1:]
    assert [len(each) - len(each.lstrip()) for each in opened] == [0, 2, 4]
    assert all(len(each) <= int(columns) for each in [header, *opened])
    assert hermes("runs", "list", "-o", "name").out.split() == [root]
    assert hermes("runs", "list", "--all", "-o", "name").out.split() == [grandchild, child, root]
    [document] = yaml.safe_load(hermes("runs", "list", "-o", "yaml").out)
    assert (document["title"], document["delegated"], document["kind"]) == ("Compare the offers", 2, "request")
    assert documents(hermes("runs", "list", "-o", "json")) == documents(hermes("runs", "list", "--json")) == [document]


# --- trees and calls -------------------------------------------------------------------------------------------------


def test_a_tree_is_shown_each_run_below_the_one_that_began_it(hermes: CommandLine, store: Store) -> None:
    root = store.with_tools(Replay.PURE)
    first, second = store.delegate(root, 2)
    store.ask_tools(first, asks(Replay.PURE))
    [grandchild] = store.delegate(first, 1)
    store.answer(grandchild)

    lines = hermes("runs", "tree", second).out.splitlines()
    assert [line.split()[-1] for line in lines] == ["RUN", root, first, grandchild, second]
    assert [len(line) - len(line.lstrip()) for line in lines[1:]] == [0, 2, 4, 2]
    assert " done " in lines[3]
    found = documents(hermes("runs", "tree", root, "--json"))
    assert [(each["run_id"], each["parent_run_id"], each["depth"]) for each in found] == [
        (root, None, 0),
        (first, root, 1),
        (second, root, 1),
        (grandchild, first, 2),
    ]


def test_a_tree_is_narrowed_to_runs_that_fit_and_those_that_led_to_them(hermes: CommandLine, store: Store) -> None:
    root = store.with_tools(Replay.PURE)
    first, second = store.delegate(root, 2)
    store.ask_tools(first, asks(Replay.PURE))
    [grandchild] = store.delegate(first, 1)
    store.answer(grandchild)

    def shown(*words: str) -> list[str]:
        return [line.split()[-1] for line in hermes("runs", "tree", root, *words).out.splitlines()[1:]]

    assert shown("--status", "completed") == [root, first, grandchild]
    assert shown("--depth", "1") == [root, first, second]
    assert shown("--model", "nobody's") == []
    [only] = documents(hermes("runs", "tree", root, "--status", "completed", "--json"))
    assert only["run_id"] == grandchild


def test_a_tree_keeps_its_shape_on_a_narrow_terminal(hermes: CommandLine, store: Store) -> None:
    root = store.with_tools(Replay.PURE)
    [child] = store.delegate(root, 1)
    hermes.environ["COLUMNS"] = "80"
    lines = hermes("runs", "tree", root).out.splitlines()
    assert [line.split()[-1] for line in lines[1:]] == [root[:16], child[:16]]
    assert [len(line) - len(line.lstrip()) for line in lines[1:]] == [0, 2]
    assert all(len(line) <= 80 for line in lines)


def test_the_calls_of_a_run_are_listed_and_one_is_shown_whole(hermes: CommandLine, store: Store) -> None:
    run_id = store.with_tools(Replay.PURE, Replay.ONCE)
    store.settle(run_id, 0, "line one\nline two\x1b[31m")
    found = documents(hermes("runs", "calls", run_id, "--json"))
    assert [(each["tool"], each["effect"], each["status"]) for each in found] == [
        ("tool0", "pure", "succeeded"),
        ("tool1", "once", "pending"),
    ]
    assert "tool1" in hermes("runs", "calls", run_id).out

    shown = hermes("runs", "calls", run_id, found[0]["call"]).out
    assert "asked:\n  n: 0\n" in shown
    assert "did:\n  line one\n  line two<U+001B>[31m\n" in shown
    [whole] = documents(hermes("runs", "calls", run_id, found[0]["call"], "--json"))
    assert (whole["arguments"], whole["changed_arguments"]) == ('{"n":0}', None)
    assert whole["result"].startswith("line one\nline two")


@pytest.mark.parametrize("place", ["3", "first", "1.2.3"])
def test_what_names_no_call_is_refused_with_a_sentence(hermes: CommandLine, store: Store, place: str) -> None:
    run_id = store.with_tools(Replay.PURE)
    refused = hermes("runs", "calls", run_id, place)
    assert refused.code == 2
    assert "is no call" in refused.err


# --- people ----------------------------------------------------------------------------------------------------------


def test_what_waits_is_answered_by_its_number_and_stands_in_the_history(hermes: CommandLine, store: Store) -> None:
    command, question = asked(store), asked(store, QUESTION)
    open_lines = documents(hermes("approvals", "list", "--json"))
    assert [(each["run_id"], each["command"], each["question"]) for each in open_lines] == [
        (command, "rm -r build", None),
        (question, None, "Which?"),
    ]
    numbers = [str(each["id"]) for each in open_lines]
    assert hermes("approvals", "answer", numbers[0], "session").code == 0
    assert store.status(command) is RunStatus.RUNNING
    assert hermes("approvals", "answer", numbers[1], "2").code == 0
    late = hermes("approvals", "answer", numbers[0], "deny")
    assert late.code != 0
    assert "approvals history" in late.err

    assert hermes("approvals", "list").err.strip() == "nothing waits for a person"
    closed = documents(hermes("approvals", "history", "--json"))
    assert [(each["run_id"], each["outcome"], each["permits"]) for each in closed] == [
        (question, "answered", None),
        (command, "session", "recursive delete"),
    ]
    assert all(each["by"].startswith("cli:") for each in closed)
    shown = hermes("approvals", "history", "--kind", "approval").out
    assert command in shown
    assert question not in shown


def test_a_denied_call_is_called_so_and_no_failure(hermes: CommandLine, store: Store) -> None:
    run_id = asked(store)
    [line] = documents(hermes("approvals", "list", "--json"))
    assert hermes("approvals", "answer", str(line["id"]), "deny").code == 0
    [call] = documents(hermes("runs", "calls", run_id, "--json"))
    assert call["denied"] is True
    for words in (["calls", run_id], ["calls", run_id, call["call"]], ["show", run_id]):
        shown = hermes("runs", *words).out
        assert "denied" in shown and "failed" not in shown, shown


@pytest.mark.parametrize("verb", [["approvals", "answer"], ["runs", "approve"]])
def test_a_call_is_allowed_with_other_arguments_and_the_history_names_what_ran(
    hermes: CommandLine, store: Store, tmp_path: Path, verb: list[str]
) -> None:
    parameters = {"type": "object", "properties": {"command": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": "tool0", "parameters": parameters}}]
    run_id = asked(store, tools=json.dumps(tools))
    [line] = documents(hermes("approvals", "list", "--json"))
    instead = {"command": "rm -r build/tmp"}
    file = tmp_path / "arguments.json"
    file.write_text(json.dumps(instead))
    named = [str(line["id"]), "once"] if verb[0] == "approvals" else [run_id, "--wait-id", str(line["id"])]
    for wrong in ("rm -r build", "[1]", f"@{tmp_path / 'none.json'}"):
        refused = hermes(*verb, *named, "--arguments", wrong)
        assert (refused.code, "--arguments" in refused.err) == (2, True), refused.err
    allowed = hermes(*verb, *named, "--arguments", f"@{file}")
    assert allowed.code == 0, allowed.err
    [closed] = documents(hermes("approvals", "history", "--json"))
    assert (closed["command"], json.loads(closed["changed_arguments"])) == ("rm -r build", instead)
    assert "ran command=rm -r build/tmp, not rm -r build" in hermes("approvals", "history").out.replace("  ", " ")


def test_the_whole_of_a_long_command_is_shown_with_wide(hermes: CommandLine, store: Store) -> None:
    command = f"rm -r build\n{'x' * 300}\x1b[2J\n9  run_ffff  fake"
    asked(store, replace(DANGER, request={**DANGER.request, "command": command, "directory": "/srv/shop"}))
    assert "/srv/shop" in hermes("approvals", "list").out
    assert "xxxx" * 70 not in hermes("approvals", "list").out
    first, *rest = hermes("approvals", "list", "-o", "wide").out.splitlines()
    assert " once/session" in first
    assert {"    in: /srv/shop", "    rm -r build", "    9  run_ffff  fake"} <= set(rest)
    assert any("x" * 300 in line for line in rest)
    assert all(line.startswith("    ") and "\x1b" not in line for line in rest)


def test_a_command_that_the_list_shows_in_part_is_shown_whole_before_it_is_allowed(
    hermes: CommandLine, store: Store
) -> None:
    command = f"echo {'x' * 9_000}\u202e; rm -rf ~/photos"
    keys = {"pattern_keys": ["recursive delete", "SQL DROP"], "description": "recursive delete; SQL DROP"}
    run_id = asked(store, replace(DANGER, request={**DANGER.request, **keys, "command": command}))
    listed = hermes("approvals", "list")
    assert "… and 8,950 more characters" in listed.out
    assert "approvals show ID" in listed.err
    [line] = documents(hermes("approvals", "list", "--json"))
    assert line["pattern_keys"] == keys["pattern_keys"]
    number, whole = str(line["id"]), command.replace("\u202e", "<U+202E>")
    shown = hermes("approvals", "show", number).out
    assert "recursive delete; SQL DROP" in shown
    assert whole in shown
    assert whole in hermes("approvals", "answer", number, "once").err
    assert store.status(run_id) is RunStatus.RUNNING
    assert "approvals history" in hermes("approvals", "show", number).err


def test_a_word_that_is_no_choice_answers_nothing(hermes: CommandLine, store: Store) -> None:
    run_id = asked(store)
    [line] = documents(hermes("approvals", "list", "--json"))
    refused = hermes("approvals", "answer", str(line["id"]), "perhaps")
    assert refused.code != 0
    assert "once" in refused.err
    assert store.status(run_id) is RunStatus.WAITING_FOR_APPROVAL


def test_the_inbox_is_that_of_a_tenant_or_of_all(hermes: CommandLine, store: Store) -> None:
    mine = asked(store)
    theirs = asked(store, tenant="acme")
    assert [each["run_id"] for each in documents(hermes("approvals", "list", "--json"))] == [mine]
    everybody = documents(hermes("approvals", "list", "--all-tenants", "--json"))
    assert [(each["run_id"], each["tenant"]) for each in everybody] == [(mine, "default"), (theirs, "acme")]


# --- workers and money -----------------------------------------------------------------------------------------------


def test_workers_are_listed_and_one_is_asked_to_leave(hermes: CommandLine, store: Store) -> None:
    busy, idle = store.worker("busy", ttl_s=1e9), store.worker("idle", ttl_s=1e9)
    run_id = store.submit().run_id
    store.turn(run_id, owner=busy.pk)
    found = documents(hermes("fleet", "workers", "list", "--json"))
    assert [(each["name"], each["held"]) for each in found] == [("busy", {"model": 1}), ("idle", {})]
    assert f"model of {run_id}" in hermes("fleet", "workers", "list", "-o", "wide").out

    assert hermes("fleet", "workers", "drain", busy.worker_id[:10]).code == 0
    assert [view.draining_at is None for view in load_workers(store.database)] == [False, True]
    lines = hermes("fleet", "workers", "list").out.splitlines()
    assert ["draining" in line for line in lines[1:]] == [True, False]
    for name in ("nobody", ""):
        refused = hermes("fleet", "workers", "drain", name)
        assert refused.code != 0
        assert "workers list" in refused.err
    assert hermes("fleet", "workers", "drain", "idle").code == 0
    assert idle.worker_id


def test_spend_is_told_apart_and_says_what_is_not_known(hermes: CommandLine, store: Store) -> None:
    for model, usd in (("small", 1), ("large", 5)):
        known = {"cost_nano_usd": usd * 10**9, "cost_status": CostStatus.KNOWN.value}
        store.change(runs, store.submit(model=model).run_id, **known)
    store.change(runs, store.submit(model="odd").run_id, cost_status=CostStatus.UNKNOWN.value)

    found = documents(hermes("runs", "spend", "--by", "model", "--json"))
    assert [(each["key"], each["cost_usd"]) for each in found] == [("large", 5.0), ("small", 1.0), ("odd", None)]
    lines = hermes("runs", "spend", "--by", "model").out.splitlines()
    rows = [[cell.strip() for cell in line.split("  ") if cell.strip()][:3] for line in lines[1:]]
    assert rows == [["large", "1", "$5.00"], ["small", "1", "$1.00"], ["odd", "1", "no price known"]]
    assert lines[3].endswith("1 run")
    assert hermes("runs", "spend", "--by", "session").out.splitlines()[1].split("  ")[0] == "hello"
    assert hermes("runs", "spend", "--until", "2020-01-01").err.strip() == "no run was accepted in this time"
