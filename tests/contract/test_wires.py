"""What every wire does, against one server that is as strict as the real ones and breaks in every way we know.

Each test runs over all wires unless it says otherwise. The faults of a whole run are in ``test_ladder.py``.
"""

from __future__ import annotations

import codecs
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from email.utils import formatdate
from typing import Any

import anthropic
import openai
import pytest
from dialects import HELLO, RULES, Said, ToolUse, WireRules
from strict_server import (
    Fault,
    StrictServer,
    body,
    cut_after,
    cut_at_byte,
    hang_up,
    instead_of_event,
    reset,
    silence,
    status,
)
from support.samples import take_turns
from vendor_rules import CONVERSE_MODEL, VENDOR_RULES

from hermes_worker.agent.prompt.cache_markers import CacheLayout, add_cache_markers
from hermes_worker.agent.prompt.pipeline import WireNeeds, build_messages, import_history
from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.errors import FailureKind, ModelCallError
from hermes_worker.core.messages import (
    Delta,
    Message,
    ModelReply,
    ModelRequest,
    Role,
    ToolRequest,
    Usage,
    build_assistant_body,
    build_tool_body,
    build_user_body,
    dump_canonical_json,
)
from hermes_worker.core.recovery.classify import classify_translated
from hermes_worker.models.base import Abort, OnDelta, Provider
from hermes_worker.models.endpoint import Endpoint
from hermes_worker.models.exchange import STALE_FACTOR
from hermes_worker.models.wires.anthropic_messages import AnthropicMessages
from hermes_worker.models.wires.bedrock_converse import BedrockConverse
from hermes_worker.models.wires.gemini_generate import GeminiGenerate
from hermes_worker.models.wires.openai_chat import OpenAIChat
from hermes_worker.models.wires.openai_responses import OpenAIResponses
from hermes_worker.models.wires.plain_client import RefusedRequest

KEY = "sk-test-0123456789abcdefghij"
SYSTEM = dump_canonical_json({"role": "system", "content": "You are strict."})
TOOLS = tuple(
    dump_canonical_json(
        {
            "type": "function",
            "function": {
                "name": name,
                "description": f"does {name}",
                "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
            },
        }
    )
    for name in ("terminal", "todo")
)
REQUEST = ModelRequest(model="strict", messages=(SYSTEM, build_user_body("hello")), tools=TOOLS, session_id="s")
ALL_RULES = {**RULES, **VENDOR_RULES}
PATIENT = replace(REQUEST, model="qwen3-strict")
"""Of a model that may think for minutes: its reply is waited for, whatever the provider's usual patience."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """One of our wires and the rules of the server's side of it."""

    name: str
    build: Callable[[Endpoint], Provider]
    needs: WireNeeds
    error: type[Exception]
    """What its SDK raises for a refusal."""
    model: str = "strict"
    """What is asked for: some wires treat models of one family in their own way."""

    @property
    def rules(self) -> WireRules:
        return ALL_RULES[self.name]


WIRES = (
    Wire(name="chat", build=OpenAIChat, needs=WireNeeds(), error=openai.APIStatusError),
    Wire(
        name="responses",
        build=OpenAIResponses,
        needs=WireNeeds(keeps_response_items=True),
        error=openai.APIStatusError,
    ),
    Wire(
        name="messages",
        build=AnthropicMessages,
        needs=WireNeeds(keeps_reasoning_details=True, keeps_anthropic_blocks=True),
        error=anthropic.APIStatusError,
    ),
    Wire(
        name="converse",
        build=BedrockConverse,
        needs=WireNeeds(keeps_reasoning_details=True, keeps_anthropic_blocks=True),
        error=RefusedRequest,
        model=CONVERSE_MODEL,
    ),
    Wire(
        name="gemini",
        build=GeminiGenerate,
        needs=WireNeeds(keeps_thought_signatures=True),
        error=RefusedRequest,
        model="gemini-3-strict",
    ),
)
EVENTS = tuple(wire.name for wire in WIRES if wire.name != "converse")
"""Wires whose streams are server-sent events."""
ARGUMENTS_AS_TEXT = tuple(wire.name for wire in WIRES if wire.name != "gemini")
"""Wires over which the arguments of a call come as text, which may be no JSON."""


@pytest.fixture(params=WIRES, ids=lambda wire: wire.name)
def wire(request: pytest.FixtureRequest) -> Wire:
    found: Wire = request.param
    return found


def _name(value: Any) -> str:
    """How a wire or a case is named in the id of a test."""
    match value:
        case Wire(name=name):
            return name
        case Case(status=code, message=message):
            return f"{code} {message[:30]}"
        case _:
            return str(value)[:30]


def over(*names: str) -> pytest.MarkDecorator:
    """Not all the wires, but these."""
    return pytest.mark.parametrize("wire", [wire for wire in WIRES if wire.name in names], ids=names)


@pytest.fixture
def server() -> Iterator[StrictServer]:
    with StrictServer(ALL_RULES) as running:
        yield running


