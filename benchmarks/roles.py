"""What the roles of a deployment take, and what waits for them.

``python -m benchmarks.roles sizes`` prints a table: each role's memory (PSS, all of its processes) and processor time,
idle and with 20 runs at work. ``python -m benchmarks.roles loads FILE`` records 20 loads of the queues: what was due
and claimed at one moment, and how long each of these steps really took. Tests play them (tests/deploy/test_scaling.py).
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import sqlalchemy as sa

from hermes_worker.local.postgres import EmbeddedPostgres
from hermes_worker.local.valkey import EmbeddedValkey
from hermes_worker.store.engine.database import Database
from hermes_worker.store.migrate import migrate
from hermes_worker.store.tables import deliveries, runs, tool_calls

PROGRAM = [sys.executable, "-P", "-m", "hermes_worker"]
KEY = "a-key-of-the-benchmark"
IDLE_S = 20.0
BUSY_S = 30.0
LOADS = 20
SEED = 16


@dataclass(slots=True)
class Fleet:
    """The roles, each as a process of its own."""

    directory: Path
    database: Database
    environ: dict[str, str]
    url: str = ""
    roles: dict[str, psutil.Process] = field(default_factory=dict)

    def start(self, stack: ExitStack, name: str, *command: str) -> None:
        process = subprocess.Popen([*PROGRAM, *command], env=self.environ, stderr=subprocess.DEVNULL)
        stack.callback(process.wait)
        stack.callback(process.terminate)
        self.roles[name] = psutil.Process(process.pid)

    def submit(self, **body: Any) -> None:
        headers = {"Authorization": f"Bearer {KEY}"}
        httpx.post(f"{self.url}/v1/runs", json=body, headers=headers, timeout=60).raise_for_status()

    def count(self, *where: sa.ColumnElement[bool]) -> int:
        with self.database.read() as connection:
            return int(connection.execute(sa.select(sa.func.count()).select_from(runs).where(*where)).scalar_one())

    def wait_until_over(self) -> None:
        while self.count(runs.c.finished_at.is_(None)):
            time.sleep(0.5)


@contextmanager
def fleet(*, threads: dict[str, int]) -> Iterator[Fleet]:
    """Servers, a scripted model and one process of each role; ``threads`` of the workers, by queue."""
    with tempfile.TemporaryDirectory(prefix="hermes-roles-") as folder, ExitStack() as stack:
        directory = Path(folder)
        directory.chmod(0o755)  # PostgreSQL does not run as root
        valkey = stack.enter_context(EmbeddedValkey(directory / "valkey"))
        postgres = stack.enter_context(EmbeddedPostgres(directory / "postgres"))
        database = Database(postgres.create_database("roles"))
        stack.callback(database.close)
        migrate(database)
        port, model_port = 18642, 18900
        environ = {
            **{name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ},
            "HERMES_HOME": str(directory / "home"),
            "HERMES_DATABASE_URL": database.url.render_as_string(hide_password=False),
            "HERMES_BROKER_URL": valkey.url,
            "HERMES_BASE_URL": f"http://127.0.0.1:{model_port}/v1",
            "HERMES_MODEL": "scripted",
            "HERMES_SERVER_KEY": KEY,
            "HERMES_DRAIN_S": "1",
        }
        found = Fleet(directory, database, environ, url=f"http://127.0.0.1:{port}")
        found.start(stack, "scripted model", "dev", "scripted-model", "--port", str(model_port))
        for queue, places in threads.items():
            queues = "delivery,system" if queue == "delivery" else queue
            found.start(
                stack, f"worker {queue} [{places}]", "start", "worker", "--queues", queues, "--concurrency", str(places)
            )
        found.start(stack, "beat", "start", "beat")
        found.start(stack, "api", "start", "api", "--port", str(port))
        _wait_for(found.url)
        yield found


def _wait_for(url: str) -> None:
    while True:
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.2)


# --- sizes -----------------------------------------------------------------------------------------------------------


def _tree(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


def _pss_mb(process: psutil.Process) -> float:
    total = 0
    for each in _tree(process):
        try:
            total += each.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
    return total / 1024**2


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


def sizes() -> None:
    """Print the table of docs/kubernetes.md."""
    with fleet(threads={"model": 50, "tools": 16, "delivery": 16}) as found:
        time.sleep(10)
        idle = _watched(found, IDLE_S)
        script = {"delay_s": 1.0, "steps": [_command(1.0)] * 15, "final": "done"}
        for _ in range(20):
            found.submit(input=f"scripted: {json.dumps(script)}", deliver=["local"])
        busy = _watched(found, BUSY_S)
    print("| role | PSS idle | PSS with 20 runs, peak | CPU idle | CPU with 20 runs |\n| --- | --- | --- | --- | --- |")
    for name in idle:
        (pss, cpu), (pss_busy, cpu_busy) = idle[name], busy[name]
        print(f"| {name} | {pss:.0f} MB | {pss_busy:.0f} MB | {cpu * 1000:.0f} m | {cpu_busy * 1000:.0f} m |")


def _watched(found: Fleet, seconds: float) -> dict[str, tuple[float, float]]:
    """Of each role: the greatest PSS in MB, and the part of a core that it used."""
    before = {name: _cpu_s(process) for name, process in found.roles.items()}
    began = time.monotonic()
    most = dict.fromkeys(found.roles, 0.0)
    while time.monotonic() < began + seconds:
        for name, process in found.roles.items():
            most[name] = max(most[name], _pss_mb(process))
        time.sleep(1)
    took = time.monotonic() - began
    return {name: (most[name], (_cpu_s(process) - before[name]) / took) for name, process in found.roles.items()}


# --- loads -----------------------------------------------------------------------------------------------------------


def _command(seconds: float, delay_s: float | None = None) -> dict[str, Any]:
    call = {"name": "terminal", "arguments": {"command": f"sleep {seconds:.2f}"}}
    return {"calls": [call], **({} if delay_s is None else {"delay_s": delay_s})}


@dataclass(slots=True)
class StepSeen:
    """One step: when it was hinted, claimed and over, by the database's clock."""

    queue: str
    hinted_at: float
    claimed_at: float | None = None
    over_at: float | None = None


