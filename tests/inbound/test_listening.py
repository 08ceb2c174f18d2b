"""A gateway listens to a Telegram-like server: what people get, and what becomes of their messages."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import sqlalchemy as sa
from support.migrated import bring_up
from support.patience import PATIENCE_S
from support.plans import statements
from support.store import Store, asks
from support.telegram_server import TOKEN, TelegramServer

from hermes_worker import settings as settings_module
from hermes_worker.core.answer_binding import format_question_code
from hermes_worker.core.chat_commands import ChatRole
from hermes_worker.core.effects import SendDelivery
from hermes_worker.core.inbound import ChatKind, Inbound, InboundButton, InboundChat, InboundMessage, InboundSender
from hermes_worker.core.inbound_decision import InboundDecision, InboundFacts, decide
from hermes_worker.core.limits import Limit, LimitName, LimitReached
from hermes_worker.core.questions import Question
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import WaitKind
from hermes_worker.gateway import effects as effects_module
from hermes_worker.gateway import inbound as inbound_module
from hermes_worker.gateway import listening as listening_module
from hermes_worker.gateway.inbound import InboundHandler
from hermes_worker.gateway.listening import GatewayListener, list_listened_accounts
from hermes_worker.gateway.received import ReceivedEvent
from hermes_worker.settings import GatewaySettings
from hermes_worker.store.gateway import GatewayRows
from hermes_worker.store.outbox.deliveries import Deliveries
from hermes_worker.store.runs.inputs import require_spec
from hermes_worker.store.runs.waits import Waits
from hermes_worker.store.tables import audit_log, deliveries, inbound, runs, sessions, waits
from hermes_worker.tasks.iteration.planning import read_tool_names
from hermes_worker.wiring import Client, open_client

ACCOUNT = "telegram:default"


@pytest.fixture
def telegram() -> Iterator[TelegramServer]:
    with TelegramServer() as running:
        yield running


@pytest.fixture
def client(tmp_path: Path, broker_url: str, telegram: TelegramServer) -> Iterator[Client]:
    url = f"sqlite:///{tmp_path / 'test.db'}"
    (tmp_path / "home").mkdir()
    bring_up(url)
    environ = {
        "HOME": str(tmp_path),
        "HERMES_HOME": str(tmp_path / "home"),
        "HERMES_DATABASE_URL": url,
        "HERMES_BROKER_URL": broker_url,
        "HERMES_PROVIDER": "scripted",
        "HERMES_GATEWAY": "true",
        "HERMES_GATEWAY_LEASE_S": "3",
        "HERMES_GATEWAY_BUSY_INPUT_MODE": "queue",
        "TELEGRAM_BOT_TOKEN": TOKEN,
        "TELEGRAM_BASE_URL": telegram.url,
        "TELEGRAM_ALLOWED_USERS": "42, 43",
        "TELEGRAM_GUESTS": "50",
    }
    found = open_client(settings_module.load_settings(environ))
    yield found
    found.close()


@pytest.fixture
def listening(client: Client) -> Iterator[None]:
    accounts = list_listened_accounts(client.settings)
    assert [one.account for one in accounts] == [ACCOUNT]
    stopping = threading.Event()
    listener = GatewayListener(client, accounts, name="gw", alive_file=None)
    thread = threading.Thread(target=listener.run, args=(stopping,))
    thread.start()
    yield
    stopping.set()
    thread.join()


def rows_of(client: Client, *columns: Any) -> list[Any]:
    with client.database.read() as connection:
        return list(connection.execute(sa.select(*columns).order_by(columns[0].table.c.pk)))


def until(holds: Callable[[], object], within_s: float = PATIENCE_S) -> None:
    ends_at = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < ends_at, "it did not come about"
        time.sleep(0.02)


def outcomes(client: Client) -> list[str]:
    return [outcome for (outcome,) in rows_of(client, inbound.c.outcome)]


def bodies(client: Client) -> list[str]:
    """What chats are told beside the answers of runs."""
    rows = rows_of(client, deliveries.c.body, deliveries.c.message_id)
    return [body for body, message_id in rows if body is not None and message_id is None]


@pytest.mark.usefixtures("listening")
def test_a_message_becomes_a_run_whose_answer_goes_to_its_chat(client: Client, telegram: TelegramServer) -> None:
    telegram.write(42, "What is the weather?")
    until(lambda: outcomes(client) == ["run"])
    [(run_id, deliver, principal)] = rows_of(client, runs.c.run_id, runs.c.deliver, runs.c.principal)
    assert deliver == '["telegram:42"]'
    assert principal == "telegram:42"
    assert rows_of(client, inbound.c.run_id) == [(run_id,)]
    assert rows_of(client, sessions.c.name) == [("agent:main:telegram:dm:42",)]


@pytest.mark.usefixtures("listening")
def test_two_people_have_two_conversations_and_new_begins_another(client: Client, telegram: TelegramServer) -> None:
    for chat, text in ((42, "a"), (43, "b"), (42, "/new"), (42, "c")):
        telegram.write(chat, text)
    until(lambda: len(outcomes(client)) == 4)
    assert outcomes(client) == ["run", "run", "command", "run"]
    names = [name for (name,) in rows_of(client, sessions.c.name)]
    assert names == ["agent:main:telegram:dm:42", "agent:main:telegram:dm:43", "agent:main:telegram:dm:42~1"]
    statuses = [status for (status,) in rows_of(client, runs.c.status)]
    assert statuses[0] in ("cancelled", "stopping")
    assert bodies(client) == ["This is a new conversation."]


@pytest.mark.parametrize(
    ("modes", "is_open", "names"),
    [
        ((), False, ["dm:42", "dm:42~1"]),
        ((), True, ["dm:42"]),
        (("dm=none",), False, ["dm:42"]),
        (("dm=none", "telegram=idle"), False, ["dm:42", "dm:42~1"]),
    ],
)
def test_a_chat_begins_anew_by_itself_after_silence_and_says_so_once(
    modes: tuple[str, ...], is_open: bool, names: list[str], client: Client, store: Store
) -> None:
    chats = replace(client.settings.gateway, reset_mode="idle", reset_idle_minutes=60, reset_modes=modes, burst_s=0)
    handler = InboundHandler(replace(client, settings=replace(client.settings, gateway=chats)))
    ada = InboundSender(id="42")

    def take(*keys: str) -> list[str | None]:
        said = [InboundMessage(event_key=key, chat=InboundChat(id="42"), sender=ada, text="hi") for key in keys]
        return [handler.handle(ReceivedEvent(platform="telegram", event=event)) for event in said]

    assert take("1") == ["run"]
    [(first,)] = rows_of(client, runs.c.run_id)
    if not is_open:
        store.answer(first)
    store.change(runs, first, created_at=runs.c.created_at - 3_601, finished_at=runs.c.finished_at - 3_601)
    assert take("2", "3") == ["run", "run"]
    assert [name for (name,) in rows_of(client, sessions.c.name)] == [f"agent:main:telegram:{name}" for name in names]
    told = [body for body in bodies(client) if "automatically reset (inactive for 1h)" in body]
    assert len(told) == len(names) - 1


@pytest.mark.usefixtures("listening")
def test_what_somebody_writes_in_a_burst_is_one_turn_while_another_is_at_work(
    client: Client, telegram: TelegramServer
) -> None:
    telegram.write(42, "at work")
    telegram.write(42, "first")
    telegram.write(42, "second")
    telegram.write(43, "of another chat")
    until(lambda: len(outcomes(client)) == 4)
    assert outcomes(client) == ["run", "run", "joined", "run"]
    found = rows_of(client, runs.c.pk, runs.c.run_id)
    with client.database.read() as connection:
        assert [require_spec(connection, pk).input for pk, _ in found] == [
            "at work",
            "first\n\nsecond",
            "of another chat",
        ]
    assert rows_of(client, inbound.c.run_id)[1] == rows_of(client, inbound.c.run_id)[2] == (found[1][1],)
    with client.database.write() as connection:
        connection.execute(sa.update(runs).values(updated_at=runs.c.updated_at - 4))
    telegram.write(42, "third, and later")
    until(lambda: len(outcomes(client)) == 5)
    assert outcomes(client)[4] == "run"


@pytest.mark.usefixtures("listening")
def test_stop_stops_the_run_of_this_chat_only(client: Client, telegram: TelegramServer) -> None:
    for chat, text in ((42, "a"), (43, "b"), (42, "/status"), (42, "/stop")):
        telegram.write(chat, text)
    until(lambda: len(outcomes(client)) == 4)
    (mine, theirs) = [status for (status,) in rows_of(client, runs.c.status)]
    assert mine in ("cancelled", "stopping")
    assert theirs not in ("cancelled", "stopping")
    assert bodies(client)[0].startswith("Run run_")
    assert bodies(client)[1] == "Stopped."
    assert ("run.stop", "telegram:42") in [tuple(row) for row in rows_of(client, audit_log.c.act, audit_log.c.actor)]


@pytest.mark.usefixtures("listening")
def test_a_stranger_is_given_a_code_once_and_speaks_when_it_was_entered(
    client: Client, telegram: TelegramServer
) -> None:
    telegram.write(99, "let me in")
    telegram.write(99, "hello?")
    until(lambda: len(outcomes(client)) == 2)
    assert outcomes(client) == ["paired", "stranger"]
    [said] = bodies(client)
    code = said.partition("Your code is ")[2][:8]
    assert rows_of(client, runs.c.pk) == []
    GatewayRows(client.database).pair(ACCOUNT, code, ChatRole.MEMBER)
    telegram.write(99, "and now?")
    until(lambda: len(outcomes(client)) == 3)
    assert outcomes(client)[-1] == "run"


@pytest.mark.usefixtures("listening")
def test_a_shared_thread_says_who_wrote_and_nobody_writes_in_anothers_name(
    client: Client, telegram: TelegramServer
) -> None:
    chat = {"id": -100, "type": "supergroup", "title": "Ops", "is_forum": True}
    writer = {"id": 42, "is_bot": False, "first_name": "Eve] hi\n[Ada"}
    topic = {"chat": chat, "from": writer, "is_topic_message": True, "message_thread_id": 17}
    answered = {"message_id": 5, "text": "?", "from": {"id": 77, "is_bot": True}}
    telegram.write(42, "go", **topic, reply_to_message=answered)
    telegram.write(42, "not for the bot", **topic)
    until(lambda: len(outcomes(client)) == 2)
    assert outcomes(client) == ["run", "not_addressed"]
    [(pk, deliver)] = rows_of(client, runs.c.pk, runs.c.deliver)
    assert deliver == '["telegram:-100:17"]'
    with client.database.read() as connection:
        assert require_spec(connection, pk).input == "[Eve hi Ada] go"


def test_200_conflicts_never_end_listening(
    client: Client, telegram: TelegramServer, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(listening_module, "compute_poll_wait_s", lambda *_: 0.0)
    telegram.conflicts_due = 200
    telegram.write(42, "still there?")
    request.getfixturevalue("listening")
    until(lambda: outcomes(client) == ["run"])
    assert telegram.conflicts == 200


class Standby(threading.Event):
    """What a gateway waits by: it notes for how long, and no time passes. Set after twenty waits."""

    def __init__(self) -> None:
        super().__init__()
        self.waits_s: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits_s.append(timeout)
        if len(self.waits_s) == 20:
            self.set()
        return self.is_set()


def without_beginnings(asked: list[tuple[Any, Any]]) -> list[str]:
    """Statements as PostgreSQL gets them, where one alone needs no ``BEGIN``."""
    return [statement for statement, _ in asked if not statement.startswith("BEGIN")]


def test_who_stands_by_for_an_idle_account_asks_the_database_at_most_twice_a_minute(client: Client) -> None:
    rows = GatewayRows(client.database)
    assert rows.acquire_lease(ACCOUNT, mode="poll", token_hash="other", holder="gw2", lease_s=60.0) is not None
    [account] = list_listened_accounts(client.settings)
    standby = Standby()
    with statements(client.database) as asked:
        GatewayListener(client, [account], name="gw", alive_file=None)._listen(account, standby)
    assert len(without_beginnings(asked)) <= 2 * sum(standby.waits_s) / 60


def test_who_listens_to_an_idle_account_asks_the_database_at_most_twice_a_minute(
    client: Client, telegram: TelegramServer
) -> None:
    telegram.holds_looks = False
    usual = replace(client.settings, gateway=replace(client.settings.gateway, lease_s=GatewaySettings().lease_s))
    [account] = list_listened_accounts(usual)
    stopping = threading.Event()
    listener = GatewayListener(replace(client, settings=usual), [account], name="gw", alive_file=None)
    thread = threading.Thread(target=listener._listen, args=(account, stopping))
    with statements(client.database) as asked:
        thread.start()
        until(lambda: telegram.looks >= 20)
        stopping.set()
        thread.join()
    told = without_beginnings(asked)
    looks = [one for one in told if "looked_at" in one]
    to_begin_and_end = len(told) - len(looks)
    assert to_begin_and_end <= 5
    assert len(looks) <= telegram.looks + 1
    assert 60 / telegram.asked_hold_s <= 2


@pytest.mark.usefixtures("listening")
def test_what_was_taken_is_left_behind(client: Client, telegram: TelegramServer) -> None:
    number = telegram.write(42, "a")
    until(lambda: outcomes(client) == ["run"])
    until(lambda: not telegram.updates)
    with client.database.read() as connection:
        assert connection.execute(sa.text("select cursor from channels")).scalar() == str(number + 1)


@pytest.mark.usefixtures("listening")
def test_an_event_that_breaks_our_code_is_left_behind_and_the_next_is_heard(
    client: Client, telegram: TelegramServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(event: Inbound, facts: InboundFacts) -> InboundDecision:
        if isinstance(event, InboundMessage) and event.text == "boom":
            raise RuntimeError("a defect of ours")
        return decide(event, facts)

    monkeypatch.setattr(inbound_module, "decide", breaks)
    monkeypatch.setattr(listening_module, "_TRY_S", 0.05)
    telegram.write(42, "boom")
    telegram.write(42, "still there?")
    until(lambda: outcomes(client) == ["given_up", "run"])


@pytest.mark.usefixtures("listening")
def test_a_tenant_that_used_what_it_may_is_told_to_come_later(
    client: Client, telegram: TelegramServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object) -> NoReturn:
        raise LimitReached(Limit(name=LimitName.SUBMITS_PER_MIN, value=1), 60.0)

    monkeypatch.setattr(effects_module, "accept", refuses)
    telegram.write(42, "hello")
    until(lambda: outcomes(client) == ["limited"])
    assert bodies(client) == ["I may do no more for now. Send this one later."]


# --- what an agent asks ----------------------------------------------------------------------------------------------


@pytest.fixture
def store(client: Client) -> Store:
    """What a worker would do, done by the test."""
    return Store.over(client.database)


def asked_by(client: Client, store: Store, question: Question) -> str:
    """The id of the chat's run, which asks."""
    [(run_id,)] = rows_of(client, runs.c.run_id)
    store.ask_tools(run_id, asks(Replay.ONCE))
    hints = Waits(store.database).ask(store.call(run_id), question)
    [delivery] = [hint.effect for hint in hints if isinstance(hint.effect, SendDelivery)]
    assert delivery.run_id == run_id
    return str(run_id)