class _Asking:
    """A provider that is asked for the wire's own model where a test names none."""

    def __init__(self, asked: Provider, model: str) -> None:
        self._asked = asked
        self._model = model

    def ask(self, request: ModelRequest, *, on_delta: OnDelta, abort: Abort) -> ModelReply:
        if request.model == "strict":
            request = replace(request, model=self._model)
        return self._asked.ask(request, on_delta=on_delta, abort=abort)


def provider(wire: Wire, server: StrictServer, **fields: Any) -> Provider:
    return _Asking(wire.build(Endpoint(base_url=server.base_url, api_key=KEY, **fields)), wire.model)


def ask(asked: Provider, request: ModelRequest = REQUEST, deltas: list[Delta] | None = None) -> ModelReply:
    return asked.ask(request, on_delta=(deltas if deltas is not None else []).append, abort=AbortSignal())


def failure(asked: Provider, request: ModelRequest = REQUEST) -> ModelCallError:
    with pytest.raises(ModelCallError) as raised:
        ask(asked, request)
    assert KEY not in str(raised.value)
    return raised.value


# -------------------------------------------------------------------------------------------------------------- replies


REPLIES = (
    HELLO,
    Said(calls=(ToolUse(id="call_1", name="terminal", arguments='{"command": "ls"}'),)),
    Said(
        text="two at once",
        calls=(
            ToolUse(id="call_1", name="terminal", arguments='{"command": "echo \\u00e9"}'),
            ToolUse(id="call_2", name="todo"),
        ),
    ),
    Said(thinking="let me see, this needs thought", text="an answer"),
    Said(thinking="first I look", text="looking", calls=(ToolUse(id="call_9", name="todo"),)),
    Said(text="umlauts äöü, 𝄞 and a line\nbreak, " + "long " * 200),
)


@pytest.mark.parametrize("said", REPLIES, ids=range(len(REPLIES)))
@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_reply_means_the_same_on_every_wire(wire: Wire, server: StrictServer, said: Said, is_streamed: bool) -> None:
    server.says(said)
    if not is_streamed:
        server.faults(lambda s, rules, _, reply: reply.document(200, rules.document(s.next_reply())))
    deltas: list[Delta] = []

    reply = ask(provider(wire, server), deltas=deltas)

    assert reply.text.strip() == said.text.strip()
    assert [(r.id, r.name, json.loads(r.arguments)) for r in reply.tool_requests] == [
        (call.id, call.name, json.loads(call.arguments)) for call in said.calls
    ]
    assert reply.finish_reason == ("tool_calls" if said.calls else "stop")
    assert reply.usage == Usage(input=12, output=5, cache_read=8)
    assert reply.model == (CONVERSE_MODEL if wire.name == "converse" else "strict")
    assert "".join(delta.text for delta in deltas).strip() == said.text.strip()
    assert [delta.tool_name for delta in deltas if delta.tool_name] == [call.name for call in said.calls]
    if is_streamed:
        assert (reply.reasoning or "") == said.thinking
        assert "".join(delta.reasoning for delta in deltas) == said.thinking
    assert server.refusals == []


def test_a_reply_that_ran_into_its_limit_says_so(wire: Wire, server: StrictServer) -> None:
    server.says(replace(HELLO, finish=wire.rules.length))

    assert ask(provider(wire, server)).finish_reason == ("incomplete" if wire.name == "responses" else "length")


CUT_ARGUMENTS = '{"todos": ["half of a'


@over(*ARGUMENTS_AS_TEXT)
@pytest.mark.parametrize("is_told", [True, False])
def test_arguments_that_end_in_the_middle_are_cut_whatever_the_server_calls_it(
    wire: Wire, server: StrictServer, is_told: bool
) -> None:
    whole = ToolUse(id="call_1", name="todo", arguments='{"todos": []}')
    cut = ToolUse(id="call_2", name="todo", arguments=CUT_ARGUMENTS)
    server.says(Said(calls=(whole, cut), finish=wire.rules.length if is_told else ""))

    reply = ask(provider(wire, server))

    assert reply.finish_reason == "length"
    assert [request.arguments.replace(" ", "") for request in reply.tool_requests] == [
        '{"todos":[]}',
        CUT_ARGUMENTS.replace(" ", ""),
    ]


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_refusal_is_blocked_content_on_every_wire(wire: Wire, server: StrictServer, is_streamed: bool) -> None:
    server.says(Said(refusal="I cannot help with that."))
    if not is_streamed:
        server.faults(lambda s, rules, _, reply: reply.document(200, rules.document(s.next_reply())))
    deltas: list[Delta] = []

    reply = ask(provider(wire, server), deltas=deltas)

    assert (reply.text, reply.finish_reason) == ("I cannot help with that.", "content_filter")
    assert "".join(delta.text for delta in deltas) == reply.text


