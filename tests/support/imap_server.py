"""A small, strict IMAP4rev1 server for tests (RFC 3501): what our reader asks for, and ``BAD`` for anything else.

It is a stand-in; ``tests/inbound/test_dovecot.py`` plays the same against dovecot.
"""

from __future__ import annotations

import base64
import re
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import Message
from email.utils import collapse_rfc2231_value

USER, PASSWORD = "agent@here.example", "sesame"


@dataclass
class Mailbox:
    """What the server has. Tests change it while it is served."""

    validity: int = 7
    mails: dict[int, bytes] = field(default_factory=dict)
    came: dict[int, str] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    port: int = 0

    def add(self, mail: bytes, came: str = "26-Nov-2026 12:00:00 +0000") -> int:
        uid = max(self.mails, default=0) + 1
        self.mails[uid] = re.sub(rb"\r?\n", b"\r\n", mail)
        self.came[uid] = came
        return uid

    def renumber(self) -> None:
        """The same mails under other numbers."""
        self.validity += 1
        mails, came = list(self.mails.values()), list(self.came.values())
        self.mails = {10 * number: mail for number, mail in enumerate(mails, 1)}
        self.came = {10 * number: when for number, when in enumerate(came, 1)}


@contextmanager
def imap_server(mailbox: Mailbox | None = None) -> Iterator[Mailbox]:
    """Serves on a port of the loopback until it is left."""
    served = mailbox or Mailbox()

    class Handler(_Handler):
        mailbox = served

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        served.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield served
        finally:
            server.shutdown()
            thread.join()


class _Handler(socketserver.StreamRequestHandler):
    mailbox: Mailbox
    disable_nagle_algorithm = True

    def handle(self) -> None:
        self.is_in = self.is_open = False
        self.say(b"* OK ready")
        while line := self.rfile.readline(8_000):
            tag, _, command = line.decode().rstrip("\r\n").partition(" ")
            self.mailbox.commands.append(command)
            if command == "LOGOUT":
                self.say(b"* BYE", f"{tag} OK done".encode())
                return
            self.say(f"{tag} {self.done(command)}".encode())

    def say(self, *lines: bytes) -> None:
        for line in lines:
            self.wfile.write(line + b"\r\n")

    def done(self, command: str) -> str:
        """Does a command; what its tag is answered with."""
        if command == "CAPABILITY":
            self.say(b"* CAPABILITY IMAP4rev1 AUTH=PLAIN")
        elif command == "AUTHENTICATE PLAIN":
            self.say(b"+ ")
            said = base64.b64decode(self.rfile.readline(1_000)).decode()
            self.is_in = said == f"\0{USER}\0{PASSWORD}"
            return "OK in" if self.is_in else "NO [AUTHENTICATIONFAILED] who are you"
        elif command == 'EXAMINE "INBOX"' and self.is_in:
            self.is_open = True
            self.say(
                f"* {len(self.mailbox.mails)} EXISTS".encode(), f"* OK [UIDVALIDITY {self.mailbox.validity}]".encode()
            )
        elif command == "NOOP":
            pass
        elif self.is_open and (asked := re.fullmatch(r"UID SEARCH UID (\d+):\*", command)):
            uids = sorted(self.mailbox.mails)
            found = {uid for uid in uids if uid >= int(asked[1])} | set(uids[-1:])
            self.say(b" ".join((b"* SEARCH", *(str(uid).encode() for uid in sorted(found)))))
        elif self.is_open and (asked := re.fullmatch(r"UID FETCH ([\d,]+) \((.*)\)", command)):
            return self.fetch([int(uid) for uid in asked[1].split(",")], asked[2])
        else:
            self.mailbox.refused.append(command)
            return "BAD unknown"
        return "OK done"

    def fetch(self, uids: list[int], items: str) -> str:
        numbers = {uid: number for number, uid in enumerate(sorted(self.mailbox.mails), 1)}
        for uid in uids:
            if uid in numbers:
                told = [self.item(uid, item) for item in items.split(" ")]
                self.say(b"* %d FETCH (%s)" % (numbers[uid], b" ".join((b"UID %d" % uid, *filter(None, told)))))
        return "OK done"

    def item(self, uid: int, item: str) -> bytes:
        mail = self.mailbox.mails[uid]
        match item:
            case "UID":
                return b""
            case "INTERNALDATE":
                return b'INTERNALDATE "%s"' % self.mailbox.came[uid].encode()
            case "BODYSTRUCTURE":
                return b"BODYSTRUCTURE " + _structure_of(mail)
        asked = re.fullmatch(r"BODY\.PEEK\[([A-Z0-9.]+)\]<(\d+)\.(\d+)>", item)
        assert asked, item
        begin = int(asked[2])
        whole = mail.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" if asked[1] == "HEADER" else _part(mail, asked[1])
        cut = whole[begin : begin + int(asked[3])]
        return b"BODY[%s]<%d> {%d}\r\n%s" % (asked[1].encode(), begin, len(cut), cut)


def _part(mail: bytes, section: str) -> bytes:
    message = message_from_bytes(mail)
    for number in section.split("."):
        if not message.is_multipart():
            break
        message = message.get_payload()[int(number) - 1]
    payload = message.get_payload()
    text = payload if isinstance(payload, str) else ""
    return text.encode("utf-8", "surrogateescape")


def _structure_of(mail: bytes) -> bytes:
    try:
        return structure(message_from_bytes(mail))
    except (TypeError, ValueError, LookupError, AttributeError):
        # What Python's parser breaks on is one plain text to us, as it is to servers.
        return b'("text" "plain" NIL NIL NIL "7bit" 0 1 NIL NIL NIL NIL)'


def structure(message: Message) -> bytes:
    """The ``BODYSTRUCTURE`` of a mail, with the fields that have a use."""
    if message.is_multipart() and message.get_content_maintype() == "multipart":
        inner = b"".join(structure(part) for part in message.get_payload())
        return b"(%s %s NIL NIL NIL NIL)" % (inner, _quoted(message.get_content_subtype()))
    main, sub = message.get_content_maintype(), message.get_content_subtype()
    payload = message.get_payload()
    size = len(payload) if isinstance(payload, str) else 0
    parameters = [(name, _plain(value)) for name, value in (message.get_params() or [])[1:]]
    encoding = str(message.get("Content-Transfer-Encoding", "7bit"))
    fields = [_quoted(main), _quoted(sub), _list(parameters), b"NIL", b"NIL", _quoted(encoding), str(size).encode()]
    if main == "text":
        fields.append(b"1")
    name = message.get_param("filename", header="Content-Disposition")
    kind = message.get_content_disposition()
    disposition = b"(%s %s)" % (_quoted(kind), _list([("filename", _plain(name))] if name else [])) if kind else b"NIL"
    return b"(%s)" % b" ".join((*fields, b"NIL", disposition, b"NIL", b"NIL"))


def _plain(value: object) -> str:
    return collapse_rfc2231_value(value)  # type: ignore[arg-type]


def _list(pairs: list[tuple[str, str]]) -> bytes:
    if not pairs:
        return b"NIL"
    return b"(%s)" % b" ".join(_quoted(name) + b" " + _quoted(value) for name, value in pairs)


def _quoted(text: str) -> bytes:
    """As a literal where it cannot be quoted, as servers do."""
    content = text.encode("utf-8", "surrogateescape")
    if re.search(rb'[\r\n\x00"\\\x80-\xff]', content):
        return b"{%d}\r\n%s" % (len(content), content)
    return b'"%s"' % content
