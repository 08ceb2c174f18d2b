"""Every native adapter against a server that answers as the platform's public documentation says."""

from __future__ import annotations

import base64
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from cloudevents.core.formats.json import JSONFormat

from hermes_worker.channels.catalog import ChatForm
from hermes_worker.channels.errors import DUPLICATE_REMARK, DeliveryError, SendErrorKind
from hermes_worker.channels.exchange import Attachment, Part, Receipt, Unsendable
from hermes_worker.channels.platforms import discord, matrix, mattermost, ntfy, slack, telegram, webhook
from hermes_worker.channels.signature import verify
from hermes_worker.channels.targets import Target
from hermes_worker.core.media_kinds import MediaKind

AT = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
KEY = "delivery-1:part-1"
PNG = b"\x89PNG\r\n\x1a\n--boundary\r\n"


def part(text: str = "**Rain** & wind", **changes: object) -> Part:
    return Part(text=text, idempotency_key=KEY, **changes)


def picture(name: str = "chart.png", kind: MediaKind = MediaKind.IMAGE, content: bytes = PNG) -> Attachment:
    return Attachment(name=name, kind=kind, content=content)


def target(platform: str, chat: str, thread: str | None = None, form: ChatForm = ChatForm.ID) -> Target:
    return Target(platform=platform, chat=chat, thread=thread, form=form)


# Telegram.


@pytest.fixture
def telegram_bot(platform):
    return telegram.Credentials(token="123:ABC-def", base_url=platform.url)


def test_telegram_gets_html_and_a_topic(platform, deliver, telegram_bot):
    platform.answer(200, {"ok": True, "result": {"message_id": 99}})
    assert deliver(telegram.send(part(), target("telegram", "-100", "17"), telegram_bot)) == Receipt(message_id="99")
    request = platform.received[0]
    assert (request.method, request.path) == ("POST", "/bot123:ABC-def/sendMessage")
    assert request.json == {
        "chat_id": "-100",
        "message_thread_id": 17,
        "text": "<b>Rain</b> &amp; wind",
        "parse_mode": "HTML",
    }


def test_telegram_plain_text_has_no_parse_mode(platform, deliver, telegram_bot):
    platform.answer(200, {"ok": True, "result": {"message_id": 1}})
    deliver(telegram.send(part(is_plain=True), target("telegram", "1"), telegram_bot))
    assert platform.received[0].json == {"chat_id": "1", "text": "**Rain** & wind"}


def test_telegram_general_topic_is_not_named(platform, deliver, telegram_bot):
    platform.answer(200, {"ok": True, "result": {"message_id": 1}})
    deliver(telegram.send(part(), target("telegram", "-1", "1"), telegram_bot))
    assert "message_thread_id" not in platform.received[0].json


@pytest.mark.parametrize(
    ("kind", "method", "field"),
    [
        (MediaKind.IMAGE, "sendPhoto", "photo"),
        (MediaKind.VOICE, "sendVoice", "voice"),
        (MediaKind.AUDIO, "sendAudio", "audio"),
        (MediaKind.VIDEO, "sendVideo", "video"),
        (MediaKind.DOCUMENT, "sendDocument", "document"),
    ],
)
def test_telegram_sends_a_file_as_what_it_is(platform, deliver, telegram_bot, kind, method, field):
    platform.answer(200, {"ok": True, "result": {"message_id": 5}})
    sent = part("Caption", attachment=picture(kind=kind))
    assert deliver(telegram.send(sent, target("telegram", "42"), telegram_bot)) == Receipt(message_id="5")
    request = platform.received[0]
    assert request.path.endswith(f"/{method}")
    assert request.form["chat_id"].get_payload() == "42"
    assert request.form["caption"].get_payload() == "Caption"
    assert request.form[field].get_filename() == "chart.png"
    assert request.form[field].get_payload(decode=True) == PNG


