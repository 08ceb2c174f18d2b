"""What the agents of all drivers do: ask the model, pay, and say where they are. Standard library only.

A driver is called ``DRIVER VERB DIRECTORY``. Verbs: ``start`` begins a run in the directory and ``resume`` goes on
with it; both end when the run has ended, and print its answer. ``fork`` goes on from the point behind the first
payment, in a branch of its own; ``ask`` runs until a person has to allow a payment, and ``allow`` allows it. A
verb that the system does not claim ends with status 3.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from typing import Any

OUTSIDE = os.environ.get("RESUME_OUTSIDE", "")
NOT_CLAIMED = 3
_TOOLS = [{"type": "function", "function": {"name": "pay", "parameters": {"type": "object"}}}]
FIRST = {"role": "user", "content": "pay"}


def post(path: str, document: Any, key: str = "") -> Any:
    """Ask the world outside."""
    headers = {"Content-Type": "application/json", **({"Idempotency-Key": key} if key else {})}
    request = urllib.request.Request(f"{OUTSIDE}{path}", json.dumps(document).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())


def pass_point(name: str) -> None:
    """Say where this process is: the experiment may kill it here."""
    post("/point", {"point": name, "pid": os.getpid()})


def ask_model(messages: list[Any]) -> dict[str, Any]:
    """One model call."""
    pass_point("before_model")
    reply = post("/v1/chat/completions", {"model": "scripted", "messages": messages, "tools": _TOOLS})
    pass_point("after_model")
    return dict(reply["choices"][0]["message"])


def pay(call: dict[str, Any], key: str = "") -> dict[str, Any]:
    """One tool call. ``key`` is the idempotency key, where the system has one that survives a restart."""
    mark = json.loads(call["function"]["arguments"])["mark"]
    pass_point("before_effect")
    result = post("/effect", {"mark": mark}, key)
    pass_point("after_effect")
    return {"role": "tool", "tool_call_id": call["id"], "content": json.dumps(result)}


def stop_unclaimed() -> None:
    """End with the status of a verb that the system does not claim."""
    sys.exit(NOT_CLAIMED)
