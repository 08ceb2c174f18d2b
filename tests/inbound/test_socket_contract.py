"""What every platform that is listened to over an open connection promises, whatever its name."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from inbound.test_receiving_contract import JSON_VALUES, places, put
from support.inbound_cases import AT, CASES
from support.socket_cases import SOCKET_CASES, SocketCase, framed

from hermes_worker.channels.errors import DeliveryError, SendErrorKind
from hermes_worker.channels.exchange import perform
from hermes_worker.channels.inbound.declaration import InboundMode
from hermes_worker.channels.inbound.receiving import FrameOutcome, SocketAddress, SocketTalk
from hermes_worker.channels.receivers import load_receivers
from hermes_worker.core.inbound import EVENT_KEY_CHARS_MAX, ChatKind, InboundMessage
from hermes_worker.net.http import HttpRequest, HttpResponse

NAMES = sorted(SOCKET_CASES)
ASKING = [name for name in NAMES if SOCKET_CASES[name].answer is not None]


def talk_of(name: str) -> SocketTalk:
    receiver = load_receivers()[name]
    return receiver.open_talk(receiver.build_credentials(CASES[name].values))


def addressed(
    talk: SocketTalk, answers: Callable[[HttpRequest], HttpResponse], cursor: str = ""
) -> SocketAddress | DeliveryError:
    return perform(talk.find_address(cursor, AT), answers)


def opened(name: str) -> tuple[SocketTalk, SocketCase]:
    """A conversation that has begun."""
    talk, case = talk_of(name), SOCKET_CASES[name]
    assert isinstance(addressed(talk, case.answers), SocketAddress)
    for frame in case.opening:
        talk.on_frame(framed(frame), AT)
    return talk, case


def heard(name: str, frame: Any) -> FrameOutcome:
    talk, _ = opened(name)
    return talk.on_frame(framed(frame), AT)


def test_every_platform_that_is_listened_to_over_a_connection_has_a_case():
    assert {name for name, one in load_receivers().items() if InboundMode.SOCKET in one.receiving.modes} == set(
        SOCKET_CASES
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_connection_begins_where_the_platform_says_and_shows_no_secret(name):
    talk, case = talk_of(name), SOCKET_CASES[name]
    address = addressed(talk, case.answers)
    assert isinstance(address, SocketAddress)
    assert address.url == case.url
    row = load_receivers()[name].receiving
    values = [CASES[name].values.get(row.variables[field], "") for field in row.secrets]
    assert not any(value and value in repr(shown) for value in values for shown in (address, talk))


@pytest.mark.parametrize("name", ASKING)
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, SendErrorKind.AUTH),
        (429, SendErrorKind.RATE_LIMITED),
        (302, SendErrorKind.REFUSED),
        (502, SendErrorKind.TRANSIENT),
        (200, None),
    ],
)
def test_a_platform_that_names_no_address_is_a_failure(name, status, kind):
    answer = HttpResponse(status=status, headers={"retry-after": "7"}, body=b"{}")
    error = addressed(talk_of(name), lambda _: answer)
    assert isinstance(error, DeliveryError)
    assert kind in (None, error.kind)
    assert error.retry_after_s == 7.0 or status == 200


@pytest.mark.parametrize("name", NAMES)
def test_a_message_is_read(name):
    found, case = heard(name, SOCKET_CASES[name].message), SOCKET_CASES[name]
    (message,) = found.inbound
    assert isinstance(message, InboundMessage)
    assert (message.text, message.chat.id, message.sender.id) == ("hello", case.chat, case.sender)
    assert message.chat.kind is case.kind
    assert message.is_addressed or case.kind is ChatKind.DIRECT
    assert not message.sender.is_bot
    assert 0 < len(message.event_key) <= EVENT_KEY_CHARS_MAX
    assert not found.is_over


@pytest.mark.parametrize("name", NAMES)
def test_a_message_that_comes_again_has_the_same_key(name):
    first, again = (heard(name, SOCKET_CASES[name].message).inbound for _ in range(2))
    assert [one.event_key for one in first] == [one.event_key for one in again]


@pytest.mark.parametrize("name", NAMES)
def test_what_we_and_other_programs_said_is_answered_by_nobody(name):
    for frame in (SOCKET_CASES[name].own, SOCKET_CASES[name].bot):
        if frame is not None:
            assert all(one.sender.is_bot for one in heard(name, frame).inbound)


HOSTILE = [
    "",
    "null",
    "[]",
    "[" * 100_000,
    '{"a":' * 5_000,
    '{"op": ' + "9" * 5000 + "}",
    "x" * 1_000_000,
    "\ufffd\x00\x01\u202e",
    '{"type": [], "op": {}, "event": {}, "data": "x", "d": 3, "s": "x", "seq": {}, "envelope_id": {}}',
]


@pytest.mark.parametrize("name", NAMES)
def test_a_frame_that_is_nothing_costs_nothing_but_itself(name):
    talk, case = opened(name)
    for frame in HOSTILE:
        found = talk.on_frame(frame, AT)
        assert (found.inbound, found.error, found.is_over, found.cursor) == ((), None, False, None), frame[:40]
    assert len(talk.on_frame(framed(case.message), AT).inbound) == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_word_of_a_megabyte_is_a_message_like_another(name):
    frame = framed(SOCKET_CASES[name].message)
    (message,) = heard(name, frame.replace("hello", "w" * 1_000_000)).inbound
    assert isinstance(message, InboundMessage)
    assert len(message.text) == 1_000_000


@pytest.mark.parametrize("name", [name for name in NAMES if not isinstance(SOCKET_CASES[name].message, str)])
@settings(max_examples=25, deadline=None)
@given(data=some.data())
def test_whatever_stands_in_a_frame_is_read(name, data):
    message = SOCKET_CASES[name].message
    place = data.draw(some.sampled_from(places(message)))
    frame = json.dumps(put(message, place, data.draw(JSON_VALUES)))
    for one in heard(name, frame).inbound:
        assert isinstance(one.chat.id, str)
        assert isinstance(one.sender.id, str)
        assert 0 < len(one.event_key) <= EVENT_KEY_CHARS_MAX


@pytest.mark.parametrize("name", NAMES)
def test_a_connection_that_is_closed_without_a_reason_is_made_again(name):
    talk, _ = opened(name)
    assert talk.on_close(1006).error is None
