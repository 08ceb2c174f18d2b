"""The main job: one command, from nothing to an answer about the user's own files."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from support.commandline import CommandLine, call, script, wait_for
from support.patience import PATIENCE_S
from support.samples import leave_to_the_night

pytestmark = pytest.mark.e2e


def test_the_main_job_reports_on_the_users_own_files(installed: CommandLine, project: Path) -> None:
    hermes = installed
    with hermes.started("run", "--workspace", str(project)) as first:
        assert first.wait(PATIENCE_S) == 0, first.output

    assert "no API key found: using the scripted stand-in, not a language model" in first.output
    run_id = re.search(r"run_[0-9a-f]{32}", first.output)
    assert run_id
    assert f"report: {project / 'hermes-report.md'}" in first.output
    note = f"note: the survey will be written to {project}/hermes-report.md, in this git tree"
    assert 0 <= first.output.find(note) < first.output.find(" in " + str(project)), "it says so first"
    report = (project / "hermes-report.md").read_text()
    tracked = subprocess.check_output(["git", "ls-files"], cwd=project, text=True).split()
    assert f"{len(tracked)} files" in report
    assert all(name in report for name in tracked)
    assert "src/main.py:2" in report
    assert "src/other.py:1" in report
    assert "Say hello" in report
    shown = hermes.run_of(run_id[0])
    assert shown["status"] == "completed"
    assert shown["tool_calls"] == {"succeeded": sum(shown["tool_calls"].values())}

    warm = CommandLine(hermes.home)
    with warm.started("run", script(final="Again."), "--workspace", str(project)) as second:
        assert second.wait() == 0, second.output
    assert "preparing the database" not in second.output
    assert not first.survivors()


def test_ctrl_c_leaves_no_process_and_a_run_that_goes_on_later(hermes: CommandLine, project: Path) -> None:
    prompt = script(call("terminal", command="echo one >> steps"), {"text": "Thinking.", "delay_s": 600}, final="Two.")
    with hermes.started("run", prompt, "--workspace", str(project)) as running:
        wait_for((project / "steps").exists)
        running.interrupt()
        assert running.wait(PATIENCE_S) == 130, running.output
        wait_for(lambda: not running.survivors(), saying=str(running.survivors()))

    said = re.search(r"interrupted; (run_[0-9a-f]{32}) is kept", running.output)
    assert said, running.output
    assert "hermes-worker up" in running.output
    shown = hermes.inline("runs", "show", said[1])
    assert "running" in shown.out
    assert "'hermes-worker up' carries on from here" in shown.out
    stopped = hermes.inline("runs", "stop", said[1])
    assert stopped.out.strip() == f"{said[1]} cancelled"
    assert (project / "steps").read_text() == "one\n"


def test_a_run_meant_for_a_model_is_not_finished_by_the_stand_in(hermes: CommandLine, project: Path) -> None:
    given = ("--base-url", "http://127.0.0.1:9/v1", "--model", "nope")
    with hermes.started("run", "Count the files", *given, "--workspace", str(project)) as running:
        running.wait_for_line("^run_")
        running.interrupt()
        assert running.wait(PATIENCE_S) == 130, running.output
    said = re.search(r"interrupted; (run_[0-9a-f]{32}) is kept", running.output)
    assert said, running.output
    carry_on = re.search(r"to carry on:  hermes-worker (up .*)", running.output)
    assert carry_on, running.output
    assert carry_on[1].endswith("--model nope --base-url http://127.0.0.1:9/v1")
    assert "--base-url http://127.0.0.1:9/v1 --model nope" in hermes.inline("runs", "show", said[1]).out

    with hermes.started("up", "--port", "0") as stack:
        stack.wait_for_line("is up")
        wait_for(lambda: hermes.run_of(said[1])["status"] == "waiting_for_capacity")
        shown = hermes.inline("runs", "show", said[1]).out
        assert "it was given to nope at http://127.0.0.1:9/v1, and the workers ask the scripted stand-in" in shown
        refused = hermes.inline("submit", "Hello", "--model", "nope")
        assert refused.code == 2
        assert "nobody here serves 'nope'" in refused.said
        stack.interrupt()
        assert stack.wait(PATIENCE_S) == 0, stack.output
    assert not list(project.glob("hermes-report.md"))


@pytest.mark.parametrize("moment", leave_to_the_night(["starting", "run_"], but=1))
def test_ctrl_c_at_any_moment_leaves_no_process(installed: CommandLine, project: Path, moment: str) -> None:
    with installed.started("run", "--workspace", str(project)) as running:
        running.wait_for_line(moment)
        running.interrupt()
        assert running.wait(PATIENCE_S) in (0, 130), running.output
        wait_for(lambda: not running.survivors(), saying=str(running.survivors()))


def test_a_run_that_fails_is_exit_code_1_and_says_why(hermes: CommandLine, project: Path) -> None:
    refusal = {"error": {"status": 401, "message": "this key is not valid", "times": None}}
    ended = hermes("run", script(refusal), "--workspace", str(project))
    assert ended.code == 1, ended.said
    assert "this key is not valid" in ended.out
    assert "failed in" in ended.out


def test_a_model_server_that_is_away_is_named_with_its_setting(hermes: CommandLine, project: Path) -> None:
    hermes.environ["HERMES_API_MAX_RETRIES"] = "1"  # by default it is asked three times, which takes twenty seconds
    away = ("--base-url", "http://127.0.0.1:9/v1", "--model", "m")
    ended = hermes("run", "hello", *away, "--workspace", str(project))
    assert ended.code == 1, ended.said
    assert "Could not connect to http://127.0.0.1:9/v1" in ended.out
    assert "HERMES_BASE_URL (model.base_url in config.yaml)" in ended.out


def test_a_second_run_joins_the_first_and_carries_on_alone(hermes: CommandLine, project: Path) -> None:
    waiting = script(call("terminal", command="until test -e go; do sleep 0.1; done"), final="First.")
    slow = [
        {"text": "Wait.", "delay_s": 3, **call("terminal", command=f"echo {word}")} for word in ("mine", "yours", "his")
    ]
    longer = script(*slow, final="Second.")
    with hermes.started("run", waiting, "--workspace", str(project)) as first:
        first.wait_for_line("^run_")
        with hermes.started("run", longer, "--workspace", str(project)) as second:
            second.wait_for_line("using the 'hermes-worker run' that runs on")
            second.wait_for_line("^run_")
            (project / "go").touch()
            assert first.wait() == 0, first.output
            assert second.wait() == 0, second.output
    assert "First." in first.output
    assert "carrying on with one of our own" in second.output
    assert "Second." in second.output
    assert not second.survivors()