def test_telegram_sends_a_large_picture_as_a_document(platform, deliver, telegram_bot):
    platform.answer(200, {"ok": True, "result": {"message_id": 5}})
    large = picture(content=b"x" * (telegram.PHOTO_BYTES_MAX + 1))
    deliver(telegram.send(part("", attachment=large), target("telegram", "42"), telegram_bot))
    assert platform.received[0].path.endswith("/sendDocument")
    assert "caption" not in platform.received[0].form


def telegram_error(status: int, description: str, **parameters: object) -> dict[str, object]:
    return {"ok": False, "error_code": status, "description": description, "parameters": parameters}


@pytest.mark.parametrize(
    ("status", "description", "kind"),
    [
        (400, "Bad Request: message is too long", SendErrorKind.TOO_LONG),
        (400, "Bad Request: can't parse entities: Unsupported start tag", SendErrorKind.BAD_FORMAT),
        (400, "Bad Request: chat not found", SendErrorKind.NOT_FOUND),
        (403, "Forbidden: bot was blocked by the user", SendErrorKind.FORBIDDEN),
        (401, "Unauthorized", SendErrorKind.AUTH),
        (404, "Not Found", SendErrorKind.AUTH),
        (500, "Internal Server Error", SendErrorKind.TRANSIENT),
    ],
)
def test_telegram_errors_are_understood(platform, deliver, telegram_bot, status, description, kind):
    platform.answer(status, telegram_error(status, description))
    outcome = deliver(telegram.send(part(), target("telegram", "42"), telegram_bot))
    assert outcome == DeliveryError(kind=kind, message=f"HTTP {status}: {description}", status=status)


def test_telegram_says_how_long_to_wait(platform, deliver, telegram_bot):
    platform.answer(429, telegram_error(429, "Too Many Requests: retry after 5", retry_after=5))
    outcome = deliver(telegram.send(part(), target("telegram", "42"), telegram_bot))
    assert (outcome.kind, outcome.retry_after_s) == (SendErrorKind.RATE_LIMITED, 5.0)


def test_telegram_says_that_the_topic_is_gone(platform, deliver, telegram_bot):
    platform.answer(400, telegram_error(400, "Bad Request: message thread not found"))
    outcome = deliver(telegram.send(part(), target("telegram", "-1", "7"), telegram_bot))
    assert (outcome.kind, outcome.is_thread_missing) == (SendErrorKind.NOT_FOUND, True)


def test_telegram_says_where_the_chat_has_moved(platform, deliver, telegram_bot):
    platform.answer(400, telegram_error(400, "Bad Request: group chat was upgraded", migrate_to_chat_id=-100777))
    outcome = deliver(telegram.send(part(), target("telegram", "-1"), telegram_bot))
    assert "the chat is now -100777" in outcome.message


def test_telegram_topics_are_numbers(deliver, telegram_bot):
    assert deliver(telegram.send(part(), target("telegram", "-1", "x"), telegram_bot)).kind is SendErrorKind.REFUSED


# Discord.


@pytest.fixture
def discord_bot(platform):
    return discord.Credentials(token="bot-token", base_url=platform.url)


def test_discord_gets_markdown_that_notifies_nobody(platform, deliver, discord_bot):
    platform.answer(200, {"id": "777", "content": "x"})
    assert deliver(discord.send(part("@everyone **x**"), target("discord", "999"), discord_bot)) == Receipt(
        message_id="777"
    )
    request = platform.received[0]
    assert request.path == "/channels/999/messages"
    assert request.headers["Authorization"] == "Bot bot-token"
    assert request.headers["User-Agent"].startswith("DiscordBot (")
    assert request.json["content"] == "@everyone **x**"
    assert request.json["allowed_mentions"] == {"parse": []}


