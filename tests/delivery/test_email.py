from datetime import UTC, datetime
from email import message_from_bytes
from email.policy import default

import pytest

from hermes_worker.channels.errors import SendErrorKind
from hermes_worker.channels.exchange import Attachment, Part, Unsendable
from hermes_worker.channels.platforms.email import Credentials, Mail, build, classify_lost_connection, classify_reply
from hermes_worker.channels.targets import Target
from hermes_worker.core.media_kinds import MediaKind

AT = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
SERVER = Credentials(host="mail.example.org", sender="hermes@example.org", username="u", password="hunter2")
ME = Target(platform="email", chat="me@example.com")


def mail(text: str = "**Rain** ☔", target: Target = ME, credentials: Credentials = SERVER, **changes: object) -> Mail:
    return build(Part(text=text, idempotency_key="d1:1", **changes), target, credentials, at=AT)


def parsed(message: Mail):
    return message_from_bytes(message.content, policy=default)


def test_a_mail_has_a_plain_and_a_formatted_text():
    message = mail(title="Morning news ☔")
    content = parsed(message)
    assert (message.sender, message.recipient) == ("hermes@example.org", "me@example.com")
    assert content["From"] == "Hermes <hermes@example.org>"
    assert content["To"] == "me@example.com"
    assert content["Subject"] == "Morning news ☔"
    assert content["Date"] == "Sat, 31 Jan 2026 12:00:00 +0000"
    assert content["Auto-Submitted"] == "auto-generated"
    assert content.get_body(("plain",)).get_content().splitlines() == ["**Rain** ☔"]
    assert "<strong>Rain</strong> ☔" in content.get_body(("html",)).get_content()


def test_a_mail_without_title_has_the_subject_of_the_reference():
    assert parsed(mail())["Subject"] == "Hermes Agent"


def test_a_plain_mail_has_no_formatted_text():
    assert parsed(mail(is_plain=True)).get_body(("html",)) is None


def test_every_attempt_has_the_same_message_id_and_other_parts_another():
    first, second = parsed(mail()), parsed(mail())
    other = build(Part(text="x", idempotency_key="d1:2"), ME, SERVER, at=AT)
    assert first["Message-ID"] == second["Message-ID"]
    assert first["Message-ID"] != parsed(other)["Message-ID"]
    assert first["Message-ID"].endswith("@example.org>")


@pytest.mark.parametrize(
    ("name", "content"), [("chart.png", b"\x89PNG"), ("notes.txt", b"a\nb"), ("ä \r\nX: y.bin", b"\x00\xff")]
)
def test_a_file_is_attached(name, content):
    attachment = Attachment(name=name, kind=MediaKind.DOCUMENT, content=content)
    (attached,) = parsed(mail(attachment=attachment)).iter_attachments()
    assert attached.get_payload(decode=True) == content
    assert attached.get_filename() == " ".join(name.split())


def test_headers_cannot_be_injected():
    content = parsed(
        mail(
            title="News\r\nBcc: all@example.org",
            credentials=Credentials(host="h", sender="a@b.example", sender_name="X\r\nBcc: y@z.example"),
        )
    )
    assert "Bcc" not in content
    assert content["Subject"] == "News Bcc: all@example.org"


@pytest.mark.parametrize(
    "address",
    [
        "",
        "me",
        "me@",
        "@example.com",
        "a@b@c",
        "me@example.com\r\nRCPT TO:<x@y>",
        "me@example.com,you@example.com",
        "<me@example.com>",
        "a..b@example.com",
        ".a@example.com",
        "me@exa mple.com",
        "mé@example.com",
    ],
)
def test_an_address_that_is_none_sends_nothing(address):
    with pytest.raises(Unsendable, match="is not an e-mail address"):
        mail(target=Target(platform="email", chat=address))


def test_a_text_of_any_characters_is_a_mail():
    assert parsed(mail("a\ud800b\x00\n.\nFrom x")).get_body(("plain",)).get_content().startswith("a?b")


@pytest.mark.parametrize(
    ("code", "text", "command", "kind"),
    [
        (421, "4.3.2 shutting down", "MAIL", SendErrorKind.TRANSIENT),
        (451, "4.7.1 Greylisted, try again later", "RCPT", SendErrorKind.TRANSIENT),
        (454, "4.7.0 Temporary authentication failure", "AUTH", SendErrorKind.TRANSIENT),
        (535, "5.7.8 Username and password not accepted", "AUTH", SendErrorKind.AUTH),
        (530, "5.7.0 Must issue a STARTTLS command first", "MAIL", SendErrorKind.AUTH),
        (550, "5.1.1 user unknown", "RCPT", SendErrorKind.NOT_FOUND),
        (550, "No such user here", "RCPT", SendErrorKind.NOT_FOUND),
        (550, "5.7.1 relaying denied", "RCPT", SendErrorKind.FORBIDDEN),
        (552, "5.3.4 Message size exceeds fixed limit", "MAIL", SendErrorKind.TOO_LONG),
        (554, "5.7.1 spam message rejected", "DATA", SendErrorKind.FORBIDDEN),
        (500, "command not recognised", "DATA", SendErrorKind.UNKNOWN),
    ],
)
def test_a_refusal_is_understood(code, text, command, kind):
    error = classify_reply(code, text, command=command)
    assert (error.kind, error.status, error.message) == (kind, code, f"SMTP {code} to {command}: {text}")


def test_a_connection_lost_after_the_content_may_have_delivered_it():
    assert classify_lost_connection("reset", was_data_sent=True).kind is SendErrorKind.AMBIGUOUS
    assert classify_lost_connection("refused", was_data_sent=False).kind is SendErrorKind.TRANSIENT


def test_nothing_shows_the_password_or_the_text():
    assert "hunter2" not in repr(SERVER)
    assert "Rain" not in repr(mail())