@over(*EVENTS)
@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_byte_order_mark_in_front_is_no_part_of_the_reply(
    wire: Wire, server: StrictServer, is_streamed: bool
) -> None:
    events = b"".join(map(wire.rules.encode, wire.rules.events(HELLO)))
    whole = json.dumps(wire.rules.document(HELLO)).encode()
    content_type = "text/event-stream" if is_streamed else "application/json"
    server.faults(body(200, codecs.BOM_UTF8 + (events if is_streamed else whole), content_type))

    assert ask(provider(wire, server)).text == HELLO.text


@over("chat", "messages")
def test_calls_that_ran_into_the_limit_are_told_from_whole_ones(wire: Wire, server: StrictServer) -> None:
    """Responses marks the item itself as unfinished, and then there is no call at all."""
    cut = b'{"path": "a'
    position = 2 if wire.name == "chat" else 3
    piece: dict[str, Any] = {
        "choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": cut.decode()}}]}}]
    }
    if wire.name == "messages":
        delta = {"type": "input_json_delta", "partial_json": cut.decode()}
        piece = {"type": "content_block_delta", "index": 0, "delta": delta}
    server.says(Said(calls=(ToolUse(id="call_1", name="todo", arguments="{}"),), finish=wire.rules.length))
    server.faults(instead_of_event(position, b"data: " + json.dumps(piece).encode() + b"\n\n"))

    reply = ask(provider(wire, server))

    assert (reply.finish_reason, reply.tool_requests[0].arguments) == ("length", cut.decode())


# ----------------------------------------------------------------------------------------------- conversations accepted


def rows(*bodies: str) -> list[Message]:
    return [
        Message(seq=seq, role=Role(json.loads(body)["role"]), body=body) for seq, body in enumerate(bodies, start=1)
    ]


def conversation(wire: Wire, *bodies: str) -> ModelRequest:
    return replace(REQUEST, messages=[SYSTEM, *build_messages(rows(*bodies), wire.needs)])


@pytest.mark.parametrize("has_marks", [False, True])
def test_a_long_turn_with_thinking_and_tools_is_accepted_step_by_step(
    wire: Wire, server: StrictServer, has_marks: bool
) -> None:
    """Signed and sealed reasoning goes back as it came; the server checks every signature."""
    transcript = [build_user_body("look around")]
    asked = provider(wire, server)
    before = b""
    for step in range(6):
        calls = tuple(
            ToolUse(id=f"call_{step}_{n}", name="terminal", arguments=f'{{"command": "step {step}.{n}"}}')
            for n in range(1 + step % 3)
        )
        server.says(Said(thinking=f"thought {step}", text=f"text {step}" if step % 2 else "", calls=calls))
        request = conversation(wire, *transcript)
        if has_marks and wire.name in ("messages", "converse"):
            request = replace(request, messages=add_cache_markers(request.messages, CacheLayout.NATIVE))
        reply = ask(asked, request)
        transcript.append(build_assistant_body(reply))
        transcript += [build_tool_body(r.id, f"result of {r.id}") for r in reply.tool_requests]
        body_now = server.requests[-1].body
        if wire.name not in ("messages", "converse") or not has_marks:  # marks move along with the conversation
            assert body_now.startswith(before)
        before = body_now.removesuffix(b"]}")
    server.says(HELLO)

    assert ask(asked, conversation(wire, *transcript)).text == HELLO.text
    assert server.refusals == []


BROKEN_HISTORIES: dict[str, list[dict[str, Any]]] = {
    "orphan result": [
        {"role": "user", "content": "q"},
        {"role": "tool", "tool_call_id": "gone", "content": "r"},
        {"role": "assistant", "content": "a"},
    ],
    "unanswered call": [
        {"role": "user", "content": "q"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "t", "arguments": "{}"}}],
        },
        {"role": "user", "content": "and now?"},
        {"role": "assistant", "content": "a"},
    ],
    "half answered": [
        {"role": "user", "content": "q"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "t", "arguments": "{}"}},
                {"id": "c2", "type": "function", "function": {"name": "t", "arguments": '{"x":1,}'}},
            ],
        },
        {"role": "tool", "tool_call_id": "c2", "content": "r"},
    ],
    "double result": [
        {"role": "user", "content": "q"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "t", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "r"},
        {"role": "tool", "tool_call_id": "c1", "content": "r again"},
    ],
    "everybody twice": [
        {"role": "user", "content": "one"},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": "three"},
        {"role": "assistant", "content": "four"},
    ],
    "private fields": [
        {"role": "user", "content": "q", "timestamp": 1, "_private": True},
        {"role": "assistant", "content": "a", "reasoning": "r", "finish_reason": "stop", "codex_message_items": [1]},
    ],
    "unreadable arguments": [
        {"role": "user", "content": "q"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "t", "arguments": "{"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "r"},
    ],
    "nameless call without an id": [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": " ", "arguments": {"a": 1}}}]},
    ],
    "ids no wire takes": [
        {"role": "user", "content": "q"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "a.b:c|d", "type": "function", "function": {"name": "t", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "a.b:c|d", "content": "r"},
    ],
    "thinking only": [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "reasoning": "only thoughts"},
        {"role": "user", "content": "hello?"},
        {"role": "assistant", "content": "a"},
    ],
    "begins with the assistant": [{"role": "assistant", "content": "welcome"}],
    "unknown roles": [{"role": "critic", "content": "x"}, {"role": "user", "content": "q"}, {"content": "y"}],
    "images": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "what is this?"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
            ],
        },
        {"role": "assistant", "content": "a cat"},
    ],
    "empty": [],
}


