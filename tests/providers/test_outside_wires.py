"""Cases that people outside reported, and facts of the original's own tests, tried on the wires (``tests/cases``)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.fault_server import FaultServer, Received, Reply

from hermes_worker.agent.prompt.pipeline import build_messages
from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.errors import ModelCallError
from hermes_worker.core.messages import (
    THINKER_FIELD,
    Message,
    ModelReply,
    ModelRequest,
    Role,
    ToolRequest,
    Usage,
    build_assistant_body,
    build_tool_body,
    build_user_body,
)
from hermes_worker.core.recovery import reply_policy as empty
from hermes_worker.core.recovery import retry
from hermes_worker.core.recovery.classify import classify_translated
from hermes_worker.core.recovery.reasoning_tags import ThinkScrubber, has_visible_text, strip_think_blocks
from hermes_worker.core.recovery_state import ReplyCounters
from hermes_worker.models.catalog import find_wire_needs
from hermes_worker.models.endpoint import Endpoint
from hermes_worker.models.prices import is_priced
from hermes_worker.models.wires import chat_reply
from hermes_worker.models.wires.conversions import anthropic
from hermes_worker.models.wires.openai_chat import Dialect, OpenAIChat, build_request_body

CASES = Path(__file__).parent.parent / "cases"
REPORTS = json.loads((CASES / "reports.json").read_text())


def _reports(kind: str) -> list[Any]:
    return [pytest.param(case, id=case["id"]) for case in REPORTS if case["kind"] == kind]


def _facts(area: str) -> list[Any]:
    cases = json.loads((CASES / "original" / f"{area}.json").read_text())["cases"]
    return [pytest.param(case["input"], case["expected"], id=case["id"]) for case in cases]


# ------------------------------------------------------------------------------------------------------------- streams


def ask(server: FaultServer) -> ModelReply:
    chat = OpenAIChat(Endpoint(base_url=server.base_url, api_key="sk-0123456789abcdef"))
    request = ModelRequest(model="m", messages=(build_user_body("hello"),))
    return chat.ask(request, on_delta=lambda _: None, abort=AbortSignal())


def streamed(text: str) -> ModelReply:
    """The reply to which a server's stream of exactly these bytes leads."""

    def answer(_: Received, reply: Reply) -> None:
        reply.head()
        reply.piece(text.encode())
        reply.end()

    with FaultServer(answer) as server:
        return ask(server)


@pytest.mark.parametrize("case", _reports("sse"))
def test_a_reported_stream_is_read_right(case: Mapping[str, Any]) -> None:
    reply = streamed(case["input"])

    if isinstance(case["right"], list):
        calls = [[call.name, json.loads(call.arguments)] for call in reply.tool_requests]
        assert calls == case["right"]
        return
    assert_is_no_answer(reply)


def assert_is_no_answer(reply: ModelReply) -> None:
    """The reply is asked for again, and when that does not help, the user is told what the server lacks."""
    counters, around = ReplyCounters(), empty.ReplyContext()
    for _ in range(10):
        verdict = empty.judge_reply(empty.read_reply_facts(reply), counters, around)
        if not isinstance(verdict, empty.AskAgain):
            break
        counters = verdict.counters
    assert isinstance(verdict, empty.FinishPartial)
    assert not verdict.text
    assert "tool" in verdict.note and "parser" in verdict.note


# -------------------------------------------------------------------------------------------------------------- errors


def failed(status: int, body: object, **fields: Any) -> ModelCallError:
    with FaultServer(lambda _, reply: reply.document(status, body)) as server, pytest.raises(ModelCallError) as raised:
        ask(server)
    return raised.value


SITUATION = retry.Situation(remedies=frozenset({retry.Remedy.CAP_OUTPUT, retry.Remedy.COMPACT}))


def decisions(error: ModelCallError, situation: retry.Situation = SITUATION) -> Iterator[retry.Decision]:
    """What is done about the same failure again and again, until the run ends."""
    classification, history = classify_translated(error), retry.AttemptHistory()
    while True:
        decision = retry.decide_remedy(classification, history, situation)
        yield decision
        if isinstance(decision, retry.GiveUp):
            return
        history = retry.advance_history(history, decision, classification)


