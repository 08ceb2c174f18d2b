"""How each platform is told which message an answer replies to, and that somebody writes, as its documentation says."""

from __future__ import annotations

import json

import pytest

from hermes_worker.channels.exchange import Attachment, Exchange, Part, Receipt
from hermes_worker.channels.platforms import discord, matrix, mattermost, signal, telegram, whatsapp_cloud
from hermes_worker.channels.targets import Target
from hermes_worker.core.media_kinds import MediaKind
from hermes_worker.net.http import HttpResponse

BOT = telegram.Credentials(token="1:a")
DISCORD = discord.Credentials(token="t")
MATRIX = matrix.Credentials(homeserver="https://m.example", access_token="t")


def part(reply_to: str, **more: object) -> Part:
    return Part(text="hello", idempotency_key="k", reply_to=reply_to, **more)  # type: ignore[arg-type]


def at(platform: str, chat: str, thread: str | None = None) -> Target:
    return Target(platform=platform, chat=chat, thread=thread)


def test_telegram_sends_although_the_question_is_gone():
    sent = json.loads(telegram.build(part("7"), at("telegram", "42", "3"), BOT).body or b"")
    assert sent["reply_parameters"] == {"message_id": 7, "allow_sending_without_reply": True}
    assert sent["message_thread_id"] == 3
    photo = Attachment(name="a.png", kind=MediaKind.IMAGE, content=b"x")
    file = telegram.build(part("7", attachment=photo), at("telegram", "42"), BOT).body or b""
    assert b'{"message_id": 7, "allow_sending_without_reply": true}' in file


def test_discord_sends_although_the_question_is_gone():
    sent = json.loads(discord.build(part("7"), at("discord", "1"), DISCORD).body or b"")
    assert sent["message_reference"] == {"message_id": "7", "fail_if_not_exists": False}


@pytest.mark.parametrize("reply_to", ["", "x", "７", "7;"])
def test_what_is_no_number_is_no_message_of_telegram_or_discord(reply_to):
    assert b"reply_parameters" not in (telegram.build(part(reply_to), at("telegram", "42"), BOT).body or b"")
    assert b"message_reference" not in (discord.build(part(reply_to), at("discord", "1"), DISCORD).body or b"")


def test_matrix_replies_and_in_a_thread_stays_there():
    sent = json.loads(matrix.build(part("$7"), at("matrix", "!a:b"), MATRIX).body or b"")
    assert sent["m.relates_to"] == {"m.in_reply_to": {"event_id": "$7"}}
    in_thread = json.loads(matrix.build(part("$7"), at("matrix", "!a:b", "$1"), MATRIX).body or b"")
    assert in_thread["m.relates_to"]["event_id"] == "$1"
    assert "m.relates_to" not in json.loads(matrix.build(part(""), at("matrix", "!a:b"), MATRIX).body or b"")


def test_whatsapp_names_the_message_as_context():
    credentials = whatsapp_cloud.Credentials(token="t", phone_number_id="1")
    sent = json.loads(whatsapp_cloud.build(part("wamid.7"), at("whatsapp_cloud", "+1"), credentials).body or b"")
    assert sent["context"] == {"message_id": "wamid.7"}


def typed(exchange: Exchange, *answers: dict[str, object]) -> list[tuple[str, str, object]]:
    """What is asked to show that somebody writes."""
    request, found = next(exchange), []
    for answer in answers:
        said = None if not request.body else json.loads(request.body)
        found.append((request.method, request.url.partition("example")[2] or request.url, said))
        try:
            request = exchange.send(HttpResponse(status=200, headers={}, body=json.dumps(answer).encode()))
        except StopIteration as end:
            assert isinstance(end.value, Receipt)
    return found


def test_every_platform_is_shown_typing_as_it_documents_it():
    mine = mattermost.Credentials(base_url="https://m.example", token="t")
    daemon = signal.Credentials(base_url="https://s.example", account="+1")
    action = {"chat_id": "42", "action": "typing", "message_thread_id": 3}
    assert typed(telegram.show_typing(at("telegram", "42", "3"), BOT), {"ok": True, "result": True}) == [
        ("POST", "https://api.telegram.org/bot1:a/sendChatAction", action)
    ]
    assert typed(discord.show_typing(at("discord", "1", "2"), DISCORD), {}) == [
        ("POST", "https://discord.com/api/v10/channels/2/typing", None)
    ]
    assert typed(mattermost.show_typing(at("mattermost", "c", "r"), mine), {"status": "OK"}) == [
        ("POST", "/api/v4/users/me/typing", {"channel_id": "c", "parent_id": "r"})
    ]
    assert typed(matrix.show_typing(at("matrix", "!a:b"), MATRIX), {"user_id": "@me:b"}, {}) == [
        ("GET", "/_matrix/client/v3/account/whoami", None),
        ("PUT", "/_matrix/client/v3/rooms/%21a%3Ab/typing/%40me%3Ab", {"typing": True, "timeout": 6000}),
    ]
    [(_, _, call)] = typed(signal.show_typing(at("signal", "group:g="), daemon), {"result": {"timestamp": 1}})
    params = {"account": "+1", "groupId": "g="}
    assert call == {"jsonrpc": "2.0", "method": "sendTyping", "id": "typing", "params": params}
