"""Measure this tree beside something else, by turns in the same minutes, and print ratios.

    git worktree add ../before HEAD~1
    python -m benchmarks.compare ../before                     # PostgreSQL with fsync, 16 runs at work
    python -m benchmarks.compare ../before --database sqlite --rounds 6 --runs 100 --steps 10
    python -m benchmarks.compare dbos                          # another system (``benchmarks.peers``)
    python -m benchmarks.compare sdk                           # the bare SDK loop, which stores nothing

Each side has its own servers and processes, and a model server without latency. A tree is started by its own
``benchmarks.stack`` with the packages of this environment, a system in an environment of its own. A round is the same
load on one side and then on the other; which one begins changes from round to round. A ratio is that of one round, and
the median of all rounds is printed: a machine whose speed drifts by half within minutes changes both sides of a ratio.
``.`` as the other checkout shows the noise.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve()
_FIGURES = ("steps_per_s", "cpu_ms_per_step", "cpu_ms_per_step_all", "gap_p50_s")


class Player:
    """One side, in a process of its own that plays its load once for each line it is sent."""

    def __init__(self, what: str, load: Sequence[str]) -> None:
        """``what`` is a checkout, or the name of what stands in ``benchmarks.peers``."""
        is_tree = Path(what).is_dir()
        tree = Path(what).resolve() if is_tree else HERE.parents[1]
        # The script is run by its path, so both packages are found in ``tree`` and not beside it.
        environ = {**os.environ, "PYTHONPATH": str(tree)}
        argv = [sys.executable, str(HERE), "--play", "tree" if is_tree else what, *load]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(argv, env=environ, cwd=tree, stdin=pipe, stdout=pipe, text=True)
        self._read_line()  # once it is warm

    def _read_line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def measure(self) -> dict[str, float]:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        measured: dict[str, float] = json.loads(self._read_line())
        return measured

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def play(options: argparse.Namespace) -> None:
    """Be a player: start one side, and play the load once for each line of standard input."""
    from benchmarks.stack import Load

    load = Load(database=options.database, runs=options.runs, steps=options.steps, history=options.history)
    with _open_side(options.play, load) as side:
        if options.play == "tree":
            side.warm_up()
        print(flush=True)
        for _ in sys.stdin:
            measured = side.measure()
            found = measured if isinstance(measured, dict) else {name: getattr(measured, name) for name in _FIGURES}
            print(json.dumps(found), flush=True)


def _open_side(what: str, load: Any) -> AbstractContextManager[Any]:
    if what == "tree":
        from benchmarks.run import stack_for

        return stack_for(load)
    from benchmarks.peers.stack import PeerStack, SdkLoop  # which an older checkout may not have

    return SdkLoop(load) if what == "sdk" else PeerStack(what, load)


def compare(other: str, load: Sequence[str], rounds: int) -> list[str]:
    """Play by turns; the lines of a table."""
    players = (Player(str(HERE.parents[1]), load), Player(other, load))
    seen: tuple[list[dict[str, float]], ...] = ([], [])
    try:
        for number in range(rounds):
            for side in (0, 1) if number % 2 else (1, 0):
                seen[side].append(players[side].measure())
            before = os.getloadavg()[0]
            print(f"round {number + 1} of {rounds}, load {before:.1f}", file=sys.stderr, flush=True)
    finally:
        for player in players:
            player.close()
    lines = ["| figure | this tree | the other | ratio | of single rounds |", "|---|---|---|---|---|"]
    for name in _FIGURES:
        if name not in seen[1][0]:
            continue  # a peer has no events to tell it from
        ours, theirs = ([one[name] for one in side] for side in seen)
        ratios = sorted(mine / its for mine, its in zip(ours, theirs, strict=True))
        lines.append(
            f"| {name} | {median(ours):.4g} | {median(theirs):.4g} | **{median(ratios):.3f}** "
            f"| {ratios[0]:.3f} to {ratios[-1]:.3f} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", nargs="?", help="another checkout, or sdk, dbos, restate")
    parser.add_argument("--play", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--database", choices=["postgresql", "sqlite"], default="postgresql")
    parser.add_argument("--runs", type=int, default=16, help="at work at once")
    parser.add_argument("--steps", type=int, default=40, help="of each run and round")
    parser.add_argument("--history", type=int, default=0, help="messages that each session already holds")
    options = parser.parse_args()
    if options.play:
        play(options)
        return
    if options.other is None:
        parser.error("name another checkout, or sdk, dbos, restate")
    load = [f"--{name}={getattr(options, name)}" for name in ("database", "runs", "steps", "history")]
    print("\n".join([f"{os.cpu_count()} cores, {' '.join(load)}", "", *compare(options.other, load, options.rounds)]))


if __name__ == "__main__":
    main()
