"""Handing mail to a real SMTP server (aiosmtpd): with TLS and without, taken, put off, refused, and dropped."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from hermes_worker.channels.errors import DeliveryError, SendErrorKind
from hermes_worker.channels.exchange import Receipt
from hermes_worker.channels.platforms.email import Credentials, Mail
from hermes_worker.channels.smtp import SmtpTls, send_mail

MAIL = Mail(sender="hermes@example.org", recipient="me@example.org", content=b"Subject: x\r\n\r\nHello\r\n.\r\nBye\r\n")
PASSWORD = "correct-horse"


@dataclass
class Mailbox:
    """What the server does, and what it took."""

    taken: list[bytes] = field(default_factory=list)
    logins: list[tuple[str, bool]] = field(default_factory=list)
    """User, and whether the connection was private."""
    at_rcpt: str = ""
    at_data: str = ""
    drops: str = ""
    """``after_data``: the mail is taken and the connection ends without a word."""

    async def handle_RCPT(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if self.at_rcpt:
            return self.at_rcpt
        envelope.rcpt_tos.append(address)
        return "250 2.1.5 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        if self.at_data:
            return self.at_data
        assert isinstance(envelope.content, bytes)
        self.taken.append(envelope.content)
        if self.drops:
            assert server.transport is not None
            server.transport.abort()
        return "250 2.0.0 OK queued as 42"

    def login(self, server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: Any) -> AuthResult:
        assert isinstance(data, LoginPassword)
        self.logins.append((data.login.decode(), session.ssl is not None))
        return AuthResult(success=data.password == PASSWORD.encode(), handled=False)


class Server(Controller):
    """On a port that the system chose."""

    def _trigger_server(self) -> None:
        assert self.server is not None
        self.port = self.server.sockets[0].getsockname()[1]
        super()._trigger_server()


Start = Callable[..., Credentials]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def mailbox() -> Mailbox:
    return Mailbox()


@pytest.fixture
def start(mailbox: Mailbox, authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts the server; gives credentials for it. Its certificate is good unless ``is_trusted`` says otherwise."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    with ExitStack() as stack:

        def begin(*, tls: str = "", is_trusted: bool = True, **changes: Any) -> Credentials:
            options: dict[str, Any] = {"authenticator": mailbox.login, "auth_require_tls": False}
            if tls == "implicit":
                options["ssl_context"] = context
            if tls == "starttls":
                options["tls_context"] = context
            controller = Server(mailbox, hostname="127.0.0.1", port=0, **options)
            controller.start()
            stack.callback(controller.stop)
            if is_trusted:
                authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
                monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
            return Credentials(host="localhost", port=controller.port, sender="hermes@example.org", **changes)

        yield begin


def kind_of(outcome: Receipt | DeliveryError) -> SendErrorKind:
    assert isinstance(outcome, DeliveryError)
    assert PASSWORD not in outcome.message
    return outcome.kind


def test_a_mail_is_taken_as_it_was_written(start: Start, mailbox: Mailbox) -> None:
    outcome = send_mail(MAIL, start(), SmtpTls.NONE)
    assert isinstance(outcome, Receipt)
    assert "queued as 42" in (outcome.message_id or "")
    assert mailbox.taken == [MAIL.content]


@pytest.mark.parametrize(("tls", "mode"), [("implicit", SmtpTls.IMPLICIT), ("starttls", SmtpTls.STARTTLS)])
def test_tls_protects_the_password(start: Start, mailbox: Mailbox, tls: str, mode: SmtpTls) -> None:
    credentials = start(tls=tls, username="hermes", password=PASSWORD)
    assert isinstance(send_mail(MAIL, credentials, mode), Receipt)
    assert [user for user, _ in mailbox.logins] == ["hermes"]
    assert mailbox.logins[0][1] or tls == "implicit"
    assert len(mailbox.taken) == 1


def test_tls_is_used_when_it_is_offered(start: Start, mailbox: Mailbox) -> None:
    credentials = start(tls="starttls", password=PASSWORD)
    assert isinstance(send_mail(MAIL, credentials, SmtpTls.OPPORTUNISTIC), Receipt)
    assert mailbox.logins == [("hermes@example.org", True)]


@pytest.mark.parametrize(("tls", "mode"), [("implicit", SmtpTls.IMPLICIT), ("starttls", SmtpTls.STARTTLS)])
def test_a_certificate_that_nobody_vouches_for_gets_nothing(
    start: Start, mailbox: Mailbox, tls: str, mode: SmtpTls
) -> None:
    outcome = send_mail(MAIL, start(tls=tls, is_trusted=False, password=PASSWORD), mode)
    assert kind_of(outcome) is SendErrorKind.AUTH
    assert mailbox.logins == []
    assert mailbox.taken == []


def test_a_certificate_for_another_name_gets_nothing(start: Start, mailbox: Mailbox) -> None:
    credentials = replace(start(tls="starttls", password=PASSWORD), host="127.0.0.1")
    assert kind_of(send_mail(MAIL, credentials, SmtpTls.STARTTLS)) is SendErrorKind.AUTH
    assert mailbox.logins == []


def test_required_tls_that_is_not_offered_is_refused_by_us(start: Start, mailbox: Mailbox) -> None:
    assert kind_of(send_mail(MAIL, start(), SmtpTls.STARTTLS)) is SendErrorKind.AUTH
    assert mailbox.taken == []


def test_a_wrong_password_is_said_to_be_one(start: Start, mailbox: Mailbox) -> None:
    outcome = send_mail(MAIL, start(tls="starttls", password="wrong-password"), SmtpTls.STARTTLS)
    assert kind_of(outcome) is SendErrorKind.AUTH
    assert mailbox.taken == []


@pytest.mark.parametrize(
    ("changes", "kind", "taken"),
    [
        ({"at_rcpt": "450 4.2.0 grey-listed"}, SendErrorKind.TRANSIENT, 0),
        ({"at_rcpt": "550 5.1.1 no such user"}, SendErrorKind.NOT_FOUND, 0),
        ({"at_rcpt": "550 5.7.1 relaying denied"}, SendErrorKind.FORBIDDEN, 0),
        ({"at_data": "451 4.3.0 come back later"}, SendErrorKind.TRANSIENT, 0),
        ({"at_data": "552 5.3.4 too big"}, SendErrorKind.TOO_LONG, 0),
        ({"at_data": "554 5.7.1 spam"}, SendErrorKind.FORBIDDEN, 0),
        ({"drops": "after_data"}, SendErrorKind.AMBIGUOUS, 1),
    ],
)
def test_what_the_server_says_is_understood(
    start: Start, mailbox: Mailbox, changes: dict[str, str], kind: SendErrorKind, taken: int
) -> None:
    credentials = start()
    for name, value in changes.items():
        setattr(mailbox, name, value)
    assert kind_of(send_mail(MAIL, credentials, SmtpTls.NONE)) is kind
    assert len(mailbox.taken) == taken


def test_a_server_that_is_not_there_got_nothing() -> None:
    credentials = Credentials(host="127.0.0.1", port=1, sender="a@example.org")
    assert kind_of(send_mail(MAIL, credentials, SmtpTls.NONE)) is SendErrorKind.TRANSIENT
