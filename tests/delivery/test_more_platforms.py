"""The adapters of the platforms with the smaller interfaces, against answers as their documentation gives them."""

from __future__ import annotations

import base64
import hashlib
import hmac
from datetime import UTC, datetime
from urllib.parse import parse_qs, urlsplit

import pytest

from hermes_worker.channels.catalog import ChatForm
from hermes_worker.channels.errors import SendErrorKind
from hermes_worker.channels.exchange import Attachment, Part, Receipt
from hermes_worker.channels.platforms import (
    chat_webhook,
    dingtalk,
    feishu,
    github_comment,
    google_chat,
    homeassistant,
    line,
    signal,
    sms,
    teams,
    wecom,
    wecom_callback,
    whatsapp_cloud,
)
from hermes_worker.channels.targets import Target, parse_targets
from hermes_worker.core.media_kinds import MediaKind

AT = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
KEY = "delivery-1:part-1"
PNG = b"\x89PNG\r\n\x1a\n"


def part(text: str = "**Rain**", **changes: object) -> Part:
    return Part(text=text, idempotency_key=KEY, **changes)


def file(name: str = "a b.png", kind: MediaKind = MediaKind.IMAGE) -> Attachment:
    return Attachment(name=name, kind=kind, content=PNG)


def target(platform: str, chat: str, thread: str | None = None) -> Target:
    return Target(platform=platform, chat=chat, thread=thread)


# Feishu.


@pytest.fixture
def feishu_app(platform):
    return feishu.Credentials(app_id="cli_1", app_secret="s", base_url=platform.url)


def grant(platform) -> None:
    platform.answer(200, {"code": 0, "msg": "ok", "tenant_access_token": "t-1", "expire": 7200})


@pytest.mark.parametrize(("chat", "id_type"), [("oc_abc", "chat_id"), ("ou_abc", "open_id"), ("on_abc", "union_id")])
def test_feishu_gets_a_token_and_sends(platform, deliver, feishu_app, chat, id_type):
    grant(platform)
    platform.answer(200, {"code": 0, "msg": "success", "data": {"message_id": "om_1"}})
    assert deliver(feishu.send(part(), target("feishu", chat), feishu_app)) == Receipt(message_id="om_1")
    granted, sent = platform.received
    assert granted.path == "/open-apis/auth/v3/tenant_access_token/internal"
    assert granted.json == {"app_id": "cli_1", "app_secret": "s"}
    assert sent.path == f"/open-apis/im/v1/messages?receive_id_type={id_type}"
    assert sent.headers["Authorization"] == "Bearer t-1"
    assert (sent.json["receive_id"], sent.json["msg_type"], sent.json["content"]) == (
        chat,
        "text",
        '{"text": "**Rain**"}',
    )
    assert len(sent.json["uuid"]) == 50


def test_feishu_threads_are_replies(platform, deliver, feishu_app):
    grant(platform)
    platform.answer(200, {"code": 0, "data": {"message_id": "om_2"}})
    deliver(feishu.send(part(), target("feishu", "oc_abc", "om_root"), feishu_app))
    assert platform.received[1].path == "/open-apis/im/v1/messages/om_root/reply"
    assert platform.received[1].json["reply_in_thread"] is True


