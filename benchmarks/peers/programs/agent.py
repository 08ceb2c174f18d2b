"""The agent that each peer runs: a model call and a tool call for each step, until the model has nothing to call."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.floors import tool_definitions

MODEL_URL, STATE_URL, RUNS, STEPS = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
TOOLS = tool_definitions()


def build_transcript(steps: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"bench:steps={steps}"}]


def build_request(messages: list[dict[str, Any]]) -> dict[str, Any]:
    return {"model": "m", "messages": messages, "tools": TOOLS}


def read_reply(reply: Any) -> dict[str, Any]:
    message: dict[str, Any] = reply.choices[0].message.model_dump(exclude_none=True)
    return message


def answer_call(call: dict[str, Any]) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call["id"], "content": "ok"}


def serve(play: Callable[[int, int], None]) -> None:
    """Play the load once for each line of standard input, and print the seconds that it took. ``play`` runs so many
    agents at once, of so many steps."""
    play(RUNS, 5)
    print(flush=True)
    for _ in sys.stdin:
        began = time.monotonic()
        play(RUNS, STEPS)
        print(json.dumps(time.monotonic() - began), flush=True)
