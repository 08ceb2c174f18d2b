"""DBOS: a workflow whose model calls and tool calls are steps (https://docs.dbos.dev/python/tutorials/workflow-tutorial)."""

from __future__ import annotations

from typing import Any

import openai
from agent import MODEL_URL, STATE_URL, answer_call, build_request, build_transcript, read_reply, serve
from dbos import DBOS

client = openai.OpenAI(base_url=MODEL_URL, api_key="sk-benchmark", max_retries=0)
DBOS(
    config={
        "name": "steps",
        "system_database_url": STATE_URL,
        "run_admin_server": False,
        "log_level": "ERROR",
        "application_version": "1",
    }
)


@DBOS.step()
def call_model(messages: list[Any]) -> dict[str, Any]:
    return read_reply(client.chat.completions.create(**build_request(messages)))


@DBOS.step()
def call_tool(call: dict[str, Any]) -> dict[str, Any]:
    return answer_call(call)


@DBOS.workflow()
def work(steps: int) -> None:
    messages = build_transcript(steps)
    while calls := call_model(messages).get("tool_calls"):
        messages += [{"role": "assistant", "tool_calls": calls}, *map(call_tool, calls)]


def play(runs: int, steps: int) -> None:
    for handle in [DBOS.start_workflow(work, steps) for _ in range(runs)]:
        handle.get_result()


DBOS.launch()
serve(play)
DBOS.destroy()