def test_discord_gets_the_same_nonce_for_every_attempt(platform, deliver, discord_bot):
    for _ in range(2):
        platform.answer(200, {"id": "1"})
        deliver(discord.send(part(), target("discord", "999"), discord_bot))
    first, second = (request.json for request in platform.received)
    assert first["nonce"] == second["nonce"]
    assert len(first["nonce"]) == 25
    assert first["enforce_nonce"] is True


def test_discord_threads_are_channels(platform, deliver, discord_bot):
    platform.answer(200, {"id": "1"})
    deliver(discord.send(part(), target("discord", "999", "555"), discord_bot))
    assert platform.received[0].path == "/channels/555/messages"


def test_discord_files_go_with_their_message(platform, deliver, discord_bot):
    platform.answer(200, {"id": "1"})
    deliver(discord.send(part("Look", attachment=picture()), target("discord", "999"), discord_bot))
    form = platform.received[0].form
    assert '"content": "Look"' in form["payload_json"].get_payload()
    assert form["files[0]"].get_payload(decode=True) == PNG


def test_discord_forums_get_a_thread(platform, deliver, discord_bot):
    platform.answer(400, {"code": 50008, "message": "Cannot send messages in a non-text channel"})
    platform.answer(201, {"id": "thread-1"})
    outcome = deliver(discord.send(part("Body", title="Morning  news"), target("discord", "999"), discord_bot))
    assert outcome == Receipt(message_id="thread-1")
    assert platform.received[1].path == "/channels/999/threads"
    assert platform.received[1].json["name"] == "Morning news"
    assert platform.received[1].json["message"]["content"] == "Body"


def test_a_discord_thread_that_may_be_the_second_says_so(platform, deliver, discord_bot):
    """A message has a nonce that Discord recognises, a new thread has none."""
    platform.answer(400, {"code": 50008, "message": "Cannot send messages in a non-text channel"})
    platform.answer(201, {"id": "thread-2"})
    deliver(discord.send(part("Body", may_be_duplicate=True), target("discord", "999"), discord_bot))
    assert platform.received[0].json["content"] == "Body"
    assert platform.received[1].json["message"]["content"] == f"{DUPLICATE_REMARK}\n\nBody"


@pytest.mark.parametrize(
    ("status", "code", "message", "kind"),
    [
        (404, 10003, "Unknown Channel", SendErrorKind.NOT_FOUND),
        (403, 50001, "Missing Access", SendErrorKind.FORBIDDEN),
        (403, 50013, "Missing Permissions", SendErrorKind.FORBIDDEN),
        (401, 0, "401: Unauthorized", SendErrorKind.AUTH),
        (400, 50035, "Invalid Form Body", SendErrorKind.BAD_FORMAT),
        (413, 40005, "Request entity too large", SendErrorKind.TOO_LONG),
        (502, 0, "", SendErrorKind.TRANSIENT),
    ],
)
def test_discord_errors_are_understood(platform, deliver, discord_bot, status, code, message, kind):
    platform.answer(status, {"code": code, "message": message})
    assert deliver(discord.send(part(), target("discord", "999"), discord_bot)).kind is kind


def test_discord_says_how_long_to_wait(platform, deliver, discord_bot):
    platform.answer(
        429, {"message": "You are being rate limited.", "retry_after": 0.65, "global": False}, Retry_After="1"
    )
    outcome = deliver(discord.send(part(), target("discord", "999"), discord_bot))
    assert (outcome.kind, outcome.retry_after_s) == (SendErrorKind.RATE_LIMITED, 0.65)


# Slack.


@pytest.fixture
def slack_app(platform):
    return slack.Credentials(token="xoxb-1", base_url=platform.url)


def test_slack_gets_mrkdwn_in_a_thread(platform, deliver, slack_app):
    platform.answer(200, {"ok": True, "channel": "C1", "ts": "1503435956.000247"})
    outcome = deliver(slack.send(part("**Rain** <!channel>"), target("slack", "C0123ABCD", "1700.1"), slack_app))
    assert outcome == Receipt(message_id="1503435956.000247")
    request = platform.received[0]
    assert request.path == "/chat.postMessage"
    assert request.headers["Authorization"] == "Bearer xoxb-1"
    assert request.json["text"] == "*Rain* &lt;!channel&gt;"
    assert (request.json["channel"], request.json["thread_ts"]) == ("C0123ABCD", "1700.1")