@pytest.mark.parametrize(
    ("kind", "path", "field", "answer", "content"),
    [
        (MediaKind.IMAGE, "/open-apis/im/v1/images", "image", {"image_key": "img_1"}, '{"image_key": "img_1"}'),
        (MediaKind.DOCUMENT, "/open-apis/im/v1/files", "file", {"file_key": "f_1"}, '{"file_key": "f_1"}'),
    ],
)
def test_feishu_files_are_uploaded_first(platform, deliver, feishu_app, kind, path, field, answer, content):
    grant(platform)
    platform.answer(200, {"code": 0, "data": answer})
    platform.answer(200, {"code": 0, "data": {"message_id": "om_1"}})
    deliver(feishu.send(part("", attachment=file(kind=kind)), target("feishu", "oc_abc"), feishu_app))
    _, uploaded, sent = platform.received
    assert (uploaded.path, uploaded.form[field].get_payload(decode=True)) == (path, PNG)
    assert (sent.json["msg_type"], sent.json["content"]) == (field, content)


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, 230002, SendErrorKind.FORBIDDEN),
        (400, 230025, SendErrorKind.TOO_LONG),
        (400, 230034, SendErrorKind.NOT_FOUND),
        (400, 99991663, SendErrorKind.AUTH),
        (429, 99991400, SendErrorKind.RATE_LIMITED),
        (200, 424242, SendErrorKind.UNKNOWN),
    ],
)
def test_feishu_errors_are_understood(platform, deliver, feishu_app, status, code, kind):
    grant(platform)
    platform.answer(status, {"code": code, "msg": "no"})
    outcome = deliver(feishu.send(part(), target("feishu", "oc_abc"), feishu_app))
    assert (outcome.kind, outcome.message) == (kind, f"HTTP {status}: {code} no")


def test_feishu_without_a_token(platform, deliver, feishu_app):
    platform.answer(200, {"code": 10014, "msg": "app secret invalid"})
    outcome = deliver(feishu.send(part(), target("feishu", "oc_abc"), feishu_app))
    assert (outcome.kind, outcome.message) == (SendErrorKind.AUTH, "HTTP 200: app secret invalid")


# DingTalk.


def test_dingtalk_requests_are_signed(platform, deliver):
    platform.answer(200, {"errcode": 0, "errmsg": "ok"})
    robot = dingtalk.Credentials(webhook_url=f"{platform.url}/robot/send?access_token=t", secret="SEC1")
    assert deliver(dingtalk.send(part(title="News"), target("dingtalk", "home"), robot, at=AT)) == Receipt()
    request = platform.received[0]
    query = parse_qs(urlsplit(request.path).query)
    timestamp = str(int(AT.timestamp() * 1000))
    digest = hmac.new(b"SEC1", f"{timestamp}\nSEC1".encode(), hashlib.sha256).digest()
    assert query == {"access_token": ["t"], "timestamp": [timestamp], "sign": [base64.b64encode(digest).decode()]}
    assert request.json == {"msgtype": "markdown", "markdown": {"title": "News", "text": "**Rain**"}}


def test_dingtalk_plain_text(platform, deliver):
    platform.answer(200, {"errcode": 0})
    robot = dingtalk.Credentials(webhook_url=f"{platform.url}/robot/send?access_token=t")
    deliver(dingtalk.send(part(is_plain=True), target("dingtalk", "home"), robot, at=AT))
    assert platform.received[0].json == {"msgtype": "text", "text": {"content": "**Rain**"}}
    assert "sign=" not in platform.received[0].path


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (310000, SendErrorKind.AUTH),
        (130101, SendErrorKind.RATE_LIMITED),
        (-1, SendErrorKind.TRANSIENT),
        (7, SendErrorKind.UNKNOWN),
    ],
)
def test_dingtalk_errors_come_with_status_200(platform, deliver, code, kind):
    platform.answer(200, {"errcode": code, "errmsg": "no"})
    robot = dingtalk.Credentials(webhook_url=f"{platform.url}/robot/send?access_token=t")
    assert deliver(dingtalk.send(part(), target("dingtalk", "home"), robot, at=AT)).kind is kind


def test_dingtalk_address_that_is_none(deliver):
    robot = dingtalk.Credentials(webhook_url="file:///etc/passwd")
    assert deliver(dingtalk.send(part(), target("dingtalk", "home"), robot, at=AT)).kind is SendErrorKind.REFUSED


# WeCom.


@pytest.fixture
def wecom_robot(platform):
    return wecom.Credentials(key="k-1&x", base_url=platform.url)


def test_wecom_gets_markdown(platform, deliver, wecom_robot):
    platform.answer(200, {"errcode": 0, "errmsg": "ok"})
    assert deliver(wecom.send(part(), target("wecom", "home"), wecom_robot)) == Receipt()
    assert platform.received[0].path == "/cgi-bin/webhook/send?key=k-1%26x"
    assert platform.received[0].json == {"msgtype": "markdown", "markdown": {"content": "**Rain**"}}


