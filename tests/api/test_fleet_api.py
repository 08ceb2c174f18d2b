"""What the terminal and the page read of a fleet over HTTP: workers, spend, calls, trees and decisions."""

from __future__ import annotations

import re
from collections.abc import Callable

import httpx
import pytest
import sqlalchemy as sa
from serving import Served
from support.questions import open_wait
from support.store import Store, asks
from test_tenants import client, tenants  # noqa: F401  (fixtures)

from hermes_worker.core.compactions import CONTEXT_FIELD, CompactionFacts, build_document
from hermes_worker.core.messages import Message, Role, dump_canonical_json
from hermes_worker.core.pricing import CostStatus
from hermes_worker.core.principals import KeyScope
from hermes_worker.core.questions import Question
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import WaitKind
from hermes_worker.services.model_prompts import list_prompt_rows
from hermes_worker.store.access.principals import Tenants
from hermes_worker.store.runs.prompts import PromptMaterial
from hermes_worker.store.runs.waits import Waits
from hermes_worker.store.tables import runs, tool_calls

SECRET = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD"
OpenClient = Callable[[str], httpx.Client]


@pytest.fixture
def acme(tenants: Tenants, client: OpenClient) -> httpx.Client:  # noqa: F811
    return client(tenants.create_key("acme", "ci", [KeyScope.ADMIN]).token)


def submit(http: httpx.Client, **body: object) -> str:
    answer = http.post("/v1/runs", json={"input": "hello", **body})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["run_id"])


def ask(store: Store, run_id: str, **request: str) -> None:
    store.ask_tools(run_id, asks(Replay.ONCE))
    request = {"command": f"curl -H 'Authorization: {SECRET}' x", "pattern_key": "curl", **request}
    choices = ["once", "session", "always", "deny"]
    Waits(store.database).ask(
        store.call(run_id), Question(kind=WaitKind.APPROVAL, request=request, choices=choices, expires_s=None)
    )


def decide(http: httpx.Client, store: Store, run_id: str, choice: str, **more: str) -> None:
    body = {"choice": choice, "wait_id": open_wait(store.database, run_id), **more}
    http.post(f"/v1/runs/{run_id}/approval", json=body).raise_for_status()


# --- workers ---------------------------------------------------------------------------------------------------------


def test_a_worker_is_listed_with_what_it_holds_and_drained_once(api: Served, store: Store) -> None:
    busy = store.worker("busy")
    run_id = api.submit()
    store.turn(run_id, owner=busy.pk)

    [worker] = api.http.get("/v1/workers").json()["data"]
    assert (worker["worker_id"], worker["name"], worker["draining_at"]) == (busy.worker_id, "busy", None)
    assert worker["held"] == {"model": 1}
    assert [(step["kind"], step["run_id"], step["tenant"]) for step in worker["steps"]] == [
        ("model", run_id, "default")
    ]

    drained = [api.http.post(f"/v1/workers/{busy.worker_id}/drain") for _ in range(2)]
    assert [answer.status_code for answer in drained] == [202, 202]
    [worker] = api.http.get("/v1/workers").json()["data"]
    assert worker["draining_at"] > 1e9
    deeds = api.http.get("/v1/audit", params={"act": "worker.drain"}).json()["data"]
    assert [deed["subject"] for deed in deeds] == [busy.worker_id] * 2
    unknown = api.http.post(f"/v1/workers/{'0' * 32}/drain")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "worker_not_found")


def test_only_operators_see_workers_and_only_their_administrators_drain_them(
    api: Served,
    store: Store,
    acme: httpx.Client,
    tenants: Tenants,  # noqa: F811
    client: OpenClient,  # noqa: F811
) -> None:
    worker_id = store.worker("busy").worker_id
    scaler = client(tenants.create_key("default", "scaler", [KeyScope.OPS_READ]).token)
    assert scaler.get("/v1/workers").status_code == 200
    for http, path, method in ((acme, "", "GET"), (acme, "/drain", "POST"), (scaler, "/drain", "POST")):
        address = f"/v1/workers/{worker_id}{path}" if path else "/v1/workers"
        assert http.request(method, address).status_code == 403, (path, method)
    assert api.http.get("/v1/workers").json()["data"][0]["draining_at"] is None


# --- spend -----------------------------------------------------------------------------------------------------------