def arrives(client: Client, store: Store, receipt: str = "", *, ago_s: float = 60.0) -> None:
    """The platform has confirmed what is due, and that was ``ago_s`` ago."""
    outbox = Deliveries(client.database)
    for delivery_id, attempts, settled_at in rows_of(
        client, deliveries.c.delivery_id, deliveries.c.attempts, deliveries.c.settled_at
    ):
        effect = SendDelivery(run_id="", delivery_id=delivery_id, attempt=attempts + 1)
        if settled_at is None and (claim := outbox.claim(effect, store.owner)) is not None:
            outbox.settle_delivered(claim, receipt or f"m{delivery_id}")
    is_question = deliveries.c.wait_pk.is_not(None)
    with client.database.write() as connection:
        earlier = {"settled_at": deliveries.c.settled_at - ago_s}
        connection.execute(sa.update(deliveries).where(is_question).values(earlier))
        connection.execute(sa.update(waits).values(opened_at=waits.c.opened_at - ago_s))


def approval() -> Question:
    request = {"command": "rm -rf build", "description": "deletes a directory", "pattern_key": "rm", "arguments": "{}"}
    return Question(kind=WaitKind.APPROVAL, request=request, choices=["once", "deny"], expires_s=600)


def choices(client: Client) -> list[str]:
    return [outcome for (outcome,) in rows_of(client, waits.c.outcome)]