def test_slack_opens_a_conversation_with_a_person(platform, deliver, slack_app):
    platform.answer(200, {"ok": True, "channel": {"id": "D555"}})
    platform.answer(200, {"ok": True, "ts": "1.2"})
    outcome = deliver(slack.send(part(), target("slack", "U0123ABCD", form=ChatForm.USER), slack_app))
    assert outcome == Receipt(message_id="1.2")
    assert (platform.received[0].path, platform.received[0].json) == ("/conversations.open", {"users": "U0123ABCD"})
    assert platform.received[1].json["channel"] == "D555"


def test_slack_person_who_is_gone(platform, deliver, slack_app):
    platform.answer(200, {"ok": False, "error": "user_not_found"})
    outcome = deliver(slack.send(part(), target("slack", "U0123ABCD", form=ChatForm.USER), slack_app))
    assert outcome.kind is SendErrorKind.NOT_FOUND


def test_slack_files_are_offered_uploaded_and_published(platform, deliver, slack_app):
    platform.answer(200, {"ok": True, "upload_url": f"{platform.url}/upload/v1/ABC", "file_id": "F123"})
    platform.answer(200, b"OK - 23")
    platform.answer(200, {"ok": True, "files": [{"id": "F123", "title": "chart.png"}]})
    outcome = deliver(slack.send(part("Look", attachment=picture()), target("slack", "C1AAAAAAA", "1.5"), slack_app))
    assert outcome == Receipt(message_id="F123")
    offered, uploaded, completed = platform.received
    assert offered.body == f"filename=chart.png&length={len(PNG)}".encode()
    assert (uploaded.path, uploaded.body) == ("/upload/v1/ABC", PNG)
    assert "Authorization" not in uploaded.headers
    assert completed.json == {
        "files": [{"id": "F123", "title": "chart.png"}],
        "channel_id": "C1AAAAAAA",
        "thread_ts": "1.5",
        "initial_comment": "Look",
    }


def test_slack_upload_that_is_not_offered(platform, deliver, slack_app):
    platform.answer(200, {"ok": False, "error": "missing_scope"})
    outcome = deliver(slack.send(part(attachment=picture()), target("slack", "C1AAAAAAA"), slack_app))
    assert (outcome.kind, outcome.message) == (SendErrorKind.AUTH, "HTTP 200: missing_scope")


def test_slack_upload_that_fails(platform, deliver, slack_app):
    platform.answer(200, {"ok": True, "upload_url": f"{platform.url}/u", "file_id": "F1"})
    platform.answer(503, b"")
    outcome = deliver(slack.send(part(attachment=picture()), target("slack", "C1AAAAAAA"), slack_app))
    assert outcome.kind is SendErrorKind.TRANSIENT


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("channel_not_found", SendErrorKind.NOT_FOUND),
        ("not_in_channel", SendErrorKind.FORBIDDEN),
        ("is_archived", SendErrorKind.FORBIDDEN),
        ("msg_too_long", SendErrorKind.TOO_LONG),
        ("invalid_auth", SendErrorKind.AUTH),
        ("internal_error", SendErrorKind.TRANSIENT),
        ("fatal_error", SendErrorKind.AMBIGUOUS),
        ("something_new", SendErrorKind.UNKNOWN),
    ],
)
def test_slack_errors_come_with_status_200(platform, deliver, slack_app, error, kind):
    platform.answer(200, {"ok": False, "error": error})
    assert deliver(slack.send(part(), target("slack", "C1AAAAAAA"), slack_app)).kind is kind


