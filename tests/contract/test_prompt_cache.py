"""What a prompt cache finds of a long conversation: the real pipeline and conversion against a simulated provider.

The cache keeps to Anthropic's rules (https://docs.claude.com/en/docs/build-with-claude/prompt-caching, 2026). A prefix
is tools, system and messages in this order, block by block. An entry is written at each ``cache_control``, of which
four are allowed. A request finds an entry at one of its own marks or at most 20 blocks before it. Models before
Opus 4.5 and Sonnet 4.6 do not see the thinking of earlier turns, so there the prefix goes without it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from dialects import RULES, Said, ToolUse, check_messages

from hermes_worker.core.messages import (
    Message,
    Role,
    build_assistant_body,
    build_tool_body,
    build_user_body,
    dump_canonical_json,
)
from hermes_worker.core.recovery_state import RecoveryState
from hermes_worker.models.base import Provider
from hermes_worker.models.catalog import Wire
from hermes_worker.models.chain import ModelChoice, ModelRoute, ProviderChain
from hermes_worker.models.endpoint import Endpoint
from hermes_worker.models.wires.anthropic_messages import Dialect, build_request_body
from hermes_worker.models.wires.anthropic_reply import MessageAssembler
from hermes_worker.store.runs.runs import SessionContext
from hermes_worker.tasks.iteration.requests import ModelOptions, build_request

Document = Mapping[str, Any]

LOOK_BACK_BLOCKS = 20
MARKS_MAX = 4
TOOL = {"type": "function", "function": {"name": "t", "description": "d" * 400, "parameters": {"type": "object"}}}
SESSION = SessionContext(
    session_id="s", system_prompt="You are careful. " * 60, tools=dump_canonical_json([TOOL]), workspace=""
)
ANTHROPIC = Endpoint(base_url="https://api.anthropic.com", api_key="k")
ROUTE = ModelRoute(
    provider=cast(Provider, None),
    name="anthropic",
    model="claude-sonnet-4-6",
    host="api.anthropic.com",
    wire=Wire.ANTHROPIC_MESSAGES,
    credential="",
)
OPTIONS = ModelOptions(reasoning_effort="high")


# ------------------------------------------------------------------------------------------------------------ the cache


@dataclass(frozen=True, slots=True)
class Block:
    """A position that a cache entry can stand at."""

    text: str
    """Without its mark, which is no part of what is compared."""
    is_message: bool
    is_marked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a request found in the cache, in characters."""

    hit: int
    hit_of_conversation: int
    conversation: int
    marked_before: int
    """How much the request before this one had marked."""

    @property
    def share_of_marked(self) -> float:
        return self.hit / self.marked_before if self.marked_before else 0.0

    @property
    def share_of_conversation(self) -> float:
        return self.hit_of_conversation / self.conversation


@dataclass(slots=True, kw_only=True)
class PromptCache:
    keeps_thinking: bool = True
    """The model sees the thinking of earlier turns."""
    entries: set[str] = field(default_factory=set)
    marked: int = 0

    def ask(self, document: Document) -> Found:
        blocks = list(self._blocks(document))
        marks = [position for position, block in enumerate(blocks) if block.is_marked]
        assert 0 < len(marks) <= MARKS_MAX
        prefixes = list(_prefixes(blocks))
        reached = (at for mark in marks for at in range(mark, max(-1, mark - LOOK_BACK_BLOCKS), -1))
        end = max((at for at in reached if prefixes[at] in self.entries), default=-1) + 1
        found = Found(
            hit=_size(blocks[:end]),
            hit_of_conversation=_size([block for block in blocks[:end] if block.is_message]),
            conversation=_size([block for block in blocks if block.is_message]),
            marked_before=self.marked,
        )
        self.entries |= {prefixes[mark] for mark in marks}
        self.marked = _size(blocks[: marks[-1] + 1])
        return found

    def _blocks(self, document: Document) -> Iterator[Block]:
        for tool in document["tools"]:
            yield _block("tool", tool, is_message=False)
        system = document["system"]
        for part in [system] if isinstance(system, str) else system:
            yield _block("system", part, is_message=False)
        messages = document["messages"]
        newest_turn = max(n for n, message in enumerate(messages) if _begins_turn(message))
        for position, message in enumerate(messages):
            content = message["content"]
            for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
                if self.keeps_thinking or position > newest_turn or part["type"] != "thinking":
                    yield _block(message["role"], part, is_message=True)


def _begins_turn(message: Document) -> bool:
    """Something else than results is said by the user."""
    content = message["content"]
    return message["role"] == "user" and (isinstance(content, str) or content[-1]["type"] != "tool_result")


def _block(role: str, part: Any, *, is_message: bool) -> Block:
    fields = {"text": part} if isinstance(part, str) else part
    unmarked = {key: value for key, value in fields.items() if key != "cache_control"}
    return Block(dump_canonical_json([role, unmarked]), is_message, "cache_control" in fields)


def _prefixes(blocks: Sequence[Block]) -> Iterator[str]:
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(block.text.encode())
        yield digest.hexdigest()


def _size(blocks: Sequence[Block]) -> int:
    return sum(len(block.text) for block in blocks)


# ----------------------------------------------------------------------------------------------------- the conversation


