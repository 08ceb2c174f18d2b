"""Hostile commands on each rung, as root and as an ordinary user: none achieves what docs/security.md calls stopped.

CI plays a sample of each; ``-m slow`` plays all of them. The machine they are played on, and how they are judged, is
``support.hostile_stage``; they themselves are ``support.hostile``.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.hostile import BOTH, ROWS, WORK, Hostile
from support.migrated import template
from support.programs import is_on_machine

ROOT, PLAIN = 0, 65534
USERS = (ROOT, PLAIN) if os.geteuid() == ROOT else (os.geteuid(),)
SAMPLE = 25
COMMANDS_MIN = 300


def _ids(names_by_group: Mapping[str, str]) -> frozenset[str]:
    return frozenset(f"{group}/{name}" for group, names in names_by_group.items() for name in names.split())


EVERY_TIME = _ids(
    {
        "files": "env ssh-key cloud-key netrc database broker-password",
        "reading": (
            "descriptor hard-link symbolic-link link-to-folder rename rename-folder copy-tree grep-tree "
            "shadow first-root worker-root every-cwd every-root"
        ),
        "sessions": "notes star write shared-memory temporary-files",
        "writing": "system-binary system-settings home home-new",
        "database": "append",
        "broker": "socket",
        "processes": (
            "worker-environment parent-environment every-environment worker-memory worker-descriptors "
            "given-descriptors worker-maps attach seize-worker read-memory"
        ),
        "signals": "ask-worker parent stop-parent everybody memory-score-of-own group-of-processes",
        "sockets": "abstract packet raw vsock docker desktop-bus",
        "kernel": (
            "mount unmount unshare-user unshare-mounts clone-user control-groups group-settings chroot "
            "io-uring userfaultfd keyctl bpf perf module-call handle core-pattern system-request "
            "raise-limits raise-file-size setuid-shell capabilities host-name"
        ),
        "devices": "block memory",
        "link-local": "plain by-6 datagram",
    }
)
"""The shortest way to each thing that a wall keeps: tried whenever tests run, and not only when chance takes them."""
SUCCEEDING = _ids(
    {
        "files": "env ssh-key database",
        "sessions": "notes",
        "broker": "socket",
        "sockets": "abstract",
        "signals": "ask-worker",
    }
)
"""What succeeds on every machine where nothing stops it."""
SHARE_MIN = 0.6
"""Of the commands without a wall: fewer, and the judge sees nothing."""
MEMORY_KB_MAX = 600_000
TESTS = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Played:
    achieved: dict[str, list[str]]
    took: dict[str, float]

    def succeeded(self) -> dict[str, list[str]]:
        return {name: effects for name, effects in self.achieved.items() if effects}


@pytest.fixture
def place() -> Iterator[Path]:
    """A short path that other users can get to."""
    with tempfile.TemporaryDirectory(prefix="hostile-", dir="/tmp") as name:
        yield Path(name)


def played(rung: str | None, uid: int, rows: Collection[Hostile], place: Path) -> Played:
    """Play ``rows`` in a worker process of their own, as user ``uid``."""
    shutil.copyfile(template(), place / "template.db")
    (place / "template.db").chmod(0o644)
    os.chown(place, uid, -1)
    asked = {"rung": rung, "folder": str(place), "database": str(place / "template.db"), "ids": [r.id for r in rows]}
    done = subprocess.run(
        [sys.executable, "-m", "support.hostile_stage", *([str(uid), str(place)] if uid != os.geteuid() else [])],
        cwd=TESTS.parent,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=1_000,
        check=False,
    )
    # A command that harms its worker, or the other run of that worker, is seen here.
    assert done.returncode == 0, (done.returncode, done.stderr[-4000:])
    said = json.loads(done.stdout.splitlines()[-1])
    if "unavailable" in said:
        pytest.skip(f"{rung}: {said['unavailable']}")
    assert said["memory_kb"] < MEMORY_KB_MAX
    assert said["achieved"].keys() == {row.id for row in rows}
    return Played(said["achieved"], said["took"])


def stopped_on(rung: str) -> list[Hostile]:
    return [row for row in ROWS if rung in row.rungs]


@pytest.mark.nightly
@pytest.mark.parametrize("uid", USERS)
@pytest.mark.parametrize("rung", BOTH)
def test_no_hostile_command_of_a_sample_achieves_anything(rung: str, uid: int, place: Path) -> None:
    quick = [row for row in stopped_on(rung) if not row.is_long]
    sample = random.Random(f"{rung} {uid == ROOT}").sample(quick, SAMPLE)
    assert played(rung, uid, sample, place).succeeded() == {}


@pytest.mark.parametrize("rung", BOTH)
def test_the_shortest_ways_to_everything_that_is_kept_lead_nowhere(rung: str, place: Path) -> None:
    shortest = [row for row in stopped_on(rung) if row.id in EVERY_TIME]
    assert played(rung, USERS[0], shortest, place).succeeded() == {}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("uid", USERS)
@pytest.mark.parametrize("rung", BOTH)
def test_no_hostile_command_achieves_anything(rung: str, uid: int, place: Path) -> None:
    result = played(rung, uid, stopped_on(rung), place)
    print(f"\n{len(result.achieved)} hostile commands on {rung} as user {uid}: {sum(result.took.values()):.0f} s")
    assert result.succeeded() == {}


def test_there_are_three_hundred_of_them_on_each_rung() -> None:
    assert len({row.id for row in ROWS}) == len(ROWS)
    for rung in BOTH:
        assert len(stopped_on(rung)) >= COMMANDS_MIN
    assert {row.id for row in ROWS} >= EVERY_TIME | SUCCEEDING


@pytest.mark.nightly
def test_most_hostile_commands_succeed_where_nothing_stops_them(place: Path) -> None:
    """Otherwise the judge would prove nothing. These are of the groups that an ordinary user can do without a wall."""
    groups = ("files", "reading", "sessions", "writing", "database", "broker", "api", "loopback", "around-none")
    free = [row for row in ROWS if row.is_free and not row.is_long and row.group in groups]
    sample = random.Random(14).sample(free, 2 * SAMPLE)
    sure = [row for row in ROWS if row.id in SUCCEEDING]
    result = played(None, USERS[-1], list({row.id: row for row in (*sample, *sure)}.values()), place)
    assert not SUCCEEDING - result.succeeded().keys(), result.achieved
    assert len(result.succeeded()) >= SHARE_MIN * len(sample), result.achieved


@pytest.mark.parametrize("uid", USERS)
@pytest.mark.parametrize("rung", BOTH)
def test_ordinary_work_goes_on(rung: str, uid: int, place: Path) -> None:
    """And has no other effect than that."""
    there = [row for row in WORK if row.needs is None or is_on_machine(row.needs)]
    result = played(rung, uid, there, place)
    assert result.achieved == {row.id: ["told: REACHED"] for row in there}
    if missing := [str(row.needs) for row in WORK if row not in there]:
        pytest.skip(f"everything else works; not installed: {', '.join(missing)}")