@pytest.mark.usefixtures("listening")
@pytest.mark.parametrize(
    ("said", "choice", "told"),
    [
        ("/approve", "once", "This was allowed."),
        ("/deny too risky", "deny", "This was not allowed."),
        ("Yes!", "once", "This was allowed."),
        ("no", "deny", "This was not allowed."),
    ],
)
def test_a_command_is_asked_about_in_the_chat_and_allowed_there(
    said: str, choice: str, told: str, client: Client, telegram: TelegramServer, store: Store
) -> None:
    telegram.write(42, "clean up")
    until(lambda: outcomes(client) == ["run"])
    asked_by(client, store, approval())
    assert "rm -rf build" in bodies(client)[0]
    arrives(client, store)
    telegram.write(42, said, date=int(time.time()))
    until(lambda: len(outcomes(client)) == 2)
    assert outcomes(client) == ["run", "answer"]
    assert choices(client) == [choice]
    assert bodies(client)[1:] == [told]
    assert rows_of(client, waits.c.answered_by) == [("telegram:42",)]


@pytest.mark.usefixtures("listening")
def test_a_command_that_a_chat_cannot_show_whole_is_denied_there_and_not_allowed(
    client: Client, telegram: TelegramServer, store: Store
) -> None:
    telegram.write(42, "clean up")
    until(lambda: outcomes(client) == ["run"])
    question = approval()
    command = f"echo {'x' * 50_000}; rm -rf ~/photos"
    asked_by(client, store, replace(question, request={**question.request, "command": command}))
    code = format_question_code(rows_of(client, waits.c.pk)[0][0])
    telegram.write(42, f"/approve {code}", date=int(time.time()))
    until(lambda: len(outcomes(client)) == 2)
    assert choices(client) == [None]
    assert bodies(client)[1].startswith(
        "This cannot be chosen: the command is too long to be shown here. Read it whole"
    )
    telegram.write(42, f"/deny {code}", date=int(time.time()))
    until(lambda: len(outcomes(client)) == 3)
    assert choices(client) == ["deny"]


