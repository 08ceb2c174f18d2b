"""The settings of an installation over HTTP."""

from __future__ import annotations

from collections.abc import Callable

import httpx
from serving import Served
from test_tenants import client, tenants  # noqa: F401  (fixtures)

from hermes_worker.core.principals import KeyScope
from hermes_worker.settings import describe
from hermes_worker.store.access.principals import Tenants

OpenClient = Callable[[str], httpx.Client]


def test_operators_see_every_setting_and_who_said_so_and_no_secret(api: Served) -> None:
    listed = api.http.get("/v1/settings").json()
    rows = {row["key"]: row for row in listed["data"]}
    assert list(rows) == [row.key for row in describe()]
    assert rows["lease.attempts_max"]["value"] == "3"
    assert (rows["lease.attempts_max"]["layer"], rows["lease.attempts_max"]["origin"]) == ("default", "default")
    assert rows["lease.attempts_max"]["description"].startswith("How many times a step")
    assert all(row["value"] is None for row in rows.values() if row["is_secret"])
    assert rows["server.key"]["is_secret"]
    [one] = api.http.get("/v1/settings", params={"prefix": "lease.ttl"}).json()["data"]
    assert one == rows["lease.ttl_s"]


def test_what_an_installation_says_is_for_its_operators(
    api: Served,
    tenants: Tenants,  # noqa: F811
    client: OpenClient,  # noqa: F811
) -> None:
    of_tenant = client(tenants.create_key("acme", "boss", [KeyScope.ADMIN]).token)
    reader = client(tenants.create_key("default", "reader", [KeyScope.RUNS_READ]).token)
    assert [each.get("/v1/settings").status_code for each in (of_tenant, reader)] == [403, 403]