def _told(error: ModelCallError) -> str:
    *_, last = decisions(error)
    assert isinstance(last, retry.GiveUp)
    return retry.explain_give_up(last, classify_translated(error))


@pytest.mark.parametrize("case", _reports("http"))
def test_a_reported_error_is_understood_and_told(case: Mapping[str, Any]) -> None:
    error = failed(case["input"]["status"], case["input"]["body"])

    first = next(decisions(error))
    assert not re.search(r"Error code: \d", _told(error))
    match case["right"]:
        case {"the run's error contains": words}:
            assert words in _told(error)
        case str(right) if "the key is named" in right:
            assert "API key not valid. Please pass a valid API key." in _told(error)
            assert "check the key" in _told(error)
            assert error.kind == "auth"
        case str(right) if "output cap of at most" in right:
            assert isinstance(first, retry.CapOutput)
            assert first.tokens <= 20_733
            assert sum(isinstance(each, retry.CapOutput) for each in decisions(error)) == 1
        case "asked again, as above":
            assert isinstance(first, retry.Wait)
        case right:
            pytest.fail(f"no test knows how to try {right!r}")


# ------------------------------------------------------------------------------------------------------- history, units


@pytest.mark.parametrize("case", _reports("history"))
def test_a_reported_history_is_sent_right(case: Mapping[str, Any]) -> None:
    stranger = ModelReply(
        text="",
        reasoning="what another model thought",
        tool_requests=(ToolRequest(id="call_1", name="f", arguments="{}"),),
        row_fields={THINKER_FIELD: "another"},
    )
    rows = [
        Message(seq=1, role=Role.USER, body=build_user_body("go")),
        Message(seq=2, role=Role.ASSISTANT, body=build_assistant_body(stranger)),
        Message(seq=3, role=Role.TOOL, body=build_tool_body("call_1", "done")),
    ]
    provider = case["input"]["provider"]
    sent = build_messages(rows, find_wire_needs(provider=provider, model="deepseek-chat", host="api.deepseek.com"))

    row = json.loads(sent[1])
    assert {name: row[name] for name in case["right"]} == case["right"]


@pytest.mark.parametrize("case", _reports("unit"))
def test_an_id_that_is_made_up_fits_mistral(case: Mapping[str, Any]) -> None:
    assert case["input"]["call"] == "chat_reply.generated_id('read_file', '{}', 0)"
    made = chat_reply.make_call_id("read_file", "{}", 0)
    called = ToolRequest(id=made, name="read_file", arguments="{}")
    rows = (
        build_user_body("go"),
        build_assistant_body(ModelReply(text="", tool_requests=(called,))),
        build_tool_body(made, "done"),
    )
    endpoint = Endpoint(base_url="http://127.0.0.1:1/v1")
    body = json.loads(build_request_body(ModelRequest(model="mistral-large", messages=rows), endpoint, Dialect()))

    [call] = body["messages"][1]["tool_calls"]
    assert re.fullmatch(r"[a-zA-Z0-9]{9}", call["id"])
    assert body["messages"][2]["tool_call_id"] == call["id"]


# ------------------------------------------------------------------------------------------------------------- thinking


def scrubbed(pieces: list[str]) -> str:
    scrubber = ThinkScrubber()
    return "".join([*(scrubber.feed(piece) for piece in pieces), scrubber.flush()])


@pytest.mark.parametrize(("given", "expected"), _facts("thinking"))
def test_no_thought_is_shown(given: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    whole = "".join(given["deltas"])

    assert scrubbed(given["deltas"]) == expected["shown"]
    assert scrubbed(list(whole)) == expected["shown"]
    assert strip_think_blocks(whole).strip() == expected["shown"].strip()
    assert has_visible_text(whole) is bool(expected["shown"].strip())


# --------------------------------------------------------------------------------------------------------------- prices


@pytest.mark.parametrize(("given", "expected"), _facts("usage-prices"))
def test_tokens_and_prices_are_known(given: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    if "priced" in expected:
        assert is_priced(given["provider"], given["model"]) is expected["priced"]
        return
    usage = (
        anthropic.parse_usage(given["anthropic"]) if "anthropic" in given else chat_reply.parse_usage(given["usage"])
    )
    assert replace(usage, reasoning=0) == Usage(**expected)