@pytest.mark.usefixtures("listening")
def test_what_nobody_else_and_nobody_before_the_question_said_is_an_answer(
    client: Client, telegram: TelegramServer, store: Store
) -> None:
    telegram.write(42, "clean up")
    until(lambda: outcomes(client) == ["run"])
    asked_by(client, store, approval())
    arrives(client, store)
    telegram.write(43, "/approve")
    telegram.write(43, "yes", date=int(time.time()))
    telegram.write(42, "yes", date=int(time.time()) - 120)
    telegram.write(42, "/approve always", date=int(time.time()))
    until(lambda: len(outcomes(client)) == 5)
    assert outcomes(client) == ["run", "command", "run", "run", "command"]
    assert choices(client) == [None]
    assert bodies(client)[1:] == [
        "Nothing waits for your permission here.",
        "This cannot be chosen: the choices here are once, deny.",
    ]


@pytest.mark.usefixtures("listening")
def test_a_guest_of_a_shared_thread_talks_apart_and_allows_nothing(
    client: Client, telegram: TelegramServer, store: Store
) -> None:
    def in_topic(person: int) -> dict[str, Any]:
        chat = {"id": -100, "type": "supergroup", "title": "Ops", "is_forum": True}
        writer = {"id": person, "is_bot": False, "first_name": "Eve"}
        answered = {"message_id": 5, "text": "?", "from": {"id": 77, "is_bot": True}}
        topic = {"is_topic_message": True, "message_thread_id": 17}
        return {"chat": chat, "from": writer, "reply_to_message": answered, "date": int(time.time()), **topic}

    telegram.write(42, "clean up", **in_topic(42))
    until(lambda: outcomes(client) == ["run"])
    asked_by(client, store, approval())
    for text in ("/approve", "yes", "/new", "/stop"):
        telegram.write(50, text, **in_topic(50))
    until(lambda: len(outcomes(client)) == 5)
    assert outcomes(client) == ["run", "command", "run", "command", "command"]
    assert choices(client) == [None]
    assert bodies(client)[1:] == [
        "/approve is not for you here.",
        "This is a new conversation.",
        "Nothing is being done here.",
    ]
    assert rows_of(client, runs.c.status)[0] == ("waiting_for_approval",)
    members, guests = rows_of(client, sessions.c.source, sessions.c.name, sessions.c.pk)
    assert (members[0], guests[0]) == ("gateway", "chat-guest")
    assert members[1] == guests[1]
    assert "terminal" in read_tool_names(client.runs.load_session_context(members[2]).tools)
    offered = read_tool_names(client.runs.load_session_context(guests[2]).tools)
    assert offered & {"terminal", "memory", "write_file", "session_search", "delegate_task"} == set()