def test_slack_says_how_long_to_wait(platform, deliver, slack_app):
    platform.answer(429, {"ok": False, "error": "ratelimited"}, Retry_After="30")
    outcome = deliver(slack.send(part(), target("slack", "C1AAAAAAA"), slack_app))
    assert (outcome.kind, outcome.retry_after_s) == (SendErrorKind.RATE_LIMITED, 30.0)


def test_a_page_instead_of_slacks_answer_is_no_success(platform, deliver, slack_app):
    platform.answer(200, b"<html>proxy</html>")
    assert deliver(slack.send(part(), target("slack", "C1AAAAAAA"), slack_app)).kind is SendErrorKind.UNKNOWN


# Webhook.


def test_a_webhook_is_signed_and_has_a_key(platform, deliver):
    platform.answer(204, b"")
    credentials = webhook.Credentials(secret="shared")
    sent = webhook.send(part("Rain", title="News"), target("webhook", f"{platform.url}/hook?x=1"), credentials, at=AT)
    assert deliver(sent) == Receipt(message_id=None)
    request = platform.received[0]
    assert request.path == "/hook?x=1"
    assert request.json == {"event": "delivery", "id": KEY, "title": "News", "text": "Rain"}
    assert request.headers["Idempotency-Key"] == KEY
    assert verify(dict(request.headers), request.body, "shared", AT).is_valid


def test_a_webhook_without_a_secret_is_not_signed(platform, deliver):
    platform.answer(200, {"id": "r1"})
    outcome = deliver(webhook.send(part(), target("webhook", platform.url), webhook.Credentials(), at=AT))
    assert outcome == Receipt(message_id="r1")
    assert not [name for name in platform.received[0].headers if name.lower().startswith("x-webhook")]


def test_a_webhook_may_be_a_cloud_event(platform, deliver):
    platform.answer(204, b"")
    credentials = webhook.Credentials(secret="shared", format="cloudevents")
    facts = {"id": "run_1", "status": "completed"}
    said = replace(part("Rain"), facts=facts)
    deliver(webhook.send(said, target("webhook", platform.url), credentials, at=AT))
    request = platform.received[0]
    assert request.headers["Content-Type"] == "application/cloudevents+json"
    event = JSONFormat().read(None, request.body)
    assert (event.get_id(), event.get_source(), event.get_type()) == (KEY, "/v1/runs/run_1", "hermes_worker.delivery")
    assert event.get_data() == {"event": "delivery", "id": KEY, "text": "Rain", "run": facts}
    assert verify(dict(request.headers), request.body, "shared", AT).is_valid
    with pytest.raises(Unsendable, match="WEBHOOK_DELIVERY_FORMAT"):
        next(webhook.send(part(), target("webhook", platform.url), replace(credentials, format="xml"), at=AT))


def test_a_webhook_carries_a_small_file(platform, deliver):
    platform.answer(200)
    deliver(webhook.send(part(attachment=picture()), target("webhook", platform.url), webhook.Credentials(), at=AT))
    file = platform.received[0].json["file"]
    assert (file["name"], file["media_type"]) == ("chart.png", "image/png")
    assert base64.b64decode(file["content_base64"]) == PNG


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (302, SendErrorKind.REFUSED),
        (404, SendErrorKind.NOT_FOUND),
        (500, SendErrorKind.TRANSIENT),
        (504, SendErrorKind.AMBIGUOUS),
        (429, SendErrorKind.RATE_LIMITED),
    ],
)
def test_a_webhook_answer_is_read_by_its_status_alone(platform, deliver, status, kind):
    platform.answer(status, {"message": "internal secret"}, Location="http://169.254.169.254/", Retry_After="7")
    outcome = deliver(webhook.send(part(), target("webhook", platform.url), webhook.Credentials(), at=AT))
    assert (outcome.kind, outcome.retry_after_s) == (kind, 7.0)
    assert "internal secret" not in outcome.message
    assert len(platform.received) == 1


