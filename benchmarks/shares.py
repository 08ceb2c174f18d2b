"""What sharing a fleet costs: submit, claim and end of runs of one tenant, of ten, of ten with held runs, and of ten
with limits, by turns on one PostgreSQL: ``python -m benchmarks.shares``.

Each turn takes one run through its three acts in every kind of fleet, so whatever else the machine does meets all of
them alike. A ratio is that of medians to those of the one tenant, whose runs have no place: that is what every act cost
before tenants shared anything. ``--same`` measures the one tenant against itself as well: what is not the product.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from hermes_worker.core.effects import Iterate
from hermes_worker.core.limits import Limit, LimitName
from hermes_worker.core.messages import ModelReply, Usage
from hermes_worker.core.spec import RunSpec
from hermes_worker.local.postgres import EmbeddedPostgres
from hermes_worker.store.access.principals import Tenants
from hermes_worker.store.engine.database import Database
from hermes_worker.store.migrate import migrate
from hermes_worker.store.rows import Hint
from hermes_worker.store.runs.limits import TenantLimits
from hermes_worker.store.runs.runs import NewRun, Runs
from hermes_worker.store.workers import Workers

ACTS = ("submit", "claim", "end")
_ANSWER = ModelReply(text="done", usage=Usage(input=100, output=10))
_TENANTS = 10
_PLACES = 64
_WARM_UP = 50


@dataclass(frozen=True)
class Fleet:
    """A kind of fleet."""

    title: str
    tenants: int = 1
    held: int = 0
    """Runs that wait for a place before the first turn, and after each."""
    is_limited: bool = False
    """Tenants have limits of runs and of model calls, none of which is reached."""


FLEETS = (
    Fleet("one tenant"),
    Fleet("ten tenants, places free", tenants=_TENANTS),
    Fleet("ten tenants, runs held", tenants=_TENANTS, held=500),
    Fleet("ten tenants with limits", tenants=_TENANTS, is_limited=True),
)


@dataclass
class Bench:
    """A database with a fleet, and what its acts took in seconds."""

    fleet: Fleet
    database: Database
    took: dict[str, list[float]] = field(default_factory=lambda: {act: [] for act in ACTS})

    def __post_init__(self) -> None:
        migrate(self.database)
        self.runs = Runs(self.database)
        self.owner = Workers(self.database).register(name="w", queues="model", ttl_s=1e9).pk
        self._due: deque[Iterate] = deque()
        self._number = 0
        self._names = ["default", *(f"tenant{n}" for n in range(1, self.fleet.tenants))]
        tenants, limits = Tenants(self.database), TenantLimits(self.database)
        for name in self._names[1:]:
            tenants.create_tenant(name)
        limits.set_places(_PLACES)
        if self.fleet.is_limited:
            for name in self._names:
                limits.set_limit(name, Limit(name=LimitName.RUNS, value=1_000, waits=True))
                limits.set_limit(name, Limit(name=LimitName.MODEL_CALLS, value=1_000, waits=True))
        for _ in range(self.fleet.held + _PLACES if self.fleet.held else 0):
            self._submit()

    def turn(self) -> None:
        """One run of each act."""
        began = time.perf_counter()
        self._submit()
        submitted = time.perf_counter()
        claim = self.runs.claim_iteration(self._due.popleft(), self.owner)
        claimed = time.perf_counter()
        assert claim is not None
        self._noted(self.runs.commit_reply(claim, _ANSWER, ()))
        ended = time.perf_counter()
        for act, seconds in zip(ACTS, (submitted - began, claimed - submitted, ended - claimed), strict=True):
            self.took[act].append(seconds)

    def _submit(self) -> None:
        tenant = self._names[self._number % len(self._names)]
        self._number += 1
        spec = RunSpec(input="x" * 200, model="m")
        made = self.runs.create(
            NewRun(spec=spec, tenant=tenant, system_prompt="You are a test.", tools="[]", workspace="{}")
        )
        self._noted(made.hints)

    def _noted(self, hints: Sequence[Hint]) -> None:
        self._due.extend(hint.effect for hint in hints if isinstance(hint.effect, Iterate))


def measure(turns: int, fleets: Sequence[Fleet], new_database: Callable[[str], str]) -> list[Bench]:
    """All fleets, turn by turn; ``new_database`` gives the URL of an empty database of this name."""
    with ExitStack() as stack:
        benches = []
        for number, fleet in enumerate(fleets):
            database = Database(new_database(f"shares{number}"))
            stack.callback(database.close)
            benches.append(Bench(fleet, database))
        for done in range(_WARM_UP + turns):
            if done == _WARM_UP:
                for bench in benches:
                    bench.took = {act: [] for act in ACTS}
            for bench in benches if done % 2 else reversed(benches):
                bench.turn()
        return benches


def report(benches: Sequence[Bench]) -> str:
    alone = {act: statistics.median(took) for act, took in benches[0].took.items()}
    lines = [
        f"{len(benches[0].took['claim'])} turns; {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}",
        "",
        f"| fleet | {' | '.join(ACTS)} |",
        f"|{'---|' * (1 + len(ACTS))}",
    ]
    for bench in benches:
        cells = [
            f"{statistics.median(took) * 1e3:.2f} ms, {statistics.median(took) / alone[act]:.2f} x"
            for act, took in bench.took.items()
        ]
        lines.append(f"| {bench.fleet.title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _file_of(directory: Path, name: str) -> str:
    return f"sqlite:///{directory / name}.db"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=400, help="runs in each kind of fleet (400)")
    parser.add_argument("--same", action="store_true", help="the one tenant twice, to see what is not the product")
    parser.add_argument("--held", type=int, default=500, help="runs that wait where some do (500)")
    parser.add_argument("--sqlite", action="store_true", help="on SQLite, in files of its own")
    options = parser.parse_args(arguments)
    again = (Fleet("one tenant, again"),) if options.same else ()
    fleets = [replace(fleet, held=min(fleet.held, options.held)) for fleet in (*FLEETS[:1], *again, *FLEETS[1:])]
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        new_database: Callable[[str], str] = partial(_file_of, Path(place))
        if not options.sqlite:
            new_database = stack.enter_context(EmbeddedPostgres(Path(place))).create_database
        benches = measure(options.turns, fleets, new_database)
    sys.stdout.write(f"{report(benches)}\n")


if __name__ == "__main__":
    main()
