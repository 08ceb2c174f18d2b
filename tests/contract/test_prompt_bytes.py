"""One conversation over several worker processes, with kills: the bytes that a provider's prompt cache goes by.

A cache finds what begins like something it has seen. So every request has to begin with all of the one before it,
whichever process makes it, and a request that is made again because its worker died has to be the very same.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from dialects import API_MODE, RULES, Said, ToolUse
from strict_server import StrictServer
from support.rig import Rig, rig_on, until
from support.samples import leave_to_the_night

from hermes_worker.core.run import RunStatus
from hermes_worker.features.memory.rows import Memories
from hermes_worker.features.memory.rules import (
    MemoryAction,
    MemoryAuthor,
    MemoryKey,
    MemoryOperation,
    MemoryRules,
    MemoryTarget,
)
from hermes_worker.lab.plan import FleetRole
from hermes_worker.services.submission import Submission, prepare_run
from hermes_worker.store.runs.runs import NewRun

pytestmark = pytest.mark.faults

_MARKER = re.compile(rb',?"cache_control":\{[^}]*\},?')
"""Where a cache may end is no part of what it compares, and moves along with the conversation."""


def work(number: int) -> Said:
    call = ToolUse(id=f"call_{number}", name="sink_pure", arguments=f'{{"mark": "m{number}"}}')
    return Said(thinking=f"thought {number}", text=f"step {number}", calls=(call,))


def kill_each_once(rig: Rig) -> None:
    """Replace model workers as they die, until every one of the first three has."""

    def all_died() -> bool | None:
        for worker in [w for w in rig.fleet.workers if w.role is FleetRole.MODEL]:
            if not rig.fleet.is_alive(worker):
                rig.fleet.replace(worker)
        return True if all(w.generation for w in rig.fleet.workers if w.role is FleetRole.MODEL) else None

    until(all_died, "three workers to die")


def common_beginning(one: bytes, other: bytes) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((position for position, (a, b) in pairs if a != b), min(len(one), len(other)))


def opening(rig: Rig, place: Path) -> NewRun:
    """The first run of a session whose prompt has a skill, both memories and the project's file."""
    project, skill = place / "project", place / "home" / "skills" / "tidy"
    project.mkdir()
    (project / "AGENTS.md").write_text("Build with make.")
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: tidy\ndescription: Tidies harbours.\n---\nSweep the quay.\n")
    rules, author = MemoryRules(limit=1_000), MemoryAuthor(name="cli:ann")
    for target, text in ((MemoryTarget.MEMORY, "The quay is old."), (MemoryTarget.USER, "Her name is Ada.")):
        added = [MemoryOperation(action=MemoryAction.ADD, content=text)]
        where = MemoryKey(tenant="default", target=target)
        Memories(rig.client.database).change(where, added, rules, author)
    return prepare_run(rig.client, Submission(input="begin", directory=str(project), toolsets=["hermes-cli"]))


@pytest.mark.parametrize("wire", leave_to_the_night(list(RULES), but=1))
def test_each_request_begins_with_the_one_before_it_whichever_process_sends_it(
    tmp_path: Path, broker_url: str, wire: str
) -> None:
    with StrictServer() as server:
        environ = {
            "HERMES_BASE_URL": server.base_url,
            "HERMES_API_KEY": "sk-test-0123456789abcdef",
            "HERMES_API_MODE": API_MODE[wire],
            "HERMES_LEASE_TTL_S": "1",
        }
        database_url = f"sqlite:///{tmp_path / 'test.db'}"
        with rig_on(
            tmp_path, database_url=database_url, broker_url=broker_url, workers_per_role=3, more_environ=environ
        ) as rig:
            until(
                lambda: True if len(rig.client.workers.list_alive()) >= len(rig.fleet.workers) else None, "all workers"
            )
            for worker in [w for w in rig.fleet.workers if w.role is FleetRole.MODEL]:
                rig.fleet.arm(worker, "iterate.after_reply=kill@2")
            server.says(*(work(number) for number in range(1_000)))
            # A busy machine may cost a step more leases than the kills do.
            opened = opening(rig, tmp_path)
            first = rig.submit([], session_id="s", iterations_max=1_000, attempts_max=500, opening=opened)
            kill_each_once(rig)
            server.says(Said(text="done"))
            rig.ended(first)
            server.says(*(work(number) for number in range(1_000, 1_003)), Said(text="done again"))
            rig.ended(rig.submit([], session_id="s", attempts_max=50))

            assert {view.status for view in rig.ended()} == {RunStatus.COMPLETED}
            assert rig.broken_invariants() == []
        sent = [_MARKER.sub(b"", request.body) for request in server.requests]

    assert server.refusals == []
    assert len(sent) > 10
    for text in (b"Tidies harbours.", b"The quay is old.", b"Her name is Ada.", b"Build with make."):
        assert text in sent[0]
    for before, after in itertools.pairwise(sent):
        shared = common_beginning(before, after)
        assert shared >= 0.99 * len(before), (before[shared - 80 :], after[shared - 80 :][:200])
    repeated = [before == after for before, after in itertools.pairwise(sent)]
    assert sum(repeated) >= 3, "what a dead worker had asked is asked again in the same bytes"
