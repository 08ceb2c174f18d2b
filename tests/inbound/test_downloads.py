"""How the platforms' own modules ask for a file, and that whoever asks goes nowhere else."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from types import SimpleNamespace
from typing import Any

import pytest
from support.fault_server import FaultServer, Received, Reply
from support.inbound_cases import (
    dingtalk_message,
    feishu_event,
    line_events,
    matrix_event,
    slack_event,
    teams_activity,
)

from hermes_worker.channels.downloads import NO_ROOM, FileDownloader, NoFile
from hermes_worker.channels.file_addresses import FileSource, follow_redirect
from hermes_worker.channels.inbound import dingtalk, feishu, line, matrix, slack, teams
from hermes_worker.channels.platforms.discord import Credentials as DiscordCredentials
from hermes_worker.channels.platforms.slack import Credentials as SlackCredentials
from hermes_worker.channels.platforms.sms import Credentials as SmsCredentials
from hermes_worker.channels.platforms.teams import Credentials as TeamsCredentials
from hermes_worker.channels.receivers import load_receivers
from hermes_worker.core.inbound import InboundMessage, MediaRef
from hermes_worker.core.media_kinds import MediaKind
from hermes_worker.net.http import HttpRequest, HttpResponse
from hermes_worker.net.urls import HttpUrl, UnsafeUrl, UrlPolicy, check_addresses, parse_http_url


def media(place: str) -> MediaRef:
    return MediaRef(kind=MediaKind.DOCUMENT, id=place)


def asked(platform: str, place: str, **values: str) -> tuple[bytes | NoFile, list[Received]]:
    """What is had of a server that has every file."""

    def answer(request: Received, reply: Reply) -> None:
        reply.document(200, b"content", content_type="text/plain")

    with FaultServer(answer) as server:
        url = server.base_url.removesuffix("/v1")
        own = {name: url if value == "URL" else value for name, value in values.items()}
        into = BytesIO()
        downloader = FileDownloader(values=own, bytes_max=100, total_s=5.0)
        missing = downloader.fetch(f"{platform}:default", media(place), into)
    return into.getvalue() if missing is None else missing, server.requests


MATTERMOST = {"MATTERMOST_URL": "URL", "MATTERMOST_TOKEN": "t1"}


def test_an_id_is_no_path() -> None:
    found, [request] = asked("mattermost", "../users/me", **MATTERMOST)
    assert found == b"content"
    assert request.head.startswith("GET /api/v4/files/..%2Fusers%2Fme HTTP/1.1")


@pytest.mark.parametrize("place", ["https://evil.example/a.png", "mxc://example.org/../x", "mxc://a", ""])
def test_an_address_that_is_none_of_matrix_is_not_asked(place: str) -> None:
    found, requests = asked("matrix", place, MATRIX_HOMESERVER="URL", MATRIX_ACCESS_TOKEN="t1")
    assert isinstance(found, NoFile)
    assert requests == []


def source_of(platform: str, place: str, credentials: Any) -> FileSource:
    """Where a platform's own module says that a file is, without asking anybody."""
    row = load_receivers()[platform]
    with pytest.raises(StopIteration) as end:
        next(row.download(media(place), credentials))
    found = end.value.value
    assert isinstance(found, FileSource)
    return found


DISCORD = DiscordCredentials(token="t1")
SLACK = SlackCredentials(token="xoxb-1")
TWILIO = SmsCredentials(account_sid="AC1", auth_token="t1", sender="+15557654321")


@pytest.mark.parametrize(
    ("platform", "place", "credentials", "bears_token"),
    [
        ("discord", "https://cdn.discordapp.com/attachments/1/2/a.png?ex=1&is=2&hm=3", DISCORD, False),
        ("slack", "https://files.slack.com/files-pri/T1-F1/download/a.png", SLACK, True),
    ],
)
def test_a_file_is_had_from_the_vendors_own_hosts(
    platform: str, place: str, credentials: Any, bears_token: bool
) -> None:
    found = source_of(platform, place, credentials)
    assert (found.request.url, found.is_public) == (place, True)
    assert ("Authorization" in found.request.headers) is bears_token
    with pytest.raises(UnsafeUrl):
        check_addresses(parse_http_url(place), ["169.254.169.254"], UrlPolicy())


