"""Restate: a handler whose model calls and tool calls are entries of its journal
(https://docs.restate.dev/develop/python/durable-steps)."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import hypercorn.asyncio
import openai
import restate
from agent import MODEL_URL, STATE_URL, answer_call, build_request, build_transcript, read_reply, serve

client = openai.AsyncOpenAI(base_url=MODEL_URL, api_key="sk-benchmark", max_retries=0)
agent = restate.Service("agent")


async def call_model(messages: list[dict[str, Any]]) -> dict[str, Any]:
    return read_reply(await client.chat.completions.create(**build_request(messages)))


async def call_tool(call: dict[str, Any]) -> dict[str, Any]:
    return answer_call(call)


@agent.handler()
async def work(ctx: restate.Context, steps: int) -> None:
    messages = build_transcript(steps)
    while calls := (await ctx.run_typed("model", call_model, messages=messages)).get("tool_calls"):
        results = [await ctx.run_typed("tool", call_tool, call=call) for call in calls]
        messages += [{"role": "assistant", "tool_calls": calls}, *results]


def post(url: str, body: object) -> None:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        answer.read()


INGRESS, ADMIN = STATE_URL.split(",")


def play(runs: int, steps: int) -> None:
    with ThreadPoolExecutor(runs) as pool:
        list(pool.map(lambda _: post(f"{INGRESS}/agent/work", steps), range(runs)))


def main() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = hypercorn.Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.errorlog = None
    served = hypercorn.asyncio.serve(restate.app(services=[agent]), config, shutdown_trigger=asyncio.Event().wait)
    threading.Thread(target=asyncio.run, args=[served], daemon=True).start()
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
    post(f"{ADMIN}/deployments", {"uri": f"http://127.0.0.1:{port}"})
    serve(play)


main()