@pytest.mark.usefixtures("listening")
def test_a_member_allows_nothing_from_now_on(client: Client, telegram: TelegramServer, store: Store) -> None:
    telegram.write(60, "let me in")
    until(lambda: outcomes(client) == ["paired"])
    code = bodies(client)[0].partition("Your code is ")[2][:8]
    GatewayRows(client.database).pair(ACCOUNT, code, ChatRole.MEMBER)
    telegram.write(60, "clean up")
    until(lambda: outcomes(client) == ["paired", "run"])
    asked_by(client, store, approval())
    arrives(client, store)
    telegram.write(60, "/approve always", date=int(time.time()))
    until(lambda: len(outcomes(client)) == 3)
    assert choices(client) == [None]
    assert bodies(client)[2].startswith("Only an owner may allow something from now on.")


@pytest.mark.usefixtures("listening")
def test_plain_words_answer_what_an_agent_wants_to_know(client: Client, telegram: TelegramServer, store: Store) -> None:
    telegram.write(42, "paint it")
    until(lambda: outcomes(client) == ["run"])
    wanted = Question(kind=WaitKind.INPUT, request={"question": "Which colour?"}, choices=["red", "blue"])
    run_id = asked_by(client, store, wanted)
    code = format_question_code(question_of(client))
    line = f"Question {code}: reply to this message, or write {code} and your answer."
    assert bodies(client) == [f"Which colour?\n1. red\n2. blue\n\n{line}"]
    arrives(client, store)
    telegram.write(42, "2", date=int(time.time()))
    until(lambda: outcomes(client) == ["run", "answer"])
    assert '"user_response":"blue"' in store.results(run_id)[0]


