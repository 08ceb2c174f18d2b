"""Which commands the guard asks about, in samples: what must not pass, and look-alikes that must."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_worker.safety.approvals import (
    Allow,
    ApprovalChoice,
    ApprovalPolicy,
    Ask,
    Deny,
    assess_command,
    find_dangers,
    is_hardline,
)
from hermes_worker.safety.commands import Unreadable
from hermes_worker.safety.dangers import read_command

_CASES: Final = Path(__file__).parents[1] / "cases"
_SAMPLE: Final[dict[str, Any]] = json.loads((_CASES / "commands.json").read_text())
_OWN: Final[dict[str, Any]] = json.loads((_CASES / "commands_own.json").read_text())
_QUIET_SHARE_MAX: Final = 1 / 60
"""How many of the harmless look-alikes may be asked about."""


def _asked(commands: list[str]) -> list[str]:
    return [command for command in commands if not isinstance(assess_command(command, ApprovalPolicy()), Allow)]


def test_a_command_of_the_sample_does_not_pass_unasked() -> None:
    assert [case["what"] for case in _SAMPLE["asks"] if not _asked([case["command"]])] == []


def test_a_command_of_our_own_cases_does_not_pass_unasked() -> None:
    assert [command for command in _OWN["asks"] if not _asked([command])] == []


def test_the_harmless_look_alikes_of_the_sample_pass() -> None:
    asked = _asked(_SAMPLE["quiet"])
    assert len(asked) <= _QUIET_SHARE_MAX * len(_SAMPLE["quiet"]), asked


def test_ordinary_commands_of_developers_pass() -> None:
    assert len(_OWN["quiet"]) >= 60
    asked = _asked(_OWN["quiet"])
    assert len(asked) <= _QUIET_SHARE_MAX * len(_OWN["quiet"]), asked


@pytest.mark.parametrize(
    "command",
    [
        "case $x in reboot|shutdown) echo;; (mkfs.ext4) echo;; esac",
        "[[ $x =~ (reboot|halt)|(rm) ]] && echo yes",
        "[[ $x == reboot || $x == halt ]]",
        "a=(reboot halt); declare -a b=(shutdown 'rm -rf /')",
        "echo $((reboot + halt)); (( halt = 1 ))",
        "for x in reboot halt; do echo; done",
        "command -v reboot",
    ],
)
def test_words_that_are_no_commands_are_not_refused(command: str) -> None:
    assert list(find_dangers(command)) == []
    assert not is_hardline(command)


@pytest.mark.parametrize(
    "command", ["cp x /dev/sda", "tee /dev/nvme0n1 < x", "sudo --user root tee /dev/sdb", "install x /dev/sda"]
)
def test_writing_to_a_raw_device_is_never_run(command: str) -> None:
    assert is_hardline(command)


@pytest.mark.parametrize(
    "command", ["ssh h reboot", "docker exec c reboot", "kubectl exec p -- rm -rf /", "mytool reboot"]
)
def test_what_a_program_runs_elsewhere_or_perhaps_is_asked_about_and_not_refused(command: str) -> None:
    assert isinstance(assess_command(command, ApprovalPolicy()), Ask)
    assert not is_hardline(command)


@pytest.mark.parametrize("command", ["echo 'a", "echo ok\r\nls", "echo )", "ls \x1b]0;", "cat <<EOF\nx", "$(("])
def test_what_cannot_be_read_for_certain_is_asked_about_every_time(command: str) -> None:
    decision = assess_command(command, ApprovalPolicy(allowed=frozenset(find_dangers(command))))
    assert isinstance(decision, Ask)
    assert decision.choices == (ApprovalChoice.ONCE, ApprovalChoice.DENY)


def test_a_name_made_by_an_expansion_is_asked_about_every_time() -> None:
    command = "$x -rf /srv"
    assert isinstance(assess_command(command, ApprovalPolicy(allowed=frozenset(find_dangers(command)))), Ask)


# --- the reading never raises, and ends soon -------------------------------------------------------------------------

_PIECES: Final = (
    *(
        "'",
        '"',
        "`",
        "$(",
        "${",
        "$((",
        "((",
        "[[ ",
        " ]]",
        "(",
        ")",
        "{ ",
        "}",
        "{a,",
        "{",
        "<<A\n",
        "<<<",
        "<(",
        ">(",
    ),
    *(
        "\\",
        "\\\n",
        "\n",
        "\r",
        ";",
        "&",
        "|",
        ";;",
        "a=(",
        "x[",
        "if ",
        "then ",
        "fi ",
        "case a in ",
        "esac ",
        "for x in ",
    ),
    *(
        "function f ",
        "f() ",
        "coproc ",
        "time ",
        "sudo ",
        "env ",
        "xargs ",
        "bash -c ",
        "eval ",
        "ssh h ",
        "foo ",
        "rm ",
        "psql ",
    ),
    *(
        "git -c a=b ",
        "find -exec a ",
        "-",
        "--x=",
        "$x",
        "*",
        "~",
        "/*",
        "#",
        "\t",
        "\x00",
        "\x1b]",
        "\ue000",
        "\ud800",
        "ｒ",
        "delete from ",
    ),
)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(_PIECES), max_size=30).map("".join))
def test_a_reading_of_any_text_never_raises(command: str) -> None:
    assert isinstance(assess_command(command, ApprovalPolicy()), Allow | Deny | Ask)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    st.lists(st.sampled_from(_PIECES), min_size=1, max_size=3).map("".join),
    st.sampled_from(["", "rm ", "\n", "'", "foo "]),
)
def test_the_same_piece_thousands_of_times_is_judged_soon(piece: str, head: str) -> None:
    # Pytest's own time limit (120 s) ends a reading that is not linear; the steps are bounded by the reader.
    assert isinstance(assess_command(head + piece * (15_000 // len(piece)), ApprovalPolicy()), Allow | Deny | Ask)


@pytest.mark.parametrize("piece", ["x", "(", "$(", "'", "a|", "sudo ", "foo 'rm x' ", "/*", "delete from ", "[["])
def test_a_megabyte_is_refused_unread(piece: str) -> None:
    decision = assess_command(piece * (1_000_000 // len(piece)), ApprovalPolicy())
    assert isinstance(decision, Deny)
    with pytest.raises(Unreadable):
        read_command("$(" * 1_000)
