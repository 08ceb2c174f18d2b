"""``prune`` and ``retention`` over a home."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from support.commandline import CommandLine, wait_for
from support.store import Store, check

from hermes_worker.core.retention_rules import DEFAULT_RULES, parse_rules
from hermes_worker.features.retention.rows import Pruner
from hermes_worker.features.retention.work import prune_files

DAY_S = 86_400.0


@pytest.fixture
def old(store: Store) -> str:
    """A run that ended 40 days ago, and a newer one."""
    run_id = store.submit().run_id
    store.answer(run_id)
    store.let_pass(40 * DAY_S)
    store.answer(store.submit().run_id)
    return run_id


def test_a_dry_run_counts_and_a_real_one_deletes(hermes: CommandLine, store: Store, old: str) -> None:
    assert hermes.inline("data", "retention", "set", "runs", "30d").code == 0
    foretold = json.loads(hermes.inline("data", "prune", "--dry-run", "--json").out)
    assert (foretold["dry_run"], foretold["deleted"]["runs"]) == (True, 1)
    assert hermes.inline("runs", "show", old).code == 0

    done = json.loads(hermes.inline("data", "prune", "--json").out)
    assert done["deleted"]["runs"] == 1
    shown = hermes.inline("runs", "show", old[:14])
    assert (shown.code, "was deleted" in shown.err) == (2, True)
    assert "runs" in hermes.inline("data", "prune").out


def test_what_is_held_stays_until_it_is_released(hermes: CommandLine, old: str) -> None:
    hermes.inline("data", "retention", "set", "runs", "30d")
    placed = hermes.inline("data", "retention", "hold", "--run", old, "--reason", "a court")
    assert old in placed.out
    number = placed.out.split()[0]
    [view] = [json.loads(line) for line in hermes.inline("data", "retention", "holds", "--json").out.splitlines()]
    assert (view["run_id"], view["reason"]) == (old, "a court")
    assert json.loads(hermes.inline("data", "prune", "--json").out)["deleted"]["runs"] == 0
    assert hermes.inline("data", "retention", "release", number).code == 0
    assert "no holds" in hermes.inline("data", "retention", "holds").err
    assert json.loads(hermes.inline("data", "prune", "--json").out)["deleted"]["runs"] == 1


def test_rules_are_shown_set_and_unset(hermes: CommandLine) -> None:
    hermes.environ["HERMES_RETENTION"] = "events=10d"
    assert json.loads(hermes.inline("data", "retention", "show", "--json").out)["events"] == "10d"
    hermes.inline("data", "retention", "set", "events", "never")
    assert json.loads(hermes.inline("data", "retention", "show", "--json").out)["events"] == "never"
    hermes.inline("data", "retention", "unset", "events")
    assert "10d" in hermes.inline("data", "retention", "show").out
    for wrong in (("events", "/5"), ("dreams", "30d"), ("runs", "soon")):
        refused = hermes.inline("data", "retention", "set", *wrong)
        assert (refused.code, wrong[0] in refused.err) == (2, True)


def test_workspaces_and_documents_go_by_their_rules(tmp_path: Path, store: Store, old: str) -> None:
    home = tmp_path / "home"
    fresh = store.submit().run_id
    names = (old, fresh, f"run_{'0' * 32}", "mine")
    for name in names:
        (home / "workspaces" / name / "src").mkdir(parents=True)
    outside = tmp_path / "outside"
    outside.mkdir()
    (home / "workspaces" / old / "link").symlink_to(outside)
    for name in names:
        os.utime(home / "workspaces" / name, (1.0, 1.0))
    job = home / "cron" / "output" / "0123456789ab"
    job.mkdir(parents=True)
    for day in (1, 2, 3):
        (job / f"2020-01-0{day}_00-00-00.md").touch()
        os.utime(job / f"2020-01-0{day}_00-00-00.md", (1.0, 1.0))

    kept = Pruner(store.database, DEFAULT_RULES)
    assert set(prune_files(home, kept, outputs_kept=0).values()) == {0}
    pruner = Pruner(store.database, {**DEFAULT_RULES, **parse_rules(["workspaces=30d", "outputs=30d"])})
    assert prune_files(home, pruner, outputs_kept=0) == {"outputs": 2, "workspaces": 1}
    assert sorted(path.name for path in (home / "workspaces").iterdir()) == sorted(names[1:])
    assert outside.exists()
    assert [path.name for path in job.iterdir()] == ["2020-01-03_00-00-00.md"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_prune_that_is_ended_goes_on_where_it_was(hermes: CommandLine, store: Store, number: int) -> None:
    """By a real signal: nothing is half deleted, and the next one deletes the rest."""
    run_ids = [store.submit().run_id for _ in range(400)]
    for run_id in run_ids:
        store.answer(run_id)
    store.let_pass(40 * DAY_S)
    newest = store.submit().run_id
    assert hermes.inline("data", "retention", "set", "runs", "30d").code == 0
    with hermes.started("data", "prune", "--json") as running:
        wait_for(lambda: len(left(store)) < 401)
        os.kill(running.pid, number)
        running.wait()
    assert newest in left(store)
    check(store)
    assert hermes.inline("data", "prune", "--json").code == 0
    assert left(store) == {newest}


def left(store: Store) -> set[str]:
    return {view.run_id for view in store.views.list_runs(limit=1000)}
