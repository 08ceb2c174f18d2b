"""The scalers' own queries, on a real PostgreSQL, against 20 loads that were recorded from a fleet.

``python -m benchmarks.roles loads`` recorded them: what was due and claimed in each queue at one moment, since when,
and how long each of these steps then really took. The test writes the same rows, asks what the manifest asks, and lets
the pods that this comes to take the steps, first in, first out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import ceil
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.emptying import empty_database
from support.manifests import K8S, documents, our_pods
from support.migrated import bring_up
from support.postgres import PostgresFarm

from hermes_worker.core.run import STATE_VERSION
from hermes_worker.store.backlog import CLEARED_IN_S
from hermes_worker.store.engine.database import Database
from hermes_worker.store.tables import deliveries, runs, sessions, tool_calls

LOADS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "loads.json").read_text(encoding="utf-8"))
QUEUES = ("model", "tools", "delivery")
LEASE = {"lease_token": "t", "lease_owner": 1}
NOW = 1_800_000_000.0
"""What the view takes for the time: a step at work ages, and the need for places with it, until the query comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaler:
    """What the ScaledObject of a queue says."""

    query: str
    target: float
    replicas_min: int
    replicas_max: int
    places: int
    """Of a pod."""

    @classmethod
    def of(cls, queue: str) -> Scaler:
        text = (K8S / "components" / "keda-postgresql" / "scaling-postgresql.yaml").read_text(encoding="utf-8")
        name = f"hermes-worker-{queue}"
        [spec] = [each["spec"] for each in documents(text) if each["metadata"]["name"] == name]
        trigger = spec["triggers"][0]
        arguments = our_pods()[name][1]["containers"][0]["args"]
        return cls(
            query=trigger["metadata"]["query"],
            target=float(trigger["metadata"]["targetQueryValue"]),
            replicas_min=spec["minReplicaCount"],
            replicas_max=spec["maxReplicaCount"],
            places=int(arguments[arguments.index("--concurrency") + 1]),
        )

    def replicas(self, value: float) -> int:
        """As a horizontal pod autoscaler takes an average: whole pods, within the bounds."""
        return min(self.replicas_max, max(self.replicas_min, ceil(value / self.target)))


@pytest.fixture(scope="module")
def database(shared_postgres_farm: PostgresFarm) -> Iterator[Database]:
    with shared_postgres_farm.database() as url:
        bring_up(url)
        found = Database(url)
        stop_the_clock(found)
        yield found
        found.close()


def stop_the_clock(database: Database) -> None:
    """Have the view say what it says at ``NOW``."""
    with database.write() as connection:
        view = connection.exec_driver_sql("select pg_get_viewdef('hermes_backlog'::regclass)").scalar_one()
        assert view.count("clock_timestamp()") == 1
        stopped = view.replace("clock_timestamp()", f"to_timestamp({NOW})")
        connection.exec_driver_sql(f"create or replace view hermes_backlog as {stopped}")


def write(database: Database, load: Mapping[str, Any]) -> None:
    """The rows of a load, and nothing else."""
    with database.write() as connection:
        empty_database(connection)
        session = {"tenant": "default", "session_id": "s", "system_prompt": "", "tools_hash": "", "workspace": "{}"}
        connection.execute(sa.insert(sessions).values(pk=1, **session, created_at=NOW))
        holder = {"run_id": "h", "session_pk": 1, "tenant": "default", "model": "m", "state_version": STATE_VERSION}
        run = {
            **holder,
            "iterations_max": 9,
            "attempts_max": 3,
            "status": "running",
            "created_at": NOW,
            "updated_at": NOW,
        }
        connection.execute(sa.insert(runs).values(pk=1, **run))
        for table, rows in (
            (runs, [{**run, "pk": n, "run_id": f"r{n}", **at} for n, at in _numbered(load["model"])]),
            (tool_calls, [_call(n, at) for n, at in _numbered(load["tools"])]),
            (deliveries, [_delivery(n, at) for n, at in _numbered(load["delivery"])]),
        ):
            if rows:
                connection.execute(sa.insert(table), rows)


def _call(number: int, at: Mapping[str, Any]) -> dict[str, Any]:
    call = {"run_pk": 1, "iteration": 1, "position": number, "name": "t", "replay": "pure", "segment": 0}
    status = "pending" if at["hinted_at"] else "running"
    return {**call, "status": status, "timeout_s": 60.0, "result_seq": 1, **at}


