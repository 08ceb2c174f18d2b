"""Telegram's updates, as core.telegram.org/bots/api describes them."""

from __future__ import annotations

import json

import pytest
from support.inbound_cases import AT, telegram_update

from hermes_worker.channels.errors import DeliveryError, SendErrorKind
from hermes_worker.channels.inbound.receiving import Polled
from hermes_worker.channels.inbound.telegram import Credentials, poll, read
from hermes_worker.core.inbound import ChatKind, InboundButton, InboundEdit, InboundMessage, InboundMove, MediaRef
from hermes_worker.core.media_kinds import MediaKind
from hermes_worker.net.http import HttpResponse

BOT = Credentials(token="77:abc", bot_name="HermesBot")


def message(**more) -> InboundMessage:
    (found,) = read(telegram_update(1, **({"text": "hi"} | more)), BOT)
    assert isinstance(found, InboundMessage)
    return found


def test_a_group_is_a_group_and_a_topic_is_its_thread():
    chat = {"id": -1001, "type": "supergroup", "title": "Ops", "is_forum": True}
    found = message(chat=chat, is_topic_message=True, message_thread_id=17)
    assert (found.chat.kind, found.chat.id, found.chat.thread, found.chat.name) == (
        ChatKind.GROUP,
        "-1001",
        "17",
        "Ops",
    )


def test_an_answer_in_a_plain_group_is_no_thread():
    assert message(chat={"id": -1, "type": "group"}, message_thread_id=17).chat.thread == ""


@pytest.mark.parametrize(
    ("text", "is_addressed"), [("@hermesbot go", True), ("@HermesBotter go", False), ("go", False)]
)
def test_a_message_that_names_the_bot_is_addressed_to_it(text, is_addressed):
    assert message(text=text).is_addressed is is_addressed


@pytest.mark.parametrize("writer", [{"id": 77, "is_bot": True}, {"id": 5, "is_bot": True, "username": "hermesbot"}])
def test_an_answer_to_the_bot_is_addressed_to_it(writer):
    found = message(reply_to_message={"message_id": 9, "text": "Which?", "from": writer})
    assert (found.is_addressed, found.reply_to, found.reply_to_text) == (True, "9", "Which?")


def test_a_bot_is_a_bot():
    assert message(**{"from": {"id": 5, "is_bot": True}}).sender.is_bot


def test_the_largest_photo_is_taken_and_an_animation_once():
    sizes = [{"file_id": "s", "file_size": 10}, {"file_id": "l", "file_size": 99}]
    found = message(photo=sizes, caption="look", text=None, media_group_id="g")
    assert (found.text, found.album) == ("look", "g")
    assert found.media == (MediaRef(kind=MediaKind.IMAGE, id="l", media_type="image/jpeg", size_bytes=99),)
    both = message(animation={"file_id": "a"}, document={"file_id": "a"})
    assert [one.id for one in both.media] == ["a"]


def test_a_pressed_button_is_of_who_pressed_it():
    pressed = {"id": "p1", "data": "w:1:approve", "from": {"id": 6}, "message": telegram_update(1, "?")["message"]}
    (found,) = read({"update_id": 5, "callback_query": pressed}, BOT)
    assert isinstance(found, InboundButton)
    assert (found.value, found.press_id, found.sender.id, found.chat.id) == ("w:1:approve", "p1", "6", "4242")


def test_an_edit_and_a_move_are_events_of_their_own():
    (edit,) = read({"update_id": 6, "edited_message": telegram_update(1, "hi!")["message"]}, BOT)
    assert isinstance(edit, InboundEdit)
    assert (edit.event_key, edit.message_id, edit.text) == ("6", "901", "hi!")
    (move,) = read(telegram_update(7, "", migrate_to_chat_id=-100123), BOT)
    assert isinstance(move, InboundMove)
    assert move.to_chat == "-100123"


def test_a_look_asks_from_the_cursor_on_and_one_without_updates_keeps_it():
    exchange = poll("8", BOT, AT, 30)
    request = next(exchange)
    assert request.url == "https://api.telegram.org/bot77:abc/getUpdates"
    assert json.loads(request.body)["offset"] == 8
    with pytest.raises(StopIteration) as end:
        exchange.send(HttpResponse(status=200, body=b'{"ok":true,"result":[]}'))
    assert end.value.value == Polled(inbound=(), cursor="8")


def test_an_update_that_says_nothing_to_us_is_left_behind():
    exchange = poll("", BOT, AT, 30)
    next(exchange)
    with pytest.raises(StopIteration) as end:
        exchange.send(HttpResponse(status=200, body=b'{"ok":true,"result":[{"update_id":40,"poll":{}}]}'))
    assert end.value.value == Polled(inbound=(), cursor="41")


def test_too_many_requests_say_how_long_to_wait():
    exchange = poll("8", BOT, AT, 30)
    next(exchange)
    said = {"ok": False, "description": "Too Many Requests: retry after 9", "parameters": {"retry_after": 9}}
    with pytest.raises(StopIteration) as end:
        exchange.send(HttpResponse(status=429, body=json.dumps(said).encode()))
    assert isinstance(end.value.value, DeliveryError)
    assert (end.value.value.kind, end.value.value.retry_after_s) == (SendErrorKind.RATE_LIMITED, 9.0)
