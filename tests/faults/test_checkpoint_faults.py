"""Checkpoints of a run whose worker was killed: another process goes on, and what both kept is there."""

from __future__ import annotations

import json

import pytest
from support.commandline import CommandLine
from support.rig import Rig, until

from hermes_worker.core.run import RunStatus
from hermes_worker.lab.plan import FleetRole

pytestmark = pytest.mark.faults


def written(path: str, content: str) -> dict[str, object]:
    return {"name": "write_file", "arguments": {"path": path, "content": content}}


def test_what_a_killed_worker_and_the_next_one_kept_is_listed_compared_and_restored(rig: Rig) -> None:
    root = rig.directory / "workspace"
    root.mkdir()
    (root / "a").write_text("first\n")
    (root / "b").write_text("of a person\n")
    until(lambda: True if len(rig.client.workers.list_alive()) >= len(rig.fleet.workers) else None, "all workers")
    tools = [worker for worker in rig.fleet.workers if worker.role is FleetRole.TOOLS]
    for worker in tools:
        rig.fleet.arm(worker, f"call_tool.after_run=kill@1!{rig.directory / 'latch'}")
    run_id = rig.submit([{"calls": [written("a", "second\n")]}, {"calls": [written("b", "of an agent\n")]}])
    [run] = rig.ended(run_id)
    assert run.status is RunStatus.COMPLETED
    assert [rig.fleet.is_alive(worker) for worker in tools].count(False) == 1, "in the middle of the first write"
    assert ((root / "a").read_text(), (root / "b").read_text()) == ("second\n", "of an agent\n")

    environ = rig.client.settings.environ
    kept = {name: environ[name] for name in ("HERMES_DATABASE_URL", "HERMES_BROKER_URL", "HERMES_PROVIDER")}
    command = CommandLine(rig.directory / "home", {**kept, "HERMES_BASE_URL": environ["HERMES_BASE_URL"]})
    listed = [json.loads(line) for line in command.inline("runs", "checkpoints", run_id, "--json").out.splitlines()]
    assert [(each["iteration"], each["tool"]) for each in listed] == [(2, "write_file"), (1, "write_file")]
    told = command.inline("runs", "diff", run_id).out
    assert "-first\n+second\n" in told and "-of a person\n+of an agent\n" in told
    done = command.inline("runs", "restore", run_id, listed[-1]["checkpoint_id"])
    assert (done.code, done.out) == (0, "2 files written, 0 removed\n")
    assert ((root / "a").read_text(), (root / "b").read_text()) == ("first\n", "of a person\n")