def _delivery(number: int, at: Mapping[str, Any]) -> dict[str, Any]:
    state = "pending" if at["hinted_at"] else "attempting"
    row = {"delivery_id": f"d{number}", "tenant": "default", "target": "local", "state": state, "adjustments": ""}
    return {**row, "created_at": NOW, "updated_at": NOW, **at}


def _numbered(steps: Mapping[str, Sequence[Sequence[float]]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """From 2 on: the first run holds the calls."""
    return enumerate(_times(steps), start=2)


def _times(steps: Mapping[str, Sequence[Sequence[float]]]) -> Iterator[dict[str, Any]]:
    for age_s, _ in steps["due"]:
        yield {"hinted_at": NOW - age_s, "lease_token": None, "lease_owner": None, "claimed_at": None}
    for age_s, _ in steps["claimed"]:
        yield {"hinted_at": None, **LEASE, "claimed_at": NOW - age_s}


def last_begin_s(steps: Mapping[str, Sequence[Sequence[float]]], places: int) -> float:
    """When the last due step begins, in so many places of which the claimed steps hold theirs until they end."""
    free = [max(0.0, took_s - age_s) for age_s, took_s in steps["claimed"]]
    free += [0.0] * (places - len(free))
    heapify(free)
    begun_s = 0.0
    for _, took_s in steps["due"]:  # the oldest first
        begun_s = heappop(free)
        heappush(free, begun_s + took_s)
    return begun_s


def multiplied(load: Mapping[str, Any], times: int) -> dict[str, Any]:
    """The same with so many times as many due steps."""
    return {
        queue: {"due": [step for step in steps["due"] for _ in range(times)], "claimed": steps["claimed"]}
        for queue, steps in load.items()
    }


def test_the_loads_are_of_many_kinds() -> None:
    assert len(LOADS) == 20
    due = {queue: [len(load[queue]["due"]) for load in LOADS] for queue in QUEUES}
    claimed = {queue: [len(load[queue]["claimed"]) for load in LOADS] for queue in QUEUES}
    assert max(due["model"]) > 20 and min(due["model"]) == 0
    assert max(due["tools"]) > 100 and min(due["tools"]) == 0
    assert max(claimed["model"]) == 12 and max(claimed["tools"]) == 6
    late = [load for load in LOADS if last_begin_s(multiplied(load, 10)["tools"], 6) > CLEARED_IN_S]
    assert len(late) >= 10, "the places of the recorded fleet are too few for ten times as much"


@pytest.mark.parametrize("times", [1, 10])
@pytest.mark.parametrize("number", range(len(LOADS)))
def test_the_replicas_it_asks_for_clear_the_backlog_and_hold_what_is_claimed(
    database: Database, number: int, times: int
) -> None:
    load = multiplied(LOADS[number], times)
    write(database, load)
    for queue in QUEUES:
        scaler, steps = Scaler.of(queue), load[queue]
        with database.read() as connection:
            value = int(connection.exec_driver_sql(scaler.query).scalar_one())
        replicas = scaler.replicas(value)
        assert replicas * scaler.places >= value >= len(steps["claimed"]), queue
        assert last_begin_s(steps, replicas * scaler.places) <= CLEARED_IN_S, queue
        # So many places suffice, without what whole pods and their least number add to them.
        assert last_begin_s(steps, value) <= CLEARED_IN_S, queue
        assert value <= len(steps["claimed"]) + len(steps["due"]), "never more than one place for a step"


def test_it_asks_for_far_fewer_places_than_there_are_steps(database: Database) -> None:
    load = multiplied(max(LOADS, key=lambda load: len(load["tools"]["due"])), 10)
    write(database, load)
    with database.read() as connection:
        value = int(connection.exec_driver_sql(Scaler.of("tools").query).scalar_one())
    assert value < len(load["tools"]["due"]) / 2


def test_suspects_have_workers_started_for_them(database: Database) -> None:
    """Nobody but lanes takes them, and a worker starts those."""
    write(database, {queue: {"due": [], "claimed": []} for queue in QUEUES})
    with database.write() as connection:
        connection.execute(sa.update(runs).values(hinted_at=NOW - 1.0, deaths=1))
    [spec] = [
        each["spec"]
        for each in documents(
            (K8S / "components" / "keda-postgresql" / "scaling-postgresql.yaml").read_text(encoding="utf-8")
        )
        if each["metadata"]["name"] == "hermes-worker-model"
    ]
    with database.read() as connection:
        values = [connection.exec_driver_sql(each["metadata"]["query"]).scalar_one() for each in spec["triggers"]]
    assert values == [0, 1]
