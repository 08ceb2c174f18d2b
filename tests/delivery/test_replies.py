"""How each platform is told which message an answer replies to, and that somebody writes, as its documentation says."""

from __future__ import annotations

import json

import pytest
from support.inbound_cases import AT, CASES, feishu_event, line_events, teams_activity

from hermes_worker.channels.exchange import Attachment, Exchange, Part, Receipt
from hermes_worker.channels.platforms import (
    discord,
    feishu,
    line,
    matrix,
    mattermost,
    signal,
    teams,
    telegram,
    whatsapp_cloud,
)
from hermes_worker.channels.receivers import load_receivers
from hermes_worker.channels.targets import Target
from hermes_worker.core.inbound import InboundMessage
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


def requests_of(exchange: Exchange, *answers: tuple[int, dict[str, object]]) -> list[tuple[str, dict[str, object]]]:
    """What is sent, each answered in turn; the last answer is a success."""
    found, request = [], next(exchange)
    for status, said in answers:
        body = request.body or b""
        found.append((request.url, json.loads(body) if body.startswith(b"{") else {}))
        try:
            request = exchange.send(HttpResponse(status=status, headers={}, body=json.dumps(said).encode()))
        except StopIteration as end:
            assert isinstance(end.value, Receipt)
    return found


def test_line_quotes_by_the_token_of_a_message_and_without_it_where_that_is_no_good():
    known, chat = line.Credentials(token="t"), at("line", "U1")
    refused = {"message": "The request body has 1 error(s)", "details": [{"property": "messages[0].quoteToken"}]}
    first, again = requests_of(line.send(part("q3Plxr4"), chat, known), (400, refused), (200, {}))
    assert first[1]["messages"] == [{"type": "text", "text": "hello", "quoteToken": "q3Plxr4"}]
    assert again[1]["messages"] == [{"type": "text", "text": "hello"}]


def test_signal_quotes_by_the_time_and_the_author():
    daemon = signal.Credentials(base_url="https://s.example", account="+1")
    sent = json.loads(signal.build(part("1795600000000@+1555"), at("signal", "+1555"), daemon).body or b"")
    assert sent["params"] == {
        "account": "+1",
        "message": "hello",
        "recipient": ["+1555"],
        "quoteTimestamp": 1795600000000,
        "quoteAuthor": "+1555",
    }
    for wrong in ("", "17", "17@", "x@+1", "@+1", "9" * 30 + "@+1"):
        assert b"quote" not in (signal.build(part(wrong), at("signal", "+1555"), daemon).body or b"")


def test_feishu_replies_and_sends_although_the_question_is_gone():
    known = feishu.Credentials(app_id="a", app_secret="s")
    token, gone = (200, {"tenant_access_token": "t"}), (400, {"code": 230011, "msg": "withdrawn"})
    taken = (200, {"code": 0, "data": {"message_id": "om_2"}})
    _, first, again = requests_of(feishu.send(part("om_1"), at("feishu", "oc_1"), known), token, gone, taken)
    assert first[0] == "https://open.feishu.cn/open-apis/im/v1/messages/om_1/reply"
    assert "receive_id" not in first[1] and "reply_in_thread" not in first[1]
    assert again[0] == "https://open.feishu.cn/open-apis/im/v1/messages?receive_id_type=chat_id"
    _, threaded = requests_of(feishu.send(part("om_1"), at("feishu", "oc_1", "om_0"), known), token, taken)
    assert threaded[0].endswith("/om_0/reply")


def test_teams_replies_and_sends_although_the_question_is_gone():
    known = teams.Credentials(app_id="a", app_password="s")
    token, gone, taken = (200, {"access_token": "t"}), (404, {"error": {"code": "BadSyntax"}}), (201, {"id": "9"})
    _, first, again = requests_of(teams.send(part("7"), at("teams", "a:1"), known), token, gone, taken)
    assert first[0] == "https://smba.trafficmanager.net/teams/v3/conversations/a%3A1/activities/7"
    assert first[1]["replyToId"] == "7"
    assert again[0].endswith("/activities")
    assert "replyToId" not in again[1]


@pytest.mark.parametrize(
    ("name", "body", "quoted"),
    [
        (
            "line",
            line_events("hello", message={"id": "1", "type": "text", "text": "hello", "quoteToken": "q3"}),
            "q3",
        ),
        ("feishu", feishu_event("hello"), ""),
        ("teams", teams_activity("hello"), ""),
    ],
)
def test_a_message_says_how_it_is_answered(name, body, quoted):
    case, receiver = CASES[name], load_receivers()[name]
    request = case.webhook(json.dumps(body).encode())
    [message] = receiver.receive(request, receiver.build_credentials(case.values), AT)
    assert isinstance(message, InboundMessage)
    assert message.quoted_as == quoted
    assert message.message_id


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