@pytest.mark.parametrize("allowed", ["yes", "no"])
def test_a_rule_about_a_person_counts_for_commands_words_and_buttons(
    allowed: str, client: Client, telegram: TelegramServer, store: Store
) -> None:
    rules = ("approve=nobody", f"{ACCOUNT}/@42/approve={allowed}", f"{ACCOUNT}/42/status=nobody")
    ruled = replace(client.settings, gateway=replace(client.settings.gateway, commands=rules))
    handler = InboundHandler(replace(client, settings=ruled))

    def said(key: str, text: str) -> str | None:
        chat, sender = InboundChat(id="42"), InboundSender(id="42")
        event = InboundMessage(event_key=key, chat=chat, sender=sender, text=text)
        return handler.handle(ReceivedEvent(platform="telegram", event=event))

    assert said("1", "clean up") == "run"
    asked_by(client, store, approval())
    assert said("2", "/status") == "command"
    assert bodies(client)[-1] == "/status is not for you here."
    press = InboundButton(
        event_key="3",
        chat=InboundChat(id="42"),
        sender=InboundSender(id="42"),
        value=f"{question_of(client)}:once",
    )
    pressed = handler.handle(ReceivedEvent(platform="telegram", event=press))
    assert (pressed, choices(client)) == (("answer", ["once"]) if allowed == "yes" else ("command", [None]))
    if allowed == "no":
        assert said("4", "/approve") == "command"
        assert bodies(client)[-1] == "/approve is not for you here."
        assert said("5", "yes") == "run"
        assert choices(client) == [None]


