"""How the platforms' own modules ask for a file, and that whoever asks goes nowhere else."""

from __future__ import annotations

from typing import Any

import pytest
from support.fault_server import FaultServer, Received, Reply
from support.inbound_cases import matrix_event

from hermes_worker.channels.downloading import FileDownloader, NoFile
from hermes_worker.channels.inbound import discord_gateway, matrix
from hermes_worker.channels.inbound.discord import Credentials as DiscordCredentials
from hermes_worker.channels.inbound.receiving import PublicFile
from hermes_worker.core.inbound import InboundMessage, MediaRef
from hermes_worker.core.media_kinds import MediaKind
from hermes_worker.net.urls import UnsafeUrl, UrlPolicy, check_url


def media(place: str) -> MediaRef:
    return MediaRef(kind=MediaKind.DOCUMENT, id=place)


def asked(platform: str, place: str, **values: str) -> tuple[bytes | NoFile, list[Received]]:
    """What is had of a server that has every file."""

    def answer(request: Received, reply: Reply) -> None:
        reply.document(200, b"content", content_type="text/plain")

    with FaultServer(answer) as server:
        url = server.base_url.removesuffix("/v1")
        own = {name: url if value == "URL" else value for name, value in values.items()}
        found = FileDownloader(values=own, bytes_max=100, total_s=5.0).fetch(f"{platform}:default", media(place))
    return found, server.requests


@pytest.mark.parametrize(
    ("platform", "place", "values", "path"),
    [
        (
            "mattermost",
            "f1abc",
            {"MATTERMOST_URL": "URL", "MATTERMOST_TOKEN": "t1"},
            "/api/v4/files/f1abc",
        ),
        (
            "mattermost",
            "../users/me",
            {"MATTERMOST_URL": "URL", "MATTERMOST_TOKEN": "t1"},
            "/api/v4/files/..%2Fusers%2Fme",
        ),
        (
            "matrix",
            "mxc://example.org/AbC_1",
            {"MATRIX_HOMESERVER": "URL", "MATRIX_ACCESS_TOKEN": "t1"},
            "/_matrix/client/v1/media/download/example.org/AbC_1",
        ),
    ],
)
def test_a_file_is_asked_for_with_the_token_of_the_account(
    platform: str, place: str, values: dict[str, str], path: str
) -> None:
    found, [request] = asked(platform, place, **values)
    assert found == b"content"
    assert request.head.startswith(f"GET {path} HTTP/1.1")
    assert request.header("authorization") == "Bearer t1"


@pytest.mark.parametrize("place", ["https://evil.example/a.png", "mxc://example.org/../x", "mxc://a", ""])
def test_an_address_that_is_none_of_matrix_is_not_asked(place: str) -> None:
    found, requests = asked("matrix", place, MATRIX_HOMESERVER="URL", MATRIX_ACCESS_TOKEN="t1")
    assert isinstance(found, NoFile)
    assert requests == []


def test_an_attachment_of_discord_is_had_from_its_cdn_without_the_token() -> None:
    place = "https://cdn.discordapp.com/attachments/1/2/a.png?ex=1&is=2&hm=3"
    with pytest.raises(StopIteration) as end:
        next(discord_gateway.download(media(place), DiscordCredentials(token="t1")))
    found = end.value.value
    assert isinstance(found, PublicFile)
    assert (found.request.url, dict(found.request.headers)) == (place, {})
    with pytest.raises(UnsafeUrl):
        check_url(place, ["169.254.169.254"], UrlPolicy())


@pytest.mark.parametrize(
    "place",
    [
        "http://cdn.discordapp.com/a",
        "https://cdn.discordapp.com.evil.example/a",
        "https://evil.example/cdn.discordapp.com",
        "https://cdn.discordapp.com@127.0.0.1/a",
        "file:///etc/passwd",
    ],
)
def test_no_other_address_is_taken_for_discords(place: str) -> None:
    found, requests = asked("discord", place, DISCORD_BOT_TOKEN="t1", DISCORD_BASE_URL="URL")
    assert isinstance(found, NoFile)
    assert requests == []


def test_what_is_missing_here_is_said() -> None:
    found, requests = asked("matrix", "mxc://example.org/a", MATRIX_HOMESERVER="URL")
    assert isinstance(found, NoFile)
    assert found.reason == "the credentials of the platform are not where files are fetched"
    assert requests == []


@pytest.mark.parametrize(
    ("content", "text", "kind", "name"),
    [
        ({"msgtype": "m.image", "url": "mxc://t.local/a", "body": "cat.png"}, "", MediaKind.IMAGE, "cat.png"),
        (
            {"msgtype": "m.file", "url": "mxc://t.local/a", "body": "read this", "filename": "a.pdf"},
            "read this",
            MediaKind.DOCUMENT,
            "a.pdf",
        ),
        (
            {"msgtype": "m.audio", "url": "mxc://t.local/a", "body": "v.ogg", "org.matrix.msc3245.voice": {}},
            "",
            MediaKind.VOICE,
            "v.ogg",
        ),
    ],
)
def test_a_file_on_matrix_is_no_text(content: dict[str, Any], text: str, kind: MediaKind, name: str) -> None:
    event = matrix_event("$1", "", **content)
    [found] = matrix.read(event, "!r:t.local", {"@ada:t.local": {}, "@bot:t.local": {}}, "@bot:t.local")
    assert isinstance(found, InboundMessage)
    assert (found.text, [(one.kind, one.name, one.id) for one in found.media]) == (
        text,
        [(kind, name, "mxc://t.local/a")],
    )


@pytest.mark.parametrize(
    "content",
    [
        {"msgtype": "m.image", "file": {"url": "mxc://t.local/a"}, "body": "cat.png"},
        {"msgtype": "m.image", "url": "https://evil.example/a", "body": "cat.png"},
        {"msgtype": "m.image", "url": 7, "body": "cat.png"},
    ],
)
def test_what_cannot_be_fetched_is_no_file(content: dict[str, Any]) -> None:
    [found] = matrix.read(matrix_event("$1", "", **content), "!r:t.local", {}, "@bot:t.local")
    assert isinstance(found, InboundMessage)
    assert (found.text, found.media) == ("cat.png", ())
