from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from hermes_worker.agent.tools.base import ToolPolicies


def test_a_command_returns_its_output_and_exit_code(session: Any) -> None:
    assert session("terminal", command="echo hi; echo there >&2") == {
        "output": "hi\nthere\n",
        "exit_code": 0,
        "error": None,
    }


def test_a_command_that_fails_is_an_error_result_with_its_output(session: Any) -> None:
    result = session.result("terminal", command="echo before; exit 3")
    assert result.is_error
    assert json.loads(result.text) == {"output": "before\n", "exit_code": 3, "error": None}


def test_a_command_has_the_time_that_the_settings_say_unless_its_call_says_another(session: Any) -> None:
    session.policies = ToolPolicies(command_s=1)
    assert "ended after 1 s" in session.error("terminal", command="sleep 5")
    assert session("terminal", command="sleep 1.2; echo well", timeout=20)["output"] == "well\n"


def test_an_exit_code_may_be_explained(session: Any) -> None:
    result = json.loads(session.result("terminal", command="echo a | grep b").text)
    assert result["exit_code_meaning"] == "no lines matched (not an error)"


def test_the_folder_carries_over_to_the_next_command(session: Any, root: Path) -> None:
    (root / "a/b").mkdir(parents=True)
    session("terminal", command="cd a")
    assert session.documents["cwd"] == "a"
    session("terminal", command="cd b")
    assert session("terminal", command="pwd")["output"] == f"{root}/a/b\n"
    session("terminal", command="cd ../..")
    assert "cwd" not in session.documents


def test_exported_variables_carry_over_until_they_are_unset(session: Any) -> None:
    session("terminal", command="export A='1 2'; B=3")
    assert session("terminal", command='echo "[$A][$B]"')["output"] == "[1 2][]\n"
    session("terminal", command="unset A")
    assert "env" not in session.documents


def test_a_command_that_changes_neither_writes_nothing_to_the_session(session: Any, root: Path) -> None:
    (root / "a").mkdir()
    session("terminal", command="cd a; export A=1")
    assert session.result("terminal", command="ls").session_updates == {}


def test_folder_and_variables_are_kept_although_the_command_failed(session: Any, root: Path) -> None:
    (root / "a").mkdir()
    assert session.result("terminal", command="cd a; export A=1; false").is_error
    assert session.documents == {"cwd": "a", "env": {"A": "1"}}


def test_the_folder_means_the_same_where_the_workspace_is_mounted_elsewhere(session: Any, root: Path) -> None:
    (root / "a").mkdir()
    session("terminal", command="cd a")
    elsewhere = root.rename(root.parent / "elsewhere")
    session.workspace = type(session.workspace)(str(elsewhere), base_env={})
    assert session("terminal", command="pwd")["output"] == f"{elsewhere}/a\n"


def test_a_shell_that_left_the_workspace_starts_inside_it_again(session: Any, root: Path) -> None:
    (root / "a").mkdir()
    session("terminal", command="cd a")
    assert "/tmp is outside the workspace" in session("terminal", command="cd /tmp")["note"]
    assert session("terminal", command="pwd")["output"] == f"{root}/a\n"


def test_a_folder_that_is_gone_is_the_root_again(session: Any, root: Path) -> None:
    (root / "a").mkdir()
    session("terminal", command="cd a")
    (root / "a").rmdir()
    assert session("terminal", command="pwd")["output"] == f"{root}\n"


def test_a_command_may_start_elsewhere(session: Any, root: Path) -> None:
    (root / "a/b").mkdir(parents=True)
    session("terminal", command="cd a")
    assert session("terminal", command="pwd", workdir="b")["output"] == f"{root}/a/b\n"
    assert "does not exist" in session.error("terminal", command="pwd", workdir="missing")
    assert "outside" in session.error("terminal", command="pwd", workdir="/etc")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"background": True}, "background processes are not available"),
        ({"notify_on_complete": "true"}, "are for background=true"),
        ({"watch_patterns": ["ready"]}, "are for background=true"),
        ({"timeout": 601}, "more than the 600 s"),
        ({"timeout": 0}, "at least 1"),
        ({"command": "nohup x"}, "nohup"),
        ({"command": "x &"}, "background"),
        ({"command": ""}, "empty"),
        ({"command": "a\0b"}, "NUL"),
    ],
)
def test_what_is_not_done_is_refused_before_anything_runs(
    session: Any, root: Path, arguments: dict[str, Any], message: str
) -> None:
    assert message in session.error("terminal", **{"command": "touch ran", **arguments})
    assert not (root / "ran").exists()


def test_arguments_that_ask_for_nothing_special_are_no_obstacle(session: Any) -> None:
    session("terminal", command="true", background=False, pty="false", watch_patterns=[], timeout=None, workdir="")


def test_a_time_out_is_told_with_what_was_printed(session: Any) -> None:
    result = session.result("terminal", command="echo before; sleep 1000", timeout=1)
    document = json.loads(result.text)
    assert result.is_error
    assert document["exit_code"] == 124
    # bash may still say that its child was terminated.
    assert document["output"].startswith("before\n")
    assert "ended after 1 s" in document["error"]


def test_a_command_is_interrupted_when_its_call_is_cancelled(session: Any, root: Path) -> None:
    def cancel() -> None:
        while not (root / "started").exists():
            time.sleep(0.01)
        session.cancelled.set()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    document = json.loads(session.result("terminal", command="touch started; sleep 1000").text)
    canceller.join()
    assert (document["exit_code"], document["error"]) == (130, "the command was interrupted")


def test_processes_that_were_left_running_are_mentioned(session: Any) -> None:
    assert "were still running" in session("terminal", command="sleep 1000 & echo hi")["note"]


def test_colours_and_titles_are_taken_out(session: Any) -> None:
    command = r"printf '\033[1;31mred\033[0m \033]0;title\007ok \033(Bx \377\n'"
    assert session("terminal", command=command)["output"] == "red ok x �\n"


def test_long_output_loses_its_middle(session: Any) -> None:
    output = session("terminal", command="seq 100000")["output"]
    assert output.startswith("1\n2\n3\n")
    assert output.endswith("\n99999\n100000\n")
    assert "bytes omitted" in output
    assert len(output) < 51_000


def test_too_many_variables_are_not_kept(session: Any) -> None:
    result = session("terminal", command="export BIG=$(head -c 100000 /dev/zero | tr '\\0' x)")
    assert "too long to be kept" in result["note"]
    assert "env" not in session.documents


@pytest.mark.parametrize("document", ["text", 5, ["A=1"], {"A": 1}, {"A B": "1", "C": "x\0"}, {"LD_PRELOAD\0": "x"}])
def test_a_broken_session_document_is_no_obstacle(session: Any, document: object) -> None:
    session.documents["env"] = document
    assert session("terminal", command="echo hi")["output"] == "hi\n"


def test_the_environment_holds_nothing_of_the_worker(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    assert "sk-secret" not in session("terminal", command="/usr/bin/env")["output"]
