"""Random conversations with groups of tools, compacted in every way there is, on the three wires that most servers
speak: what is sent is valid, the newest request and the protected rows stay to the byte, and no call is parted from its
result. The checks are those of strict servers (``dialects``)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import pytest
from dialects import Refused, check_chat, check_messages, check_responses
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hermes_worker.agent.prompt.compaction import ProtectedRows, estimate_tokens
from hermes_worker.agent.prompt.compactors import SummaryCompactor
from hermes_worker.agent.prompt.pipeline import build_messages
from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.compactions import find_newest_compaction, is_compaction, parse_facts, select_visible
from hermes_worker.core.errors import FailureKind, ModelCallError
from hermes_worker.core.messages import Message, ModelReply, ModelRequest, Role, build_user_body, dump_canonical_json
from hermes_worker.models.endpoint import Endpoint
from hermes_worker.models.wires import anthropic_messages, openai_chat, openai_responses
from hermes_worker.tasks.calls.auxiliary import Auxiliary
from hermes_worker.tasks.iteration.compaction import Bounds, CompactionRequest, SummaryMissing, compact
from hermes_worker.tasks.iteration.requests import ModelOptions
from hermes_worker.tasks.iteration.spending import Bill

Body = dict[str, Any]
ENDPOINT = Endpoint(base_url="https://models.example/v1", api_key="k")
TOOL = dump_canonical_json(
    {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}}}
)
SYSTEM = dump_canonical_json({"role": "system", "content": "Be careful."})
TAIL_ROWS = 3
"""So many rows at the end stay, whatever else does."""


def _nothing(_: str) -> str | None:
    return "x"


WIRES: Mapping[str, Callable[[ModelRequest], None]] = {
    "chat completions": lambda r: check_chat(
        json.loads(openai_chat.build_request_body(r, ENDPOINT, openai_chat.Dialect())), _nothing
    ),
    "responses": lambda r: check_responses(
        json.loads(openai_responses.build_request_body(r, "x", openai_responses.Dialect(), ENDPOINT)), _nothing
    ),
    "messages": lambda r: check_messages(
        json.loads(anthropic_messages.build_request_body(r, ENDPOINT, anthropic_messages.Dialect())), _nothing
    ),
}

TEXTS = st.sampled_from(["ok", "Ω строка 漢字", "found " * 60, "line\n" * 300, '{"exit_code":1,"output":"no"}', ""])
ARGUMENTS = st.sampled_from(
    ["{}", '{"path":"/a"}', dump_canonical_json({"content": "z" * 900}), dump_canonical_json({"a": ["q" * 600]})]
)
TURNS = st.lists(
    st.tuples(TEXTS, st.lists(st.lists(st.tuples(ARGUMENTS, TEXTS), min_size=1, max_size=4), max_size=5), TEXTS),
    min_size=1,
    max_size=12,
)
"""Of each turn: what the user says, the groups of calls with their results, and the answer."""


def transcript(turns: Sequence[Any], *, first: int = 1) -> list[Message]:
    bodies: list[Body] = []
    for number, (asked, groups, answered) in enumerate(turns, first):
        bodies.append({"role": "user", "content": f"request {number}: {asked}"})
        for place, group in enumerate(groups):
            ids = [f"call_{number}_{place}_{n}" for n in range(len(group))]
            calls = [
                {"id": name, "type": "function", "function": {"name": "look", "arguments": arguments}}
                for name, (arguments, _) in zip(ids, group, strict=True)
            ]
            bodies.append({"role": "assistant", "content": f"step {place}", "tool_calls": calls})
            bodies += [
                {"role": "tool", "tool_call_id": name, "content": result}
                for name, (_, result) in zip(ids, group, strict=True)
            ]
        bodies.append({"role": "assistant", "content": f"answer {number}: {answered}"})
    return [Message(seq=n, role=Role(body["role"]), body=dump_canonical_json(body)) for n, body in enumerate(bodies, 1)]


class Writer:
    """A model that writes notes, or fails."""

    def __init__(self, *, fails: bool) -> None:
        self._fails = fails

    def ask(self, *_: object, **__: object) -> ModelReply:
        if self._fails:
            raise ModelCallError(FailureKind.UNREACHABLE, "nobody there")
        return ModelReply(text="## Goal\nnotes of a model", finish_reason="stop")


HOW = st.fixed_dictionaries(
    {
        "window": st.sampled_from([400, 2_000, 8_000]),
        "focus": st.sampled_from([None, None, "", "the parser"]),
        "fails": st.booleans(),
        "may_wait": st.booleans(),
        "head": st.integers(0, 5),
        "tail_part": st.sampled_from([0.1, 0.2, 0.8]),
        "over": st.sampled_from([1.0, 1.1, 3.0]),
    }
)


def shortened(history: list[Message], how: Mapping[str, Any]) -> list[Message]:
    """As an iteration does it; ``history`` itself where nothing is changed."""
    protected = ProtectedRows(head_rows=how["head"], tail_rows=6, tail_part=how["tail_part"])
    options = ModelOptions(window=how["window"], compactor=SummaryCompactor(protected))
    bounds = Bounds(window=how["window"], options=options)
    tokens = int(max(bounds.trigger, estimate_tokens(select_visible(history))) * how["over"])
    wish = CompactionRequest(tokens=tokens, focus=how["focus"], may_wait=how["may_wait"])
    writer = cast(Auxiliary, Writer(fails=how["fails"]))
    try:
        made = compact(history, bounds, writer, AbortSignal(), model="m", ticket="t", bill=Bill(), wish=wish)
    except SummaryMissing:
        assert how["fails"] and how["may_wait"]
        return history
    return history if made is None else [*history, Message(seq=len(history) + 1, role=Role.USER, body=made.body)]


def require_whole(history: Sequence[Message], before: Sequence[Message]) -> None:
    """What is sent of ``history`` is one that every wire takes, and holds what it must."""
    shown = select_visible(history)
    assert list(build_messages(shown)) == [row.body for row in shown], "nothing needs repair"
    bodies = [json.loads(row.body) for row in shown]
    asked = [call["id"] for body in bodies for call in body.get("tool_calls", ())]
    assert asked == [body["tool_call_id"] for body in bodies if body["role"] == "tool"]
    newest = next(row for row in reversed(before) if row.role is Role.USER and not is_compaction(row))
    said = json.loads(newest.body)["content"]
    assert newest in shown or said[:1_000] in json.loads(shown[facts_at(shown)].body)["content"]
    tail = [row for row in before if not is_compaction(row)][-TAIL_ROWS:]
    assert list(shown[-len(tail) :]) == tail, "to the byte"
    ends_with_answer = shown[-1].role is Role.ASSISTANT
    next_turn = [build_user_body("and now?")] if ends_with_answer else []
    messages = [SYSTEM, *build_messages(shown), *next_turn]
    request = ModelRequest(model="m", messages=messages, tools=[TOOL], window=8_000)
    for name, takes in WIRES.items():
        try:
            takes(request)
        except Refused as refusal:
            raise AssertionError(f"{name}: {refusal}") from refusal


def facts_at(shown: Sequence[Message]) -> int:
    return next(n for n, row in enumerate(shown) if "[CONTEXT SUMMARY]" in row.body)


def _hold(turns: Sequence[Any], more: Sequence[Any], hows: Sequence[Mapping[str, Any]]) -> None:
    history = transcript(turns)
    for how in hows:
        stored = list(history)
        after = shortened(history, how)
        assert after[: len(stored)] == stored, "no row of the transcript is another one"
        require_whole(after, stored)
        assert estimate_tokens(select_visible(after)) <= estimate_tokens(select_visible(stored)) + 2_500
        fresh = transcript(more, first=len(after) + 100)
        history = [*after, *(Message(seq=len(after) + n, role=r.role, body=r.body) for n, r in enumerate(fresh, 1))]
        before = select_visible(after)
        assert list(select_visible(history))[: len(before)] == list(before), "the prompt only grows (I7)"


SLOW = settings(max_examples=1_500, deadline=None, suppress_health_check=list(HealthCheck))
SAMPLE = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@given(turns=TURNS, more=TURNS, hows=st.lists(HOW, min_size=1, max_size=4))
@SAMPLE
def test_whatever_is_compacted_stays_a_conversation_on_every_wire(turns: Any, more: Any, hows: Any) -> None:
    _hold(turns, more, hows)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@given(turns=TURNS, more=TURNS, hows=st.lists(HOW, min_size=1, max_size=4))
@SLOW
def test_many_conversations_stay_conversations_on_every_wire(turns: Any, more: Any, hows: Any) -> None:
    _hold(turns, more, hows)


def test_a_long_session_with_thirty_compactions_is_whole_and_its_prompt_only_grows() -> None:
    """2,000 messages; between compactions each request repeats the one before it to the byte."""
    history: list[Message] = transcript([("begin", [], "ready")])
    how = {"window": 8_000, "focus": None, "fails": False, "may_wait": False, "head": 3, "tail_part": 0.2, "over": 1.0}
    made, requests, pruned_to = 0, 0, 0
    for number in range(2, 10_000):
        group = [('{"path":"/a"}', f"{number} found " * 120)]
        fresh = transcript([(f"do {number}", [group, group], "done")], first=number)
        before = select_visible(history)
        history += [Message(seq=len(history) + n, role=r.role, body=r.body) for n, r in enumerate(fresh, 1)]
        assert list(select_visible(history))[: len(before)] == list(before)
        requests += 1
        if estimate_tokens(select_visible(history)) > 6_800:
            history = shortened(history, how)
            made += 1
            pruned_to = max(pruned_to, parse_facts(find_newest_compaction(history)).pruned)
            require_whole(history, history[:-1])
        if len(history) >= 2_000 and made >= 30:
            break
    assert made >= 30 and requests > 300
    assert pruned_to > 0, "some of them showed results in short"
    said = [row.body for row in history if not is_compaction(row)]
    assert [f"request {n}: do {n}" for n in range(2, number + 1)] == [
        json.loads(body)["content"] for body in said if '"content":"request' in body and "do " in body
    ], "the whole conversation can still be read"