@pytest.mark.parametrize("name", BROKEN_HISTORIES)
def test_a_history_from_outside_is_put_right_before_it_is_sent(wire: Wire, server: StrictServer, name: str) -> None:
    imported = import_history(BROKEN_HISTORIES[name])

    ask(provider(wire, server), conversation(wire, *imported, build_user_body("go on")))

    assert server.refusals == []


@pytest.mark.parametrize(
    ("wire", "name"),
    take_turns(WIRES, sorted(set(BROKEN_HISTORIES) - {"private fields", "nameless call without an id"})),
    ids=_name,
)
def test_a_stored_history_that_is_broken_is_put_right_for_every_request(
    wire: Wire, server: StrictServer, name: str
) -> None:
    known = [dump_canonical_json(row) for row in BROKEN_HISTORIES[name] if row.get("role") in set(Role)]

    ask(provider(wire, server), conversation(wire, *known, build_user_body("go on")))

    assert server.refusals == []


GOOD: tuple[dict[str, Any], ...] = (
    {"role": "user", "content": "q"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "t", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "r"},
)


@pytest.mark.parametrize(
    "broken",
    [
        GOOD[:2],
        (GOOD[0], GOOD[2]),
        (GOOD[0], GOOD[1], {**GOOD[2], "tool_call_id": "c2"}),
        (*GOOD, {"role": "assistant", "content": "a", "reasoning": "hidden"}),
        (GOOD[0], GOOD[0]),
    ],
    ids=["unanswered", "orphan", "wrong id", "unknown field", "twice"],
)
def test_the_server_really_is_strict(server: StrictServer, broken: tuple[dict[str, Any], ...]) -> None:
    request = replace(REQUEST, messages=[SYSTEM, *map(dump_canonical_json, broken)])

    assert failure(provider(WIRES[0], server), request).status == 400
    assert server.refusals


# ----------------------------------------------------------------------------------------------------- errors by status


@dataclass(frozen=True, slots=True)
class Case:
    status: int
    message: str
    kind: FailureKind
    code: str | None = None
    retries: bool | None = None
    """Whether it may be tried again; ``None`` where that is not the point."""


K = FailureKind
CASES = (
    Case(400, "Bad request, which is a longer sentence than thirty characters", K.FORMAT_ERROR, None, False),
    Case(400, "Invalid value for 'messages': expected an array of objects", K.FORMAT_ERROR),
    Case(400, "This model's maximum context length is 8192 tokens. However, you requested 9000", K.CONTEXT_OVERFLOW),
    Case(400, "prompt is too long: 210000 tokens > 200000 maximum", K.CONTEXT_OVERFLOW),
    Case(400, "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000", K.CONTEXT_OVERFLOW),
    Case(400, "Your input exceeds the context window of this model", K.CONTEXT_OVERFLOW, "context_length_exceeded"),
    Case(400, "max_tokens: 200000 > 64000, which is the maximum allowed number of output tokens", K.CONTEXT_OVERFLOW),
    Case(400, "image exceeds 5 MB maximum: 6000000 bytes > 5242880 bytes", K.IMAGE_TOO_LARGE),
    Case(400, "messages.1.content.0: Invalid `signature` in `thinking` block", K.THINKING_SIGNATURE, None, True),
    Case(400, "The model `nope` does not exist or you do not have access to it", K.MODEL_NOT_FOUND, "model_not_found"),
    Case(400, "Your credit balance is too low to access the API: insufficient credits", K.BILLING),
    Case(400, "The encrypted content for item rs_1 could not be verified", K.INVALID_ENCRYPTED_CONTENT),
    Case(
        400, "This request was flagged: content_filter triggered by your prompt", K.CONTENT_POLICY_BLOCKED, None, False
    ),
    Case(401, "Incorrect API key provided", K.AUTH, None, False),
    Case(401, "invalid x-api-key", K.AUTH, "authentication_error"),
    Case(402, "Payment Required", K.BILLING, None, False),
    Case(402, "Usage limit reached, try again in 5 minutes", K.RATE_LIMIT, None, True),
    Case(403, "Your request was blocked from this region", K.AUTH, None, False),
    Case(403, "Key limit exceeded", K.BILLING),
    Case(404, "The model `gpt-9` does not exist", K.MODEL_NOT_FOUND, "model_not_found", False),
    Case(404, "model: claude-9 not found: model_not_found", K.MODEL_NOT_FOUND),
    Case(404, "Not Found", K.UNKNOWN, None, False),
    Case(404, "model 'qwen9' not found, try pulling it first", K.MODEL_NOT_FOUND),
    Case(400, "The response was filtered due to the prompt triggering ...", K.CONTENT_POLICY_BLOCKED, "content_filter"),
    Case(400, "Your messages came to a lot of text", K.CONTEXT_OVERFLOW, "context_length_exceeded"),
    Case(429, "You have run out for now, see your plan", K.BILLING, "insufficient_quota", False),
    Case(422, "Input validation error: `inputs` must have less than 4096 tokens. Given: 5000", K.CONTEXT_OVERFLOW),
    Case(408, "Request timed out", K.TIMEOUT, None, True),
    Case(409, "conflict of some kind", K.SERVER_ERROR, None, True),
    Case(425, "too early", K.SERVER_ERROR, None, True),
    Case(413, "Request exceeds the maximum size", K.PAYLOAD_TOO_LARGE),
    Case(413, "request_too_large", K.PAYLOAD_TOO_LARGE, "request_too_large"),
    Case(418, "I am a teapot", K.FORMAT_ERROR, None, False),
    Case(422, "could not process this entity", K.FORMAT_ERROR, None, False),
    Case(429, "Rate limit reached for requests", K.RATE_LIMIT, "rate_limit_exceeded", True),
    Case(429, "This request would exceed your organization's rate limit", K.RATE_LIMIT, "rate_limit_error"),
    Case(429, "The engine is currently overloaded, please try again later", K.OVERLOADED, None, True),
    Case(429, "Extra usage is required for long context requests", K.LONG_CONTEXT_TIER),
    Case(500, "The server had an error while processing your request", K.SERVER_ERROR, None, True),
    Case(500, "Internal server error", K.SERVER_ERROR, "api_error"),
    Case(502, "Bad gateway", K.SERVER_ERROR, None, True),
    Case(503, "Service unavailable", K.OVERLOADED, None, True),
    Case(504, "Gateway timeout", K.SERVER_ERROR, None, True),
    Case(529, "Overloaded", K.OVERLOADED, "overloaded_error", True),
)