STRANGE = [
    "http://{host}/a",
    "https://{host}.evil.example/a",
    "https://evil.example/{host}",
    "https://{host}@127.0.0.1/a",
    "https://127.0.0.1/{host}",
    "https://{host}:8443/a",
    "https://x.{host}/a",
    "file:///etc/passwd",
    "//{host}/a",
    "https://[::1/a",
]


@pytest.mark.parametrize(
    ("platform", "host", "values"),
    [
        ("discord", "cdn.discordapp.com", {"DISCORD_BOT_TOKEN": "t1", "DISCORD_BASE_URL": "URL"}),
        ("slack", "files.slack.com", {"SLACK_BOT_TOKEN": "t1"}),
        ("ntfy", "ntfy.sh", {"NTFY_TOKEN": "t1", "NTFY_SERVER_URL": "URL"}),
        (
            "sms",
            "api.twilio.com",
            {
                "TWILIO_ACCOUNT_SID": "AC1",
                "TWILIO_AUTH_TOKEN": "t1",
                "TWILIO_PHONE_NUMBER": "+1",
                "TWILIO_BASE_URL": "URL",
            },
        ),
    ],
)
@pytest.mark.parametrize("place", STRANGE)
def test_no_other_address_is_taken_for_the_vendors(
    place: str, platform: str, host: str, values: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_of: list[str] = []

    def resolved(target: HttpUrl) -> list[str]:
        asked_of.append(target.host)
        return ["127.0.0.1"]

    monkeypatch.setattr("hermes_worker.net.wire._resolve", resolved)
    found, requests = asked(platform, place.format(host=host), **values)
    assert isinstance(found, NoFile)
    assert requests == []
    # An id of Slack's is asked for at its API; nothing that a stranger wrote is resolved.
    assert set(asked_of) <= {"slack.com"}


MOVED = "https://mms.twiliocdn.com/AC1/abc"


@pytest.mark.parametrize("place", ["https://evil.example/x", "http://mms.twiliocdn.com/x", "http://169.254.169.254/"])
def test_a_redirect_is_followed_to_the_vendors_store_alone(place: str) -> None:
    source = source_of("sms", "https://api.twilio.com/2010-04-01/Media/ME1", TWILIO)
    assert source.request.headers["Authorization"].startswith("Basic ")
    assert follow_redirect(source, HttpResponse(status=307, headers={"location": place})) is None
    there = follow_redirect(source, HttpResponse(status=307, headers={"location": MOVED}))
    assert there is not None
    assert (there.request.url, dict(there.request.headers), there.is_public) == (MOVED, {}, True)
    assert follow_redirect(there, HttpResponse(status=307, headers={"location": MOVED})) is None, "once"


def test_where_a_file_was_moved_it_is_had_without_our_token(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[HttpRequest, UrlPolicy]] = []

    @contextmanager
    def opened(request: HttpRequest, policy: UrlPolicy, **_: Any) -> Iterator[SimpleNamespace]:
        made.append((request, policy))
        is_first = len(made) == 1
        yield SimpleNamespace(
            status=307 if is_first else 200,
            headers={"location": MOVED} if is_first else {},
            iterate_body=lambda: [b"a page" if is_first else b"content"],
        )

    monkeypatch.setattr("hermes_worker.channels.downloads.open_response", opened)
    values = {"TWILIO_ACCOUNT_SID": "AC1", "TWILIO_AUTH_TOKEN": "t1", "TWILIO_PHONE_NUMBER": "+1"}
    into = BytesIO()
    downloader = FileDownloader(values=values, bytes_max=100, total_s=5.0)
    place = media("https://api.twilio.com/2010-04-01/Media/ME1")
    assert downloader.fetch("sms:default", place, into) is None
    assert into.getvalue() == b"content"
    [(first, _), (second, policy)] = made
    assert "Authorization" in first.headers
    assert (second.url, dict(second.headers), policy.allows_private) == (MOVED, {}, False)


SHARED = "https://contoso-my.sharepoint.com/personal/ada/_layouts/15/download.aspx?UniqueId=1&tempauth=2"


def test_a_file_that_teams_keeps_on_sharepoint_is_had_without_a_token() -> None:
    source = source_of("teams", SHARED, TeamsCredentials(app_id="a", app_password="p"))
    assert (source.request.url, dict(source.request.headers), source.is_public) == (SHARED, {}, True)


def test_a_file_of_a_shared_channel_of_slack_is_asked_for_first() -> None:
    exchange = load_receivers()["slack"].download(media("F1"), SLACK)
    request = next(exchange)
    assert (request.url, request.body) == ("https://slack.com/api/files.info", b"file=F1")
    place = "https://files.slack.com/files-pri/T1-F1/download/a.png"
    body = {"ok": True, "file": {"id": "F1", "url_private_download": place}}
    with pytest.raises(StopIteration) as end:
        exchange.send(HttpResponse(status=200, body=json.dumps(body).encode()))
    assert end.value.value.request.url == place


@pytest.mark.parametrize(("told", "is_refused"), [("image/png", True), ("text/html", False)])
def test_a_page_of_slack_on_which_people_log_in_is_no_file(told: str, is_refused: bool) -> None:
    place = "https://files.slack.com/files-pri/T1-F1/download/a"
    wanted = MediaRef(kind=MediaKind.DOCUMENT, id=place, media_type=told)
    with pytest.raises(StopIteration) as end:
        next(load_receivers()["slack"].download(wanted, SLACK))
    head = HttpResponse(status=200, headers={"content-type": "text/html; charset=utf-8"})
    assert (end.value.value.refusal(head) is not None) is is_refused


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


def files_of(event: object) -> list[tuple[MediaKind, str, str]]:
    assert isinstance(event, InboundMessage)
    return [(one.kind, one.id, one.name) for one in event.media]


def test_a_post_on_feishu_is_text_with_pictures() -> None:
    lines = [
        [{"tag": "text", "text": "look at "}, {"tag": "img", "image_key": "img_1"}],
        [{"tag": "text", "text": "!"}],
    ]
    content = {"title": "Plan", "content": lines}
    told = feishu_event("", message_type="post", content=json.dumps(content))
    [event] = feishu.read(told, feishu.Credentials())
    assert isinstance(event, InboundMessage)
    assert event.text == "Plan\nlook at \n!"
    assert files_of(event) == [(MediaKind.IMAGE, "om_1:image:img_1", "")]


@pytest.mark.parametrize(
    ("kind", "content", "found"),
    [
        ("image", {"image_key": "i1"}, [(MediaKind.IMAGE, "om_1:image:i1", "")]),
        ("audio", {"file_key": "f1", "duration": 2000}, [(MediaKind.VOICE, "om_1:file:f1", "")]),
        (
            "media",
            {"file_key": "f1", "image_key": "i1", "file_name": "a.mp4"},
            [(MediaKind.VIDEO, "om_1:file:f1", "a.mp4")],
        ),
        ("sticker", {"file_key": "f1"}, []),
        ("file", {"file_key": {"x": 1}}, []),
        ("file", [], []),
    ],
)
def test_what_feishu_calls_a_file(kind: str, content: Any, found: list[Any]) -> None:
    told = feishu_event("", message_type=kind, content=json.dumps(content))
    [event] = feishu.read(told, feishu.Credentials())
    assert files_of(event) == found


def test_a_text_with_pictures_on_dingtalk() -> None:
    parts = [{"text": "look "}, {"type": "picture", "downloadCode": "dc1"}, {"text": "here"}, "odd"]
    told = dingtalk_message("", msgtype="richText", content={"richText": parts})
    [event] = dingtalk.read(told, dingtalk.Credentials(conversation_id="cidX/y+z=="))
    assert isinstance(event, InboundMessage)
    assert (event.text, files_of(event)) == ("look here", [(MediaKind.IMAGE, "dc1", "")])


def test_what_teams_calls_a_file() -> None:
    card = {"contentType": "application/vnd.microsoft.card.adaptive", "content": {"body": []}}
    text = {"contentType": "text/html", "content": "<p>look</p>"}
    sent = {
        "contentType": "application/vnd.microsoft.teams.file.download.info",
        "name": "plan.pdf",
        "contentUrl": "https://contoso.sharepoint.com/plan.pdf",
        "content": {"downloadUrl": SHARED, "uniqueId": "1", "fileType": "pdf"},
    }
    shown = {"contentType": "image/png", "contentUrl": "https://smba.trafficmanager.net/a/views/original"}
    [event] = teams.read(teams_activity("look", attachments=[card, text, sent, shown, {"contentType": 7}, "odd"]))
    assert files_of(event) == [
        (MediaKind.DOCUMENT, SHARED, "plan.pdf"),
        (MediaKind.IMAGE, "https://smba.trafficmanager.net/a/views/original", ""),
    ]


def test_a_file_on_slack_that_was_deleted_or_is_elsewhere_is_none() -> None:
    place = "https://files.slack.com/files-pri/T1-F1/download/a.png"
    files = [
        {"id": "F1", "mimetype": "image/png", "url_private_download": place, "name": "a.png"},
        {"id": "F2", "mode": "tombstone"},
        {"id": "F3", "is_external": True, "url_private": "https://evil.example/x"},
        {"id": "F4", "file_access": "check_file_info"},
    ]
    [event] = slack.read(slack_event("look", subtype="file_share", files=files))
    assert files_of(event) == [(MediaKind.IMAGE, place, "a.png"), (MediaKind.DOCUMENT, "F4", "")]


def test_what_an_app_shows_on_line_from_elsewhere_is_no_file() -> None:
    shown = {"type": "external", "originalContentUrl": "https://evil.example/x"}
    told = line_events("", message={"id": "1", "type": "image", "contentProvider": shown})
    event = line.read(told["events"][0])
    assert files_of(event) == []


def test_files_of_other_servers_are_none_of_ntfys() -> None:
    found, requests = asked("ntfy", "http://127.0.0.1:1/file/x", NTFY_SERVER_URL="URL", NTFY_TOKEN="t1")
    assert isinstance(found, NoFile)
    assert requests == []


def test_an_account_with_a_name_fetches_with_its_own_token_and_never_with_anothers() -> None:
    def answer(request: Received, reply: Reply) -> None:
        reply.document(200, b"content")

    with FaultServer(answer) as server:
        url = server.base_url.removesuffix("/v1")
        values = {"MATTERMOST_URL": url, "MATTERMOST_TOKEN": "usual", "MATTERMOST_TOKEN__OPS": "own"}
        downloader = FileDownloader(values=values, bytes_max=100, total_s=5.0)
        assert downloader.fetch("mattermost:ops", media("f1"), BytesIO()) is None
        assert isinstance(downloader.fetch("mattermost:other", media("f1"), BytesIO()), NoFile)
    assert [one.header("authorization") for one in server.requests] == ["Bearer own"]


class FullDisk(BytesIO):
    def write(self, piece: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_told_as_one_and_another_worker_may_have_room() -> None:
    with FaultServer(lambda request, reply: reply.document(200, b"content")) as server:
        values = {"MATTERMOST_URL": server.base_url.removesuffix("/v1"), "MATTERMOST_TOKEN": "t1"}
        downloader = FileDownloader(values=values, bytes_max=100, total_s=5.0)
        found = downloader.fetch("mattermost:default", media("f1"), FullDisk())
    assert found is not None
    assert (found.reason, found.may_pass) == (NO_ROOM, True)
