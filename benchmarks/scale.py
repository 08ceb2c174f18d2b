"""How throughput grows with workers, and how many model calls one machine holds in flight.

    python -m benchmarks.scale             # about six minutes
    python -m benchmarks.scale --quick     # without the second table, under two minutes

First table: 1, 2, 4 and more *pairs* of workers, each pair a process for models with 16 threads and one for tools,
on one PostgreSQL and one Valkey, under the same load for each pair: 24 runs whose model calls take 1 s. A pair can make
at most 16 steps a second. What it makes of that is its share; the ratio is that of a row's steps per second to those of
half as many pairs. When the cores are full, more pairs bring nothing: then the machine is the limit.

Second table: one process for models with so many threads, and as many calls of 60 s in flight. Memory is PSS of all
worker processes, so that pages which they share count once.

Figures of one run compare with each other and with nothing else. Nothing here is asserted anywhere.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import urllib.request
from collections.abc import Sequence
from itertools import pairwise

from benchmarks.run import say, stack_for
from benchmarks.stack import Load, Measured

THREADS_OF_A_PAIR = 16
RUNS_OF_A_PAIR = 24
"""More than it has threads: a thread that is free finds work."""
STEPS = 12
PAIRS = (1, 2, 4, 8, 16)
IN_FLIGHT = (250, 1_000, 2_000, 3_000, 4_000)
HELD_S = 60.0
PSS_MAX_MB = 2_048


def growth(pairs: Sequence[int]) -> list[tuple[int, Measured]]:
    """The same load for each pair, by more and more pairs, until the cores are full."""
    measured = []
    for number in pairs:
        say(f"{number} pairs")
        load = Load(database="postgresql", runs=RUNS_OF_A_PAIR * number, steps=STEPS, latency_s=1.0, pairs=number)
        with stack_for(load, threads=THREADS_OF_A_PAIR * number) as stack:
            stack.warm_up()
            measured.append((number, stack.measure()))
        if measured[-1][1].cores_busy > 0.95 * (os.cpu_count() or 1):
            break
    return measured


def growth_table(measured: Sequence[tuple[int, Measured]]) -> list[str]:
    ratios = ["", *(f"{late.steps_per_s / early.steps_per_s:.2f}" for (_, early), (_, late) in pairwise(measured))]
    return [
        "| pairs | steps/s | to half as many | of what its threads could | cores busy | gap p50 | gap p99 |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {number} | {one.steps_per_s:.1f} | {ratio} | {one.steps_per_s / (THREADS_OF_A_PAIR * number):.0%} "
            f"| {one.cores_busy:.2f} | {one.gap_p50_s * 1e3:.0f} ms | {one.gap_p99_s * 1e3:.0f} ms |"
            for (number, one), ratio in zip(measured, ratios, strict=True)
        ),
    ]


def held(calls: int) -> tuple[int, float]:
    """The most calls that the model server saw in flight at once, and what the workers took for them in MB."""
    load = Load(database="postgresql", runs=calls, steps=1, latency_s=HELD_S)
    with stack_for(load, threads=calls) as stack:
        began = time.monotonic()
        for number in range(calls):
            time.sleep(max(0.0, began + HELD_S / 2 * number / calls - time.monotonic()))
            stack.submit(load.steps)
        while time.monotonic() < began + HELD_S and _in_flight(stack.model_url) < calls:
            time.sleep(0.5)
        return _in_flight(stack.model_url), stack.pss_mb()


def _in_flight(base_url: str) -> int:
    with urllib.request.urlopen(base_url.removesuffix("/v1") + "/stats", timeout=10) as answer:
        return int(json.load(answer)["in_flight"])


def memory_table(sizes: Sequence[int]) -> list[str]:
    lines = ["| calls asked for | in flight | PSS of the workers | for each call |", "|---|---|---|---|"]
    for calls in sizes:
        say(f"{calls} calls in flight")
        reached, pss_mb = held(calls)
        lines.append(f"| {calls} | {reached} | {pss_mb:.0f} MB | {pss_mb * 1024 / max(1, reached):.0f} KB |")
        if pss_mb > PSS_MAX_MB or reached < calls:
            break
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only 1, 2 and 4 pairs, and no memory")
    options = parser.parse_args()
    lines = growth_table(growth(PAIRS[:3] if options.quick else PAIRS))
    if not options.quick:
        lines += ["", *memory_table(IN_FLIGHT)]
    print("\n".join([f"{os.cpu_count()} cores", "", *lines]))


if __name__ == "__main__":
    main()
