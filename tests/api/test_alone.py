"""The API that a command serves to itself, and for whom whoever holds the installation's own key acts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from fastapi import APIRouter
from serving import KEY, Served
from support.migrated import bring_up
from support.patience import PATIENCE_S
from support.store import Store

from hermes_worker import installed
from hermes_worker.api.app import Api
from hermes_worker.api.in_process import AloneApi
from hermes_worker.client import HermesClient, RefusedError
from hermes_worker.extension import load_reference
from hermes_worker.settings import BrokerSettings, DatabaseSettings, Settings
from hermes_worker.store.access.audit import AuditLog
from hermes_worker.store.access.principals import Tenants


@pytest.fixture
def at_home(settings: Settings, tmp_path: Path) -> Settings:
    """A home on which nothing runs."""
    bring_up(f"sqlite:///{settings.home / 'hermes-worker.db'}")
    return replace(settings, database=DatabaseSettings(), broker=BrokerSettings())


@pytest.fixture
def alone(at_home: Settings) -> Iterator[AloneApi]:
    api = AloneApi(at_home)
    yield api
    api.close()


def asking(api: AloneApi, **whom: str) -> HermesClient:
    return HermesClient(api.url, api_key=api.key.reveal(), patience_s=0.0, **whom)


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/health", "/health/ready", "/v1/runs", "/v1/runs/run_1", "/metrics", "/openapi.json", "/webhooks/x"),
        "/v1/artifacts/art_1/content?expires=1&signature=x",
    ],
)
def test_nobody_without_the_key_of_the_command_gets_anything(alone: AloneApi, path: str) -> None:
    for headers in ({}, {"Authorization": f"Bearer {KEY}"}, {"Cookie": "hermes_page=x"}):
        assert httpx.get(alone.url + path, headers=headers, timeout=PATIENCE_S).status_code == 401
        assert httpx.post(alone.url + path, headers=headers, timeout=PATIENCE_S).status_code == 401


def test_with_the_key_there_is_no_page_and_nothing_for_others(alone: AloneApi) -> None:
    headers = {"Authorization": f"Bearer {alone.key.reveal()}"}
    for path in ("/", "/health", "/metrics", "/v1/chat/completions", "/v1/page/login", "/webhooks/x", "/inbound/x"):
        assert httpx.get(alone.url + path, headers=headers, timeout=PATIENCE_S).status_code == 404, path


def test_a_home_without_a_broker_is_read_and_steered(alone: AloneApi, at_home: Settings) -> None:
    with asking(alone, user="ann") as client:
        run_id = client.submit("hello", session_id="mine")
        assert [run.run_id for run in client.sheets(session_id="mine")] == [run_id]
        client.steer(run_id, "quickly")
        assert client.pause(run_id)["status"] == "paused"
        assert client.stop(run_id)["status"] == "cancelled"
        assert next(iter(client.events(run_id))).kind
        done = [deed["actor"] for deed in client.audit()]
    assert set(done) == {"cli:ann"}
    assert not (at_home.home / "api.key").exists(), "to look at a home leaves nothing there"


def test_what_only_reads_waits_for_no_document(alone: AloneApi, monkeypatch: pytest.MonkeyPatch) -> None:
    with asking(alone) as client:
        run_id = client.submit("hello", session_id="mine")
        monkeypatch.setattr(Api, "openapi", None)
        assert [run.run_id for run in client.sheets(session_id="mine")] == [run_id]


def test_it_ends_with_the_command(at_home: Settings) -> None:
    api = AloneApi(at_home)
    api.close()
    api.close()
    with pytest.raises(httpx.ConnectError):
        httpx.get(api.url, timeout=PATIENCE_S)


def test_the_declared_paths_of_a_router_are_those_of_its_routes() -> None:
    for declared in installed.get_installed().routers.values():
        if declared.paths:
            router = load_reference(declared.implementation)
            assert isinstance(router, APIRouter)
            assert set(declared.paths) == {getattr(route, "path", "") for route in router.routes}, declared.name


# --- for whom --------------------------------------------------------------------------------------------------------


@pytest.fixture
def keyed_api(serve: Callable[..., Served], settings: Settings) -> Served:
    return serve()


def acting(api: Served, **whom: str) -> HermesClient:
    return HermesClient(api.url, api_key=api.key, **whom)


def test_whoever_holds_the_installations_key_acts_for_a_tenant_and_by_name(keyed_api: Served) -> None:
    database = keyed_api.client.database
    Tenants(database).create_tenant("acme")
    with acting(keyed_api, tenant="acme", user="ann") as client:
        run_id = client.submit("hello", session_id="mine")
        assert client.run(run_id)["session_id"] == "mine"
        assert [each["name"] for each in client.tenants()] == ["default", "acme"], "and stays an operator"
        assert client.runs(all_tenants=True) is not None
    with acting(keyed_api) as client, pytest.raises(RefusedError, match="not found"):
        client.run(run_id)
    deed = next(iter(AuditLog(database).list_actions("acme", act="run.submit")))
    assert (deed.actor, deed.address, deed.tenant) == ("cli:ann", None, "acme")


def test_names_of_sessions_are_those_of_the_person_at_the_machine(keyed_api: Served) -> None:
    with acting(keyed_api) as program, acting(keyed_api, user="ann") as person:
        theirs, ours = program.submit("one", session_id="mine"), person.submit("two", session_id="mine")
        assert person.session("mine")["id"] == "mine"
        assert [run.run_id for run in person.sheets(session_id="mine")] == [ours]
        assert [run.run_id for run in program.sheets(session_id="mine")] == [theirs]


def test_a_tenant_that_is_none_or_is_disabled_is_refused(keyed_api: Served) -> None:
    with acting(keyed_api, tenant="nobody") as client, pytest.raises(RefusedError) as refused:
        list(client.runs())
    assert (refused.value.status, refused.value.code) == (404, "tenant_not_found")
    tenants = Tenants(keyed_api.client.database)
    tenants.create_tenant("acme")
    tenants.disable_tenant("acme")
    with acting(keyed_api, tenant="acme") as client:
        assert list(client.runs()) == []
        with pytest.raises(RefusedError, match="disabled"):
            client.submit("hello")


def test_no_other_key_says_for_whom_it_acts(keyed_api: Served) -> None:
    tenants = Tenants(keyed_api.client.database)
    token = tenants.create_key("default", "ops", []).token
    for header in ("Hermes-Tenant", "Hermes-User"):
        headers = {"Authorization": f"Bearer {token}", header: "default"}
        answer = httpx.get(f"{keyed_api.url}/v1/runs", headers=headers, timeout=PATIENCE_S)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "not_the_installations_key")


@pytest.mark.parametrize("value", ["", "%20", "x" * 201, "a%00b"])
def test_a_name_that_is_none_is_refused(keyed_api: Served, value: str) -> None:
    headers = {"Authorization": f"Bearer {keyed_api.key}", "Hermes-User": value}
    assert httpx.get(f"{keyed_api.url}/v1/runs", headers=headers, timeout=PATIENCE_S).status_code == 400


def test_only_the_person_at_the_machine_names_a_directory(keyed_api: Served, tmp_path: Path) -> None:
    place = tmp_path / "work"
    place.mkdir()
    with acting(keyed_api) as program, pytest.raises(RefusedError) as refused:
        program.submit("hello", workspace=str(place))
    assert refused.value.status == 403
    with acting(keyed_api, user="ann") as person:
        assert person.submit("hello", workspace=str(place))


def test_the_beginning_of_an_id_stands_for_it(keyed_api: Served) -> None:
    store = Store.over(keyed_api.client.database)
    for run_id in ("run_ab12", "run_ab34"):
        store.submit(run_id=f"{run_id}{'0' * 28}")
    with acting(keyed_api, user="ann") as client:
        assert client.whole_id("ab1") == client.whole_id("run_ab1") == f"run_ab12{'0' * 28}"
        with pytest.raises(RefusedError) as several:
            client.whole_id("ab")
        with pytest.raises(RefusedError) as none:
            client.whole_id("ff")
    assert (several.value.code, none.value.code) == ("ambiguous_id", "id_not_found")
