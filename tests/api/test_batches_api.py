"""Many runs in one request, on a real server: submitted, stopped, waited for; and one once more."""

from __future__ import annotations

import threading
import time
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from serving import Served, hints_waiting, until
from support.patience import PATIENCE_S
from support.plans import statements
from support.store import Store

from hermes_worker.core.messages import ModelReply
from hermes_worker.core.principals import KeyScope
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import RunStatus
from hermes_worker.features.batches import routes as batches
from hermes_worker.store.access.principals import Tenants
from hermes_worker.store.runs import listing
from hermes_worker.store.search import run_texts
from hermes_worker.store.tables import runs


def test_a_batch_is_taken_in_and_what_is_wrong_is_named_one_by_one(api: Served, store: Store) -> None:
    asked: list[Any] = [
        {"input": "a", "tags": ["t"]},
        {"input": ""},
        "x",
        {"input": "b", "session_id": "s", "idempotency_key": "k"},
        {"input": "c", "session_id": "s", "idempotency_key": "k"},
        {"input": "d", "session_id": "run_" + "0" * 32},
        {"input": "e", "delay_s": 600},
        {"input": "f", "colour": 1},
    ]
    answer = api.http.post("/v1/batch/runs", json={"runs": asked}).json()

    assert (answer["accepted"], answer["refused"]) == (3, 5)
    assert [each["index"] for each in answer["data"]] == list(range(8))
    said = [each.get("status") or (each["error"]["code"], each["error"]["param"]) for each in answer["data"]]
    assert said == [
        "started",
        ("empty_message", "input"),
        ("invalid_type", "body"),
        "started",
        ("idempotency_key_reused", "idempotency_key"),
        ("invalid_value", "session_id"),
        "scheduled",
        ("unknown_parameter", "colour"),
    ]
    until(lambda: hints_waiting(api.client) == 2, "the hints")
    assert [run["tags"] for run in api.http.get("/v1/runs?tag=t").json()["data"]] == [["t"]]
    assert store.bodies(answer["data"][0]["run_id"]) == [{"role": "user", "content": "a"}]


def test_a_batch_of_a_thousand_is_taken_in_and_its_few_mistakes_are_named(api: Served) -> None:
    asked = [{"input": str(number)} if number % 100 else {"input": ""} for number in range(1_000)]
    answer = api.http.post("/v1/batch/runs", json={"runs": asked}, timeout=100).json()

    assert (answer["accepted"], answer["refused"]) == (990, 10)
    assert [each["index"] for each in answer["data"] if "error" in each] == list(range(0, 1_000, 100))
    assert len({each["run_id"] for each in answer["data"] if "run_id" in each}) == 990


@pytest.mark.parametrize("document", [{}, {"runs": []}, {"runs": 1}, {"runs": [{"input": "x"}] * 1_001}])
def test_a_batch_that_is_none_is_refused(api: Served, document: dict[str, Any]) -> None:
    answer = api.http.post("/v1/batch/runs", json=document)

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "runs")


def test_a_run_that_ended_is_asked_once_more_in_its_session(api: Served, store: Store) -> None:
    first = api.submit(input="count", metadata={"n": "1"}, tags=["t"])
    early = api.http.post(f"/v1/runs/{first}/retry")
    store.answer(first, ModelReply(text="one"))

    again = api.http.post(f"/v1/runs/{first}/retry")
    second = again.json()["run_id"]

    assert (early.status_code, early.json()["error"]["code"]) == (409, "run_not_repeatable")
    assert again.status_code == 202
    run = api.http.get(f"/v1/runs/{second}").json()
    assert (run["retry_of"], run["tags"], run["metadata"]) == (first, ["t"], {"n": "1"})
    said = [(row["role"], row["content"]) for row in store.bodies(second)]
    assert said == [("user", "count"), ("assistant", "one"), ("user", "count")]
    [listed] = [run for run in api.http.get("/v1/runs").json()["data"] if run["run_id"] == second]
    assert listed["retry_of"] == first


def test_open_runs_are_stopped_by_a_filter_after_a_dry_run(api: Served, store: Store) -> None:
    tagged = [api.submit(tags=["t"]) for _ in range(2)]
    ended, other = api.submit(tags=["t"]), api.submit()
    store.answer(ended)

    dry = api.http.post("/v1/batch/stop", json={"tag": ["t"], "dry_run": True}).json()
    assert (dry["run_ids"], dry["dry_run"]) == (tagged[::-1], True)
    assert store.status(tagged[0]) is RunStatus.QUEUED
    wet = api.http.post("/v1/batch/stop", json={"tag": ["t"], "limit": 1}).json()
    assert (wet["run_ids"], wet["has_more"]) == ([tagged[1]], True)
    assert (store.status(tagged[1]), store.status(tagged[0])) == (RunStatus.CANCELLED, RunStatus.QUEUED)
    assert api.http.post("/v1/batch/stop", json={"status": ["completed"]}).json()["run_ids"] == []
    assert store.status(other) is RunStatus.QUEUED


