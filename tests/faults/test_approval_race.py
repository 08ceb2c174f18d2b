"""An approval that 32 processes answer at once, over four replicas of the API: it is used up once, whoever wins."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support import api_replica
from support.questions import open_wait
from support.rig import Rig, rig_on, until

from hermes_worker.core.run import RunStatus
from hermes_worker.local.valkey import EmbeddedValkey

pytestmark = pytest.mark.faults
RACERS, REPLICAS = 32, 4
KEY = "race-0123456789-0123456789"


class Replicas:
    """Four servers of the API; one that was killed is replaced."""

    def __init__(self, environ: dict[str, str]) -> None:
        self._environ = environ
        self.running = [api_replica.start(environ) for _ in range(REPLICAS)]

    def replace_killed(self) -> None:
        for place, (process, _) in enumerate(self.running):
            if not process.is_alive():
                self.running[place] = api_replica.start(self._environ)

    def kill(self, place: int) -> None:
        self.running[place][0].kill()
        self.running[place][0].join()

    def end(self) -> None:
        for place in range(REPLICAS):
            self.kill(place)


@contextmanager
def racing() -> Iterator[list[subprocess.Popen[str]]]:
    program = [sys.executable, "-S", str(Path(__file__).parents[1] / "support" / "racer.py")]
    racers = [
        subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(RACERS)
    ]
    try:
        yield racers
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate()


def race(
    rig: Rig, replicas: Replicas, racers: list[subprocess.Popen[str]], number: int, *, kills: bool
) -> Counter[int]:
    """One question, one race; the statuses that the racers got."""
    run_id = rig.submit(
        [{"calls": [{"name": "terminal", "arguments": {"command": f"rm -rf not-there && echo {number} >> fired.txt"}}]}]
    )
    until(lambda: rig.view(run_id).status is RunStatus.WAITING_FOR_APPROVAL or None, "the question")
    body = {"choice": "once", "wait_id": open_wait(rig.client.database, run_id)}
    at = time.time() + 0.3
    for place, racer in enumerate(racers):
        url = urlsplit(replicas.running[place % REPLICAS][1])
        told = {"host": url.hostname, "port": url.port, "path": f"/v1/runs/{run_id}/approval", "key": KEY, "at": at}
        assert racer.stdin is not None
        racer.stdin.write(json.dumps({**told, "body": body}) + "\n")
        racer.stdin.flush()
    if kills:
        # The first answer is committed: whoever gave it may not have said so yet.
        until(lambda: rig.view(run_id).status is not RunStatus.WAITING_FOR_APPROVAL or None, "an answer")
        replicas.kill(number % REPLICAS)
    statuses = Counter(int(racer.stdout.readline()) for racer in racers if racer.stdout is not None)
    replicas.replace_killed()
    rig.ended(run_id)
    return statuses


def race_often(rig: Rig, count: int) -> None:
    environ = {
        **{name: rig.client.settings.environ[name] for name in ("PATH", "HOME", "HERMES_HOME")},
        "HERMES_DATABASE_URL": rig.client.settings.environ["HERMES_DATABASE_URL"],
        "HERMES_BROKER_URL": rig.client.settings.environ["HERMES_BROKER_URL"],
        "HERMES_PROVIDER": "scripted",
        "HERMES_SERVER_HOST": "127.0.0.1",
        "HERMES_SERVER_PORT": "0",
        "HERMES_SERVER_KEY": KEY,
    }
    replicas = Replicas(environ)
    chance, seen = random.Random(38), Counter[int]()
    try:
        with racing() as racers:
            for number in range(count):
                seen += race(rig, replicas, racers, number, kills=chance.random() < 0.25)
    finally:
        replicas.end()
    # 0 is a connection that broke with its server.
    assert set(seen) <= {200, 409, 0} and seen[409] > 0, seen
    # A worker that lost its lease between the claim and the command leaves it unknown, and does not run it.
    fired = Counter((rig.directory / "workspace" / "fired.txt").read_text().split())
    assert set(fired.values()) == {1}
    assert len(fired) + unknown_calls(rig) == count


def unknown_calls(rig: Rig) -> int:
    rows = [row for run_id in rig.submitted for row in rig.tool_rows(run_id)]
    return sum("unknown" in row["content"] for row in rows)


@pytest.mark.nightly
def test_an_approval_that_32_processes_give_at_once_is_used_once(
    tmp_path: Path, postgres_url: str, own_valkey: EmbeddedValkey
) -> None:
    with rig_on(tmp_path, database_url=postgres_url, broker_url=own_valkey.url, workers_per_role=1) as rig:
        race_often(rig, 4)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_thousand_approvals_raced_by_32_processes_are_used_once_each(
    tmp_path: Path, postgres_url: str, own_valkey: EmbeddedValkey
) -> None:
    with rig_on(tmp_path, database_url=postgres_url, broker_url=own_valkey.url, workers_per_role=1) as rig:
        race_often(rig, 1000)
