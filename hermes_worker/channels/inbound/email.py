"""Inbound mail: read what a mail in a mailbox says (RFC 5322, RFC 3834). ``channels.imap`` connects.

A mail is a direct message of its sender, and a thread of mails is a conversation, named by the first mail that the
others refer to. Mail from a program is marked so and not answered; mail that the receiving server did not check has no
sender (``mail_origin``).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import quopri
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from email.message import Message
from email.parser import BytesHeaderParser

from hermes_worker.channels.inbound.mail_origin import find_header, is_automatic, is_proven, list_headers, read_sender
from hermes_worker.channels.inbound.mail_structure import MailPart, decode_text, decode_words
from hermes_worker.channels.inbound.mail_text import extract_html_text, remove_quotes
from hermes_worker.channels.platforms.email import MailThread, is_own_id, write_thread_token
from hermes_worker.core.inbound import InboundChat, InboundMessage, InboundSender, MediaRef

FILES_MAX = 20
"""Most files that are taken of one mail."""
_FILE = re.compile(r"([0-9]{1,10}):([0-9]{1,10}):([0-9.]{1,200}):(.*)", re.DOTALL)
_ID = re.compile(r"<[!-;=?-~]{1,250}>")
_REPLY = re.compile(r"\A(?:(?:re|aw|sv|antw|fwd?|wg)\s*(?:\[\d{1,3}\])?\s*:\s*)+", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    host: str
    address: str
    """Our own address: mail from it is not answered."""
    password: str = field(repr=False)
    authserv_id: str
    """The name under which the server that receives our mail reports what it checked."""
    username: str = ""
    port: str = "993"
    tls: str = "implicit"
    """``implicit``, ``starttls`` or ``none``; a password goes without TLS to this machine only."""
    folder: str = "INBOX"

    @property
    def user(self) -> str:
        return self.username or self.address


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A mail, as far as it was read from the server."""

    validity: int
    """With ``uid`` it names the mail in its mailbox."""
    uid: int
    came_at: float
    """Epoch seconds, by the server's clock."""
    header: bytes = field(repr=False)
    parts: tuple[MailPart, ...] = ()

    @property
    def text_part(self) -> MailPart | None:
        """The part that holds the written text."""
        texts = [part for part in self.parts if not part.is_file]
        plain = [part for part in texts if part.media_type == "text/plain"]
        return next(iter(plain or [part for part in texts if part.media_type == "text/html"]), None)


@dataclass(frozen=True, slots=True)
class MailFile:
    """The place of a file in a mail."""

    validity: int
    uid: int
    section: str
    encoding: str

    def __str__(self) -> str:
        return f"{self.validity}:{self.uid}:{self.section}:{self.encoding}"

    @classmethod
    def parse(cls, text: str) -> MailFile | None:
        found = _FILE.fullmatch(text)
        return None if found is None else cls(int(found[1]), int(found[2]), found[3], found[4])


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterHead:
    """The sender of a mail, and whether the mail may have an effect."""

    mail: Message = field(repr=False)
    address: str
    name: str
    is_automatic: bool
    is_proven: bool

    @property
    def is_taken(self) -> bool:
        return self.is_proven and not self.is_automatic


def read_head(letter: Letter, credentials: Credentials) -> LetterHead:
    mail = BytesHeaderParser().parsebytes(letter.header)
    address, name = read_sender(mail)
    ours = credentials.address.lower()
    is_ours = address == ours or is_own_id(_read_id(mail, "message-id"), ours.rpartition("@")[2])
    return LetterHead(
        mail=mail,
        address=address,
        name=name,
        is_automatic=is_ours or is_automatic(mail, address),
        is_proven=is_proven(mail, address, credentials.authserv_id),
    )


