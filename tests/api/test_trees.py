"""A delegation tree over the API: its budget, its events, and its limits."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx
import pytest
from serving import Reader, Served
from support.store import SPEC, Store, asks

from hermes_worker.core.errors import Failure
from hermes_worker.core.events import ModelFailed
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import ExitReason
from hermes_worker.core.run_events import TERMINAL_EVENTS
from hermes_worker.core.spec import RunSpec
from hermes_worker.settings import ModelSettings, Settings
from hermes_worker.store.runs.new_children import NewChild
from hermes_worker.store.runs.runs import create_run_id


def child_of(store: Store, parent: str) -> str:
    store.ask_tools(parent, asks(Replay.PURE))
    child = NewChild(
        run_id=create_run_id(),
        spec=replace(SPEC, iterations_max=100_000),
        system_prompt="You are a child.",
        tools="[]",
        workspace="{}",
    )
    store.calls.delegate(store.call(parent), [child], children_max=1)
    return child.run_id


def events_of(http: httpx.Client, run_id: str, **headers: str) -> tuple[list[str], list[dict[str, Any]], str]:
    text = http.get(f"/v1/runs/{run_id}/tree/events", headers=headers).text
    ids = [line[4:] for line in text.splitlines() if line.startswith("id: ")]
    data = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
    return ids, data, text


@pytest.mark.parametrize("is_stopped", [True, False], ids=["stopped", "failed"])
def test_a_run_without_an_answer_tells_in_both_streams_what_it_used(
    api: Served, store: Store, http: httpx.Client, is_stopped: bool
) -> None:
    root = api.submit()
    store.ask_tools(root, asks(Replay.PURE))
    if is_stopped:
        http.post(f"/v1/runs/{root}/stop")
    else:
        store.settle(root)
        failure = Failure(kind="billing", message="no credit left")
        failed = ModelFailed(failure=failure, exit_reason=ExitReason.MODEL_CALL_REFUSED)
        store.runs.commit_failure(store.turn(root), failed)
    used = http.get(f"/v1/runs/{root}").json()["usage"]
    assert used["total_tokens"] == 15
    [of_tree] = [event for event in events_of(http, root)[1] if event["event"] in TERMINAL_EVENTS]
    [of_run] = [event for event in Reader(api, root).wait_for_end().events if event["event"] in TERMINAL_EVENTS]
    assert (of_tree["usage"], of_run["usage"]) == (used, used)


def test_the_budget_of_a_tree_is_part_of_the_run(api: Served, store: Store, http: httpx.Client) -> None:
    root = api.submit(max_iterations=10, max_total_tokens=1_000, max_tool_calls=50, max_wall_s=100)
    child = child_of(store, root)
    store.turn(child)
    budget = http.get(f"/v1/runs/{root}").json()["budget"]
    assert budget["run_id"] == root
    assert budget["dimensions"]["iterations"] == {"limit": 10, "reserved": 1, "spent": 1}
    assert budget["dimensions"]["tokens"] == {"limit": 1_000, "reserved": 15, "spent": 15}
    assert budget["dimensions"]["tool_calls"]["limit"] == 50
    assert budget["dimensions"]["wall_clock"]["limit"] == pytest.approx(100, abs=1)
    [share] = budget["children"]
    assert (share["run_id"], share["dimensions"]["iterations"]["reserved"]) == (child, 1)
    assert http.get(f"/v1/runs/{child}").json()["budget"]["run_id"] == root
    assert "budget" not in http.get("/v1/runs").json()["data"][0]


def test_the_stream_of_a_tree_is_one_order_and_resumes(api: Served, store: Store, http: httpx.Client) -> None:
    root = api.submit()
    child = child_of(store, root)
    store.answer(child)
    store.answer(root)
    ids, events, text = events_of(http, root)
    assert ids == [str(number) for number in range(1, len(ids) + 1)]
    assert {event["run_id"] for event in events} == {root, child}
    assert [event["depth"] for event in events if event["run_id"] == child] == [1, 1]
    assert events[-1]["event"] == "run.completed"
    assert events[-1]["output"] == "done"
    assert events[-1]["usage"]["total_tokens"] == 20
    assert text.endswith(": stream closed\n\n")
    resumed, _, _ = events_of(http, child, **{"Last-Event-ID": ids[2]})
    assert resumed == ids[3:]


@pytest.mark.parametrize("cursor", ["x", "-1", "1.5", "9" * 30, "1\u0661"])
def test_the_stream_refuses_what_is_no_number(http: httpx.Client, cursor: str) -> None:
    answer = http.get("/v1/runs/run_x/tree/events", params={"after": cursor})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "after")


def test_a_tree_that_is_not_there_is_not_found(http: httpx.Client) -> None:
    assert http.get("/v1/runs/run_x/tree/events").status_code == 404


def test_a_tree_is_followed_while_it_grows(api: Served, store: Store) -> None:
    root = api.submit()
    names: list[str] = []
    with api.http.stream("GET", f"/v1/runs/{root}/tree/events") as stream:
        child = child_of(store, root)
        for line in stream.iter_lines():
            if not line.startswith("data: "):
                continue
            event = json.loads(line[6:])
            names.append(event["event"])
            if event["event"] == "run.waiting":
                store.answer(child)
            if event["event"] == "tool.completed":
                store.answer(root)
    assert names.count("run.completed") == 2
    assert names[-1] == "run.completed"


def test_a_stop_over_the_api_reaches_every_descendant(api: Served, store: Store, http: httpx.Client) -> None:
    root = api.submit()
    child = child_of(store, root)
    stopped = {"run_id": root, "status": "cancelled"}
    assert http.post(f"/v1/runs/{root}/stop").json() == {**stopped, "caused": [child]}
    assert http.get(f"/v1/runs/{child}").json()["status"] == "cancelled"
    assert http.post(f"/v1/runs/{root}/stop").json() == stopped


def test_a_stop_of_a_run_that_has_ended_says_what_it_stopped(api: Served, store: Store, http: httpx.Client) -> None:
    root = api.submit()
    store.ask_tools(root, asks(Replay.PURE))
    [child] = store.delegate(root, 1, note="dispatched")
    store.answer(root)
    stopped = {"run_id": root, "status": "completed", "caused": [child]}
    assert http.post(f"/v1/runs/{root}/stop").json() == stopped
    assert http.get(f"/v1/runs/{child}").json()["status"] == "cancelled"


# --- limits ----------------------------------------------------------------------------------------------------------


def spec_of(store: Store, run_id: str) -> RunSpec:
    loaded = store.turn(run_id).loaded
    return store.calls.load_spec(loaded.pk)


def test_limits_are_stored_with_the_run(api: Served, store: Store) -> None:
    run_id = api.submit(max_total_tokens=7, max_tool_calls=8, budget_mode="mixed")
    spec = spec_of(store, run_id)
    assert (spec.tokens_max, spec.tool_calls_max, spec.nano_usd_max, spec.budget) == (7, 8, None, "mixed")


@pytest.mark.parametrize(
    "field",
    [
        {"max_total_tokens": 0},
        {"max_total_tokens": 1.5},
        {"max_tool_calls": -1},
        {"max_cost_usd": 0},
        {"max_cost_usd": "1"},
        {"budget_mode": "free"},
    ],
)
def test_limits_that_make_no_sense_are_refused(http: httpx.Client, field: dict[str, object]) -> None:
    answer = http.post("/v1/runs", json={"input": "hi", **field})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, next(iter(field)))


def test_a_cost_limit_needs_known_prices(serve: Any, settings: Settings) -> None:
    http = serve(replace(settings, model=ModelSettings(provider="custom"))).http
    answer = http.post("/v1/runs", json={"input": "hi", "model": "nobody-knows", "max_cost_usd": 1.0})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "max_cost_usd")
    assert "it is not known what 'nobody-knows' costs" in error["message"]
    assert "HERMES_MODEL_PRICES" in error["message"]


def test_a_cost_limit_holds_with_a_price_of_ones_own(serve: Any, settings: Settings) -> None:
    priced = replace(settings, model=ModelSettings(provider="custom", prices=("custom:mine:7b=0.5/1.5",)))
    api = serve(priced)
    store = Store.over(api.client.database)
    run_id = api.submit(model="mine:7b", max_cost_usd=0.25)
    assert spec_of(store, run_id).nano_usd_max == 250_000_000


def test_a_cost_limit_needs_the_prices_of_those_that_stand_in(serve: Any, settings: Settings) -> None:
    model = ModelSettings(provider="anthropic", name="claude-sonnet-5", fallbacks=("custom:spare",))
    api = serve(replace(settings, model=model))
    answer = api.http.post("/v1/runs", json={"input": "hi", "max_cost_usd": 1})
    assert "what 'spare' costs at 'custom'" in answer.json()["error"]["message"]
