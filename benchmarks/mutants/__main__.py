"""``python -m benchmarks.mutants``: take one guard away at a time and see what notices.

    python -m benchmarks.mutants --tests             # the tests that are named with each mutant
    python -m benchmarks.mutants --lab               # the crash lab, for those that it makes a situation for
    python -m benchmarks.mutants --tests --lab NAME ...
    python -m benchmarks.mutants --table             # what is known so far, as Markdown

Each mutant is applied in a copy of the tree, which goes when the command ends. What the lab sees counts only where the
same situation is quiet with the guard in its place, which is tried as well: a lab that always alarms sees nothing.
Results are kept in a JSON file, so that an interrupted measurement goes on where it stopped; ``--again`` measures what
is known once more. Exits with 1 when a mutant survived that is not redundant.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.mutants.table import MUTANTS, QUIET, Mutant

TREE = Path(__file__).resolve().parents[2]
_COPIED = ("hermes_worker", "scheduler", "tests", "benchmarks", "docs", "pyproject.toml", "README.md", "examples")
_LAB = ("dev", "chaos", "--json", *QUIET.split())
_LAB_LIMIT_S = 180.0
_TESTS_LIMIT_S = 600.0
_NOT_SLOW = "not slow and not machine and not nightly"


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parse(arguments)
    known: dict[str, dict[str, Any]] = json.loads(given.results.read_text()) if given.results.exists() else {}
    wanted = [mutant for mutant in MUTANTS if not given.names or mutant.name in given.names]
    judges = [judge for judge in ("tests", "lab") if getattr(given, judge)]
    open_ones = [
        (mutant, judge)
        for judge in judges
        for mutant in wanted
        if (mutant.lab or judge == "tests") and (given.again or judge not in known.get(mutant.name, {}))
    ]
    # SIGTERM ends like Ctrl-C: the copy goes, and what the judge started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with tempfile.TemporaryDirectory(prefix="hermes-mutants-", ignore_cleanup_errors=True) as directory:
            Path(directory).chmod(0o711)  # the lab's PostgreSQL may run under another account
            copy = _copy_tree(Path(directory)) if open_ones else TREE
            for number, (mutant, judge) in enumerate(open_ones, start=1):
                print(f"[{number}/{len(open_ones)}] {judge}: {mutant.name} ...", end=" ", file=sys.stderr, flush=True)
                verdict = _judge(mutant, judge, copy, given.lab_limit_s)
                if judge == "lab" and verdict["is_seen"] and not _is_quiet(mutant.lab, copy, given.lab_limit_s):
                    verdict |= {"is_seen": None, "by": ["not quiet with the guard in its place"]}
                print(f"{_SAID[verdict['is_seen']]} in {verdict['seconds']:.0f} s", file=sys.stderr, flush=True)
                known.setdefault(mutant.name, {})[judge] = verdict
                given.results.write_text(json.dumps(known, indent=1) + "\n")
    except KeyboardInterrupt:
        print("\nStopped; the same command goes on from here.", file=sys.stderr)
        return 130
    print(json.dumps(_build_rows(known), indent=1) if given.json else render_table(known, is_markdown=given.table))
    return int(any(_has_survived(mutant, known) for mutant in wanted))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants to judge; all when none is named")
    parser.add_argument("--tests", action="store_true", help="judge by the tests that are named with the mutant")
    parser.add_argument("--lab", action="store_true", help="judge by the crash lab")
    parser.add_argument(
        "--lab-limit-s", type=float, default=_LAB_LIMIT_S, help="seconds that the lab gets; more on a busy machine"
    )
    parser.add_argument("--again", action="store_true", help="judge once more what is known")
    parser.add_argument("--results", type=Path, default=Path("mutants.json"), help="where results are kept")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--table", action="store_true", help="print the table as Markdown, as in docs/crash-lab.md")
    given = parser.parse_args(arguments)
    unknown = sorted(set(given.names) - {mutant.name for mutant in MUTANTS})
    if unknown:
        parser.error(f"there is no mutant {unknown[0]!r}; there are {', '.join(mutant.name for mutant in MUTANTS)}")
    return given


def _copy_tree(directory: Path) -> Path:
    for name in _COPIED:
        if (TREE / name).is_dir():
            shutil.copytree(TREE / name, directory / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        elif (TREE / name).exists():
            shutil.copy(TREE / name, directory / name)
    return directory


def _judge(mutant: Mutant, judge: str, copy: Path, lab_limit_s: float) -> dict[str, Any]:
    file = copy / mutant.path
    whole = file.read_text(encoding="utf-8")
    file.write_text(mutant.apply(whole), encoding="utf-8")
    began = time.monotonic()
    try:
        if judge == "lab":
            verdict = _play_lab(mutant.lab, copy, lab_limit_s)
        else:
            pytest = [sys.executable, "-m", "pytest", "-o", "addopts=", "-p", "no:cacheprovider", "-q", "-x"]
            line = [*pytest, "--tb=no", "--timeout", "300", "-m", _NOT_SLOW, *mutant.tests]
            status, output = _run(line, copy, _TESTS_LIMIT_S)
            failed = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
            # pytest's 1 is a failed test, 2 and more are no verdict, but for a module that no longer imports
            verdict = {
                "is_seen": None if status is None else {0: False, 1: True}.get(status),
                "by": failed[:1] or [output[-300:]],
            }
    finally:
        file.write_text(whole, encoding="utf-8")
    return {**verdict, "seconds": round(time.monotonic() - began, 1)}


def _play_lab(situation: Sequence[str], copy: Path, limit_s: float) -> dict[str, Any]:
    status, output = _run([sys.executable, "-m", "hermes_worker", *_LAB, *situation], copy, limit_s)
    return _read_lab(status, output)


@cache
def _is_quiet(situation: tuple[str, ...], copy: Path, limit_s: float) -> bool:
    """Whether the lab finds nothing in a situation with all guards in their places."""
    return _play_lab(situation, copy, limit_s)["is_seen"] is False


def _read_lab(status: int | None, output: str) -> dict[str, Any]:
    """What the lab says: status 1 with a report names what is broken; anything else is no verdict."""
    start = output.find("{")
    try:
        report = json.loads(output[start:].splitlines()[0]) if start >= 0 else {}
    except ValueError:
        report = {}
    if "findings" not in report:
        return {"is_seen": None, "by": ["no report: " + output[-300:]]}
    if status != 1 and report.get("unfinished"):
        return {"is_seen": None, "by": [f"not finished in time: {len(report['unfinished'])} runs"]}
    return {"is_seen": status == 1, "by": [name for name, broken in report["findings"].items() if broken]}


def _run(line: Sequence[str], directory: Path, limit_s: float) -> tuple[int | None, str]:
    """Run a command in the copy; status ``None`` when it took too long. Whatever it started ends with it."""
    environ = {**os.environ, "PYTHONPATH": str(directory)}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)  # the lab starts many processes
    process = subprocess.Popen(
        line,
        cwd=directory,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        return None, f"not finished in {limit_s:.0f} s"
    finally:
        if process.poll() is None:
            _end_group(process)


def _end_group(process: subprocess.Popen[str]) -> None:
    # The first signal lets it stop its servers.
    for number in (signal.SIGINT, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(timeout=20)
            return
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


# --- the table -------------------------------------------------------------------------------------------------------

_SAID = {True: "seen", False: "NOT SEEN", None: "no verdict"}


def _has_survived(mutant: Mutant, known: Mapping[str, Mapping[str, Any]]) -> bool:
    verdicts = [verdict["is_seen"] for verdict in known.get(mutant.name, {}).values()]
    return mutant.redundancy is None and bool(verdicts) and True not in verdicts


def _build_rows(known: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "mutant": mutant.name,
            "path": mutant.path,
            "lab": known.get(mutant.name, {}).get("lab"),
            "tests": known.get(mutant.name, {}).get("tests"),
            "redundant": None if mutant.redundancy is None else mutant.redundancy.argument,
            "second_guard": None if mutant.redundancy is None else mutant.redundancy.second,
        }
        for mutant in MUTANTS
    ]


def render_table(known: Mapping[str, Mapping[str, Any]], *, is_markdown: bool) -> str:
    """Render what is known, with a line of totals."""
    rows = _build_rows(known)
    cells = [[row["mutant"], _cell(row["lab"]), _cell(row["tests"]), _because(row, is_markdown)] for row in rows]
    head = ["mutant", "lab sees", "tests see", "redundant because"]
    alone = [row for row in rows if row["redundant"] is None]
    total = (
        f"{len(rows)} mutants, {len(rows) - len(alone)} of them redundant. Of the other {len(alone)} the lab sees "
        f"{_count_seen(alone, 'lab')}, the tests {_count_seen(alone, 'tests')}."
    )
    if is_markdown:
        lines = ["| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *cells]]
        return "\n".join([*lines, "", total])
    widths = [max(len(line[column]) for line in [head, *cells]) for column in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in [head, *cells]]
    return "\n".join([*(line.rstrip() for line in lines), "", total])


def _because(row: Mapping[str, Any], is_whole: bool) -> str:
    if row["redundant"] is None:
        return ""
    return f"{row['redundant']} See `{row['second_guard']}`." if is_whole else f"see {row['second_guard']}"


def _count_seen(rows: Sequence[Mapping[str, Any]], judge: str) -> int:
    return sum(bool(row[judge] and row[judge]["is_seen"]) for row in rows)


def _cell(verdict: Mapping[str, Any] | None) -> str:
    if verdict is None:
        return ""
    by = f" ({verdict['by'][0]})" if verdict["is_seen"] and not verdict["by"][0].startswith(("FAILED", "ERROR")) else ""
    return f"{_SAID[verdict['is_seen']].lower()}, {verdict['seconds']:.0f} s{by}"


if __name__ == "__main__":
    sys.exit(main())
