"""GET /v1/runs/{id}/events, on a real server. The test is the worker."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import httpx
import pytest
import redis
import sqlalchemy as sa
from cloudevents.core.formats.json import JSONFormat
from serving import FAST, Reader, Served, until
from support.store import ANSWER, Store, asks, settlement

from hermes_worker.api.context import BROKER_THREADS, HEALTH_THREADS, STORE_THREADS
from hermes_worker.broker.queue import CONTROL_CHANNEL
from hermes_worker.core.errors import Failure
from hermes_worker.core.events import ModelFailed
from hermes_worker.core.messages import ModelReply, Usage, dump_canonical_json
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import ExitReason
from hermes_worker.settings import BrokerSettings, DatabaseSettings, Settings
from hermes_worker.store.runs.calls import build_started_event
from hermes_worker.store.tables import runs
from hermes_worker.stream.live import Live, LiveEntry, make_stream_key
from hermes_worker.stream.sse import GOING_AWAY
from hermes_worker.system.open_files import raise_open_file_limit


@pytest.fixture
def live(api: Served) -> Live:
    return Live(api.client.redis)


def say(
    live: Live, run_id: str, text: str, *, at: int = 0, kind: str = "text", iteration: int = 1, attempt: int = 1
) -> None:
    live.append(run_id, LiveEntry(kind=kind, text=text, iteration=iteration, attempt=attempt, offset=at))


def without_times(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in event.items() if name != "timestamp"} for event in events]


def complete(store: Store, run_id: str, text: str = "Hello world") -> None:
    store.answer(run_id, ModelReply(text=text, usage=Usage(input=3, output=2)))


def watched_until(store: Store, run_id: str) -> float:
    with store.database.read() as connection:
        return connection.execute(sa.select(runs.c.watched_until).where(runs.c.run_id == run_id)).scalar_one()


def test_a_run_may_be_told_in_cloud_events(api: Served, store: Store) -> None:
    run_id = api.submit()
    complete(store, run_id)
    answer = api.http.get(f"/v1/runs/{run_id}/events", params={"format": "cloudevents"})
    data = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    told = [JSONFormat().read(None, line.encode()) for line in data]
    assert told[-1].get_type() == "hermes_worker.run.completed"
    assert {one.get_source() for one in told} == {f"/v1/runs/{run_id}"}
    assert len({one.get_id() for one in told}) == len(told) > 2
    plain = api.http.get(f"/v1/runs/{run_id}/events").text
    assert told[-1].get_data()["output"] == "Hello world" and '"specversion"' not in plain
    assert api.http.get(f"/v1/runs/{run_id}/events", params={"format": "xml"}).status_code == 400


def test_a_run_is_told_from_its_first_word_to_its_end(api: Served, store: Store, live: Live) -> None:
    run_id = api.submit()
    reader = Reader(api, run_id)
    say(live, run_id, "thinking", kind="reasoning")
    say(live, run_id, "Let me ")
    reader.wait_for("message.delta")
    say(live, run_id, "look.", at=7)
    reader.wait_for("message.delta", 2)
    asked = asks(Replay.PURE)
    asked = replace(asked, reply=replace(asked.reply, text="Let me look.", reasoning="thinking"))
    store.ask_tools(run_id, asked)
    claim = store.call(run_id)
    text = dump_canonical_json(build_started_event(claim).data)
    live.append(run_id, LiveEntry(kind="tool_started", text=text, iteration=1, attempt=1, offset=0))
    reader.wait_for("tool.started")
    store.calls.settle(claim, settlement())
    complete(store, run_id)
    live.nudge(run_id)
    reader.wait_for_end()

    told = without_times(reader.events)
    assert told == [
        {"event": "reasoning.available", "run_id": run_id, "text": "thinking"},
        {"event": "message.delta", "run_id": run_id, "delta": "Let me "},
        {"event": "message.delta", "run_id": run_id, "delta": "look."},
        {
            "event": "message.completed",
            "run_id": run_id,
            "text": "Let me look.",
            "iteration": 1,
            "finish_reason": "tool_calls",
        },
        {
            "event": "tool.started",
            "run_id": run_id,
            "tool": "tool0",
            "preview": '{"n":0}',
            "about": "n=0",
            "tool_call_id": "call_0",
        },
        {
            "event": "tool.completed",
            "run_id": run_id,
            "tool": "tool0",
            "duration": 0.01,
            "error": False,
            "tool_call_id": "call_0",
        },
        {"event": "message.delta", "run_id": run_id, "delta": "Hello world"},
        {
            "event": "message.completed",
            "run_id": run_id,
            "text": "Hello world",
            "iteration": 2,
            "finish_reason": "stop",
        },
        {
            "event": "run.completed",
            "run_id": run_id,
            "output": "Hello world",
            "usage": {"input_tokens": 13, "output_tokens": 7, "total_tokens": 20},
            "exit_reason": "text_response",
        },
    ]
    assert all(abs(event["timestamp"] - time.time()) < 60 for event in reader.events)
    assert reader.lines[-2:] == [": stream closed", ""]
    assert reader.headers["content-type"].startswith("text/event-stream")
    assert reader.headers["cache-control"] == "no-cache"
    assert reader.headers["x-accel-buffering"] == "no"
    assert not any(line.startswith("event:") for line in reader.lines)


def test_a_replay_after_the_end_tells_the_same_rows(api: Served, store: Store) -> None:
    run_id = store.with_tools(Replay.PURE, Replay.ONCE)
    store.settle(run_id, 0)
    store.settle(run_id, 1)
    complete(store, run_id)
    first, second = Reader(api, run_id).wait_for_end(), Reader(api, run_id).wait_for_end()
    assert first.events == second.events
    assert [i for i in first.ids if i.isdigit()] == [str(n) for n in range(1, 8)]
    half = first.ids[3]
    rest = Reader(api, run_id, last_event_id=half).wait_for_end()
    assert rest.events == first.events[4:]
    assert Reader(api, run_id, after=half).wait_for_end().events == rest.events
    assert Reader(api, run_id, after="0", last_event_id=half).wait_for_end().events == rest.events
    nothing = Reader(api, run_id, last_event_id=first.ids[-1]).wait_for_end()
    assert nothing.events == []
    assert nothing.comments == [": stream closed"]


def test_a_reader_that_comes_back_goes_on_in_the_middle_of_a_word(api: Served, store: Store, live: Live) -> None:
    run_id = api.submit()
    first = Reader(api, run_id)
    say(live, run_id, "Hello w")
    first.wait_for("message.delta")
    first.leave()
    second = Reader(api, run_id, last_event_id=first.ids[-1])
    say(live, run_id, "orl", at=7)
    second.wait_for("message.delta")
    second.leave()
    store.answer(run_id, ModelReply(text="Hello world"))
    third = Reader(api, run_id, last_event_id=second.ids[-1]).wait_for_end()
    assert (first.text, second.text, third.text) == ("Hello w", "orl", "d")
    assert third.names == ["message.delta", "message.completed", "run.completed"]


def test_a_reader_who_names_an_event_that_is_not_there_yet_still_hears_the_end(api: Served, store: Store) -> None:
    run_id = api.submit()
    ahead = [Reader(api, run_id, last_event_id=told) for told in ("9588", "9588.7.3-1f.0-0.0.0")]
    until(lambda: all(reader.headers for reader in ahead), "the answers")
    store.answer(run_id, ModelReply(text="Hello"))
    for reader in ahead:
        assert reader.wait_for_end().names[-1] == "run.completed"
    assert Reader(api, run_id, last_event_id="9588").wait_for_end().names == []


FOREVER = "18446744073709551615-18446744073709551615"


@pytest.mark.parametrize("spoil", ["words", "from the future"])
def test_a_preview_that_is_none_costs_no_other_run_its_own_and_begins_anew(
    api: Served, store: Store, live: Live, breaking: redis.Redis, spoil: str
) -> None:
    run_id, other = api.submit(), api.submit()
    readers = [Reader(api, run_id), Reader(api, other)]
    say(live, run_id, "Hello")
    readers[0].wait_for("message.delta")
    if spoil == "words":
        breaking.set(make_stream_key(run_id), "words")
    else:
        breaking.xadd(make_stream_key(run_id), {"kind": "row"}, id=FOREVER)
    say(live, other, "Good ")
    readers[1].wait_for("message.delta")
    say(live, run_id, " world", at=5)
    readers[0].wait_for("message.delta", 2)
    for each in (run_id, other):
        complete(store, each)
        live.nudge(each)
    for reader in readers:
        reader.wait_for_end()
    assert breaking.type(make_stream_key(run_id)) == "stream"


def test_a_reader_that_comes_late_gets_what_others_heard_before(api: Served, live: Live) -> None:
    run_id = api.submit()
    early = Reader(api, run_id)
    say(live, run_id, "Hello ")
    early.wait_for("message.delta")
    late = Reader(api, run_id)
    late.wait_for("message.delta")
    say(live, run_id, "world", at=6)
    until(lambda: early.text == late.text == "Hello world", "both to have all of it")


def test_one_reader_that_leaves_disturbs_nobody(api: Served, store: Store, live: Live) -> None:
    run_id = api.submit()
    readers = [Reader(api, run_id) for _ in range(5)]
    until(lambda: api.followers.count == 5, "five readers")
    readers[2].leave()
    until(lambda: api.followers.count == 4, "four readers")
    say(live, run_id, "Hello world")
    complete(store, run_id)
    for reader in (*readers[:2], *readers[3:]):
        assert reader.wait_for_end().text == "Hello world"
    until(lambda: api.followers.count == 0, "no reader left")


def test_rows_that_nobody_announces_are_found(api: Served, store: Store) -> None:
    run_id = api.submit()
    reader = Reader(api, run_id)
    until(lambda: api.followers.count, "the reader")
    claim = store.turn(run_id)
    failure = Failure(kind="billing", message="no credit left on sk-abcdefghijklmnopqrstuvwxyz")
    store.runs.commit_failure(claim, ModelFailed(failure=failure, exit_reason=ExitReason.MODEL_CALL_REFUSED))
    event = reader.wait_for("run.failed")
    assert event["error"] == "no credit left on sk-abc...wxyz"
    assert event["exit_reason"] == "model_call_refused"
    reader.wait_for_end()


def test_an_attempt_that_says_something_else_is_not_appended(api: Served, store: Store, live: Live) -> None:
    run_id = api.submit()
    reader = Reader(api, run_id)
    say(live, run_id, "I will ")
    reader.wait_for("message.delta")
    say(live, run_id, "The answer", attempt=2)
    store.answer(run_id, ModelReply(text="The answer is 4."))
    reader.wait_for_end()
    assert reader.text == "I will "
    assert reader.wait_for("message.completed")["text"] == "The answer is 4."


def test_a_parallel_call_is_told_once_whichever_way_it_comes(api: Served, store: Store, live: Live) -> None:
    run_id = store.with_tools(Replay.PURE, Replay.PURE, Replay.PURE)
    reader = Reader(api, run_id)
    reader.wait_for("message.completed")
    claims = [store.call(run_id, position) for position in range(3)]
    for claim in claims[:2]:
        text = dump_canonical_json(build_started_event(claim).data)
        live.append(run_id, LiveEntry(kind="tool_started", text=text, iteration=1, attempt=1, offset=claim.position))
    reader.wait_for("tool.started", 2)
    store.calls.settle(claims[1], settlement())
    reader.wait_for("tool.completed")
    reader.leave()
    back = Reader(api, run_id, last_event_id=reader.ids[-1])
    store.calls.settle(claims[0], settlement())
    store.calls.settle(claims[2], settlement())
    back.wait_for("tool.completed", 2)
    started = [e["tool_call_id"] for r in (reader, back) for e in r.events if e["event"] == "tool.started"]
    assert sorted(started) == ["call_0", "call_1", "call_2"]


# --- watching --------------------------------------------------------------------------------------------------------


def test_whoever_reads_makes_workers_write_the_preview(api: Served, store: Store) -> None:
    run_id = api.submit()
    with api.client.redis.pubsub(ignore_subscribe_messages=True) as control:
        control.subscribe(CONTROL_CHANNEL)
        control.get_message(timeout=1)
        Reader(api, run_id)
        message = until(lambda: control.get_message(timeout=1), "the nudge")
        assert message["data"] == f"watch {run_id}"
    assert store.turn(run_id).loaded.is_watched


def test_a_long_stream_keeps_its_run_watched(serve: Callable[..., Served]) -> None:
    api = serve(policy=replace(FAST, watch_for_s=0.5, watch_every_s=0.1))
    store = Store.over(api.client.database)
    run_id = api.submit()
    Reader(api, run_id)
    until(lambda: api.followers.count, "the reader")
    first = watched_until(store, run_id)
    until(lambda: watched_until(store, run_id) > first + 1.0, "the watch to be renewed for twice the time it lasts")


def test_a_silent_stream_says_that_it_is_alive(serve: Callable[..., Served]) -> None:
    api = serve(policy=replace(FAST, keepalive_s=0.05))
    reader = Reader(api, api.submit())
    until(lambda: reader.comments.count(": keepalive") >= 3, "three signs of life")
    assert reader.events == []


# --- when something is away ------------------------------------------------------------------------------------------


def test_without_a_broker_rows_are_told_all_the_same(serve: Callable[..., Served], settings: Settings) -> None:
    api = serve(replace(settings, broker=BrokerSettings(url="redis://127.0.0.1:1/0")))
    store = Store.over(api.client.database)
    run_id = api.submit()
    reader = Reader(api, run_id)
    until(lambda: api.followers.count, "the reader")
    complete(store, run_id)
    assert reader.wait_for_end().names == ["message.delta", "message.completed", "run.completed"]
    assert reader.text == "Hello world"


def test_a_stream_outlives_its_broker(serve: Callable[..., Served], settings: Settings, own_valkey: Any) -> None:
    api = serve(replace(settings, broker=BrokerSettings(url=own_valkey.url)))
    store, live = Store.over(api.client.database), Live(api.client.redis)
    run_id = api.submit()
    reader = Reader(api, run_id)
    say(live, run_id, "Hel")
    reader.wait_for("message.delta")
    own_valkey.kill()
    until(lambda: not api.followers.is_broker_up, "the broker to be missed")
    store.ask_tools(run_id, replace(asks(Replay.PURE), reply=replace(asks(Replay.PURE).reply, text="Hello")))
    reader.wait_for("message.completed")
    own_valkey.start()
    until(lambda: api.followers.is_broker_up, "the broker to be back")
    store.settle(run_id)
    reader.wait_for("tool.completed")
    say(live, run_id, "wor", iteration=2)
    until(lambda: reader.text == "Hellowor", "live text again")
    complete(store, run_id, "world")
    assert reader.wait_for_end().text == "Helloworld"


def test_a_stream_outlives_a_database_that_is_away(
    serve: Callable[..., Served], settings: Settings, own_postgres: Any
) -> None:
    api = serve(replace(settings, database=DatabaseSettings(url=own_postgres.build_url())))
    store = Store.over(api.client.database)
    run_id = api.submit()
    reader = Reader(api, run_id)
    until(lambda: api.followers.count, "the reader")
    own_postgres.stop()
    until(lambda: api.http.get(f"/v1/runs/{run_id}").status_code == 503, "the database to be missed")
    own_postgres.start()
    until(lambda: api.http.get(f"/v1/runs/{run_id}").status_code == 200, "the database to be back")
    complete(store, run_id)
    assert reader.wait_for_end().text == "Hello world"


def test_a_server_that_stops_ends_its_streams_and_another_goes_on(serve: Callable[..., Served]) -> None:
    first = serve()
    store = Store.over(first.client.database)
    run_id = store.with_tools(Replay.PURE)
    reader = Reader(first, run_id)
    reader.wait_for("message.completed")
    first.stop()
    # Told so, and not cut off when the time that requests may take to end was over.
    assert GOING_AWAY.decode().strip() in reader.wait_for_end().comments
    assert reader.comments == [": server is going away, reconnect with Last-Event-ID"]
    second = serve()
    store = Store.over(second.client.database)
    store.settle(run_id)
    store.answer(run_id, ANSWER)
    back = Reader(second, run_id, last_event_id=reader.ids[-1]).wait_for_end()
    assert back.names[:2] == ["tool.started", "tool.completed"]


# --- bad requests ----------------------------------------------------------------------------------------------------


def test_a_stream_of_no_run_is_404(http: httpx.Client) -> None:
    answer = http.get("/v1/runs/run_nope/events")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "run_not_found"


@pytest.mark.parametrize("value", ["x", "-1", "1.2", "9" * 50, "1;2"])
def test_an_id_that_we_did_not_give_is_refused(http: httpx.Client, api: Served, value: str) -> None:
    run_id = api.submit()
    by_header = http.get(f"/v1/runs/{run_id}/events", headers={"Last-Event-ID": value})
    by_query = http.get(f"/v1/runs/{run_id}/events", params={"after": value})
    assert (by_header.status_code, by_header.json()["error"]["param"]) == (400, "Last-Event-ID")
    assert (by_query.status_code, by_query.json()["error"]["param"]) == (400, "after")


# --- many ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("runs", [8, pytest.param(40, marks=pytest.mark.nightly)])
def test_a_thousand_idle_readers_cost_no_threads_and_all_hear_the_end(api: Served, store: Store, runs: int) -> None:
    """Runs with 25 readers each, over raw sockets: clients of any library would cost more than the server. By day a
    fifth of the thousand."""
    raise_open_file_limit()
    run_ids = [api.submit() for _ in range(runs)]
    count = runs * 25
    host, port = api.url.removeprefix("http://").split(":")
    authorization = api.authorization

    async def read(run_id: str) -> bytes:
        reader, writer = await asyncio.open_connection(host, int(port), limit=2**20)
        lines = f"Host: {host}\r\nAuthorization: {authorization}\r\nConnection: close"
        writer.write(f"GET /v1/runs/{run_id}/events HTTP/1.1\r\n{lines}\r\n\r\n".encode())
        try:
            return await reader.read(-1)
        finally:
            writer.close()

    async def all_read() -> list[bytes]:
        before = set(threading.enumerate())  # threads of earlier servers may linger
        readers = [asyncio.create_task(read(run_id)) for run_id in run_ids for _ in range(25)]
        await asyncio.to_thread(partial(until, lambda: api.followers.count == count, f"{count} readers"))
        begun = set(threading.enumerate()) - before
        ours = [thread for thread in begun if thread.name.startswith(("AnyIO", "api_"))]
        assert len(ours) <= STORE_THREADS + BROKER_THREADS + HEALTH_THREADS + 2
        answer = await asyncio.to_thread(api.http.get, "/health")
        assert (answer.status_code, api.followers.count) == (200, count)
        for run_id in run_ids:
            await asyncio.to_thread(store.answer, run_id)
        return await asyncio.gather(*readers)

    streams = asyncio.run(all_read())
    assert all(b"run.completed" in stream and b": stream closed" in stream for stream in streams)
    until(lambda: api.followers.count == 0, "no reader left")


def test_a_run_has_only_so_many_readers_and_a_place_is_free_again(serve: Callable[..., Served]) -> None:
    api = serve(policy=replace(FAST, readers_of_run_max=2))
    run_id, other = api.submit(), api.submit()
    readers = [Reader(api, run_id) for _ in range(2)]
    until(lambda: api.followers.count == 2, "two readers")
    for path in (f"/v1/runs/{run_id}/events", f"/v1/runs/{run_id}/tree/events"):
        answer = api.http.get(path)
        assert (answer.status_code, answer.headers["Retry-After"]) == (429, "5")
        assert "this run has too many readers" in answer.json()["error"]["message"]
    third = Reader(api, other)
    until(lambda: api.followers.count == 3, "a reader of another run")
    readers[0].leave()
    until(lambda: api.followers.count == 2, "a free place")
    again = Reader(api, run_id)
    until(lambda: api.followers.count == 3, "a reader in its place")
    for reader in (readers[1], third, again):
        reader.leave()


def test_a_process_has_only_so_many_readers(serve: Callable[..., Served]) -> None:
    api = serve(policy=replace(FAST, readers_max=1))
    reader = Reader(api, api.submit())
    until(lambda: api.followers.count == 1, "a reader")
    answer = api.http.get(f"/v1/runs/{api.submit()}/events")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "too_many_readers")
    reader.leave()
