"""Mails as a receiving server leaves them in a mailbox."""

from __future__ import annotations

from email.message import EmailMessage
from random import Random

from hermes_worker.channels.inbound.email import Credentials
from support.imap_server import PASSWORD, USER

AUTHSERV = "mx.here.example"
PASSED = f"{AUTHSERV}; spf=pass smtp.mailfrom=ada@there.example; dmarc=pass (p=none) header.from=there.example"


def account(port: int, **more: str) -> Credentials:
    given = {"host": "127.0.0.1", "address": USER, "password": PASSWORD, "authserv_id": AUTHSERV, "tls": "none"}
    return Credentials(**(given | {"port": str(port)} | more))


def mail(text: str = "hello", *, results: str | None = PASSED, html: str | None = None, **headers: str) -> EmailMessage:
    """A mail of Ada's. ``headers`` by their names with ``_`` for ``-``; an empty one is left out."""
    said = {
        "From": "Ada L <ada@there.example>",
        "To": USER,
        "Subject": "A question",
        "Message-ID": "<1@there.example>",
        "Date": "Thu, 26 Nov 2026 12:00:00 +0000",
    } | {name.replace("_", "-"): value for name, value in headers.items()}
    made = EmailMessage()
    if results is not None:
        made["Authentication-Results"] = results
    for name, value in said.items():
        if value:
            made[name] = value
    made.set_content(text)
    if html is not None:
        made.add_alternative(html, subtype="html")
    return made


def malformed(random: Random, count: int) -> list[bytes]:
    """Mails that break rules: cut, with bytes changed, put together of halves, and made wrong on purpose."""
    whole = [
        mail(html="<p>hello</p>").as_bytes(),
        mail(References="<0@there.example>", Subject="=?utf-8?q?caf=C3=A9?=").as_bytes(),
        _with_file().as_bytes(),
    ]
    worst = [
        b"",
        b"\0" * 100,
        b"From: \xff\xfe <ada@there.example>\nSubject: =?x?q?\xff?=\n\n\x80",
        b'Content-Type: multipart/mixed; boundary=""\n\n--\n--\n----\n',
        b'Content-Type: text/plain; charset="idna"\n\n' + b"a." * 5_000,
        b"Content-Type: text/plain; charset*=utf-8''%ff; charset*0*=x\n\nx",
        b"From: " + b"(" * 3_000 + b"\n\nx",
        b"From: " + b"a@b.example, " * 3_000 + b"\n\nx",
        b"Subject: " + b"=?utf-8?b?" * 3_000 + b"\n\nx",
        b"Authentication-Results: " + b"(;" * 2_000 + b"\n\nx",
        b"References: " + b"<a@b>" * 10_000 + b"\n\nx",
        b"Message-ID: <\r\nX: y>\n\nx",
        b"Content-Type: multipart/mixed; boundary=b\n\n" + b"--b\nContent-Type: multipart/mixed; boundary=b\n\n" * 200,
        b"Date: Thu, 99 Nov 999999 99:99:99 +9999\nFrom: ada@there.example\n\nx",
        b'Content-Disposition: attachment; filename="../../x\0\xe2\x80\xae.png"\nContent-Type: image/png\n\nx',
    ]
    made = [*worst]
    while len(made) < count:
        one = bytearray(random.choice(whole))
        match random.randrange(3):
            case 0:
                del one[random.randrange(len(one)) :]
            case 1:
                for _ in range(random.randrange(1, 30)):
                    one[random.randrange(len(one))] = random.randrange(256)
            case _:
                other = random.choice(whole)
                one[random.randrange(len(one)) :] = other[random.randrange(len(other)) :]
        made.append(bytes(one))
    return made[:count]


def _with_file() -> EmailMessage:
    made = mail()
    made.add_attachment(b"\x89PNG\r\n\x1a\n" + b"x" * 50, maintype="image", subtype="png", filename="plan.png")
    return made
