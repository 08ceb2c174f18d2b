"""``hermes-worker top`` as a person uses it: in a terminal that tmux plays, with a real server and real workers."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.commandline import COMMAND, CommandLine, Running, call, script, wait_for
from support.tmux_program import TmuxTerminal, tmux_terminal

pytestmark = pytest.mark.machine

QUIET = {"TERM": "tmux-256color", "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1"}
REVERSED = re.compile(r"\x1b\[(0;)?7m")
ASKS = script(call("terminal", command="rm -rf ./build"), final="Asked and done.")


@pytest.fixture(scope="module")
def hermes(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    # A test that fails leaves a call that must not run twice at work, and a worker waits ten minutes for one.
    drain = {"HERMES_DRAIN_S": "5", "HERMES_DRAIN_ONCE_S": "5"}
    return CommandLine(tmp_path_factory.mktemp("top") / "home", drain)


@pytest.fixture(scope="module")
def up(hermes: CommandLine) -> Iterator[Running]:
    with hermes.up() as running:
        yield running


@contextmanager
def looking(hermes: CommandLine, tmp_path: Path) -> Iterator[TmuxTerminal]:
    command = [COMMAND, "top", "--every", "0.5"]
    with tmux_terminal(tmp_path / "terminal", command, {**hermes.environ, **QUIET}) as terminal:
        terminal.wait_for("spent today")
        yield terminal


def begun(hermes: CommandLine, prompt: str) -> str:
    submitted = hermes.inline("submit", prompt)
    assert submitted.code == 0, submitted.err
    return submitted.out.split()[0]


def wait_for_status(hermes: CommandLine, run_id: str, status: str) -> None:
    wait_for(lambda: hermes.run_of(run_id)["status"] == status or None, saying=f"for {status}")


def chosen(terminal: TmuxTerminal, run_id: str) -> None:
    """Goes down to the row of a run, which is shown reversed."""

    def stands_on_it() -> bool | None:
        if any(REVERSED.search(line) and run_id[:16] in line for line in terminal.escapes.splitlines()):
            return True
        terminal.key("Down")
        return None

    wait_for(stands_on_it, saying=f"for {run_id} to be chosen:\n{terminal.text}")


def test_a_person_sees_what_waits_allows_it_and_leaves(hermes: CommandLine, up: Running, tmp_path: Path) -> None:
    run_id = begun(hermes, ASKS)
    with looking(hermes, tmp_path) as terminal:
        shown = terminal.wait_for("rm -rf ./build")
        assert "questions 1" in shown and "waiting for approval" in shown and "WORKER" in shown and "QUEUE" in shown
        chosen(terminal, run_id)
        terminal.key("a")
        terminal.wait_for("allow it once (recursive delete; no checkpoint keeps build")
        terminal.key("n")
        terminal.wait_for("nothing was done")
        assert hermes.run_of(run_id)["status"] == "waiting_for_approval"
        terminal.key("a")
        terminal.wait_for("allow it once (recursive delete; no checkpoint keeps build")
        terminal.key("y")
        terminal.wait_for("questions: none")
        wait_for_status(hermes, run_id, "completed")
        terminal.key("q")
        assert terminal.wait_for_end() == 0


def test_a_run_is_opened_paused_resumed_and_stopped(hermes: CommandLine, up: Running, tmp_path: Path) -> None:
    run_id = begun(hermes, script(call("terminal", command="sleep 300")))
    with looking(hermes, tmp_path) as terminal:
        chosen(terminal, run_id)
        terminal.key("Enter")
        shown = terminal.wait_for("Esc back")
        assert "model calls of at most" in shown and "1.0  terminal" in shown
        terminal.key("Escape")
        terminal.wait_for("p pause")
        terminal.key("p")
        wait_for_status(hermes, run_id, "paused")
        terminal.wait_for("paused ")
        terminal.key("p")
        wait_for(lambda: hermes.run_of(run_id)["status"] != "paused" or None, saying="for it to go on")
        terminal.key("s")
        terminal.wait_for("and all that it caused? y does it")
        terminal.key("y")
        wait_for_status(hermes, run_id, "cancelled")
        terminal.wait_for("runs: none")
        terminal.key("C-c")
        assert terminal.wait_for_end() == 0


def test_a_server_that_is_away_is_said_and_comes_back(hermes: CommandLine, up: Running, tmp_path: Path) -> None:
    with looking(hermes, tmp_path) as terminal:
        api = up.child("api")
        api.send_signal(signal.SIGSTOP)
        try:
            terminal.wait_for("not connected, this is how it was: the server has not answered")
        finally:
            api.send_signal(signal.SIGCONT)
        wait_for(lambda: "not connected" not in terminal.text or None, saying="for the server to be there again")
        terminal.key("q")
        assert terminal.wait_for_end() == 0
