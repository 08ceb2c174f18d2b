"""The Python client against a real server. The test is the worker."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from serving import Served, until
from support.patience import PATIENCE_S
from support.store import Store, asks

from hermes_worker.client import (
    Callbacks,
    HermesClient,
    MessageDelta,
    OtherEvent,
    RefusedError,
    RunEnded,
    ToolStarted,
    parse_event,
)
from hermes_worker.core.errors import UnavailableError
from hermes_worker.core.events import AskedAgain
from hermes_worker.core.messages import ModelReply, Usage, build_user_body
from hermes_worker.core.questions import Question
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import RunStatus, WaitKind
from hermes_worker.safety.approvals import ApprovalChoice
from hermes_worker.settings import Settings
from hermes_worker.store.runs.runs import CompactionRow
from hermes_worker.store.runs.waits import Waits
from hermes_worker.stream.live import Live, LiveEntry

REPLY = ModelReply(text="Hello world", reasoning="so", usage=Usage(input=3, output=2))


@pytest.fixture
def client(api: Served) -> HermesClient:
    return HermesClient(api.url, home=api.client.settings.home, patience_s=10.0)


class Recorder:
    """Callbacks that keep what they are told."""

    def __init__(self, **answers: Any) -> None:
        self.told: list[tuple[Any, ...]] = []
        self._answers = answers
        names = [name for name in Callbacks.__dataclass_fields__ if name != "event_callback"]
        self.callbacks = Callbacks(**{name: self._recording(name) for name in names})

    def _recording(self, name: str) -> Callable[..., Any]:
        def record(*arguments: Any, **facts: Any) -> Any:
            self.told.append((name.removesuffix("_callback"), *arguments, *([facts] if facts else [])))
            return self._answers.get(name)

        return record

    def of(self, *names: str) -> list[tuple[Any, ...]]:
        return [entry for entry in list(self.told) if entry[0] in names]


def test_a_run_is_followed_by_callbacks_of_the_references_names(
    api: Served, client: HermesClient, store: Store
) -> None:
    run_id = client.submit("hello", metadata={"from": "test"})
    live, recorder = Live(api.client.redis), Recorder()
    with ThreadPoolExecutor() as pool:
        following = pool.submit(client.follow, run_id, recorder.callbacks)
        live.append(run_id, LiveEntry(kind="tool", text="tool0", iteration=1, attempt=0, offset=0))
        until(lambda: recorder.of("tool_gen"), "the name of the tool")
        asked = asks(Replay.PURE)
        store.ask_tools(run_id, replace(asked, reply=replace(asked.reply, text="Let me look.")))
        store.settle(run_id)
        store.answer(run_id, REPLY)
        live.nudge(run_id)
        result = following.result(timeout=PATIENCE_S)

    assert recorder.of("tool_gen", "step", "tool_start", "tool_complete", "interim_assistant", "reasoning") == [
        ("step", 1, []),
        ("tool_gen", "tool0"),
        ("interim_assistant", "Let me look.", True),
        ("tool_start", "call_0", "tool0", '{"n":0}'),
        ("tool_complete", "call_0", "tool0", '{"n":0}', "ok"),
        ("step", 2, ["tool0"]),
        ("reasoning", "so"),
    ]
    assert recorder.of("stream_delta") == [
        ("stream_delta", "Let me look."),
        ("stream_delta", None),
        ("stream_delta", "Hello world"),
        ("stream_delta", None),
    ]
    assert [entry[:3] for entry in recorder.of("tool_progress")] == [
        ("tool_progress", "tool.started", "tool0"),
        ("tool_progress", "tool.completed", "tool0"),
        ("tool_progress", "reasoning.available", "_thinking"),
    ]
    assert (result["final_response"], result["last_reasoning"]) == ("Hello world", "so")
    assert (result["completed"], result["failed"], result["partial"], result["interrupted"]) == (True, *[False] * 3)
    assert (result["turn_exit_reason"], result["api_calls"], result["session_id"]) == ("text_response", 2, run_id)
    assert [row["role"] for row in result["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert result["cost_status"] is None or result["cost_source"]


def test_a_question_is_answered_by_the_callback(client: HermesClient, store: Store, api: Served) -> None:
    run_id = store.with_tools(Replay.ONCE)
    question = Question(kind=WaitKind.INPUT, request={"question": "Which?"}, choices=["red", "blue"], expires_s=60)
    Waits(store.database).ask(store.call(run_id), question)
    recorder = Recorder(clarify_callback="blue")
    with ThreadPoolExecutor() as pool:
        following = pool.submit(client.follow, run_id, recorder.callbacks)
        until(lambda: store.status(run_id) is RunStatus.RUNNING, "the answer")
        store.answer(run_id, REPLY)
        following.result(timeout=PATIENCE_S)

    assert recorder.of("clarify") == [("clarify", "Which?", ("red", "blue"))]
    assert "blue" in store.results(run_id)[0]
    assert ("status", "lifecycle", "The run is waiting for input.") in recorder.told


def test_a_stream_that_is_read_again_answers_no_later_question(client: HermesClient, store: Store) -> None:
    """The callback is asked about the first command although it was answered; its word is none to the second."""
    run_id = store.with_tools(Replay.ONCE, Replay.ONCE, segments=[0, 1])
    questions = Waits(store.database)
    request = {"command": "rm -r build", "description": "recursive delete", "pattern_key": "k", "arguments": "{}"}
    asked = Question(kind=WaitKind.APPROVAL, request=request, choices=["once", "deny"], expires_s=60)
    questions.ask(store.call(run_id, 0), asked)
    questions.approve(run_id, ApprovalChoice.ONCE, by="cli:tester")
    store.settle(run_id, 0)
    questions.ask(store.call(run_id, 1), replace(asked, request={**request, "command": "rm -r src"}))

    def allow(command: str, _: str) -> str | None:
        return "once" if command == "rm -r build" else None

    with ThreadPoolExecutor() as pool:
        seen: list[str] = []
        callbacks = Callbacks(approval_callback=allow, event_callback=lambda name, _: seen.append(name))
        following = pool.submit(client.follow, run_id, callbacks)
        until(lambda: seen.count("approval.request") == 2, "both questions")
        [still_open] = questions.list_open()
        assert still_open.request["command"] == "rm -r src"
        store.runs.request_stop(run_id)
        following.result(timeout=PATIENCE_S)


def test_permission_is_given_by_the_callback(client: HermesClient, store: Store) -> None:
    run_id = store.with_tools(Replay.ONCE)
    question = Question(
        kind=WaitKind.APPROVAL,
        request={"command": "rm -r build", "description": "recursive delete", "pattern_key": "k", "arguments": "{}"},
        choices=["once", "deny"],
        expires_s=60,
    )
    Waits(store.database).ask(store.call(run_id), question)
    recorder = Recorder(approval_callback="once")
    with ThreadPoolExecutor() as pool:
        following = pool.submit(client.follow, run_id, recorder.callbacks)
        until(lambda: store.due(run_id), "permission")
        store.settle(run_id)
        store.answer(run_id, REPLY)
        following.result(timeout=PATIENCE_S)

    assert recorder.of("approval") == [("approval", "rm -r build", "recursive delete")]


def test_a_discarded_reply_ends_its_segment_and_what_follows_is_told_anew(
    api: Served, client: HermesClient, store: Store
) -> None:
    run_id = client.submit("hello")
    live, recorder = Live(api.client.redis), Recorder()
    with ThreadPoolExecutor() as pool:
        following = pool.submit(client.follow, run_id, recorder.callbacks)
        live.append(run_id, LiveEntry(kind="text", text="cut sho", iteration=1, attempt=0, offset=0))
        until(lambda: recorder.of("stream_delta"), "the first piece")
        store.runs.commit_discarded_reply(store.turn(run_id), AskedAgain(memory=None, is_counted=False), REPLY)
        store.answer(run_id, REPLY)
        following.result(timeout=PATIENCE_S)

    assert [entry[1] for entry in recorder.of("stream_delta")] == ["cut sho", None, "Hello world", None]
    assert [entry[1] for entry in recorder.of("status")] == ["warn"]


def test_a_compaction_is_told_without_its_text(client: HermesClient, store: Store) -> None:
    run_id = client.submit("hello")
    row = CompactionRow(body=build_user_body("a long summary"), rows=7, number=1, usage=Usage(input=1))
    store.runs.commit_compaction(store.turn(run_id), AskedAgain(memory=None, is_counted=False), row)
    store.answer(run_id, REPLY)
    recorder = Recorder()
    client.follow(run_id, recorder.callbacks)

    assert recorder.of("status") == [("status", "lifecycle", "7 older messages were summarised to make room.")]
    assert "a long summary" not in str(recorder.told)


def test_a_callback_that_raises_is_left_behind(client: HermesClient, store: Store) -> None:
    run_id = client.submit("hello")
    store.answer(run_id, REPLY)
    kinds: list[str] = []

    def fails(*_: object) -> None:
        raise RuntimeError("a bug of the caller's")

    done = client.follow(
        run_id,
        Callbacks(stream_delta_callback=fails, step_callback=fails, event_callback=lambda kind, _: kinds.append(kind)),
    )

    assert done["final_response"] == "Hello world"
    assert kinds == ["reasoning.available", "message.delta", "message.completed", "ended"]


def test_a_stream_that_breaks_is_picked_up_where_it_was(
    serve: Callable[..., Served], settings: Settings, store: Store, api: Served
) -> None:
    port = int(api.url.rpartition(":")[2])
    client, events, is_first = HermesClient(api.url, home=settings.home), [], threading.Event()
    run_id = client.submit("hello")
    store.ask_tools(run_id, asks(Replay.PURE))

    def read() -> None:
        for event in client.events(run_id):
            events.append(event)
            is_first.set()

    reading = threading.Thread(target=read)
    reading.start()
    assert is_first.wait(PATIENCE_S)
    api.stop()
    serve(replace(settings, server=replace(settings.server, port=port)))
    store.settle(run_id)
    store.answer(run_id, REPLY)
    reading.join(PATIENCE_S)

    assert isinstance(events[-1], RunEnded)
    texts = [event.text for event in events if isinstance(event, MessageDelta)]
    assert texts[-1] == "Hello world"
    assert len([event for event in events if isinstance(event, ToolStarted)]) == 1


def test_the_key_is_found_in_the_home_and_goes_to_no_other_machine(
    api: Served, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERMES_HOME", str(settings.home))
    assert HermesClient(api.url).submit("hello")
    with pytest.raises(RefusedError, match=r"api\.key") as raised:
        HermesClient(api.url, api_key="not-the-key-0123456789").submit("hello")
    assert raised.value.status == 401
    here, there = (
        HermesClient(url)._conversation._address.build_headers()
        for url in ("http://127.0.0.1:1", "https://hermes.example.org")
    )
    assert (here["Authorization"], "Authorization" in there) == (api.authorization, False)


def test_what_the_api_refuses_is_an_error_with_its_words(client: HermesClient, api: Served) -> None:
    with pytest.raises(RefusedError, match="run_none") as raised:
        client.result("run_none")
    assert raised.value.status == 404
    with pytest.raises(RefusedError):
        list(client.events("run_none"))
    with pytest.raises(UnavailableError):
        HermesClient("http://127.0.0.1:1", patience_s=0.0).submit("hello")
    with pytest.raises(UnavailableError):
        list(HermesClient("http://127.0.0.1:1", patience_s=0.0).events("run_none"))


def test_events_of_a_later_version_are_passed_on_and_broken_ones_are_told() -> None:
    assert parse_event({"event": "new.thing", "x": 1}) == OtherEvent(
        name="new.thing", fields={"event": "new.thing", "x": 1}
    )
    with pytest.raises(ValueError, match="delta"):
        parse_event({"event": "message.delta"})


def test_runs_are_submitted_found_joined_and_stopped_by_the_client(client: HermesClient, store: Store) -> None:
    made = client.submit_all([{"input": "a", "tags": ["t"]}, {"input": "b", "tags": ["t"]}, {"input": " "}])
    first, second = made[0]["run_id"], made[1]["run_id"]
    assert made[2]["error"]["param"] == "input"
    store.answer(first)

    assert [run["run_id"] for run in client.runs(tag=["t"], limit=1)] == [second, first]
    assert client.wait(first) == "completed"
    assert client.wait(second, timeout_s=0.0) is None
    assert client.join([first, second], mode="any")["done"] is True
    assert client.explain(second)["facts"]["queue"] == "model"
    assert client.stop_all(tag=["t"], dry_run=True) == [second] == client.stop_all(tag=["t"])
    assert client.wait(second) == "cancelled"
    assert client.retry(first).startswith("run_")