# ntfy.


def test_ntfy_gets_json_with_a_title(platform, deliver):
    platform.answer(200, {"id": "hwQ2YpKdmg", "event": "message"})
    credentials = ntfy.Credentials(base_url=platform.url, token="tk_1")
    assert deliver(ntfy.send(part("Régen", title="Wétter\nX"), target("ntfy", "mine"), credentials)) == Receipt(
        message_id="hwQ2YpKdmg"
    )
    request = platform.received[0]
    assert (request.method, request.path) == ("POST", "/")
    said = {"topic": "mine", "message": "Régen", "markdown": True, "title": "Wétter X"}
    assert request.json == {**said, "tags": ["hermes-worker"]}
    assert request.headers["Authorization"] == "Bearer tk_1"


def test_ntfy_takes_a_user_name_and_password(platform, deliver):
    platform.answer(200, {"id": "1"})
    deliver(
        ntfy.send(part(), target("ntfy", "mine"), ntfy.Credentials(base_url=platform.url, username="u", password="p"))
    )
    assert platform.received[0].headers["Authorization"] == "Basic " + base64.b64encode(b"u:p").decode()


def test_ntfy_gets_a_file_with_an_encoded_name(platform, deliver):
    platform.answer(200, {"id": "1"})
    sent = part("Zwei\nZeilen ü", attachment=picture('ä "x"\r\ny.png'))
    deliver(ntfy.send(sent, target("ntfy", "mine"), ntfy.Credentials(base_url=platform.url)))
    request = platform.received[0]
    assert (request.method, request.path, request.body) == ("PUT", "/mine", PNG)
    assert request.headers["Filename"].startswith("=?utf-8?")
    assert "\n" not in request.headers["Message"]
    assert request.headers["Tags"] == "hermes-worker"
    assert "Authorization" not in request.headers


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, SendErrorKind.AUTH),
        (403, SendErrorKind.AUTH),
        (413, SendErrorKind.TOO_LONG),
        (429, SendErrorKind.RATE_LIMITED),
        (507, SendErrorKind.TRANSIENT),
    ],
)
def test_ntfy_errors_are_understood(platform, deliver, status, kind):
    platform.answer(status, {"code": status * 100 + 1, "http": status, "error": "limit reached"})
    outcome = deliver(ntfy.send(part(), target("ntfy", "mine"), ntfy.Credentials(base_url=platform.url)))
    assert (outcome.kind, outcome.message) == (kind, f"HTTP {status}: limit reached")


# Matrix.


@pytest.fixture
def matrix_account(platform):
    return matrix.Credentials(homeserver=platform.url, access_token="syt_1")


def test_matrix_gets_both_texts_under_a_transaction(platform, deliver, matrix_account):
    platform.answer(200, {"event_id": "$e1"})
    platform.answer(200, {"event_id": "$e1"})
    for _ in range(2):
        outcome = deliver(matrix.send(part(), target("matrix", "!r:s.org", "$root"), matrix_account))
        assert outcome == Receipt(message_id="$e1")
    first, second = platform.received
    assert first.method == "PUT"
    assert first.path.startswith("/_matrix/client/v3/rooms/%21r%3As.org/send/m.room.message/")
    assert first.path == second.path
    assert first.json == {
        "msgtype": "m.text",
        "body": "**Rain** & wind",
        "format": "org.matrix.custom.html",
        "formatted_body": "<strong>Rain</strong> &amp; wind",
        "m.relates_to": {
            "rel_type": "m.thread",
            "event_id": "$root",
            "is_falling_back": True,
            "m.in_reply_to": {"event_id": "$root"},
        },
    }
    assert first.headers["Authorization"] == "Bearer syt_1"


def test_matrix_leaves_the_formatted_text_out_when_the_event_would_be_too_large(platform, deliver, matrix_account):
    platform.answer(200, {"event_id": "$e1"})
    deliver(matrix.send(part("&" * 15_000), target("matrix", "!r:s.org"), matrix_account))
    assert len(platform.received[0].body) < 65_536
    assert "formatted_body" not in platform.received[0].json


