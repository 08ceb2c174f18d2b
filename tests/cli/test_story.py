"""``runs show`` tells a run as a story, and each of its parts whole."""

from __future__ import annotations

import json
import re

from support.commandline import CommandLine
from support.store import Store

from hermes_worker.core.replay import Replay


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


def test_a_run_that_did_nothing_yet_has_no_empty_parts(hermes: CommandLine, store: Store) -> None:
    shown = hermes.inline("runs", "show", store.submit().run_id).out
    assert "asked:" in shown and "did:" not in shown and "answered:" not in shown