def test_wecom_files_are_uploaded_first(platform, deliver, wecom_robot):
    platform.answer(200, {"errcode": 0, "media_id": "m1"})
    platform.answer(200, {"errcode": 0})
    deliver(wecom.send(part("", attachment=file()), target("wecom", "home"), wecom_robot))
    uploaded, sent = platform.received
    assert uploaded.path == "/cgi-bin/webhook/upload_media?key=k-1%26x&type=file"
    assert uploaded.form["media"].get_filename() == "a b.png"
    assert sent.json == {"msgtype": "file", "file": {"media_id": "m1"}}


@pytest.mark.parametrize(
    ("code", "kind"),
    [(93000, SendErrorKind.AUTH), (45009, SendErrorKind.RATE_LIMITED), (40058, SendErrorKind.BAD_FORMAT)],
)
def test_wecom_errors_come_with_status_200(platform, deliver, wecom_robot, code, kind):
    platform.answer(200, {"errcode": code, "errmsg": "no"})
    assert deliver(wecom.send(part(), target("wecom", "home"), wecom_robot)).kind is kind


# WhatsApp Cloud.


@pytest.fixture
def whatsapp(platform):
    return whatsapp_cloud.Credentials(phone_number_id="106", token="EAAG", base_url=platform.url)


def test_whatsapp_gets_a_text(platform, deliver, whatsapp):
    platform.answer(200, {"messaging_product": "whatsapp", "contacts": [], "messages": [{"id": "wamid.1"}]})
    outcome = deliver(whatsapp_cloud.send(part(), target("whatsapp_cloud", "+15551234567"), whatsapp))
    assert outcome == Receipt(message_id="wamid.1")
    assert platform.received[0].path == "/106/messages"
    assert platform.received[0].json == {
        "messaging_product": "whatsapp",
        "recipient_type": "individual",
        "to": "15551234567",
        "type": "text",
        "text": {"body": "**Rain**", "preview_url": False},
    }


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        (MediaKind.IMAGE, "a.png", {"type": "image", "image": {"id": "9", "caption": "Look"}}),
        (
            MediaKind.DOCUMENT,
            "a.pdf",
            {"type": "document", "document": {"id": "9", "caption": "Look", "filename": "a.pdf"}},
        ),
        (MediaKind.VOICE, "a.ogg", {"type": "audio", "audio": {"id": "9"}}),
    ],
)
def test_whatsapp_files_are_uploaded_first(platform, deliver, whatsapp, kind, name, expected):
    platform.answer(200, {"id": "9"})
    platform.answer(200, {"messages": [{"id": "wamid.1"}]})
    deliver(whatsapp_cloud.send(part("Look", attachment=file(name, kind)), target("whatsapp_cloud", "+1555"), whatsapp))
    uploaded, sent = platform.received
    assert uploaded.form["messaging_product"].get_payload() == "whatsapp"
    assert uploaded.form["file"].get_payload(decode=True) == PNG
    assert expected.items() <= sent.json.items()


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (401, 190, SendErrorKind.AUTH),
        (400, 131026, SendErrorKind.NOT_FOUND),
        (400, 131047, SendErrorKind.UNKNOWN),
        (400, 131030, SendErrorKind.FORBIDDEN),
        (429, 130429, SendErrorKind.RATE_LIMITED),
        (500, 131000, SendErrorKind.TRANSIENT),
    ],
)
def test_whatsapp_errors_are_understood(platform, deliver, whatsapp, status, code, kind):
    error = {"message": "(#1) no", "type": "OAuthException", "code": code, "error_data": {"details": "Why."}}
    platform.answer(status, {"error": error})
    outcome = deliver(whatsapp_cloud.send(part(), target("whatsapp_cloud", "+1555"), whatsapp))
    assert (outcome.kind, outcome.message) == (kind, f"HTTP {status}: {code} Why.")


# Signal.


@pytest.fixture
def signal_daemon(platform):
    return signal.Credentials(base_url=platform.url, account="+4915100000000")


