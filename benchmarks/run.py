"""Measure the product against its floors, in one run on this machine, ratios first.

    python -m benchmarks.run              # about six minutes
    python -m benchmarks.run --quick      # the main rows, under a minute
    python -m benchmarks.run --thousand   # also 1,000 model calls in flight at 10 s and 60 s latency

Timings on a shared machine drift by a factor of two from minute to minute. So a row is measured in rounds, by turns
with its floor, the bare SDK loop over a history as long, and the ratio is that of the means. Both are warmed up before.
Nothing here is asserted anywhere.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from importlib.metadata import version
from operator import add
from pathlib import Path
from statistics import mean

from benchmarks.stack import BenchStack, Load, Measured, model_server
from hermes_worker.local.valkey import EmbeddedValkey

ROUNDS = 4
_PACKAGES = ("celery", "kombu", "redis", "sqlalchemy", "psycopg", "openai", "hermes-worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    measured: Measured
    bare_cpu_ms: float
    """Of a step of the bare SDK loop, in the same minute."""


class Floors:
    """What the parts cost by themselves, each as often as it was measured."""

    def __init__(self) -> None:
        self._seen: dict[str, list[dict[str, float]]] = {}

    def add(self, name: str, found: dict[str, float]) -> float:
        """Returns the milliseconds of CPU per step."""
        self._seen.setdefault(name, []).append(found)
        return found["cpu_ms_per_step"]

    def lines(self) -> list[str]:
        return [
            f"| {name} | {mean(one['steps_per_s'] for one in seen):.0f} "
            f"| {mean(one['cpu_ms_per_step'] for one in seen):.1f} |"
            for name, seen in self._seen.items()
        ]


def floor(which: str, url: str, *, messages: int = 10, steps: int = 150) -> dict[str, float]:
    argv = [sys.executable, "-m", "benchmarks.floors", which, "--url", url]
    argv += ["--messages", str(messages), "--steps", str(steps)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=300)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


@contextmanager
def stack_for(load: Load, *, threads: int | None = None) -> Iterator[BenchStack]:
    """``threads`` for model calls, over all worker processes; one for each run unless said."""
    directory = Path(tempfile.mkdtemp(prefix="hermes-bench-"))
    try:
        directory.chmod(0o755)
        with BenchStack(directory, load, threads=threads or max(8, min(load.runs, 1_000))) as stack:
            yield stack
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def beside_floor(load: Load, url: str, floors: Floors) -> Row:
    """Ours and the floor by turns."""
    messages = load.history or 10
    name, steps = f"SDK loop, {messages} messages", 40 if messages <= 100 else 15
    bare, measured = [], []
    with stack_for(load) as stack:
        if not load.latency_s:
            stack.warm_up()
        for _ in range(1 if load.latency_s else ROUNDS):
            bare.append(floors.add(name, floor("sdk", url, messages=messages, steps=steps)))
            measured.append(stack.measure())
    bare.append(floors.add(name, floor("sdk", url, messages=messages, steps=steps)))
    return Row(measured=reduce(add, measured), bare_cpu_ms=mean(bare))


def loads(*, quick: bool, thousand: bool) -> list[Load]:
    both = ("postgresql", "sqlite")
    rows = [Load(database=database, runs=16, steps=40) for database in both]
    if quick:
        return rows
    rows += [Load(database=database, runs=1, steps=60) for database in both]
    rows += [Load(database=database, runs=100, steps=10) for database in both]
    rows += [Load(database="postgresql", runs=runs, steps=5, latency_s=1.0) for runs in (1, 8, 100)]
    rows += [Load(database="postgresql", runs=8, steps=40, history=messages) for messages in (10, 100, 1_000)]
    if thousand:
        rows.append(Load(database="postgresql", runs=1_000, steps=8, latency_s=10.0))
        rows.append(Load(database="postgresql", runs=1_000, steps=1, latency_s=60.0))  # the gap, not the throughput
    return rows


def report(floors: Floors, rows: Sequence[Row]) -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    lines = [
        f"{platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}",
        packages,
        "",
        "| floor | steps/s | CPU ms/step |",
        "|---|---|---|",
        *floors.lines(),
        "",
        "| database | in flight | latency | history | CPU / bare SDK step | steps/s | gap p50 | gap p99 "
        "| CPU ms/step | with servers | RSS of workers |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        ours, load = row.measured, row.measured.load
        ratio = ours.cpu_ms_per_step / row.bare_cpu_ms
        lines.append(
            f"| {load.database} | {load.runs} | {load.latency_s:g} s | {load.history} "
            f"| **{ratio:.2f}** | {ours.steps_per_s:.0f} | {ours.gap_p50_s * 1e3:.0f} ms "
            f"| {ours.gap_p99_s * 1e3:.0f} ms | {ours.cpu_ms_per_step:.1f} | {ours.cpu_ms_per_step_all:.1f} "
            f"| {ours.rss_mb:.0f} MB |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the main rows only")
    parser.add_argument("--thousand", action="store_true", help="also 1,000 calls in flight at 10 s and 60 s latency")
    options = parser.parse_args()
    floors = Floors()
    rows = []
    with (
        tempfile.TemporaryDirectory(prefix="hermes-bench-") as directory,
        EmbeddedValkey(Path(directory), has_administrator=True) as valkey,
    ):
        say("floor: Celery, two hops")
        floors.add("Celery, two hops", floor("celery", valkey.administrator_url, steps=300))
    with model_server(latency_s=0) as (base_url, _):
        for load in loads(quick=options.quick, thousand=options.thousand):
            say(f"ours: {load}")
            rows.append(beside_floor(load, base_url, floors))
    print(report(floors, rows))


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