@pytest.mark.parametrize(("wire", "case"), take_turns(WIRES, CASES), ids=_name)
def test_refusals_of_the_real_sdk_are_classified(wire: Wire, server: StrictServer, case: Case) -> None:
    server.faults(*[status(case.status, case.message, case.code)] * 8)

    error = failure(provider(wire, server))

    assert isinstance(error.__cause__, wire.error), "the verdict must come from the SDK's own exception"
    assert (error.kind, error.status) == (case.kind, case.status)
    assert error.message.startswith(f"HTTP {case.status} from {server.base_url}")
    assert case.message[:40] in error.message
    if case.retries is not None:
        assert classify_translated(error).is_retryable is case.retries


def test_there_are_enough_cases_for_each_sdk() -> None:
    assert len(CASES) >= 30


@pytest.mark.parametrize("code", [429, 503, 529])
def test_a_wait_in_seconds_is_passed_on(wire: Wire, server: StrictServer, code: int) -> None:
    server.faults(status(code, "slow down", None, "Retry-After: 17"))

    assert failure(provider(wire, server)).retry_after_s == 17


def test_a_wait_until_a_date_is_passed_on(wire: Wire, server: StrictServer) -> None:
    server.faults(status(429, "slow down", None, f"Retry-After: {formatdate(time.time() + 60, usegmt=True)}"))

    wait_s = failure(provider(wire, server)).retry_after_s

    assert wait_s is not None
    assert 50 < wait_s <= 61


@pytest.mark.parametrize(("told", "expected"), [(("2500", "90"), 2.5), (("soon", "90"), 90), (("1e99", "90"), 600)])
def test_a_wait_in_milliseconds_goes_before_one_in_seconds(
    wire: Wire, server: StrictServer, told: tuple[str, str], expected: float
) -> None:
    """Azure sends both, the seconds rounded up."""
    exact, usual = told
    server.faults(status(429, "slow down", None, f"retry-after-ms: {exact}", f"Retry-After: {usual}"))

    assert failure(provider(wire, server)).retry_after_s == expected


@pytest.mark.parametrize("value", ["-5", "soon", "nan", "1e99", "Wed, 99 Foo 2026", ""])
def test_a_wait_that_makes_no_sense_is_no_wait_or_a_bounded_one(wire: Wire, server: StrictServer, value: str) -> None:
    server.faults(status(429, "slow down", None, f"Retry-After: {value}"))

    wait_s = failure(provider(wire, server)).retry_after_s

    assert wait_s is None or 0 <= wait_s <= 600


