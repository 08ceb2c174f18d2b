"""Scenes for the page: conversations as agents have them, for pictures and for tests of how they read."""

from __future__ import annotations

import json

from serving import Served
from support.store import Asked, Store

from hermes_worker.core.events import PlannedCall
from hermes_worker.core.messages import ModelReply, ToolRequest, Usage
from hermes_worker.core.questions import Question
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import WaitKind
from hermes_worker.store.runs.waits import Waits

PATCH = """*** Begin Patch
*** Update File: src/orders.py
@@ def total(order):
-    return sum(line.price for line in order.lines)
+    return sum(line.price * line.count for line in order.lines)
*** End Patch"""
ANSWER = """## What was wrong

The total ignored how many of each item were ordered. I changed **one line** in `src/orders.py`:

```python
def total(order: Order) -> Decimal:
    # The price is that of one item.
    return sum(line.price * line.count for line in order.lines)
```

| Test | Before | After |
| --- | ---: | ---: |
| `test_total_of_two_items` | 4.00 | **8.00** |
| `test_total_of_nothing` | 0.00 | 0.00 |

1. All 214 tests pass.
2. Two callers compensated for the bug:
   - `invoices.py` line 88
   - `export.py` line 17
3. See the [style guide](https://docs.example.org/style) for why I left their names.

> Nothing was deployed.
"""


def ask_calls(*calls: tuple[str, dict[str, object]], text: str = "", replay: Replay = Replay.PURE) -> Asked:
    """A reply that calls these tools with these arguments."""
    requests = tuple(
        ToolRequest(id=f"call_{n}", name=name, arguments=json.dumps(arguments))
        for n, (name, arguments) in enumerate(calls)
    )
    planned = tuple(PlannedCall(name=name, replay=replay, segment=0, timeout_s=60.0) for name, _ in calls)
    usage = Usage(input=3_400, output=210)
    return Asked(
        reply=ModelReply(text=text, tool_requests=requests, finish_reason="tool_calls", usage=usage), calls=planned
    )


def repair_orders(api: Served, store: Store) -> str:
    """A conversation of two turns: something was repaired, and what came of it is told. Returns its first run."""
    run_id = api.submit(input="The total of an order is wrong when somebody orders two of a thing. Please repair it.")
    todos = [{"content": "Find the bug", "status": "in_progress"}, {"content": "Repair it", "status": "pending"}]
    look = "pytest -q tests/test_orders.py"
    first = ask_calls(("todo", {"todos": todos}), ("terminal", {"command": look}), text="I reproduce it first.")
    store.ask_tools(run_id, first)
    store.settle(run_id, 0, json.dumps({"todos": todos}))
    failed = "F.\nE   assert Decimal('4.00') == Decimal('8.00')\n1 failed, 1 passed in 0.31s"
    store.settle(run_id, 1, json.dumps({"output": failed, "exit_code": 1, "error": None}))
    store.ask_tools(run_id, ask_calls(("patch", {"mode": "patch", "patch": PATCH}), text="The count is missing."))
    store.settle(run_id, 0, json.dumps({"success": True, "files_modified": ["src/orders.py"]}))
    store.ask_tools(run_id, ask_calls(("terminal", {"command": "pytest -q"})))
    store.settle(run_id, 0, json.dumps({"output": "214 passed in 12.20s", "exit_code": 0, "error": None}))
    store.answer(run_id, ModelReply(text=ANSWER, usage=Usage(input=5_200, output=480)))
    return run_id


def ask_to_deploy(store: Store, run_id: str) -> None:
    """The run at work asks whether it may do something dangerous."""
    command = "git push --force origin main && rm -rf build/ && ./deploy.sh production"
    store.ask_tools(run_id, ask_calls(("terminal", {"command": command}), replay=Replay.ONCE))
    request = {
        "command": command,
        "directory": "/srv/shop",
        "description": "force push; recursive delete",
        "pattern_key": "git force push",
        "pattern_keys": ["git force push", "recursive delete"],
        "arguments": json.dumps({"command": command}),
    }
    Waits(store.database).ask(store.call(run_id), Question(kind=WaitKind.APPROVAL, request=request))
