"""``export`` and ``erase`` over a home: a person sees what would go, hands it out, and has it deleted."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from support.commandline import CommandLine
from support.store import Store
from support.two_people import ANNA, BERT, People
from support.two_people import traces as all_traces

from hermes_worker.local.paths import get_output_dir, get_workspaces_dir

WHOM = ("--holder", ANNA, "--principal", f"cli:{ANNA}", "--target", f"telegram:{ANNA}")


def traces(store: Store, name: str) -> dict[str, int]:
    """But for the audit log, which nobody can change."""
    return {column: count for column, count in all_traces(store, name).items() if not column.startswith("audit_log.")}


@pytest.fixture
def home(hermes: CommandLine, tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def anna(store: Store) -> list[str]:
    """The runs of one of two people."""
    people = People(store)
    people.live(BERT)
    found = people.live(ANNA)
    people.settle()
    return found


def test_without_yes_nothing_happens(hermes: CommandLine, store: Store, anna: list[str]) -> None:
    before = traces(store, ANNA)
    told = hermes.inline("data", "erase", *WHOM, "--json")
    assert json.loads(told.out)["would_erase"]["runs"] == 5
    assert "Nothing was erased" in hermes.inline("data", "erase", *WHOM).err
    assert traces(store, ANNA) == before
    assert hermes.inline("data", "erase").code == 2
    assert "say whom" in hermes.inline("data", "erase", "--yes").err


def test_an_export_is_a_file_for_one(hermes: CommandLine, anna: list[str], tmp_path: Path) -> None:
    place = tmp_path / "anna.jsonl"
    assert hermes.inline("data", "export", *WHOM, "--out", str(place)).code == 0
    rows = [json.loads(line) for line in place.read_text(encoding="utf-8").splitlines()]
    assert {row["row"]["run_id"] for row in rows if row["kind"] == "runs"} == set(anna)
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert BERT not in place.read_text(encoding="utf-8")
    assert hermes.inline("data", "export", *WHOM, "--out", str(place)).code != 0  # it is there
    assert len(hermes.inline("data", "export", *WHOM).out.splitlines()) == len(rows)


def test_what_is_erased_is_gone_with_its_files_and_leaves_a_receipt(
    hermes: CommandLine, store: Store, anna: list[str], home: Path
) -> None:
    [job] = {json.loads(line)["row"]["job_id"] for line in _exported(hermes, "jobs")}
    ours = get_workspaces_dir(home) / anna[0]
    other = get_workspaces_dir(home) / ("run_" + "0" * 32)
    document = get_output_dir(home) / job / "2026-01-01_00-00-00.md"
    for path in (ours / "note.txt", other / "note.txt", document):
        path.parent.mkdir(parents=True)
        path.write_text(ANNA)

    done = hermes.inline("data", "erase", *WHOM, "--yes", "--json")
    receipt = json.loads(done.out)

    assert done.code == 0, done.err
    assert traces(store, ANNA) == {}
    assert not ours.exists() and not document.exists() and other.exists()
    assert (receipt["erased"]["workspaces"], receipt["erased"]["documents"], receipt["erased"]["runs"]) == (1, 1, 5)
    assert ANNA not in done.out
    shown = hermes.inline("data", "erase", "--receipt", receipt["receipt"])
    assert json.loads(shown.out) == receipt
    assert "was deleted" in hermes.inline("runs", "show", anna[0]).err
    assert hermes.inline("data", "erase", "--resume").err.strip() == "nothing to do"
    nothing = hermes.inline("data", "erase", *WHOM, "--yes", "--json")
    assert (nothing.code, nothing.out) == (2, "")
    assert "nothing of the tenant 'default' is known by" in nothing.err


def _exported(hermes: CommandLine, kind: str) -> list[str]:
    return [
        line for line in hermes.inline("data", "export", *WHOM).out.splitlines() if json.loads(line)["kind"] == kind
    ]


def test_a_restored_home_is_erased_again(hermes: CommandLine, store: Store, anna: list[str], tmp_path: Path) -> None:
    """Whatever the backup held: here the same person, under other ids."""
    hermes.inline("data", "erase", *WHOM, "--yes")
    receipts = tmp_path / "receipts.jsonl"
    receipts.write_text(hermes.inline("data", "erase", "--receipts").out, encoding="utf-8")
    again = People(store)
    again.live(ANNA)
    again.settle()
    done = hermes.inline("data", "erase", "--replay", str(receipts), "--json")
    assert json.loads(done.out)["replays"] == json.loads(receipts.read_text())["receipt"]
    assert traces(store, ANNA) == {}
    receipts.write_text(receipts.read_text().replace('"by": "', '"by": "x'), encoding="utf-8")
    changed = hermes.inline("data", "erase", "--replay", str(receipts))
    assert (changed.code, "was changed" in changed.err) == (2, True)


def test_a_run_at_work_is_stopped_when_that_is_asked_for(hermes: CommandLine, store: Store) -> None:
    run_id = store.submit(principal=f"cli:{ANNA}", input=ANNA).run_id
    refused = hermes.inline("data", "erase", *WHOM, "--yes")
    assert (refused.code, "--stop" in refused.err) == (2, True)
    assert store.views.load_run(run_id).run_id == run_id
    assert hermes.inline("data", "erase", *WHOM, "--yes", "--stop").code == 0
    assert traces(store, ANNA) == {}


_KILLED = """
import os, signal, sys
from hermes_worker.features.retention import deleting_rows as deleting
after = int(sys.argv.pop(1))
whole = deleting.delete_session
def killed(*arguments, **named):
    global after
    after -= 1
    if after < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return whole(*arguments, **named)
deleting.delete_session = killed
from hermes_worker.cli import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize("after", [0, 2])
def test_an_erasure_that_was_killed_is_resumed(
    hermes: CommandLine, store: Store, anna: list[str], home: Path, after: int
) -> None:
    command = [sys.executable, "-c", _KILLED, str(after), "data", "erase", "--home", str(home), *WHOM, "--yes"]
    killed = subprocess.run(command, env={**os.environ}, capture_output=True, timeout=100)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert traces(store, ANNA)
    done = hermes.inline("data", "erase", "--resume", "--json")
    assert json.loads(done.out)["erased"]["runs"] == 5
    assert traces(store, ANNA) == {}
    assert len(hermes.inline("data", "erase", "--receipts").out.splitlines()) == 1
