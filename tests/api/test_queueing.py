"""What a submission says about its place in the queue, and lists with filters and cursors, on a real server."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import httpx
import pytest
from serving import Served
from support.patience import PATIENCE_S
from support.store import Store

from hermes_worker.api.cursors import make_cursor
from hermes_worker.core.limits import Limit, LimitName
from hermes_worker.core.messages import ModelReply
from hermes_worker.settings import Secret
from hermes_worker.settings.sealing import Keyring
from hermes_worker.store.runs.limits import TenantLimits
from hermes_worker.store.runs.listing import RunFilter


def post(api: Served, **document: Any) -> httpx.Response:
    return api.http.post("/v1/runs", json={"input": "x", **document})


def test_a_run_is_put_off_and_says_so(api: Served, store: Store) -> None:
    said = {"delay_s": 3600, "tags": ["b", "a"], "metadata": {"ticket": "7"}, "priority": "high"}
    answer = post(api, **said).json()
    run = api.http.get(f"/v1/runs/{answer['run_id']}").json()

    assert answer["status"] == "scheduled"
    assert run["not_before"] == answer["not_before"] == pytest.approx(time.time() + 3600, abs=60)
    assert (run["tags"], run["metadata"], run["priority"]) == (["a", "b"], {"ticket": "7"}, "high")
    assert store.due(answer["run_id"]) == []


WRONG = [
    ({"tags": ["a b"]}, "tags"),
    ({"tags": [f"t{n}" for n in range(17)]}, "tags"),
    ({"priority": "urgent"}, "priority"),
    ({"delay_s": 1, "not_before": 1}, "delay_s"),
    ({"not_before": 9e12}, "not_before"),
    ({"delay_s": 1, "multitask": "interrupt"}, "multitask"),
    ({"deadline": 1}, "deadline"),
    ({"delay_s": 100, "deadline": time.time() + 50}, "deadline"),
]


@pytest.mark.parametrize(("said", "param"), WRONG)
def test_what_cannot_be_is_named(api: Served, said: dict[str, Any], param: str) -> None:
    answer = post(api, **said)

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


def test_the_same_key_with_another_time_is_another_request(api: Served) -> None:
    headers = {"Idempotency-Key": "k"}
    codes = [
        api.http.post("/v1/runs", json={"input": "x", "delay_s": delay}, headers=headers).status_code
        for delay in (60, 60, 90)
    ]
    assert codes == [202, 202, 409]


def test_a_list_is_read_to_its_end_by_cursors(api: Served) -> None:
    made = [post(api, tags=["t"]).json()["run_id"] for _ in range(5)]
    post(api)
    seen, query = [], {"tag": "t", "limit": 2}
    while True:
        page = api.http.get("/v1/runs", params=query).json()
        seen += [run["run_id"] for run in page["data"]]
        assert page["has_more"] == ("next_cursor" in page)
        if not page["has_more"]:
            break
        post(api, tags=["t"])
        query["cursor"] = page["next_cursor"]

    assert seen == made[::-1]


def test_a_cursor_is_good_for_its_own_list_only(api: Served) -> None:
    for _ in range(3):
        post(api, tags=["t"])
    cursor = api.http.get("/v1/runs?tag=t&limit=1").json()["next_cursor"]
    strange = make_cursor(Keyring([Secret("x" * 40)]), asdict(RunFilter(tags=("t",))), "1")
    other = f"{cursor[:-6]}{'A' * 6}"

    for query in (f"cursor={cursor}", f"tag=t&cursor={strange}", f"tag=t&cursor={other}", "cursor=1", "cursor=é"):
        answer = api.http.get(f"/v1/runs?{query}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_cursor"), query
    assert api.http.get(f"/v1/runs?tag=t&cursor={cursor}").status_code == 200


def test_several_filters_hold_together(api: Served, store: Store) -> None:
    one = post(api, tags=["t"], model="a").json()["run_id"]
    post(api, tags=["t"], model="b")
    store.answer(one)

    query = "tag=t&model=a&status=completed&status=failed&created_after=1&created_before=9e9&max_cost_usd=1"
    assert [run["run_id"] for run in api.http.get(f"/v1/runs?{query}").json()["data"]] == [one]
    assert api.http.get("/v1/runs?tag=t&model=a&status=failed").json()["data"] == []
    assert api.http.get("/v1/runs?job_id=nope").json()["data"] == []
    store.answer(post(api, input="Deploy the heron", tags=["h"]).json()["run_id"], ModelReply(text="It has landed"))
    for words, count in (("heron", 1), ("LAND*", 1), ('"landed it"', 0), ("heron OR swan", 1), ("heron NOT the", 0)):
        assert len(api.http.get("/v1/runs", params={"text": words, "tag": "h"}).json()["data"]) == count, words


def test_a_run_says_why_it_waits(api: Served, store: Store) -> None:
    first, second = api.submit(session_id="s"), api.submit(session_id="s")

    said = api.http.get(f"/v1/runs/{second}/explain").json()

    assert (said["run_id"], said["because"], said["facts"]["active_run"]) == (second, "session_at_work", first)
    assert said["text"] == f"run {first} of its session goes first"
    assert api.http.get("/v1/runs/run_nope/explain").status_code == 404


def test_a_limit_that_is_reached_is_named_and_says_when_to_come_again(api: Served, store: Store) -> None:
    limits = TenantLimits(store.database)
    limits.set_limit("default", Limit(name=LimitName.SUBMITS_PER_MIN, value=1))
    answers = {}
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end and 429 not in answers:  # the server sees the limit within a second
        answer = post(api)
        answers[answer.status_code] = answer

    refused = answers[429]
    assert refused.json()["error"]["param"] == "submits_per_min"
    wait = refused.headers["Retry-After"]
    assert 1 <= int(wait) <= 60
    assert refused.headers["RateLimit-Policy"] == '"submits_per_min";q=1;w=60'
    assert refused.headers["RateLimit"] == f'"submits_per_min";r=0;t={wait}'
    told = [refused.headers[f"x-ratelimit-{name}-requests"] for name in ("limit", "remaining", "reset")]
    assert told == ["1", "0", f"{wait}s"]
