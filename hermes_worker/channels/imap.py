"""Poll a mailbox over IMAP4rev1 (RFC 3501). Nothing is changed in it: it is opened read-only.

The cursor is ``UIDVALIDITY:UID:CAME:SINCE``: the last mail that was read, when it came, and the time before which a
mail is not answered, in epoch seconds. The first poll only learns where the mailbox stands. When the server numbers the
mailbox anew (another ``UIDVALIDITY``), everything since a day before the last mail is read once more; the event's key,
which is made from what a mail says, recognises the mails that were taken before.

A password goes over TLS or not at all; servers on this machine are trusted without it.
"""

from __future__ import annotations

import imaplib
import re
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.errors import MessageError
from email.utils import parsedate_to_datetime
from typing import Any

from hermes_worker.channels.errors import DeliveryError, SendErrorKind
from hermes_worker.channels.exchange import flatten_text
from hermes_worker.channels.file_addresses import FileSink
from hermes_worker.channels.inbound import email as mails
from hermes_worker.channels.inbound.email import Credentials, Letter, MailFile
from hermes_worker.channels.inbound.mail_structure import UnreadableAnswer, list_parts, parse_fetch
from hermes_worker.channels.inbound.receiving import Polled
from hermes_worker.core.inbound import InboundMessage, MediaRef
from hermes_worker.settings.server import is_loopback

TIMEOUT_S = 20.0
"""Seconds for each command."""
MAILS_MAX = 50
"""Most mails in one poll."""
TEXT_BYTES_MAX = 262_144
"""Most bytes of a mail's text, as it is encoded."""
HEADER_BYTES_MAX = 65_536
PIECE_BYTES = 1_048_576
"""Bytes of a file that are asked for at once, as it is encoded."""
AGAIN_S = 5.0
"""Seconds between two looks over one connection."""
_RENUMBERED_S = 86_400.0
_CURSOR = re.compile(r"(\d{1,10}):(\d{1,10}):(\d{1,12}):(\d{1,12})", re.ASCII)
_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, AssertionError, RecursionError, MessageError)
"""What Python's parsers raise for mails that were made to break them."""


@dataclass(frozen=True, slots=True)
class MailCursor:
    """The position up to which a mailbox was read."""

    validity: int
    uid: int
    came_s: int
    since_s: int

    def __str__(self) -> str:
        return f"{self.validity}:{self.uid}:{self.came_s}:{self.since_s}"

    @classmethod
    def parse(cls, text: str) -> MailCursor | None:
        found = _CURSOR.fullmatch(text)
        return None if found is None else cls(*map(int, found.groups()))


class MailboxRefused(Exception):
    """The server does not let us in, or we do not give it the password."""


def fetch(cursor: str, credentials: Credentials, at: datetime, hold_s: float) -> Polled | DeliveryError:
    """Read up to ``MAILS_MAX`` mails that came since ``cursor``; while there are none, look again over the same
    connection for ``hold_s`` seconds."""
    try:
        with open_mailbox(credentials) as mailbox:
            return _look(mailbox, cursor, credentials, at, hold_s)
    except _FAILS as error:
        return _build_delivery_error(error, credentials)


def read_file(media: MediaRef, credentials: Credentials, sink: FileSink) -> DeliveryError | None:
    """Write a file of a mail to ``sink``, piece by piece; ``None`` on success. Nothing is marked as read. Raises
    ``NoRoom``."""
    file = MailFile.parse(media.id)
    if file is None:
        return DeliveryError(kind=SendErrorKind.REFUSED, message="IMAP: this is no file of a mail")
    try:
        with open_mailbox(credentials) as mailbox:
            if _read_number(mailbox, "UIDVALIDITY") != file.validity:
                return DeliveryError(kind=SendErrorKind.NOT_FOUND, message="IMAP: the mailbox was numbered anew")
            if not read_section(mailbox, file.uid, file.section, 0, 1):
                return DeliveryError(kind=SendErrorKind.NOT_FOUND, message="IMAP: the mail is gone, or its file empty")
            for piece in mails.decode_pieces(_read_pieces(mailbox, file, sink), file.encoding):
                sink.write(piece)
    except _FAILS as error:
        return _build_delivery_error(error, credentials)
    return None


