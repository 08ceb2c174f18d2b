"""Tenants that share a fleet of real workers: whoever comes with little waits little, whatever others have queued."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.fairness import compute_fairness
from support.fault_server import FaultServer, Received, Reply, finish_chunk, text_chunk
from support.rig import Rig, rig_on, until

from hermes_worker.core.spec import RunSpec
from hermes_worker.store.access.principals import Tenants
from hermes_worker.store.runs.limits import TenantLimits
from hermes_worker.store.runs.runs import NewRun
from hermes_worker.store.tables import runs
from hermes_worker.workspaces.ref import WorkspaceKind, WorkspaceRef

pytestmark = pytest.mark.faults

HEAVY_S = 0.5
PLACES = 4


def answer(request: Received, reply: Reply) -> None:
    """A run says what it costs: ``tokens=N`` thousand, and takes as long as that is dear."""
    said = str(request.document["messages"][-1]["content"])
    thousands = int(said.rpartition("tokens=")[2].split("'")[0].split()[0])
    reply.closing.wait(HEAVY_S * thousands / 10)
    usage = {"choices": [], "usage": {"prompt_tokens": 1000 * thousands, "completion_tokens": 1}}
    reply.sse(text_chunk("done"), finish_chunk(), usage, "[DONE]")


def submit(rig: Rig, tenant: str, thousands: int) -> str:
    workspace = WorkspaceRef(kind=WorkspaceKind.LOCAL, root=str(rig.directory / tenant))
    new = NewRun(
        spec=RunSpec(input=f"tokens={thousands} ", model="scripted"),
        tenant=tenant,
        system_prompt="You are in a test.",
        tools="[]",
        workspace=workspace.to_json(),
    )
    created = rig.client.runs.create(new)
    rig.client.publisher.send(created.hints)
    return created.run_id


def list_starts(rig: Rig, tenant: str) -> list[tuple[float, float]]:
    """When each run of a tenant that began was submitted, and when it began."""
    with rig.client.database.read() as connection:
        wanted = sa.select(runs.c.created_at, runs.c.started_at).where(
            runs.c.tenant == tenant, runs.c.started_at.is_not(None)
        )
        return [(float(created), float(started)) for created, started in connection.execute(wanted.order_by(runs.c.pk))]


@pytest.mark.parametrize(
    ("many", "few"), [(60, 5), pytest.param(1_000, 10, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_who_comes_with_few_runs_is_passed_by_two_rounds_of_the_others_at_most(
    tmp_path: Path, postgres_url: str, broker_url: str, many: int, few: int
) -> None:
    with FaultServer(answer) as server:
        environ = {"HERMES_BASE_URL": server.base_url}
        with rig_on(tmp_path, database_url=postgres_url, broker_url=broker_url, more_environ=environ) as rig:
            for name in ("acme", "beta"):
                Tenants(rig.client.database).create_tenant(name)
            TenantLimits(rig.client.database).set_places(PLACES)
            heavy = [submit(rig, "acme", 10) for _ in range(many)]
            until(lambda: list_starts(rig, "acme")[PLACES:] or None, "a heavy run to end")
            light = [submit(rig, "beta", 1) for _ in range(few)]

            rig.ended(*light)
            ours = list_starts(rig, "beta")
            rig.ended(*heavy, patience_s=800)
            theirs = [started for _, started in list_starts(rig, "acme")]

    passed = sorted(sum(created < other < started for other in theirs) for created, started in ours)
    p95 = passed[min(len(passed) - 1, int(0.95 * len(passed)))]
    print(f"{p95} heavy runs began before one of beta's at p95; of {passed}")
    first = min(created for created, _ in ours)
    assert sum(other > first for other in theirs) > 6 * PLACES  # there was a queue to stand in
    assert p95 <= 2 * PLACES


@pytest.mark.parametrize("each_thousands", [40, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_ten_unequal_tenants_get_parts_by_cost_and_weight(
    tmp_path: Path, postgres_url: str, broker_url: str, each_thousands: int
) -> None:
    weights = {f"team-{number}": 1 + number % 2 for number in range(10)}
    costs = {name: 4 + number for number, name in enumerate(weights)}
    due = {name: each_thousands * weight for name, weight in weights.items()}
    all_queued = threading.Event()

    def answer_later(request: Received, reply: Reply) -> None:
        all_queued.wait(120)
        answer(request, reply)

    with FaultServer(answer_later) as server:
        environ = {"HERMES_BASE_URL": server.base_url}
        with rig_on(tmp_path, database_url=postgres_url, broker_url=broker_url, more_environ=environ) as rig:
            kept = TenantLimits(rig.client.database)
            kept.set_places(PLACES)
            for name, weight in weights.items():
                Tenants(rig.client.database).create_tenant(name)
                kept.set_weight(name, weight)
            # Three times what is due to each, so that nobody runs out of work before it is looked at.
            counts = {name: 3 * due[name] // cost for name, cost in costs.items()}
            for number in range(max(counts.values())):
                for name, cost in costs.items():
                    if number < counts[name]:
                        submit(rig, name, cost)
            all_queued.set()

            def used_enough() -> dict[str, float] | None:
                found = _used(rig)
                return found if sum(found.values()) >= sum(due.values()) else None

            used = until(used_enough, "the fleet to have worked enough", patience_s=600)
    by_weight = [used.get(name, 0.0) / weight for name, weight in weights.items()]
    print(
        f"Jain {compute_fairness(by_weight):.3f} of {[round(each) for each in by_weight]} thousand "
        f"tokens by weight; {used}"
    )
    assert all(used[name] < 3 * due[name] - 2 * costs[name] for name in weights), "somebody had nothing left to do"
    assert compute_fairness(by_weight) >= 0.95
    heavy = sum(used[name] for name, weight in weights.items() if weight == 2)
    assert 1.6 <= heavy / (sum(used.values()) - heavy) <= 2.5, "twice the weight, twice the part"


def _used(rig: Rig) -> dict[str, float]:
    """Thousands of tokens that ended runs of each tenant used."""
    with rig.client.database.read() as connection:
        summed = sa.select(runs.c.tenant, sa.func.sum(runs.c.input_tokens)).where(runs.c.finished_at.is_not(None))
        return {tenant: float(tokens) / 1_000 for tenant, tokens in connection.execute(summed.group_by(runs.c.tenant))}