def signal_answer(*types: str) -> dict[str, object]:
    results = [{"recipientAddress": {"number": "+1555"}, "type": name} for name in types]
    return {"jsonrpc": "2.0", "id": KEY, "result": {"timestamp": 1769860800000, "results": results}}


def test_signal_calls_the_daemon(platform, deliver, signal_daemon):
    platform.answer(200, signal_answer("SUCCESS"))
    outcome = deliver(signal.send(part(attachment=file()), target("signal", "+15551234567"), signal_daemon))
    assert outcome == Receipt(message_id="1769860800000")
    request = platform.received[0]
    assert (request.path, request.json["method"]) == ("/api/v1/rpc", "send")
    assert request.json["params"] == {
        "account": "+4915100000000",
        "message": "**Rain**",
        "recipient": ["+15551234567"],
        "attachments": [f"data:image/png;filename=a%20b.png;base64,{base64.b64encode(PNG).decode()}"],
    }


def test_signal_groups_are_named_by_their_id(platform, deliver, signal_daemon):
    platform.answer(200, signal_answer("UNREGISTERED_FAILURE", "SUCCESS"))
    assert isinstance(deliver(signal.send(part(), target("signal", "group:abc="), signal_daemon)), Receipt)
    assert platform.received[0].json["params"]["groupId"] == "abc="


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (signal_answer("UNREGISTERED_FAILURE"), SendErrorKind.NOT_FOUND),
        (signal_answer("NETWORK_FAILURE"), SendErrorKind.TRANSIENT),
        (signal_answer("RATE_LIMIT_FAILURE"), SendErrorKind.RATE_LIMITED),
        ({"jsonrpc": "2.0", "error": {"code": -5, "message": "rate"}}, SendErrorKind.RATE_LIMITED),
        ({"jsonrpc": "2.0", "error": {"code": -1, "message": "Unknown group: not found"}}, SendErrorKind.NOT_FOUND),
        ({"jsonrpc": "2.0"}, SendErrorKind.UNKNOWN),
    ],
)
def test_signal_errors_are_understood(platform, deliver, signal_daemon, answer, kind):
    platform.answer(200, answer)
    assert deliver(signal.send(part(), target("signal", "+1555"), signal_daemon)).kind is kind


# SMS.


@pytest.mark.parametrize(("sender", "field"), [("+15550001111", "From"), ("MG123", "MessagingServiceSid")])
def test_an_sms_is_a_form(platform, deliver, sender, field):
    platform.answer(201, {"sid": "SM1", "status": "queued"})
    account = sms.Credentials(account_sid="AC1", auth_token="s", sender=sender, base_url=platform.url)
    assert deliver(sms.send(part("a&b=ü"), target("sms", "+1555"), account)) == Receipt(message_id="SM1")
    request = platform.received[0]
    assert request.path == "/2010-04-01/Accounts/AC1/Messages.json"
    assert parse_qs(request.body.decode()) == {"To": ["+1555"], field: [sender], "Body": ["a&b=ü"]}
    assert request.headers["Authorization"] == "Basic " + base64.b64encode(b"AC1:s").decode()


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, 21211, SendErrorKind.NOT_FOUND),
        (400, 21610, SendErrorKind.FORBIDDEN),
        (400, 21617, SendErrorKind.TOO_LONG),
        (401, 20003, SendErrorKind.AUTH),
        (429, 20429, SendErrorKind.RATE_LIMITED),
    ],
)
def test_sms_errors_are_understood(platform, deliver, status, code, kind):
    platform.answer(status, {"code": code, "message": "no", "more_info": "x", "status": status})
    account = sms.Credentials(account_sid="AC1", auth_token="s", sender="+1", base_url=platform.url)
    assert deliver(sms.send(part(), target("sms", "+1555"), account)).kind is kind


# LINE.


@pytest.fixture
def line_channel(platform):
    return line.Credentials(token="tok", base_url=platform.url)


