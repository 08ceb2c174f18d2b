"""A worker that served many runs holds no more than one that served few: everything it remembers is bounded in number.

A tool that a plugin brings counts, inside the worker, the objects that the garbage collector knows. Every run has a
session of its own, which is the worst case for whatever is remembered by session. Texts are not among those objects;
the caches that hold only texts (translated rows, system rows) are bounded by ``lru_cache``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from support.extensions_of_others import plugin
from support.rig import Rig, rig_on, sink_call

from hermes_worker.lab.plan import FleetRole
from hermes_worker.local.valkey import EmbeddedValkey

pytestmark = pytest.mark.faults

FEW = 200
PARTS = 4
"""By now every cache that is bounded by sessions is full."""
NO_OBJECTS = frozenset({"resident KiB", "allocated blocks"})
"""What is only printed: it depends on texts, and on the allocator."""

COUNTING = '''
import gc, json, sys, weakref
from collections import Counter
from pathlib import Path

from hermes_worker.extending import Extension, tool


@tool(replay="once")
def count_objects(path: str) -> str:
    """Write how many objects of each type this process holds."""
    gc.collect()
    # sqlite3 keeps weak references to the last 200 cursors of a connection, most of which are gone.
    living = (each for each in gc.get_objects() if type(each) is not weakref.ref or each() is not None)
    counts = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in living)
    counts["allocated blocks"] = sys.getallocatedblocks()
    with open("/proc/self/statm") as statm:
        counts["resident KiB"] = int(statm.read().split()[1]) * 4
    Path(path).write_text(json.dumps(counts))
    return "counted"


EXTENSION = Extension(name="counting", version="1.0", tools=(count_objects,))
'''
MANIFEST = "name: counting\nversion: '1.0'\ndescription: Counts objects.\nprovides_tools: [count_objects]\n"


def serve(rig: Rig, runs: int) -> None:
    """Every second run calls a tool."""
    steps = ([{"calls": [sink_call("pure", "done")]}], [])
    rig.ended(*[rig.submit(steps[number % 2]) for number in range(runs)])


def counted(rig: Rig) -> Counter[str]:
    path = rig.directory / "counts.json"
    rig.ended(rig.submit([{"calls": [{"name": "count_objects", "arguments": {"path": str(path)}}]}]))
    counts = Counter(json.loads(path.read_text()))
    path.unlink()
    return counts


@pytest.fixture
def rig(tmp_path: Path, own_valkey: EmbeddedValkey) -> Iterator[Rig]:
    """One process does every step of every run; the other has nothing to do."""
    plugin(tmp_path / "home", COUNTING, MANIFEST, name="counting")
    with rig_on(
        tmp_path,
        database_url=f"sqlite:///{tmp_path / 'test.db'}",
        broker_url=own_valkey.url,
        workers_per_role=1,
        more_environ={"HERMES_EXTENSIONS": "counting"},
        queues={FleetRole.MODEL: ("model", "system", "tools"), FleetRole.TOOLS: ("delivery",)},
    ) as rig:
        yield rig


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "runs",
    [pytest.param(400, marks=pytest.mark.nightly, id="400"), pytest.param(2_000, marks=pytest.mark.slow, id="2000")],
)
def test_a_worker_that_served_many_runs_holds_no_more_objects_of_any_type_than_after_200(rig: Rig, runs: int) -> None:
    """Further runs follow the first 200, in four equal parts. What is done once, whenever it is first needed (a
    statement is compiled, a connection opened, a cache filled), may come in any part and makes up to some hundred
    objects; on a machine at work it has come in two parts, one after the other. What leaks comes in all of them, with
    every run or with every second one. So a type leaks when it grew in each part by more than one object for three
    runs."""
    part = (runs - FEW) // PARTS
    serve(rig, FEW)
    counts = [counted(rig)]
    for _ in range(PARTS):
        serve(rig, part)
        counts.append(counted(rig))
    few, many = counts[0], counts[-1]
    print(f"after {FEW} runs, and each time {part} more, where it differs:")
    for name in sorted(few | many, key=lambda name: few[name] - many[name]):
        if few[name] != many[name]:
            print(" ".join(f"{each[name]:9,}" for each in counts), name)
    growth = {
        name: min(later[name] - earlier[name] for earlier, later in pairwise(counts))
        for name in many
        if name not in NO_OBJECTS
    }
    assert {name: by for name, by in growth.items() if by > part / 3} == {}