def test_limits_are_passed_on_with_replies_and_with_refusals(wire: Wire, server: StrictServer) -> None:
    told = (
        "x-ratelimit-limit-requests: 60",
        "x-ratelimit-reset-requests: 1s",
        "anthropic-ratelimit-tokens-limit: 9000",
    )

    def with_limits(s: StrictServer, rules: WireRules, _: object, reply: Any) -> None:
        reply.document(200, rules.document(s.next_reply()), *told)

    server.faults(with_limits, status(429, "slow down", None, *told))
    asked = provider(wire, server)
    reply, error = ask(asked), failure(asked)

    assert reply.limits == error.limits
    assert reply.limits is not None
    assert (reply.limits.requests_per_min, reply.limits.tokens_per_min) == (60, 9000)


OVERFLOWS = (
    "This model's maximum context length is 128000 tokens. However, your messages resulted in 130000 tokens.",
    "prompt is too long: 210000 tokens > 200000 maximum",
    "Input is too long for requested model.",
    "The input token count (1050000) exceeds the maximum number of tokens allowed (1048576).",
    "Please reduce the length of the messages or completion.",
    "This endpoint's maximum context length is 32768 tokens. However, you requested about 40000 tokens",
    "the request exceeds the available context size. try increasing the context size or enable context shift",
    "Requested token count exceeds the model's maximum context length of 131072 tokens.",
    "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
    "Your input exceeds the context window of this model. Please adjust your input and try again.",
    "The prompt is longer than max_model_len is 4096",
    "context length exceeded",
)


@pytest.mark.parametrize(("wire", "said"), take_turns(WIRES, OVERFLOWS), ids=_name)
@pytest.mark.parametrize("code", [400, 500])
def test_overflows_are_recognised_however_they_are_put(wire: Wire, server: StrictServer, said: str, code: int) -> None:
    server.faults(*[status(code, said)] * 4)

    error = failure(provider(wire, server))

    assert error.kind is K.CONTEXT_OVERFLOW
    assert classify_translated(error).should_compress or classify_translated(error).is_output_cap


# ------------------------------------------------------------------------------------------------ errors of the network


NETWORK: dict[str, tuple[Fault, FailureKind]] = {
    "silence before the first byte": (silence, K.TIMEOUT),
    "hang-up before headers": (hang_up, K.TIMEOUT),
    "reset before headers": (reset, K.TIMEOUT),
    "empty body": (body(200, b""), K.TIMEOUT),
    "empty body as a stream": (body(200, b"", "text/event-stream"), K.TIMEOUT),
    "blank lines and no more": (body(200, b"\n\n\n\n"), K.TIMEOUT),
    "only comments": (body(200, b": keep-alive\n\n: keep-alive\n\n", "text/event-stream"), K.TIMEOUT),
    "comments for ever": (cut_after(0, "linger"), K.TIMEOUT),
    "a web page": (body(200, b"<!DOCTYPE html><html>login</html>", "text/html"), K.SERVER_ERROR),
    "plain text": (body(200, b"OK", "text/plain"), K.SERVER_ERROR),
    "a JSON list": (body(200, b"[]"), K.SERVER_ERROR),
    "an empty object": (body(200, b"{}"), K.SERVER_ERROR),
    "half a JSON object": (body(200, b'{"choices": [{"mess'), K.SERVER_ERROR),
    "JSON nested too deeply": (body(200, b'{"a":' + b"[" * 100_000), K.SERVER_ERROR),
    "bytes that are no text": (body(200, b"\xff\xfe\x00\x01"), K.SERVER_ERROR),
    "a 500 that is a web page": (body(500, b"<html>oops</html>", "text/html"), K.SERVER_ERROR),
    "a 502 without a body": (body(502, b""), K.SERVER_ERROR),
    "a 429 that is plain text": (body(429, b"Too Many Requests", "text/plain"), K.RATE_LIMIT),
    "a 401 with broken JSON": (body(401, b'{"error":'), K.AUTH),
}


SILENT = ("silence before the first byte", "comments for ever")


@pytest.mark.parametrize("name", NETWORK)
def test_trouble_on_the_way_is_classified_and_tried_again(wire: Wire, server: StrictServer, name: str) -> None:
    fault, kind = NETWORK[name]
    if wire.name == "converse" and "comments" in name:
        kind = K.SERVER_ERROR  # frames have no comments
    server.faults(fault)
    # Only silence has to be waited for. Whatever a busy machine needs to answer in time is not judged.
    asked = provider(wire, server, **({"read_timeout_s": 0.2} if name in SILENT else {}))

    error = failure(asked)

    assert error.kind is kind
    assert server.base_url in error.message
    assert ask(asked, PATIENT).text == HELLO.text, "the next call must not suffer"


@over(*EVENTS)
@pytest.mark.parametrize("ending", ["block", "linger"])
def test_silence_in_the_middle_keeps_what_was_shown(wire: Wire, server: StrictServer, ending: str) -> None:
    """Comments that keep a stream open are no more than silence: whoever makes the reply may be gone for long."""

    def stall(s: StrictServer, rules: WireRules, request: Any, reply: Any) -> None:
        cut_after(first_text(rules) + 1, ending)(s, rules, request, reply)

    server.faults(stall)

    reply = ask(provider(wire, server, read_timeout_s=1.0))

    assert (reply.text, reply.finish_reason, reply.was_cut_by_network) == (HELLO.text[:6], "length", True)


