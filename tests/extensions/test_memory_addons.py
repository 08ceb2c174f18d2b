"""The memory providers that come with the product, against stand-ins of ours.

The stand-ins are made from what the vendors' own packages send: ``VENDOR_REQUESTS`` was recorded from ``mem0ai`` 2.2.1
and ``honcho-ai`` 2.7.0, which asked a server on this machine. Nobody asked the real services. Those to Hindsight are as
its server ``hindsight-api-slim`` 1.1.0 takes them (``test_hindsight_server.py``).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from support.fault_server import FaultServer, Received, Reply
from support.inside import inside

from hermes_worker.addons.http_json import AddonFailed
from hermes_worker.addons.memory_requests import RECALL_S, name_user
from hermes_worker.agent.tools.base import ToolContext
from hermes_worker.agent.tools.dispatch import run_tool
from hermes_worker.core.hooks import HookEvent
from hermes_worker.extension import PREFETCH_S_MAX, Extension, fold_extensions, load_reference
from hermes_worker.installed import load_built_in
from hermes_worker.workspaces.sandbox.network import RunOrigin

Sent = tuple[str, str, Mapping[str, Any] | None]
VENDOR_REQUESTS: Mapping[str, Sent] = {
    "mem0 search": (
        "POST",
        "/v3/memories/search/",
        {"query": "tea?", "filters": {"user_id": "hermes-acme"}, "top_k": 10},
    ),
    "mem0 add": (
        "POST",
        "/v3/memories/add/",
        {
            "messages": [{"role": "user", "content": "I like tea"}, {"role": "assistant", "content": "Noted"}],
            "user_id": "hermes-acme",
            "metadata": {"event_id": "run_1.4"},
        },
    ),
    "honcho workspace": ("POST", "/v3/workspaces", {"id": "hermes"}),
    "honcho peer": ("POST", "/v3/workspaces/hermes/peers", {"id": "user-acme"}),
    "honcho other peer": ("POST", "/v3/workspaces/hermes/peers", {"id": "hermes-acme"}),
    "honcho session": (
        "POST",
        "/v3/workspaces/hermes/sessions",
        {"id": "s1", "peers": {"user-acme": {}, "hermes-acme": {}}},
    ),
    "honcho messages": (
        "POST",
        "/v3/workspaces/hermes/sessions/s1/messages",
        {
            "messages": [
                {"content": "I like tea", "peer_id": "user-acme", "metadata": {"event_id": "run_1.4"}},
                {"content": "Noted", "peer_id": "hermes-acme", "metadata": {"event_id": "run_1.4"}},
            ]
        },
    ),
    "honcho context": ("GET", "/v3/workspaces/hermes/peers/user-acme/context?search_query=tea%3F", None),
    "honcho conclusions": (
        "POST",
        "/v3/workspaces/hermes/conclusions",
        {"conclusions": [{"observer_id": "hermes-acme", "observed_id": "user-acme", "content": "likes tea"}]},
    ),
    "honcho query": (
        "POST",
        "/v3/workspaces/hermes/conclusions/query",
        {"query": "tea", "top_k": 10, "filters": {"observer_id": "hermes-acme", "observed_id": "user-acme"}},
    ),
    "hindsight recall": (
        "POST",
        "/v1/default/banks/hermes-acme/memories/recall",
        {"query": "tea?", "budget": "low", "max_tokens": 2_000},
    ),
    "hindsight retain": (
        "POST",
        "/v1/default/banks/hermes-acme/memories",
        {
            "items": [
                {
                    "content": "User: I like tea\nAssistant: Noted",
                    "context": "conversation with an agent",
                    "document_id": "run_1.4",
                    "metadata": {"session_id": "s1"},
                }
            ],
            "async": True,
            "operation_id": str(uuid.uuid5(uuid.NAMESPACE_URL, "run_1.4")),
        },
    ),
}
"""The requests of the packages for the calls that our adapters stand in for, with our ids in them."""

TURN = {
    "tenant": "acme",
    "session_id": "s1",
    "user_message": "I like tea",
    "assistant_response": "Noted",
}


class Stand:
    """Answers as the vendors' packages read answers, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Sent] = []
        self.auth: list[str] = []
        self.answer: Any = None

    def __call__(self, request: Received, reply: Reply) -> None:
        method, path, _ = request.head.split(" ", 2)
        self.asked.append((method, path, json.loads(request.body) if request.body else None))
        lines = request.head.lower().splitlines()
        self.auth += [line.partition(": ")[2] for line in lines if line.startswith("authorization")]
        reply.document(200, self._said(urlsplit(path).path) if self.answer is None else self.answer)

    def _said(self, path: str) -> object:
        if path.endswith("/memories/search/"):
            return {"results": [{"id": "1", "memory": "Ann likes tea"}, {"id": "2", "memory": "Ann is in Oslo"}]}
        if path.endswith("/memories/recall"):
            return {"results": [{"id": "1", "text": "Ann likes tea"}, {"id": "2", "text": "Ann is in Oslo"}]}
        if path.endswith("/context"):
            return {"peer_id": "p", "representation": "drinks tea at five", "peer_card": ["Name: Ann"]}
        if path.endswith("/conclusions/query"):
            return [{"id": "c", "content": "likes tea"}]
        return {"text": "Ann likes tea"}


