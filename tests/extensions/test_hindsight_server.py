"""The memory provider for Hindsight, against Hindsight's own server."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from support.hindsight_server import KEY, hindsight, installed
from support.rig import until

from hermes_worker.addons.http_json import AddonFailed
from hermes_worker.addons.memory_hindsight import EXTENSION
from hermes_worker.agent.tools.base import ToolContext
from hermes_worker.agent.tools.dispatch import run_tool
from hermes_worker.core.hooks import HookEvent
from hermes_worker.extension import load_reference
from hermes_worker.workspaces.sandbox.network import RunOrigin

_TURN = {"session_id": "s1", "user_message": "I like green tea", "assistant_response": "Noted"}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    environment = installed()
    if environment is None:
        pytest.skip("HERMES_TEST_HINDSIGHT names no environment with hindsight-api (docs/memory.md)")
    with hindsight(environment) as address:
        yield address


def values(url: str, key: str = KEY) -> dict[str, Any]:
    return {**{item.name: item.default for item in EXTENSION.settings}, "url": url, "key": key}


def told(url: str, hook: str, tenant: str, *, key: str = KEY, event: str = "run_1.4", **payload: object) -> Any:
    """What the provider's hook answers to an event of a tenant."""
    [found] = [one for one in EXTENSION.hooks if one.name == f"hindsight-{hook}"]
    names = {"prefetch": "pre_llm_call", "sync": "post_llm_call", "delegation": "subagent_stop"}
    happened = HookEvent(
        id=event, name=names[hook], payload={**_TURN, "tenant": tenant, **payload}, values=values(url, key)
    )
    return load_reference(found.implementation)(happened)


def recalled(url: str, tenant: str, question: str) -> Any:
    """Asked again while a busy machine needs longer than a turn would wait."""

    def look() -> tuple[Any] | None:
        try:
            return (told(url, "prefetch", tenant, user_message=question),)
        except AddonFailed as failed:
            if "did not answer" not in str(failed):
                raise
            return None

    return until(look, "an answer in time")[0]


def test_a_server_of_hindsight_keeps_a_turn_once_and_tells_it_to_its_tenant_only(
    url: str, context: ToolContext
) -> None:
    first, second = f"acme{uuid.uuid4().hex[:8]}", f"other{uuid.uuid4().hex[:8]}"
    assert recalled(url, first, "what tea do I like?") is None  # it knows no such bank
    for _ in range(2):
        told(url, "sync", first)
    found = until(lambda: recalled(url, first, "what tea do I like?"), "the turn to be kept")
    assert found.count("I like green tea") == 1 and found.startswith("<memory-context>")
    told(url, "delegation", second, event="run_2.1", child_goal="Count the tests", child_summary="7,000 tests")
    other = until(lambda: recalled(url, second, "how many tests?"), "the delegation to be kept")
    assert "7,000 tests" in other and "tea" not in other

    [tool] = EXTENSION.tools  # it waits longer than a turn does
    made = load_reference(tool.implementation)(spec=tool.spec, values=values(url))
    outcome = run_tool(made, json.dumps({"query": "green tea"}), replace(context, origin=RunOrigin(tenant=first)))
    assert "I like green tea" in outcome.text

    with pytest.raises(AddonFailed, match="401"):
        told(url, "prefetch", first, key="wrong", user_message="tea?")
