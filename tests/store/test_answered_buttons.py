"""The buttons below a question go when it is answered, however that was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.store import Store, asks
from support.telegram_server import TOKEN, TelegramServer
from test_delivering import Office

from hermes_worker.core.answer_binding import format_code_line, format_question_code
from hermes_worker.core.delivery_states import DeliveryState
from hermes_worker.core.questions import Question
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import WaitKind
from hermes_worker.safety.approvals import ApprovalChoice
from hermes_worker.store.gateway import GatewayRows
from hermes_worker.store.runs.waits import Waits
from hermes_worker.store.tables import deliveries, waits

CHAT = "telegram:42"
REQUEST = {"command": "rm -rf build", "description": "deletes a directory", "pattern_key": "rm", "arguments": "{}"}
APPROVAL = Question(kind=WaitKind.APPROVAL, request=REQUEST, choices=["once", "deny"], expires_s=600)


@pytest.fixture
def telegram() -> Iterator[TelegramServer]:
    with TelegramServer() as running:
        yield running


@pytest.fixture
def here(store: Store, tmp_path: Path, telegram: TelegramServer) -> Office:
    values = {"TELEGRAM_BOT_TOKEN": TOKEN, "TELEGRAM_BASE_URL": telegram.url}
    return Office(store, tmp_path, values)


def asked(store: Store, question: Question = APPROVAL, chat: str = CHAT) -> str:
    """The id of a run of a chat that asks."""
    run_id = store.submit(deliver=[chat], source="gateway", session_id="agent:main:telegram:dm:42").run_id
    store.ask_tools(run_id, asks(Replay.ONCE))
    Waits(store.database).ask(store.call(run_id), question)
    return run_id


def wait_of(store: Store) -> int:
    with store.database.read() as connection:
        return int(connection.execute(sa.select(waits.c.pk)).scalar_one())


def test_a_command_that_is_longer_than_a_message_is_sent_whole_in_several(
    store: Store, here: Office, telegram: TelegramServer
) -> None:
    command = f"echo {'x' * 9_000}; rm -rf ~/photos"
    asked(store, replace(APPROVAL, request={**REQUEST, "command": command}))
    here.work()
    texts = [one["text"] for one in telegram.sent]
    assert len(texts) == 4
    assert [text for text in texts if "`" in text] == []
    assert sum(text.count("x") for text in texts) == 9_000
    assert "rm -rf ~/photos" in texts[-1]
    assert format_code_line(WaitKind.APPROVAL, format_question_code(wait_of(store))) in texts[-1]
    assert telegram.buttons[4] == [f"{wait_of(store)}:once", f"{wait_of(store)}:deny"]
    assert telegram.buttons[3] == []


def test_a_command_that_no_chat_shows_whole_has_no_button_that_allows_it(
    store: Store, here: Office, telegram: TelegramServer
) -> None:
    command = f"echo {'x' * 90_000}; rm -rf ~/photos"
    asked(store, replace(APPROVAL, request={**REQUEST, "command": command}))
    here.work()
    whole = "".join(one["text"] for one in telegram.sent)
    assert "of its 90,022 characters are left out here" in whole
    assert "rm -rf ~/photos" in whole
    assert f"hermes-worker approvals show {wait_of(store)}" in whole
    assert [buttons for buttons in telegram.buttons.values() if buttons] == [[f"{wait_of(store)}:deny"]]


def allow(store: Store, run_id: str) -> None:
    Waits(store.database).approve(run_id, ApprovalChoice.ONCE, by="telegram:42")


def expire(store: Store, run_id: str) -> None:
    store.let_pass(700.0)


def stop(store: Store, run_id: str) -> None:
    store.runs.request_stop(run_id)


@pytest.mark.parametrize("answer", [allow, expire, stop])
def test_the_message_stays_and_its_buttons_go(
    store: Store, here: Office, telegram: TelegramServer, answer: Callable[[Store, str], None]
) -> None:
    run_id = asked(store)
    here.work()
    wait_id = wait_of(store)
    assert telegram.buttons == {1: [f"{wait_id}:once", f"{wait_id}:deny"]}
    text = telegram.messages[1]
    assert "rm -rf build" in text
    answer(store, run_id)
    here.wait_over()
    here.wait_over()
    here.work()
    assert telegram.buttons[1] == []
    assert telegram.messages[1] == text
    assert [one["text"] for one in telegram.sent].count(text) == 1


def test_a_question_that_was_answered_before_it_was_sent_comes_without_buttons(
    store: Store, here: Office, telegram: TelegramServer
) -> None:
    run_id = asked(store)
    allow(store, run_id)
    here.work()
    here.wait_over()
    here.work()
    assert telegram.buttons == {1: []}
    assert telegram.edits == 0


def test_one_that_is_answered_while_it_is_sent_loses_them_afterwards(
    store: Store, here: Office, telegram: TelegramServer
) -> None:
    run_id = asked(store)

    def answered_now() -> None:
        telegram.flood = lambda: None
        allow(store, run_id)

    telegram.flood = answered_now
    here.work()
    assert telegram.buttons[1] != []
    here.wait_over()
    here.work()
    assert telegram.buttons[1] == []


def test_a_long_question_keeps_all_its_parts(store: Store, here: Office, telegram: TelegramServer) -> None:
    request = {**REQUEST, "command": "rm " + "x" * 2_990, "description": "deletes " * 300}
    run_id = asked(store, Question(kind=WaitKind.APPROVAL, request=request, choices=["once", "deny"]))
    here.work()
    before = dict(telegram.messages)
    assert len(before) == 2
    [question] = GatewayRows(store.database).list_questions("gateway", "agent:main:telegram:dm:42")
    assert question.messages == {"1", "2"}, "a reply to any of them answers it"
    assert question.delivered_at is not None
    assert f"Answer /approve {question.code} or /deny {question.code}." in before[2]
    allow(store, run_id)
    here.wait_over()
    here.work()
    assert telegram.messages == before
    assert telegram.buttons == {1: [], 2: []}


def test_a_message_that_somebody_deleted_is_not_sent_again_and_its_chat_counts_as_before(
    store: Store, here: Office, telegram: TelegramServer
) -> None:
    run_id = asked(store)
    here.work()
    telegram.messages.clear()
    allow(store, run_id)
    here.wait_over()
    here.work()
    assert len(telegram.sent) == 1
    assert [one.state for one in here.all].count(DeliveryState.FAILED) == 1
    assert here.outbox.list_dead_targets() == []


def test_a_flood_puts_the_change_off(store: Store, here: Office, telegram: TelegramServer) -> None:
    run_id = asked(store)
    here.work()
    allow(store, run_id)
    telegram.flood = lambda: 30.0
    here.wait_over()
    here.work()
    assert telegram.buttons[1] != []
    telegram.flood = lambda: None
    here.wait_over()
    here.work()
    assert telegram.buttons[1] == []


def test_a_replay_of_the_change_is_the_change(store: Store, here: Office, telegram: TelegramServer) -> None:
    run_id = asked(store)
    here.work()
    allow(store, run_id)
    here.wait_over()
    here.work()
    newest = here.all[0]
    assert newest.state is DeliveryState.DELIVERED
    here.outbox.retry(newest.delivery_id)
    here.work()
    assert len(telegram.sent) == 1


def test_nothing_is_owed_for_a_run_without_buttons(store: Store, here: Office) -> None:
    run_id = asked(store, Question(kind=WaitKind.INPUT, request={"question": "Which colour?"}))
    Waits(store.database).reply(run_id, "red", by="telegram:42")
    with store.database.read() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(deliveries)).scalar_one() == 1
