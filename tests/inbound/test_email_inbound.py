"""Mails as they stand in a mailbox: who is heard, what is read, and how far. Against a strict stand-in of a server."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from email.message import EmailMessage
from pathlib import Path
from random import Random

import pytest
import sqlalchemy as sa
from support.imap_server import Mailbox, imap_server
from support.mails import AUTHSERV, PASSED, account, mail, malformed
from support.migrated import bring_up
from support.patience import PATIENCE_S

from hermes_worker import settings as settings_module
from hermes_worker.channels.errors import DeliveryError, SendErrorKind
from hermes_worker.channels.exchange import Part
from hermes_worker.channels.imap import MailCursor, fetch
from hermes_worker.channels.inbound.mail_structure import UnreadableAnswer, list_parts, parse_fetch
from hermes_worker.channels.inbound.mail_text import extract_html_text, remove_quotes
from hermes_worker.channels.inbound.receiving import Polled
from hermes_worker.channels.platforms import email as outgoing
from hermes_worker.channels.targets import Target
from hermes_worker.core.inbound import InboundMessage
from hermes_worker.core.media_kinds import MediaKind
from hermes_worker.gateway.listening import GatewayListener, list_listened_accounts
from hermes_worker.store.tables import channels, deliveries, inbound, runs, sessions
from hermes_worker.wiring import Client, open_client

AT = datetime(2026, 11, 26, 12, 30, tzinfo=UTC)
FIRST = "7:0:0:0"


def looked(mailbox: Mailbox, cursor: str = FIRST, hold_s: float = 0) -> Polled:
    found = fetch(cursor, account(mailbox.port), AT, hold_s)
    assert isinstance(found, Polled), found
    assert not mailbox.refused
    return found


def read(*mails: EmailMessage | bytes) -> list[InboundMessage]:
    with imap_server() as mailbox:
        for one in mails:
            mailbox.add(one if isinstance(one, bytes) else one.as_bytes())
        return [one for one in looked(mailbox).inbound if isinstance(one, InboundMessage)]


def test_the_first_look_learns_where_we_are_and_the_next_brings_what_came_since():
    with imap_server() as mailbox:
        mailbox.add(mail("old").as_bytes())
        first = looked(mailbox, "")
        mailbox.add(mail("new", Message_ID="<2@there.example>").as_bytes())
        (message,) = looked(mailbox, first.cursor).inbound
    assert first.inbound == ()
    assert isinstance(message, InboundMessage)
    assert (message.text, message.sender.id, message.sender.name) == (
        "Subject: A question\n\nnew",
        "ada@there.example",
        "Ada L",
    )
    assert (message.chat.id, message.message_id) == ("ada@there.example", "<2@there.example>")


def test_what_has_no_end_is_read_in_pieces_and_an_empty_look_keeps_the_cursor():
    with imap_server() as mailbox:
        for number in range(60):
            mailbox.add(mail(Message_ID=f"<{number}@there.example>").as_bytes())
        first = looked(mailbox)
        second = looked(mailbox, first.cursor)
        third = looked(mailbox, second.cursor)
    assert (len(first.inbound), first.has_more, len(second.inbound), second.has_more) == (50, True, 10, False)
    assert (third.inbound, third.cursor) == ((), second.cursor)


def test_a_mail_that_comes_while_a_look_is_held_is_brought_by_it(monkeypatch: pytest.MonkeyPatch):
    with imap_server() as mailbox:
        monkeypatch.setattr(time, "sleep", lambda _: mailbox.mails or mailbox.add(mail().as_bytes()))
        assert len(looked(mailbox, hold_s=60).inbound) == 1


def test_a_mailbox_that_was_numbered_anew_is_read_once_more_under_the_same_keys():
    with imap_server() as mailbox:
        for number in range(5):
            came = f"{20 + number}-Nov-2026 12:00:00 +0000"
            mailbox.add(mail(Message_ID=f"<{number}@there.example>").as_bytes(), came)
        before = looked(mailbox)
        mailbox.renumber()
        mailbox.add(mail(Message_ID="<9@there.example>").as_bytes())
        after = looked(mailbox, before.cursor)
        assert looked(mailbox, after.cursor).inbound == ()
    keys = [one.event_key for one in before.inbound]
    # What came more than a day before the last one stays behind: its row may be gone.
    assert [one.event_key for one in after.inbound][:2] == keys[3:]
    assert len(after.inbound) == 3
    cursor = MailCursor.parse(after.cursor)
    assert cursor is not None
    assert cursor.validity == 8


def test_a_mail_from_tomorrow_does_not_make_us_deaf_when_the_mailbox_is_numbered_anew():
    with imap_server() as mailbox:
        mailbox.add(mail().as_bytes(), "26-Nov-2099 12:00:00 +0000")
        before = looked(mailbox)
        mailbox.renumber()
        mailbox.add(mail(Message_ID="<2@there.example>").as_bytes(), "26-Nov-2026 12:31:00 +0000")
        assert len(looked(mailbox, before.cursor).inbound) == 2


def test_a_wrong_password_is_told_as_one_and_a_server_that_is_away_as_away():
    with imap_server() as mailbox:
        refused = fetch("", account(mailbox.port, password="wrong"), AT, 0)
        port = mailbox.port
    away = fetch("", account(port), AT, 0)
    assert isinstance(refused, DeliveryError)
    assert isinstance(away, DeliveryError)
    assert (refused.kind, away.kind) == (SendErrorKind.AUTH, SendErrorKind.TRANSIENT)
    assert "wrong" not in refused.message


def test_a_password_is_not_sent_without_tls_to_another_machine():
    refused = fetch("", account(143, host="mail.example.org"), AT, 0)
    assert isinstance(refused, DeliveryError)
    assert (refused.kind, "without TLS" in refused.message) == (SendErrorKind.AUTH, True)


# --- who wrote -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "results",
    [
        PASSED,
        f"{AUTHSERV} 1; dmarc=pass header.from=there.example",
        f"{AUTHSERV.upper()}; dmarc=pass (a; (b) dmarc=fail) header.from=there.example",
        f"{AUTHSERV}; spf=pass smtp.mailfrom=bounce@there.example",
        f"{AUTHSERV}; dkim=pass header.d=there.example header.s=x; dmarc=none header.from=there.example",
    ],
)
def test_an_address_that_the_receiving_server_checked_is_its_senders(results: str):
    (message,) = read(mail(results=results))
    assert message.sender.id == "ada@there.example"


@pytest.mark.parametrize(
    "results",
    [
        None,
        "",
        AUTHSERV,
        f"{AUTHSERV}; none",
        "mx.other.example; dmarc=pass header.from=there.example",
        f"{AUTHSERV}; dmarc=fail header.from=there.example",
        f"{AUTHSERV}; dmarc=pass header.from=evil.example",
        f"{AUTHSERV}; dmarc=pass",
        f"{AUTHSERV}; dmarc=fail header.from=there.example; spf=pass smtp.mailfrom=ada@there.example",
        f"{AUTHSERV}; dmarc=fail header.from=there.example; dmarc=pass header.from=there.example",
        f"{AUTHSERV}; spf=pass smtp.mailfrom=ada@evil.example",
        f'{AUTHSERV}; spf=pass smtp.mailfrom="x; dmarc=pass header.from=there.example"@evil.example',
        f"{AUTHSERV}; spf=fail (x; dmarc=pass header.from=there.example)",
        f"{AUTHSERV}; spf=fail (; dmarc=pass header.from=there.example",
        f"{AUTHSERV}; dkim=pass header.d=evil.example header.d=there.example",
        f"{AUTHSERV}; dkim=fail header.d=there.example",
    ],
)
def test_an_address_that_nobody_checked_is_nobodys(results: str | None):
    (message,) = read(mail(results=results))
    assert (message.sender.id, message.media) == ("", ())
    assert "hello" not in message.text


def test_what_a_stranger_writes_below_the_servers_own_word_does_not_count():
    forged = mail(results=f"{AUTHSERV}; dmarc=fail header.from=there.example")
    forged["Authentication-Results"] = PASSED
    (message,) = read(forged)
    assert message.sender.id == ""


def test_a_mail_that_is_from_two_people_is_from_nobody():
    two = mail().as_bytes().replace(b"\n\n", b"\nFrom: eve@evil.example\n\n", 1)
    listed = mail().as_bytes().replace(b"<ada@there.example>", b"<ada@there.example>, eve@evil.example")
    assert [one.sender.id for one in read(two, listed)] == ["", ""]


@pytest.mark.parametrize(
    "headers",
    [
        {"Auto_Submitted": "auto-replied"},
        {"Auto_Submitted": "auto-generated; owner-email=x@y"},
        {"Precedence": "bulk"},
        {"Precedence": "list"},
        {"List_Id": "<talk.there.example>"},
        {"List_Unsubscribe": "<https://there.example>"},
        {"X_Auto_Response_Suppress": "All"},
        {"Return_Path": "<>"},
        {"From": "MAILER-DAEMON@there.example"},
        {"From": "no-reply@there.example"},
        {"From": "no_reply@there.example"},
        {"From": "NoReply+42@there.example"},
        {"From": "github-noreply@there.example"},
        {"From": "do.not.reply@there.example"},
        {"From": "notifications@there.example"},
        {"From": "auto-confirm@there.example"},
        {"Precedence": "Auto_Reply"},
        {"X_Auto_Reply": "yes"},
        {"X_Autoreply": "yes"},
        {"X_Autorespond": "Re: hello"},
        {"X_Mail_Autoreply": "1"},
        {"X_Failed_Recipients": "x@there.example"},
        {"Feedback_ID": "1:campaign:there"},
        {"From": "agent@here.example"},
        {"Message_ID": f"<hermes-{'a' * 40}@here.example>"},
    ],
)
def test_what_a_program_or_a_list_sent_is_never_answered(headers: dict[str, str]):
    (message,) = read(mail(**headers))
    assert message.sender.is_bot


@pytest.mark.parametrize("who", ["reply", "norah", "nora.reply", "autumn", "ada.bounce", "noreen", "automat"])
def test_a_person_whose_address_resembles_a_programs_is_a_person(who: str):
    (message,) = read(mail(From=f"{who}@there.example", X_Mailer="mutt", X_Automobile="Trabant"))
    assert not message.sender.is_bot


def test_what_a_person_sent_is_no_programs():
    (message,) = read(mail(Auto_Submitted="no", Precedence="normal", Return_Path="<ada@there.example>"))
    assert not message.sender.is_bot


def test_our_own_mails_are_known_as_ours():
    ours = outgoing.Credentials(host="h", sender="agent@here.example")
    sent = outgoing.build(
        Part(text="x", idempotency_key="k"), Target(platform="email", chat="ada@there.example"), ours, at=AT
    )
    (message,) = read(sent.content)
    assert message.sender.is_bot


# --- what was written ------------------------------------------------------------------------------------------------


def test_a_thread_is_a_conversation_and_the_answer_belongs_to_it():
    begun = mail("begun", Message_ID="<1@there.example>")
    went_on = mail(
        "went on",
        Subject="Re: A question",
        Message_ID="<3@there.example>",
        In_Reply_To="<2@here.example>",
        References="<1@there.example> <2@here.example>",
    )
    other = mail(Message_ID="<4@there.example>")
    first, second, third = read(begun, went_on, other)
    assert first.chat.thread == second.chat.thread != third.chat.thread
    assert second.text == "went on"
    target = Target(platform="email", chat="ada@there.example", thread=second.chat.answered_as)
    ours = outgoing.Credentials(host="h", sender="agent@here.example")
    answer = outgoing.build(Part(text="x", idempotency_key="k"), target, ours, at=AT).content
    (told,) = read(answer)
    assert b"Subject: Re: A question\r\n" in answer
    assert b"In-Reply-To: <3@there.example>\r\n" in answer
    assert b"References: <1@there.example> <3@there.example>\r\n" in answer
    assert b"Auto-Submitted: auto-replied\r\n" in answer
    assert told.chat.thread == first.chat.thread


@pytest.mark.parametrize("token", ["", "x", "%%%", "YQ", "PDFAYT4KPDFAYT4NCkV2aWw6IHgKeA"])
def test_a_thread_that_nobody_named_changes_no_header(token: str):
    ours = outgoing.Credentials(host="h", sender="agent@here.example")
    target = Target(platform="email", chat="ada@there.example", thread=token)
    content = outgoing.build(Part(text="x", idempotency_key="k"), target, ours, at=AT).content
    assert b"In-Reply-To" not in content
    assert b"Evil" not in content


def test_a_command_stays_one_below_a_subject():
    (message,) = read(mail("/stop"))
    assert message.text == "/stop"


def test_html_alone_is_read_and_what_it_hides_or_quotes_is_not():
    html = (
        "<head><title>t</title><style>p{}</style></head><p>one<br>two &amp; three</p><script>x</script>"
        "<div class='gmail_quote'>old<div>older</div></div><blockquote>quoted</blockquote>"
    )
    only = EmailMessage()
    for name, value in mail().items():
        if not name.lower().startswith(("content", "mime")):
            only[name] = value
    only.set_content(html, subtype="html")
    (message,) = read(only)
    assert message.text == "Subject: A question\n\none\ntwo & three"
    assert extract_html_text("<div>" * 30_000 + "x" + "<blockquote>" * 4_000) == "x"


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("yes\n\nOn Thu, 26 Nov 2026 at 12:00, Bot <b@h> wrote:\n> may I?\n> really?\n", "yes"),
        ("ja\r\n\r\nAm 26.11.2026 schrieb Bot\r\n<b@h>:\r\n> darf ich?\r\n", "ja"),
        ("ja\n\nAm 26.11.2026 um 12:00 schrieb Bot <b@h>:\n\n> darf ich?", "ja"),
        ("see below\n-----Original Message-----\nFrom: Bot\nold", "see below"),
        ("> may I?\nyes\n> and this?\nno", "> may I?\nyes\n> and this?\nno"),
        ("hello\n-- \nAda\nThere Ltd", "hello"),
        ("> only a quotation", "> only a quotation"),
        ("I wrote:\nnothing", "I wrote:\nnothing"),
    ],
)
def test_what_is_quoted_below_an_answer_is_left_out(text: str, written: str):
    assert remove_quotes(text) == written


def test_quotations_without_end_take_no_time():
    began = time.process_time()
    remove_quotes("> " * 130_000 + "\n" * 100_000 + "wrote " * 20_000)
    extract_html_text("<p <" * 50_000)
    assert time.process_time() - began < 2


def test_files_of_a_mail_are_named_and_not_fetched():
    with_files = mail("look", html="<p>look</p>")
    with_files.add_attachment(b"\x89PNG\r\n\x1a\n" + b"x" * 5_000, maintype="image", subtype="png", filename="plan.png")
    with_files.add_attachment(b"%PDF-" + b"x" * 300, maintype="application", subtype="pdf", filename="ré\u202esumé.pdf")
    with imap_server() as mailbox:
        mailbox.add(with_files.as_bytes())
        (message,) = looked(mailbox).inbound
        fetches = [command for command in mailbox.commands if "FETCH" in command]
    assert isinstance(message, InboundMessage)
    assert message.text == "Subject: A question\n\nlook"
    assert [(one.kind, one.name) for one in message.media] == [
        (MediaKind.IMAGE, "plan.png"),
        (MediaKind.DOCUMENT, "ré sumé.pdf"),
    ]
    assert message.media[0].id == "7:1:2:base64"
    assert 4_800 < (message.media[0].size_bytes or 0) < 5_200
    assert len(fetches) == 2


def test_300_malformed_mails_stop_nothing():
    with imap_server() as mailbox:
        for one in malformed(Random(21), 300):
            mailbox.add(one)
        mailbox.add(mail("after", Message_ID="<last@there.example>").as_bytes())
        cursor, found = FIRST, []
        for _ in range(7):
            one = looked(mailbox, cursor)
            found += one.inbound
            cursor = one.cursor
    assert len(found) == 301
    assert isinstance(found[-1], InboundMessage)
    assert found[-1].text.endswith("after")
    assert all(0 < len(one.event_key) <= 200 for one in found)


@pytest.mark.parametrize("text", [b"1", b"1 (", b"1 (UID", b"1 " + b"(" * 200, b"1 )", b"x y", b'1 (UID "', b"1 (A)"])
def test_an_answer_that_imap_does_not_have_is_refused(text: bytes):
    with pytest.raises(UnreadableAnswer):
        list(parse_fetch([text]))


def test_a_structure_without_end_has_some_parts():
    node: object = [b"text", b"plain"]
    for _ in range(300):
        node = [node, node]
    assert len(list_parts(node)) <= 100
    assert list_parts([[]]) == list_parts(None) == []


# --- the gateway -----------------------------------------------------------------------------------------------------


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    with imap_server() as served:
        yield served


@pytest.fixture
def client(tmp_path: Path, broker_url: str, mailbox: Mailbox) -> Iterator[Client]:
    url = f"sqlite:///{tmp_path / 'test.db'}"
    (tmp_path / "home").mkdir()
    bring_up(url)
    environ = {
        "HOME": str(tmp_path),
        "HERMES_HOME": str(tmp_path / "home"),
        "HERMES_DATABASE_URL": url,
        "HERMES_BROKER_URL": broker_url,
        "HERMES_PROVIDER": "scripted",
        "HERMES_GATEWAY": "true",
        "HERMES_GATEWAY_LEASE_S": "3",
        "EMAIL_IMAP_HOST": "127.0.0.1",
        "EMAIL_IMAP_PORT": str(mailbox.port),
        "EMAIL_IMAP_TLS": "none",
        "EMAIL_ADDRESS": "agent@here.example",
        "EMAIL_PASSWORD": "sesame",
        "EMAIL_AUTHSERV_ID": AUTHSERV,
        "EMAIL_ALLOWED_USERS": "ada@there.example",
    }
    found = open_client(settings_module.load_settings(environ))
    yield found
    found.close()


def test_two_gateways_make_one_run_of_each_mail_and_nothing_of_the_rest(client: Client, mailbox: Mailbox):
    accounts = list_listened_accounts(client.settings)
    assert [one.account for one in accounts] == ["email:default"]
    stopping = threading.Event()
    listeners = [GatewayListener(client, accounts, name=name, alive_file=None) for name in ("one", "two")]
    threads = [threading.Thread(target=one.run, args=(stopping,)) for one in listeners]
    for thread in threads:
        thread.start()
    try:
        ends_at = time.monotonic() + PATIENCE_S
        while not any(cursor for (cursor,) in _rows(client, channels.c.cursor)):
            assert time.monotonic() < ends_at
            time.sleep(0.01)
        # The first look is over, so it knows none of these.
        # Of a mailbox that was numbered anew, what is older than a day is not read again.
        came = datetime.now(UTC).strftime("%d-%b-%Y %H:%M:%S +0000")
        mailbox.add(mail("heard").as_bytes(), came)
        mailbox.add(mail("forged", results=None, Message_ID="<2@there.example>").as_bytes(), came)
        mailbox.add(mail("a list", List_Id="<l.there.example>", Message_ID="<3@there.example>").as_bytes(), came)
        stranger = PASSED.replace("there.example", "strange.example")
        mailbox.add(mail("let me in", results=stranger, From="eve@strange.example").as_bytes(), came)
        mailbox.renumber()
        while len(_rows(client, inbound.c.outcome)) < 4:
            assert time.monotonic() < ends_at
            time.sleep(0.02)
    finally:
        stopping.set()
        for thread in threads:
            thread.join()
    assert sorted(one for (one,) in _rows(client, inbound.c.outcome)) == ["bot", "nameless", "run", "stranger"]
    assert len(_rows(client, runs.c.run_id)) == 1
    ((name,),) = _rows(client, sessions.c.name)
    assert name.startswith("agent:main:email:dm:ada@there.example:")
    assert _rows(client, deliveries.c.target) == []  # nobody is told a code, and the run has not ended


def _rows(client: Client, *columns: sa.ColumnElement[object]) -> list[tuple[object, ...]]:
    with client.database.read() as connection:
        return [tuple(row) for row in connection.execute(sa.select(*columns))]