class Recorder:
    """Looks at the rows again and again, and remembers what became of each step."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._steps: dict[tuple[Any, ...], StepSeen] = {}
        self.moments: list[float] = []

    def look(self) -> float:
        seen: set[tuple[Any, ...]] = set()
        with self._database.read() as connection:
            now = self._database.read_clock()
            for queue, table, key in _SOURCES:
                open_ones = sa.or_(table.c.hinted_at.is_not(None), table.c.lease_owner.is_not(None))
                for row in connection.execute(sa.select(*key, table.c.hinted_at, table.c.claimed_at).where(open_ones)):
                    name = (queue, *row[: len(key)])
                    seen.add(name)
                    step = self._steps.setdefault(name, StepSeen(queue, row.hinted_at or row.claimed_at))
                    if row.hinted_at is None:
                        step.claimed_at = row.claimed_at
        for name, step in self._steps.items():
            if name not in seen and step.over_at is None:
                step.over_at = now
        return now

    def load_at(self, moment: float) -> dict[str, Any]:
        """What was due and claimed at a moment; the steps in seconds: since when, and how long they took."""
        found: dict[str, Any] = {}
        for queue, _, _ in _SOURCES:
            of_queue = [step for step in self._steps.values() if step.queue == queue and step.over_at is not None]
            due, claimed = [], []
            for step in of_queue:
                # A step that was never seen at work took less time than there was between two looks.
                begun = step.claimed_at if step.claimed_at is not None else float(step.over_at or 0.0)
                took = round(float(step.over_at or 0.0) - begun, 2)
                if step.hinted_at <= moment < begun:
                    due.append([round(moment - step.hinted_at, 2), took])
                elif begun <= moment < float(step.over_at or 0.0):
                    claimed.append([round(moment - begun, 2), took])
            found[queue] = {"due": sorted(due, reverse=True), "claimed": sorted(claimed, reverse=True)}
        return found


_SOURCES = (
    ("model", runs, (runs.c.pk, runs.c.iteration)),
    ("tools", tool_calls, (tool_calls.c.run_pk, tool_calls.c.iteration, tool_calls.c.position)),
    ("delivery", deliveries, (deliveries.c.pk,)),
)


def loads(path: Path) -> None:
    """Record loads of different kinds: few and many runs, short and long steps, a burst, a drought."""
    chance = random.Random(SEED)
    with fleet(threads={"model": 12, "tools": 6, "delivery": 2}) as found:
        recorder = Recorder(found.database)
        for phase in range(LOADS):
            for _ in range(chance.choice([0, 2, 6, 12, 40])):
                found.submit(input=f"scripted: {json.dumps(_script(chance))}", deliver=["local"])
            until = time.monotonic() + chance.uniform(2.0, 7.0)
            while time.monotonic() < until:
                now = recorder.look()
                time.sleep(0.2)
            recorder.moments.append(now)
            print(f"{phase + 1} of {LOADS}", flush=True)
        while found.count(runs.c.finished_at.is_(None)):
            recorder.look()
            time.sleep(0.2)
        recorder.look()
    recorded = [recorder.load_at(moment) for moment in recorder.moments]
    path.write_text(json.dumps(recorded, separators=(",", ":")) + "\n", encoding="utf-8")


def _script(chance: random.Random) -> dict[str, Any]:
    slow = chance.choice([0.5, 1.0, 1.0, 3.0])
    steps = [
        _command(chance.lognormvariate(0.0, 1.0) * slow, min(20.0, chance.lognormvariate(0.3, 0.8) * slow))
        for _ in range(chance.randint(1, 3))
    ]
    return {"steps": steps, "delay_s": slow, "final": "done"}


def main() -> None:
    if sys.argv[1] == "sizes":
        sizes()
    else:
        loads(Path(sys.argv[2]))


if __name__ == "__main__":
    main()
