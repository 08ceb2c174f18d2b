"""The model server of the benchmarks, asked as the benchmarks ask it."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from hermes_worker.agent.tools.arguments import find_violations
from hermes_worker.agent.tools.catalog import build_default_catalog
from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.messages import (
    ModelReply,
    ModelRequest,
    build_assistant_body,
    build_tool_body,
    build_user_body,
    dump_canonical_json,
)
from hermes_worker.models.endpoint import Endpoint
from hermes_worker.models.wires.openai_chat import OpenAIChat

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "model_server.py"
TOOL = dump_canonical_json({"type": "function", "function": {"name": "bench_echo", "parameters": {"type": "object"}}})


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    with subprocess.Popen([sys.executable, str(SCRIPT), "--chunks", "3"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.terminate()


def run_turn(base_url: str, rows: list[str]) -> list[ModelReply]:
    """Ask until there are no more calls, as the loop does."""
    chat = OpenAIChat(Endpoint(base_url=base_url))
    replies: list[ModelReply] = []
    while not replies or replies[-1].tool_requests:
        request = ModelRequest(model="bench", messages=rows, tools=(TOOL,))
        replies.append(chat.ask(request, on_delta=lambda _: None, abort=AbortSignal()))
        rows.append(build_assistant_body(replies[-1]))
        rows += [
            build_tool_body(call.id, '"role":"tool" in a result counts for nothing')
            for call in replies[-1].tool_requests
        ]
    return replies


@pytest.mark.parametrize("parallel", [1, 3])
def test_a_turn_takes_as_many_steps_as_the_marker_says(base_url: str, parallel: int) -> None:
    replies = run_turn(base_url, [build_user_body(f"bench:steps=4 tool=bench_echo parallel={parallel}")])

    assert [len(reply.tool_requests) for reply in replies] == [parallel] * 4 + [0]
    ids = [call.id for reply in replies for call in reply.tool_requests]
    assert len(ids) == len(set(ids))
    assert replies[-1].text.startswith("Done after 4 steps")
    assert replies[0].usage.input > 0


def test_only_the_newest_turn_counts(base_url: str) -> None:
    rows = [build_user_body("bench:steps=2")]
    first = run_turn(base_url, rows)
    rows.append(build_user_body("again bench:steps=1"))
    second = run_turn(base_url, rows)

    assert (len(first), len(second)) == (3, 2)
    ids = [call.id for reply in (*first, *second) for call in reply.tool_requests]
    assert len(ids) == len(set(ids))


def test_todo_gets_arguments_that_todo_accepts(base_url: str) -> None:
    reply = run_turn(base_url, [build_user_body("bench:steps=1 tool=todo")])[0]

    arguments: dict[str, Any] = json.loads(reply.tool_requests[0].arguments)
    assert find_violations(arguments, build_default_catalog().get("todo").spec.parameters) == ()


def test_without_tools_or_marker_the_reply_is_text(base_url: str) -> None:
    chat = OpenAIChat(Endpoint(base_url=base_url))
    for request in (
        ModelRequest(model="bench", messages=(build_user_body("bench:steps=5"),)),
        ModelRequest(model="bench", messages=(build_user_body("hello"),), tools=(TOOL,)),
    ):
        assert chat.ask(request, on_delta=lambda _: None, abort=AbortSignal()).tool_requests == ()


def test_the_official_client_reads_it_too(base_url: str) -> None:
    client = openai.OpenAI(base_url=base_url, api_key="none", max_retries=0)

    reply = client.chat.completions.create(
        model="bench", messages=[{"role": "user", "content": "bench:steps=1"}], tools=[json.loads(TOOL)]
    )

    assert reply.choices[0].finish_reason == "tool_calls"


def test_it_counts_its_requests_and_its_cpu(base_url: str) -> None:
    root = base_url.removesuffix("/v1")
    urllib.request.urlopen(f"{root}/reset", timeout=10).read()
    run_turn(base_url, [build_user_body("bench:steps=9")])

    stats = json.loads(urllib.request.urlopen(f"{root}/stats", timeout=10).read())

    assert stats["requests"] == 10
    assert stats["in_flight"] == 0
    assert stats["cpu_us_per_request"] >= 0
