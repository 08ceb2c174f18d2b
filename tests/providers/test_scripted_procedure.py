"""The scripted model against the real tools, in a real directory."""

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_worker.agent.tools.base import ToolContext
from hermes_worker.agent.tools.catalog import build_default_catalog
from hermes_worker.agent.tools.dispatch import run_tool
from hermes_worker.core.messages import (
    ModelReply,
    ToolRequest,
    build_assistant_body,
    build_tool_body,
    dump_canonical_json,
)
from hermes_worker.models.scripted.procedure import choose_next_reply
from hermes_worker.models.scripted.reply import Reply, ScriptedCall
from hermes_worker.models.scripted.report import NOT_A_MODEL
from hermes_worker.workspaces.local import LocalWorkspace

Row = dict[str, Any]
Execute = Callable[[ScriptedCall], str]

CATALOG = build_default_catalog()
TOOLS = [
    json.loads(definition)
    for definition in CATALOG.render_definitions(("read_file", "search_files", "terminal", "write_file"))
]
REPLIES_MAX = 10


def without(*names: str) -> list[Row]:
    return [tool for tool in TOOLS if tool["function"]["name"] not in names]


class Conversation:
    """A turn of the loop: ask, run the calls, ask again, until there is a final text."""

    def __init__(self, execute: Execute, tools: Any = TOOLS) -> None:
        self.rows: list[Row] = [{"role": "system", "content": "You are an agent."}]
        self.replies: list[Reply] = []
        self._execute = execute
        self._tools = tools

    def ask(self, text: str) -> str:
        self.rows.append({"role": "user", "content": text})
        for _ in range(REPLIES_MAX):
            reply = choose_next_reply(self.rows, self._tools)
            self.replies.append(reply)
            self.rows.append(row_of(reply))
            if not reply.calls:
                return reply.text
            for call in reply.calls:
                self.rows.append(json.loads(build_tool_body(call.id, self._execute(call))))
        raise AssertionError("the procedure does not come to an end")

    @property
    def called(self) -> list[str]:
        return [call.name for reply in self.replies for call in reply.calls]


def row_of(reply: Reply) -> Row:
    requests = tuple(ToolRequest(id=c.id, name=c.name, arguments=c.arguments_text) for c in reply.calls)
    row: Row = json.loads(build_assistant_body(ModelReply(text=reply.text, tool_requests=requests)))
    return row


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    root = tmp_path / "work"
    root.mkdir()
    return root


@pytest.fixture
def execute(directory: Path, tmp_path: Path) -> Execute:
    return executing(directory, tmp_path, os.environ["PATH"])


