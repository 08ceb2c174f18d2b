"""What every compactor keeps to, on every wire: the newest request, the rows at the end, and calls with their results.

The checks are those of strict servers (``dialects``, ``vendor_rules``)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from dialects import check_chat, check_messages, check_responses
from vendor_rules import check_converse, check_gemini

from hermes_worker.agent.prompt.compaction import CompactionPlan, build_compaction_body, estimate_tokens
from hermes_worker.agent.prompt.compactors import SUMMARY, TAIL_ROWS_MIN, Compactor, check_plan
from hermes_worker.agent.prompt.pipeline import build_messages
from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.compactions import parse_facts, select_visible
from hermes_worker.core.messages import Message, ModelReply, ModelRequest, Role, dump_canonical_json
from hermes_worker.models.endpoint import Endpoint
from hermes_worker.models.wires import (
    anthropic_messages,
    bedrock_converse,
    gemini_generate,
    openai_chat,
    openai_responses,
)
from hermes_worker.tasks.calls.auxiliary import Auxiliary
from hermes_worker.tasks.iteration.compaction import Bounds, CompactionRequest, compact
from hermes_worker.tasks.iteration.requests import ModelOptions
from hermes_worker.tasks.iteration.spending import Bill

Body = dict[str, Any]
WINDOW = 8_000
ENDPOINT = Endpoint(base_url="https://models.example/v1", api_key="k")
TOOL = dump_canonical_json(
    {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}}}
)


class Window:
    """Forgets: keeps the rows at the end, asks no model, and says how much is gone. As one of others may be."""

    def plan(self, rows: Sequence[Message], *, trigger: int) -> CompactionPlan | None:
        starts = [n for n, row in enumerate(rows) if row.role is Role.ASSISTANT and n <= len(rows) - 6]
        if not starts or starts[-1] < 2:
            return None
        turns = rows[: starts[-1]]
        return CompactionPlan(
            head=0, through=starts[-1], previous=None, turns=turns, asked="invented", is_asked_later=True
        )

    def question(self, plan: CompactionPlan, *, chars_max: int) -> None:
        return None

    def notes(self, plan: CompactionPlan) -> str:
        return f"{len(plan.turns)} rows are forgotten."


COMPACTORS: Mapping[str, Compactor] = {"summary": SUMMARY, "window": Window()}


def written(raw: bytes) -> Body:
    return cast(Body, json.loads(raw))


def nothing(_: str) -> str | None:
    return "x"


WIRES: Mapping[str, Callable[[ModelRequest], None]] = {
    "chat": lambda r: check_chat(written(openai_chat.build_request_body(r, ENDPOINT, openai_chat.Dialect())), nothing),
    "messages": lambda r: check_messages(
        written(anthropic_messages.build_request_body(r, ENDPOINT, anthropic_messages.Dialect())), nothing
    ),
    "responses": lambda r: check_responses(
        written(openai_responses.build_request_body(r, "x", openai_responses.Dialect(), ENDPOINT)), nothing
    ),
    "converse": lambda r: check_converse(
        written(bedrock_converse.build_request_body(r, ENDPOINT, bedrock_converse.Dialect())), nothing
    ),
    "gemini": lambda r: check_gemini(
        written(gemini_generate.build_request_body(r, ENDPOINT, gemini_generate.Dialect())), nothing
    ),
}


def user(text: str) -> Body:
    return {"role": "user", "content": text}


def said(text: str, *calls: str) -> Body:
    function = {"name": "look", "arguments": '{"path":"/a"}'}
    named = [{"id": call, "type": "function", "function": function} for call in calls]
    return {"role": "assistant", "content": text, **({"tool_calls": named} if named else {})}


def steps(first: int, last: int) -> list[Body]:
    made: list[Body] = []
    for n in range(first, last):
        made += [said(f"step {n}", f"call_a{n}", f"call_b{n}")]
        made += [{"role": "tool", "tool_call_id": f"call_{x}{n}", "content": "found " * 40} for x in "ab"]
    return made


LONG = [user("the first request"), *steps(0, 30), said("done"), user("now do that: Ω"), *steps(30, 60)]
LATE = [*LONG, said("done"), user("and the newest: Ж"), *steps(60, 61)]


def rows(bodies: Sequence[Body]) -> list[Message]:
    return [Message(seq=n, role=Role(body["role"]), body=dump_canonical_json(body)) for n, body in enumerate(bodies, 1)]


class Silent:
    """A model that writes notes."""

    def ask(self, *_: object, **__: object) -> ModelReply:
        return ModelReply(text="notes of a model", finish_reason="stop")


def compacted(history: list[Message], compactor: Compactor) -> list[Message]:
    """As an iteration does it."""
    options = ModelOptions(window=WINDOW, compactor=compactor)
    bounds = Bounds(window=WINDOW, options=options)
    auxiliary = cast(Auxiliary, Silent())
    made = compact(history, bounds, auxiliary, AbortSignal(), model="m", ticket="t", bill=Bill())
    assert made is not None
    return [*history, Message(seq=len(history) + 1, role=Role.USER, body=made.body)]


def request(shown: Sequence[Message]) -> ModelRequest:
    system = dump_canonical_json({"role": "system", "content": "Be careful."})
    return ModelRequest(model="m", messages=[system, *build_messages(shown)], tools=[TOOL], window=WINDOW)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("compactor", COMPACTORS)
def test_what_is_left_is_a_conversation_that_the_wire_takes(compactor: str, wire: str) -> None:
    for bodies in (LONG, LATE):
        history = compacted(rows(bodies), COMPACTORS[compactor])
        WIRES[wire](request(select_visible(history)))
        grown = [*history, *rows([*bodies, user("compaction"), *steps(70, 110)])[len(bodies) + 1 :]]
        again = compacted(grown, COMPACTORS[compactor])
        WIRES[wire](request(select_visible(again)))


@pytest.mark.parametrize("compactor", COMPACTORS)
def test_the_newest_request_and_the_rows_at_the_end_stay(compactor: str) -> None:
    for bodies, newest in ((LONG, "now do that: Ω"), (LATE, "and the newest: Ж")):
        history = rows(bodies)
        shown = select_visible(compacted(history, COMPACTORS[compactor]))
        assert len(shown) < len(history)
        assert newest in "".join(row.body for row in shown)
        assert shown[-TAIL_ROWS_MIN:] == history[-TAIL_ROWS_MIN:], "to the byte"
        assert list(build_messages(shown)) == [row.body for row in shown], (
            "no call is without its result, nor a result alone"
        )


SOUND = check_plan(cast(CompactionPlan, Window().plan(rows(LONG), trigger=1)), rows(LONG))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"through": 3}, "parts a call from its result"),
        ({"head": 2}, "parts a call from its result"),
        ({"head": 1}, "the summary speaks as the user does"),
        ({"through": 92}, "the summary speaks as the user does"),
        ({"through": len(LONG) - 1}, "leaves 1 rows at the end"),
        ({"through": len(LONG) + 5}, "summarises up to row"),
        ({"head": -1}, "it keeps -1 rows"),
        ({"through": 1}, "makes nothing shorter"),
    ],
)
def test_a_plan_that_would_lose_something_is_refused(changes: dict[str, int], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check_plan(replace(SOUND, **changes), rows(LONG))


class Broken(Window):
    """One of others, with every defect."""

    def __init__(self, plan: object = None, notes: object = None) -> None:
        self._plan, self._notes = plan, notes

    def plan(self, rows: Sequence[Message], *, trigger: int) -> CompactionPlan | None:
        if isinstance(self._plan, Exception):
            raise self._plan
        return cast(CompactionPlan, self._plan) if self._plan else super().plan(rows, trigger=trigger)

    def notes(self, plan: CompactionPlan) -> str:
        if isinstance(self._notes, Exception):
            raise self._notes
        return str(self._notes or "")


@pytest.mark.parametrize(
    "broken", [Broken(RuntimeError("no luck")), Broken(replace(SOUND, through=3)), Broken("nonsense")]
)
def test_a_compactor_that_fails_is_stood_in_for(broken: Broken, capfd: pytest.CaptureFixture[str]) -> None:
    history = rows(LONG)
    assert compacted(history, broken)[-1] == compacted(history, SUMMARY)[-1]
    assert "conversation.compactor_refused" in capfd.readouterr().err


@pytest.mark.parametrize("broken", [Broken(notes=RuntimeError("no luck")), Broken(notes=" ")])
def test_a_summary_that_fails_is_stood_in_for(broken: Broken) -> None:
    shown = compacted(rows(LONG), broken)[-1].body
    assert "No model wrote these notes" in shown
    assert shown == build_compaction_body(SOUND, SUMMARY.notes(SOUND))


def test_what_the_provider_counts_moves_the_point_at_which_a_conversation_is_too_long() -> None:
    usual = Bounds(window=200_000, options=ModelOptions())
    heavier = replace(usual, weight_percent=150)
    assert (usual.trigger, heavier.trigger) == (150_000, 100_000)
    assert (usual.room, heavier.room) == (200_000, 133_333)
    lighter = replace(usual, weight_percent=80)
    assert lighter.trigger == 187_500


def test_the_question_for_a_summary_fits_whoever_writes_it() -> None:
    bounds = Bounds(window=1_000_000, options=ModelOptions())
    assert bounds.question_chars == 2_000_000
    assert replace(bounds, summary_window=64_000).question_chars == 128_000
    assert replace(bounds, summary_window=2_000_000).question_chars == 2_000_000, "the conversation's own may write it"


class Asked(Silent):
    """Remembers what it was asked."""

    def ask(self, *said: object, **__: object) -> ModelReply:
        self.request = next(each for each in said if isinstance(each, ModelRequest))
        return ModelReply(text="the key is sk-ant-REDACTED", finish_reason="stop")


@pytest.mark.parametrize(
    ("window", "words", "last", "tokens"),
    [(100_000, 10, 20, 2_000), (100_000, 48_000, 100, 5_000), (400_000, 48_000, 100, 10_000)],
)
def test_a_summary_has_a_fifth_of_what_it_stands_for_and_neither_holds_nor_is_told_a_secret(
    window: int, words: int, last: int, tokens: int
) -> None:
    secret = "sk-ant-REDACTED"
    long = [user("hello"), said("hello"), user(f"use {secret}"), said("word " * words)]
    bodies = [*long, user("go on"), *steps(0, last)]
    history, writer = rows(bodies), Asked()
    bounds = Bounds(window=window, options=ModelOptions())
    made = compact(
        history,
        bounds,
        cast(Auxiliary, writer),
        AbortSignal(),
        model="m",
        ticket="t",
        bill=Bill(),
        wish=CompactionRequest(tokens=estimate_tokens(history), focus=""),
    )
    assert made is not None
    assert writer.request.output_tokens_max == tokens
    assert secret not in "".join(writer.request.messages), "of what it stands for"
    assert "sk-ant-REDACTED" not in made.body
    assert all(f"{section}" in writer.request.messages[0] for section in ("Goal", "Blocked", "Critical Context"))


def test_very_many_short_messages_become_few() -> None:
    """Nothing is near the window's tokens, so the tail must not be as long as those allow."""
    bodies = [user("begin"), *(body for n in range(400) for body in (said(f"so {n}"), user(f"and {n}")))]
    history = rows(bodies)
    bounds = Bounds(window=1_000_000, options=ModelOptions())
    wish = CompactionRequest(tokens=estimate_tokens(history), has_too_many_rows=True)
    auxiliary = cast(Auxiliary, Silent())
    made = compact(history, bounds, auxiliary, AbortSignal(), model="m", ticket="t", bill=Bill(), wish=wish)
    assert made is not None
    shown = select_visible([*history, Message(seq=len(history) + 1, role=Role.USER, body=made.body)])
    assert len(shown) < len(history) / 3
    assert parse_facts(Message(seq=1, role=Role.USER, body=made.body)).futile == 0