@pytest.fixture
def stand() -> Iterator[tuple[Stand, str]]:
    made = Stand()
    with FaultServer(made) as server:
        yield made, server.base_url.removesuffix("/v1")


def addon(name: str) -> Extension:
    found = load_reference(f"hermes_worker.addons.{name}:EXTENSION")
    assert isinstance(found, Extension)
    return found


def values(name: str, url: str) -> Mapping[str, Any]:
    defaults = {item.name: item.default for item in addon(name).settings if item.default is not None}
    return {**defaults, "url": url, "key": "secret", "token": "secret"}


def told(name: str, url: str, hook: str, event: str, **payload: object) -> object:
    """What the provider's hook answers to an event."""
    [found] = [one for one in addon(name).hooks if one.name == hook]
    happened = HookEvent(id="run_1.4", name=event, payload={**TURN, **payload}, values=values(name, url))
    return load_reference(found.implementation)(happened)


@pytest.mark.parametrize("name", ["memory_hindsight", "memory_honcho", "memory_http", "memory_mem0"])
def test_each_can_be_enabled_and_no_two_of_them(name: str) -> None:
    fold_extensions((*load_built_in(), addon(name)), withheld=[one.variable for one in addon(name).settings])
    assert all(hook.of_memory for hook in addon(name).hooks)
    assert {role for one in addon(name).settings for role in one.roles} == {"model", "tools"}


def test_mem0_is_asked_and_told_as_its_own_package_does(stand: tuple[Stand, str]) -> None:
    made, url = stand
    recalled = told("memory_mem0", url, "mem0-prefetch", "pre_llm_call", user_message="tea?")
    told("memory_mem0", url, "mem0-sync", "post_llm_call")
    assert isinstance(recalled, str)
    assert "- Ann likes tea\n- Ann is in Oslo" in recalled and recalled.startswith("<memory-context>")
    assert made.asked == [VENDOR_REQUESTS["mem0 search"], VENDOR_REQUESTS["mem0 add"]]
    assert made.auth == ["token secret"] * 2


def test_hindsight_is_asked_and_told_in_the_tenants_bank(stand: tuple[Stand, str]) -> None:
    made, url = stand
    recalled = told("memory_hindsight", url, "hindsight-prefetch", "pre_llm_call", user_message="tea?")
    told("memory_hindsight", url, "hindsight-sync", "post_llm_call")
    assert isinstance(recalled, str)
    assert "- Ann likes tea\n- Ann is in Oslo" in recalled and recalled.startswith("<memory-context>")
    assert made.asked == [VENDOR_REQUESTS["hindsight recall"], VENDOR_REQUESTS["hindsight retain"]]
    assert made.auth == ["bearer secret"] * 2


def test_a_tenant_of_whom_hindsight_keeps_nothing_has_nothing_remembered() -> None:
    status = 404

    def nobody(request: Received, reply: Reply) -> None:
        reply.document(status, {"detail": "Bank 'hermes-acme' not found"})  # as the server says it

    with FaultServer(nobody) as server:
        url = server.base_url.removesuffix("/v1")
        assert told("memory_hindsight", url, "hindsight-prefetch", "pre_llm_call", user_message="tea?") is None
        with pytest.raises(AddonFailed, match="404: Bank"):
            told("memory_hindsight", url, "hindsight-sync", "post_llm_call")
        status = 500
        with pytest.raises(AddonFailed, match="500"):
            told("memory_hindsight", url, "hindsight-prefetch", "pre_llm_call", user_message="tea?")


def test_honcho_is_asked_and_told_as_its_own_package_does(stand: tuple[Stand, str]) -> None:
    made, url = stand
    recalled = told("memory_honcho", url, "honcho-prefetch", "pre_llm_call", user_message="tea?")
    assert isinstance(recalled, str) and "- Name: Ann\n\ndrinks tea at five" in recalled
    assert made.asked.pop() == VENDOR_REQUESTS["honcho context"]
    told("memory_honcho", url, "honcho-sync", "post_llm_call")
    names = ("workspace", "peer", "other peer", "session", "messages")
    assert made.asked == [VENDOR_REQUESTS[f"honcho {name}"] for name in names]
    assert set(made.auth) == {"bearer secret"}


def test_honcho_concludes_what_the_agent_wrote_down_of_the_user(stand: tuple[Stand, str]) -> None:
    made, url = stand
    written: dict[str, Any] = {"tool_name": "memory", "status": "ok"}
    add = {"action": "add", "content": "likes tea"}
    told("memory_honcho", url, "honcho-write", "post_tool_call", **written, args={"target": "user", **add})
    assert made.asked[-1] == VENDOR_REQUESTS["honcho conclusions"]
    told(
        "memory_honcho", url, "honcho-write", "post_tool_call", **written, args={"target": "user", "operations": [add]}
    )
    assert made.asked[-1] == VENDOR_REQUESTS["honcho conclusions"]
    made.asked.clear()
    told("memory_honcho", url, "honcho-write", "post_tool_call", **written, args={"target": "memory", **add})
    told("memory_honcho", url, "honcho-write", "post_tool_call", tool_name="terminal", status="ok", args={})
    told("memory_honcho", url, "honcho-write", "post_tool_call", tool_name="memory", status="error", args={})
    assert made.asked == []


