"""The commands of ``hermes-worker chat`` over a real server: what each asks for, and what comes of it in the rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from serving import Served
from support.store import Store, asks

from hermes_worker.cli.chat.line_parser import parse_line
from hermes_worker.cli.chat.talk import Talk, TalkOptions
from hermes_worker.cli.chat.turn import ChatNotice, Shown
from hermes_worker.client import HermesClient, RefusedError
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import RunStatus


@dataclass
class Page:
    """What a person would see."""

    told: list[str] = field(default_factory=list)

    def show(self, shown: Shown) -> None:
        if isinstance(shown, ChatNotice):
            self.told.append(shown.text)

    def lines(self, lines: Sequence[str]) -> None:
        self.told.extend(lines)

    @property
    def last(self) -> str:
        return self.told[-1]


@dataclass
class Chat:
    """Lines that are typed one after the other, while no run is followed."""

    talk: Talk
    client: HermesClient
    page: Page
    store: Store

    def type(self, line: str) -> str | None:
        """The id of the run that it began."""
        return self.talk.do(parse_line(line))

    def turn(self, line: str) -> str:
        """A run from its first line to its answer."""
        run_id = self.type(line)
        assert run_id is not None
        self.talk.begin(run_id)
        self.store.answer(run_id)
        self.talk.at_work = None
        return run_id

    def session_of(self, run_id: str) -> str:
        return self.client.run(run_id)["session_id"]


@pytest.fixture
def chat(api: Served, store: Store) -> Iterator[Chat]:
    with HermesClient(api.url, api_key=api.key, patience_s=0.5) as client:
        page = Page()
        yield Chat(Talk(client, client, page, TalkOptions()), client, page, store)


def test_model_is_that_of_the_runs_that_follow(chat: Chat) -> None:
    chat.turn("hello")
    assert chat.type("/model vendor/other") is None
    assert chat.page.last == "the next run asks vendor/other"
    assert chat.store.views.load_run(chat.turn("again")).model == "vendor/other"
    chat.type("/model")
    assert chat.page.last == "the next run asks the usual model"
    assert chat.store.views.load_run(chat.turn("once more")).model != "vendor/other"


def test_new_begins_another_conversation_with_the_next_line(chat: Chat) -> None:
    first, second = chat.turn("hello"), chat.turn("go on")
    assert chat.session_of(first) == chat.session_of(second)
    assert chat.type("/new") is None
    assert chat.type("/usage") is None and chat.page.last == "there is no conversation yet"
    assert chat.type("/tree") is None and chat.page.last == "there is no run yet"
    third = chat.turn("something else")
    assert chat.session_of(third) != chat.session_of(first)
    assert chat.talk.session_id == chat.session_of(third)


def test_resume_lists_conversations_and_goes_on_with_one(chat: Chat) -> None:
    first = chat.turn("the first thing")
    chat.type("/new")
    chat.turn("the second thing")
    chat.type("/resume")
    listed = [chat.talk.session_id, chat.session_of(first)]
    assert chat.talk.known_sessions == listed, "the newest first"
    assert "the first thing" in chat.page.last
    assert chat.type(f"/resume {listed[1]}") is None, "nothing is at work there"
    assert {"user: the first thing", "assistant: done"} <= set(chat.page.told)
    chat.type("/tree")
    assert chat.page.last.startswith(f"{first}  completed")
    assert chat.session_of(chat.turn("and on")) == listed[1]


def test_resume_follows_the_run_that_is_at_work_there(chat: Chat) -> None:
    run_id = chat.type("a long thing")
    assert run_id is not None
    session_id = chat.session_of(run_id)
    chat.type("/new")
    assert chat.type(f"/resume {session_id}") == run_id


def test_resume_of_a_conversation_that_is_not_there_leaves_the_one_that_is(chat: Chat) -> None:
    chat.turn("hello")
    before = chat.talk.session_id
    with pytest.raises(RefusedError):
        chat.type("/resume nowhere")
    assert chat.talk.session_id == before


def test_compress_begins_a_run_of_the_conversation(chat: Chat) -> None:
    assert chat.type("/compress") is None
    assert chat.page.last == "there is no conversation yet"
    first = chat.turn("hello")
    run_id = chat.type("/compress the parser")
    assert run_id is not None and run_id != first
    assert chat.session_of(run_id) == chat.session_of(first)
    assert "the parser" in str(chat.store.bodies(run_id)[-1])


def test_steer_and_stop_are_meant_for_the_run_at_work(chat: Chat) -> None:
    chat.type("/steer in French")
    assert chat.page.last == "no run is at work; say it as it is"
    chat.type("/stop")
    assert chat.page.last == "no run is at work"
    run_id = chat.type("tell me")
    assert run_id is not None
    chat.talk.begin(run_id)
    chat.type("/steer in French")
    assert [event.data for event in chat.store.views.list_events_after(run_id, 0) if event.name == "run.steered"]
    chat.type("/stop")
    assert chat.store.status(run_id) is RunStatus.CANCELLED


def test_usage_and_tree_tell_of_the_conversation(chat: Chat) -> None:
    chat.turn("hello")
    chat.type("/usage")
    assert chat.page.told[-3].startswith("1 model calls, 0 tool calls")
    run_id = chat.type("delegate it")
    assert run_id is not None
    chat.talk.begin(run_id)
    chat.store.ask_tools(run_id, asks(Replay.PURE))
    children = chat.store.delegate(run_id, 2)
    chat.page.told.clear()
    chat.type("/tree")
    assert [line[:34].rstrip() for line in chat.page.told] == [run_id[:34], *(f"  {child}"[:34] for child in children)]
