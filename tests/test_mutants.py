"""The mutants of guards: each still applies, and every redundant one names the guard behind it."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from benchmarks.mutants.__main__ import main
from benchmarks.mutants.table import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[1]
BY_NAME = {mutant.name: mutant for mutant in MUTANTS}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_the_code_and_leaves_it_readable(mutant: Mutant) -> None:
    whole = (ROOT / mutant.path).read_text(encoding="utf-8")
    broken = mutant.apply(whole)
    assert ast.dump(ast.parse(broken)) != ast.dump(ast.parse(whole))
    assert all((ROOT / test.partition("::")[0]).is_file() for test in mutant.tests)


def test_a_redundant_guard_names_a_second_one_that_is_not_redundant() -> None:
    seconds = [mutant.redundancy.second for mutant in MUTANTS if mutant.redundancy is not None]
    assert all(BY_NAME[name].redundancy is None for name in seconds)
    assert len(BY_NAME) == len(MUTANTS) >= 20


def test_text_that_moved_on_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'once-runs-again'.*0 times"):
        BY_NAME["once-runs-again"].apply("")


def test_the_table_says_what_is_known_without_measuring(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen = {"is_seen": True, "by": ["FAILED tests/core/test_step.py"], "seconds": 7.0}
    results = tmp_path / "mutants.json"
    results.write_text(json.dumps({"once-runs-again": {"tests": seen}}))
    assert main(["--table", "--results", str(results)]) == 0
    out = capsys.readouterr().out
    assert "| once-runs-again |  | seen, 7 s |" in out and "the tests 1." in out


def test_a_survivor_makes_the_command_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "mutants.json"
    results.write_text(json.dumps({"once-runs-again": {"tests": {"is_seen": False, "by": [], "seconds": 7.0}}}))
    assert main(["once-runs-again", "--results", str(results)]) == 1


def test_what_the_lab_sees_with_the_guard_in_its_place_is_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alarm = json.dumps({"findings": {"lost": ["run_1"]}})
    monkeypatch.setattr("benchmarks.mutants.__main__._copy_tree", _copy_one_file)
    monkeypatch.setattr("benchmarks.mutants.__main__._run", lambda *_: (1, alarm))
    results = tmp_path / "mutants.json"
    main(["once-runs-again", "--lab", "--results", str(results)])
    verdict = json.loads(results.read_text())["once-runs-again"]["lab"]
    assert (verdict["is_seen"], verdict["by"]) == (None, ["not quiet with the guard in its place"])


def _copy_one_file(directory: Path) -> Path:
    """Copy the one file that is to be changed."""
    file = BY_NAME["once-runs-again"].path
    (directory / file).parent.mkdir(parents=True)
    (directory / file).write_bytes((ROOT / file).read_bytes())
    return directory


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_tests_see_every_guard_go(tmp_path: Path) -> None:
    assert main(["--tests", "--results", str(tmp_path / "mutants.json")]) == 0


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_the_lab_sees_twelve_guards_go(tmp_path: Path) -> None:
    results = tmp_path / "mutants.json"
    main(["--lab", "--results", str(results)])
    known = json.loads(results.read_text())
    assert sum(verdicts["lab"]["is_seen"] is True for verdicts in known.values()) >= 12
