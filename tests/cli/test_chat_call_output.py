"""What a chat shows of a tool call that has ended: its first lines, and all of them when it is opened."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_worker.cli.chat.call_output import LineMark, fold_output, open_output
from hermes_worker.cli.chat.turn import CallFolded, ChatEnd, TurnState, apply_event
from hermes_worker.schemas.runs import CallDetailObject


def ended(tool: str, result: object, **arguments: Any) -> CallDetailObject:
    text = result if isinstance(result, str) or result is None else json.dumps(result)
    fields = {"call": "3.0", "iteration": 3, "position": 0, "tool": tool, "effect": "once", "status": "succeeded"}
    none = dict.fromkeys(("waits_for", "claimed_at", "settled_at", "worker", "changed_arguments"))
    counts = {"attempts": 1, "takeovers": 0, "deaths": 0, "tool_call_id": "c"}
    return CallDetailObject.model_validate(
        {**fields, **none, **counts, "arguments": json.dumps(arguments), "result": text}
    )


def texts(call: CallDetailObject) -> list[str]:
    return [line.text for line in fold_output(call, "/show 3").lines]


@pytest.mark.parametrize(
    ("call", "lines"),
    [
        (ended("terminal", {"output": "a\nb\n", "exit_code": 0, "error": None}), ["a", "b"]),
        (
            ended("terminal", {"output": "x", "exit_code": 2, "exit_code_meaning": "usage"}),
            ["exit code 2: usage", "x"],
        ),
        (ended("terminal", {"output": "", "exit_code": 0, "error": None}), []),
        (ended("read_file", {"error": "no such file"}), ["no such file"]),
        (ended("other", {"kept": [1], "left": None}), ["kept: [1]"]),
        (
            ended("todo", {"todos": [{"content": "Find it", "status": "completed"}, {"content": "Mend it"}, 1]}),
            ["[x] Find it", "[ ] Mend it", "[ ] 1"],
        ),
        (ended("other", "plain\x1b[2J text"), ["plain<U+001B>[2J text"]),
        (ended("other", None), []),
        (ended("write_file", {"success": True}, path="a", content="one\ntwo\n"), ["+one", "+two"]),
    ],
)
def test_the_first_lines_say_what_a_call_did(call: CallDetailObject, lines: list[str]) -> None:
    assert texts(call) == lines


def test_a_long_output_is_folded_and_can_be_opened() -> None:
    call = ended("terminal", {"output": "\n".join(map(str, range(46))), "exit_code": 0}, command="seq")
    assert texts(call)[-2:] == ["5", "… 40 more lines, /show 3 opens them"]
    assert [line.text for line in open_output(call).lines] == ["command: seq", *map(str, range(46))]
    almost = ended("terminal", {"output": "\n".join(map(str, range(7))), "exit_code": 0})
    assert texts(almost) == [*map(str, range(7))], "the line that tells of one more takes as much room"


def test_a_diff_is_marked_line_by_line() -> None:
    call = ended("patch", {"success": True, "diff": "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-old\n+new\n same\n"})
    marks = [line.mark for line in fold_output(call, "/show 1").lines]
    assert marks == [*[LineMark.PLACE] * 3, LineMark.REMOVED, LineMark.ADDED, LineMark.PLAIN]


@given(st.text(max_size=200), st.dictionaries(st.sampled_from(["output", "diff", "error", "exit_code"]), st.text()))
def test_whatever_a_tool_says_is_shown_as_text(plain: str, document: dict[str, str]) -> None:
    for call in (
        ended("terminal", plain),
        ended("patch", document, content=plain),
        ended("write_file", "{}", content=plain),
    ):
        for line in (*fold_output(call, "/show 1").lines, *open_output(call).lines):
            assert line.text.isprintable(), line


def test_a_call_bears_its_place_and_what_i_stopped_says_so() -> None:
    state = TurnState(is_stopped_here=True)
    state, _ = apply_event(state, {"event": "message.completed", "text": "", "iteration": 4})
    state, shown = apply_event(state, {"event": "tool.completed", "tool": "x", "position": 1, "error": True})
    assert isinstance(shown[0], CallFolded) and (shown[0].place, shown[0].why) == ("4.1", "stopped by you")
    _, shown = apply_event(state, {"event": "run.cancelled"})
    assert isinstance(shown[0], ChatEnd) and shown[0].is_stopped_here
    _, shown = apply_event(state, {"event": "run.completed", "output": ""})
    assert isinstance(shown[0], ChatEnd) and not shown[0].is_stopped_here, "it was done before the stop came"
