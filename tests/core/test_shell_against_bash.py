"""The reader's judge is a real bash: what bash ran, the reader has named, or it has said that it is not certain."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
from support.bash_scripts import FAKES, WRAPPERS, Grammar, executed

from hermes_worker.safety import shell
from hermes_worker.safety.carried_commands import add_carried
from hermes_worker.safety.commands import (
    ANY,
    ANY_CHAR,
    ANY_OF,
    MARKS,
    SPLIT,
    ShellCommand,
    ShellReading,
    Unreadable,
    find_operands,
    has_expansion,
    strip_marks,
)

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")

_BATCH = 500


def _reading(script: str) -> ShellReading | None:
    """``None`` when the line is refused as a whole."""
    try:
        return add_carried(
            shell.read_commands(strip_marks(script)),
            shell.read_commands,
            lambda name: name in FAKES or name in WRAPPERS,
        )
    except Unreadable:
        return None


def _pattern(words: Iterable[str]) -> re.Pattern[str]:
    """What a command may turn out to be. Programs that run others add words of their own (``xargs``, ``find``)."""
    parts = [
        r"(?:\x00[\s\S]*)?"
        if any(mark in word for mark in (SPLIT, ANY, ANY_CHAR, ANY_OF))
        else r"\x00" + "".join(r"[^\x00]*" if char in MARKS + "~{}" else re.escape(char) for char in word)
        for word in words
    ]
    return re.compile("".join(parts) + r"(?:\x00[\s\S]*)?")


def _named(reading: ShellReading, script: str) -> list[ShellCommand]:
    return [*reading.commands, *shell.read_commands(strip_marks(script)).commands]


def _is_made(command: ShellCommand) -> bool:
    """Its name, or the text it runs, is made by an expansion: the guard asks, whatever it becomes."""
    return has_expansion(command.name) or (command.name == "eval" and any(map(has_expansion, command.words)))


def _missed(script: str, ran: list[list[str]]) -> list[list[str]]:
    """What bash ran of the fakes and the reader neither named, with its words, nor had a doubt about."""
    reading = _reading(script)
    if reading is None or reading.doubts or any(_is_made(command) for command in reading.commands):
        return []
    named = _named(reading, script)
    patterns = [_pattern(command.words) for command in named if command.words]
    patterns += [_pattern([wrapper[0], SPLIT]) for command in named for wrapper in command.wrappers]
    # bash runs the script it is given, which it also looks for on the PATH.
    patterns += [_pattern(find_operands(command.args)) for command in named if command.name in ("bash", ".", "source")]
    relevant = [words for words in ran if words[0] in FAKES]
    return [words for words in relevant if not any(p.fullmatch("\0" + "\0".join(words)) for p in patterns)]


def _compare(seed: int, count: int, folder: Path) -> tuple[int, list[tuple[str, list[list[str]]]]]:
    """How many commands bash ran, and the scripts of which the reader missed some."""
    grammar = Grammar(seed)
    total = 0
    failures: list[tuple[str, list[list[str]]]] = []
    for _ in range(0, count, _BATCH):
        scripts = list(grammar.scripts(min(_BATCH, count)))
        for script, ran in zip(scripts, executed(scripts, folder), strict=True):
            total += len(ran)
            missed = _missed(script, ran)
            if missed:
                failures.append((script, missed))
    return total, failures


def test_what_bash_ran_of_a_sample_of_scripts_was_named(tmp_path: Path) -> None:
    total, failures = _compare(20_260_101, 400, tmp_path)
    assert total > 200
    assert not failures, failures[:5]


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("seed", range(10))
def test_what_bash_ran_of_thousands_of_scripts_was_named(seed: int, tmp_path: Path) -> None:
    total, failures = _compare(seed, 2_000, tmp_path)
    assert total > 1_000
    assert not failures, failures[:5]


def test_the_reader_is_certain_of_scripts_that_bash_can_read() -> None:
    """Doubts are for what is unusual: without this, a reader that doubts everything would pass."""
    grammar = Grammar(7, is_mutating=False)
    readings = [_reading(script) for script in grammar.scripts(500)]
    doubted = [reading for reading in readings if reading is None or reading.doubts]
    assert len(doubted) < len(readings) / 4


_SEEN_RUNNING = [
    "echo hi # note \\\nrm -rf x",
    "echo \\\\\nrm -rf x",
    "echo \\\r\nrm -rf x",
    "cat <<'EOF'\nends in \\\nEOF\nrm -rf x\n#'",
    "(true)#'\nrm -rf x\n#'",
    "true \x1b]0;\nrm -rf x\n\x07",
    "cat <<EOF\n\tEOF\n'\nEOF\nrm -rf x\n#'",
    "function f { rm -rf x; }; f",
    "coproc N { rm -rf x; }; wait",
    "time -p rm -rf x",
    "{,rm} -rf x",
    "! rm -rf x",
    "case rm in (rm) rm -rf x; esac",
    "cat <<A <<B\nx\nA\n'\nB\nrm -rf x\n#'",
    "echo `echo \\`rm -rf x\\``",
    "<in env -S'rm -rf x'; env -iS 'rm -rf x'",
    "a[1 + 2]=3 rm -rf x",
    "if :; then\n#'\nrm -rf x\nfi",
    "<<EOF\n$(rm -rf x)\nEOF",
    "$'\\x{72'm -rf x",
    "true <((true)#'\n:\n#'); rm -rf x; : $(true \\\n )",
]


def test_lines_that_hid_a_command_are_named(tmp_path: Path) -> None:
    (tmp_path / "bin").parent.mkdir(exist_ok=True)
    ran = executed(_SEEN_RUNNING, tmp_path)
    for script, commands in zip(_SEEN_RUNNING, ran, strict=True):
        reading = _reading(script)
        assert reading is not None
        named = any(command.words[:2] == ["rm", "-rf"] for command in reading.commands)
        assert named or reading.doubts or any(has_expansion(command.name) for command in reading.commands), script
        assert not _missed(script, commands), script
