"""Measure the product against its floors, in one run on this machine, ratios first.

    python -m benchmarks.run              # about four minutes
    python -m benchmarks.run --quick      # the main rows, under a minute
    python -m benchmarks.run --thousand   # also 1,000 model calls in flight at 10 s latency

Timings on a shared machine drift by a factor of two between runs; the ratios inside one run do not. Nothing here is
asserted anywhere.
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
from importlib.metadata import version
from pathlib import Path

from benchmarks.stack import BenchStack, Load, Measured, model_server
from hermes_worker.embedded.valkey import EmbeddedValkey

_PACKAGES = ("celery", "kombu", "redis", "sqlalchemy", "psycopg", "openai", "hermes-worker")


def floor(which: str, url: str, *, messages: int = 10, steps: int = 150) -> dict[str, float]:
    argv = [sys.executable, "-m", "benchmarks.floors", which, "--url", url]
    argv += ["--messages", str(messages), "--steps", str(steps)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=300)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def measure(load: Load) -> Measured:
    directory = Path(tempfile.mkdtemp(prefix="hermes-bench-"))
    try:
        directory.chmod(0o755)
        with BenchStack(directory, load, threads=max(8, min(load.runs, 1_000))) as stack:
            return stack.measure()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def loads(*, quick: bool, thousand: bool) -> list[Load]:
    both = ("postgresql", "sqlite")
    rows = [Load(database=database, runs=16, steps=60) for database in both]
    if quick:
        return rows
    rows += [Load(database=database, runs=1, steps=100) for database in both]
    rows += [Load(database=database, runs=100, steps=15) for database in both]
    rows += [Load(database="postgresql", runs=runs, steps=5, latency_s=1.0) for runs in (1, 8, 100)]
    rows += [Load(database="postgresql", runs=8, steps=50, history=messages) for messages in (10, 100, 1_000)]
    if thousand:
        rows.append(Load(database="postgresql", runs=1_000, steps=8, latency_s=10.0))
    return rows


def report(floors: dict[str, dict[str, float]], measured: list[Measured]) -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    lines = [
        f"{platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}",
        packages,
        "",
        "| floor | steps/s | CPU ms/step |",
        "|---|---|---|",
        *(
            f"| {name} | {values['steps_per_s']:.0f} | {values['cpu_ms_per_step']:.1f} |"
            for name, values in floors.items()
        ),
        "",
        "| database | in flight | latency | history | CPU / bare SDK step | steps/s | gap p50 | gap p99 "
        "| CPU ms/step | with servers | RSS of workers |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in measured:
        load = row.load
        bare = floors[f"SDK loop, {load.history or 10} messages"]["cpu_ms_per_step"]
        lines.append(
            f"| {load.database} | {load.runs} | {load.latency_s:g} s | {load.history} "
            f"| **{row.cpu_ms_per_step / bare:.2f}** | {row.steps_per_s:.0f} | {row.gap_p50_s * 1e3:.0f} ms "
            f"| {row.gap_p99_s * 1e3:.0f} ms | {row.cpu_ms_per_step:.1f} | {row.cpu_ms_per_step_all:.1f} "
            f"| {row.rss_mb:.0f} MB |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the main rows only")
    parser.add_argument("--thousand", action="store_true", help="also 1,000 calls in flight at 10 s latency")
    options = parser.parse_args()
    floors: dict[str, dict[str, float]] = {}
    with model_server(latency_s=0) as (base_url, _):
        for messages in (10,) if options.quick else (10, 100, 1_000):
            say(f"floor: SDK loop, {messages} messages")
            floors[f"SDK loop, {messages} messages"] = floor("sdk", base_url, messages=messages, steps=40)
    with tempfile.TemporaryDirectory(prefix="hermes-bench-") as directory, EmbeddedValkey(Path(directory)) as valkey:
        say("floor: Celery, two hops")
        floors["Celery, two hops"] = floor("celery", valkey.url, steps=300)
    measured = []
    for load in loads(quick=options.quick, thousand=options.thousand):
        say(f"ours: {load}")
        measured.append(measure(load))
    print(report(floors, measured))


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