def test_open_runs_are_stopped_by_text_source_parent_and_cost_beyond_an_empty_page(
    api: Served, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "READ_MAX", 2)
    monkeypatch.setattr(listing, "_READ_AT_ONCE", 2)
    monkeypatch.setattr(run_texts, "TO_READ_MAX", 1)
    heron = api.submit(input="count the heron")
    parent = store.with_tools(Replay.PURE)
    children = list(store.delegate(parent, 2))
    dear = api.submit(input="swan")
    with store.database.write() as connection:
        connection.execute(sa.update(runs).where(runs.c.run_id == dear).values(cost_nano_usd=2_000_000_000))

    def named(**said: Any) -> set[str]:
        return set(api.http.post("/v1/batch/stop", json={"dry_run": True, **said}).json()["run_ids"])

    assert named(text="heron") == {heron}
    assert named(text="heron", source="api") == {heron}
    assert named(text="heron", source="cron") == named(text="cuckoo") == set()
    assert named(parent_run_id=parent) == set(children)
    assert named(min_cost_usd=1.0) == {dear}
    assert dear not in named(max_cost_usd=1.0)


def test_a_stop_looks_at_so_many_runs_and_goes_on_where_it_is_told_to(
    api: Served, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "LOOKED_AT_MAX", 2)
    monkeypatch.setattr(batches, "_PAGES_MAX", 2)
    oldest, *_ = [api.submit() for _ in range(7)]
    with store.database.write() as connection:
        connection.execute(sa.update(runs).where(runs.c.run_id == oldest).values(cost_nano_usd=2_000_000_000))
    body: dict[str, Any] = {"min_cost_usd": 1.0, "dry_run": True}
    first = api.http.post("/v1/batch/stop", json=body).json()
    assert (first["run_ids"], first["has_more"]) == ([], True)
    found, looks, cursor = [], 1, first["next_cursor"]
    while cursor is not None:
        said = api.http.post("/v1/batch/stop", json={**body, "cursor": cursor}).json()
        found, looks, cursor = found + said["run_ids"], looks + 1, said["next_cursor"]
    assert (found, looks) == ([oldest], 2)
    other = api.http.post("/v1/batch/stop", json={"tag": ["t"], "cursor": first["next_cursor"]})
    assert (other.status_code, other.json()["error"]["code"]) == (400, "invalid_cursor")


def test_a_request_waits_for_the_end_of_a_run(api: Served, store: Store) -> None:
    run_id = api.submit()
    assert api.http.get(f"/v1/runs/{run_id}/wait?timeout_s=0").json() == {"run_id": run_id, "ended": False}
    seen: list[Any] = []
    with httpx.Client(base_url=str(api.http.base_url), headers=api.http.headers, timeout=PATIENCE_S) as other:
        waiter = threading.Thread(target=lambda: seen.append(other.get(f"/v1/runs/{run_id}/wait?timeout_s=20").json()))
        waiter.start()
        time.sleep(0.1)  # it may begin before or after the end: both are right
        store.answer(run_id)
        waiter.join()

    assert seen == [{"run_id": run_id, "ended": True, "status": "completed", "exit_reason": "text_response"}]


def test_runs_are_joined_all_or_any_of_them(api: Served, store: Store) -> None:
    first, second = api.submit(), api.submit()
    store.answer(first)

    def join(**asked: Any) -> httpx.Response:
        return api.http.post("/v1/batch/wait", json={"run_ids": [first, second], "timeout_s": 0.2, **asked})

    assert join(mode="any").json()["done"] is True
    assert join().json()["done"] is False
    assert [run["ended"] for run in join().json()["runs"]] == [True, False]
    store.answer(second)
    assert join(timeout_s=20).json()["done"] is True
    assert join(run_ids=[first, "run_nope"]).status_code == 404


@pytest.mark.parametrize("is_guest", [False, True])
def test_the_statements_of_a_batch_do_not_grow_with_its_runs(api: Served, is_guest: bool) -> None:
    """Nor with what its prompts hold: whether the key is a guest's is asked once, and memories are read once."""
    key = Tenants(api.client.database).create_key("default", "guest", [KeyScope.RUNS_WRITE]).token
    headers = {"Authorization": f"Bearer {key}"} if is_guest else {}

    def count(size: int) -> int:
        body = {"runs": [{"input": "x"}] * size}
        with statements(api.client.database) as seen:
            assert api.http.post("/v1/batch/runs", json=body, headers=headers).json()["accepted"] == size
        return len(seen)

    count(1)
    assert count(100) <= count(2) + 8
    with api.client.database.read() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(runs)).scalar_one() == 103
