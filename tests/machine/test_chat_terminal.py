"""``hermes-worker chat`` as a person uses it: in a terminal that tmux plays, with a real server and real workers."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.commandline import COMMAND, CommandLine, Running, call, script, wait_for
from support.tmux_program import TmuxTerminal, tmux_terminal

from hermes_worker.client import HermesClient
from hermes_worker.local.paths import find_running_stack
from hermes_worker.schemas.runs import RunObject

pytestmark = pytest.mark.machine

QUIET = {"TERM": "tmux-256color", "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1"}


@pytest.fixture(scope="module")
def hermes(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    return CommandLine(tmp_path_factory.mktemp("chat") / "home")


@pytest.fixture(scope="module")
def up(hermes: CommandLine) -> Iterator[Running]:
    with hermes.up() as running:
        yield running


@contextmanager
def chatting(hermes: CommandLine, tmp_path: Path, *arguments: str) -> Iterator[TmuxTerminal]:
    with tmux_terminal(
        tmp_path / "terminal", [COMMAND, "chat", "--no-workspace", *arguments], {**hermes.environ, **QUIET}
    ) as terminal:
        terminal.wait_for("/help shows the commands")
        if "--continue" not in arguments:  # there a run may ask at once
            terminal.wait_for("\n>")
        yield terminal


def answered(terminal: TmuxTerminal, end_of_prompt: str) -> str:
    """What is shown behind what was typed, once the run has ended."""
    return terminal.wait_for("completed, ").rsplit(end_of_prompt, 1)[1]


def client_of(hermes: CommandLine) -> HermesClient:
    note = find_running_stack(hermes.home)
    assert note is not None and note.api_url is not None
    return HermesClient(note.api_url, home=hermes.home)


def find_completed(client: HermesClient, *, runs: int) -> RunObject | None:
    """The newest run, as soon as this many have been completed."""
    found = list(client.runs(limit=runs))
    return found[0] if [each["status"] for each in found] == ["completed"] * runs else None


def status_of_newest(hermes: CommandLine) -> str:
    with client_of(hermes) as client:
        return next(iter(client.runs(limit=1)))["status"]


def test_a_conversation(hermes: CommandLine, up: Running, tmp_path: Path) -> None:
    """Markdown, a folded call, completion, many lines, history, usage, another conversation, and the end."""
    answer = "# Title\n\nSome **bold** text.\n\n```\ncode  stays\n```"
    with chatting(hermes, tmp_path) as terminal:
        terminal.say(script(call("terminal", command="echo seen"), final=answer))
        shown = terminal.wait_for("completed, ")
        assert "✓ terminal  echo seen" in shown
        assert "Some bold text." in shown and "code  stays" in shown
        assert "**bold**" not in shown.split("✓ terminal")[1], "it is Markdown, and the prompt is what was typed"
        terminal.paste("first line\nsecond line\n" + script(final="Both read."))
        terminal.wait_for("second line")
        terminal.key("Enter")
        with client_of(hermes) as client:
            # What was typed holds the answer as well, so it is the runs that tell.
            newest = wait_for(lambda: find_completed(client, runs=2))
            told = list(client.messages(newest["session_id"]))
        assert any(str(each["content"]).startswith("first line\nsecond line\n") for each in told)
        terminal.type("/us")
        terminal.key("Tab")
        terminal.wait_for("> /usage")
        terminal.key("Enter")
        terminal.wait_for("model calls, 1 tool call, ")
        terminal.key("Up")
        terminal.key("Up")
        terminal.wait_for("> first line")
        terminal.key("C-c")
        terminal.say("/nwe")
        terminal.wait_for("did you mean /new?")
        terminal.key("C-d")
        assert terminal.wait_for_end() == 0


def test_ctrl_c_stops_the_run_and_not_the_program(hermes: CommandLine, up: Running, tmp_path: Path) -> None:
    with chatting(hermes, tmp_path) as terminal:
        terminal.say(script(call("terminal", command="sleep 300")))
        terminal.wait_for("terminal sleep 300")
        terminal.key("C-c")
        terminal.wait_for("stopped by you, ")
        assert status_of_newest(hermes) == "cancelled"
        terminal.say(script(final="Still here."))
        assert terminal.wait_for("completed, ").count("Still here.") == 2, "once typed, and once answered"


def test_the_agent_works_where_the_chat_stands(hermes: CommandLine, up: Running, tmp_path: Path) -> None:
    """The directory is asked about once; files are completed, calls opened, and commands of one's own run here."""
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "notes.txt").write_text("".join(f"line {number}\n" for number in range(30)))
    go = ["sh", "-c", f"cd {tmp_path / 'project'}; exec {COMMAND} chat"]
    with tmux_terminal(tmp_path / "first", go, {**hermes.environ, **QUIET}) as terminal:
        terminal.wait_for("May it work here?")
        terminal.say("y")
        terminal.wait_for(f"directory: {tmp_path / 'project'}")
        terminal.wait_for("\n>")
        terminal.type("@no")
        terminal.key("Tab")
        terminal.wait_for("> @notes.txt")
        terminal.key("C-u")
        terminal.say("!echo mine > mine.txt; echo written")
        terminal.wait_for("/share sends it")
        terminal.say(script(call("terminal", command="cat mine.txt notes.txt"), final="Read."))
        shown = terminal.wait_for("completed, ")
        assert "    mine\n    line 0\n" in shown and "… 25 more lines, /show 1 opens" in shown
        terminal.say("/show")
        terminal.wait_for("    line 29")
        terminal.say(script(call("terminal", command="sleep 300")))
        terminal.wait_for("terminal sleep 300")
        terminal.key("Escape")
        terminal.wait_for("stopped by you, ")
        terminal.key("C-d")
        assert terminal.wait_for_end() == 0
    with tmux_terminal(tmp_path / "again", go, {**hermes.environ, **QUIET}) as terminal:
        shown = terminal.wait_for(f"directory: {tmp_path / 'project'}")
        assert "May it work here?" not in shown