def test_spend_is_told_apart_and_each_tenant_sees_its_own(api: Served, store: Store, acme: httpx.Client) -> None:
    for http, usd in ((api.http, 1), (acme, 2)):
        known = {"cost_nano_usd": usd * 10**9, "cost_status": CostStatus.KNOWN.value}
        store.change(runs, submit(http, session_id="talk"), **known)

    for by in ("day", "model", "tenant", "job", "session"):
        [row] = acme.get("/v1/spend", params={"by": by}).json()["data"]
        assert (row["runs"], row["cost_usd"], row["unknown_runs"]) == (1, 2.0, 0), by
    [day] = acme.get("/v1/spend").json()["data"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", day["key"])
    everybody = api.http.get("/v1/spend", params={"by": "tenant", "all_tenants": "true"}).json()["data"]
    assert [(row["key"], row["cost_usd"]) for row in everybody] == [("acme", 2.0), ("default", 1.0)]
    assert acme.get("/v1/spend", params={"created_before": 1e9}).json()["data"] == []


def test_what_was_read_from_a_cache_is_told(api: Served, store: Store) -> None:
    store.change(runs, api.submit(), input_tokens=100, cache_read_tokens=300)
    [row] = api.http.get("/v1/spend").json()["data"]
    assert (row["cache_hit_ratio"], row["cost_usd"]) == (0.75, None)


@pytest.mark.parametrize("path", ["spend", "approvals", "approvals/history"])
def test_a_key_that_reads_the_default_tenants_runs_reads_no_others(
    api: Served,
    acme: httpx.Client,
    tenants: Tenants,  # noqa: F811
    client: OpenClient,  # noqa: F811
    path: str,
) -> None:
    reader = client(tenants.create_key("default", "reader", [KeyScope.RUNS_READ]).token)
    assert reader.get(f"/v1/{path}").status_code == 200
    for http in (reader, acme):
        refused = http.get(f"/v1/{path}", params={"all_tenants": "true"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (403, "all_tenants")
    assert api.http.get(f"/v1/{path}", params={"all_tenants": "true"}).status_code == 200


# --- calls and trees -------------------------------------------------------------------------------------------------


def test_the_calls_of_a_run_are_read_page_by_page_and_one_by_one(api: Served, store: Store) -> None:
    run_id = api.submit()
    store.ask_tools(run_id, asks(Replay.PURE, Replay.ONCE))
    store.settle(run_id, 0, f"the key is {SECRET}")

    page = api.http.get(f"/v1/runs/{run_id}/calls", params={"limit": 1}).json()
    assert page["has_more"] is True
    [first] = page["data"]
    assert (first["tool"], first["effect"], first["status"], first["attempts"], first["takeovers"]) == (
        "tool0",
        "pure",
        "succeeded",
        1,
        0,
    )
    behind = api.http.get(f"/v1/runs/{run_id}/calls", params={"after": first["call"]}).json()
    assert [(call["tool"], call["effect"]) for call in behind["data"]] == [("tool1", "once")]
    assert behind["has_more"] is False

    one = api.http.get(f"/v1/runs/{run_id}/calls/{first['call']}").json()
    assert (one["tool_call_id"], one["arguments"]) == ("call_0", '{"n":0}')
    assert one["result"].startswith("the key is ")
    assert SECRET not in one["result"]
    unknown = api.http.get(f"/v1/runs/{run_id}/calls/9.9")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "call_not_found")


def test_the_prompt_of_each_reply_is_what_stood_before_it(api: Served, store: Store) -> None:
    run_id = api.submit(input=f"Count the files with {SECRET}", instructions="Be brief.")
    first = api.http.get(f"/v1/runs/{run_id}/prompt").json()
    assert (first["reply"], first["replies"]) == (1, 0), "the one that is due"
    store.ask_tools(run_id, asks(Replay.PURE))
    store.settle(run_id, 0, "12 files")
    store.answer(run_id)

    last = api.http.get(f"/v1/runs/{run_id}/prompt").json()
    assert (last["reply"], last["replies"]) == (2, 2)
    assert "Be brief." in last["system"]
    assert [each["role"] for each in last["messages"]] == ["user", "assistant", "tool"]
    assert last["messages"][-1]["content"] == "12 files"
    assert api.http.get(f"/v1/runs/{run_id}/prompt", params={"reply": 1}).json()["messages"] == first["messages"]
    assert SECRET not in str(last)
    for reply in (0, 3):
        refused = api.http.get(f"/v1/runs/{run_id}/prompt", params={"reply": reply})
        assert refused.status_code == (404 if reply else 400)


def test_a_prompt_is_shown_as_it_was_compacted_and_with_what_a_hook_added() -> None:
    def row(seq: int, role: str, **said: object) -> Message:
        return Message(seq=seq, role=Role(role), body=dump_canonical_json({"role": role, **said}))

    rows = [
        row(1, "user", content="Hi"),
        row(2, "assistant", content="Hello.", **{CONTEXT_FIELD: "It is Monday."}),
        row(3, "user", content="Go on"),
        row(4, "user", content="A summary.", _compacted=build_document(CompactionFacts(through=3))),
        row(5, "assistant", content="Done."),
    ]
    parts = PromptMaterial(model="m", is_open=False, system_prompt="", tools="[]", rows=rows, replies=[2, 5])
    assert "It is Monday." in str(list_prompt_rows(parts, 1))
    assert "Hello" not in str(list_prompt_rows(parts, 1))
    assert "A summary." in str(list_prompt_rows(parts, 2))
    assert "Go on" not in str(list_prompt_rows(parts, 2))


def test_secrets_in_arguments_are_hidden(api: Served, store: Store) -> None:
    run_id = api.submit()
    ask(store, run_id, arguments=f'{{"command":"export K={SECRET}"}}')
    decide(api.http, store, run_id, "once")
    with store.database.read() as connection:
        assert SECRET in str(connection.execute(sa.select(tool_calls.c.approved_arguments)).scalar_one())
    [call] = api.http.get(f"/v1/runs/{run_id}/calls").json()["data"]
    one = api.http.get(f"/v1/runs/{run_id}/calls/{call['call']}").json()
    assert one["changed_arguments"].startswith('{"command":"export K=')
    assert SECRET not in one["changed_arguments"]


@pytest.mark.parametrize("place", ["3", "3.", "-1.0", "1.0x", "1e3.0", "1234567.0"])
def test_what_is_no_place_of_a_call_is_refused(api: Served, place: str) -> None:
    run_id = api.submit()
    assert api.http.get(f"/v1/runs/{run_id}/calls/{place}").status_code == 400
    assert api.http.get(f"/v1/runs/{run_id}/calls", params={"after": place}).status_code == 400


def test_a_tree_shows_each_run_below_the_one_that_began_it(api: Served, store: Store) -> None:
    root = api.submit()
    store.ask_tools(root, asks(Replay.PURE))
    [child] = store.delegate(root, 1)

    shape = api.http.get(f"/v1/runs/{child}/tree").json()
    assert (shape["root_run_id"], shape["total"]) == (root, 2)
    assert [(node["run"]["run_id"], node["parent_run_id"], node["depth"]) for node in shape["data"]] == [
        (root, None, 0),
        (child, root, 1),
    ]
    [call] = api.http.get(f"/v1/runs/{root}/calls").json()["data"]
    assert shape["data"][1]["parent_call"] == call["call"]


# --- decisions -------------------------------------------------------------------------------------------------------


def test_the_history_says_who_allowed_what_and_what_follows_from_it(
    api: Served, store: Store, acme: httpx.Client
) -> None:
    decided = [("once", None), ("session", "curl"), ("deny", None)]
    asked = []
    for choice, _ in decided:
        asked.append(api.submit())
        ask(store, asked[-1])
        decide(api.http, store, asked[-1], choice, reason="so")
    theirs = submit(acme)
    ask(store, theirs)
    decide(acme, store, theirs, "deny")

    page = api.http.get("/v1/approvals/history", params={"limit": 2}).json()
    rest = api.http.get("/v1/approvals/history", params={"before": page["data"][-1]["id"]}).json()
    assert (page["has_more"], rest["has_more"]) == (True, False)
    found = [*page["data"], *rest["data"]]
    assert [each["run_id"] for each in found] == asked[::-1]
    assert [(each["outcome"], each["permits"]) for each in found] == decided[::-1]
    assert all(each["by"].startswith("api:key-") and each["closed_at"] >= each["created_at"] for each in found)
    assert all(each["command"].startswith("curl -H") and SECRET not in each["command"] for each in found)
    everybody = api.http.get("/v1/approvals/history", params={"all_tenants": "true", "kind": "approval"}).json()
    assert [each["tenant"] for each in everybody["data"]] == ["acme", "default", "default", "default"]


def test_an_operator_has_one_inbox_over_all_tenants(api: Served, store: Store, acme: httpx.Client) -> None:
    asked = [api.submit(), submit(acme)]
    for run_id in asked:
        ask(store, run_id)
    assert [wait["run_id"] for wait in api.http.get("/v1/approvals").json()["data"]] == asked[:1]
    found = api.http.get("/v1/approvals", params={"all_tenants": "true"}).json()["data"]
    assert [(wait["run_id"], wait["tenant"]) for wait in found] == list(zip(asked, ("default", "acme"), strict=True))