def _read_pieces(mailbox: imaplib.IMAP4, file: MailFile, sink: FileSink) -> Iterator[bytes]:
    """Yield the pieces of a part as it is encoded, as long as ``sink`` wants more. Raises ``TimeoutError``."""
    begin = 0
    while not sink.is_over:
        if sink.is_late:
            raise TimeoutError
        piece = read_section(mailbox, file.uid, file.section, begin, PIECE_BYTES)
        yield piece
        begin += len(piece)
        if len(piece) < PIECE_BYTES:
            return


_FAILS = (MailboxRefused, OSError, imaplib.IMAP4.error, UnreadableAnswer)


def _build_delivery_error(error: Exception, credentials: Credentials) -> DeliveryError:
    if isinstance(error, MailboxRefused | ssl.SSLCertVerificationError):
        return DeliveryError(kind=SendErrorKind.AUTH, message=flatten_text(f"IMAP: {error}"))
    words = str(error) if isinstance(error, imaplib.IMAP4.error | UnreadableAnswer) else type(error).__name__
    return DeliveryError(kind=SendErrorKind.TRANSIENT, message=flatten_text(f"IMAP: {credentials.host}: {words}"))


@contextmanager
def open_mailbox(credentials: Credentials) -> Iterator[imaplib.IMAP4]:
    """Connect, log in and open the folder for the time of the context. Raises ``MailboxRefused``, ``OSError``,
    ``imaplib.IMAP4.error``."""
    server = _connect(credentials)
    try:
        _log_in(server, credentials)
        status, said = server.select(_quote(credentials.folder), readonly=True)
        if status != "OK":
            raise MailboxRefused(f"the folder {credentials.folder!r} cannot be opened: {_join_words(said)}")
        yield server
    finally:
        with suppress(OSError, imaplib.IMAP4.error):
            server.logout()


def _look(
    mailbox: imaplib.IMAP4, cursor: str, credentials: Credentials, at: datetime, hold_s: float
) -> Polled | DeliveryError:
    ends_at = time.monotonic() + hold_s
    validity = _read_number(mailbox, "UIDVALIDITY")
    before = MailCursor.parse(cursor)
    if before is None:
        last = _find_newest(mailbox)
        return Polled(inbound=(), cursor=str(MailCursor(validity, last, int(at.timestamp()), 0)))
    if before.validity != validity:
        since_s = max(0, int(before.came_s - _RENUMBERED_S))
        before = MailCursor(validity, 0, before.came_s, max(since_s, before.since_s))
    uids = _list_uids_since(mailbox, before.uid)
    while not uids and (left_s := ends_at - time.monotonic()) > 0:
        time.sleep(min(AGAIN_S, left_s))
        mailbox.noop()
        uids = _list_uids_since(mailbox, before.uid)
    if not uids:
        return Polled(inbound=(), cursor=str(before))
    taken = uids[:MAILS_MAX]
    letters = [one for one in _fetch_letters(mailbox, validity, taken) if one.came_at >= before.since_s]
    came_s = max([before.came_s, *(int(min(one.came_at, at.timestamp())) for one in letters)])
    return Polled(
        inbound=tuple(_read_message(mailbox, letter, credentials) for letter in letters),
        cursor=str(MailCursor(validity, taken[-1], came_s, before.since_s)),
        has_more=len(uids) > len(taken),
    )


def _read_message(mailbox: imaplib.IMAP4, letter: Letter, credentials: Credentials) -> InboundMessage:
    try:
        head = mails.read_head(letter, credentials)
        part = letter.text_part if head.is_taken else None
        content = b"" if part is None else read_section(mailbox, letter.uid, part.section, 0, TEXT_BYTES_MAX)
        return mails.read(letter, head, content)
    except UnreadableAnswer:
        raise  # the server's, and not the mail's
    except _UNREADABLE:
        return mails.make_unreadable(letter)


def read_section(mailbox: imaplib.IMAP4, uid: int, number: str, begin: int, length: int) -> bytes:
    """Read bytes of a part of a mail, as it is encoded; empty behind its end, and where there is no such mail."""
    status, said = mailbox.uid("FETCH", str(uid), f"(BODY.PEEK[{number}]<{begin}.{length}>)")
    _require(status, said)
    for items in parse_fetch(said):
        for name, value in items.items():
            if name.startswith("BODY[") and isinstance(value, bytes):
                return value[:length]
    return b""


