"""Tenants that share a fleet of real workers: whoever comes with little waits little, whatever others have queued."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
import sqlalchemy as sa
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


def times(rig: Rig, tenant: str) -> list[tuple[float, float]]:
    """How long each ended run of a tenant waited, and how long it then took."""
    took = (runs.c.started_at - runs.c.created_at, runs.c.finished_at - runs.c.started_at)
    with rig.client.database.read() as connection:
        wanted = sa.select(*took).where(runs.c.tenant == tenant, runs.c.finished_at.is_not(None))
        return [(float(wait), float(length)) for wait, length in connection.execute(wanted.order_by(runs.c.pk))]


@pytest.mark.parametrize(
    ("many", "few"), [(60, 5), pytest.param(1_000, 10, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_who_comes_with_few_runs_waits_for_two_of_the_others_at_most(
    tmp_path: Path, postgres_url: str, broker_url: str, many: int, few: int
) -> None:
    with FaultServer(answer) as server:
        environ = {"HERMES_BASE_URL": server.base_url}
        with rig_on(tmp_path, database_url=postgres_url, broker_url=broker_url, more_environ=environ) as rig:
            for name in ("acme", "beta"):
                Tenants(rig.client.database).create_tenant(name)
            TenantLimits(rig.client.database).set_places(PLACES)
            heavy = [submit(rig, "acme", 10) for _ in range(many)]
            until(lambda: times(rig, "acme")[:1] or None, "a heavy run to end")
            light = [submit(rig, "beta", 1) for _ in range(few)]

            rig.ended(*light)
            waits = sorted(wait for wait, _ in times(rig, "beta"))
            rig.ended(*heavy, patience_s=800)
            theirs = times(rig, "acme")

    slot = statistics.median(length for _, length in theirs)
    p95 = waits[min(len(waits) - 1, int(0.95 * len(waits)))]
    print(f"beta waited {p95:.2f} s at p95, {p95 / slot:.2f} heavy runs of {slot:.2f} s; of {waits}")
    assert max(wait for wait, _ in theirs) > 3 * slot  # there was a queue to stand in
    assert p95 <= 2 * slot
