"""DBOS: a workflow whose model calls and payments are steps, on SQLite; a restarted process recovers what was pending.

https://docs.dbos.dev/python/tutorials/workflow-tutorial: a step is tried at least once, so a payment is given the id of
its workflow and step as idempotency key, as the page on idempotency says.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from agent import FIRST, ask_model, pay, stop_unclaimed
from dbos import DBOS, SetWorkflowID

verb, directory = sys.argv[1], Path(sys.argv[2])
DBOS(
    config={
        "name": "resume",
        "system_database_url": f"sqlite:///{directory / 'state.db'}",
        "run_admin_server": False,
        "log_level": "ERROR",
        "application_version": "1",
    }
)


@DBOS.step()
def call_model(messages: list[Any]) -> dict[str, Any]:
    return ask_model(messages)


@DBOS.step()
def call_tool(call: dict[str, Any]) -> dict[str, Any]:
    return pay(call, f"{DBOS.workflow_id}.{DBOS.step_id}")


@DBOS.step()
def pay_without_key(call: dict[str, Any]) -> dict[str, Any]:
    return pay(call)


@DBOS.workflow()
def work(asks: bool) -> str:
    messages: list[Any] = [FIRST]
    while True:
        reply = call_model(messages)
        messages.append(reply)
        if not reply.get("tool_calls"):
            return str(reply["content"])
        if asks:
            if DBOS.recv("allow", timeout_seconds=600) != "yes":
                return "refused"
            messages.append(pay_without_key(reply["tool_calls"][0]))
        else:
            messages.append(call_tool(reply["tool_calls"][0]))


DBOS.launch()
match verb:
    case "start" | "resume":
        with SetWorkflowID("w"):
            handle = DBOS.start_workflow(work, False)
        print(handle.get_result())
    case "fork":
        # Steps 1 and 2 are the first model call and the first payment.
        print(DBOS.fork_workflow("w", 3).get_result())
    case _:
        # Messages to a workflow queue up: there is no single answer that is consumed.
        stop_unclaimed()
DBOS.destroy()
