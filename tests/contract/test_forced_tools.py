"""Calls that a client forces, over each wire: what the provider is asked, and what becomes of a reply without one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from dialects import Said, ToolUse
from strict_server import StrictServer, status
from support.turns import Turns
from test_ladder import chat, finished  # noqa: F401  (fixture)
from test_wires import REQUEST, Wire, ask, provider, server, wire  # noqa: F401  (fixtures)

from hermes_worker.core.run import RunStatus
from hermes_worker.core.structured_output import REPAIRS_MAX

NAMED: Mapping[str, Any] = {
    "chat": {"type": "function", "function": {"name": "todo"}},
    "responses": {"type": "function", "name": "todo"},
    "messages": {"type": "tool", "name": "todo"},
    "gemini": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["todo"]}},
    "converse": {"tool": {"name": "todo"}},
}
ANY: Mapping[str, Any] = {
    "chat": "required",
    "responses": "required",
    "messages": {"type": "any"},
    "gemini": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["terminal", "todo"]}},
    "converse": {"any": {}},
}
CALL = Said(calls=(ToolUse(id="call_1", name="todo"),))


def sent_choice(document: Mapping[str, Any], wire_name: str) -> Any:
    if wire_name == "gemini":
        return document.get("toolConfig")
    return document["toolConfig"].get("toolChoice") if wire_name == "converse" else document.get("tool_choice")


@pytest.mark.parametrize(("forced", "expected"), [(("todo",), NAMED), (("terminal", "todo"), ANY)])
def test_the_force_reaches_the_provider(
    wire: Wire,  # noqa: F811
    server: StrictServer,  # noqa: F811
    forced: Sequence[str],
    expected: Mapping[str, Any],
) -> None:
    server.says(CALL)
    request = replace(REQUEST, forced_tools=forced, reasoning_effort="high")
    reply = ask(provider(wire, server), request)
    assert [call.name for call in reply.tool_requests] == ["todo"]
    assert server.refusals == []
    assert sent_choice(server.accepted[0], wire.name) == expected[wire.name]
    ask(provider(wire, server), replace(request, forced_tools=()))
    assert sent_choice(server.accepted[1], wire.name) == ("auto" if wire.name == "responses" else None)


def test_a_model_that_cannot_be_forced_is_asked_without(wire: Wire, server: StrictServer) -> None:  # noqa: F811
    server.says(CALL)
    said = "tool_choice (toolChoice, tool_config) is not supported by this model"
    server.faults(status(400, said))
    asked = provider(wire, server)
    for _ in range(2):
        assert ask(asked, replace(REQUEST, forced_tools=("todo",))).tool_requests
    choices = [sent_choice(document, wire.name) for document in server.accepted]
    free = "auto" if wire.name == "responses" else None
    assert choices == [NAMED[wire.name], free, free]


# --- the loop --------------------------------------------------------------------------------------------------------


def test_a_forced_call_frees_the_model(chat: Turns, server: StrictServer) -> None:  # noqa: F811
    server.says(CALL, Said(text="done"))
    view = finished(chat, server, forced_tools=("todo",))
    assert (view.status, view.output) == (RunStatus.COMPLETED, "done")
    assert [sent_choice(document, "chat") for document in server.accepted] == [NAMED["chat"], None]


def test_a_call_of_another_tool_leaves_the_force(chat: Turns, server: StrictServer) -> None:  # noqa: F811
    server.says(CALL, Said(text="I would rather talk"), Said(text="and talk"), Said(text="more"))
    view = finished(chat, server, forced_tools=("get_weather", "get_time"))
    assert (view.status, view.exit_reason) == (RunStatus.FAILED, "output_invalid")
    assert (
        view.error
        == f"The model called none of get_weather, get_time, after {REPAIRS_MAX} corrections. The last answer was: more"
    )
    assert [sent_choice(document, "chat") for document in server.accepted] == ["required"] * 4
    assert "Do not answer in text. Call get_weather or get_time" in json.dumps(server.accepted[2])


def test_the_summary_at_the_end_of_the_budget_is_free(chat: Turns, server: StrictServer) -> None:  # noqa: F811
    server.says(Said(text="no"), Said(text="Out of steps."))
    view = finished(chat, server, forced_tools=("todo",), iterations_max=1)
    assert view.exit_reason == "max_iterations_reached"
    assert [sent_choice(document, "chat") for document in server.accepted] == [NAMED["chat"], None]
