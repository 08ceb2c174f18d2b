"""The settings of an installation over HTTP."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest
from serving import Served
from test_tenants import client, tenants  # noqa: F401  (fixtures)

from hermes_worker import live_settings
from hermes_worker.core.principals import KeyScope
from hermes_worker.settings import describe_settings
from hermes_worker.store.access.principals import Tenants

OpenClient = Callable[[str], httpx.Client]


def test_operators_see_every_setting_and_who_said_so_and_no_secret(api: Served) -> None:
    listed = api.http.get("/v1/settings").json()
    rows = {row["key"]: row for row in listed["data"]}
    assert list(rows) == [row.key for row in describe_settings()]
    assert rows["lease.lanes_max"]["value"] == "2"
    assert (rows["lease.lanes_max"]["layer"], rows["lease.lanes_max"]["origin"]) == ("default", "default")
    assert rows["lease.lanes_max"]["description"].startswith("Lanes that one worker starts")
    assert all(row["value"] is None for row in rows.values() if row["is_secret"])
    assert rows["server.key"]["is_secret"]
    assert (rows["agent.max_turns"]["is_live"], rows["lease.ttl_s"]["is_live"]) == (True, False)
    assert rows["agent.toolsets"]["overridable_for"] == ["tenant"]
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


def written(http: httpx.Client, text: str, version: int, place: str = "/v1/configuration") -> httpx.Response:
    return http.put(place, json={"text": text, "version": version})


def test_a_configuration_is_written_by_whoever_read_the_newest_and_counts_for_the_next_run(
    api: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_settings, "LOOK_EVERY_S", 0.0)
    assert api.http.get("/v1/configuration").json()["version"] == 0
    assert written(api.http, "agent: {max_turns: 50}", 0).json()["version"] == 1
    moved = written(api.http, "agent: {max_turns: 60}", 0)
    assert (moved.status_code, moved.json()["error"]["code"]) == (409, "configuration_moved")
    for wrong in ("agent: {max_turns: many}", "model: {api_key: sk-0123456789abcdef}", "nonsense: ["):
        refused = written(api.http, wrong, 1)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "text"), refused.text
    assert [row["version"] for row in api.http.get("/v1/configuration/versions").json()["data"]] == [1]

    began = api.http.get(f"/v1/runs/{api.submit()}").json()["began_with"]
    assert (began["layers"], began["overrides"]) == ({"fleet": "1"}, {"agent.max_turns": "50"})
    listed = api.http.get("/v1/settings", params={"prefix": "agent.max_turns"}).json()
    assert [(row["value"], row["layer"]) for row in listed["data"]] == [("50", "fleet")]
    assert (listed["layers"], listed["problems"]) == ({"fleet": "1"}, {})


def test_a_tenant_does_not_raise_what_was_said_for_it(
    api: Served,
    tenants: Tenants,  # noqa: F811
    client: OpenClient,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live_settings, "LOOK_EVERY_S", 0.0)
    place = "/v1/tenants/acme/configuration"
    acme = client(tenants.create_key("acme", "boss", [KeyScope.ADMIN]).token)
    assert written(api.http, "agent: {max_turns: 20}\napprovals: {api_mode: deny}", 0, place).status_code == 200
    assert api.http.get(f"{place}/versions").json()["data"][0]["tenant"] == "acme"
    assert written(acme, "agent: {max_turns: 1000}", 1, place).status_code == 403
    assert written(acme, "agent: {max_turns: 1000}", 0).status_code == 403
    assert written(api.http, "", 0, "/v1/tenants/nobody/configuration").status_code == 404

    def asks(**body: object) -> httpx.Response:
        return acme.post("/v1/runs", json={"input": "hello", **body})

    for body, param in (
        ({"settings": {"agent.max_turns": "21"}}, "settings"),
        ({"settings": {"approvals.api_mode": "approve"}}, "settings"),
        ({"settings": {"agent.toolsets": "hermes-cli"}}, "settings"),
        ({"settings": {"model.api_key": "sk-0123456789abcdef"}}, "settings"),
        ({"settings": {"model.base_url": "http://evil.example"}}, "settings"),
        ({"settings": {"agent.max_turns": "${OPENAI_API_KEY}"}}, "settings"),
        ({"max_iterations": 21}, "iterations_max"),
        ({"max_iterations": 21, "settings": {"agent.max_turns": "19"}}, "iterations_max"),
    ):
        refused = asks(**body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param), refused.text
    run = asks(settings={"agent.max_turns": "19"}).json()
    run = acme.get(f"/v1/runs/{run['run_id']}").json()
    assert run["began_with"]["overridden_by"] == {"agent.max_turns": "run", "approvals.api_mode": "tenant"}

    session = f"/v1/sessions/{run['session_id']}/settings"
    assert acme.put(session, json={"settings": {"agent.max_turns": "21"}}).status_code == 400
    said = acme.put(session, json={"settings": {"agent.max_turns": "18"}}).json()["settings"]
    assert said == acme.get(session).json()["settings"] == {"agent.max_turns": "18"}
    assert api.http.get(session).status_code == api.http.put(session, json={"settings": {}}).status_code == 404
    rows = {
        name: api.http.get("/v1/settings", params={"prefix": "agent.max_turns", name: value}).json()["data"][0]
        for name, value in (("tenant", "acme"), ("session_id", run["session_id"]), ("run_id", run["run_id"]))
    }
    assert {name: (row["value"], row["layer"]) for name, row in rows.items()} == {
        "tenant": ("20", "tenant"),
        "session_id": ("18", "session"),
        "run_id": ("19", "run"),
    }
    assert acme.put(session, json={"settings": {"agent.max_turns": None}}).json()["settings"] == {}
