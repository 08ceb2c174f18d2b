"""The sessions of the original's wire, on a real server."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
from serving import Served, until
from support.store import Store, asks, settlement

from hermes_worker.core.messages import ModelReply, Usage
from hermes_worker.core.principals import KeyScope
from hermes_worker.core.replay import Replay
from hermes_worker.core.retention_rules import DEFAULT_RULES
from hermes_worker.features.retention.hold_rows import Retention
from hermes_worker.settings import Settings
from hermes_worker.store.access.principals import Tenants
from hermes_worker.store.search.indexing import Indexer
from hermes_worker.store.statistics import count_ended_rows


def opened(http: httpx.Client, **body: Any) -> dict[str, Any]:
    answer = http.post("/api/sessions", json=body)
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()["session"]
    return found


def talked(api: Served, store: Store, session_id: str, text: str = "hello") -> str:
    run_id = api.submit(input=text, session_id=session_id)
    store.answer(run_id, ModelReply(text="hi", usage=Usage(input=3, output=2)))
    return run_id


def code_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_what_was_said_is_found_over_http(api: Served, http: httpx.Client, store: Store) -> None:
    talked(api, store, "mine", "deploy the heron")
    talked(api, store, "yours", "nothing")
    while count_ended_rows(store.database):
        pass
    Indexer(store.database).index_due(60.0, pause_s=0.0)

    found = http.get("/api/sessions/search", params={"q": "heron"}).json()

    assert [(one["session_id"], one["message_id"], one["role"], one["hits"]) for one in found["data"]] == [
        ("mine", 1, "user", 1)
    ]
    assert (found["data"][0]["snippet"], found["is_complete"]) == ("deploy the >>>heron<<<", True)
    assert http.get("/api/sessions/search", params={"q": "heron", "role": "assistant"}).json()["data"] == []
    assert http.get("/api/sessions/search", params={"q": "heron", "session_id": "yours"}).json()["data"] == []
    answer = http.get("/api/sessions/search", params={"q": "heron", "session_id": "nobody's"})
    assert code_of(answer) == (404, "session_not_found")


def test_a_lineage_is_told_with_its_parents(api: Served, http: httpx.Client, store: Store) -> None:
    talked(api, store, "mine", "hello")
    assert http.post("/api/sessions/mine/fork", json={"id": "fork"}).status_code == 201

    found = http.get("/api/sessions/fork/lineage").json()

    assert [(one["id"], one["parent_session_id"]) for one in found["data"]] == [("mine", None), ("fork", "mine")]
    assert code_of(http.get("/api/sessions/none/lineage")) == (404, "session_not_found")


def test_a_title_is_given_once_and_a_session_put_away(http: httpx.Client) -> None:
    opened(http, id="a", title="Plan")
    opened(http, id="b")
    taken = (400, "invalid_title")
    assert code_of(http.patch("/api/sessions/b", json={"title": "Plan"})) == taken
    assert code_of(http.post("/api/sessions", json={"title": "Plan"})) == taken
    assert code_of(http.post("/api/sessions/a/fork", json={"title": "Plan"})) == taken
    assert http.patch("/api/sessions/a", json={"archived": True}).json()["session"]["archived_at"] > 0
    assert [one["id"] for one in http.get("/api/sessions").json()["data"]] == ["b"]
    assert [one["id"] for one in http.get("/api/sessions", params={"archived": True}).json()["data"]] == ["a"]


def test_a_conversation_from_elsewhere_becomes_a_session(http: httpx.Client) -> None:
    rows = [{"role": "user", "content": "hello", "timestamp": 10.5}, {"role": "assistant", "content": "hi"}]
    elsewhere = {"id": "20260101_1", "title": "Plan", "messages": rows, "ended_at": 20.0, "end_reason": "cli_close"}
    opened(http, id="mine", title="Plan")

    answer = http.post("/api/sessions/import", json={"session": elsewhere})

    made = answer.json()["session"]
    assert (answer.status_code, made["id"], made["title"]) == (201, "20260101_1", "Plan #2")
    assert (made["message_count"], made["ended_at"], made["end_reason"]) == (2, 20.0, "cli_close")
    told = http.get("/api/sessions/20260101_1/messages").json()["data"]
    assert [(one["role"], one["content"]) for one in told] == [("user", "hello"), ("assistant", "hi")]
    assert told[0]["timestamp"] == 10.5
    assert code_of(http.post("/api/sessions/import", json={"session": elsewhere})) == (409, "session_exists")
    fork = {"id": "f", "messages": rows, "parent_session_id": "20260101_1"}
    assert (
        http.post("/api/sessions/import", json={"session": fork}).json()["session"]["parent_session_id"] == "20260101_1"
    )
    assert code_of(http.post("/api/sessions/import", json={"session": {"id": "x"}})) == (400, "invalid_session")


def test_a_session_is_listed_by_its_title(api: Served, http: httpx.Client) -> None:
    opened(http, id="a", title="Plan")
    opened(http, id="b", title="Other")
    assert [one["id"] for one in http.get("/api/sessions", params={"title": "Plan"}).json()["data"]] == ["a"]


def test_a_session_is_opened_shown_changed_and_listed(api: Served, http: httpx.Client) -> None:
    fresh = opened(http, title="A  plan\n", system_prompt="Be brief.")
    assert re.fullmatch(r"run_[0-9a-f]{32}", fresh["id"]), "an id of ours means the same to every caller"
    assert http.get(f"/api/sessions/{fresh['id']}").json()["session"] == fresh
    assert (fresh["title"], fresh["source"], fresh["message_count"], fresh["model"]) == ("A plan", "api", 0, None)
    mine = opened(http, id="mine", model="m")
    assert (mine["model"], mine["has_model_config"], mine["_lineage_root_id"]) == ("m", True, "mine")
    assert http.get("/api/sessions/mine").json() == {"object": "hermes.session", "session": mine}
    changed = http.patch("/api/sessions/mine", json={"title": "New", "end_reason": "done"}).json()["session"]
    assert (changed["title"], changed["end_reason"]) == ("New", "done")
    assert http.patch("/api/sessions/mine", json={"title": None}).json()["session"]["title"] is None
    page = http.get("/api/sessions", params={"limit": 1}).json()
    assert ([one["id"] for one in page["data"]], page["has_more"], page["limit"]) == (["mine"], True, 1)
    rest = http.get("/api/sessions", params={"before": "mine"}).json()
    assert [one["id"] for one in rest["data"]] == [fresh["id"]]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"id": "a/b"}, "invalid_session_id"),
        ({"id": "run_" + "0" * 32}, "invalid_session_id"),
        ({"id": "a", "session_id": "b"}, "invalid_session_id"),
        ({"title": " "}, "invalid_title"),
        ({"title": "x" * 81}, "invalid_title"),
        ({"system_prompt": 5}, "invalid_system_prompt"),
        ({"model": "a b"}, "invalid_model"),
        ({"source": "cli"}, "unsupported_session_field"),
    ],
)
def test_what_no_session_can_be_is_refused_with_the_originals_code(
    http: httpx.Client, body: dict[str, Any], code: str
) -> None:
    assert code_of(http.post("/api/sessions", json=body)) == (400, code)


def test_what_is_there_already_and_what_is_not_there_is_said(http: httpx.Client) -> None:
    opened(http, id="mine")
    assert code_of(http.post("/api/sessions", json={"session_id": "mine"})) == (409, "session_exists")
    assert code_of(http.post("/api/sessions/mine/fork", json={"id": "mine"})) == (409, "session_exists")
    assert code_of(http.patch("/api/sessions/mine", json={"source": "x"})) == (400, "unsupported_session_field")
    for method, path in (("GET", ""), ("PATCH", ""), ("GET", "/messages"), ("POST", "/fork")):
        answer = http.request(method, f"/api/sessions/nobody{path}", json={} if method != "GET" else None)
        assert code_of(answer) == (404, "session_not_found"), (method, path)


def test_a_run_and_a_session_are_one_in_both_dialects(api: Served, http: httpx.Client, store: Store) -> None:
    opened(http, id="mine", system_prompt="Be brief.")
    run_id = talked(api, store, "mine", "what now?")
    shown = http.get("/api/sessions/mine").json()["session"]
    assert (shown["message_count"], shown["api_call_count"], shown["input_tokens"], shown["preview"]) == (
        2,
        1,
        3,
        "what now?",
    )
    assert http.get(f"/v1/runs/{run_id}").json()["session_id"] == "mine"
    unnamed = api.submit()
    assert http.get(f"/api/sessions/{unnamed}").json()["session"]["is_at_work"] is True


def test_a_transcript_is_told_row_by_row(api: Served, http: httpx.Client, store: Store) -> None:
    run_id = api.submit(session_id="mine")
    store.ask_tools(run_id, asks(Replay.PURE))
    store.calls.settle(store.call(run_id), settlement("found"))
    store.answer(run_id)
    rows = http.get("/api/sessions/mine/messages").json()
    assert (rows["object"], rows["session_id"], rows["has_more"]) == ("list", "mine", False)
    assert [(row["id"], row["role"], row["content"]) for row in rows["data"]] == [
        (1, "user", "hello"),
        (2, "assistant", None),
        (3, "tool", "found"),
        (4, "assistant", "done"),
    ]
    asked, result = rows["data"][1:3]
    assert (asked["finish_reason"], asked["tool_calls"][0]["function"]["name"]) == ("tool_calls", "tool0")
    assert (result["tool_call_id"], result["tool_name"]) == ("call_0", "tool0")
    page = http.get("/api/sessions/mine/messages", params={"after": 1, "limit": 2}).json()
    assert ([row["id"] for row in page["data"]], page["has_more"]) == ([2, 3], True)


def test_a_fork_goes_its_own_way(api: Served, http: httpx.Client, store: Store) -> None:
    talked(api, store, "mine", "one")
    talked(api, store, "mine", "two")
    forked = http.post("/api/sessions/mine/fork", json={"message_id": 2})
    assert forked.status_code == 201
    fork = forked.json()["session"]
    assert (fork["parent_session_id"], fork["title"], fork["message_count"]) == ("mine", "one #2", 2)
    talked(api, store, fork["id"], "aside")
    contents = [row["content"] for row in http.get(f"/api/sessions/{fork['id']}/messages").json()["data"]]
    assert contents == ["one", "hi", "aside", "hi"]
    assert http.get("/api/sessions/mine").json()["session"]["message_count"] == 4
    assert code_of(http.post("/api/sessions/mine/fork", json={"message_id": 9})) == (400, "invalid_value")


def test_capabilities_name_only_what_there_is(http: httpx.Client) -> None:
    told = http.get("/v1/capabilities").json()
    paths = http.get("/openapi.json").json()["paths"]
    assert told["object"] == "hermes.api_server.capabilities"
    assert told["runtime"] == {"mode": "server_agent", "tool_execution": "server", "split_runtime": False}
    assert {"runs", "run_events", "sessions", "session_fork", "toolsets", "jobs"} <= told["endpoints"].keys()
    for endpoint in told["endpoints"].values():
        assert endpoint["method"].lower() in paths[endpoint["path"]]
    assert told["features"]["session_fork"] is True
    assert told["features"]["chat_completions"] is ("/v1/chat/completions" in paths)


def test_every_toolset_that_is_told_can_be_named(api: Served, http: httpx.Client) -> None:
    data = http.get("/v1/toolsets").json()["data"]
    assert {"name", "label", "description", "enabled", "configured", "tools"} == data[0].keys()
    assert {one["name"] for one in data if one["enabled"]} < {one["name"] for one in data}
    for one in data:
        api.submit(toolsets=[one["name"]])


def test_the_skills_that_a_run_may_name_are_listed_for_its_tenant(
    serve: Callable[..., Served], settings: Settings
) -> None:
    api = serve(replace(settings, skills=replace(settings.skills, disabled=("off",))))
    assert api.http.get("/v1/skills").json() == {"object": "list", "data": []}
    shelf = settings.home / "skills"
    for place, more in (("dev/review", ""), ("plan", ""), ("off", ""), ("of-mac", "platforms: [macos]")):
        folder = shelf / place
        folder.mkdir(parents=True)
        front = f"name: {folder.name}\ndescription: What {folder.name} does.\n" + (
            f"metadata:\n  hermes:\n    {more}\n" if more else ""
        )
        (folder / "SKILL.md").write_text(f"---\n{front}---\nDo it.\n")

    listed = until(lambda: api.http.get("/v1/skills").json()["data"], "the folders to be looked at")

    assert listed == [
        {"name": "plan", "description": "What plan does.", "category": None},
        {"name": "review", "description": "What review does.", "category": "dev"},
    ]
    run_id = api.submit(skills=["plan", "review"], session_id="s")
    said = api.http.get("/api/sessions/s/messages").json()["data"][0]["content"]
    assert said.count("Do it.") == 2 and said.endswith("hello"), (run_id, said)
    answer = api.http.post("/v1/runs", json={"input": "hello", "skills": ["off"]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "skills")
    tenants = Tenants(api.client.database)
    tenants.create_tenant("acme")
    key = tenants.create_key("acme", "somebody", [KeyScope.RUNS_READ]).token
    headers = {"Authorization": f"Bearer {key}"}
    assert api.http.get("/v1/skills", headers=headers).json()["data"] == []


def test_a_deleted_session_takes_its_runs_along_and_leaves_its_forks(
    api: Served, http: httpx.Client, store: Store
) -> None:
    run_id = talked(api, store, "mine")
    fork = http.post("/api/sessions/mine/fork", json={"id": "fork"}).json()["session"]
    answer = http.delete("/api/sessions/mine")
    assert answer.json() == {"object": "hermes.session.deleted", "id": "mine", "deleted": True}
    assert code_of(http.get("/api/sessions/mine")) == (404, "session_not_found")
    assert code_of(http.delete("/api/sessions/mine")) == (404, "session_not_found")
    assert code_of(http.get(f"/v1/runs/{run_id}")) == (410, "run_deleted")
    assert [row["content"] for row in http.get("/api/sessions/fork/messages").json()["data"]] == ["hello", "hi"]
    talked(api, store, "fork", "more")
    assert http.get("/api/sessions/fork").json()["session"]["message_count"] == 4
    assert fork["parent_session_id"] == "mine"
    assert http.get("/api/sessions/fork").json()["session"]["parent_session_id"] is None
    # The name is free again, and what had it is another session.
    talked(api, store, "mine")
    assert http.get("/api/sessions/mine").json()["session"]["message_count"] == 2
    assert store.views.load_run(run_id_of(http, "mine")).run_id != run_id


def run_id_of(http: httpx.Client, session_id: str) -> str:
    return str(http.get("/v1/runs", params={"session_id": session_id}).json()["data"][0]["run_id"])


def test_a_session_that_nobody_used_is_deleted(http: httpx.Client) -> None:
    opened(http, id="mine")
    assert http.delete("/api/sessions/mine").status_code == 200
    assert http.get("/api/sessions").json()["data"] == []


def test_a_session_in_use_or_on_hold_is_not_deleted(api: Served, http: httpx.Client, store: Store) -> None:
    at_work = api.submit(session_id="busy")
    assert code_of(http.delete("/api/sessions/busy")) == (409, "session_active")
    store.answer(at_work)
    rules = Retention(api.client.database, DEFAULT_RULES)
    number = rules.place_hold("default", session_id=at_work, reason="court", by="cli:me")
    assert code_of(http.delete("/api/sessions/busy")) == (409, "session_held")
    rules.release("default", number.number)
    assert http.delete("/api/sessions/busy").status_code == 200


def test_delegated_work_goes_with_the_session_that_delegated_it(api: Served, http: httpx.Client, store: Store) -> None:
    run_id = api.submit(session_id="mine")
    store.ask_tools(run_id, asks(Replay.ONCE))
    [child] = store.delegate(run_id, 1)
    assert code_of(http.delete(f"/api/sessions/{child}")) == (409, "session_of_child")
    store.answer(child)
    store.answer(run_id)
    assert http.delete("/api/sessions/mine").status_code == 200
    assert code_of(http.get(f"/v1/runs/{child}")) == (410, "run_deleted")
    assert http.get("/api/sessions", params={"include_children": True}).json()["data"] == []


def test_a_page_of_sessions_goes_on_at_its_cursor_whatever_becomes_active(
    api: Served, http: httpx.Client, store: Store
) -> None:
    for name in ("a", "b", "c", "d"):
        talked(api, store, name)
    first = http.get("/api/sessions", params={"limit": 2}).json()
    talked(api, store, "c", "more")
    second = http.get("/api/sessions", params={"limit": 2, "cursor": first["next_cursor"]}).json()
    assert [one["id"] for one in (*first["data"], *second["data"])] == ["d", "c", "b", "a"]
    assert (first["has_more"], second["has_more"], second["next_cursor"]) == (True, False, None)
    assert [one["id"] for one in http.get("/api/sessions").json()["data"]] == ["c", "d", "b", "a"]
    other = http.get("/api/sessions", params={"limit": 2, "cursor": first["next_cursor"], "archived": True})
    assert code_of(other) == (400, "invalid_cursor")


def test_a_short_reference_is_completed_for_those_who_may_see_it(api: Served, http: httpx.Client, store: Store) -> None:
    run_id = talked(api, store, "mine", "Sort my mail")
    job = http.post("/api/jobs", json={"name": "Nightly", "schedule": "every 1h", "prompt": "x"}).json()["job"]["id"]
    asked = {"session": ("mine", ["mi", run_id[:12], "Sort my mail"]), "job": (job, ["nightly", job[:5]])}
    for kind, (known_as, written) in asked.items():
        for begins in written:
            found = http.get("/v1/ids", params={"kind": kind, "begins": begins})
            assert (found.status_code, found.json()) == (200, {"id": known_as}), found.text
        assert code_of(http.get("/v1/ids", params={"kind": kind, "begins": "other"})) == (404, "id_not_found")
    talked(api, store, "mix")
    assert code_of(http.get("/v1/ids", params={"kind": "session", "begins": "mi"})) == (409, "ambiguous_id")