def test_matrix_files_are_uploaded_first(platform, deliver, matrix_account):
    platform.answer(200, {"content_uri": "mxc://s.org/abc"})
    platform.answer(200, {"event_id": "$e2"})
    outcome = deliver(
        matrix.send(part("", attachment=picture("a b&c.png")), target("matrix", "!r:s.org"), matrix_account)
    )
    assert outcome == Receipt(message_id="$e2")
    upload, event = platform.received
    assert upload.path == "/_matrix/media/v3/upload?filename=a+b%26c.png"
    assert (upload.body, upload.headers["Content-Type"]) == (PNG, "image/png")
    assert event.json == {
        "msgtype": "m.image",
        "body": "a b&c.png",
        "filename": "a b&c.png",
        "url": "mxc://s.org/abc",
        "info": {"mimetype": "image/png", "size": len(PNG)},
    }


def test_matrix_finds_the_direct_room_of_a_person(platform, deliver, matrix_account):
    platform.answer(200, {"user_id": "@bot:s.org"})
    platform.answer(200, {"@me:s.org": ["!old:s.org", "!dm:s.org"]})
    platform.answer(200, {"event_id": "$e"})
    deliver(matrix.send(part(), target("matrix", "@me:s.org", form=ChatForm.USER), matrix_account))
    assert [request.method for request in platform.received] == ["GET", "GET", "PUT"]
    assert "/rooms/%21dm%3As.org/" in platform.received[2].path


def test_matrix_opens_a_direct_room_and_remembers_it(platform, deliver, matrix_account):
    platform.answer(200, {"user_id": "@bot:s.org"})
    platform.answer(404, {"errcode": "M_NOT_FOUND", "error": "Account data not found"})
    platform.answer(200, {"room_id": "!new:s.org"})
    platform.answer(200, {})
    platform.answer(200, {"event_id": "$e"})
    outcome = deliver(matrix.send(part(), target("matrix", "@me:s.org", form=ChatForm.USER), matrix_account))
    assert outcome == Receipt(message_id="$e")
    assert platform.received[2].json == {"preset": "trusted_private_chat", "is_direct": True, "invite": ["@me:s.org"]}
    assert platform.received[3].json == {"@me:s.org": ["!new:s.org"]}
    assert "/rooms/%21new%3As.org/" in platform.received[4].path


@pytest.mark.parametrize(
    ("status", "errcode", "kind"),
    [
        (403, "M_FORBIDDEN", SendErrorKind.FORBIDDEN),
        (401, "M_UNKNOWN_TOKEN", SendErrorKind.AUTH),
        (413, "M_TOO_LARGE", SendErrorKind.TOO_LONG),
        (404, "M_NOT_FOUND", SendErrorKind.NOT_FOUND),
        (400, "M_BAD_JSON", SendErrorKind.BAD_FORMAT),
        (500, "M_UNKNOWN", SendErrorKind.TRANSIENT),
    ],
)
def test_matrix_errors_are_understood(platform, deliver, matrix_account, status, errcode, kind):
    platform.answer(status, {"errcode": errcode, "error": "no"})
    outcome = deliver(matrix.send(part(), target("matrix", "!r:s.org"), matrix_account))
    assert (outcome.kind, outcome.message) == (kind, f"HTTP {status}: {errcode} no")


def test_matrix_says_how_long_to_wait_in_milliseconds(platform, deliver, matrix_account):
    platform.answer(429, {"errcode": "M_LIMIT_EXCEEDED", "error": "Too many requests", "retry_after_ms": 2500})
    outcome = deliver(matrix.send(part(), target("matrix", "!r:s.org"), matrix_account))
    assert (outcome.kind, outcome.retry_after_s) == (SendErrorKind.RATE_LIMITED, 2.5)


