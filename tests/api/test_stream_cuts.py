"""Streams that break at any byte, and go on at another server: what their reader has in the end is what one has who was
never cut off.

CI cuts a few; at length:

    pytest -m slow -n 0 tests/api/test_stream_cuts.py
"""

from __future__ import annotations

import http.client
import json
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from serving import PATIENCE_S, Served, until
from support.migrated import bring_up
from support.store import Store, asks, settlement

from hermes_worker.core.messages import ModelReply, Usage
from hermes_worker.core.replay import Replay
from hermes_worker.settings import DatabaseSettings, Settings
from hermes_worker.stream.live import Live, LiveEntry

SEED = 17
FIRST_S = 60.0
"""The first request to a server that shares its machine may take long: it imports what it needs."""
TEXT = "Ein längerer Text, in Stücken: 1 \u2192 2 \U0001f40d " * 6
DELTAS = ("message.delta", "assistant.delta", "reasoning.available")


@dataclass
class CutReader:
    """Reads a stream at one server after the other, each time so many bytes."""

    servers: list[Served]
    method: str
    path: str
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    last_id: str | None = None
    run_id: str | None = None
    connections: int = 0
    is_closed: bool = False

    def read(self, bytes_max: int | None) -> None:
        """Until the server ends the stream, or so many bytes came."""
        server = self.servers[self.connections % len(self.servers)]
        self.connections += 1
        headers = {"Authorization": server.authorization, **self.headers}
        if self.last_id is not None:
            headers["Last-Event-ID"] = self.last_id
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=FIRST_S)
        try:
            connection.request(self.method, self.path, body=self.body, headers=headers)
            response = connection.getresponse()
            assert response.status == 200, response.read()
            self.run_id = response.headers.get("X-Hermes-Run-Id", self.run_id)
            self._take(response, bytes_max)
        finally:
            connection.close()

    def _take(self, response: http.client.HTTPResponse, bytes_max: int | None) -> None:
        got = b""
        while bytes_max is None or len(got) < bytes_max:
            more = response.read1(4096 if bytes_max is None else min(4096, bytes_max - len(got)))
            if not more:
                self.is_closed = got.endswith(b": stream closed\n\n")
                break
            got += more
        # What is behind the last empty line was cut off in the middle.
        for block in got.split(b"\n\n")[:-1]:
            lines = dict(line.split(": ", 1) for line in block.decode().splitlines() if not line.startswith(":"))
            if lines:
                self._take_block(lines)

    def _take_block(self, lines: dict[str, str]) -> None:
        self.last_id = lines["id"]
        fields = json.loads(lines["data"])
        self.events.append({"event": lines.get("event", fields.get("event")), **fields})


def final(events: list[dict[str, Any]]) -> dict[str, Any]:
    """What a client holds in the end: its texts, and what happened, in order."""
    texts = {
        name: "".join(str(each.get("delta", each.get("text"))) for each in events if each["event"] == name)
        for name in DELTAS
    }
    thought = "".join(each["delta"] for each in events if each["event"] == "tool.progress")
    left_out = (*DELTAS, "tool.progress")
    rows = [
        {name: value for name, value in each.items() if name not in ("seq", "ts", "timestamp")}
        for each in events
        if each["event"] not in left_out
    ]
    return {"texts": texts, "thought": thought, "rows": rows}


def play(api: Served, store: Store, run_id: str, die: random.Random) -> None:
    """A turn with thinking, words in pieces, and tools, as a worker does it."""
    live = Live(api.client.redis)

    def say(text: str, kind: str, iteration: int) -> None:
        at = 0
        while at < len(text):
            size = die.randint(1, 40)
            entry = LiveEntry(kind=kind, text=text[at : at + size], iteration=iteration, attempt=1, offset=at)
            live.append(run_id, entry)
            at += size

    say("Let me think.", "reasoning", 1)
    say("I look.", "text", 1)
    asked = asks(Replay.PURE, Replay.PURE)
    reply = ModelReply(text="I look.", reasoning="Let me think.", tool_requests=asked.reply.tool_requests)
    store.runs.commit_reply(store.turn(run_id), reply, asked.calls)
    live.nudge(run_id)
    for position in range(2):
        store.calls.settle(store.call(run_id, position), settlement())
    say(TEXT, "text", 2)
    store.answer(run_id, ModelReply(text=TEXT, usage=Usage(input=3, output=2)))
    live.nudge(run_id)