def test_line_gets_the_same_retry_key_for_every_attempt(platform, deliver, line_channel):
    platform.answer(200, {"sentMessages": [{"id": "461", "quoteToken": "q"}]})
    platform.answer(409, {"message": "The retry key is already accepted"}, X_Line_Accepted_Request_Id="r1")
    first = deliver(line.send(part(), target("line", "U1"), line_channel))
    second = deliver(line.send(part(), target("line", "U1"), line_channel))
    assert (first, second) == (Receipt(message_id="461"), Receipt())
    keys = {request.headers["X-Line-Retry-Key"] for request in platform.received}
    assert len(keys) == 1
    assert [len(group) for group in keys.pop().split("-")] == [8, 4, 4, 4, 12]
    assert platform.received[0].json == {"to": "U1", "messages": [{"type": "text", "text": "**Rain**"}]}


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (400, "The property, 'to', in the request body is invalid", SendErrorKind.NOT_FOUND),
        (400, "The request body has 1 error(s)", SendErrorKind.BAD_FORMAT),
        (401, "Authentication failed", SendErrorKind.AUTH),
        (429, "The API rate limit has been exceeded", SendErrorKind.RATE_LIMITED),
        (409, "conflict", SendErrorKind.UNKNOWN),
    ],
)
def test_line_errors_are_understood(platform, deliver, line_channel, status, message, kind):
    platform.answer(status, {"message": message})
    assert deliver(line.send(part(), target("line", "U1"), line_channel)).kind is kind


# Google Chat.


def test_google_chat_gets_a_request_id_and_a_thread(platform, deliver):
    platform.answer(200, {"name": "spaces/AAA/messages/m1"})
    app = google_chat.Credentials(access_token="ya29", base_url=platform.url)
    outcome = deliver(google_chat.send(part(), target("google_chat", "spaces/AAA", "threads/T1"), app))
    assert outcome == Receipt(message_id="spaces/AAA/messages/m1")
    request = platform.received[0]
    path, query = urlsplit(request.path).path, parse_qs(urlsplit(request.path).query)
    assert path == "/v1/spaces/AAA/messages"
    assert len(query["requestId"][0]) == 40
    assert query["messageReplyOption"] == ["REPLY_MESSAGE_FALLBACK_TO_NEW_THREAD"]
    assert request.json == {"text": "**Rain**", "thread": {"name": "spaces/AAA/threads/T1"}}
    assert request.headers["Authorization"] == "Bearer ya29"


def test_google_chat_webhook_keeps_its_key(platform, deliver):
    platform.answer(200, {"name": "spaces/AAA/messages/m1"})
    hook = google_chat.Credentials(webhook_url=f"{platform.url}/v1/spaces/AAA/messages?key=k&token=t")
    deliver(google_chat.send(part(), target("google_chat", "spaces/AAA"), hook))
    assert platform.received[0].path.startswith("/v1/spaces/AAA/messages?key=k&token=t&requestId=")
    assert "Authorization" not in platform.received[0].headers


@pytest.mark.parametrize("chat", ["spaces/../../x", "people/1", ""])
def test_google_chat_spaces_are_spaces(deliver, chat):
    app = google_chat.Credentials(access_token="ya29")
    assert deliver(google_chat.send(part(), target("google_chat", chat), app)).kind is SendErrorKind.REFUSED


def test_google_chat_needs_one_of_its_credentials(deliver):
    outcome = deliver(google_chat.send(part(), target("google_chat", "spaces/AAA"), google_chat.Credentials()))
    assert outcome.kind is SendErrorKind.REFUSED


@pytest.mark.parametrize(
    ("status", "name", "kind"),
    [
        (404, "NOT_FOUND", SendErrorKind.NOT_FOUND),
        (403, "PERMISSION_DENIED", SendErrorKind.FORBIDDEN),
        (429, "RESOURCE_EXHAUSTED", SendErrorKind.RATE_LIMITED),
        (504, "DEADLINE_EXCEEDED", SendErrorKind.AMBIGUOUS),
    ],
)
def test_google_chat_errors_are_understood(platform, deliver, status, name, kind):
    platform.answer(status, {"error": {"code": status, "message": "no", "status": name}})
    app = google_chat.Credentials(access_token="ya29", base_url=platform.url)
    assert deliver(google_chat.send(part(), target("google_chat", "spaces/AAA"), app)).kind is kind


