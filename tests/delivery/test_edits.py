"""Changing and taking away a message that was sent, as the platforms' public documentation says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from hermes_worker.channels.errors import DeliveryError, SendErrorKind
from hermes_worker.channels.exchange import Part, Receipt, Unsendable
from hermes_worker.channels.platforms import discord, slack, telegram
from hermes_worker.channels.targets import Target

PART = Part(text="**Rain** & wind", idempotency_key="d:0")
Made = tuple[Any, Any, Target, str]


@pytest.fixture(params=["telegram", "slack", "discord"])
def made(platform, request) -> Made:
    """Module, credentials, a chat and a message of it."""
    return {
        "telegram": (
            telegram,
            telegram.Credentials(token="123:ABC-def", base_url=platform.url),
            Target(platform="telegram", chat="-100", thread="17"),
            "99",
        ),
        "slack": (
            slack,
            slack.Credentials(token="xoxb-1", base_url=platform.url),
            Target(platform="slack", chat="C1", thread="1.1"),
            "1.2",
        ),
        "discord": (
            discord,
            discord.Credentials(token="t", base_url=platform.url),
            Target(platform="discord", chat="5", thread="6"),
            "7",
        ),
    }[request.param]


OK: Mapping[str, tuple[int, dict[str, Any]]] = {
    "telegram": (200, {"ok": True, "result": {"message_id": 99}}),
    "slack": (200, {"ok": True, "ts": "1.2"}),
    "discord": (200, {"id": "7"}),
}
GONE_AT_EDIT: Mapping[str, tuple[int, dict[str, Any]]] = {
    "telegram": (400, {"ok": False, "description": "Bad Request: message to edit not found"}),
    "slack": (200, {"ok": False, "error": "message_not_found"}),
    "discord": (404, {"code": 10008, "message": "Unknown Message"}),
}
GONE_AT_REMOVAL = GONE_AT_EDIT | {
    "telegram": (400, {"ok": False, "description": "Bad Request: message to delete not found"})
}
FLOODED: Mapping[str, tuple[int, dict[str, Any]]] = {
    "telegram": (429, {"ok": False, "description": "Too Many Requests", "parameters": {"retry_after": 30}}),
    "slack": (429, {"ok": False, "error": "ratelimited"}),
    "discord": (429, {"message": "You are being rate limited.", "retry_after": 30.0}),
}


def name_of(made: Made) -> str:
    return made[2].platform


def test_a_message_is_given_another_text(platform, deliver: Callable[..., Any], made: Made) -> None:
    module, credentials, target, message_id = made
    platform.answer(*OK[name_of(made)])
    assert deliver(module.edit(PART, message_id, target, credentials)) == Receipt(message_id=message_id)
    request = platform.received[0]
    said = {
        "telegram": ("POST", "/bot123:ABC-def/editMessageText", "<b>Rain</b> &amp; wind"),
        "slack": ("POST", "/chat.update", "*Rain* &amp; wind"),
        "discord": ("PATCH", "/channels/6/messages/7", "**Rain** & wind"),
    }[name_of(made)]
    assert (request.method, request.path, request.json.get("text") or request.json["content"]) == said


def test_a_message_that_is_gone_cannot_be_changed_and_is_removed(
    platform, deliver: Callable[..., Any], made: Made
) -> None:
    module, credentials, target, message_id = made
    platform.answer(*GONE_AT_EDIT[name_of(made)])
    outcome = deliver(module.edit(PART, message_id, target, credentials))
    assert isinstance(outcome, DeliveryError)
    assert outcome.kind is SendErrorKind.NOT_FOUND
    platform.answer(*GONE_AT_REMOVAL[name_of(made)])
    assert deliver(module.remove(message_id, target, credentials)) == Receipt(message_id=message_id)


def test_a_flood_limit_is_one_for_edits_as_well(platform, deliver: Callable[..., Any], made: Made) -> None:
    module, credentials, target, message_id = made
    for exchange in (
        module.edit(PART, message_id, target, credentials),
        module.remove(message_id, target, credentials),
    ):
        platform.answer(*FLOODED[name_of(made)])
        outcome = deliver(exchange)
        assert isinstance(outcome, DeliveryError)
        assert outcome.kind is SendErrorKind.RATE_LIMITED


def test_a_text_that_stands_there_already_is_no_error_on_telegram(platform, deliver: Callable[..., Any]) -> None:
    credentials = telegram.Credentials(token="123:ABC-def", base_url=platform.url)
    said = "Bad Request: message is not modified: specified new message content and reply markup are exactly the same"
    platform.answer(400, {"ok": False, "description": said})
    exchange = telegram.edit(PART, "99", Target(platform="telegram", chat="1"), credentials)
    assert deliver(exchange) == Receipt(message_id="99")


@pytest.mark.parametrize("message_id", ["", "x", "1/../2"])
def test_an_id_that_is_none_is_not_sent_to_telegram(message_id: str) -> None:
    credentials = telegram.Credentials(token="123:ABC-def")
    with pytest.raises(Unsendable):
        next(telegram.edit(PART, message_id, Target(platform="telegram", chat="1"), credentials))
