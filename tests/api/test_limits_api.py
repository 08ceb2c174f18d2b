"""Limits of tenants and keys over HTTP: who may see and set them, and that they hold."""

from __future__ import annotations

from collections.abc import Callable

import httpx
from serving import Served
from test_tenants import client, tenants  # noqa: F401  (fixtures)

from hermes_worker.core.principals import KeyScope
from hermes_worker.store.access.audit import AuditLog
from hermes_worker.store.access.principals import Tenants

Opening = Callable[[str], httpx.Client]


def test_an_operator_sets_what_a_tenant_may_use(api: Served, tenants: Tenants, client: Opening) -> None:  # noqa: F811
    guest = client(tenants.create_key("acme", "boss", [KeyScope.ADMIN]).token)
    wanted = {"runs": {"at_most": 2, "waits": True}, "usd_per_day": {"at_most": 12.5, "waits": False}}

    answer = api.http.put("/v1/tenants/acme/limits", json={"limits": wanted, "weight": 2})

    assert answer.status_code == 200, answer.text
    assert answer.json() == {"object": "hermes.limits", "tenant": "acme", "limits": wanted, "weight": 2.0}
    assert api.http.get("/v1/tenants/acme/limits").json() == {**answer.json(), "keys": []}
    assert guest.get("/v1/limits").json()["limits"] == wanted
    deed = AuditLog(api.client.database).list_actions("acme", act="limit.set")[0]
    assert (deed.before, deed.after) == ({}, {"runs": 2, "usd_per_day": 12_500_000_000})
    assert api.http.put("/v1/tenants/acme/limits", json={"limits": {}}).json()["limits"] == {}
    assert api.http.get("/v1/tenants/nobody/limits").status_code == 404


def test_a_tenant_does_not_set_its_own_limits_but_those_of_its_keys(
    api: Served,
    tenants: Tenants,  # noqa: F811
    client: Opening,  # noqa: F811
) -> None:
    guest = client(tenants.create_key("acme", "boss", [KeyScope.ADMIN]).token)
    made = tenants.create_key("acme", "ci", [KeyScope.RUNS_WRITE, KeyScope.RUNS_READ])
    ci = client(made.token)
    assert guest.put("/v1/tenants/acme/limits", json={"limits": {}}).status_code == 403
    assert ci.put(f"/v1/limits/keys/{made.view.key_id}", json={"limits": {}}).status_code == 403

    guest.put(f"/v1/limits/keys/{made.view.key_id}", json={"limits": {"runs": {"at_most": 1}}})

    assert ci.post("/v1/runs", json={"input": "x"}).status_code == 202
    refused = ci.post("/v1/runs", json={"input": "x"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (429, "runs")
    assert int(refused.headers["Retry-After"]) >= 1
    assert made.view.key_id in refused.json()["error"]["message"]
    assert guest.post("/v1/runs", json={"input": "x"}).status_code == 202
    [of_key] = guest.get("/v1/limits").json()["keys"]
    assert of_key["limits"] == {"runs": {"at_most": 1, "waits": False}}
    assert guest.get(f"/v1/limits/keys/{made.view.key_id}").json() == of_key


def test_an_operator_sets_the_limits_of_a_tenants_key(api: Served, tenants: Tenants) -> None:  # noqa: F811
    key_id = tenants.create_key("acme", "ci", [KeyScope.RUNS_WRITE]).view.key_id
    body = {"limits": {"tokens_per_month": {"at_most": 1000}}}

    set_of_key = api.http.put("/v1/tenants/acme/limits", params={"key_id": key_id}, json=body)
    of_nobody = api.http.put("/v1/tenants/default/limits", params={"key_id": key_id}, json=body)

    assert set_of_key.json()["key_id"] == key_id
    assert of_nobody.status_code == 404
    assert api.http.get("/v1/tenants/acme/limits").json()["keys"][0]["key_id"] == key_id
