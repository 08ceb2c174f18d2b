"""Sessions with more tools than their model is shown: what is stored, what is sent, and calls that lead to them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from support.store import Store, opened
from support.turns import Turns, do_calls

from hermes_worker import installed
from hermes_worker.agent.source_tools import build_definitions
from hermes_worker.agent.tools.base import ToolContext, ToolResult
from hermes_worker.agent.tools.catalog import ToolCatalog, build_default_catalog
from hermes_worker.agent.tools.tool_search import rank_tools
from hermes_worker.core.client_tools import ClientTool
from hermes_worker.core.deferred_tools import BRIDGE, list_deferred_functions, select_shown_definitions, unwrap_call
from hermes_worker.core.messages import ModelReply, ToolRequest, dump_canonical_json
from hermes_worker.core.replay import Replay
from hermes_worker.extension import Extension, ToolSourceDeclaration, ToolSpec, fold_extensions
from hermes_worker.services.submission import InvalidSubmission, Submission, build_run
from hermes_worker.settings import load_settings
from hermes_worker.store.tables import runs
from hermes_worker.tasks.iteration.planning import plan_calls, read_tool_names, read_tool_texts

WORDS = ("invoice", "calendar", "ticket", "customer", "shipment", "payment", "contract", "meeting")
MANY = tuple(f"{verb}_{word}" for verb in ("create", "delete", "list") for word in WORDS)


def spec(name: str, **changes: Any) -> ToolSpec:
    verb, _, word = name.partition("_")
    made = ToolSpec(
        name=name,
        description=f"Will {verb} one {word} of the company. " + "It is thorough. " * 60,
        parameters={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
        toolset="",
        replay=Replay.PURE if verb == "list" else Replay.ONCE,
        is_untrusted=False,
        timeout_s=7.0,
        is_parallel_safe=verb == "list",
    )
    return replace(made, **changes)


class Office:
    def __init__(self) -> None:
        self.called: list[tuple[str, Mapping[str, Any]]] = []

    def list_tools(self) -> Sequence[ToolSpec]:
        return [spec(name) for name in MANY]

    def call(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        self.called.append((name, arguments))
        return ToolResult(text=f"did {name} {arguments['n']}")


@pytest.fixture
def office() -> Iterator[Office]:
    made = Office()
    source = ToolSourceDeclaration(name="office", implementation=lambda values: made, refresh_s=10, timeout_s=1)
    acme = Extension(name="acme", version="1", tool_sources=(source,))
    installed.put_in_force(fold_extensions((*installed.load_built_in(), acme)))
    yield made
    installed.put_in_force(None)


def session_tools(office: Office, *, window: int = 32_000, **asked: Any) -> str:
    environ = {"HOME": "/nowhere", "HERMES_PROVIDER": "scripted", "HERMES_CONTEXT_LENGTH": str(window)}
    found = build_definitions("office", office.list_tools(), ())[0]
    return build_run(load_settings(environ), Submission(input="x", **asked), sourced=found).tools


def catalog() -> ToolCatalog:
    return build_default_catalog(services={"jobs": None, "messages": None, "fetching": None})


def sent_names(tools: str) -> set[str]:
    return {json.loads(text)["function"]["name"] for text in read_tool_texts(tools)}


def test_more_than_a_tenth_of_the_window_is_put_off_and_the_session_has_it_all_the_same(office: Office) -> None:
    tools = session_tools(office)
    assert {*MANY, *BRIDGE, "terminal", "read_file"} <= read_tool_names(tools)
    assert sent_names(tools) == read_tool_names(tools) - set(MANY), "tools of the product are never put off"
    assert len(select_shown_definitions(tools)) < len(tools) / 2
    assert all(json.loads(text).keys() == {"type", "function"} for text in read_tool_texts(tools))


def test_what_fits_is_shown(office: Office) -> None:
    tools = session_tools(office, window=1_000_000)
    assert set(MANY) <= sent_names(tools) and not BRIDGE & read_tool_names(tools)
    assert select_shown_definitions(tools) is tools and list_deferred_functions(tools) == ()


def test_the_same_tools_are_the_same_bytes(office: Office) -> None:
    assert session_tools(office) == session_tools(office)
    assert read_tool_texts(session_tools(office)) == read_tool_texts(session_tools(office))


def test_a_client_cannot_bring_a_tool_of_these_names(office: Office) -> None:
    mine = ClientTool(name="tool_call", description="mine", parameters={"type": "object", "properties": {}})
    with pytest.raises(InvalidSubmission, match="the agent has a tool of that name"):
        session_tools(office, client_tools=(mine,))


def plan(tools: str, name: str, arguments: Any) -> Any:
    request = ToolRequest(id="1", name=name, arguments=dump_canonical_json(arguments))
    reply, [call] = plan_calls(ModelReply(text="", tool_requests=(request,)), catalog().for_session(tools))
    assert reply.tool_requests[0].name == name, "the transcript holds what the model wrote"
    return call


def test_a_call_through_the_bridge_is_planned_as_the_tool_that_it_names(office: Office) -> None:
    tools = session_tools(office)
    call = plan(tools, "tool_call", {"name": "delete_ticket", "arguments": {"n": 1}})
    assert (call.name, call.replay, call.timeout_s) == ("delete_ticket", Replay.ONCE, 7.0)
    assert plan(tools, "tool_call", {"name": "Delete-Ticket", "arguments": '{"n": 1}'}).name == "delete_ticket"
    assert plan(tools, "tool_call", {"name": "terminal", "arguments": {"command": "ls"}}).name == "tool_call"
    assert plan(tools, "tool_call", {"name": "tool_call", "arguments": {"name": "delete_ticket"}}).name == "tool_call"
    assert plan(tools, "tool_call", "nonsense").name == "tool_call"
    assert plan(tools, "delete_ticket", {"n": 1}).name == "delete_ticket", "who knows it may call it directly"


def test_bridged_calls_that_only_look_run_side_by_side(office: Office) -> None:
    requests = tuple(
        ToolRequest(id=str(n), name="tool_call", arguments=dump_canonical_json({"name": name, "arguments": {"n": n}}))
        for n, name in enumerate(("list_ticket", "list_meeting", "delete_ticket", "list_payment"))
    )
    _, calls = plan_calls(ModelReply(text="", tool_requests=requests), catalog().for_session(session_tools(office)))
    assert [call.segment for call in calls] == [0, 0, 1, 2]


@pytest.fixture
def turns(database_url: str, office: Office) -> Iterator[Turns]:
    with opened(database_url) as store:
        found = Turns.over(store)
        found.parts = replace(found.parts, catalog=catalog(), workspace=lambda ref: _Nowhere())  # type: ignore[arg-type,return-value]
        yield found


class _Nowhere:
    root = "/nowhere"


def test_a_model_finds_reads_and_calls_a_tool_that_it_was_not_shown(turns: Turns, office: Office) -> None:
    run_id = turns.submit(tools=session_tools(office))

    def call(name: str, arguments: Any) -> str:
        request = ToolRequest(id="c", name=name, arguments=dump_canonical_json(arguments))
        session = turns.parts.catalog.for_session(
            turns.parts.rows.runs.load_session_context(_pk(turns.store, run_id)).tools
        )
        reply, planned = plan_calls(ModelReply(text="", tool_requests=(request,)), session)
        turns.store.runs.commit_reply(turns.store.turn(run_id), reply, planned)
        do_calls(turns.parts, turns.store, run_id)
        return turns.store.results(run_id)[-1]

    found = json.loads(call("tool_search", {"query": "delete tickets", "limit": 2}))
    assert found["tools"][0]["name"] == "delete_ticket" and found["of"] == len(MANY)
    assert json.loads(call("tool_describe", {"name": "delete_ticket"}))["parameters"]["required"] == ["n"]
    assert call("tool_call", {"name": "delete_ticket", "arguments": {"n": "4"}}) == "did delete_ticket 4"
    assert office.called == [("delete_ticket", {"n": 4})]
    assert "delete_ticket was not run" in call("tool_call", {"name": "delete_ticket", "arguments": {}})
    assert "none of the tools behind tool_search" in call("tool_call", {"name": "terminal", "arguments": {}})
    assert "nothing matches" in call("tool_search", {"query": "weather"})
    assert office.called == [("delete_ticket", {"n": 4})]
    started = [
        event.data["tool"] for event in turns.store.views.list_events_after(run_id, 0) if event.name == "tool.started"
    ]
    assert started[:3] == ["tool_search", "tool_describe", "delete_ticket"]
    rows = turns.store.bodies(run_id)
    said = [row["tool_calls"][0]["function"]["name"] for row in rows if row.get("tool_calls")]
    assert said[2] == "tool_call"


def test_a_bridged_call_whose_worker_vanished_is_not_made_again(turns: Turns, office: Office) -> None:
    store, run_id = turns.store, turns.submit(tools=session_tools(office))
    request = ToolRequest(
        id="c", name="tool_call", arguments=dump_canonical_json({"name": "delete_ticket", "arguments": {"n": 1}})
    )
    session = turns.parts.catalog.for_session(session_tools(office))
    reply, planned = plan_calls(ModelReply(text="", tool_requests=(request,)), session)
    store.runs.commit_reply(store.turn(run_id), reply, planned)
    worker = store.worker()
    claim = store.call(run_id, owner=worker.pk)
    assert (claim.request.name, claim.request.arguments, claim.replay) == ("delete_ticket", '{"n":1}', Replay.ONCE)
    store.sweep()
    store.vanish(worker)
    store.sweep()
    assert json.loads(store.results(run_id)[-1])["status"] == "outcome_unknown"


def _pk(store: Store, run_id: str) -> int:
    with store.database.read() as connection:
        return int(connection.execute(sa.select(runs.c.session_pk).where(runs.c.run_id == run_id)).scalar_one())


def test_the_best_match_is_the_one_whose_name_holds_the_words() -> None:
    functions = [
        {"name": "createIssue", "description": "makes an issue", "parameters": {"properties": {"repo": {}}}},
        {"name": "list_issues", "description": "lists issues", "parameters": {}},
        {"name": "weather", "description": "an issue of the forecast", "parameters": None},
    ]
    assert [one["name"] for one in rank_tools("create an issue", functions)] == [
        "createIssue",
        "list_issues",
        "weather",
    ]
    assert rank_tools("", functions) == rank_tools("zzz", functions) == []
    assert rank_tools("repo", functions)[0]["name"] == "createIssue"


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '{"name": 3}', '{"name": ""}', "[" * 50_000])
def test_what_names_no_tool_is_no_call(text: str) -> None:
    assert unwrap_call(text) is None


def test_arguments_may_be_an_object_or_its_text() -> None:
    assert unwrap_call('{"name":"a","arguments":{"n":1}}') == ("a", '{"n":1}')
    assert unwrap_call('{"name":"a","arguments":"{\\"n\\":1}"}') == ("a", '{"n":1}')
    assert unwrap_call('{"name":"a"}') == ("a", "{}")
