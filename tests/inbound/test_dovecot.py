"""Mail with a server of the real kind: dovecot, which the test starts."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from support.commandline import wait_for
from support.imap_server import PASSWORD, USER
from support.mails import account, mail, malformed
from support.patience import PATIENCE_S

from hermes_worker.channels.errors import DeliveryError, SendErrorKind
from hermes_worker.channels.file_addresses import FileSink
from hermes_worker.channels.imap import MailCursor, fetch, open_mailbox, read_file
from hermes_worker.channels.inbound.email import Credentials
from hermes_worker.channels.inbound.receiving import Polled
from hermes_worker.core.inbound import InboundMessage

needs_dovecot = pytest.mark.machine  # the package dovecot-imapd, and root to let it serve an account

CONFIGURATION = """
protocols = imap
base_dir = {home}/run
state_dir = {home}/run
log_path = {home}/log
ssl = no
disable_plaintext_auth = no
first_valid_uid = 1
mail_location = maildir:{home}/mail
listen = 127.0.0.1
service imap-login {{
  chroot =
  inet_listener imap {{
    port = {port}
  }}
  inet_listener imaps {{
    port = 0
  }}
}}
service anvil {{
  chroot =
}}
service stats {{
  chroot =
}}
passdb {{
  driver = static
  args = password={password}
}}
userdb {{
  driver = static
  args = uid=nobody gid=nogroup home={home}
}}
"""


class Served(NamedTuple):
    """A mailbox that dovecot serves."""

    account: Credentials
    folder: Path

    def put(self, content: bytes, came: datetime | None = None) -> None:
        """As a mail server would."""
        Served.count += 1  # type: ignore[attr-defined]
        name = f"{1_700_000_000 + Served.count}.M{Served.count}.host"  # type: ignore[attr-defined]
        draft = self.folder / "tmp" / name
        draft.write_bytes(content)
        if came is not None:
            os.utime(draft, (came.timestamp(), came.timestamp()))
        draft.rename(self.folder / "new" / name)

    def look(self, cursor: str) -> Polled:
        found = fetch(cursor, self.account, datetime.now(UTC), 0)
        assert isinstance(found, Polled), found
        return found

    def read(self, cursor: str) -> tuple[list[InboundMessage], str]:
        """Everything behind ``cursor``."""
        messages: list[InboundMessage] = []
        while True:
            found = self.look(cursor)
            messages += [one for one in found.inbound if isinstance(one, InboundMessage)]
            cursor = found.cursor
            if not found.has_more:
                return messages, cursor

    def renumber(self) -> None:
        """As after a mailbox was restored: dovecot numbers it anew, by the second in which it does."""
        numbered = MailCursor.parse(self.look("").cursor)
        assert numbered is not None
        wait_for(lambda: time.time() >= numbered.validity + 1)
        for path in self.folder.glob("dovecot*"):
            path.unlink()


Served.count = 0  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def dovecot() -> Iterator[Served]:
    program = shutil.which("dovecot", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        pytest.skip("dovecot is not installed (package dovecot-imapd)")
    home = Path(tempfile.mkdtemp(prefix="dovecot-"))  # pytest's own folders are closed to dovecot's users
    home.chmod(0o755)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name in ("run", "mail/tmp", "mail/new", "mail/cur"):
        (home / name).mkdir(parents=True)
    for folder in (home / "mail", *(home / "mail").iterdir()):
        shutil.chown(folder, "nobody", "nogroup")
    (home / "dovecot.conf").write_text(CONFIGURATION.format(home=home, port=port, password=PASSWORD))
    process = subprocess.Popen([program, "-F", "-c", str(home / "dovecot.conf")], stderr=subprocess.PIPE)
    served = Served(account(port), home / "mail")
    try:
        ends_at = time.monotonic() + PATIENCE_S
        while isinstance(found := fetch("", served.account, datetime.now(UTC), 0), DeliveryError):
            assert process.poll() is None, process.stderr and process.stderr.read()
            log = home / "log"
            assert time.monotonic() < ends_at, (found, log.read_text() if log.exists() else "")
            time.sleep(0.1)
        yield served
    finally:
        process.terminate()
        process.wait(30)
        shutil.rmtree(home)


@needs_dovecot
def test_mails_are_read_from_where_we_were_and_nothing_is_marked(dovecot: Served):
    start = dovecot.look("").cursor
    made = mail("hello", html="<p>hello</p>")
    made.add_attachment(
        b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40, maintype="image", subtype="png", filename="é.png"
    )
    dovecot.put(made.as_bytes())
    (message,), cursor = dovecot.read(start)
    assert (message.text, message.sender.id) == ("Subject: A question\n\nhello", "ada@there.example")
    assert [(one.name, one.media_type) for one in message.media] == [("é.png", "image/png")]
    into = BytesIO()
    sink = FileSink(into=into, bytes_max=1_000_000, ends_at=time.monotonic() + 30)
    assert read_file(message.media[0], dovecot.account, sink) is None
    assert into.getvalue() == b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40
    with open_mailbox(dovecot.account) as server:
        uid = message.media[0].id.split(":")[1]
        assert server.uid("SEARCH", "UNSEEN")[1][0].split()[-1] == uid.encode()
    assert dovecot.read(cursor) == ([], cursor)


@needs_dovecot
def test_a_mailbox_that_was_numbered_anew_brings_the_same_keys(dovecot: Served):
    start = dovecot.look("").cursor
    for number in range(3):
        dovecot.put(mail(Message_ID=f"<renumbered-{number}@there.example>").as_bytes())
    before, cursor = dovecot.read(start)
    dovecot.renumber()
    dovecot.put(mail(Message_ID="<renumbered-3@there.example>").as_bytes())
    after, then = dovecot.read(cursor)
    first, second = MailCursor.parse(cursor), MailCursor.parse(then)
    assert first is not None
    assert second is not None
    assert first.validity != second.validity
    assert {one.event_key for one in before} <= {one.event_key for one in after}
    assert "<renumbered-3@there.example>" in {one.message_id for one in after}


@needs_dovecot
def test_300_malformed_mails_stop_nothing(dovecot: Served):
    start = dovecot.look("").cursor
    for one in malformed(Random(21), 300):
        dovecot.put(one)
    dovecot.put(mail("after", Message_ID="<last@there.example>").as_bytes())
    messages, _ = dovecot.read(start)
    assert len(messages) == 301
    assert messages[-1].text.endswith("after")


@pytest.mark.slow  # and the same package
@pytest.mark.timeout(900)
def test_5_000_mails_are_read_once_each_and_in_order(dovecot: Served):
    start = dovecot.look("").cursor
    one = mail("a number", Message_ID="<many-NUMBER@there.example>").as_bytes()
    for number in range(5_000):
        dovecot.put(one.replace(b"NUMBER", str(number).encode()))
    messages, _ = dovecot.read(start)
    assert [one.message_id for one in messages] == [f"<many-{number}@there.example>" for number in range(5_000)]


@needs_dovecot
def test_a_wrong_password_is_told_as_one(dovecot: Served):
    refused = fetch("", account(int(dovecot.account.port), password="wrong"), datetime.now(UTC), 0)
    assert isinstance(refused, DeliveryError)
    assert refused.kind is SendErrorKind.AUTH
    assert dovecot.account.user == USER
