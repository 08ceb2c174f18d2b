"""Looking at runs and stopping them, on a real server."""

from __future__ import annotations

import httpx
import pytest
from serving import Reader, Served, hints_waiting, until
from support.store import Store

from hermes_worker.broker.queue import CONTROL_CHANNEL
from hermes_worker.core.errors import Failure
from hermes_worker.core.events import CapacityAwaited, ModelFailed
from hermes_worker.core.messages import ModelReply, Usage
from hermes_worker.core.replay import Replay
from hermes_worker.core.retention_rules import DEFAULT_RULES, parse_rules
from hermes_worker.core.run import ExitReason
from hermes_worker.features.retention.rows import Pruner
from hermes_worker.store.tables import tool_calls


def test_a_run_is_shown_through_its_life(api: Served, store: Store, http: httpx.Client) -> None:
    run_id = api.submit(model="m", session_id="s")
    fresh = http.get(f"/v1/runs/{run_id}").json()
    assert abs(fresh.pop("created_at") - fresh.pop("updated_at")) < 5
    standing = fresh.pop("standing")
    assert standing.pop("since") > 0
    assert standing == {
        "reason": "no_worker",
        "text": "no worker consumes the queue 'model', where its model call waits",
    }
    assert set(fresh.pop("began_with")) == {"program", "configuration", "prompt"}
    assert fresh.pop("budget")["dimensions"]["iterations"] == {"limit": 90, "reserved": 0, "spent": 0}
    assert fresh == {
        "object": "hermes.run",
        "run_id": run_id,
        "status": "queued",
        "session_id": "s",
        "title": "hello",
        "session_title": "hello",
        "kind": "request",
        "model": "m",
        "iteration": 0,
        "iterations_max": 90,
        "tool_calls": {"total": 0, "by_status": {}, "attention": []},
    }
    claim = store.turn(run_id)
    assert http.get(f"/v1/runs/{run_id}").json()["status"] == "running"
    reply = ModelReply(text="forty-two", usage=Usage(input=10, output=5, cache_read=90, reasoning=2))
    store.runs.commit_reply(claim, reply, ())
    done = http.get(f"/v1/runs/{run_id}").json()
    assert (done["status"], done["exit_reason"], done["output"]) == ("completed", "text_response", "forty-two")
    assert (done["completed"], done["partial"], done["failed"], done["interrupted"]) == (True, False, False, False)
    assert done["usage"] == {"input_tokens": 100, "output_tokens": 5, "total_tokens": 105}
    assert done["last_event"] == "run.completed"
    assert done["created_at"] <= done["started_at"] <= done["finished_at"]


def test_a_failed_run_says_why_without_secrets(api: Served, store: Store, http: httpx.Client) -> None:
    run_id = api.submit()
    failure = Failure(kind="auth", message="key sk-abcdefghijklmnopqrstuvwxyz was refused; set HERMES_API_KEY")
    store.runs.commit_failure(
        store.turn(run_id), ModelFailed(failure=failure, exit_reason=ExitReason.MODEL_CALL_REFUSED)
    )
    shown = http.get(f"/v1/runs/{run_id}").json()
    assert shown["status"] == "failed"
    assert shown["error"] == "key sk-abc...wxyz was refused; set HERMES_API_KEY"


def test_a_parked_run_says_until_when(api: Served, store: Store, http: httpx.Client) -> None:
    run_id = api.submit()
    until_when = api.client.database.read_clock() + 600
    store.runs.commit_failure(store.turn(run_id), CapacityAwaited(resume_at=until_when, recovery="{}"))
    shown = http.get(f"/v1/runs/{run_id}").json()
    assert (shown["status"], shown["resume_at"]) == ("waiting_for_capacity", until_when)


def test_calls_to_look_at_are_listed(api: Served, store: Store, http: httpx.Client) -> None:
    run_id = store.with_tools(Replay.ONCE, Replay.PURE, Replay.PURE)
    worker = store.worker("doomed")
    store.call(run_id, 0, owner=worker.pk)
    store.call(run_id, 1, owner=worker.pk)
    store.settle(run_id, 2)
    store.vanish(worker)
    store.sweep()
    calls = http.get(f"/v1/runs/{run_id}").json()["tool_calls"]
    assert calls["total"] == 3
    assert calls["by_status"] == {"unknown": 1, "pending": 1, "succeeded": 1}
    assert calls["attention"] == [
        {"iteration": 1, "position": 0, "tool": "tool0", "status": "unknown", "attempts": 1, "replay": "once"},
        {"iteration": 1, "position": 1, "tool": "tool1", "status": "pending", "attempts": 2, "replay": "pure"},
    ]
    assert tool_calls.name == "tool_calls"


# --- lists -----------------------------------------------------------------------------------------------------------


