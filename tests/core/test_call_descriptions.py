"""What a call is told with: one line for each tool, from arguments that may be anything."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_worker.core.call_descriptions import _DESCRIBERS, describe_call

_PATCH = "*** Begin Patch\n*** Update File: a.py\n@@\n-old\n+new\n+more\n*** Add File: b.py\n+one\n*** End Patch"
_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
_NAMES = st.sampled_from(["path", "command", "todos", "tasks", "goal", "patch", "code", "urls", "target", "message"])


@pytest.mark.parametrize(
    ("tool", "arguments", "about"),
    [
        ("terminal", {"command": "git log\n  --oneline", "timeout": 5}, "git log --oneline"),
        ("terminal", {"command": "sleep 9", "background": True}, "sleep 9, in the background"),
        (
            "todo",
            {"todos": [{"status": "in_progress"}, {"status": "pending"}, {"status": "pending"}, {"id": 4}]},
            "4 items, 1 in progress",
        ),
        ("todo", {}, "read the list"),
        (
            "delegate_task",
            {"tasks": [{"goal": "count birds"}, {"goal": "name them"}]},
            "2 goals: count birds; name them",
        ),
        ("delegate_task", {"goal": "count birds"}, "count birds"),
        ("patch", {"path": "a.py", "old_string": "one", "new_string": "one\ntwo"}, "a.py +2 -1"),
        ("patch", {"mode": "patch", "patch": _PATCH}, "a.py, b.py +3 -1"),
        ("write_file", {"path": "a.py", "content": "one\ntwo\n"}, "a.py, 2 lines"),
        ("read_file", {"path": "a.py", "offset": 40}, "a.py, from line 40"),
        ("execute_code", {"code": "\nimport os\nprint(1)"}, "2 lines: import os"),
        ("send_message", {"target": "telegram:1", "message": "it is done"}, "telegram:1: it is done"),
        ("weather", {"city": "Bern", "days": 3, "units": None}, "city=Bern days=3 units=null"),
        ("terminal", {"cmd": "ls"}, "cmd=ls"),
    ],
)
def test_each_tool_is_told_by_what_matters_of_its_arguments(tool: str, arguments: object, about: str) -> None:
    assert describe_call(tool, json.dumps(arguments)) == about


@pytest.mark.parametrize(
    ("arguments", "about"),
    [('{"path":"a.t', "path=a.t"), ('{"path":"a\\nb","content":"x\\', "path=a b content=x"), ("[1]", "[1]"), ("", "")],
)
def test_arguments_that_are_no_whole_object_are_told_as_far_as_they_go(arguments: str, about: str) -> None:
    assert describe_call("terminal", arguments) == about


@given(tool=st.sampled_from([*_DESCRIBERS, "weather"]), given=st.dictionaries(_NAMES | st.text(), _JSON, max_size=6))
def test_whatever_a_model_writes_is_told_on_one_line_that_a_row_can_hold(tool: str, given: dict[str, object]) -> None:
    about = describe_call(tool, json.dumps(given))
    assert "\n" not in about and "\0" not in about
    about.encode()
