"""Tenants with provider keys of their own, on real workers: each is asked for with its own, one that is spent or
broken holds back nobody else, and keys in rows are seen while workers run."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fault_server import FaultServer, Received, Reply, say_hello
from support.rig import Rig, rig_on, until

from hermes_worker.core.run import RunStatus
from hermes_worker.core.spec import RunSpec
from hermes_worker.features.provider_keys.rows import ProviderKeys
from hermes_worker.store.access.principals import Tenants
from hermes_worker.store.runs.runs import NewRun
from hermes_worker.workspaces.ref import WorkspaceKind, WorkspaceRef

pytestmark = pytest.mark.faults

OURS, ACMES, BETAS, SPARE = (
    "sk-fleet-0123456789ab",
    "sk-acme-0123456789ab",
    "sk-beta-0123456789ab",
    "sk-gamma-012345678",
)
DELTAS, GAMMAS = "sk-delta-0123456789", "sk-gamma-in-a-row"
OWNER = {OURS: "default", ACMES: "acme", BETAS: "beta", SPARE: "gamma", DELTAS: "delta", GAMMAS: "gamma's row"}
TENANTS = ("default", "acme", "beta", "gamma", "delta")


def submit(rig: Rig, tenant: str) -> str:
    workspace = WorkspaceRef(kind=WorkspaceKind.LOCAL, root=str(rig.directory / tenant))
    new = NewRun(
        spec=RunSpec(input=f"for {tenant}.", model="scripted"),
        tenant=tenant,
        system_prompt="You are in a test.",
        tools="[]",
        workspace=workspace.to_json(),
    )
    created = rig.client.runs.create(new)
    rig.client.publisher.send(created.hints)
    return created.run_id


def _ended_well(rig: Rig, tenant: str) -> bool:
    [view] = rig.ended(submit(rig, tenant))
    return view.status is RunStatus.COMPLETED


def test_a_key_that_is_spent_or_broken_holds_back_its_tenant_only(
    tmp_path: Path, database_url: str, broker_url: str
) -> None:
    asked: list[tuple[str, str]] = []

    def answer(request: Received, reply: Reply) -> None:
        key = (request.header("Authorization") or "").removeprefix("Bearer ")
        said = str(request.document["messages"])
        asked.extend((OWNER.get(key, key), tenant) for tenant in TENANTS if f"for {tenant}." in said)
        if key == ACMES:
            error = {"error": {"message": "Rate limit reached", "type": "rate_limit_error"}}
            reply.document(429, error, "Retry-After: 300")
        elif key == BETAS:
            reply.document(401, {"error": {"message": "Incorrect API key", "type": "invalid_request_error"}})
        else:
            say_hello(request, reply)

    with FaultServer(answer) as server:
        environ = {
            "HERMES_BASE_URL": server.base_url,
            "HERMES_API_KEY": OURS,
            "HERMES_ENCRYPTION_KEYS": "hwt_" + "k" * 40,
            "HERMES_TENANT_KEYS": f"acme/custom={ACMES},beta/custom={BETAS},gamma/custom={SPARE},delta/openai=sk-delta",
        }
        with rig_on(tmp_path, database_url=database_url, broker_url=broker_url, more_environ=environ) as rig:
            tenants = Tenants(rig.client.database)
            for name in ("acme", "beta", "gamma", "delta"):
                tenants.create_tenant(name)
            spent, broken, keyless = submit(rig, "acme"), submit(rig, "beta"), submit(rig, "delta")
            until(
                lambda: rig.view(spent).status is RunStatus.WAITING_FOR_CAPACITY or None, "acme's run to be held back"
            )
            others = [submit(rig, tenant) for tenant in ("default", "gamma") * 5]

            assert {view.status for view in rig.ended(*others)} == {RunStatus.COMPLETED}
            [failed, without] = rig.ended(broken, keyless)
            assert (failed.status, without.status) == (RunStatus.FAILED, RunStatus.FAILED)
            assert "keys add custom --tenant delta" in str(without.error)
            assert rig.view(spent).status is RunStatus.WAITING_FOR_CAPACITY
            assert set(asked) == {(tenant, tenant) for tenant in TENANTS if tenant != "delta"}

            # While the workers run, and a run waits: one key where there was none, and one in place of the settings'.
            asked.clear()
            kept = ProviderKeys(rig.client.database)
            kept.add("delta", "custom", DELTAS)
            ours = kept.add("gamma", "custom", GAMMAS)
            until(lambda: (_ended_well(rig, "gamma") and ("gamma's row", "gamma") in asked) or None, "the row to count")
            until(lambda: _ended_well(rig, "delta") or None, "delta's key to be used")
            kept.remove("gamma", ours.key_id)
            until(lambda: (_ended_well(rig, "gamma") and ("gamma", "gamma") in asked) or None, "the settings to count")
            log = rig.log_text()

    assert ("delta", "delta") in asked and not [pair for pair in asked if pair[0] == "default"]
    assert not [key for key in (*OWNER, "sk-delta") if key in log]