# Teams.


@pytest.fixture
def teams_bot(platform):
    return teams.Credentials(
        app_id="app", app_password="pw", tenant="t-1", service_url=f"{platform.url}/emea", login_url=platform.url
    )


def test_teams_gets_a_token_and_sends(platform, deliver, teams_bot):
    platform.answer(200, {"token_type": "Bearer", "expires_in": 3599, "access_token": "jwt"})
    platform.answer(201, {"id": "1769"})
    assert deliver(teams.send(part(), target("teams", "19:a@thread.tacv2"), teams_bot)) == Receipt(message_id="1769")
    granted, sent = platform.received
    assert granted.path == "/t-1/oauth2/v2.0/token"
    assert parse_qs(granted.body.decode())["client_secret"] == ["pw"]
    assert sent.path == "/emea/v3/conversations/19%3Aa%40thread.tacv2/activities"
    assert sent.json == {"type": "message", "text": "**Rain**", "textFormat": "markdown"}


def test_teams_secret_that_is_wrong(platform, deliver, teams_bot):
    platform.answer(401, {"error": "invalid_client", "error_description": "AADSTS7000215"})
    outcome = deliver(teams.send(part(), target("teams", "19:a"), teams_bot))
    assert (outcome.kind, outcome.message) == (SendErrorKind.AUTH, "HTTP 401: invalid_client")


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (404, "ConversationNotFound", SendErrorKind.NOT_FOUND),
        (403, "BotNotInConversationRoster", SendErrorKind.FORBIDDEN),
        (413, "MessageSizeTooBig", SendErrorKind.TOO_LONG),
        (502, "ServiceError", SendErrorKind.TRANSIENT),
    ],
)
def test_teams_errors_are_understood(platform, deliver, teams_bot, status, code, kind):
    platform.answer(200, {"access_token": "jwt"})
    platform.answer(status, {"error": {"code": code, "message": "no"}})
    assert deliver(teams.send(part(), target("teams", "19:a"), teams_bot)).kind is kind


# WeCom, the app that people write to.


@pytest.fixture
def wecom_app(platform):
    return wecom_callback.Credentials(corp_id="ww1", corp_secret="s/&", agent_id="1000002", base_url=platform.url)


def test_an_app_of_wecom_writes_to_one_person_with_a_token(platform, deliver, wecom_app):
    platform.answer(200, {"errcode": 0, "errmsg": "ok", "access_token": "t-1", "expires_in": 7200})
    platform.answer(200, {"errcode": 0, "errmsg": "ok", "msgid": "m1"})
    assert deliver(wecom_callback.send(part(), target("wecom_callback", "ada"), wecom_app)) == Receipt(message_id="m1")
    granted, sent = platform.received
    assert granted.path == "/cgi-bin/gettoken?corpid=ww1&corpsecret=s%2F%26"
    assert sent.path == "/cgi-bin/message/send?access_token=t-1"
    markdown = {"msgtype": "markdown", "markdown": {"content": "**Rain**"}}
    assert sent.json == {"touser": "ada", "agentid": 1000002, **markdown}


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ({"errcode": 45009, "errmsg": "api freq out of limit"}, SendErrorKind.RATE_LIMITED),
        ({"errcode": 0, "errmsg": "ok", "invaliduser": "ada"}, SendErrorKind.NOT_FOUND),
        ({"errcode": 42001, "errmsg": "access_token expired"}, SendErrorKind.AUTH),
    ],
)
def test_what_an_app_of_wecom_is_told_is_understood(platform, deliver, wecom_app, answer, kind):
    platform.answer(200, {"errcode": 0, "access_token": "t-1"})
    platform.answer(200, answer)
    assert deliver(wecom_callback.send(part(), target("wecom_callback", "ada"), wecom_app)).kind is kind


def test_nobody_can_be_told_everything_that_all_of_a_company_hear():
    assert parse_targets("wecom_callback:@all")[0].target.form is ChatForm.NAME


# A program of the operator's.


