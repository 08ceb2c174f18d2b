"""Each event of a real stream is what the document says of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from serving import Reader, Served
from support.documented import Streams
from support.questions import DANGER, QUESTION, open_wait
from support.store import ANSWER, Store, asks, settlement

from hermes_worker.core.events import AskedAgain
from hermes_worker.core.messages import Usage, build_user_body, dump_canonical_json
from hermes_worker.core.questions import Refusal, RefusedBy
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import CallStatus
from hermes_worker.core.run_events import RunEventName
from hermes_worker.store.hooks.calls import HookCalls
from hermes_worker.store.runs.calls import build_started_event
from hermes_worker.store.runs.runs import CompactionRow
from hermes_worker.store.runs.waits import Waits
from hermes_worker.stream.events import LIVE_FIELDS, ROW_FIELDS, build_event_schemas
from hermes_worker.stream.live import Live, LiveEntry

AGAIN = AskedAgain(memory=None, is_counted=False)


def eventful(api: Served, store: Store) -> str:
    """A run to which everything happens that ends well."""
    run_id = api.submit(max_iterations=3)
    store.runs.commit_discarded_reply(store.turn(run_id), AGAIN, ANSWER)
    summary = CompactionRow(body=build_user_body("a summary"), rows=7, number=1, usage=Usage(input=1))
    store.runs.commit_compaction(store.turn(run_id), AGAIN, summary)
    lose_a_worker(store, run_id)
    store.ask_tools(run_id, asks(Replay.ONCE, Replay.ONCE, Replay.ONCE))
    api.http.post(f"/v1/runs/{run_id}/steer", json={"text": "in French"}).raise_for_status()
    api.http.post(f"/v1/runs/{run_id}/pause").raise_for_status()
    api.http.post(f"/v1/runs/{run_id}/resume").raise_for_status()
    waits = Waits(store.database)
    waits.ask(store.call(run_id, 0), DANGER)
    denied = {"choice": "deny", "reason": "no", "wait_id": open_wait(store.database, run_id)}
    api.http.post(f"/v1/runs/{run_id}/approval", json=denied).raise_for_status()
    waits.ask(store.call(run_id, 1), QUESTION)
    answer = {"text": "blue", "wait_id": open_wait(store.database, run_id)}
    api.http.post(f"/v1/runs/{run_id}/input", json=answer).raise_for_status()
    confined = settlement("ok", status=CallStatus.FAILED)
    refusal = Refusal(by=RefusedBy.RULES, reason="not here")
    store.calls.settle(store.call(run_id, 2), replace(confined, sandbox="bubblewrap", network="proxy", refusal=refusal))
    for _ in range(2):
        store.ask_tools(run_id, asks(Replay.PURE))
        store.settle(run_id)
    store.answer(run_id)
    return run_id


def lose_a_worker(store: Store, run_id: str) -> None:
    worker = store.worker("lost")
    store.turn(run_id, worker.pk)
    store.vanish(worker)
    store.sweep()


def failed(api: Served, store: Store) -> str:
    run_id = api.submit(max_wall_s=100)
    store.ask_tools(run_id, asks(Replay.PURE))
    store.call(run_id)
    store.let_pass(1_000)
    store.sweep()
    return run_id


def stopped(api: Served, store: Store) -> str:
    run_id = api.submit()
    store.ask_tools(run_id, asks(Replay.PURE, Replay.PURE))
    claim = store.call(run_id)
    HookCalls(store.database).record_failure(claim.run_pk, hook="audit", event="pre_tool_call", reason="it hung")
    api.http.post(f"/v1/runs/{run_id}/stop").raise_for_status()
    store.calls.settle(claim, settlement())
    return run_id


@pytest.fixture
def streams(api: Served) -> Streams:
    return Streams(api.http.get("/openapi.json?openapi=3.2").json())


def frames_of(api: Served, path: str, run_id: str) -> list[tuple[str, dict[str, Any]]]:
    """Of a stream that ends: the id and the data of each event."""
    text = api.http.get(path.format(run_id=run_id)).text
    frames = [frame for frame in text.split("\n\n") if frame and not frame.startswith(":")]
    found = []
    for frame in frames:
        first, second = frame.splitlines()
        found.append((first.removeprefix("id: "), json.loads(second.removeprefix("data: "))))
    return found


RUN, TREE = "/v1/runs/{run_id}/events", "/v1/runs/{run_id}/tree/events"


@pytest.mark.parametrize("path", [RUN, TREE], ids=["run", "tree"])
def test_every_kind_of_row_is_told_as_the_document_says(api: Served, store: Store, streams: Streams, path: str) -> None:
    told = [frame for happen in (eventful, failed, stopped) for frame in frames_of(api, path, happen(api, store))]
    assert [streams.misfit(path, *frame) for frame in told if streams.misfit(path, *frame)] == []
    assert {event["event"] for _, event in told} - set(LIVE_FIELDS) == {*RunEventName}


def test_live_pieces_are_told_as_the_document_says(api: Served, store: Store, streams: Streams) -> None:
    run_id = api.submit()
    reader, live = Reader(api, run_id), Live(api.client.redis)

    def say(kind: str, text: str, *, iteration: int = 1, at: int = 0) -> None:
        live.append(run_id, LiveEntry(kind=kind, text=text, iteration=iteration, attempt=1, offset=at))

    say("reasoning", "thinking")
    say("text", "Let me")
    say("tool", "terminal")
    reader.wait_for("tool.generating")
    store.ask_tools(run_id, asks(Replay.PURE, Replay.PURE))
    second = store.call(run_id, 1)
    say("tool_started", dump_canonical_json(build_started_event(second).data), at=1)
    assert reader.wait_for("tool.started")["position"] == 1
    say("tool_progress", dump_canonical_json({"tool": "terminal", "text": "half"}), at=1)
    assert reader.wait_for("tool.progress")["position"] == 1
    for foreign in ('{"tool":1}', '{"tool":"x","tool_call_id":[]}', '{"preview":"x"}', '{"tool":"x","position":true}'):
        say("tool_started", foreign)
    store.calls.settle(second, settlement())
    store.settle(run_id)
    store.answer(run_id)
    reader.wait_for_end()
    told = list(zip(reader.ids, reader.events, strict=True))
    assert [streams.misfit(RUN, *frame) for frame in told if streams.misfit(RUN, *frame)] == []
    assert set(LIVE_FIELDS) <= set(reader.names)


def test_every_kind_of_event_has_a_type_and_a_schema_of_its_name() -> None:
    assert {str(name) for name in ROW_FIELDS} == {*RunEventName}
    assert {*LIVE_FIELDS, *RunEventName} <= set(build_event_schemas())


@pytest.mark.parametrize(
    "spoil",
    [
        lambda event: event.pop("run_id"),
        lambda event: event.update(timestamp="now"),
        lambda event: event.update(more=1),
        lambda event: event.update(iteration="one"),
        lambda event: event.update(event="message.invented"),
    ],
)
def test_what_the_document_does_not_say_is_noticed(
    api: Served, store: Store, streams: Streams, spoil: Callable[[dict[str, Any]], object]
) -> None:
    run_id = api.submit()
    store.answer(run_id)
    event_id, event = next(frame for frame in frames_of(api, RUN, run_id) if frame[1]["event"] == "message.completed")
    assert streams.misfit(RUN, event_id, event) is None
    assert streams.misfit(RUN, "x", event) is not None
    spoil(event)
    assert streams.misfit(RUN, event_id, event) is not None
