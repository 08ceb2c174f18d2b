"""What Matrix's events mean, and what a look asks for."""

from __future__ import annotations

import json
from typing import Any

from support.inbound_cases import AT, matrix_event, matrix_page

from hermes_worker.channels.errors import DeliveryError
from hermes_worker.channels.inbound.matrix import Credentials, poll, read
from hermes_worker.channels.inbound.receiving import Polled
from hermes_worker.core.inbound import ChatKind, InboundEdit, InboundMessage
from hermes_worker.net.http import HttpResponse

ACCOUNT = Credentials(homeserver="http://service.example", access_token="syt_secret")
ME = "@bot:t.local"
TWO = {"@ada:t.local": {"display_name": "Ada"}, ME: {}}


def looked(cursor: str, **answers: Any) -> tuple[Polled | DeliveryError, list[str]]:
    """One look; ``answers`` by a word of the address, and what was asked."""
    exchange = poll(cursor, ACCOUNT, AT, 20)
    asked: list[str] = []
    try:
        request = next(exchange)
        while True:
            asked.append(request.url)
            word = next(word for word in answers if f"/{word}" in request.url)
            status, body = answers[word] if isinstance(answers[word], tuple) else (200, answers[word])
            request = exchange.send(HttpResponse(status=status, body=json.dumps(body).encode()))
    except StopIteration as end:
        return end.value, asked


def message(**more: Any) -> InboundMessage:
    (found,) = read(matrix_event("$1", **({"text": "hello"} | more)), "!r:t.local", TWO, ME)
    assert isinstance(found, InboundMessage)
    return found


def test_what_was_said_before_the_first_look_is_not_answered():
    found, asked = looked("", sync=matrix_page(matrix_event("$1", "old")))
    assert found == Polled(inbound=(), cursor="s2")
    assert len(asked) == 1


def test_a_room_of_two_is_direct_and_one_of_three_a_group():
    assert message().chat.kind is ChatKind.DIRECT
    (found,) = read(matrix_event("$1", "hello"), "!r:t.local", TWO | {"@eve:t.local": {}}, ME)
    assert found.chat.kind is ChatKind.GROUP


def test_our_own_messages_are_nothing_and_notices_are_of_programs():
    assert read(matrix_event("$1", "hello") | {"sender": ME}, "!r:t.local", TWO, ME) == ()
    assert message(msgtype="m.notice").sender.is_bot
    assert not message().sender.is_bot


def test_a_thread_a_reply_and_a_mention_are_read():
    thread = {"rel_type": "m.thread", "event_id": "$0", "is_falling_back": True, "m.in_reply_to": {"event_id": "$9"}}
    assert (message(**{"m.relates_to": thread}).chat.thread, message(**{"m.relates_to": thread}).reply_to) == ("$0", "")
    reply = message(
        text="> <@bot:t.local> old\n> lines\n\nnew", **{"m.relates_to": {"m.in_reply_to": {"event_id": "$9"}}}
    )
    assert (reply.text, reply.reply_to) == ("new", "$9")
    assert message(**{"m.mentions": {"user_ids": [ME]}}).is_addressed
    assert message(text="bot: hello").is_addressed
    assert not message(text="robots").is_addressed


def test_an_edit_is_an_edit_of_the_message_it_names():
    content = {"m.relates_to": {"rel_type": "m.replace", "event_id": "$1"}, "m.new_content": {"body": "better"}}
    (found,) = read(matrix_event("$2", "* better", **content), "!r:t.local", TWO, ME)
    assert isinstance(found, InboundEdit)
    assert (found.message_id, found.text, found.event_key) == ("$1", "better", "$2")


def test_what_a_look_left_out_is_asked_for_back_to_where_the_last_one_ended():
    page = matrix_page(matrix_event("$3", "third"), limited=True)
    older = {"chunk": [matrix_event("$2", "second"), matrix_event("$1", "first")]}
    found, asked = looked("s1", sync=page, account=page, messages=older, joined_members=page)
    assert isinstance(found, Polled)
    assert [one.event_key for one in found.inbound] == ["$1", "$2", "$3"]
    assert any("to=s1" in url and "from=p1" in url for url in asked)
    failed, _ = looked("s1", sync=page, account=page, messages=(502, {}), joined_members=page)
    assert isinstance(failed, DeliveryError)


def test_what_was_said_before_we_joined_is_not_answered():
    joined = {"type": "m.room.member", "state_key": ME, "content": {"membership": "join"}, "event_id": "$j"}
    page = matrix_page(matrix_event("$1", "before"), joined, matrix_event("$2", "after"))
    found, _ = looked("s1", sync=page, account=page, joined_members=page)
    assert isinstance(found, Polled)
    assert [one.event_key for one in found.inbound] == ["$2"]


def test_an_invitation_is_accepted_and_one_that_cannot_be_now_is_tried_again():
    page = {"next_batch": "s2", "rooms": {"invite": {"!new:t.local": {}}}}
    found, asked = looked("s1", sync=page, rooms={})
    assert isinstance(found, Polled)
    assert asked[1].endswith("/rooms/%21new%3At.local/join")
    assert isinstance(looked("s1", sync=page, rooms=(429, {}))[0], DeliveryError)
    assert isinstance(looked("s1", sync=page, rooms=(403, {}))[0], Polled)