def test_runs_are_listed_newest_first_and_page_by_page(api: Served, http: httpx.Client) -> None:
    run_ids = [api.submit() for _ in range(5)]
    first = http.get("/v1/runs", params={"limit": 2}).json()
    assert first["object"] == "list"
    assert [run["run_id"] for run in first["data"]] == run_ids[:2:-1]
    assert first["has_more"] is True
    second = http.get("/v1/runs", params={"limit": 3, "before": first["data"][-1]["run_id"]}).json()
    assert [run["run_id"] for run in second["data"]] == run_ids[2::-1]
    assert second["has_more"] is False
    assert all(run["object"] == "hermes.run" for run in second["data"])


def test_a_list_of_long_answers_is_short_for_who_asks_for_it(api: Served, store: Store, http: httpx.Client) -> None:
    run_id = api.submit()
    store.answer(run_id, ModelReply(text="long " * 10_000 + "end"))
    [short] = http.get("/v1/runs?output_chars=9").json()["data"]
    assert (short["output"], short["run_id"]) == ("long long", run_id)
    [whole] = http.get("/v1/runs").json()["data"]
    assert len(whole["output"]) == 50_003
    assert http.get("/v1/sheets?output_chars=9").status_code == 400


def test_runs_are_listed_by_status_and_session(api: Served, store: Store, http: httpx.Client) -> None:
    done, waiting = api.submit(session_id="a"), api.submit(session_id="b")
    store.answer(done)
    assert [r["run_id"] for r in http.get("/v1/runs?status=completed").json()["data"]] == [done]
    assert [r["run_id"] for r in http.get("/v1/runs?session_id=b").json()["data"]] == [waiting]
    assert http.get("/v1/runs?session_id=b&status=completed").json()["data"] == []


@pytest.mark.parametrize(
    ("query", "param", "code"),
    [
        ("limit=0", "limit", "invalid_value"),
        ("limit=101", "limit", "invalid_value"),
        ("limit=ten", "limit", "invalid_value"),
        ("status=done", "status", "invalid_value"),
        ("before=run_nope", "before", "run_not_found"),
        ("before=" + "x" * 65, "before", "invalid_value"),
        ("stauts=completed", "stauts", "unknown_parameter"),
    ],
)
def test_a_wrong_filter_is_named(http: httpx.Client, query: str, param: str, code: str) -> None:
    answer = http.get(f"/v1/runs?{query}")
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, code)


# --- stop ------------------------------------------------------------------------------------------------------------


def test_a_queued_run_stops_at_once_and_its_reader_hears_it(api: Served, http: httpx.Client) -> None:
    run_id = api.submit()
    reader = Reader(api, run_id)
    until(lambda: api.followers.count, "the reader")
    answer = http.post(f"/v1/runs/{run_id}/stop")
    assert answer.json() == {"run_id": run_id, "status": "cancelled"}
    assert reader.wait_for_end().names == ["run.cancelled"]
    assert http.post(f"/v1/runs/{run_id}/stop").json() == answer.json()


def test_a_run_that_a_worker_holds_is_stopping_until_the_worker_lets_go(
    api: Served, store: Store, http: httpx.Client
) -> None:
    run_id = api.submit()
    claim = store.turn(run_id)
    with api.client.redis.pubsub(ignore_subscribe_messages=True) as control:
        control.subscribe(CONTROL_CHANNEL)
        control.get_message(timeout=1)
        for _ in range(2):
            assert http.post(f"/v1/runs/{run_id}/stop").json() == {"run_id": run_id, "status": "stopping"}
        assert until(lambda: control.get_message(timeout=1), "the nudge")["data"] == f"stop {run_id}"
    store.runs.release_iteration(claim)
    assert http.get(f"/v1/runs/{run_id}").json()["status"] == "cancelled"


def test_stopping_what_has_ended_tells_how_it_ended(api: Served, store: Store, http: httpx.Client) -> None:
    run_id = api.submit()
    store.answer(run_id)
    assert http.post(f"/v1/runs/{run_id}/stop").json() == {"run_id": run_id, "status": "completed"}


def test_stopping_a_run_lets_the_next_of_its_session_go(api: Served, http: httpx.Client) -> None:
    first, second = api.submit(session_id="s"), api.submit(session_id="s")
    until(lambda: hints_waiting(api.client) == 1, "the first hint")
    http.post(f"/v1/runs/{first}/stop")
    until(lambda: hints_waiting(api.client) == 2, f"the hint for {second}")


def test_a_stop_needs_a_run(http: httpx.Client) -> None:
    answer = http.post("/v1/runs/run_nope/stop")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "run_not_found")


def test_a_deleted_run_is_gone_and_not_unknown(api: Served, store: Store, http: httpx.Client) -> None:
    run_id = api.submit()
    store.answer(run_id)
    store.let_pass(40 * 86_400.0)
    api.submit()
    rules = {**DEFAULT_RULES, **parse_rules(["runs=30d"])}
    assert sum(batch.count for batch in Pruner(store.database, rules).prune_stepwise() if batch.what == "runs") == 1
    for path in ("", "/result", "/events"):
        answer = http.get(f"/v1/runs/{run_id}{path}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (410, "run_deleted")
    assert http.post(f"/v1/runs/{run_id}/stop").status_code == 410
