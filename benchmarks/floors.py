"""What the parts cost by themselves: the official SDK in a plain loop, and Celery passing a task to and fro.

Run as a process of its own (``python -m benchmarks.floors sdk|celery ...``), so that its CPU is its own.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any

TOOL_COUNT = 20
WARM_UP = 5
"""Calls that are not counted: the first one connects, and imports what only a call needs."""


def tool_definitions(count: int = TOOL_COUNT) -> list[dict[str, Any]]:
    """Schemas of the size that agents have."""
    return [
        {
            "type": "function",
            "function": {
                "name": f"tool_{n}",
                "description": "Does one thing and says what it did. " * 4,
                "parameters": {
                    "type": "object",
                    "properties": {
                        f"argument_{m}": {"type": "string", "description": "What to do it with."} for m in range(5)
                    },
                    "required": ["argument_0"],
                },
            },
        }
        for n in range(count)
    ]


def history(messages: int) -> list[dict[str, Any]]:
    """A finished conversation of ``messages`` rows (an even number), tool calls and results included."""
    rows: list[dict[str, Any]] = []
    for n in range(messages // 2):
        call = {"id": f"h{n}", "type": "function", "function": {"name": "todo", "arguments": "{}"}}
        rows.append({"role": "assistant", "content": None, "tool_calls": [call]})
        rows.append({"role": "tool", "tool_call_id": f"h{n}", "content": "result " * 40})
    return [{"role": "user", "content": "earlier"}, *rows, {"role": "assistant", "content": "done"}]


def sdk_loop(base_url: str, messages: int, steps: int) -> dict[str, float]:
    """An agent loop as everybody writes it first: typed parameters, one process, nothing stored."""
    import openai

    client = openai.OpenAI(base_url=base_url, api_key="sk-benchmark", max_retries=0)
    tools = tool_definitions()
    rows = [*history(messages), {"role": "user", "content": f"bench:steps={steps}"}]

    def step() -> None:
        # The same rows each time, so that the figure is that of one length of history.
        reply = client.chat.completions.create(model="m", messages=rows, tools=tools)  # type: ignore[arg-type]
        message = reply.choices[0].message
        results = [message.model_dump(exclude_none=True)]
        results += [{"role": "tool", "tool_call_id": call.id, "content": "ok"} for call in message.tool_calls or ()]
        assert len(results) == 2

    for _ in range(WARM_UP):
        step()
    began, cpu = time.monotonic(), time.process_time()
    for _ in range(steps):
        step()
    elapsed = time.monotonic() - began
    return {"steps_per_s": steps / elapsed, "cpu_ms_per_step": (time.process_time() - cpu) / steps * 1e3}


def celery_loop(broker_url: str, hops: int) -> None:
    """Two tasks that call each other through stock Celery and kombu, one thread each: two hops are one bare step."""
    import threading

    from celery import Celery

    from hermes_worker.settings.kinds import convert_socket_url

    app = Celery("floor", broker=convert_socket_url(broker_url, "redis+socket", "virtual_host"))
    app.conf.update(
        task_ignore_result=True,
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
    )
    done = threading.Event()

    @app.task(name="floor.hop")  # type: ignore[untyped-decorator]
    def hop(left: int) -> None:
        if left:
            hop.delay(left - 1)
        else:
            done.set()

    worker = app.Worker(
        pool="threads", concurrency=2, loglevel="ERROR", without_gossip=True, without_mingle=True, quiet=True
    )

    def drive() -> None:
        hop.delay(10)
        done.wait(30)
        done.clear()
        began, cpu = time.monotonic(), time.process_time()
        hop.delay(hops)
        done.wait(120)
        elapsed, used = time.monotonic() - began, time.process_time() - cpu
        finish({"steps_per_s": hops / 2 / elapsed, "cpu_ms_per_step": used / (hops / 2) * 1e3})

    threading.Thread(target=drive, daemon=True).start()
    worker.start()  # on the main thread, where Celery wants its signals


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("which", choices=["sdk", "celery"])
    parser.add_argument("--url", required=True)
    parser.add_argument("--messages", type=int, default=10)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    if options.which == "sdk":
        finish(sdk_loop(options.url, options.messages, options.steps))
    else:
        celery_loop(options.url, options.steps * 2)


def finish(result: dict[str, float]) -> None:
    """Print the result and end at once: Celery's own shutdown would wait for its threads."""
    sys.stdout.write(f"{json.dumps(result)}\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