def test_matrix_token_that_is_unknown_ends_the_search_for_a_room(platform, deliver, matrix_account):
    platform.answer(401, {"errcode": "M_UNKNOWN_TOKEN", "error": "Unknown token"})
    outcome = deliver(matrix.send(part(), target("matrix", "@me:s.org", form=ChatForm.USER), matrix_account))
    assert outcome.kind is SendErrorKind.AUTH


# Mattermost.


@pytest.fixture
def mattermost_bot(platform):
    return mattermost.Credentials(base_url=f"{platform.url}/chat/", token="tok")


def test_mattermost_gets_markdown_in_a_thread(platform, deliver, mattermost_bot):
    platform.answer(201, {"id": "p1"})
    outcome = deliver(mattermost.send(part("**x**"), target("mattermost", "c" * 26, "r" * 26), mattermost_bot))
    assert outcome == Receipt(message_id="p1")
    request = platform.received[0]
    assert request.path == "/chat/api/v4/posts"
    assert request.json == {"channel_id": "c" * 26, "message": "**x**", "root_id": "r" * 26}
    assert request.headers["Authorization"] == "Bearer tok"


def test_mattermost_files_are_uploaded_first(platform, deliver, mattermost_bot):
    platform.answer(201, {"file_infos": [{"id": "f1"}], "client_ids": []})
    platform.answer(201, {"id": "p1"})
    deliver(mattermost.send(part("x", attachment=picture()), target("mattermost", "c" * 26), mattermost_bot))
    assert platform.received[0].form["channel_id"].get_payload() == "c" * 26
    assert platform.received[0].form["files"].get_payload(decode=True) == PNG
    assert platform.received[1].json["file_ids"] == ["f1"]


@pytest.mark.parametrize(
    ("status", "identifier", "kind", "is_thread_missing"),
    [
        (403, "api.context.permissions.app_error", SendErrorKind.FORBIDDEN, False),
        (401, "api.context.session_expired.app_error", SendErrorKind.AUTH, False),
        (404, "app.channel.get.existing.app_error", SendErrorKind.NOT_FOUND, False),
        (400, "api.post.create_post.root_id.app_error", SendErrorKind.NOT_FOUND, True),
        (400, "model.post.is_valid.message_length.msg_too_long.app_error", SendErrorKind.TOO_LONG, False),
        (501, "api.not_implemented", SendErrorKind.TRANSIENT, False),
    ],
)
def test_mattermost_errors_are_understood(
    platform, deliver, mattermost_bot, status, identifier, kind, is_thread_missing
):
    platform.answer(status, {"id": identifier, "message": "No.", "status_code": status})
    outcome = deliver(mattermost.send(part(), target("mattermost", "c" * 26), mattermost_bot))
    assert (outcome.kind, outcome.is_thread_missing) == (kind, is_thread_missing)


# Hostile settings and targets.


@pytest.mark.parametrize("module", [discord, slack, mattermost])
def test_a_token_cannot_add_headers(platform, deliver, module):
    credentials = module.Credentials(token="x\r\nHost: evil", base_url=platform.url)
    outcome = deliver(module.send(part(), target(module.__name__, "C1"), credentials))
    assert outcome.kind is SendErrorKind.REFUSED
    assert "evil" not in outcome.message


@pytest.mark.parametrize("chat", ["..", "../../admin", "a/b?x=1#y"])
def test_a_chat_cannot_leave_its_place_in_the_path(platform, deliver, chat):
    platform.answer(200, {"id": "1"})
    outcome = deliver(
        discord.send(part(), target("discord", chat), discord.Credentials(token="t", base_url=platform.url))
    )
    if isinstance(outcome, Receipt):
        assert platform.received[0].path.count("/") == 3
        assert platform.received[0].path.endswith("/messages")
    else:
        assert outcome.kind is SendErrorKind.REFUSED
