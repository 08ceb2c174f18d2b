"""What the installation says of itself."""

from __future__ import annotations

import os
import shutil
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from serving import Served
from support.store import Store
from support.valkey import administrator

from hermes_worker import __version__
from hermes_worker.broker.queue import STANDING_QUEUES, QueueName
from hermes_worker.local.valkey import EmbeddedValkey
from hermes_worker.settings import BrokerSettings, DatabaseSettings, ModelSettings, Settings
from hermes_worker.store.revisions import find_newest

ALL_QUEUES = ",".join(STANDING_QUEUES)
Usage = namedtuple("Usage", "total used free")


def detailed(http: httpx.Client, status: int = 200) -> tuple[dict[str, Any], dict[str, Any]]:
    """The document, and its checks."""
    answer = http.get("/health/detailed")
    assert answer.status_code == status, answer.text
    return answer.json(), answer.json()["readiness"]["checks"]


def test_health_is_what_the_reference_says(http: httpx.Client) -> None:
    for path in ("/health", "/v1/health"):
        assert http.get(path).json() == {"status": "ok", "platform": "hermes-agent", "version": __version__}


def test_all_is_well_with_workers_and_servers(api: Served, store: Store, http: httpx.Client) -> None:
    store.workers.register(name="host:1", queues=ALL_QUEUES, ttl_s=60)
    api.submit()
    run_id = api.submit()
    store.turn(run_id)
    document, checks = detailed(http)
    assert document["status"] == document["readiness"]["status"] == "ok"
    assert document["pid"] == os.getpid()
    assert document["version"] == __version__
    assert document["active_agents"] == 1
    assert checks["state_db"]["schema_revision"] == find_newest()
    assert checks["state_db"]["backend"] == "sqlite"
    assert set(checks["broker"]["queue_depths"]) == set(QueueName)
    assert checks["workers"]["processes"][0]["name"] == "host:1"
    assert checks["runs"]["by_status"] == {"queued": 1, "running": 1}
    assert checks["config"]["model"] == "scripted"


def test_the_backlog_is_shown_by_queue(api: Served, store: Store, http: httpx.Client) -> None:
    api.submit()
    store.turn(api.submit())
    document = http.get("/v1/backlog").json()
    assert document["object"] == "backlog"
    assert list(document["queues"]) == [name.value for name in QueueName if name is not QueueName.SYSTEM]
    model = document["queues"]["model"]
    assert (model["due"], model["claimed"], model["capacity_needed"]) == (1, 1, 2)
    assert model["oldest_age_s"] >= 0.0


def test_runs_that_have_ended_cost_a_health_check_nothing(api: Served, store: Store, http: httpx.Client) -> None:
    run_id = api.submit()
    store.answer(run_id)
    assert detailed(http)[1]["runs"]["by_status"] == {}


def test_a_queue_that_nobody_serves_is_named(api: Served, store: Store, http: httpx.Client) -> None:
    document, checks = detailed(http)
    assert document["status"] == "degraded"
    assert checks["workers"]["error"] == f"no live worker serves {', '.join(STANDING_QUEUES)}"
    but_tools = ",".join(name for name in STANDING_QUEUES if name is not QueueName.TOOLS)
    store.workers.register(name="host:1", queues=but_tools, ttl_s=60)
    assert detailed(http)[1]["workers"]["error"] == "no live worker serves tools"


def test_a_broker_that_is_away_degrades(serve: Callable[..., Served], settings: Settings) -> None:
    api = serve(replace(settings, broker=BrokerSettings(url="redis://:hunter2hunter2@127.0.0.1:1/0")))
    answer = api.http.get("/health/detailed")
    assert answer.json()["readiness"]["checks"]["broker"]["status"] == "degraded"
    assert "hunter2" not in answer.text


def test_a_database_that_is_away_is_unavailable(
    serve: Callable[..., Served], settings: Settings, own_postgres: Any
) -> None:
    api = serve(replace(settings, database=DatabaseSettings(url=own_postgres.build_url())))
    own_postgres.stop()
    document, checks = detailed(api.http, 503)
    assert document["status"] == "unavailable"
    assert checks["state_db"] == {"status": "unavailable", "error": "the database does not answer"}
    assert checks["broker"]["status"] == "ok"
    assert api.http.get("/health").status_code == 200


def test_a_schema_that_is_not_ours_is_unavailable(api: Served, http: httpx.Client) -> None:
    with api.client.database.write() as connection:
        connection.execute(sa.text("update alembic_version set version_num = 'future'"))
    _, checks = detailed(http, 503)
    assert checks["state_db"]["schema_revision"] == "future"
    assert find_newest() in checks["state_db"]["error"]


@pytest.mark.parametrize(("free", "status"), [(11, "ok"), (10, "degraded"), (0, "degraded")])
def test_a_disk_that_is_nearly_full_degrades(
    api: Served, store: Store, http: httpx.Client, monkeypatch: pytest.MonkeyPatch, free: int, status: str
) -> None:
    store.workers.register(name="host:1", queues=ALL_QUEUES, ttl_s=60)
    monkeypatch.setattr("shutil.disk_usage", lambda _path: Usage(100, 100 - free, free))
    document, checks = detailed(http)
    assert checks["disk"]["status"] == document["status"] == status


def test_a_home_that_is_gone_degrades(api: Served, http: httpx.Client, settings: Settings) -> None:
    shutil.rmtree(settings.home)
    assert detailed(http)[1]["disk"]["status"] == "degraded"


def test_a_model_that_is_not_named_degrades(serve: Callable[..., Served], settings: Settings) -> None:
    model = ModelSettings(provider="custom", base_url="http://127.0.0.1:1/v1")
    api = serve(replace(settings, model=model))
    assert "HERMES_MODEL" in detailed(api.http)[1]["config"]["error"]
    answer = api.http.post("/v1/runs", json={"input": "x"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")
    assert api.http.post("/v1/runs", json={"input": "x", "model": "m"}).status_code == 202


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_database_that_takes_no_writes_is_not_ready(
    serve: Callable[..., Served], settings: Settings, kind: str, postgres_url: str
) -> None:
    if kind == "postgresql":
        settings = replace(settings, database=DatabaseSettings(url=postgres_url))
    api = serve(settings)
    forbid = "pragma query_only = on" if kind == "sqlite" else "set transaction read only"

    def refuse(connection: sa.Connection) -> None:
        connection.exec_driver_sql(forbid)

    sa.event.listen(api.client.database.engine, "begin", refuse)
    answer = api.http.get("/health/ready")
    assert answer.status_code == 503
    assert answer.json()["status"] == "unavailable"
    (reason,) = answer.json()["reasons"]
    assert "read" in reason and str(settings.home.parent) not in reason, "anybody may read it"


def test_a_database_whose_disk_is_full_is_not_ready(
    api: Served, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(100, 100, 0))
    answer = http.get("/health/ready")
    assert answer.status_code == 503
    assert answer.json()["reasons"] == ["the database cannot write; make room on its disk"]


def test_a_broker_that_takes_no_messages_is_named_and_stops_nobody(
    serve: Callable[..., Served], settings: Settings, own_valkey: EmbeddedValkey
) -> None:
    with administrator(own_valkey) as admin:
        admin.config_set("min-replicas-to-write", 1)
        answer = serve(replace(settings, broker=BrokerSettings(url=own_valkey.url))).http.get("/health/ready")
    assert answer.status_code == 200
    assert answer.json()["status"] == "ready"
    assert answer.json()["reasons"][0].startswith("the broker has too few replicas to take writes")
