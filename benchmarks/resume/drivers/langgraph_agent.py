"""LangGraph: a graph with a SQLite checkpointer and ``durability="sync"``, its documented strongest setting.

https://docs.langchain.com/oss/python/langgraph/durable-execution: side effects stand in nodes of their own, and the key
of a payment is the id of the thread and of the call, which the checkpoint holds.
"""

from __future__ import annotations

import operator
import sqlite3
import sys
from pathlib import Path
from typing import Annotated, Any, TypedDict

from agent import FIRST, ask_model, pay, stop_unclaimed
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt


class State(TypedDict):
    messages: Annotated[list[Any], operator.add]


def call_model(state: State) -> dict[str, Any]:
    return {"messages": [ask_model(state["messages"])]}


def call_tool(state: State) -> dict[str, Any]:
    call = state["messages"][-1]["tool_calls"][0]
    return {"messages": [pay(call, f"{THREAD}.{call['id']}")]}


def call_tool_if_allowed(state: State) -> dict[str, Any]:
    if interrupt("may I pay?") != "yes":
        return {"messages": []}
    return {"messages": [pay(state["messages"][-1]["tool_calls"][0], "" if UNKEYED else f"{THREAD}.gate")]}


def route(state: State) -> str:
    return "tool" if state["messages"][-1].get("tool_calls") else END


verb, directory = sys.argv[1], Path(sys.argv[2])
THREAD, UNKEYED = "t", True  # an approval is what must be consumed once, so no key helps at the sink
builder = StateGraph(State)
builder.add_node("model", call_model)
builder.add_node("tool", call_tool_if_allowed if verb in ("ask", "allow") else call_tool)
builder.add_edge(START, "model")
builder.add_conditional_edges("model", route, {"tool": "tool", END: END})
builder.add_edge("tool", "model")
connection = sqlite3.connect(directory / "state.db", check_same_thread=False, timeout=60)
graph = builder.compile(checkpointer=SqliteSaver(connection))
config: dict[str, Any] = {"configurable": {"thread_id": THREAD}}
match verb:
    case "start" | "ask":
        said = graph.invoke({"messages": [FIRST]}, config, durability="sync")
    case "resume":
        has_begun = bool(graph.get_state(config).created_at)
        said = graph.invoke(None if has_begun else {"messages": [FIRST]}, config, durability="sync")
    case "fork":
        past = [one for one in graph.get_state_history(config) if len(one.values.get("messages", ())) == 3]
        said = graph.invoke(None, past[-1].config, durability="sync")
    case "allow":
        said = graph.invoke(Command(resume="yes"), config, durability="sync")
    case _:
        stop_unclaimed()
print(said["messages"][-1].get("content"))