@pytest.fixture
def execute_without_git(directory: Path, tmp_path: Path) -> Execute:
    """On a PATH that has what a survey needs, and no git."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("env", "find", "head", "sed", "sleep", "sort", "wc"):
        (programs / name).symlink_to(str(shutil.which(name)))
    return executing(directory, tmp_path, str(programs))


def executing(directory: Path, home: Path, path: str) -> Execute:
    workspace = LocalWorkspace(str(directory), base_env={"PATH": path, "HOME": str(home)})

    def run(call: ScriptedCall) -> str:
        context = ToolContext(
            run_id="r",
            session_id="s",
            idempotency_key=call.id,
            attempt=1,
            workspace=workspace,
            session={},
            cancelled=threading.Event(),
        )
        return run_tool(CATALOG.get(call.name), call.arguments_text, context).text

    return run


def make_project(directory: Path) -> None:
    (directory / "src").mkdir()
    (directory / "README.md").write_text("# Demo\n\nWhat it is.\n")
    (directory / "src" / "app.py").write_text("def f():\n    # TODO: finish | this\n    return 1\n" + "x = 1\n" * 50)
    (directory / "data.json").write_text("{}\n")
    git = ["git", "-c", "user.email=a@b.test", "-c", "user.name=n", "-C", str(directory)]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "First steps"]):
        subprocess.run([*git, *arguments], check=True)
    (directory / "new.txt").write_text("FIXME\n")


# ---------------------------------------------------------------------------------------------------------- the survey


def test_it_surveys_a_project_and_writes_what_it_found(directory: Path, execute: Execute) -> None:
    make_project(directory)
    conversation = Conversation(execute)

    text = conversation.ask("What is in here?")

    report = (directory / "hermes-report.md").read_text()
    assert "| .py | 1 |" in report
    assert "| `src/app.py` | 53 |" in report
    assert "- [ ] `src/app.py:2` # TODO: finish | this" in report
    assert "- [ ] `new.txt:1` FIXME" in report
    assert "First steps" in report
    assert "?? new.txt" in report
    assert "# Demo" in report
    assert "4 files" in text
    assert "2 lines" in text
    assert NOT_A_MODEL in text and NOT_A_MODEL in report
    assert len(conversation.replies) == 5


def test_the_first_replies_ask_for_several_things_at_once(directory: Path, execute: Execute) -> None:
    make_project(directory)
    conversation = Conversation(execute)

    conversation.ask("go")

    assert [call.name for call in conversation.replies[0].calls] == ["search_files", "terminal", "terminal"]
    assert [call.name for call in conversation.replies[2].calls].count("read_file") >= 2


def test_ids_are_unique_in_a_session_of_several_turns(directory: Path, execute: Execute) -> None:
    make_project(directory)
    conversation = Conversation(execute)

    conversation.ask("first")
    conversation.ask("second")

    ids = [call.id for reply in conversation.replies for call in reply.calls]
    assert len(ids) == len(set(ids))
    assert len(conversation.replies) == 10


def test_its_own_report_is_not_part_of_the_next_survey(directory: Path, execute: Execute) -> None:
    make_project(directory)
    conversation = Conversation(execute)

    first = conversation.ask("go")
    second = conversation.ask("go")

    assert [line for line in first.splitlines() if "files" in line] == [
        line for line in second.splitlines() if "files" in line
    ]
    assert "2 lines" in second


def test_the_same_request_gets_the_same_bytes(directory: Path, execute: Execute) -> None:
    make_project(directory)
    conversation = Conversation(execute)
    conversation.ask("go")

    for end in range(2, len(conversation.rows)):
        rows = conversation.rows[:end]
        assert choose_next_reply(rows, TOOLS) == choose_next_reply(json.loads(dump_canonical_json(rows)), TOOLS)


def test_a_machine_without_git_is_no_trouble(directory: Path, execute_without_git: Execute) -> None:
    make_project(directory)

    text = Conversation(execute_without_git).ask("What is in here?")

    assert "4 files" in text
    assert text.count("git is not installed") == 1
    assert "uncommitted" not in text
    report = (directory / "hermes-report.md").read_text()
    assert "- git history: git is not installed" in report


def test_an_empty_directory_without_git_is_no_trouble(directory: Path, execute: Execute) -> None:
    text = Conversation(execute).ask("What is in here?")

    assert "0 files" in text
    assert text.count("not a git repository") == 1
    assert (directory / "hermes-report.md").exists()


def test_a_file_name_cannot_become_a_command(directory: Path, execute: Execute) -> None:
    (directory / "a; touch hacked; $(touch hacked2).py").write_text("# TODO one\n")
    (directory / "-rf").write_text("# FIXME two\n")

    text = Conversation(execute).ask("go")

    assert "2 lines" in text
    assert sorted(path.name for path in directory.iterdir()) == [
        "-rf",
        "a; touch hacked; $(touch hacked2).py",
        "hermes-report.md",
    ]


# ------------------------------------------------------------------------------------------------- when things go wrong


@pytest.mark.parametrize("missing", ["search_files", "terminal", "read_file", "write_file"])
def test_a_missing_tool_only_makes_the_report_shorter(directory: Path, execute: Execute, missing: str) -> None:
    make_project(directory)
    conversation = Conversation(execute, without(missing))

    text = conversation.ask("go")

    assert missing not in conversation.called
    assert NOT_A_MODEL in text
    assert (directory / "hermes-report.md").exists() == (missing != "write_file")


@pytest.mark.parametrize(
    "result",
    [
        '{"error":"the disk is on fire"}',
        "[TOOL_ERROR] RuntimeError: boom",
        "[Result unavailable]",
        "",
        "null",
        "[]",
        "{",
        '{"output":"","exit_code":124,"error":"the command was ended after 60 s"}',
        '{"files":5,"matches":"x","total_count":"many","output":7,"content":[1]}',
        '{"matches":[null,1,{"path":3},{"path":"a","line":"1"}],"files":[null,{"path":"a"},7]}',
        "<persisted-output>\nThe result has 200000 characters, too many to show here.",
    ],
)
def test_useless_results_end_in_an_honest_answer(result: str) -> None:
    conversation = Conversation(lambda _: result)

    text = conversation.ask("go")

    assert NOT_A_MODEL in text
    assert len(conversation.replies) <= 5


def test_text_behind_a_result_is_not_mistaken_for_the_result() -> None:
    listing = '{"files":["a.py","b.py"],"total_count":2}\n\n[You have used 70 % of your iterations.]'

    text = Conversation(lambda call: listing if "files" in call.id else "{}").ask("go")

    assert "2 files" in text


def test_a_listing_that_was_cut_reports_the_whole_number() -> None:
    listing = '{"files":["a.py","b.py"],"total_count":1234,"truncated":true}'

    text = Conversation(lambda call: listing if "files" in call.id else "{}").ask("go")

    assert "1234 files" in text


def test_unanswered_calls_count_as_not_known() -> None:
    rows: list[Row] = [{"role": "user", "content": "go"}]
    rows.append(row_of(choose_next_reply(rows, TOOLS)))

    reply = choose_next_reply(rows, without("search_files", "terminal", "write_file", "read_file")[:0])

    assert "no answer came" in reply.text


def test_a_request_without_tools_gets_a_summary_of_what_is_known(directory: Path, execute: Execute) -> None:
    make_project(directory)
    conversation = Conversation(execute)
    conversation.ask("go")
    in_the_middle = conversation.rows[:6]
    assert in_the_middle[-1]["role"] == "tool"
    in_the_middle.append({"role": "user", "content": "You have reached the limit. Summarise without tools."})

    reply = choose_next_reply(in_the_middle, None)

    assert reply.calls == ()
    assert "4 files" in reply.text
    assert "“go”" in reply.text


def test_a_report_that_cannot_be_written_is_not_announced(directory: Path, execute: Execute) -> None:
    refuse = '{"error":"read-only"}'

    text = Conversation(lambda call: refuse if call.name == "write_file" else execute(call)).ask("go")

    assert "has not been written" in text
    assert "read-only" in text


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=8), inner, max_size=2),
    max_leaves=4,
)
odd_rows = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool", "developer", ""])},
        optional={
            "content": json_values,
            "tool_call_id": json_values,
            "tool_calls": json_values | st.lists(st.fixed_dictionaries({"id": json_values, "function": json_values})),
        },
    ),
    max_size=5,
)


@settings(max_examples=60, deadline=None)
@given(rows=odd_rows, tools=json_values | st.just(TOOLS))
def test_any_rows_and_any_tools_get_a_reply(rows: list[Row], tools: Any) -> None:
    reply = choose_next_reply(rows, tools)

    assert reply.text or reply.calls
    assert reply == choose_next_reply(rows, tools)


# ----------------------------------------------------------------------------------------------------------- scripts


def scripted(document: Any, *, before: str = "") -> list[Row]:
    return [{"role": "user", "content": f"{before}scripted: {json.dumps(document)}"}]


def follow(rows: list[Row], replies: int) -> list[Reply]:
    given: list[Reply] = []
    for _ in range(replies):
        reply = choose_next_reply(rows, TOOLS)
        given.append(reply)
        rows.append(row_of(reply))
        rows += [json.loads(build_tool_body(call.id, "{}")) for call in reply.calls]
    return given


def test_a_script_is_followed_step_by_step() -> None:
    calls = [{"name": "terminal", "arguments": {"command": "ls"}}, {"name": "todo", "arguments": "{not json"}]
    document = {"steps": [{"text": "first", "calls": calls, "reasoning": "hm"}, {"text": "second"}], "final": "the end"}

    first, second, last = follow(scripted(document), 3)

    assert [(c.name, c.arguments_text) for c in first.calls] == [
        ("terminal", '{"command":"ls"}'),
        ("todo", "{not json"),
    ]
    assert (first.text, first.reasoning, first.settled_reason) == ("first", "hm", "tool_calls")
    assert (second.text, second.settled_reason) == ("second", "stop")
    assert (last.text, last.calls) == ("the end", ())


def test_a_repeated_step_is_numbered() -> None:
    step = {"repeat": 3, "text": "step {i}", "calls": [{"name": "echo", "arguments": {"n": ["{i}"], "x": 1}}]}

    replies = follow(scripted({"steps": [step]}), 4)

    assert [reply.text for reply in replies[:3]] == ["step 0", "step 1", "step 2"]
    assert [reply.calls[0].arguments_text for reply in replies[:3]] == [f'{{"n":["{n}"],"x":1}}' for n in range(3)]
    assert replies[3].calls == ()
    assert len({reply.calls[0].id for reply in replies[:3]}) == 3


def test_a_script_may_stand_behind_other_lines() -> None:
    assert follow(scripted({"final": "yes"}, before="Context of the platform.\n\n"), 1)[0].text == "yes"


def test_words_about_scripts_are_no_script(directory: Path, execute: Execute) -> None:
    text = Conversation(execute).ask("Explain what scripted: {} means")

    assert NOT_A_MODEL in text


def test_a_finished_script_lets_the_next_request_be_ordinary() -> None:
    rows = scripted({"final": "done"})
    follow(rows, 1)
    rows.append({"role": "user", "content": "And now?"})

    assert choose_next_reply(rows, TOOLS).calls[0].name == "search_files"


def test_a_script_goes_on_behind_a_row_that_the_loop_added() -> None:
    rows = scripted({"steps": [{"text": "half", "finish_reason": "length"}], "final": "whole"})
    assert follow(rows, 1)[0].settled_reason == "length"
    rows.append({"role": "user", "content": "Continue."})

    assert choose_next_reply(rows, TOOLS).text == "whole"


def test_the_newest_script_counts() -> None:
    rows = scripted({"steps": [{"repeat": 5, "text": "old"}]})
    follow(rows, 1)
    rows += scripted({"final": "new"})

    assert choose_next_reply(rows, TOOLS).text == "new"


@pytest.mark.parametrize(
    "directive",
    [
        "{",
        '{"steps": 5}',
        '{"steps": [1]}',
        '{"steps": [{"calls": [{}]}]}',
        '{"steps": [{"calls": [{"name": "a", "arguments": 5}]}]}',
        '{"steps": [{"repeat": -1}]}',
        '{"steps": [{"repeat": 1e9}]}',
        '{"steps": [{"repeat": 1000000}]}',
        '{"steps": [{"delay_s": -1}]}',
        '{"steps": [{"delay_s": "soon"}]}',
        '{"steps": [{"error": {"status": "x"}}]}',
    ],
)
def test_a_script_that_makes_no_sense_is_answered_with_what_is_wrong(directive: str) -> None:
    reply = choose_next_reply([{"role": "user", "content": f"scripted: {directive}"}], TOOLS)

    assert reply.text.startswith("The script cannot be followed")