# --- buttons ---------------------------------------------------------------------------------------------------------


def question_of(client: Client) -> int:
    [(wait_id,)] = rows_of(client, waits.c.pk)
    return int(wait_id)


@pytest.mark.usefixtures("listening")
@pytest.mark.parametrize("choice", ["once", "deny"])
def test_a_press_answers_the_question_that_bears_the_button_once(
    choice: str, client: Client, telegram: TelegramServer, store: Store
) -> None:
    telegram.write(42, "clean up")
    until(lambda: outcomes(client) == ["run"])
    asked_by(client, store, approval())
    wait_id = question_of(client)
    [(buttons,)] = [row for row in rows_of(client, deliveries.c.buttons) if row[0] is not None]
    assert [value for _, value in json.loads(buttons)] == [f"{wait_id}:once", f"{wait_id}:deny"]
    telegram.press(42, f"{wait_id}:{choice}")
    telegram.press(42, f"{wait_id}:once")
    until(lambda: len(outcomes(client)) == 3)
    assert outcomes(client) == ["run", "answer", "command"]
    assert choices(client) == [choice]
    assert bodies(client)[-1] == "This is not asked any more."
    until(lambda: len(telegram.acknowledged) == 2)


@pytest.mark.usefixtures("listening")
def test_nobody_answers_for_others_with_a_button(client: Client, telegram: TelegramServer, store: Store) -> None:
    telegram.write(42, "clean up")
    until(lambda: outcomes(client) == ["run"])
    asked_by(client, store, approval())
    wait_id = question_of(client)
    for person in (43, 50, 99):  # another owner's chat, a guest, a stranger
        telegram.press(person, f"{wait_id}:once")
    telegram.press(42, f"{wait_id}:session")
    telegram.press(42, f"{wait_id}:everything")
    until(lambda: len(outcomes(client)) == 6)
    assert outcomes(client)[1:4] == ["unknown_kind", "unknown_kind", "stranger"]
    assert choices(client) == [None]


@pytest.mark.usefixtures("listening")
def test_a_press_chooses_an_answer(client: Client, telegram: TelegramServer, store: Store) -> None:
    telegram.write(42, "paint it")
    until(lambda: outcomes(client) == ["run"])
    wanted = Question(kind=WaitKind.INPUT, request={"question": "Which colour?"}, choices=["red", "blue"])
    run_id = asked_by(client, store, wanted)
    telegram.press(42, f"{question_of(client)}:2")
    until(lambda: outcomes(client) == ["run", "answer"])
    assert '"user_response":"blue"' in store.results(run_id)[0]


