"""``terminal`` in the background and ``process``, with real processes and rows that the test keeps."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from support.patience import PATIENCE_S

from hermes_worker.agent.tools.base import ToolContext
from hermes_worker.agent.tools.builtin import PROCESS, TERMINAL
from hermes_worker.agent.tools.dispatch import run_tool
from hermes_worker.agent.tools.planning import find_replay_class
from hermes_worker.agent.tools.screen import render_screen
from hermes_worker.agent.tools.shell_variables import read_terminal_size
from hermes_worker.core.errors import HermesError
from hermes_worker.core.replay import Replay
from hermes_worker.workspaces.base import HostLost, TerminalSize


@dataclass
class KeptProcess:
    process_id: str
    command: str
    has_terminal: int
    patterns: Sequence[str]
    notifies: bool
    state: str = "starting"
    exit_code: int | None = None
    started_at: float = 1.0
    ended_at: float | None = None
    now: float = 3.0


class KeptRows:
    """Rows in memory."""

    cannot_tell: str | None = None

    def __init__(self) -> None:
        self.rows: dict[str, KeptProcess] = {}
        self.is_full = False

    def begin(
        self, command: str, *, lifetime_s: float, has_terminal: bool, notifies: bool, patterns: Sequence[str]
    ) -> str:
        if self.is_full:
            raise HermesError("16 background processes run in this session already")
        name = f"proc_{len(self.rows):012x}"
        self.rows[name] = KeptProcess(name, command, int(has_terminal), patterns, notifies)
        return name

    def mark_started(self, process_id: str) -> None:
        self.rows[process_id].state = "running"

    def mark_not_started(self, process_id: str) -> None:
        del self.rows[process_id]

    def list_processes(self) -> Sequence[KeptProcess]:
        return list(self.rows.values())

    def find(self, process_id: str) -> KeptProcess | None:
        return self.rows.get(process_id)

    def mark_reported(self, process_id: str, state: str, exit_code: int | None) -> None:
        self.rows[process_id].state, self.rows[process_id].ended_at = state, 2.0


class StopWhileWaiting(threading.Event):
    def wait(self, timeout: float | None = None) -> bool:
        self.set()
        return True


class Calls:
    def __init__(self, session: Any) -> None:
        self.session, self.rows = session, KeptRows()

    def __call__(self, name: str, /, **arguments: Any) -> Any:
        context: ToolContext = replace(self.session.context(), processes=self.rows)
        return json.loads(run_tool(self.session.catalog.get(name), json.dumps(arguments), context).text)

    def stopped(self, name: str, /, **arguments: Any) -> Any:
        """As a call that is stopped while it waits."""
        context = replace(self.session.context(), processes=self.rows, cancelled=StopWhileWaiting())
        return json.loads(run_tool(self.session.catalog.get(name), json.dumps(arguments), context).text)

    def start(self, command: str, **arguments: Any) -> str:
        return str(self("terminal", command=command, background=True, **arguments)["session_id"])

    def until(self, process: str, text: str) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while text not in (found := self("process", action="log", session_id=process))["output"]:
            assert time.monotonic() < deadline, found
            time.sleep(0.05)
        return found


@pytest.fixture
def calls(session: Any) -> Iterator[Calls]:
    made = Calls(session)
    yield made
    for name in made.rows.rows:
        session.workspace.remove_process(name)


def test_a_stop_ends_the_wait_for_a_process_and_not_the_process(calls: Calls) -> None:
    process = calls.start("read a; echo got:$a")
    began = time.monotonic()
    assert calls.stopped("process", action="wait", session_id=process)["status"] == "timeout"
    assert time.monotonic() - began < 10
    assert calls("process", action="poll", session_id=process)["status"] == "running"


def test_a_process_is_started_written_to_and_waited_for(calls: Calls) -> None:
    process = calls.start("read a; echo got:$a; exit 4")
    assert calls("process", action="poll", session_id=process)["status"] == "running"
    assert calls("process", action="submit", session_id=process, data="x y")["bytes_written"] == 4
    found = calls("process", action="wait", session_id=process)
    assert (found["status"], found["exit_code"], found["output"]) == ("exited", 4, "got:x y\n")
    assert calls.rows.rows[process].state == "exited"
    assert "has exited" in calls("process", action="write", session_id=process, data="z")["error"]
    [listed] = calls("process", action="list")["processes"]
    assert (listed["session_id"], listed["status"]) == (process, "exited")


def test_what_stands_in_environment_files_is_hidden_in_its_output(calls: Calls, session: Any) -> None:
    session.workspace.write_bytes("env", b"API_TOKEN=plain-looking-words-of-nobody\nPORT=8080\n")
    session("terminal", command="mv env .env")
    process = calls.start("cut -d= -f2- .env; read a")
    found = calls.until(process, "8080")
    assert "plain-looking" not in json.dumps({**found, "command": ""}).replace("«redacted:plai", "")
    assert "plain-looking" not in calls("process", action="poll", session_id=process)["output_preview"]


def test_the_end_of_input_and_the_end_itself(calls: Calls) -> None:
    process = calls.start("cat; echo over; sleep 100")
    calls("process", action="write", session_id=process, data="no line end")
    calls("process", action="close", session_id=process)
    calls.until(process, "no line endover")
    assert calls("process", action="kill", session_id=process)["status"] == "killed"
    assert calls("process", action="kill", session_id=process)["status"] == "already_exited"


def test_a_log_is_read_in_pages(calls: Calls) -> None:
    process = calls.start("seq 1 500; sleep 100")
    assert calls.until(process, "500")["output"].startswith("301\n")
    page = calls("process", action="log", session_id=process, offset=10, limit=3)
    assert (page["output"], page["showing"], page["total_lines"]) == ("11\n12\n13", "lines 11 to 13", 500)


def test_secrets_of_the_session_are_hidden_in_output_and_command(calls: Calls) -> None:
    calls.session("terminal", command="export API_TOKEN=s3cr3t-value-of-mine")
    process = calls.start("echo s3cr3t-value-of-mine is $API_TOKEN; sleep 100")
    assert "s3cr3t" not in json.dumps(calls.until(process, "is"))
    assert "s3cr3t" not in calls.rows.rows[process].command


def test_it_begins_in_the_folder_and_with_the_variables_of_the_session(calls: Calls) -> None:
    calls.session("terminal", command="mkdir deep; cd deep; export WHO=me")
    assert calls("process", action="wait", session_id=calls.start("pwd; echo $WHO"))["output"].endswith("/deep\nme\n")


def test_who_can_be_told_is_told_and_others_know_that_they_are_not(calls: Calls) -> None:
    said = calls("terminal", command="true", background=True, notify_on_complete=True, watch_patterns=["a", ""])
    row = calls.rows.rows[said["session_id"]]
    assert (said["notify_on_complete"], said["watch_patterns"], row.notifies, row.patterns) == (
        True,
        ["a"],
        True,
        ["a"],
    )
    calls.rows.cannot_tell = "this run has nobody to tell"
    said = calls("terminal", command="true", background=True, notify_on_complete=True)
    assert "this run has nobody to tell" in said["note"] and not calls.rows.rows[said["session_id"]].notifies


def test_what_is_not_started_leaves_no_row(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "missing" in calls("terminal", command="true", background=True, workdir="missing")["error"]
    assert calls.rows.rows == {}
    many = [f"p{n}" for n in range(11)]
    assert "at most 10" in calls("terminal", command="true", background=True, watch_patterns=many)["error"]
    calls.rows.is_full = True
    assert "already" in calls("terminal", command="true", background=True)["error"]


def test_one_of_which_nobody_knows_whether_it_runs_keeps_its_row(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object) -> None:
        raise HostLost("the host went away")

    monkeypatch.setattr(calls.session.workspace, "start_process", lost)
    assert calls("terminal", command="true", background=True)["status"] == "outcome_unknown"
    assert [row.state for row in calls.rows.rows.values()] == ["starting"]


def test_other_sessions_processes_are_not_there(calls: Calls) -> None:
    for action in ("poll", "kill", "write"):
        assert "there is no process" in calls("process", action=action, session_id="proc_ffffffffffff")["error"]
    assert "is needed" in calls("process", action="poll")["error"]


def test_without_rows_there_are_none(session: Any) -> None:
    assert "not available" in session.error("terminal", command="true", background=True)
    assert "not available" in session.error("process", action="list")


def test_a_terminal_is_given_in_the_size_of_the_session(calls: Calls) -> None:
    calls.session("terminal", command="export LINES=11 COLUMNS=77")
    text = "stty size; printf 'a\\rb\\r\\n\\033[31mred\\033[0m\\n'"
    assert calls("terminal", command=text, pty=True)["output"] == "11 77\nb\nred\n"
    assert calls("process", action="wait", session_id=calls.start(text, pty=True))["output"] == "11 77\nb\nred\n"


@pytest.mark.parametrize("value", ["0", "-1", "9999999", "x", "²"])
def test_a_size_that_is_none_is_passed_over(value: str) -> None:
    assert read_terminal_size({"LINES": value, "COLUMNS": value}) == TerminalSize()


def test_what_is_shown_of_a_screen_takes_linear_time() -> None:
    assert render_screen("10%\r50%\r100%\r\nab\b\bcd\x07\x1b]0;title\x07e\n") == "100%\ncde\n"
    began = time.process_time()
    render_screen("x\r" * 300_000 + "\b" * 300_000 + "\x1b[" * 100_000)
    assert time.process_time() - began < 5


def test_the_replay_class_is_that_of_the_action() -> None:
    def of(**arguments: Any) -> Replay:
        return find_replay_class(PROCESS, json.dumps(arguments))

    assert {of(action=action) for action in ("list", "poll", "log", "wait")} == {Replay.PURE}
    assert of(action="kill") is Replay.KEYED
    assert {of(action=action) for action in ("write", "submit", "close", "nonsense")} == {Replay.ONCE}
    assert {find_replay_class(PROCESS, text) for text in ("", "[]", '{"action": ["poll"]}', "{")} == {Replay.ONCE}
    assert find_replay_class(TERMINAL, '{"background": true}') is Replay.ONCE
