"""Build a mail, and judge the answers of an SMTP server. The caller connects."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass, field
from datetime import datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime

from hermes_worker.channels.errors import DeliveryError, SendErrorKind
from hermes_worker.channels.exchange import Part, Unsendable, flatten_text, shorten_key
from hermes_worker.channels.markup import render_matrix_html
from hermes_worker.channels.targets import Target
from hermes_worker.core.media_kinds import guess_type_of_name

DEFAULT_SUBJECT = "Hermes Agent"
SUBJECT_CHARS_MAX = 200

_ADDRESS = re.compile(
    r"(?P<user>[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64})@(?P<domain>[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})*)"
)

_OWN = "hermes-"
"""The beginning of the ids of our mails."""
_MESSAGE_ID = re.compile(r"<[!-;=?-~]{1,250}>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    host: str
    sender: str
    """The address from which mails come."""
    port: int = 587
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    sender_name: str = "Hermes"


@dataclass(frozen=True, slots=True, kw_only=True)
class MailThread:
    """The thread of mails that an answer belongs to."""

    root: str
    """The id of its first mail, with brackets."""
    answers: str
    """The id of the mail that is answered."""
    subject: str
    """The subject without ``Re:``."""


THREAD_CHARS_MAX = 1_000
"""Longest token of a thread in a target."""


def write_thread_token(thread: MailThread) -> str:
    """Write a thread as a target names it; empty for one that is too long."""
    said = "\n".join((thread.root, thread.answers, thread.subject[:SUBJECT_CHARS_MAX]))
    token = base64.urlsafe_b64encode(said.encode("utf-8", "replace")).decode().rstrip("=")
    return token if len(token) <= THREAD_CHARS_MAX else ""


def read_thread_token(token: str) -> MailThread | None:
    """Read a thread from its ``write_thread_token``; ``None`` for anything else."""
    try:
        said = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()
    except (binascii.Error, ValueError):
        return None
    root, _, rest = said.partition("\n")
    answers, _, subject = rest.partition("\n")
    if not (_MESSAGE_ID.fullmatch(root) and _MESSAGE_ID.fullmatch(answers)):
        return None
    return MailThread(root=root, answers=answers, subject=flatten_text(subject)[:SUBJECT_CHARS_MAX])


def is_own_id(message_id: str, domain: str) -> bool:
    """Whether ``build`` gave a mail this id."""
    return re.fullmatch(rf"<{_OWN}[0-9a-f]{{40}}@{re.escape(domain)}>", message_id, re.IGNORECASE) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """A message and its envelope, ready for ``MAIL FROM``, ``RCPT TO`` and ``DATA``."""

    sender: str
    recipient: str
    content: bytes = field(repr=False)


def build(part: Part, target: Target, credentials: Credentials, *, at: datetime) -> Mail:
    """Build the mail for a part. Raises ``Unsendable`` for a malformed address."""
    sender, recipient = _require_address(credentials.sender), _require_address(target.chat)
    message = EmailMessage(policy=SMTP)
    message["From"] = Address(display_name=flatten_text(credentials.sender_name), addr_spec=sender)
    message["To"] = Address(addr_spec=recipient)
    thread = read_thread_token(target.thread) if target.thread else None
    title = f"Re: {thread.subject}" if thread is not None and thread.subject else part.title
    message["Subject"] = flatten_text(title)[:SUBJECT_CHARS_MAX] or DEFAULT_SUBJECT
    message["Date"] = format_datetime(at)
    message["Message-ID"] = f"<{_OWN}{shorten_key(part.idempotency_key, 40)}@{sender.rpartition('@')[2]}>"
    if thread is not None:
        message["In-Reply-To"] = thread.answers
        message["References"] = " ".join(dict.fromkeys((thread.root, thread.answers)))
    # RFC 3834: no holiday notice answers a machine.
    message["Auto-Submitted"] = "auto-generated" if thread is None else "auto-replied"
    text = part.text.encode("utf-8", "replace").decode()
    message.set_content(text + "\n", cte="quoted-printable")
    if not part.is_plain:
        message.add_alternative(
            f"<html><body>{render_matrix_html(text)}</body></html>", subtype="html", cte="quoted-printable"
        )
    if part.attachment is not None:
        main, _, sub = guess_type_of_name(part.attachment.name).partition("/")
        name = flatten_text(part.attachment.name)
        message.add_attachment(part.attachment.content, maintype=main, subtype=sub, filename=name)
    return Mail(sender=sender, recipient=recipient, content=message.as_bytes())


def classify_reply(code: int, text: str, *, command: str) -> DeliveryError:
    """Judge a refusal. ``command`` is what was refused: ``AUTH``, ``MAIL``, ``RCPT``, ``DATA`` (RFC 5321, enhanced
    codes of RFC 3463)."""
    enhanced = re.match(r"\s*([245])\.(\d{1,3})\.(\d{1,3})\b", text)
    subject, detail = (enhanced[2], enhanced[3]) if enhanced else ("", "")
    return DeliveryError(
        kind=_classify_reply(code, command, subject, detail),
        message=f"SMTP {code} to {command}: {flatten_text(text)}",
        status=code,
    )


def classify_lost_connection(reason: str, *, was_data_sent: bool) -> DeliveryError:
    """Judge a connection that ended without an answer. Once the content is out the server may have taken the mail."""
    kind = SendErrorKind.AMBIGUOUS if was_data_sent else SendErrorKind.TRANSIENT
    return DeliveryError(kind=kind, message=flatten_text(reason))


def _classify_reply(code: int, command: str, subject: str, detail: str) -> SendErrorKind:
    if 400 <= code < 500:
        # 4.7.x and 450/451 to RCPT is grey-listing as often as not: come back later.
        return SendErrorKind.TRANSIENT
    if command == "AUTH" or code in (530, 534, 535, 538):
        return SendErrorKind.AUTH
    if code == 552 or (subject, detail) == ("3", "4"):
        return SendErrorKind.TOO_LONG
    if (subject, detail) in (("1", "1"), ("1", "2"), ("1", "10"), ("2", "1")) or (
        code in (550, 551, 553) and command == "RCPT" and subject != "7"
    ):
        return SendErrorKind.NOT_FOUND
    return SendErrorKind.FORBIDDEN if subject == "7" or code in (550, 554) else SendErrorKind.UNKNOWN


def _require_address(text: str) -> str:
    match = _ADDRESS.fullmatch(text)
    if match is None or ".." in text or match["user"].startswith(".") or match["user"].endswith("."):
        raise Unsendable(f"{text[:80]!r} is not an e-mail address.")
    return text
