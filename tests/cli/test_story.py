"""``runs show`` tells a run as a story, and each of its parts whole."""

from __future__ import annotations

import json
import re

from support.commandline import CommandLine
from support.store import Store

from hermes_worker.core.effects import SendDelivery
from hermes_worker.core.errors import Failure
from hermes_worker.core.replay import Replay
from hermes_worker.store.outbox.deliveries import Deliveries


def test_a_run_is_told_by_what_was_asked_done_and_answered(hermes: CommandLine, store: Store) -> None:
    run_id = store.with_tools(Replay.PURE)
    store.settle(run_id, 0, '{"output": "it rains\\u001b[2J", "exit_code": 3}')
    store.answer(run_id)
    shown = hermes.inline("runs", "show", run_id).out
    parts = (r"asked:\n  hello", "did:", "tool0", "n=0", "answered:", "cost ")
    assert re.search(".*".join(parts), shown, re.DOTALL), shown

    calls = hermes.inline("runs", "show", run_id, "--calls").out
    assert "exit code 3" in calls and "it rains" in calls and "\x1b[2J" not in calls
    events = hermes.inline("runs", "show", run_id, "--events").out.splitlines()
    assert any("tool.started" in line and "about=n=0" in line for line in events), events
    assert "run.completed" in events[-1]
    messages = [json.loads(line) for line in hermes.inline("runs", "show", run_id, "--raw").out.splitlines()]
    assert [each["role"] for each in messages] == ["user", "assistant", "tool", "assistant"]


def test_one_call_is_told_by_its_arguments_its_verdict_its_time_and_its_output(
    hermes: CommandLine, store: Store
) -> None:
    run_id = store.with_tools(Replay.PURE)
    store.settle(run_id, 0, json.dumps({"output": "\n".join(f"line {n}" for n in range(100)), "exit_code": 0}))
    shown = hermes.inline("runs", "calls", run_id[:12], "1.0").out
    parts = (
        r"1\.0  ✓ tool0  n=0  \d",
        "status succeeded, begun ",
        "effect pure",
        r"asked:\n  n: 0",
        r"did:\n  line 0\n",
    )
    assert re.search(".*".join(parts), shown, re.DOTALL), shown
    opens = f"'hermes-worker runs calls {run_id} 1.0 --all'"
    assert shown.splitlines()[-1] == f"  … 60 more lines, {opens} opens them"
    assert hermes.inline("runs", "calls", run_id, "1.0", "--all").out.splitlines()[-1] == "  line 99"
    several = hermes.inline("runs", "show", run_id, "--calls").out
    assert f"… 94 more lines, 'hermes-worker runs calls {run_id} 1.0' opens them" in several


def test_a_run_that_did_nothing_yet_has_no_empty_parts(hermes: CommandLine, store: Store) -> None:
    shown = hermes.inline("runs", "show", store.submit().run_id).out
    assert "asked:" in shown and "did:" not in shown and "answered:" not in shown


def test_what_did_not_arrive_is_told_with_the_command_that_sends_it_again(hermes: CommandLine, store: Store) -> None:
    lost, tried = (store.submit(deliver=["telegram:42"]).run_id for _ in range(2))
    outbox, ids = Deliveries(store.database), {}
    for run_id in (lost, tried):
        store.answer(run_id)
        [owed] = outbox.list(run_id=run_id)
        claim = outbox.claim(SendDelivery(run_id=run_id, delivery_id=owed.delivery_id, attempt=1), store.owner)
        assert claim is not None
        failure, ids[run_id] = Failure(kind="refused", message="chat not found."), owed.delivery_id
        if run_id == lost:
            outbox.settle_failed(claim, failure, is_abandoned=False)
        else:
            outbox.postpone_retry(claim, failure, delay_s=3_600.0, adjustments=(), is_in_doubt=False)
    listed = hermes.inline("runs", "list", "--columns", "run,status").out.split("\n")[1:]
    assert [line.split(maxsplit=1)[1] for line in listed if line] == [
        "completed, delivering",
        "completed, not delivered",
    ]
    command = "'hermes-worker gateway deliveries"
    assert f"not delivered to telegram:42: chat not found; {command} retry {ids[lost]}'" in (
        hermes.inline("runs", "show", lost).out
    )
    watched = hermes.inline("runs", "watch", tried).out
    assert "not yet delivered to telegram:42 after 1 attempt, tried again in 59 min" in watched
    assert f"chat not found; {command} show {ids[tried]}' tells more" in watched
    assert json.loads(hermes.inline("runs", "show", lost, "--json").out)["undelivered"][0]["state"] == "failed"