@pytest.mark.parametrize("kind", [ChatKind.DIRECT, ChatKind.CHANNEL])
def test_a_press_that_tells_no_kind_of_chat_is_of_the_chat_that_asks(
    kind: ChatKind, client: Client, store: Store
) -> None:
    open_to_both = replace(client.settings.gateway, allowed_users=("42", "43"))
    handler = InboundHandler(replace(client, settings=replace(client.settings, gateway=open_to_both)))
    chat = InboundChat(id="C0123ABCD", kind=kind)
    asking = InboundMessage(event_key="1", chat=chat, sender=InboundSender(id="42"), text="clean up", is_addressed=True)
    assert handler.handle(ReceivedEvent(platform="slack", event=asking)) == "run"
    asked_by(client, store, approval())

    def pressed(key: str, sender: str) -> str | None:
        press = InboundButton(
            event_key=key,
            chat=replace(chat, kind=ChatKind.GROUP),
            may_be=(ChatKind.GROUP, ChatKind.CHANNEL, ChatKind.DIRECT),
            sender=InboundSender(id=sender),
            value=f"{question_of(client)}:once",
        )
        return handler.handle(ReceivedEvent(platform="slack", event=press))

    if kind is ChatKind.CHANNEL:
        assert pressed("2", "43") == "unknown_kind"  # the session is that of who asked
        assert choices(client) == [None]
    assert pressed("3", "42") == "answer"
    assert choices(client) == ["once"]


def test_a_press_beside_a_connection_leaves_its_account_as_it_is(client: Client) -> None:
    rows = GatewayRows(client.database)
    hold = rows.acquire_lease("mattermost:default", mode="socket", token_hash="h", holder="gw", lease_s=60)
    assert hold is not None
    rows.advance_cursor(hold, "17")
    press = InboundButton(event_key="1", chat=InboundChat(id="c" * 26), sender=InboundSender(id="9"), value="7:once")
    assert (
        InboundHandler(client).handle(ReceivedEvent(platform="mattermost", event=press, is_beside=True)) == "stranger"
    )
    [account] = rows.list_accounts()
    assert (account.mode, account.holder) == ("socket", "gw")
    rows.renew(hold, 60)
    rows.release(hold)
    again = rows.acquire_lease("mattermost:default", mode="socket", token_hash="h", holder="gw", lease_s=60)
    assert again is not None
    assert again.cursor == "17"


# --- commands about the conversation ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("listening")
def test_a_conversation_is_called_by_a_title_and_says_what_it_has_used(
    client: Client, telegram: TelegramServer, store: Store
) -> None:
    telegram.write(42, "/usage")
    telegram.write(42, "hello")
    until(lambda: outcomes(client) == ["command", "run"])
    [(run_id,)] = rows_of(client, runs.c.run_id)
    store.answer(run_id)
    for said in ("/title  Trip to\nRome", "/title", "/usage"):
        telegram.write(42, said)
    until(lambda: len(outcomes(client)) == 5)
    first, named, asked, used = bodies(client)
    assert first == "Nothing was said here yet."
    assert named == asked == "This conversation is called: Trip to Rome"
    assert "1 model calls" in used
    telegram.write(43, "hello")
    telegram.write(43, "/title Trip to Rome")
    until(lambda: len(outcomes(client)) == 7)
    assert bodies(client)[-1] == "Another conversation is called so."


@pytest.mark.usefixtures("listening")
def test_a_conversation_is_summarised_when_somebody_asks_for_it(
    client: Client, telegram: TelegramServer, store: Store
) -> None:
    telegram.write(42, "hello")
    until(lambda: outcomes(client) == ["run"])
    [(run_id,)] = rows_of(client, runs.c.run_id)
    store.answer(run_id)
    telegram.write(42, "/compress the   trip")
    until(lambda: outcomes(client) == ["run", "run"])
    [_, (pk, deliver)] = rows_of(client, runs.c.pk, runs.c.deliver)
    assert deliver == '["telegram:42"]'
    with client.database.read() as connection:
        assert require_spec(connection, pk).compress == "the trip"
