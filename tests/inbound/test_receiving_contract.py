"""What every platform that is listened to promises, whatever its name."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from itertools import islice
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from support.forging import forgeries
from support.inbound_cases import AT, CASES, InboundCase, changed, doubled, without

from hermes_worker.channels.adapters import load_adapters
from hermes_worker.channels.catalog import ChatForm, describe_display, list_platforms
from hermes_worker.channels.errors import DeliveryError
from hermes_worker.channels.inbound.declaration import InboundMode
from hermes_worker.channels.inbound.receiving import Forged, Polled, UnreadableInbound, WebhookRequest
from hermes_worker.channels.receivers import Receiver, load_receivers
from hermes_worker.channels.targets import ChatRef, parse_targets
from hermes_worker.core.inbound import (
    EVENT_KEY_CHARS_MAX,
    ChatKind,
    InboundButton,
    InboundChat,
    InboundMessage,
    InboundSender,
)
from hermes_worker.gateway.received import ReceivedEvent
from hermes_worker.net.http import HttpResponse

SIGNED = sorted(name for name, case in CASES.items() if case.sign is not None)
PRESSED = sorted(name for name, case in CASES.items() if case.press is not None)
POLLED = sorted(name for name, case in CASES.items() if case.page is not None)


def of(name: str) -> tuple[Receiver, InboundCase, Any]:
    receiver, case = load_receivers()[name], CASES[name]
    return receiver, case, receiver.build_credentials(case.values)


def request_of(name: str, body: Any = None) -> WebhookRequest:
    case = CASES[name]
    if body is None:
        return case.webhook(case.body)
    return case.webhook(body if isinstance(body, bytes) else json.dumps(body).encode())


def test_every_platform_that_is_listened_to_has_a_case():
    assert {name for name, row in list_platforms().items() if row.receiving is not None} == set(CASES)


@pytest.mark.parametrize("name", sorted(name for name, case in CASES.items() if case.chat))
def test_a_chat_that_is_let_in_can_be_answered_and_its_agent_is_told_how(name):
    chat = InboundChat(id=CASES[name].chat, kind=CASES[name].kind)
    event = InboundMessage(event_key="1", chat=chat, sender=InboundSender(id="1"))
    target = ReceivedEvent(platform=name, event=event).target
    assert target is not None
    (reference,) = parse_targets(target)
    assert isinstance(reference, ChatRef) and reference.target.form is not ChatForm.NAME
    first, *others = describe_display(name)
    assert first.startswith("What you write is shown as ")
    takes_files = name == "email" or load_adapters()[name].sending.takes_files
    assert any("MEDIA:" in sentence for sentence in others) is takes_files


@pytest.mark.parametrize(
    ("chat", "target"), [("C12", "slack:C12"), ("D0123", "slack:D0123"), ("C1", None), ("c12", None)]
)
def test_a_chat_that_no_target_can_name_is_not_answered_by_a_name(chat, target):
    event = InboundMessage(event_key="1", chat=InboundChat(id=chat), sender=InboundSender(id="U1"))
    assert ReceivedEvent(platform="slack", event=event).target == target


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_mode_can_be_used_when_what_it_needs_is_set(name):
    receiver, case, _ = of(name)
    assert receiver.list_usable_modes(case.values) == receiver.receiving.modes
    assert receiver.list_usable_modes({}) == ()


@pytest.mark.parametrize("name", sorted(CASES))
def test_what_is_secret_is_not_shown(name):
    receiver, case, credentials = of(name)
    shown = repr(credentials)
    for field in receiver.receiving.secrets:
        value = case.values.get(receiver.receiving.variables[field])
        assert value is None or value not in shown
    assert set(receiver.receiving.webhook_secrets) <= set(receiver.receiving.secrets)


@pytest.mark.parametrize("name", SIGNED)
def test_a_signed_message_is_read(name):
    receiver, case, credentials = of(name)
    (message,) = receiver.receive(request_of(name), credentials, AT)
    assert isinstance(message, InboundMessage)
    assert (message.text, message.chat.id, message.sender.id) == ("hello", case.chat, case.sender)
    assert message.chat.kind is case.kind
    assert message.is_addressed or case.kind is ChatKind.DIRECT
    assert not message.sender.is_bot
    assert 0 < len(message.event_key) <= EVENT_KEY_CHARS_MAX


@pytest.mark.parametrize("name", SIGNED)
def test_a_webhook_needs_the_secrets_of_the_api_only(name):
    """The API is not given what sends messages, or opens an account."""
    receiver, case, _ = of(name)
    row = receiver.receiving
    others = {row.variables[field] for field in set(row.secrets) - set(row.webhook_secrets)}
    credentials = receiver.build_credentials({key: value for key, value in case.values.items() if key not in others})
    assert len(receiver.receive(request_of(name), credentials, AT)) == 1


@pytest.mark.parametrize("name", SIGNED)
def test_an_event_that_comes_again_has_the_same_key(name):
    receiver, _, credentials = of(name)
    first, again = (receiver.receive(request_of(name), credentials, AT) for _ in range(2))
    assert [one.event_key for one in first] == [one.event_key for one in again]


@pytest.mark.parametrize("name", SIGNED)
def test_a_request_without_its_proof_is_refused_before_anything_is_parsed(name):
    receiver, case, credentials = of(name)
    assert case.proofs
    for body in (case.message, b"\xff not JSON"):
        whole = request_of(name, body)
        for header in case.proofs:
            for forged in (without(whole, header), doubled(whole, header), changed(whole, header)):
                with pytest.raises(Forged):
                    receiver.receive(forged, credentials, AT)


@pytest.mark.parametrize("name", [name for name in SIGNED if CASES[name].signs_body])
def test_a_changed_or_recoded_body_is_refused(name):
    receiver, _, credentials = of(name)
    whole = request_of(name)
    flipped = bytes([whole.body[0] ^ 1]) + whole.body[1:]
    for body in (flipped, whole.body + b" ", b"", json.dumps(whole.body.decode("latin-1")).encode()):
        with pytest.raises(Forged):
            receiver.receive(replace(whole, body=body), credentials, AT)


@pytest.mark.parametrize("name", [name for name in SIGNED if CASES[name].signs_time])
@pytest.mark.parametrize("off_s", [-301, 301, 86_400])
def test_a_request_of_another_time_is_refused(name, off_s):
    receiver, _, credentials = of(name)
    with pytest.raises(Forged):
        receiver.receive(request_of(name), credentials, AT + timedelta(seconds=off_s))


@pytest.mark.parametrize("name", SIGNED)
def test_an_account_without_a_secret_lets_nothing_in(name):
    receiver, case, _ = of(name)
    for field in receiver.receiving.required[InboundMode.WEBHOOK]:
        values = {key: value for key, value in case.values.items() if key != receiver.receiving.variables[field]}
        assert InboundMode.WEBHOOK not in receiver.list_usable_modes(values)


@pytest.mark.parametrize("name", SIGNED)
def test_200_forged_requests_are_refused_before_they_are_parsed(name):
    receiver, case, credentials = of(name)
    kinds = set()
    for kind, request in islice(forgeries(case, lambda: AT, Random(21)), 200):
        kinds.add(kind)
        with pytest.raises(Forged):
            receiver.receive(request, credentials, AT)
    assert {"foreign secret", "no proof", "doubled header", "changed header"} <= kinds
    assert ("flipped bit" in kinds, "another time" in kinds) == (case.signs_body, case.signs_time)
    assert ({"alg none", "HS256 with the public key", "other claims", "other key"} <= kinds) == bool(case.claims)


@pytest.mark.parametrize("name", PRESSED)
def test_a_signed_press_says_which_button_it_was_and_who_pressed_it(name):
    receiver, case, credentials = of(name)
    first, again = (receiver.receive(case.pressed("7:once"), credentials, AT) for _ in range(2))
    [press] = first
    assert isinstance(press, InboundButton)
    assert (press.value, press.chat.id, press.sender.id) == ("7:once", case.chat, case.sender)
    assert press.chat.kind is case.kind or case.kind in press.may_be
    assert not press.sender.is_bot
    assert [one.event_key for one in again] == [press.event_key]
    [message] = receiver.receive(request_of(name), credentials, AT)
    assert (press.chat.scope, press.chat.thread) == (message.chat.scope, message.chat.thread)


@pytest.mark.parametrize("name", PRESSED)
def test_200_forged_presses_are_refused_before_they_are_parsed(name):
    receiver, case, credentials = of(name)
    assert case.press is not None
    pressing = replace(case, message=case.press("7:once"))
    for _, request in islice(forgeries(pressing, lambda: AT, Random(22)), 200):
        with pytest.raises(Forged):
            receiver.receive(request, credentials, AT)


@pytest.mark.parametrize("name", [name for name in PRESSED if not isinstance(CASES[name].press("7:once"), bytes)])
@settings(max_examples=20, deadline=None)
@given(data=some.data())
def test_whatever_stands_in_a_signed_press_is_read_or_refused_in_words(name, data):
    receiver, case, credentials = of(name)
    whole = case.press("7:once")
    body = put(whole, data.draw(some.sampled_from(places(whole))), data.draw(JSON_VALUES))
    try:
        found = receiver.receive(request_of(name, body), credentials, AT)
    except (UnreadableInbound, Forged):
        return
    assert all(isinstance(one.chat.id, str) and 0 < len(one.event_key) <= EVENT_KEY_CHARS_MAX for one in found)


JSON_VALUES = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats(allow_nan=False) | some.text(max_size=20),
    lambda inner: some.lists(inner, max_size=4) | some.dictionaries(some.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)


def places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner: list[tuple[Any, Any]] = []
    if isinstance(document, dict):
        inner = list(document.items())
    elif isinstance(document, list):
        inner = list(enumerate(document))
    return [path, *(found for key, value in inner for found in places(value, (*path, key)))]


def put(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = document.copy()
    copy[path[0]] = put(copy[path[0]], path[1:], value)
    return copy


@pytest.mark.parametrize("name", [name for name in SIGNED if not isinstance(CASES[name].message, bytes)])
@settings(max_examples=20, deadline=None)
@given(data=some.data())
def test_whatever_stands_in_a_signed_body_is_read_or_refused_in_words(name, data):
    receiver, case, credentials = of(name)
    place = data.draw(some.sampled_from(places(case.message)))
    body = put(case.message, place, data.draw(JSON_VALUES))
    try:
        found = receiver.receive(request_of(name, body), credentials, AT)
    except UnreadableInbound:
        return
    except Forged:
        assert name == "teams"  # its token names a service, and the body another
        return
    for one in found:
        assert isinstance(one.chat.id, str)
        assert isinstance(one.sender.id, str)
        assert 0 < len(one.event_key) <= EVENT_KEY_CHARS_MAX


@pytest.mark.parametrize("name", SIGNED)
def test_a_signed_body_that_is_nothing_is_nothing(name):
    receiver, _, credentials = of(name)
    for body in (b"", b"[]", b"null", b"{", b"\xff\xfe", b"[" * 100_000, b'{"a":' + b"9" * 5000 + b"}"):
        try:
            assert receiver.receive(request_of(name, body), credentials, AT) == (), body[:60]
        except UnreadableInbound:
            pass
        except Forged:
            assert name == "sms", body[:60]  # what is signed are the fields of a form, and this is none


def looked(name: str, response: HttpResponse, cursor: str = "") -> Polled | DeliveryError:
    """One look that is answered with the same to every request."""
    receiver, _, credentials = of(name)
    exchange = receiver.poll(cursor, credentials, AT, 30)
    try:
        next(exchange)
        for _ in range(20):
            exchange.send(response)
    except StopIteration as end:
        found: Polled | DeliveryError = end.value
        return found
    raise AssertionError("a look has no end")


def answer(document: Any, status: int = 200) -> HttpResponse:
    return HttpResponse(status=status, body=json.dumps(document).encode())


@pytest.mark.parametrize("name", POLLED)
def test_a_look_brings_messages_in_order_and_a_cursor_that_leaves_them_behind(name):
    found = looked(name, answer(CASES[name].page), CASES[name].page_cursor)
    assert isinstance(found, Polled)
    assert [one.text for one in found.inbound if isinstance(one, InboundMessage)] == ["first", "second"]
    assert found.cursor


@pytest.mark.parametrize("name", POLLED)
@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 429, 500, 502, 503])
def test_a_look_that_fails_is_a_failure_and_moves_no_cursor(name, status):
    found = looked(name, answer({"ok": False, "error_code": status, "description": "x"}, status), cursor="8")
    assert isinstance(found, DeliveryError)
