"""What every platform whose files are fetched promises, whatever its name: from its event to the workspace."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from support.file_cases import FILE_CASES, PlatformServer
from support.file_chat import BYTES_MAX, FileChat, file_chat
from support.imap_server import PASSWORD, USER, Mailbox, imap_server
from support.inbound_cases import AT
from support.mails import AUTHSERV, account, mail
from support.patience import PATIENCE_S
from support.samples import take_turns
from support.sent_files import (
    Answer,
    compressed,
    endless,
    huge_picture,
    office_bomb,
    picture,
    plain,
    redirected,
    silent,
    zip_bomb,
)

from hermes_worker.channels import imap
from hermes_worker.channels.catalog import list_platforms
from hermes_worker.channels.downloads import FileDownloader, NoFile
from hermes_worker.channels.inbound.email import decode_part, decode_pieces
from hermes_worker.channels.inbound.receiving import Polled
from hermes_worker.core.effects import Prepare
from hermes_worker.core.inbound import InboundMessage, MediaRef
from hermes_worker.core.media_kinds import MediaKind
from hermes_worker.workspaces.local import LocalWorkspace

NAMES = sorted(FILE_CASES)
EMAIL_SETTINGS = {
    "EMAIL_IMAP_HOST": "127.0.0.1",
    "EMAIL_IMAP_TLS": "none",
    "EMAIL_ADDRESS": USER,
    "EMAIL_PASSWORD": PASSWORD,
    "EMAIL_AUTHSERV_ID": AUTHSERV,
}


def test_every_platform_whose_files_are_fetched_has_a_case() -> None:
    given = {name for name, row in list_platforms().items() if row.receiving is not None and row.receiving.gives_files}
    assert given == {*FILE_CASES, "email", "discord"}


def brought(platform: str, url: str) -> tuple[InboundMessage, MediaRef]:
    [event] = FILE_CASES[platform].brings(url)
    assert isinstance(event, InboundMessage)
    [media] = event.media
    return event, media


def fetched(platform: str, content: Answer, *, bytes_max: int = BYTES_MAX, total_s: float = 5.0) -> bytes | NoFile:
    """What is had when the platform answers so."""
    case = FILE_CASES[platform]
    with PlatformServer(case, content) as server:
        _, media = brought(platform, server.url)
        downloader = FileDownloader(values=case.values_at(server.url), bytes_max=bytes_max, total_s=total_s)
        into = BytesIO()
        missing = downloader.fetch(f"{platform}:default", media, into)
    return into.getvalue() if missing is None else missing


@contextmanager
def chat_on(
    platform: str, server: PlatformServer, tmp_path: Path, broker_url: str, **values: str
) -> Iterator[FileChat]:
    own = FILE_CASES[platform].values_at(server.url)
    with file_chat(tmp_path, broker_url, {"GATEWAY_ALLOWED_USERS": "*", **own, **values}, total_s=5.0) as chat:
        yield chat


# --- what comes, what is asked, and what lands -----------------------------------------------------------------------


@pytest.mark.parametrize("platform", NAMES)
def test_a_file_lands_in_the_workspace_of_its_turn(platform: str, tmp_path: Path, broker_url: str) -> None:
    case, content = FILE_CASES[platform], b"a,b\n1,2\n"
    with (
        PlatformServer(case, content) as server,
        chat_on(platform, server, tmp_path, broker_url) as chat,
    ):
        event, media = brought(platform, server.url)
        assert (media.kind, media.name) == (case.kind, case.name)
        assert chat.take(platform, event) == "run"
        assert server.requests == [], "who listens fetches nothing"
        chat.fetch()
        assert len(server.fetched) == 1
        assert server.fetched[0].header("authorization") == case.authorization
        # More may follow a picture without words.
        begun = chat.parts.sender.hints or chat.gathered()  # type: ignore[attr-defined]
        [placed] = chat.placed()
        assert placed.content == content
        assert f'text/plain, 8 bytes; in your workspace as "{placed.path}"' in chat.text()
        assert [type(hint.effect) for hint in begun] == [Prepare]


@pytest.mark.parametrize("platform", NAMES)
def test_a_picture_is_shown_to_the_model(platform: str, tmp_path: Path, broker_url: str) -> None:
    with (
        PlatformServer(FILE_CASES[platform], picture()) as server,
        chat_on(platform, server, tmp_path, broker_url) as chat,
    ):
        event, _ = brought(platform, server.url)
        chat.take(platform, event)
        chat.fetch()
        chat.gathered()
        [_, shown] = chat.content()
        assert shown["image_url"]["url"].startswith("data:image/png;base64,")


# --- what is hostile -------------------------------------------------------------------------------------------------

HOSTILE: dict[str, tuple[Answer, str]] = {
    "1 GB": (endless, "it has more than 1 MiB"),
    "a body that is shorter than it says": (plain(b"short", length=5_000), "it ended before it was whole"),
    "a body that never comes": (silent, "the platform did not send it in time"),
    "a compressed body": (compressed, "the platform sent it compressed, and nothing is unpacked"),
    "a redirect inward": (redirected, "the platform named an address that is not asked"),
    "a file that is gone": (lambda reply: reply.document(404, {}), "the platform does not have it any more"),
    "a token that is refused": (lambda reply: reply.document(401, {}), "the platform refused our credentials"),
    "a flood limit": (lambda reply: reply.document(429, {}), "the platform is too busy"),
    "a server that is down": (lambda reply: reply.document(503, {}), "the platform could not be reached"),
    "a file that is still prepared": (lambda reply: reply.document(202, {}), "the platform still prepares it"),
    "a connection that is cut": (lambda reply: reply.reset(), "the platform did not send it in time"),
}
MAY_PASS = {
    "a body that is shorter than it says",
    "a body that never comes",
    "a flood limit",
    "a server that is down",
    "a file that is still prepared",
    "a connection that is cut",
}


@pytest.mark.parametrize(("platform", "what"), take_turns(NAMES, list(HOSTILE)))
def test_a_hostile_answer_is_no_file(platform: str, what: str) -> None:
    content, reason = HOSTILE[what]
    found = fetched(platform, content, total_s=1.0 if content is silent else PATIENCE_S)
    assert isinstance(found, NoFile)
    assert (found.reason, found.may_pass) == (reason, what in MAY_PASS)


@pytest.mark.parametrize("platform", NAMES)
def test_a_file_may_have_as_many_bytes_as_are_allowed_and_not_one_more(platform: str) -> None:
    whole = os.urandom(100_000)
    assert fetched(platform, whole, bytes_max=100_000) == whole
    found = fetched(platform, whole, bytes_max=99_999)
    assert isinstance(found, NoFile)
    assert found.reason.startswith("it has more than ")


HOSTILE_CONTENTS = {
    "a zip bomb": (zip_bomb, "application/zip"),
    "a docx bomb": (partial(office_bomb, "word/document.xml"), "application/zip"),
    "an xlsx bomb": (partial(office_bomb, "xl/worksheets/sheet1.xml"), "application/zip"),
    "a page that says it is a PDF": (lambda: b"<script>alert(1)</script>", "text/plain"),
    "a program that says it is a PDF": (lambda: b"\x7fELF" + bytes(100), "application/x-executable"),
}


@pytest.mark.parametrize("what", HOSTILE_CONTENTS)
@pytest.mark.parametrize("platform", ["slack", "email", "wecom_callback"])
def test_a_hostile_content_is_kept_as_it_is_and_called_what_it_is(
    platform: str, what: str, tmp_path: Path, broker_url: str
) -> None:
    make, media_type = HOSTILE_CONTENTS[what]
    content = make()
    with sent(platform, content, "plan.pdf", tmp_path, broker_url) as chat:
        chat.fetch()
        assert f'"plan.pdf": {media_type}, {len(content):,} bytes' in chat.text()
        [placed] = chat.placed()
        assert placed.content == content


@pytest.mark.parametrize("platform", ["slack", "email", "wecom_callback"])
def test_a_picture_of_200_megapixels_is_not_decoded(platform: str, tmp_path: Path, broker_url: str) -> None:
    with sent(platform, huge_picture(), "big.png", tmp_path, broker_url) as chat:
        chat.fetch()
        chat.gathered()
        assert "could not be had, because it is no picture that can be read" in chat.text()
        assert chat.placed() == []


@pytest.mark.parametrize("name", ["../../.ssh/authorized_keys", "a\0b.txt", "fdp.\u202etxt.exe", ".env", "/etc/passwd"])
@pytest.mark.parametrize("platform", ["slack", "email"])
def test_a_hostile_name_stays_inside_of_the_workspace(
    platform: str, name: str, tmp_path: Path, broker_url: str
) -> None:
    with sent(platform, b"content", name, tmp_path, broker_url) as chat:
        chat.fetch()
        [placed] = chat.placed()
    root = tmp_path / "workspace"
    root.mkdir()
    LocalWorkspace(str(root), base_env={}, hermes_home="").write_bytes(placed.path, placed.content)
    [written] = [one for one in tmp_path.rglob("*") if one.is_file() and one.read_bytes() == b"content"]
    assert written.parent == root / "inbox"
    assert not written.name.startswith(".")
    assert "\u202e" not in written.name


@contextmanager
def sent(platform: str, content: bytes, name: str, tmp_path: Path, broker_url: str) -> Iterator[FileChat]:
    """Somebody has sent a file of this name, and it is not fetched yet."""
    if platform == "email":
        with imap_server() as mailbox:
            event = mailed(mailbox, content)
            [media] = event.media
            values = {**EMAIL_SETTINGS, "EMAIL_IMAP_PORT": str(mailbox.port), "GATEWAY_ALLOWED_USERS": "*"}
            with file_chat(tmp_path, broker_url, values, total_s=5.0) as chat:
                assert chat.take(platform, replace(event, media=(replace(media, name=name),))) == "run"
                yield chat
        return
    with PlatformServer(FILE_CASES[platform], content) as server:
        event, media = brought(platform, server.url)
        named = replace(event, media=(replace(media, name=name),))
        with chat_on(platform, server, tmp_path, broker_url) as chat:
            assert chat.take(platform, named) == "run"
            yield chat


# --- parts of mails --------------------------------------------------------------------------------------------------


def with_file(content: bytes, *, encoding: str = "base64", is_inline: bool = False) -> bytes:
    """A mail with a file, or with a picture among its text."""
    made = mail("look at this")
    if is_inline:
        made.add_related(content, "image", "png", cid="<p1>", filename="plan.pdf", cte=encoding)
    else:
        made.add_attachment(content, "application", "pdf", filename="plan.pdf", cte=encoding)
    return made.as_bytes()


def mailed(mailbox: Mailbox, content: bytes, **how: Any) -> InboundMessage:
    """A mail with a file comes; what is heard of it."""
    credentials = account(mailbox.port)
    first = imap.fetch("", credentials, AT, 0.0)
    assert isinstance(first, Polled)
    mailbox.add(with_file(content, **how))
    found = imap.fetch(first.cursor, credentials, AT, 0.0)
    assert isinstance(found, Polled), found
    [message] = found.inbound
    assert isinstance(message, InboundMessage)
    return message


def read_from(mailbox: Mailbox, media: MediaRef, *, bytes_max: int = BYTES_MAX, total_s: float = 5.0) -> bytes | NoFile:
    values = {**EMAIL_SETTINGS, "EMAIL_IMAP_PORT": str(mailbox.port)}
    into = BytesIO()
    downloader = FileDownloader(values=values, bytes_max=bytes_max, total_s=total_s)
    missing = downloader.fetch("email:default", media, into)
    return into.getvalue() if missing is None else missing


@pytest.mark.parametrize("is_inline", [False, True])
def test_a_file_of_a_mail_lands_in_the_workspace(is_inline: bool, tmp_path: Path, broker_url: str) -> None:
    with imap_server() as mailbox:
        event = mailed(mailbox, picture(), is_inline=is_inline)
        [media] = event.media
        assert (media.name, event.text) == ("plan.pdf", "Subject: A question\n\nlook at this")
        values = {**EMAIL_SETTINGS, "EMAIL_IMAP_PORT": str(mailbox.port), "GATEWAY_ALLOWED_USERS": "*"}
        with file_chat(tmp_path, broker_url, values, total_s=5.0) as chat:
            chat.take("email", event)
            chat.fetch()
            [placed] = chat.placed()
            [_, shown] = chat.content()
        assert placed.content == picture()
        assert shown["image_url"]["url"].startswith("data:image/png;base64,")
        assert not mailbox.refused
        assert not [one for one in mailbox.commands if "BODY[" in one], "nothing is marked as read"


@pytest.mark.parametrize("encoding", ["base64", "quoted-printable"])
def test_a_file_of_a_mail_is_read_in_pieces(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imap, "PIECE_BYTES", 1_000)
    content = bytes(range(256)) * 40
    with imap_server() as mailbox:
        [media] = mailed(mailbox, content, encoding=encoding).media
        found = read_from(mailbox, media)
        pieces = [one for one in mailbox.commands if re.search(r"BODY\.PEEK\[2\]", one)]
    assert found == content
    assert len(pieces) > 10


def test_no_more_of_a_mail_is_read_than_a_file_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imap, "PIECE_BYTES", 10_000)
    with imap_server() as mailbox:
        [media] = mailed(mailbox, bytes(1_000_000)).media
        found = read_from(mailbox, media, bytes_max=20_000)
        pieces = [one for one in mailbox.commands if "BODY.PEEK[2]" in one]
    assert isinstance(found, NoFile)
    assert found.reason.startswith("it has more than")
    assert len(pieces) == 4, "whether it is there, and three pieces"


def test_a_mail_server_that_takes_too_long_is_asked_again() -> None:
    with imap_server() as mailbox:
        [media] = mailed(mailbox, b"first").media
        found = read_from(mailbox, media, total_s=0.0)
    assert isinstance(found, NoFile)
    assert (found.reason, found.may_pass) == ("the platform did not send it in time", True)


def test_a_file_of_a_mailbox_that_was_numbered_anew_is_not_taken_for_another() -> None:
    with imap_server() as mailbox:
        [media] = mailed(mailbox, b"first").media
        mailbox.renumber()
        found = read_from(mailbox, media)
    assert isinstance(found, NoFile)
    assert (found.reason, found.may_pass) == ("the platform does not have it any more", False)


def test_a_file_of_a_mail_that_was_deleted_is_empty_handed() -> None:
    with imap_server() as mailbox:
        [media] = mailed(mailbox, b"first").media
        mailbox.mails.clear()
        found = read_from(mailbox, media)
    assert isinstance(found, NoFile)
    assert found.reason == "the platform does not have it any more"


@pytest.mark.parametrize("place", ["", "7:1:2", "7:1:2) BODY[] (:base64", "7:1:../2:base64", "x:1:2:base64"])
def test_what_is_no_place_in_a_mail_is_not_asked_for(place: str) -> None:
    with imap_server() as mailbox:
        mailed(mailbox, b"first")
        before = len(mailbox.commands)
        found = read_from(mailbox, MediaRef(kind=MediaKind.DOCUMENT, id=place))
        assert isinstance(found, NoFile)
        assert len(mailbox.commands) == before


def test_a_mail_server_that_is_away_is_asked_again() -> None:
    with imap_server() as mailbox:
        [media] = mailed(mailbox, b"first").media
    found = read_from(mailbox, media)
    assert isinstance(found, NoFile)
    assert (found.reason, found.may_pass) == ("the platform could not be reached", True)


@pytest.mark.parametrize("encoding", ["base64", "quoted-printable", "8bit", "x-unknown"])
def test_pieces_of_a_part_are_decoded_as_the_whole_of_it_is(encoding: str) -> None:
    content = b"a=3Db=\r\nc,ZGVm\r\nQUJD" * 20
    whole = decode_part(content, encoding)
    for size in (1, 2, 3, 5, 7, 64):
        pieces = [content[at : at + size] for at in range(0, len(content), size)]
        if encoding != "base64":
            assert b"".join(decode_pieces(pieces, encoding)) == whole
    encoded = base64.encodebytes(bytes(range(256)) * 3)
    for size in (1, 2, 3, 5, 7, 64):
        pieces = [encoded[at : at + size] for at in range(0, len(encoded), size)]
        assert b"".join(decode_pieces(pieces, "base64")) == bytes(range(256)) * 3
