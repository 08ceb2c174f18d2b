"""Hand a mail to an SMTP server, command by command: what is known about a failure depends on the command.

A password goes over TLS or not at all; servers on this machine are trusted without it.
"""

from __future__ import annotations

import re
import smtplib
import ssl
from enum import StrEnum

from hermes_worker.channels.errors import DeliveryError, SendErrorKind
from hermes_worker.channels.exchange import Receipt, flatten_text
from hermes_worker.channels.platforms.email import Credentials, Mail, classify_lost_connection, classify_reply
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.settings.server import is_loopback

TIMEOUT_S = 30.0


class SmtpTls(StrEnum):
    """The values of ``EMAIL_SMTP_TLS``."""

    IMPLICIT = "implicit"
    """TLS from the first byte, as port 465 expects."""
    STARTTLS = "starttls"
    """TLS is required, after the greeting."""
    OPPORTUNISTIC = "opportunistic"
    """TLS when the server offers it."""
    NONE = "none"


def choose_tls(text: str, port: int) -> SmtpTls:
    """Choose how to protect the connection; by the port where nothing is configured. Raises ``ConfigurationError``."""
    chosen = text.strip().lower()
    if not chosen:
        return SmtpTls.IMPLICIT if port == 465 else SmtpTls.OPPORTUNISTIC
    try:
        return SmtpTls(chosen)
    except ValueError:
        accepted = ", ".join(mode.value for mode in SmtpTls)
        raise ConfigurationError(f"EMAIL_SMTP_TLS is one of {accepted}, not {chosen[:40]!r}") from None


class _SmtpRefused(Exception):
    """The server answered a command with something else than success."""

    def __init__(self, command: str, code: int, text: bytes) -> None:
        super().__init__(command)
        self.error = classify_reply(code, text.decode("utf-8", "replace"), command=command)


def send_mail(mail: Mail, credentials: Credentials, tls: SmtpTls) -> Receipt | DeliveryError:
    """Deliver one mail to the configured server."""
    was_data_sent = False
    try:
        with _connect(credentials, tls) as server:
            _log_in(server, credentials)
            _expect("MAIL", server.mail(mail.sender), (250,))
            _expect("RCPT", server.rcpt(mail.recipient), (250, 251))
            _expect("DATA", server.docmd("DATA"), (354,))
            was_data_sent = True
            server.send(_encode_data(mail.content))
            code, text = server.getreply()
            _expect("DATA", (code, text), (250,))
            return Receipt(message_id=flatten_text(text.decode("utf-8", "replace")) or None)
    except _SmtpRefused as refusal:
        return refusal.error
    except smtplib.SMTPResponseException as error:
        text = error.smtp_error if isinstance(error.smtp_error, bytes) else str(error.smtp_error).encode()
        return _SmtpRefused("CONNECT", error.smtp_code, text).error
    except (ssl.SSLCertVerificationError, smtplib.SMTPNotSupportedError) as error:
        return DeliveryError(kind=SendErrorKind.AUTH, message=flatten_text(f"SMTP: {error}"))
    except (OSError, smtplib.SMTPException) as error:
        reason = f"the SMTP server {credentials.host} did not answer: {type(error).__name__}"
        return classify_lost_connection(reason, was_data_sent=was_data_sent)


def _connect(credentials: Credentials, tls: SmtpTls) -> smtplib.SMTP:
    context = ssl.create_default_context()
    if tls is SmtpTls.IMPLICIT:
        return smtplib.SMTP_SSL(credentials.host, credentials.port, timeout=TIMEOUT_S, context=context)
    server = smtplib.SMTP(credentials.host, credentials.port, timeout=TIMEOUT_S)
    try:
        server.ehlo_or_helo_if_needed()
        wants_tls = tls is SmtpTls.STARTTLS or (tls is SmtpTls.OPPORTUNISTIC and server.has_extn("starttls"))
        if wants_tls:
            server.starttls(context=context)
            server.ehlo()
    except BaseException:
        server.close()
        raise
    return server


def _log_in(server: smtplib.SMTP, credentials: Credentials) -> None:
    if not credentials.password:
        return
    if not isinstance(server.sock, ssl.SSLSocket) and not is_loopback(credentials.host):
        raise smtplib.SMTPNotSupportedError("the server offers no TLS, and a password is not sent without it")
    try:
        server.login(credentials.username or credentials.sender, credentials.password)
    except smtplib.SMTPAuthenticationError as error:
        text = error.smtp_error if isinstance(error.smtp_error, bytes) else str(error.smtp_error).encode()
        raise _SmtpRefused("AUTH", error.smtp_code, text) from None


def _expect(command: str, reply: tuple[int, bytes], accepted: tuple[int, ...]) -> None:
    if reply[0] == -1:
        raise smtplib.SMTPServerDisconnected("connection closed")
    if reply[0] not in accepted:
        raise _SmtpRefused(command, reply[0], reply[1])


def _encode_data(content: bytes) -> bytes:
    """Write the content as it follows DATA: a line's leading dot is doubled, a dot alone ends it (RFC 5321 §4.5.2)."""
    lines = re.sub(rb"(?:\r\n|\n|\r)", b"\r\n", content)
    return re.sub(rb"(?m)^\.", b"..", lines.rstrip(b"\r\n") + b"\r\n") + b".\r\n"