@dataclass(slots=True, kw_only=True)
class Conversation:
    """A session on Anthropic's own API; what is sent is checked as strictly as there, signatures included."""

    cache: PromptCache = field(default_factory=PromptCache)
    rows: list[Message] = field(default_factory=list)
    sent: list[bytes] = field(default_factory=list)
    found: list[Found] = field(default_factory=list)

    def add(self, body: str) -> None:
        self.rows.append(Message(seq=len(self.rows) + 1, role=Role(json.loads(body)["role"]), body=body))

    def ask(self, said: Said) -> None:
        """One model call, its reply and the results of its calls."""
        request = build_request(SESSION, self.rows, ROUTE, RecoveryState(), is_summary=False, options=OPTIONS)
        body = build_request_body(request, ANTHROPIC, Dialect())
        document = json.loads(body)
        check_messages(document, lambda header: "present")
        self.sent.append(body)
        self.found.append(self.cache.ask(document))
        reply = _replied(said)
        self.add(build_assistant_body(reply))
        for call in reply.tool_requests:
            self.add(build_tool_body(call.id, f"result of {call.id}. " * 20))

    def work(self, rounds: int, *, calls: int, thinks: bool, name: str = "a") -> None:
        """A turn of so many rounds with calls, and an answer."""
        self.add(build_user_body(f"Please do {name}. " * 10))
        for number in range(rounds):
            uses = tuple(ToolUse(id=f"{name}_{number}_{n}", name="t", arguments='{"a": 1}') for n in range(calls))
            thinking = f"{name}: thought {number}. " * 20 if thinks else ""
            self.ask(Said(thinking=thinking, text=f"Step {number}." if number % 2 else "", calls=uses))
        self.ask(Said(thinking="Done. " * 20 if thinks else "", text="The answer. " * 20))


def _replied(said: Said) -> Any:
    assembler = MessageAssembler(lambda delta: None)
    for event in RULES["messages"].events(said):
        assembler.feed(event)
    return assembler.finish()


@pytest.mark.parametrize("keeps_thinking", [True, False], ids=["newer model", "older model"])
@pytest.mark.parametrize("calls", [1, 4, 15])
def test_a_long_round_of_calls_is_cached_with_thinking_as_without(calls: int, keeps_thinking: bool) -> None:
    shares = {}
    for thinks in (True, False):
        conversation = Conversation(cache=PromptCache(keeps_thinking=keeps_thinking))
        conversation.work(30, calls=calls, thinks=thinks)
        later = conversation.found[5:]
        assert min(found.share_of_marked for found in later) == 1.0, "all that was marked is found again"
        shares[thinks] = sum(found.share_of_conversation for found in later) / len(later)
    assert shares[True] >= 0.86
    assert shares[True] >= shares[False] - 0.02


@pytest.mark.parametrize("calls", [1, 4])
def test_each_request_begins_with_the_one_before_it_thinking_included(calls: int) -> None:
    conversation = Conversation()
    conversation.work(8, calls=calls, thinks=True)
    conversation.work(8, calls=calls, thinks=True, name="b")

    whole = [_unmarked(body) for body in conversation.sent]
    for before, after in itertools.pairwise(whole):
        assert after.startswith(before.removesuffix(b"]}"))
    assert whole[-1].count(b'"type":"thinking"') == 17, "every reply but the newest, which is not sent yet"


def test_a_new_turn_finds_what_the_turns_before_it_left() -> None:
    conversation = Conversation()
    conversation.work(12, calls=2, thinks=True)
    conversation.work(12, calls=2, thinks=True, name="b")

    assert min(found.share_of_marked for found in conversation.found[1:]) == 1.0


def test_a_model_that_forgets_the_thinking_of_earlier_turns_finds_its_new_turn_again() -> None:
    """At the seam it sees another prompt than before; from then on all is found again."""
    conversation = Conversation(cache=PromptCache(keeps_thinking=False))
    conversation.work(12, calls=2, thinks=True)
    conversation.work(12, calls=2, thinks=True, name="b")

    seam = conversation.found[13]
    assert seam.hit > 0
    assert min(found.share_of_marked for found in conversation.found[14:]) == 1.0


def _unmarked(body: bytes) -> bytes:
    """The request without marks; a text that was marked is the only part of its message."""
    document = json.loads(body)
    for message in document["messages"]:
        content = message["content"]
        for part in content if isinstance(content, list) else ():
            part.pop("cache_control", None)
        if message["role"] == "user" and isinstance(content, list) and [p["type"] for p in content] == ["text"]:
            message["content"] = content[0]["text"]
    messages = document.pop("messages")
    return f"{dump_canonical_json(document)[:-1]},{dump_canonical_json({'messages': messages})[1:]}".encode()


# -------------------------------------------------------------------------------------------------------- who is marked


@pytest.mark.parametrize(
    "choice",
    [
        ModelChoice(provider="alibaba", api_key="k", model="qwen3.6-plus"),
        ModelChoice(provider="dashscope", api_key="k", model="qwen3.6-plus"),
        ModelChoice(base_url="https://dashscope.aliyuncs.com/compatible-mode/v1", api_key="k", model="qwen3.6-plus"),
        ModelChoice(
            provider="opencode-go", base_url="https://opencode.ai/zen/go/v1", api_key="k", model="qwen3.6-plus"
        ),
        ModelChoice(base_url="https://opencode.ai/zen/v1", api_key="k", model="qwen3.6-plus"),
    ],
    ids=["alibaba", "dashscope", "its host", "opencode-go", "opencode's host"],
)
def test_qwen_gets_marks_however_its_provider_is_named(choice: ModelChoice) -> None:
    rows = [Message(seq=1, role=Role.USER, body=build_user_body("q"))]

    route = ProviderChain(choice).resolve_route("", 0)
    request = build_request(SESSION, rows, route, RecoveryState(), is_summary=False, options=OPTIONS)

    assert ["cache_control" in row for row in request.messages] == [True, True]