def test_questions_are_answered_in_place(hermes: CommandLine, up: Running, tmp_path: Path) -> None:
    with chatting(hermes, tmp_path) as terminal:
        asks = call("clarify", question="Which colour?", choices=["red", "blue"])
        terminal.say(script(asks, call("terminal", command="rm -rf ./build"), final="Done with both."))
        terminal.wait_for("? Which colour?")
        terminal.wait_for("answer >")
        terminal.say("2")
        terminal.wait_for("? wants to run")
        terminal.wait_for("allow? >")
        terminal.say("sure")
        terminal.wait_for("write once, session or always to allow it")
        terminal.say("once")
        shown = answered(terminal, 'Done with both."}')
        assert "Done with both." in shown
        assert "allowed by" in shown and "✓ terminal" in shown


def test_a_server_that_is_killed_in_the_middle_is_waited_for_and_nothing_is_shown_twice(
    hermes: CommandLine, up: Running, tmp_path: Path
) -> None:
    text = "\n\n".join(f"Paragraph {number:02} of it." for number in range(40))
    with chatting(hermes, tmp_path) as terminal:
        terminal.say(script(final=text, chunks=200, chunk_gap_s=0.05))
        wait_for(lambda: "Paragraph 05 of it." in terminal.text.rsplit("chunk_gap_s", 1)[-1] or None)
        up.child("api").send_signal(signal.SIGKILL)
        shown = answered(terminal, "chunk_gap_s")
        assert [shown.count(f"Paragraph {n:02} of it.") for n in range(40)] == [1] * 40
        assert "begun again" not in shown


def test_hostile_text_moves_nothing(hermes: CommandLine, up: Running, tmp_path: Path) -> None:
    hostile = (
        "red\x1b[31m \x1b]0;title\x07 &#x202e;turned \u202eturned <script>alert(1)</script> ![x](http://e.example/i)"
    )
    with chatting(hermes, tmp_path) as terminal:
        terminal.say(script(final=hostile, chunk_gap_s=0))
        shown = answered(terminal, "chunk_gap_s")
        assert "<script>alert(1)</script>" in shown, "HTML is text"
        assert "\u202e" not in shown and "\x1b]0;" not in terminal.escapes
        assert terminal.tmux("display-message", "-p", "#{pane_title}").strip() != "title"


def test_a_run_that_the_chat_was_left_with_is_gone_on_with(hermes: CommandLine, up: Running, tmp_path: Path) -> None:
    with chatting(hermes, tmp_path) as terminal:
        terminal.say(script(call("clarify", question="Shall I go on?"), final="Gone on with.", chunk_gap_s=0))
        terminal.wait_for("answer >")
        terminal.key("C-d")
        assert terminal.wait_for_end() == 0
        assert "the run goes on" in terminal.text
    assert status_of_newest(hermes) == "waiting_for_input"
    with chatting(hermes, tmp_path / "again", "--continue") as terminal:
        terminal.wait_for("answer >")
        terminal.say("yes")
        assert "Gone on with." in answered(terminal, "answer > yes")
    assert status_of_newest(hermes) == "completed"
