"""An answer in a chat is for the question that its sender saw, on both databases: by its code, a reply, a button, or by
having been written when only that question can have been meant."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.migrated import bring_up
from support.store import Store, asks

from hermes_worker import settings as settings_module
from hermes_worker.core.answer_binding import format_question_code
from hermes_worker.core.effects import SendDelivery
from hermes_worker.core.inbound import ChatKind, InboundButton, InboundChat, InboundMessage, InboundSender
from hermes_worker.core.questions import Question
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import WaitKind
from hermes_worker.gateway.inbound import InboundHandler
from hermes_worker.gateway.received import ReceivedEvent
from hermes_worker.store.outbox.deliveries import Deliveries
from hermes_worker.store.runs.waits import Waits
from hermes_worker.store.tables import deliveries, runs, waits
from hermes_worker.wiring import Client, open_client

CHAT = InboundChat(id="42")


@dataclass
class Conversation:
    """A chat with a person, and what a worker would do. Times are seconds before now."""

    client: Client
    store: Store
    run_id: str = ""
    calls: int = 0
    events: int = field(default=0)

    def says(self, text: str, *, ago_s: float | None = 0.0, quotes: str = "", chat: InboundChat = CHAT) -> str | None:
        """What becomes of a message that was written ``ago_s`` ago; ``None`` for one whose platform tells no time."""
        self.events += 1
        sent_at = None if ago_s is None else self.client.database.read_clock() - ago_s
        event = InboundMessage(
            event_key=f"e{self.events}",
            chat=chat,
            sender=InboundSender(id="42"),
            text=text,
            sent_at=sent_at,
            reply_to=quotes,
            is_addressed=True,
        )
        return InboundHandler(self.client).handle(ReceivedEvent(platform="telegram", event=event))

    def presses(self, wait_id: int, answer: str) -> str | None:
        self.events += 1
        value = f"{wait_id}:{answer}"
        event = InboundButton(event_key=f"e{self.events}", chat=CHAT, sender=InboundSender(id="42"), value=value)
        return InboundHandler(self.client).handle(ReceivedEvent(platform="telegram", event=event))

    def begins(self, calls: int = 3, chat: InboundChat = CHAT) -> None:
        assert self.says("clean up", chat=chat) == "run"
        with self.client.database.read() as connection:
            self.run_id = connection.execute(sa.select(runs.c.run_id).order_by(runs.c.pk.desc())).scalars().first()
        self.store.ask_tools(self.run_id, asks(*[Replay.ONCE] * calls, segments=[0] * calls))

    def asks(self, command: str = "rm -rf build", *, expires_s: float = 600.0) -> int:
        request = {"command": command, "description": f"runs {command}", "pattern_key": "rm", "arguments": "{}"}
        choices = ["once", "session", "always", "deny"]
        asked = Question(kind=WaitKind.APPROVAL, request=request, choices=choices, expires_s=expires_s)
        return self._ask(asked)

    def asks_for_words(self, question: str = "Which colour?") -> int:
        return self._ask(Question(kind=WaitKind.INPUT, request={"question": question}))

    def _ask(self, question: Question) -> int:
        Waits(self.client.database).ask(self.store.call(self.run_id, self.calls), question)
        self.calls += 1
        with self.client.database.read() as connection:
            return int(connection.execute(sa.select(sa.func.max(waits.c.pk))).scalar_one())

    def arrives(self, wait_id: int, *receipts: str, ago_s: float = 60.0) -> None:
        """The platform took the messages of a question, and the last of them ``ago_s`` ago."""
        outbox, its = Deliveries(self.client.database), deliveries.c.wait_pk == wait_id
        with self.client.database.read() as connection:
            wanted = sa.select(deliveries.c.delivery_id, deliveries.c.attempts).where(its)
            delivery_id, attempts = connection.execute(wanted).one()
        effect = SendDelivery(run_id="", delivery_id=delivery_id, attempt=attempts + 1)
        claim = outbox.claim(effect, self.store.owner)
        assert claim is not None
        outbox.settle_delivered(claim, " ".join(receipts) or None)
        with self.client.database.write() as connection:
            at = self.client.database.read_clock() - ago_s
            connection.execute(sa.update(deliveries).where(its).values(settled_at=at))
            connection.execute(sa.update(waits).where(waits.c.pk == wait_id).values(opened_at=at - min(ago_s, 1.0)))

    def lapses(self, wait_id: int, *, ago_s: float) -> None:
        with self.client.database.write() as connection:
            this = sa.update(waits).where(waits.c.pk == wait_id)
            connection.execute(this.values(expires_at=self.client.database.read_clock() - 1))
        self.store.sweep()
        with self.client.database.write() as connection:
            closed = sa.update(waits).where(waits.c.pk == wait_id, waits.c.outcome == "expired")
            assert connection.execute(closed.values(closed_at=self.client.database.read_clock() - ago_s)).rowcount == 1

    def outcomes(self) -> list[str | None]:
        with self.client.database.read() as connection:
            return list(connection.execute(sa.select(waits.c.outcome).order_by(waits.c.pk)).scalars())

    def told(self) -> list[str]:
        """What the chat was told beside questions, and beside the answers of runs."""
        wanted = sa.select(deliveries.c.body).where(
            deliveries.c.wait_pk.is_(None), deliveries.c.body.is_not(None), deliveries.c.message_id.is_(None)
        )
        with self.client.database.read() as connection:
            return list(connection.execute(wanted.order_by(deliveries.c.pk)).scalars())


@pytest.fixture
def chat(database_url: str, tmp_path: Path, broker_url: str) -> Iterator[Conversation]:
    (tmp_path / "home").mkdir()
    bring_up(database_url)
    environ = {
        "HOME": str(tmp_path),
        "HERMES_HOME": str(tmp_path / "home"),
        "HERMES_DATABASE_URL": database_url,
        "HERMES_BROKER_URL": broker_url,
        "HERMES_PROVIDER": "scripted",
        "HERMES_GATEWAY": "true",
        "HERMES_GATEWAY_BUSY_INPUT_MODE": "queue",
        "TELEGRAM_BOT_TOKEN": "77:abc",
        "TELEGRAM_ALLOWED_USERS": "42",
    }
    client = open_client(settings_module.load_settings(environ))
    yield Conversation(client=client, store=Store.over(client.database))
    client.close()


@pytest.mark.parametrize("said", ["/approve", "/approve always", "yes", "always"])
def test_what_was_written_two_minutes_before_a_question_allows_nothing(said: str, chat: Conversation) -> None:
    chat.begins()
    chat.arrives(chat.asks(), "m1", ago_s=1.0)
    outcome = chat.says(said, ago_s=120)
    assert chat.outcomes() == [None]
    assert outcome == ("command" if said.startswith("/") else "run")
    if said.startswith("/"):
        assert chat.told() == [
            "You wrote this before I asked what I ask now, so it allows nothing. Answer with the code of the question."
        ]


@pytest.mark.parametrize("said", ["/approve", "/approve always", "yes"])
def test_an_answer_for_a_question_that_lapsed_a_moment_ago_does_not_answer_the_next(
    said: str, chat: Conversation
) -> None:
    chat.begins()
    first, second = chat.asks("rm -rf a"), chat.asks("rm -rf b")
    chat.arrives(first, "m1", ago_s=60)
    chat.arrives(second, "m2", ago_s=58)
    chat.lapses(first, ago_s=2)
    assert chat.says(said, ago_s=3) == "code_asked", "both were open when it was written"
    assert chat.outcomes() == ["expired", None]
    code = format_question_code(second)
    assert chat.told()[0].splitlines()[:2] == [
        "I cannot tell which question you answer. If it is this one, name it:",
        f"- {code} (runs rm -rf b): /approve {code} or /deny {code}",
    ]
    assert chat.says("/approve", quotes="m1", ago_s=None) == "command"
    assert chat.says(f"/approve {format_question_code(first)}", ago_s=None) == "command"
    assert chat.told()[1:] == ["This is not asked any more."] * 2
    assert chat.outcomes() == ["expired", None]
    assert chat.says(f"/approve {code}", ago_s=None) == "answer"
    assert chat.outcomes() == ["expired", "once"]


def test_a_question_that_is_written_after_another_lapsed_is_not_answered_by_what_was_meant_for_that(
    chat: Conversation,
) -> None:
    chat.begins()
    first = chat.asks("rm -rf a")
    chat.arrives(first, "m1", ago_s=100)
    chat.lapses(first, ago_s=40)
    second = chat.asks("rm -rf b")
    chat.arrives(second, "m2", ago_s=30)
    assert chat.says("/approve", ago_s=41) == "command"
    assert chat.says("/approve", ago_s=28) == "code_asked"
    assert chat.outcomes() == ["expired", None]
    assert chat.says("/approve", ago_s=10) == "answer"
    assert chat.outcomes() == ["expired", "once"]


def test_with_several_open_only_what_names_one_answers(chat: Conversation) -> None:
    chat.begins()
    waiting = [chat.asks(f"rm -rf {name}") for name in "abc"]
    for number, wait_id in enumerate(waiting):
        chat.arrives(wait_id, f"m{number}", f"n{number}")
    assert chat.says("/approve") == "code_asked"
    assert chat.told()[-1].startswith("I cannot tell which question you answer. Name the one that you mean:\n- ")
    assert chat.outcomes() == [None, None, None]
    assert chat.says("/deny", quotes="m1") == "answer", "the first message of the second question"
    assert chat.says(f"Yes {format_question_code(waiting[2]).lower()}.", ago_s=None) == "answer"
    assert chat.presses(waiting[0], "session") == "answer", "a button of one that is not the newest"
    assert chat.outcomes() == ["session", "deny", "once"]


def test_where_no_time_is_told_the_code_is_asked_for_once_and_words_go_on_as_messages(chat: Conversation) -> None:
    chat.begins()
    first = chat.asks()
    chat.arrives(first, "m1")
    assert chat.says("yes", ago_s=None) == "code_asked"
    assert chat.told()[-1].splitlines()[-1] == (
        "What you wrote was not passed on. If it answers none of these, send it again."
    )
    assert chat.says("yes", ago_s=None) == "run"
    assert chat.says("/approve", ago_s=None) == "code_asked", "a command is always told something"
    assert chat.outcomes() == [None]
    second = chat.asks("rm -rf other")
    chat.arrives(second, "m2", ago_s=0.0)
    assert chat.says("ok", ago_s=None) == "code_asked", "another question is another situation"
    assert chat.says("ok", ago_s=None) in ("run", "joined")
    assert chat.says(f"{format_question_code(second)} no", ago_s=None) == "answer"
    assert chat.outcomes() == [None, "deny"]


def test_nobody_allows_what_may_not_have_arrived(chat: Conversation) -> None:
    chat.begins()
    code = format_question_code(chat.asks())
    assert chat.says("/approve") == "code_asked"
    assert "- one that is still on its way to you: answer it with the code that it shows" in chat.told()[-1]
    assert code not in chat.told()[-1]
    assert chat.outcomes() == [None]


@pytest.mark.parametrize("quotes", ["", "m1"])
def test_words_answer_the_one_question_that_was_seen(quotes: str, chat: Conversation) -> None:
    chat.begins()
    chat.arrives(chat.asks_for_words(), "m1")
    assert chat.says("light blue", ago_s=None if quotes else 0.0, quotes=quotes) == "answer"
    assert json.loads(chat.store.results(chat.run_id)[0])["user_response"] == "light blue"


def test_words_that_may_be_meant_for_another_question_answer_none(chat: Conversation) -> None:
    chat.begins()
    first, second = chat.asks_for_words("Which colour?"), chat.asks_for_words("Which size?")
    chat.arrives(first, "m1")
    chat.arrives(second, "m2")
    assert chat.says("blue") == "code_asked"
    colour, size = format_question_code(first), format_question_code(second)
    assert f"- {size} (Which size?): {size} and your answer" in chat.told()[-1]
    assert chat.says(f"{size} 12") == "answer"
    assert chat.outcomes() == [None, "answered"]
    assert chat.says(f"{colour} light blue", ago_s=120) == "answer"
    answers = {
        json.loads(text)["question"]: json.loads(text)["user_response"] for text in chat.store.results(chat.run_id)
    }
    assert answers == {"Which colour?": "light blue", "Which size?": "12"}


def test_a_command_with_what_is_neither_a_choice_nor_a_code_allows_nothing(chat: Conversation) -> None:
    chat.begins()
    chat.arrives(chat.asks(), "m1")
    assert chat.says("/approve the other one") == "command"
    assert chat.told()[-1].startswith("Nothing was allowed. Answer /approve CODE,")
    assert chat.outcomes() == [None]


def test_a_reply_in_the_thread_below_a_question_answers_it(chat: Conversation) -> None:
    group = InboundChat(id="-100", kind=ChatKind.CHANNEL)
    chat.begins(chat=group)
    chat.arrives(chat.asks(), "1700.1")
    chat.arrives(chat.asks("rm -rf other"), "1700.2")
    below = InboundChat(id="-100", kind=ChatKind.CHANNEL, thread="1700.1")
    assert chat.says("yes", quotes="1700.1", chat=below, ago_s=None) == "answer"
    assert chat.outcomes() == ["once", None]


def test_a_person_who_is_late_is_told_so_and_words_reach_the_agent(chat: Conversation) -> None:
    chat.begins()
    wait_id = chat.asks()
    chat.arrives(wait_id, "m1")
    chat.lapses(wait_id, ago_s=1)
    assert chat.says("/approve") == "command"
    assert chat.told() == ["Nothing waits for your permission here."]
    assert chat.says("yes", ago_s=0) == "run"
    assert chat.outcomes() == ["expired"]
