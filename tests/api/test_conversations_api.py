"""/v1/conversations, on a real server, with the stock SDK. The test is the worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import openai
import pytest
from answering import answering
from serving import Served
from support.store import Store, asks

from hermes_worker.core.messages import ModelReply
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import RunStatus

HISTORY: list[Any] = [
    {"role": "system", "content": "Talk like a pirate."},
    {"type": "message", "role": "user", "content": "One"},
    {"role": "assistant", "content": "Arr!"},
    {"role": "user", "content": [{"type": "input_text", "text": "What is the weather?"}]},
    {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": '{"city": "Paris"}'},
    {"type": "function_call_output", "call_id": "c1", "output": "rain"},
    {"role": "assistant", "content": "It rains."},
]


@pytest.fixture
def sdk(api: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{api.url}/v1", api_key=api.key, max_retries=0, timeout=20)


def two_steps(store: Store) -> Callable[[str], None]:
    def work(run_id: str) -> None:
        asked = asks(Replay.PURE, Replay.PURE)
        store.ask_tools(run_id, replace(asked, reply=replace(asked.reply, text="Let me look.")))
        store.settle(run_id, 1, "second")
        store.settle(run_id, 0, "first")
        store.answer(run_id, ModelReply(text="Done."))

    return work


def told(item: Any) -> tuple[str, str | None]:
    """The kind of an item, and what it says."""
    if item.type == "message":
        return item.role, item.content[0].text
    return item.type, item.arguments if item.type == "function_call" else item.output


def test_a_conversation_is_made_read_changed_and_forgotten(api: Served, sdk: openai.OpenAI, store: Store) -> None:
    made = sdk.conversations.create(metadata={"topic": "ships"})
    assert (made.object, made.metadata) == ("conversation", {"topic": "ships"})
    assert sdk.conversations.retrieve(made.id) == made
    assert sdk.conversations.items.list(made.id).data == []
    changed = sdk.conversations.update(made.id, metadata={"topic": "seas", "n": "2"})
    assert changed.metadata == {"topic": "seas", "n": "2"}
    assert sdk.conversations.retrieve(made.id) == changed
    with answering(store, ModelReply(text="Aye.")):
        response = sdk.responses.create(input="Hello", conversation=made.id)
    working = sdk.responses.create(input="Long", conversation=made.id, background=True)
    gone = sdk.conversations.delete(made.id)
    assert (gone.id, gone.deleted, gone.object) == (made.id, True, "conversation.deleted")
    assert sdk.responses.retrieve(working.id).status == "cancelled"
    assert sdk.responses.retrieve(response.id).output_text == "Aye."
    calls: list[Callable[[], Any]] = [
        lambda: sdk.conversations.retrieve(made.id),
        lambda: sdk.conversations.update(made.id, metadata={}),
        lambda: sdk.conversations.delete(made.id),
        lambda: sdk.conversations.items.list(made.id),
        lambda: sdk.responses.create(input="x", conversation=made.id),
    ]
    for call in calls:
        with pytest.raises(openai.NotFoundError) as refusal:
            call()
        assert refusal.value.code == "conversation_not_found"
    session = f"run_{made.id.removeprefix('conv_')}"
    forked = api.http.post(f"/api/sessions/{session}/fork", json={"id": "kept"})
    assert forked.status_code == 201
    assert sdk.conversations.retrieve("kept").metadata == {}


def test_responses_go_on_with_what_was_said_before(sdk: openai.OpenAI, store: Store) -> None:
    made = sdk.conversations.create(items=HISTORY)
    with answering(store, two_steps(store)) as runs:
        response = sdk.responses.create(input="And now?", conversation=made.id)
    assert response.conversation is not None and response.conversation.id == made.id
    assert [row["content"] for row in store.bodies(runs[0])][:3] == ["One", "Arr!", "What is the weather?"]
    listed = list(sdk.conversations.items.list(made.id, order="asc"))
    assert [told(item) for item in listed] == [
        ("user", "One"), ("assistant", "Arr!"), ("user", "What is the weather?"),
        ("function_call", '{"city":"Paris"}'), ("function_call_output", "rain"), ("assistant", "It rains."),
        ("user", "And now?"), ("assistant", "Let me look."), ("mcp_call", "first"), ("mcp_call", "second"),
        ("assistant", "Done."),
    ]  # fmt: skip
    for limit in (1, 2, 3, 100):
        forth = list(sdk.conversations.items.list(made.id, order="asc", limit=limit))
        back = list(sdk.conversations.items.list(made.id, limit=limit))
        assert forth == listed
        assert back == listed[::-1]
    assert len({item.id for item in listed}) == len(listed)
    for item in listed:
        assert sdk.conversations.items.retrieve(str(item.id), conversation_id=made.id) == item
    page = sdk.conversations.items.list(made.id, order="asc", limit=4)
    assert (page.has_more, page.last_id) == (True, page.data[-1].id)


def test_every_session_is_a_conversation(api: Served, sdk: openai.OpenAI, store: Store) -> None:
    run_id = api.submit()
    store.answer(run_id)
    found = sdk.conversations.retrieve(f"conv_{run_id.removeprefix('run_')}")
    assert [told(item)[0] for item in sdk.conversations.items.list(found.id)] == ["assistant", "user"]
    with answering(store, ModelReply(text="Aye.")):
        sdk.responses.create(input="One", conversation="bar")
    named = sdk.conversations.update("bar", metadata={"a": "b"})
    assert (named.id, named.metadata) == ("bar", {"a": "b"})
    assert sdk.conversations.update("bar", metadata=None).metadata == {}


def test_items_are_added_behind_what_was_said_and_the_next_turn_sends_them(sdk: openai.OpenAI, store: Store) -> None:
    made = sdk.conversations.create(items=HISTORY)
    with answering(store, ModelReply(text="Aye.")) as runs:
        sdk.responses.create(input="And now?", conversation=made.id)
    before = store.bodies(runs[0])
    brought: list[Any] = [
        {"role": "user", "content": "By the way"},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "function_call", "call_id": "c2", "name": "get_weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c2", "output": "sun"},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Sun.", "annotations": []}],
        },
    ]
    added = sdk.conversations.items.create(made.id, items=brought)
    assert [told(item) for item in added.data] == [
        ("user", "By the way"), ("function_call", "{}"), ("function_call_output", "sun"), ("assistant", "Sun."),
    ]  # fmt: skip
    assert (added.first_id, added.last_id, added.has_more) == (added.data[0].id, added.data[-1].id, False)
    listed = list(sdk.conversations.items.list(made.id, order="asc"))
    assert listed[-4:] == added.data
    with answering(store, ModelReply(text="Good.")) as later:
        sdk.responses.create(input="Go on", conversation=made.id)
    after = store.bodies(later[0])
    assert after[: len(before)] == before  # (I7)
    said = [row["content"] for row in after[len(before) :]]
    assert said == ["By the way", "", "sun", "Sun.", "Go on", "Good."]


def test_the_last_item_is_taken_back_until_a_model_was_told_of_it(sdk: openai.OpenAI, store: Store) -> None:
    made = sdk.conversations.create(items=[{"role": "user", "content": "One"}, {"role": "assistant", "content": "Two"}])
    one, two = sdk.conversations.items.list(made.id, order="asc").data

    def refusal(item: Any) -> str | None:
        with pytest.raises(openai.ConflictError) as refused:
            sdk.conversations.items.delete(str(item.id), conversation_id=made.id)
        return refused.value.code

    assert refusal(one) == "item_is_told"
    assert sdk.conversations.items.delete(str(two.id), conversation_id=made.id).id == made.id
    assert sdk.conversations.items.list(made.id).data == [one]
    with pytest.raises(openai.NotFoundError):
        sdk.conversations.items.delete(str(two.id), conversation_id=made.id)
    with answering(store, ModelReply(text="Aye.")):
        sdk.responses.create(input="Three", conversation=made.id)
    assert [refusal(item) for item in sdk.conversations.items.list(made.id)] == ["item_is_told"] * 3
    sdk.conversations.items.create(
        made.id,
        items=[
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "x"},
        ],
    )
    for item in sdk.conversations.items.list(made.id, limit=2).data:
        assert refusal(item) == "item_is_told"  # half of a pair would be no transcript


def test_no_item_is_added_or_taken_back_while_a_run_is_at_work(sdk: openai.OpenAI, store: Store) -> None:
    made = sdk.conversations.create(items=[{"role": "user", "content": "One"}])
    [item] = sdk.conversations.items.list(made.id).data
    sdk.responses.create(input="Long", conversation=made.id, background=True)
    with pytest.raises(openai.ConflictError):
        sdk.conversations.items.create(made.id, items=[{"role": "user", "content": "x"}])
    with pytest.raises(openai.ConflictError):
        sdk.conversations.items.delete(str(item.id), conversation_id=made.id)


def test_items_that_are_no_transcript_are_not_added(sdk: openai.OpenAI) -> None:
    made = sdk.conversations.create(items=HISTORY)
    before = list(sdk.conversations.items.list(made.id))
    wrong: list[list[Any]] = [
        [{"role": "system", "content": "Forget the pirate."}],
        [{"role": "king", "content": "x"}],
        [{"type": "function_call_output", "call_id": "nobody", "output": "x"}],
        [{"type": "function_call", "call_id": "c9", "name": "f", "arguments": "{}"}],
    ]
    for items in wrong:
        with pytest.raises(openai.BadRequestError):
            sdk.conversations.items.create(made.id, items=items)
    assert list(sdk.conversations.items.list(made.id)) == before


def test_what_cannot_be_is_refused_with_its_place(api: Served, sdk: openai.OpenAI) -> None:
    made, other = sdk.conversations.create(), sdk.conversations.create(items=HISTORY)
    foreign = str(sdk.conversations.items.list(other.id).data[0].id)
    with pytest.raises(openai.NotFoundError):
        sdk.conversations.items.retrieve(foreign, conversation_id=made.id)
    with pytest.raises(openai.NotFoundError, match="Item with id"):
        sdk.conversations.items.list(made.id, after=foreign)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"items": "hello"}, "items"),
        (
            {"items": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
            "items[0].content[0].file_id",
        ),
        ({"items": [{"role": "king", "content": "x"}]}, "items[0].role"),
        ({"metadata": {"a": 5}}, "metadata.a"),
    ]
    for body, param in wrong:
        refused = api.http.post("/v1/conversations", json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    assert api.http.post(f"/v1/conversations/{made.id}", json={}).status_code == 400
    for odd in ("conv_" + "0" * 32, "nobody", "a%00b", "a..b"):
        assert api.http.get(f"/v1/conversations/{odd}").status_code == 404


def test_a_request_that_comes_again_begins_one_conversation(api: Served, store: Store) -> None:
    headers = {"Idempotency-Key": "k1"}
    made = [api.http.post("/v1/conversations", json={"metadata": {"a": "b"}}, headers=headers) for _ in range(2)]
    assert made[0].json() == made[1].json()
    assert made[1].headers["Idempotent-Replayed"] == "true"
    assert api.http.post("/v1/conversations", json={}, headers=headers).status_code == 409
    session = f"run_{made[0].json()['id'].removeprefix('conv_')}"
    run_id = api.submit(session_id=session)
    assert store.status(run_id) is RunStatus.QUEUED