def read_cut(reader: CutReader, die: random.Random, work: Callable[[], None], bytes_max: int = 1_500) -> None:
    """Reads a stream to its end, in connections of at most ``bytes_max``, while ``work`` makes it."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    while not reader.is_closed:
        reader.read(None if reader.connections >= 40 else die.randint(1, bytes_max))
    thread.join(timeout=PATIENCE_S)


def work_for(reader: CutReader, servers: list[Served], store: Store, die: random.Random) -> Callable[[], None]:
    """Plays the run that the first request of ``reader`` begins."""
    worker_die = die_of(die)

    def work() -> None:
        run_id = str(until(lambda: reader.run_id, "the run", patience_s=FIRST_S))
        play(servers[0], store, run_id, worker_die)

    return work


def cut_and_compare(reader: CutReader, uncut: CutReader, die: random.Random, work: Callable[[], None]) -> int:
    """Returns how often the stream was cut."""
    read_cut(reader, die, work)
    uncut.read(None)
    assert uncut.is_closed
    assert final(reader.events) == final(uncut.events)
    assert final(uncut.events)["rows"][-1]["event"] in ("run.completed", "done")
    return reader.connections - 1


def cut_run_events(servers: list[Served], store: Store, die: random.Random) -> int:
    run_id = servers[0].submit()
    path = f"/v1/runs/{run_id}/events"
    reader, uncut = (CutReader(servers, "GET", path) for _ in range(2))
    return cut_and_compare(reader, uncut, die, lambda: play(servers[0], store, run_id, die_of(die)))


def cut_chat_stream(servers: list[Served], store: Store, die: random.Random) -> int:
    name = f"s{die.getrandbits(64):x}"
    assert servers[0].http.post("/api/sessions", json={"id": name}).status_code == 201
    body = json.dumps({"message": "hello"}).encode()
    headers = {"Content-Type": "application/json", "Idempotency-Key": name}
    path = f"/api/sessions/{name}/chat/stream"
    reader, uncut = (CutReader(servers, "POST", path, body, headers) for _ in range(2))
    cuts = cut_and_compare(reader, uncut, die, work_for(reader, servers, store, die))
    assert [each["seq"] for each in reader.events] == list(range(1, len(reader.events) + 1))
    assert len(store.views.list_runs(session_id=name)) == 1
    return cuts


class CutResponse(CutReader):
    """A response in the background: what began as the answer to a request goes on by the number last seen."""

    def read(self, bytes_max: int | None) -> None:
        if self.run_id is not None:
            after = f"&starting_after={self.last_id}" if self.last_id is not None else ""
            name = self.run_id.replace("run_", "resp_")
            self.method, self.path, self.body = "GET", f"/v1/responses/{name}?stream=true{after}", None
        last_id, self.last_id = self.last_id, None  # no header of it
        try:
            super().read(bytes_max)
        finally:
            self.last_id = self.last_id or last_id
        self.is_closed = bool(self.events) and self.events[-1]["event"] == "response.completed"

    def _take_block(self, lines: dict[str, str]) -> None:
        fields = json.loads(lines["data"])
        self.last_id = str(fields["sequence_number"])
        self.events.append({"event": fields["type"], **fields})


def told(events: list[dict[str, Any]]) -> dict[str, Any]:
    """What a client of responses holds in the end: its texts, and all that was said beside their pieces."""
    delta = "response.output_text.delta"
    texts: dict[int, str] = {}
    for each in events:
        if each["event"] == delta:
            texts[each["output_index"]] = texts.get(each["output_index"], "") + each["delta"]
    return {"texts": texts, "rest": [each for each in events if each["event"] != delta]}


def cut_response(servers: list[Served], store: Store, die: random.Random) -> int:
    return _cut_response(servers, store, die, {"background": True})


def cut_response_of_a_conversation(servers: list[Served], store: Store, die: random.Random) -> int:
    """A stored one, which is not stopped when its client leaves."""
    conversation = servers[0].http.post("/v1/conversations", json={}).json()["id"]
    return _cut_response(servers, store, die, {"conversation": conversation})


def _cut_response(servers: list[Served], store: Store, die: random.Random, asked: dict[str, Any]) -> int:
    body = json.dumps({"input": "hello", "stream": True, **asked}).encode()
    reader = CutResponse(servers, "POST", "/v1/responses", body, {"Content-Type": "application/json"})
    read_cut(reader, die, work_for(reader, servers, store, die))
    uncut = CutResponse(servers, "GET", "", run_id=reader.run_id)
    uncut.read(None)
    assert told(reader.events) == told(uncut.events)
    # The object at the end is the one that is stored, and its texts are those that were told.
    last = uncut.events[-1]["response"]
    assert last == servers[1].http.get(f"/v1/responses/{last['id']}").json()
    said = {
        number: item["content"][0]["text"] for number, item in enumerate(last["output"]) if item["type"] == "message"
    }
    assert told(reader.events)["texts"] == said == {0: "I look.", 3: TEXT}
    return reader.connections - 1


class CutChat(CutReader):
    """A chat completion: its stream has no numbers, so a client that asks again with its key is told all of it."""

    is_done: bool = False

    def read(self, bytes_max: int | None) -> None:
        self.events.clear()
        super().read(bytes_max)

        self.is_closed = self.is_done

    def _take_block(self, lines: dict[str, str]) -> None:
        self.is_done = lines["data"] == "[DONE]"
        if not self.is_done:
            self.events.append({"event": lines.get("event"), **json.loads(lines["data"])})


def completed(events: list[dict[str, Any]]) -> dict[str, Any]:
    """What a client of chat completions holds in the end."""
    last = events[-1]
    return {
        "content": "".join(each["choices"][0]["delta"].get("content", "") for each in events),
        "tools": [(each["tool"], each["toolCallId"], each["status"]) for each in events if each["event"]],
        "finish_reason": last["choices"][0]["finish_reason"],
        "usage": last["usage"],
        "id": last["id"],
    }


def cut_chat_completion(servers: list[Served], store: Store, die: random.Random) -> int:
    asked = {"messages": [{"role": "user", "content": "hello"}]}
    headers = {"Content-Type": "application/json", "Idempotency-Key": f"k{die.getrandbits(64):x}"}
    body = json.dumps({**asked, "stream": True}).encode()
    reader, uncut = (CutChat(servers, "POST", "/v1/chat/completions", body, headers) for _ in range(2))
    read_cut(reader, die, work_for(reader, servers, store, die), 6_000)
    uncut.read(None)
    assert completed(reader.events) == completed(uncut.events)
    # And it is what the same request is answered without a stream.
    whole = servers[1].http.post("/v1/chat/completions", json=asked, headers=headers).json()
    held = completed(reader.events)
    assert (held["id"], held["usage"], held["finish_reason"]) == (whole["id"], whole["usage"], "stop")
    assert held["content"] == f"I look.\n\n{whole['choices'][0]['message']['content']}" == f"I look.\n\n{TEXT}"
    assert len(held["tools"]) == 4
    return reader.connections - 1


def cut_tree_events(servers: list[Served], store: Store, die: random.Random) -> int:
    run_id = servers[0].submit()
    path = f"/v1/runs/{run_id}/tree/events"
    reader, uncut = (CutReader(servers, "GET", path) for _ in range(2))
    return cut_and_compare(reader, uncut, die, lambda: play(servers[0], store, run_id, die_of(die)))


def die_of(die: random.Random) -> random.Random:
    """One for another thread."""
    return random.Random(die.getrandbits(64))


STREAMS = {
    "/v1/runs/{id}/events": cut_run_events,
    "/api/sessions/{id}/chat/stream": cut_chat_stream,
    "/v1/runs/{id}/tree/events": cut_tree_events,
    "/v1/responses/{id}": cut_response,
    "/v1/responses of a conversation": cut_response_of_a_conversation,
    "/v1/chat/completions": cut_chat_completion,
}


@pytest.fixture
def settings(settings: Settings, database_url: str) -> Settings:
    """An installation on each database."""
    if database_url != settings.database_url:
        bring_up(database_url)
    return replace(settings, database=DatabaseSettings(url=database_url))


def cut(serve: Callable[..., Served], stream: str, cuts: int) -> None:
    servers = [serve(), serve()]
    store = Store.over(servers[0].client.database)
    die = random.Random(SEED)
    done = 0
    while done < cuts:
        done += STREAMS[stream](servers, store, die)


@pytest.mark.parametrize("stream", STREAMS)
def test_a_stream_that_is_cut_a_few_times_loses_and_repeats_nothing(serve: Callable[..., Served], stream: str) -> None:
    cut(serve, stream, 12)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("stream", STREAMS)
def test_a_stream_that_is_cut_five_hundred_times_loses_and_repeats_nothing(
    serve: Callable[..., Served], stream: str
) -> None:
    cut(serve, stream, 500)
