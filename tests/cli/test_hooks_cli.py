"""``hermes-worker runs hooks``: what observers were told of a run."""

from __future__ import annotations

import json
from pathlib import Path

from support.commandline import CommandLine
from support.migrated import bring_up
from support.store import Store

from hermes_worker.core.effects import CallHook
from hermes_worker.core.hooks import build_observed
from hermes_worker.store.engine.database import Database
from hermes_worker.store.hooks.calls import HookCalls


def test_what_hooks_were_told_is_listed_with_what_came_of_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    bring_up(url)
    database = Database(url, observed=build_observed([("audit", ("agent:end",))]))
    here = Store.over(database)
    untold, run_id = (here.submit(source="cli").run_id for _ in range(2))
    [effect] = [hint.effect for hint in here.answer(run_id) if isinstance(hint.effect, CallHook)]
    calls = HookCalls(database)
    claim = calls.claim(effect, here.owner)
    assert claim is not None
    calls.settle(claim, "ValueError: no bell")
    database.close()
    hermes = CommandLine(tmp_path / "home", {"HERMES_DATABASE_URL": url})

    listed = hermes.inline("runs", "hooks", run_id)
    [row] = [json.loads(line) for line in hermes.inline("runs", "hooks", run_id, "--json").out.splitlines()]

    assert listed.code == 0, listed.said
    assert "audit" in listed.out
    assert "ValueError: no bell" in listed.out
    assert (row["event"], row["run_id"], row["attempts"]) == ("agent:end", run_id, 1)
    assert hermes.inline("runs", "hooks", untold).err == "no hook was told of this run\n"