def _fetch_letters(mailbox: imaplib.IMAP4, validity: int, uids: list[int]) -> list[Letter]:
    asked = f"(UID INTERNALDATE BODYSTRUCTURE BODY.PEEK[HEADER]<0.{HEADER_BYTES_MAX}>)"
    status, said = mailbox.uid("FETCH", ",".join(map(str, uids)), asked)
    _require(status, said)
    found = {}
    for items in parse_fetch(said):
        uid, header = items.get("UID"), items.get("BODY[HEADER]<0>")
        if not isinstance(uid, bytes) or not uid.isdigit() or not isinstance(header, bytes | None):
            continue  # the server tells that flags of another mail changed
        found[int(uid)] = Letter(
            validity=validity,
            uid=int(uid),
            came_at=_parse_arrival(items.get("INTERNALDATE")),
            header=(header or b"")[:HEADER_BYTES_MAX],
            parts=tuple(list_parts(items.get("BODYSTRUCTURE"))),
        )
    return [found[uid] for uid in uids if uid in found]


def _list_uids_since(mailbox: imaplib.IMAP4, uid: int) -> list[int]:
    """List the numbers of the mails behind ``uid``, in order."""
    status, said = mailbox.uid("SEARCH", f"UID {uid + 1}:*")
    _require(status, said)
    numbers = b" ".join(piece for piece in said if isinstance(piece, bytes)).split()
    # ``*`` is the last mail, and a range counts from either end: the last one is always in it.
    return sorted({int(one) for one in numbers if one.isdigit() and int(one) > uid})


def _find_newest(mailbox: imaplib.IMAP4) -> int:
    return max(_list_uids_since(mailbox, 0), default=0)


def _read_number(mailbox: imaplib.IMAP4, name: str) -> int:
    _, said = mailbox.response(name)
    text = said[0] if said and isinstance(said[0], bytes) else b""
    if not text.isdigit():
        raise UnreadableAnswer(f"it does not tell {name}")
    return int(text)


def _parse_arrival(value: Any) -> float:
    try:
        return parsedate_to_datetime(value.decode("ascii").strip().replace("-", " ", 2)).timestamp()
    except (ValueError, TypeError, AttributeError, OverflowError):
        return datetime.now(UTC).timestamp()


def _require(status: str, said: list[Any]) -> None:
    if status != "OK":
        raise UnreadableAnswer(f"{status} {_join_words(said)}")


def _connect(credentials: Credentials) -> imaplib.IMAP4:
    if not (credentials.port.isascii() and credentials.port.isdigit() and 0 < int(credentials.port) < 65536):
        raise MailboxRefused(f"EMAIL_IMAP_PORT is a port from 1 to 65535, not {credentials.port[:20]!r}")
    mode = credentials.tls.lower()
    if mode not in ("implicit", "starttls", "none"):
        raise MailboxRefused(f"EMAIL_IMAP_TLS is one of implicit, starttls, none, not {mode[:20]!r}")
    if mode == "none" and not is_loopback(credentials.host):
        raise MailboxRefused("a password is not sent without TLS; set EMAIL_IMAP_TLS to implicit or starttls")
    context = ssl.create_default_context()
    if mode == "implicit":
        return imaplib.IMAP4_SSL(credentials.host, int(credentials.port), ssl_context=context, timeout=TIMEOUT_S)
    server = imaplib.IMAP4(credentials.host, int(credentials.port), timeout=TIMEOUT_S)
    if mode == "starttls":
        try:
            server.starttls(ssl_context=context)
        except BaseException:
            server.shutdown()
            raise
    return server


def _log_in(server: imaplib.IMAP4, credentials: Credentials) -> None:
    try:
        if "AUTH=PLAIN" in server.capabilities:
            secret = f"\0{credentials.user}\0{credentials.password}".encode()
            server.authenticate("PLAIN", lambda _: secret)
        else:
            server.login(credentials.user, credentials.password)
    except imaplib.IMAP4.abort:
        raise
    except (imaplib.IMAP4.error, UnicodeEncodeError) as error:
        raise MailboxRefused(f"the server does not take the user name or the password: {error}") from None


def _quote(folder: str) -> str:
    escaped = folder.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _join_words(said: list[Any]) -> str:
    return flatten_text(b" ".join(one for one in said if isinstance(one, bytes)).decode("utf-8", "replace"))
