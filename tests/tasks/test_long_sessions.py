"""A long session, request by request: how much of the one before each begins with (invariant I7)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import cast

import pytest

from hermes_worker.core.compactions import CompactionFacts, build_document, is_compaction
from hermes_worker.core.messages import (
    Message,
    ModelReply,
    Role,
    ToolRequest,
    build_assistant_body,
    build_tool_body,
    build_user_body,
    dump_canonical_json,
)
from hermes_worker.core.recovery_state import RecoveryState
from hermes_worker.models.base import Provider
from hermes_worker.models.catalog import Wire
from hermes_worker.models.chain import ModelRoute
from hermes_worker.store.runs.runs import SessionContext
from hermes_worker.tasks.iteration.requests import ModelOptions, build_request

SESSION = SessionContext(session_id="s", system_prompt="You are careful. " * 200, tools="[]", workspace="{}")


def conversation(messages: int, *, compactions: int) -> Iterator[list[Message]]:
    """The transcript at each model call: turns of a question, a call with its result, and an answer."""
    rows: list[Message] = []
    every, head = messages // compactions, 2

    def add(role: Role, body: str) -> None:
        rows.append(Message(seq=len(rows) + 1, role=role, body=body))

    said = 0
    while said < messages:
        add(Role.USER, build_user_body(f"question {said}: " + "what about this? " * 20))
        yield list(rows)
        call = ToolRequest(id=f"call_{said}", name="read_file", arguments=f'{{"path":"f{said}"}}')
        add(Role.ASSISTANT, build_assistant_body(ModelReply(text="", tool_requests=(call,))))
        add(Role.TOOL, build_tool_body(call.id, f"contents {said} " * 60))
        yield list(rows)
        add(Role.ASSISTANT, build_assistant_body(ModelReply(text=f"answer {said}. " * 10)))
        said += 4
        if said % every < 4:
            facts = CompactionFacts(head=head, through=len(rows) - 4, summary=f"summary {said}")
            body = {"_compacted": build_document(facts), "content": f"summary {said} " * 50, "role": "user"}
            add(Role.USER, dump_canonical_json(body))


def sent(rows: list[Message]) -> str:
    route = ModelRoute(
        provider=cast(Provider, None), name="custom", model="m", host="", wire=Wire.CHAT_COMPLETIONS, credential=""
    )
    request = build_request(SESSION, rows, route, RecoveryState(), is_summary=False, options=ModelOptions())
    return ",".join(request.messages)


def shared(messages: int, *, compactions: int) -> tuple[float, int]:
    """The least share of a request that the next one begins with, between compactions; and how many pairs of requests
    there were."""
    least, pairs = 1.0, 0
    for before, after in pairwise(conversation(messages, compactions=compactions)):
        if sum(map(is_compaction, before)) != sum(map(is_compaction, after)):
            continue
        one, other = sent(before), sent(after)
        same = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))
        least, pairs = min(least, same / len(one)), pairs + 1
    return least, pairs


@pytest.mark.parametrize(("messages", "compactions"), [(200, 3), pytest.param(2_000, 30, marks=pytest.mark.slow)])
def test_a_request_begins_with_the_one_before_it_between_compactions(messages: int, compactions: int) -> None:
    least, pairs = shared(messages, compactions=compactions)
    print(f"{pairs} pairs of requests share at least {least:.2%} of the earlier one")
    assert pairs > messages // 2 - 2 * compactions - 2
    assert least >= 0.99


def test_a_prompt_that_changed_would_be_noticed() -> None:
    rows = next(conversation(8, compactions=1))
    other = replace(SESSION, system_prompt=f"x{SESSION.system_prompt}")
    route = ModelRoute(
        provider=cast(Provider, None), name="custom", model="m", host="", wire=Wire.CHAT_COMPLETIONS, credential=""
    )
    request = build_request(other, rows, route, RecoveryState(), is_summary=False, options=ModelOptions())
    assert not ",".join(request.messages).startswith(sent(rows)[:40])
