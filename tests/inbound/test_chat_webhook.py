"""What is special about the webhook for any other platform: where things stand is a setting."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.inbound_cases import AT, CASES

from hermes_worker.channels.exchange import Part
from hermes_worker.channels.inbound.chat_webhook import receive
from hermes_worker.channels.inbound.receiving import Forged, UnreadableInbound, WebhookRequest
from hermes_worker.channels.platforms import chat_webhook
from hermes_worker.channels.receivers import load_receivers
from hermes_worker.channels.targets import Target
from hermes_worker.core.inbound import ChatKind, InboundMessage

CASE = CASES["chat_webhook"]


def heard(payload: Any, **paths: str) -> InboundMessage:
    values = {**CASE.values, **{f"CHAT_WEBHOOK_{name.upper()}_PATH": path for name, path in paths.items()}}
    credentials = load_receivers()["chat_webhook"].build_credentials(values)
    (message,) = receive(CASE.webhook(json.dumps(payload).encode()), credentials, AT)
    assert isinstance(message, InboundMessage)
    return message


def test_things_are_found_where_the_settings_say() -> None:
    payload = {
        "event": {"key": 17, "parts": [{"type": "plain", "body": "hello"}]},
        "from": {"jid": "ada@example.org", "nick": "Ada", "robot": True},
        "room": "ops",
    }
    message = heard(
        payload,
        id="event.key",
        text="event.parts.0.body",
        sender="from.jid",
        name="from.nick",
        bot="from.robot",
        chat="room",
    )
    assert (message.event_key, message.text, message.chat.id, message.chat.kind) == (
        "17",
        "hello",
        "ops",
        ChatKind.GROUP,
    )
    assert (message.sender.id, message.sender.name, message.sender.is_bot) == ("ada@example.org", "Ada", True)
    assert message.is_addressed


def test_a_message_without_a_chat_was_written_to_us_alone() -> None:
    message = heard({"id": "1", "sender": "ada", "message": {"text": "hi"}})
    assert (message.chat.id, message.chat.kind) == ("ada", ChatKind.DIRECT)


@pytest.mark.parametrize(
    "payload",
    [
        {"sender": "ada"},
        {"id": "1"},
        {"id": "1", "sender": "ada", "chat": "a:b"},
        {"id": "1", "sender": "ada", "chat": "x" * 129},
        {"id": "1", "sender": "ada", "chat": "a,local"},
        {"id": {"a": 1}, "sender": "ada"},
    ],
)
def test_whoever_brings_a_message_that_cannot_be_answered_is_told(payload: Any) -> None:
    with pytest.raises(UnreadableInbound):
        heard(payload)


def test_an_answer_of_ours_does_not_come_in_again() -> None:
    """Whoever has it would make us talk to ourselves."""
    credentials = chat_webhook.Credentials(answer_url="https://there.example/say", answer_secret="another secret")
    part = Part(text="hello", idempotency_key="d1:1")
    sent = chat_webhook.build(part, Target(platform="chat_webhook", chat="ada"), credentials, at=AT)
    back = WebhookRequest(
        method="POST",
        url="https://h.example/inbound/chat_webhook",
        headers=tuple((name.lower(), value) for name, value in sent.headers.items()),
        body=sent.body,
    )
    with pytest.raises(Forged):
        receive(back, load_receivers()["chat_webhook"].build_credentials(CASE.values), AT)