def test_a_reply_that_takes_its_time_is_waited_for_as_long_as_it_comes(wire: Wire, server: StrictServer) -> None:
    """Each event, and not the reply, has to come in time."""

    def dawdle(s: StrictServer, rules: WireRules, _: object, reply: Any) -> None:
        reply.head(200, rules.content_type)
        for event in rules.events(s.next_reply()):
            if wire.name in EVENTS:
                reply.piece(b": keep-alive\n\n")
            reply.closing.wait(0.25)
            reply.piece(rules.encode(event))
        reply.end()

    server.faults(dawdle)
    asked = provider(wire, server, read_timeout_s=1.0)

    assert ask(asked).text == HELLO.text
    assert len(wire.rules.events(HELLO)) * 0.25 > 1.0 * STALE_FACTOR


def first_text(rules: WireRules, said: Said = HELLO) -> int:
    """Position of the event that brings the first piece of text."""
    return next(n for n, event in enumerate(rules.events(said)) if said.text[:6] in json.dumps(event))


@pytest.mark.parametrize("ending", ["close", "end", "reset"])
def test_a_stream_cut_at_any_event_is_a_beginning_of_the_reply_or_no_reply(
    wire: Wire, server: StrictServer, ending: str
) -> None:
    """Text that was shown is kept, cut short; less than that is asked for again. Calls are whole or not there."""
    said = Said(
        thinking="think", text="some text to cut", calls=(ToolUse(id="call_1", name="todo", arguments='{"a": 1}'),)
    )
    server.says(said)
    asked = provider(wire, server)
    total = len(wire.rules.events(said))
    rest = {"chat": 3, "responses": 1, "messages": 2, "converse": 2, "gemini": 1}
    last_needed = total - rest[wire.name]
    """The event that says why the reply ended. What follows it is counts and politeness."""
    cuts = [(position, extra) for position in range(total) for extra in (0, 9)]
    server.faults(*(cut_after(position, ending, extra_bytes=extra) for position, extra in cuts))
    for position, _ in cuts:
        deltas: list[Delta] = []
        try:
            reply = ask(asked, deltas=deltas)
        except ModelCallError as error:
            # A reset may overtake the bytes before it, so how much was seen is the server's guess.
            assert error.kind in (K.TIMEOUT, K.SERVER_ERROR), (position, error)
            assert not any(delta.text for delta in deltas), (position, error)
            continue
        assert said.text.startswith(reply.text)
        if reply.was_cut_by_network:
            assert reply.text == "".join(delta.text for delta in deltas).strip()
            assert (reply.finish_reason, reply.tool_requests) == ("length", ())
        else:
            assert position > last_needed
            assert (reply.text, len(reply.tool_requests), reply.finish_reason) == (said.text, 1, "tool_calls")
    assert ask(asked).text == said.text
    assert server.refusals == []


def test_a_stream_cut_at_any_byte_is_a_beginning_of_the_reply_or_no_reply(wire: Wire, server: StrictServer) -> None:
    """Bytes drawn by lot, the same at every run; pieces that end in the middle of events, lines and characters."""
    said = Said(
        thinking="thïnk", text="söme text 🙂 to cut", calls=(ToolUse(id="call_1", name="todo", arguments='{"a": 1}'),)
    )
    server.says(said)
    asked = provider(wire, server)
    draw = random.Random(5)
    size = sum(len(wire.rules.encode(event)) for event in wire.rules.events(said))
    cuts = [(draw.randrange(1, size), draw.choice((1, 7, 64, 1_000))) for _ in range(60)]
    server.faults(*(cut_at_byte(count, "end", piece_bytes=piece_bytes) for count, piece_bytes in cuts))
    for cut in cuts:
        deltas: list[Delta] = []
        try:
            reply = ask(asked, deltas=deltas)
        except ModelCallError as error:
            assert error.kind in (K.TIMEOUT, K.SERVER_ERROR), (cut, error)
            assert not any(delta.text for delta in deltas), (cut, error)
            continue
        assert said.text.startswith(reply.text), cut
        whole = (said.text, 1, "tool_calls")
        assert reply.was_cut_by_network or (reply.text, len(reply.tool_requests), reply.finish_reason) == whole, cut
        assert not reply.was_cut_by_network or (reply.finish_reason, reply.tool_requests) == ("length", ()), cut
    assert ask(asked).text == said.text


@over(*EVENTS)
@pytest.mark.parametrize(
    "data",
    [
        b"data: {not json\n\n",
        b"data: [1]\n\n",
        b'data: "text"\n\n',
        b"data: " + b"[" * 50_000 + b"\n\n",
        b"data: \xff\xfe\n\n",
    ],
    ids=["broken", "list", "string", "deep", "bytes"],
)
def test_an_event_that_is_no_event_is_noticed(wire: Wire, server: StrictServer, data: bytes) -> None:
    """The anthropic SDK carries on silently, the openai SDK raises something of the standard library."""
    server.faults(instead_of_event(first_text(wire.rules), data))

    assert failure(provider(wire, server)).kind is K.SERVER_ERROR


