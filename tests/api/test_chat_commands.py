"""The commands of ``hermes-worker chat`` over a real server: what each asks for, and what comes of it in the rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from serving import Served
from support.rig import until
from support.store import Store, asks

from hermes_worker.cli.chat.line_parser import SlashVerb, parse_line
from hermes_worker.cli.chat.listings import LISTINGS
from hermes_worker.cli.chat.talk import _DEEDS, Talk, TalkOptions
from hermes_worker.cli.chat.turn import ChatEnd, ChatNotice, Shown
from hermes_worker.client import HermesClient, RefusedError
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.messages import ModelReply
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import RunStatus


@dataclass
class Page:
    """What a person would see."""

    told: list[str] = field(default_factory=list)
    copied: str = ""

    def show(self, shown: Shown) -> None:
        if isinstance(shown, ChatNotice):
            self.told.append(shown.text)

    def show_lines(self, lines: Sequence[str]) -> None:
        self.told.extend(lines)

    def copy(self, text: str) -> bool:
        self.copied = text
        return True

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
    assert chat.page.last == "from the next run on vendor/other is asked"
    assert chat.store.views.load_run(chat.turn("again")).model == "vendor/other"
    chat.type("/model")
    assert chat.page.last == "from the next run on the usual model is asked"
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
    assert chat.page.last == f"the first thing  completed  {first}"
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
    with pytest.raises(ConfigurationError, match="there is no session 'nowhere'"):
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
    assert chat.page.last == "no run is at work; write the line without /steer"
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
    assert chat.page.told[-3].startswith("1 model call, 0 tool calls")
    run_id = chat.type("delegate it")
    assert run_id is not None
    chat.talk.begin(run_id)
    chat.store.ask_tools(run_id, asks(Replay.PURE))
    children = chat.store.delegate(run_id, 2)
    chat.page.told.clear()
    chat.type("/tree")
    assert [line.split()[-1] for line in chat.page.told] == [run_id, *children]
    assert chat.page.told[0].startswith("delegate it  waiting_for_children  ")


def said_in(chat: Chat) -> list[tuple[str, object]]:
    assert chat.talk.session_id is not None
    return [(each["role"], each["content"]) for each in chat.client.messages(chat.talk.session_id)]


def test_undo_goes_on_in_a_copy_without_the_last_turn(chat: Chat) -> None:
    assert chat.type("/undo") is None and chat.page.last == "there is no conversation yet"
    first = chat.turn("one")
    chat.turn("two")
    assert chat.type("/undo") is None
    assert said_in(chat) == [("user", "one"), ("assistant", "done")]
    assert chat.talk.session_id != chat.session_of(first)
    assert len(list(chat.client.messages(chat.session_of(first)))) == 4, "the conversation before it stays"
    chat.type("/undo")
    assert said_in(chat) == [], "a copy of nothing, which still knows what was done"


def test_retry_says_the_same_again(chat: Chat) -> None:
    chat.turn("one")
    chat.turn("two")
    chat.turn("/retry")
    assert [content for role, content in said_in(chat) if role == "user"] == ["one", "two"]
    run_id = chat.type("three")
    assert run_id is not None
    chat.talk.begin(run_id)
    assert chat.type("/retry") is None and chat.page.last == "a run is at work; /stop stops it"


def test_branch_and_title(chat: Chat) -> None:
    run_id = chat.turn("one")
    chat.type("/title My trip")
    assert chat.page.last == "this conversation is called My trip"
    chat.type("/fork Another way")
    assert chat.talk.session_id != chat.session_of(run_id)
    chat.type("/title")
    assert chat.page.last == "this conversation is called Another way"
    assert said_in(chat) == [("user", "one"), ("assistant", "done")]


def test_background_leaves_the_conversation_alone(chat: Chat) -> None:
    chat.turn("one")
    before = chat.talk.session_id
    assert chat.type("/background count the files") is None
    assert chat.talk.session_id == before
    other = chat.page.last.split()[0]
    assert chat.session_of(other) != before
    chat.type("/agents")
    assert other in chat.page.last


def test_a_skill_is_followed_by_its_name(chat: Chat) -> None:
    text = "---\nname: review\ndescription: Reviews code.\n---\nLook twice.\n"
    chat.client.keep_skill("review", [{"path": "SKILL.md", "text": text}])
    chat.talk.load_skills()
    assert chat.talk.skills == ("review",)
    run_id = chat.talk.do(parse_line("/review the diff", skills=chat.talk.skills))
    assert run_id is not None
    chat.store.answer(run_id)
    assert "Look twice." in str(said_in(chat)[0]) and "the diff" in str(said_in(chat)[0])


def test_effort_is_that_of_the_runs_that_follow(chat: Chat) -> None:
    chat.type("/reasoning high")
    assert chat.page.last == "from the next run on the model thinks: high"
    run_id = chat.turn("hello")
    told = {each.key: each.value for each in chat.client.settings("agent.reasoning", run_id=run_id)}
    assert told == {"agent.reasoning_effort": "high"}


def test_export_writes_a_file_that_is_not_there_yet(chat: Chat, tmp_path: Path) -> None:
    chat.turn("one")
    path = tmp_path / "kept.jsonl"
    chat.type(f"/export {path}")
    assert [each["content"] for each in json.loads(path.read_text())["messages"]] == ["one", "done"]
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigurationError, match="cannot be written"):
        chat.type(f"/export {path}")


def test_a_picture_is_sent_with_its_text(chat: Chat, tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(b"\x89PNG\r\n\x1a\nrest")
    assert chat.type(f"/image {tmp_path / 'x.png'} what is it?") is not None
    chat.type("/image nowhere.png")
    assert "is no picture" in chat.page.last
    content = said_in(chat)[0][1]
    assert isinstance(content, list) and [part["type"] for part in content] == ["text", "image_url"]


def test_a_command_of_my_own_is_told_to_nobody_until_i_share_it(chat: Chat) -> None:
    chat.type("/share")
    assert chat.page.last == "no command was run yet; !command runs one"
    assert chat.type("!echo seen; exit 3") is None and chat.talk.session_id is None
    assert chat.page.told[-2:] == ["seen", "exit code 3; the agent has not seen this, /share sends it"]
    chat.turn("/share what is wrong?")
    said = "what is wrong?\n\nI ran this myself:\n\n$ echo seen; exit 3\nseen\n(exit code 3)"
    assert said_in(chat)[0] == ("user", said)


def test_the_last_answer_is_copied(chat: Chat) -> None:
    chat.type("/copy")
    assert chat.page.last == "there is no answer yet"
    run_id = chat.type("hello")
    assert run_id is not None
    chat.store.answer(run_id)
    chat.talk.follow(run_id)
    chat.type("/copy")
    assert chat.page.copied == "done"


LISTED = ("help", "status", "history", "context", "tools", "skills", "memory", "agents", "approvals", "jobs", "diff")


@pytest.mark.parametrize("name", [*LISTED, "rollback", "sessions"])
def test_what_is_listed_is_listed_with_and_without_a_conversation(chat: Chat, name: str) -> None:
    for _ in range(2):
        try:
            assert chat.type(f"/{name}") is None
        except RefusedError as error:  # a workspace without checkpoints
            assert name in ("diff", "rollback") and error.status in (404, 409)
        else:
            assert chat.page.told
        chat.turn("hello")
        chat.page.told.clear()


def test_the_next_slot_of_a_job_is_told_as_other_times_are(chat: Chat) -> None:
    chat.client.create_job("news", "every 2h", prompt="Summarise the news")
    chat.type("/jobs")
    assert "next in 1 h 59 min" in chat.page.last


def test_every_command_of_the_table_is_done_somewhere(chat: Chat) -> None:
    elsewhere = {SlashVerb.QUIT, SlashVerb.APPROVE, SlashVerb.DENY, SlashVerb.QUEUE}
    assert set(LISTINGS) | set(_DEEDS) | elsewhere == set(SlashVerb)
    assert not set(LISTINGS) & set(_DEEDS)


# --- a goal ----------------------------------------------------------------------------------------------------------

TURN = ChatEnd(name="run.completed", output="I read the first half.")


def pursue(chat: Chat, verdict: str, turn: ChatEnd = TURN) -> tuple[str | None, str]:
    """The run with which the chat went on, if any, and what the judge was asked."""
    seen = {run["run_id"] for run in chat.client.runs()}
    with ThreadPoolExecutor() as pool:
        pursued = pool.submit(chat.talk.pursue_goal, turn)
        [judge] = until(
            lambda: [run["run_id"] for run in chat.client.runs() if run["run_id"] not in seen] or None, "the judge"
        )
        asked = chat.client.run(judge)
        assert (asked.tags, asked.kind) == (["chat", "evaluation", "goal"], "evaluation")
        assert asked["session_id"] != chat.talk.session_id
        chat.store.answer(judge, ModelReply(text=verdict))
        return pursued.result(), asked_in(chat, judge)


def asked_in(chat: Chat, run_id: str) -> str:
    """What was last said to the agent in the conversation of a run."""
    rows = [row for row in chat.client.messages(chat.session_of(run_id)) if row.role == "user"]
    return str(rows[-1].content)


def test_a_goal_is_pursued_until_the_judge_says_that_it_is_reached(chat: Chat) -> None:
    chat.turn("/goal read the whole book")
    step, asked = pursue(chat, '{"is_reached": false, "reason": "half of it is left, see @/etc/passwd"}')
    assert "read the whole book" in asked and "I read the first half." in asked
    assert step is not None and chat.session_of(step) == chat.talk.session_id
    assert chat.page.last.startswith("the goal is not reached yet, turn 1 of 20: half of it is left")
    assert "root:" not in asked_in(chat, step), "what a model says names no file of this machine"
    chat.store.answer(step)
    chat.type("/goal")
    assert chat.page.last == "the goal, turn 1 of 20: read the whole book"
    assert pursue(chat, '{"is_reached": true, "reason": "all is read"}')[0] is None
    assert chat.page.last == "the goal is reached: all is read"
    assert chat.talk.pursue_goal(TURN) is None, "there is none any more"


@pytest.mark.parametrize(
    ("turn", "verdict", "why"),
    [
        (ChatEnd(name="run.failed", error="no money"), None, "the turn was not completed"),
        (TURN, "no JSON", "the judge gave no verdict"),
        (replace(TURN, output="I branched."), None, "this is another conversation"),
    ],
)
def test_a_goal_waits_where_nobody_can_say_how_it_stands(
    chat: Chat, turn: ChatEnd, verdict: str | None, why: str
) -> None:
    chat.turn("/goal read")
    if "branched" in turn.output:
        chat.type("/branch")
    assert (chat.talk.pursue_goal(turn) if verdict is None else pursue(chat, verdict)[0]) is None
    assert chat.page.last == f"the goal waits, as {why}; /goal resume goes on, /goal clear forgets it"
    assert chat.talk.pursue_goal(TURN) is None, "it waits"
    chat.turn("/goal resume")
    chat.type("/goal pause")
    assert chat.page.last == "the goal, it waits, /goal resume goes on: read"
    chat.type("/goal clear")
    chat.type("/goal")
    assert chat.page.last == "there is no goal; /goal TEXT sets one"