def test_an_answer_for_any_other_platform_is_signed_under_its_own_secret(platform, deliver):
    platform.answer(204, b"")
    credentials = chat_webhook.Credentials(answer_url=f"{platform.url}/say", answer_secret="out")
    assert deliver(chat_webhook.send(part(), target("chat_webhook", "room-1"), credentials, at=AT)) == Receipt()
    (sent,) = platform.received
    assert (sent.path, sent.json) == ("/say", {"event": "answer", "id": KEY, "chat": "room-1", "text": "**Rain**"})
    signed = str(int(AT.timestamp())).encode() + b"." + sent.body
    assert sent.headers["X-Webhook-Signature-V2"] == hmac.new(b"out", signed, hashlib.sha256).hexdigest()
    assert sent.headers["Idempotency-Key"] == KEY


# Home Assistant.


@pytest.fixture
def house(platform):
    return homeassistant.Credentials(base_url=platform.url, token="llat")


@pytest.mark.parametrize("chat", ["notify.mobile_app_phone", "mobile_app_phone"])
def test_home_assistant_calls_a_notify_service(platform, deliver, house, chat):
    platform.answer(200, [])
    assert deliver(homeassistant.send(part(title="News"), target("homeassistant", chat), house)) == Receipt()
    assert platform.received[0].path == "/api/services/notify/mobile_app_phone"
    assert platform.received[0].json == {"message": "**Rain**", "title": "News"}


def test_home_assistant_keeps_one_notification_for_every_attempt(platform, deliver, house):
    for _ in range(2):
        platform.answer(200, [])
        deliver(homeassistant.send(part(), target("homeassistant", "persistent_notification"), house))
    assert platform.received[0].path == "/api/services/persistent_notification/create"
    assert platform.received[0].json == platform.received[1].json


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (400, "Service notify.x not found.", SendErrorKind.NOT_FOUND),
        (400, "expected str", SendErrorKind.BAD_FORMAT),
        (401, "", SendErrorKind.AUTH),
    ],
)
def test_home_assistant_errors_are_understood(platform, deliver, house, status, message, kind):
    platform.answer(status, {"message": message})
    assert deliver(homeassistant.send(part(), target("homeassistant", "x"), house)).kind is kind


# GitHub.


@pytest.fixture
def github(platform):
    return github_comment.Credentials(token="ghp_1", base_url=platform.url)


def test_github_gets_a_comment_on_the_issue(platform, deliver, github):
    platform.answer(201, {"id": 7, "html_url": "https://github.com/octo/hello/issues/12#issuecomment-7"})
    outcome = deliver(github_comment.send(part(), target("github_comment", "octo/hello#12"), github))
    assert outcome == Receipt(message_id="https://github.com/octo/hello/issues/12#issuecomment-7")
    (request,) = platform.received
    assert (request.path, request.json) == ("/repos/octo/hello/issues/12/comments", {"body": "**Rain**"})
    assert request.headers["authorization"] == "Bearer ghp_1"


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (401, "Bad credentials", SendErrorKind.AUTH),
        (403, "Resource not accessible by personal access token", SendErrorKind.FORBIDDEN),
        (403, "You have exceeded a secondary rate limit", SendErrorKind.RATE_LIMITED),
        (404, "Not Found", SendErrorKind.NOT_FOUND),
        (422, "Body is too long (maximum is 65536 characters)", SendErrorKind.TOO_LONG),
        (502, "", SendErrorKind.TRANSIENT),
    ],
)
def test_github_errors_are_understood(platform, deliver, github, status, message, kind):
    platform.answer(status, {"message": message})
    assert deliver(github_comment.send(part(), target("github_comment", "octo/hello#12"), github)).kind is kind


def test_a_github_target_is_one_issue_of_one_repository():
    (reference,) = parse_targets("github_comment:octo/hello.world#12")
    assert reference.target.chat == "octo/hello.world#12"
    for chat in ("octo/..#1", "octo/.#1", "octo/a/b#1", "../a#1", "octo/hello", "octo/hello#1?x", "octo/hello#x"):
        (reference,) = parse_targets(f"github_comment:{chat}")
        assert reference.target.form is ChatForm.NAME
