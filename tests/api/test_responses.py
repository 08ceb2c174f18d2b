"""/v1/responses, on a real server, with the stock SDK. The test is the worker."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import openai
import pydantic
import pytest
from answering import answering
from serving import Served, until
from support.store import Store, asks

from hermes_worker.core.errors import Failure
from hermes_worker.core.events import ModelFailed
from hermes_worker.core.messages import ModelReply, Usage
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import ExitReason, RunStatus
from hermes_worker.settings import Settings
from hermes_worker.stream.live import Live, LiveEntry

SAID = ModelReply(text="Arr!", usage=Usage(input=3, output=2, cache_read=4, reasoning=1))


@pytest.fixture
def sdk(api: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{api.url}/v1", api_key=api.key, max_retries=0, timeout=20)


def events_of(text: str) -> list[dict[str, Any]]:
    """The complete events of a stream, or of the beginning of one."""
    whole = text.split("\n\n")[:-1]
    blocks = [dict(line.split(": ", 1) for line in block.split("\n") if line[:1] != ":") for block in whole]
    found = [json.loads(block["data"]) for block in blocks if "data" in block]
    assert [block["event"] for block in blocks if "data" in block] == [event["type"] for event in found]
    return found


def two_steps(store: Store) -> Callable[[str], None]:
    def work(run_id: str) -> None:
        asked = asks(Replay.PURE, Replay.PURE)
        store.ask_tools(run_id, replace(asked, reply=replace(asked.reply, text="Let me look.")))
        store.settle(run_id, 1, "second")
        store.settle(run_id, 0, "first")
        store.answer(run_id, SAID)

    return work


def test_a_response_is_made_kept_and_forgotten(api: Served, sdk: openai.OpenAI, store: Store) -> None:
    with answering(store, two_steps(store)) as runs:
        made = sdk.responses.create(model="gpt-5.5", input="Hello?", instructions="Be a pirate.", metadata={"a": "b"})
    assert made.output_text == "Let me look.Arr!"
    assert (made.status, made.model, made.metadata) == ("completed", "gpt-5.5", {"a": "b"})
    assert made.id == f"resp_{runs[0].removeprefix('run_')}"
    assert [(item.type, getattr(item, "output", None)) for item in made.output] == [
        ("message", None), ("mcp_call", "first"), ("mcp_call", "second"), ("message", None),
    ]  # fmt: skip
    assert made.usage is not None
    assert (made.usage.input_tokens, made.usage.output_tokens, made.usage.total_tokens) == (17, 7, 24)
    kept = sdk.responses.retrieve(made.id)
    assert kept == made
    items = sdk.responses.input_items.list(made.id).data
    assert [item.content[0].text for item in items] == ["Hello?"]  # type: ignore[union-attr]
    sdk.responses.delete(made.id)
    for lost in (sdk.responses.retrieve, sdk.responses.delete, sdk.responses.cancel, sdk.responses.input_items.list):
        with pytest.raises(openai.NotFoundError):
            lost(made.id)
    assert api.http.get(f"/v1/runs/{runs[0]}").json()["status"] == "completed"


def test_a_response_follows_another(sdk: openai.OpenAI, store: Store) -> None:
    with answering(store, SAID, ModelReply(text="Aye."), ModelReply(text="Nay."), ModelReply(text="Ho.")) as runs:
        first = sdk.responses.create(input="One")
        second = sdk.responses.create(input="Two", previous_response_id=first.id)
        branch = sdk.responses.create(input="Three", previous_response_id=first.id)
        other = sdk.responses.create(input="Four", previous_response_id=second.id, instructions="Be brief.")
    assert second.previous_response_id == first.id
    assert [row["content"] for row in store.bodies(runs[1])] == ["One", "Arr!", "Two", "Aye."]
    assert [row["content"] for row in store.bodies(runs[2])] == ["One", "Arr!", "Three", "Nay."]
    assert [row["content"] for row in store.bodies(runs[3])] == ["One", "Arr!", "Two", "Aye.", "Four", "Ho."]
    sessions = [store.views.load_run(run_id).session.id for run_id in runs]
    assert sessions == [runs[0], runs[0], runs[2], runs[3]]
    assert (branch.status, other.instructions) == ("completed", "Be brief.")
    with pytest.raises(openai.NotFoundError) as refusal:
        sdk.responses.create(input="x", previous_response_id="resp_" + "0" * 32)
    assert refusal.value.code == "previous_response_not_found"


def test_a_conversation_has_a_name(sdk: openai.OpenAI, store: Store) -> None:
    with answering(store, SAID, ModelReply(text="Aye."), ModelReply(text="Ho.")) as runs:
        first = sdk.responses.create(input="One", conversation="bar")
        second = sdk.responses.create(input="Two", conversation={"id": "bar"})
        alone = sdk.responses.create(input="Three")
        sdk.responses.create(input="Four", conversation=f"conv_{alone.id.removeprefix('resp_')}")
    assert [row["content"] for row in store.bodies(runs[1])] == ["One", "Arr!", "Two", "Aye."]
    assert [row["content"] for row in store.bodies(runs[3])] == ["Three", "Ho.", "Four", "Ho."]
    assert first.conversation is not None and second.conversation is not None
    assert first.conversation.id == second.conversation.id == "bar"
    with pytest.raises(openai.BadRequestError, match="exclude"):
        sdk.responses.create(input="x", conversation="bar", previous_response_id=first.id)


def test_a_background_response_is_looked_at_and_cancelled(sdk: openai.OpenAI, store: Store) -> None:
    made = sdk.responses.create(input="Long", background=True)
    assert (made.status, made.background, made.output) == ("queued", True, [])
    run_id = f"run_{made.id.removeprefix('resp_')}"
    store.ask_tools(run_id, asks(Replay.PURE))
    assert sdk.responses.retrieve(made.id).status == "in_progress"
    assert sdk.responses.cancel(made.id).status == "cancelled"
    until(lambda: store.status(run_id) is RunStatus.CANCELLED, "the end of the run")
    assert sdk.responses.cancel(made.id).status == "cancelled"
    with pytest.raises(openai.BadRequestError, match="store"):
        sdk.responses.create(input="Long", background=True, store=False)


def test_what_is_not_stored_is_not_to_be_had(sdk: openai.OpenAI, store: Store) -> None:
    with answering(store, SAID):
        made = sdk.responses.create(input="Hello", store=False)
    assert made.output_text == "Arr!"
    with pytest.raises(openai.NotFoundError):
        sdk.responses.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        sdk.responses.create(input="x", previous_response_id=made.id)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_stops_only_what_nobody_can_ask_for(api: Served, store: Store, stream: bool) -> None:
    for number, (is_stored, status) in enumerate(((True, RunStatus.QUEUED), (False, RunStatus.CANCELLED)), start=1):
        document = {"input": "Hello", "stream": stream, "store": is_stored}
        with pytest.raises(httpx.ReadTimeout):
            api.http.post("/v1/responses", json=document, timeout=0.7)
        until(lambda wanted=number: len(store.views.list_runs()) == wanted, "the run")
        run_id = store.views.list_runs(limit=1)[0].run_id
        until(lambda: api.followers.count == 0, "the client is seen to leave")
        until(lambda run=run_id, wanted=status: store.status(run) is wanted, f"{status} of what is stored: {is_stored}")


def test_a_run_of_the_other_api_is_a_response(api: Served, sdk: openai.OpenAI, store: Store) -> None:
    run_id = api.submit()
    store.answer(run_id, SAID)
    assert sdk.responses.retrieve(f"resp_{run_id.removeprefix('run_')}").output_text == "Arr!"


def test_a_failure_is_said_to_be_one(sdk: openai.OpenAI, store: Store) -> None:
    def fail(run_id: str) -> None:
        failure = Failure(kind="auth", message="the key is wrong")
        store.runs.commit_failure(
            store.turn(run_id), ModelFailed(exit_reason=ExitReason.MODEL_CALL_REFUSED, failure=failure)
        )

    with answering(store, fail):
        made = sdk.responses.create(input="Hello")
        streamed = list(sdk.responses.create(input="Hello", stream=True))
    assert made.status == "failed"
    assert made.error is not None and "key is wrong" in made.error.message
    assert made.error.to_dict()["type"] == "server_error", "the AI SDK cannot read an error without"
    assert streamed[-1].type == "response.failed"
    assert (made.output_text, streamed[-1].response.output_text) == ("", "")


def test_a_structured_response_that_fails_says_why(sdk: openai.OpenAI, store: Store) -> None:
    class Answer(pydantic.BaseModel):
        number: int

    def fail(run_id: str) -> None:
        failure = Failure(kind="output_invalid", message="it is no number")
        store.runs.commit_failure(
            store.turn(run_id), ModelFailed(exit_reason=ExitReason.OUTPUT_INVALID, failure=failure)
        )

    with answering(store, fail):
        parsed = sdk.responses.parse(model="hermes-agent", input="Hello", text_format=Answer)
    assert parsed.output_parsed is None
    assert parsed.error is not None and "it is no number" in parsed.error.message


def test_a_response_comes_as_it_is_written(api: Served, sdk: openai.OpenAI, store: Store) -> None:
    live = Live(api.client.redis)

    def work(run_id: str) -> None:
        until(lambda: api.followers.count, "a reader")
        for at, text in ((0, "Let "), (4, "me ")):
            live.append(run_id, LiveEntry(kind="text", text=text, iteration=1, attempt=1, offset=at))
        two_steps(store)(run_id)

    with answering(store, work), sdk.responses.stream(model="x", input="Hello") as stream:
        seen = list(stream)
        final = stream.get_final_response()
    kinds = [event.type for event in seen]
    assert kinds[:4] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
    ]  # fmt: skip
    assert kinds[-1] == "response.completed"
    assert "".join(e.delta for e in seen if e.type == "response.output_text.delta") == "Let me look.Arr!"
    assert final.output_text == "Let me look.Arr!"
    assert [item.type for item in final.output] == ["message", "mcp_call", "mcp_call", "message"]
    numbers = [event.sequence_number for event in seen]
    assert numbers == sorted(set(numbers))
    assert [item.id for item in sdk.responses.retrieve(final.id).output] == [item.id for item in final.output]


def cut_and_resumed(replicas: list[Served], response: str, random_: random.Random) -> list[dict[str, Any]]:
    """The events of a stream that is cut at a random byte, again and again, and taken up at another server."""
    seen: list[dict[str, Any]] = []
    for attempt in range(1_000):
        query = {"stream": "true", **({"starting_after": seen[-1]["sequence_number"]} if seen else {})}
        whole = replicas[attempt % len(replicas)].http.get(f"/v1/responses/{response}", params=query).content
        if not whole or (attempt and random_.random() < 0.3):
            return [*seen, *events_of(whole.decode())]
        seen += events_of(whole[: random_.randrange(len(whole))].decode("utf-8", "ignore"))
    raise AssertionError("it does not end")


def told(events: list[dict[str, Any]]) -> tuple[str, list[str], Any]:
    """The text, the other events and the final object."""
    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    others = [event["type"] for event in events if event["type"] != "response.output_text.delta"]
    return text, others, events[-1]["response"]


@pytest.mark.parametrize("cuts", [20, pytest.param(500, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_a_stream_that_is_cut_at_any_byte_is_taken_up_at_another_replica(
    api: Served, serve: Callable[..., Served], settings: Settings, store: Store, cuts: int
) -> None:
    other = serve(settings)
    run_id = api.submit()
    asked = asks(Replay.PURE, Replay.PURE)
    store.ask_tools(run_id, replace(asked, reply=replace(asked.reply, text="Schöne Grüße \N{WAVING HAND SIGN}\r\n: x")))
    store.settle(run_id, 1, "second")
    store.settle(run_id, 0, "first")
    store.answer(run_id, ModelReply(text="data: {}\n\nevent: done \u2028 end"))
    response = f"resp_{run_id.removeprefix('run_')}"
    uncut = events_of(api.http.get(f"/v1/responses/{response}", params={"stream": "true"}).text)
    assert uncut[-1]["type"] == "response.completed"
    for seed in range(cuts):
        events = cut_and_resumed([api, other], response, random.Random(seed))
        assert told(events) == told(uncut), seed
        numbers = [event["sequence_number"] for event in events]
        assert numbers == sorted(set(numbers)), seed