def test_tools_search_what_is_remembered_of_the_runs_tenant(stand: tuple[Stand, str], context: ToolContext) -> None:
    made, url = stand
    asking = replace(context, origin=RunOrigin(tenant="acme"))
    for name, tool, found in (
        ("memory_mem0", "mem0_search", ["Ann likes tea", "Ann is in Oslo"]),
        ("memory_honcho", "honcho_search", ["likes tea"]),
        ("memory_hindsight", "hindsight_recall", ["Ann likes tea", "Ann is in Oslo"]),
    ):
        [declared] = [one for one in addon(name).tools if one.name == tool]
        assert declared.spec.toolset == "memory"
        made_tool = load_reference(declared.implementation)(spec=declared.spec, values=values(name, url))
        result = run_tool(made_tool, json.dumps({"query": "tea"}), asking)
        assert json.loads(inside(result.text)) == found
    assert made.asked[0][2] == {**(VENDOR_REQUESTS["mem0 search"][2] or {}), "query": "tea"}
    assert made.asked[1] == VENDOR_REQUESTS["honcho query"]


def test_a_delegation_is_remembered(stand: tuple[Stand, str]) -> None:
    made, url = stand
    for name in ("mem0", "honcho", "hindsight"):
        told(
            f"memory_{name}",
            url,
            f"{name}-delegation",
            "subagent_stop",
            child_goal="Count tests",
            child_summary="7,000",
        )
        assert "Delegated: Count tests\\nResult: 7,000" in json.dumps(made.asked[-1][2])


def test_a_server_of_ones_own_is_sent_each_event_with_its_key(stand: tuple[Stand, str]) -> None:
    made, url = stand
    assert told("memory_http", url, "http-prefetch", "pre_llm_call") is not None
    assert told("memory_http", url, "http-compress", "pre_compress") == "Ann likes tea"
    told("memory_http", url, "http-sync", "post_llm_call")
    told("memory_http", url, "http-delegation", "subagent_stop")
    told("memory_http", url, "http-end", "on_session_end")
    events = [(document or {})["event"] for _, _, document in made.asked]
    assert events == ["pre_llm_call", "pre_compress", "post_llm_call", "subagent_stop", "on_session_end"]
    assert made.asked[0][2] == {"id": "run_1.4", "event": "pre_llm_call", "payload": TURN}
    assert set(made.auth) == {"bearer secret"}
    made.answer = {"text": 7}
    with pytest.raises(AddonFailed, match="no text"):
        told("memory_http", url, "http-prefetch", "pre_llm_call")
    made.answer = {}
    assert told("memory_http", url, "http-prefetch", "pre_llm_call") is None


@pytest.mark.parametrize(
    ("name", "hook"),
    [
        ("memory_hindsight", "hindsight-prefetch"),
        ("memory_honcho", "honcho-prefetch"),
        ("memory_http", "http-prefetch"),
        ("memory_mem0", "mem0-prefetch"),
    ],
)
def test_none_of_them_waits_for_ever_or_reads_a_megabyte(name: str, hook: str) -> None:
    assert RECALL_S < PREFETCH_S_MAX
    with FaultServer(lambda request, reply: reply.block()) as server:
        address = server.base_url.removesuffix("/v1")
        with pytest.raises(AddonFailed):
            told(name, address, hook, "pre_llm_call")
    with pytest.raises(AddonFailed, match="no connection"):
        told(name, address, hook, "pre_llm_call")
    lying = FaultServer(lambda request, reply: reply.document(200, {"text": "x" * 1_000_000}))
    with lying as server, pytest.raises(AddonFailed, match="more than 200000 bytes"):
        told(name, server.base_url.removesuffix("/v1"), hook, "pre_llm_call")


def test_two_tenants_share_no_user() -> None:
    assert name_user("acme", "ann") != name_user("default", "ann")
    assert parse_qs("user=" + name_user("acme", "a n/n"))["user"] == ["a-n-n-acme"]


def test_nothing_is_asked_about_silence(stand: tuple[Stand, str]) -> None:
    made, url = stand
    for name in ("mem0", "honcho", "hindsight"):
        assert told(f"memory_{name}", url, f"{name}-prefetch", "pre_llm_call", user_message="  ") is None
        told(f"memory_{name}", url, f"{name}-sync", "post_llm_call", user_message="", assistant_response="")
    assert made.asked == []


def test_the_records_are_from_the_versions_that_the_modules_name() -> None:
    for name, package in (
        ("memory_mem0", "``mem0ai`` 2.2.1"),
        ("memory_honcho", "``honcho-ai`` 2.7.0"),
        ("memory_hindsight", "``hindsight-api-slim`` 1.1.0"),
    ):
        module = Path(load_reference(f"hermes_worker.addons.{name}.service:__file__")).read_text()
        assert package in module and package in (__doc__ or "")