IN_STREAM = (
    ("overloaded_error", "Overloaded", K.OVERLOADED),
    ("rate_limit_error", "slow down", K.RATE_LIMIT),
    ("api_error", "Internal server error", K.SERVER_ERROR),
    ("server_error", "The server had an error", K.SERVER_ERROR),
    ("rate_limit_exceeded", "Rate limit reached", K.RATE_LIMIT),
    ("invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum", K.CONTEXT_OVERFLOW),
    ("content_filter", "flagged: content_filter", K.CONTENT_POLICY_BLOCKED),
    ("content_filter", "The response was filtered", K.CONTENT_POLICY_BLOCKED),
    ("invalid_request_error", "messages.3: a tool call has no result", K.FORMAT_ERROR),
    ("invalid_prompt", "The prompt is not valid", K.FORMAT_ERROR),
    ("not_found_error", "model: claude-9", K.MODEL_NOT_FOUND),
    ("insufficient_quota", "see your plan", K.BILLING),
    ("context_length_exceeded", "a lot of text", K.CONTEXT_OVERFLOW),
)
PASSING_KINDS = (K.OVERLOADED, K.RATE_LIMIT, K.SERVER_ERROR, K.CONTEXT_OVERFLOW)


@pytest.mark.parametrize(("code", "said", "kind"), IN_STREAM, ids=range(len(IN_STREAM)))
def test_an_error_inside_a_stream_is_classified_without_a_status(
    wire: Wire, server: StrictServer, code: str, said: str, kind: FailureKind
) -> None:
    event = {"type": "error", "error": {"type": code, "code": code, "message": said}}
    server.faults(instead_of_event(first_text(wire.rules), wire.rules.encode(event)))

    error = failure(provider(wire, server))

    assert error.kind is kind
    assert said in error.message
    assert classify_translated(error).is_retryable is (kind in PASSING_KINDS)


# ------------------------------------------------------------------------------------------------------------- aborting


def test_an_abort_in_the_middle_ends_the_call_and_nothing_else(wire: Wire, server: StrictServer) -> None:
    server.faults(lambda s, rules, request, reply: cut_after(first_text(rules) + 1, "block")(s, rules, request, reply))
    asked = provider(wire, server)
    abort = AbortSignal()

    with pytest.raises(ModelCallError) as raised:
        asked.ask(REQUEST, on_delta=lambda delta: abort.set("stop") if delta.text else None, abort=abort)

    assert raised.value.kind is K.INTERRUPTED
    assert ask(asked).text == HELLO.text


def test_one_object_serves_many_calls_on_one_connection_at_a_time(wire: Wire, server: StrictServer) -> None:
    asked = provider(wire, server)

    for _ in range(5):
        ask(asked)

    assert server.connections == 1


# ------------------------------------------------------------------------------------------------------- same on a wire


def test_a_reply_survives_being_stored_and_sent_again(wire: Wire, server: StrictServer) -> None:
    """What the row keeps is enough to say the same thing again, byte for byte."""
    server.says(Said(thinking="t", text="x", calls=(ToolUse(id="call_1", name="todo", arguments='{"b": 1, "a": 2}'),)))
    asked = provider(wire, server)
    reply = ask(asked)
    stored = [build_user_body("hello"), build_assistant_body(reply), build_tool_body("call_1", "done")]
    server.says(HELLO)

    for _ in range(2):
        ask(asked, conversation(wire, *stored))

    first, second = (request.body for request in server.requests[-2:])
    assert first == second
    assert b'"a":2,"b":1' in first.replace(b'\\"', b'"')
    assert server.refusals == []


@over("chat", "responses")
def test_requests_of_one_session_share_their_cache_key(wire: Wire, server: StrictServer) -> None:
    """Messages marks places in the prompt instead: see the long turn with marks."""
    asked = provider(wire, server, sends_cache_key=True)
    for text in ("one", "two"):
        ask(asked, replace(REQUEST, messages=(SYSTEM, build_user_body(text))))

    keys = [request.document["prompt_cache_key"] for request in server.requests]
    assert keys[0] == keys[1]


def test_ids_and_arguments_of_calls_come_back_as_they_were_given(wire: Wire, server: StrictServer) -> None:
    server.says(Said(calls=(ToolUse(id="call_Ab-9_z", name="terminal", arguments='{"command": "\\u2028 \\"q\\""}'),)))
    asked = provider(wire, server)
    reply = ask(asked)
    request = ToolRequest(id="call_Ab-9_z", name="terminal", arguments=reply.tool_requests[0].arguments)

    assert replace(reply.tool_requests[0], row_fields={}) == request  # what a model signed comes beside it
    assert json.loads(request.arguments) == {"command": '\u2028 "q"'}