def read(letter: Letter, head: LetterHead, content: bytes) -> InboundMessage:
    """Read a mail. ``content`` is its ``text_part``, as it is encoded; it may be cut."""
    mail, part = head.mail, letter.text_part
    written = _extract_text(part, content) if part is not None and head.is_taken else ""
    own = _read_id(mail, "message-id")
    root = (
        next(iter(_read_ids(find_header(mail, "references")) or _read_ids(find_header(mail, "in-reply-to"))), "") or own
    )
    subject = _REPLY.sub("", decode_words(find_header(mail, "subject")))
    thread = MailThread(root=root, answers=own or root, subject=subject) if root else None
    begins = not find_header(mail, "references") and not find_header(mail, "in-reply-to")
    if subject and begins and not written.startswith("/"):
        written = f"Subject: {subject}\n\n{written}"
    return InboundMessage(
        event_key=_make_key(letter, mail, content),
        text=written,
        media=_list_files(letter) if head.is_taken else (),
        message_id=own,
        chat=InboundChat(
            id=head.address,
            thread=hashlib.sha256(root.encode()).hexdigest()[:24] if root else "",
            answered_as="" if thread is None else write_thread_token(thread),
        ),
        sender=InboundSender(id=head.address if head.is_proven else "", name=head.name, is_bot=head.is_automatic),
        sent_at=letter.came_at,
    )


def make_unreadable(letter: Letter) -> InboundMessage:
    """Make the message for a mail that cannot be read: it is recorded, and the mails behind it are taken."""
    key = f"mail:{hashlib.sha256(letter.header).hexdigest()}"
    return InboundMessage(event_key=key, chat=InboundChat(id=""), sender=InboundSender(id=""), sent_at=letter.came_at)


def decode_pieces(pieces: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    """Decode a part that comes in pieces from its transfer encoding. Total."""
    left = b""
    for piece in pieces:
        whole = left + (re.sub(rb"[^A-Za-z0-9+/=]", b"", piece) if encoding == "base64" else piece)
        ends = len(whole)
        if encoding == "base64":
            ends -= ends % 4
        elif encoding == "quoted-printable" and (begun := whole.rfind(b"=", max(0, ends - 2))) >= 0:
            ends = begun  # an escape has three characters
        yield decode_part(whole[:ends], encoding)
        left = whole[ends:]
    yield decode_part(left, encoding)


def decode_part(content: bytes, encoding: str) -> bytes:
    """Decode a part from its transfer encoding; a part that was cut, up to where that is possible. Total."""
    match encoding:
        case "base64":
            signs = re.sub(rb"[^A-Za-z0-9+/]", b"", content.partition(b"=")[0])
            whole = signs[: len(signs) - (len(signs) % 4 == 1)]
            try:
                return base64.b64decode(whole + b"=" * (-len(whole) % 4))
            except binascii.Error:
                return b""
        case "quoted-printable":
            return quopri.decodestring(content)
        case _:
            return content


def _extract_text(part: MailPart, content: bytes) -> str:
    text = decode_text(decode_part(content, part.encoding), part.charset).replace("\0", "")
    return remove_quotes(extract_html_text(text) if part.media_type == "text/html" else text)


def _make_key(letter: Letter, mail: Message, content: bytes) -> str:
    """Make the key of a mail: the same when it comes twice, or the mailbox was made anew. A mail without an id of its
    own is known by everything that the servers on its way wrote."""
    if own := _read_id(mail, "message-id"):
        known = [own, *(value for name in ("from", "date", "subject") for value in list_headers(mail, name))]
        told = "\0".join(known).encode("utf-8", "replace") + b"\0" + content
    else:
        told = letter.header + content
    return f"mail:{hashlib.sha256(told).hexdigest()}"


def _list_files(letter: Letter) -> tuple[MediaRef, ...]:
    files = [part for part in letter.parts if part.is_file][:FILES_MAX]
    return tuple(
        MediaRef.from_platform(
            str(MailFile(letter.validity, letter.uid, part.section, part.encoding)),
            media_type=part.media_type,
            name=part.name,
            size=_compute_decoded_size(part),
        )
        for part in files
    )


def _compute_decoded_size(part: MailPart) -> int | None:
    if part.size_bytes is None:
        return None
    return part.size_bytes * 73 // 100 if part.encoding == "base64" else part.size_bytes


def _read_id(mail: Message, name: str) -> str:
    return next(iter(_read_ids(find_header(mail, name))), "")


def _read_ids(text: str) -> list[str]:
    return _ID.findall(text)
