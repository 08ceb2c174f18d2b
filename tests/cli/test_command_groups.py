"""Groups of commands, the headings of ``--help``, and old spellings."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.commandline import CommandLine, find_command, list_commands

from hermes_worker import installed
from hermes_worker.cli.groups import MOVED, OTHERS, SECTIONS

ROOT = Path(__file__).parents[2]
TOP_MAX = 25


@pytest.fixture
def hermes(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path / "home")


def test_at_most_twenty_five_commands_stand_at_the_top_under_headings(hermes: CommandLine) -> None:
    top = [one for name, one in installed.get_installed().commands.items() if " " not in name]
    assert len(top) <= TOP_MAX
    assert {one.section for one in top} == set(SECTIONS)
    shown = hermes.inline("--help").out
    headings = re.findall(r"^([A-Z][a-z ]+):$", shown, re.MULTILINE)
    assert headings == ["Options", *SECTIONS]
    assert OTHERS not in shown
    rows = set(re.findall(r"^  ([a-z][a-z-]*)  ", shown, re.MULTILINE))
    assert rows == {name for name in installed.get_installed().commands if " " not in name}


def test_a_verb_of_a_group_is_declared_below_a_group_that_there_is() -> None:
    names = list(installed.get_installed().commands)
    assert {name.partition(" ")[0] for name in names if " " in name} <= set(names)


@pytest.mark.parametrize("old", MOVED)
def test_an_old_spelling_works_and_says_the_new_one(old: str, hermes: CommandLine) -> None:
    new = MOVED[old]
    find_command(new.split())
    sentence = (
        f"note: 'hermes-worker {old}' is now 'hermes-worker {new}'; the old spelling goes with the next release\n"
    )
    more = ["--nothing"] if old == "gateway" else ["--help"]
    ended, meant = hermes.inline(*old.split(), *more), hermes.inline(*new.split(), *more)
    assert (ended.code, ended.out, ended.err) == (meant.code, meant.out, sentence + meant.err)
    assert f"Usage: hermes-worker {new}" in ended.said
    assert old not in hermes.inline("--help").out.split("\n  ")


def test_the_new_spelling_says_nothing(hermes: CommandLine) -> None:
    assert hermes.inline("data", "migrate").code == 0
    listed = hermes.inline("tenants", "keys", "list", "--json")
    assert (listed.code, listed.out, listed.err) == (0, "", "")


def test_the_line_about_an_old_spelling_is_not_in_what_programs_read(hermes: CommandLine) -> None:
    assert hermes.inline("migrate").code == 0
    made = hermes.inline("keys", "create", "ci", "--json")
    assert made.out.startswith("{") and made.out.count("\n") == 1
    assert made.err.count("\n") == 1


def test_a_verb_of_the_gateway_is_no_old_spelling(hermes: CommandLine) -> None:
    assert hermes.inline("gateway", "accounts", "--help").err == ""
    assert hermes.inline("gateway", "--help").err == ""


def test_completion_offers_the_new_spellings_only() -> None:
    top = {path.partition(" ")[0] for path, _ in list_commands()}
    assert top.isdisjoint(set(MOVED) - {"gateway"})


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("words", "absent"),
    [
        (["data", "--help"], ["hermes_worker.cli.backup", "hermes_worker.cli.prune", "hermes_worker.cli.erase"]),
        (["gateway", "webhooks", "--help"], ["hermes_worker.cli.gateway"]),
        (["runs", "spend", "--help"], ["hermes_worker.cli.runs"]),
        (["extensions", "tools", "--help"], ["hermes_worker.cli.extensions"]),
    ],
)
def test_a_group_imports_no_other_verb(words: list[str], absent: list[str], tmp_path: Path) -> None:
    program = (
        "import sys\nfrom hermes_worker.cli.entry import main\n"
        f"try:\n main({words!r})\nfinally:\n print([n for n in {absent!r} if n in sys.modules], file=sys.stderr)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={"PATH": "/usr/bin:/bin", "HERMES_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stderr.strip() == "[]"
    assert "Usage: hermes-worker" in ended.stdout


def test_nothing_names_an_old_spelling() -> None:
    old = "|".join(map(re.escape, sorted(MOVED.keys() - {"gateway"}, key=len, reverse=True)))
    spelled = re.compile(rf"\bhermes-worker\s+({old})(?![\w-])")
    # Both tell to call the sources of an older commit.
    older = {ROOT / "hermes_worker/store/revisions.py", ROOT / "docs/migrations.md"}
    folders = ("hermes_worker", "scheduler", "docs", "compose", "k8s", "systemd", "examples", "benchmarks")
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in (ROOT / "README.md", *(path for folder in folders for path in (ROOT / folder).rglob("*")))
        if path.suffix in (".py", ".md", ".yaml", ".txt", ".js", ".sh", ".service") and path not in older
        for match in spelled.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("hermes-worker runs li", "list"),
        ("hermes-worker runs list -o y", "yaml"),
        ("hermes-worker runs show --j", "--json"),
    ],
)
def test_bash_completes_commands_options_and_values(line: str, offered: str) -> None:
    words = line.split()
    script = f"""
        source <(hermes-worker config completion bash)
        COMP_WORDS=({line}) COMP_CWORD={len(words) - 1}
        _hermes_worker_completion hermes-worker {words[-1]} {words[-2]}
        echo "${{COMPREPLY[@]}}"
    """
    environ = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    ran = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, env=environ, check=True)
    assert ran.stdout.split() == [offered], ran.stderr


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_read_the_script_that_is_printed_for_them(hermes: CommandLine, shell: str) -> None:
    script = hermes.inline("config", "completion", shell).out
    assert f"{shell}_complete" in script
    if (found := shutil.which(shell)) is None:
        pytest.skip(f"{shell} is not installed here")
    ran = subprocess.run([found, "-n"], input=script, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
