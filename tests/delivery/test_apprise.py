"""``apprise:`` targets, through the real library to a real server."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hermes_worker.channels import apprise_services
from hermes_worker.channels.dispatcher import Dispatcher
from hermes_worker.channels.errors import DeliveryError, SendErrorKind
from hermes_worker.channels.exchange import Attachment, Outcome, Part, Receipt, Unsendable
from hermes_worker.channels.targets import ChatRef, parse_targets
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.media_kinds import MediaKind
from hermes_worker.net.library_guard import ConnectionWatch, watch_thread
from hermes_worker.net.urls import UrlPolicy

TOKEN = "Abcdefghij12345"
HERE = UrlPolicy(allows_private=True)


def url_of(address: str) -> str:
    """A Gotify server of one's own, as apprise writes it."""
    return f"gotify://{address.removeprefix('http://')}/{TOKEN}"


def send(address: str, policy: UrlPolicy = HERE, **more: float) -> Outcome:
    part = Part(text="The weather", idempotency_key="d:0", title="News")
    return apprise_services.send(part, url_of(address), policy, **more)


def kind_of(outcome: Outcome) -> SendErrorKind:
    assert isinstance(outcome, DeliveryError)
    assert TOKEN not in outcome.message
    return outcome.kind


def test_a_message_arrives(platform) -> None:
    platform.answer(200, {"id": 1})
    assert isinstance(send(platform.url), Receipt)
    (received,) = platform.received
    assert "The weather" in received.json["message"]
    assert received.json["title"] == "News"
    assert TOKEN in str(received.headers)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, SendErrorKind.AUTH),
        (404, SendErrorKind.NOT_FOUND),
        (429, SendErrorKind.RATE_LIMITED),
        (503, SendErrorKind.TRANSIENT),
        (504, SendErrorKind.AMBIGUOUS),
    ],
)
def test_a_refusal_means_what_its_status_says(platform, status, kind) -> None:
    platform.answer(status)
    outcome = send(platform.url)
    assert kind_of(outcome) is kind
    assert len(platform.received) == 1, "we decide when to try again, not the library"


def test_a_request_without_an_answer_may_have_been_taken(platform) -> None:
    platform.hang_up()
    assert kind_of(send(platform.url)) is SendErrorKind.AMBIGUOUS


def test_nothing_reaches_a_server_that_is_not_there(platform) -> None:
    platform.close()
    assert kind_of(send(platform.url)) is SendErrorKind.TRANSIENT


def test_a_private_address_is_refused_before_anything_is_sent(platform) -> None:
    outcome = send(platform.url, UrlPolicy())
    assert kind_of(outcome) is SendErrorKind.REFUSED
    assert "not a public address" in outcome.message
    assert platform.received == []


def test_a_redirect_is_not_followed(platform) -> None:
    platform.answer(307, {}, Location=f"{platform.url}/elsewhere")
    assert isinstance(send(platform.url), DeliveryError)
    assert len(platform.received) == 1


def test_a_server_that_keeps_us_waiting_is_left() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        outcome = send(f"http://127.0.0.1:{server.getsockname()[1]}", total_s=0.3)
    assert kind_of(outcome) is SendErrorKind.AMBIGUOUS


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("syslog://", "does not speak HTTP"),
        ("mailto://user:secret@example.org", "does not speak HTTP"),
        ("irc://example.org/#c", "does not speak HTTP"),
        ("nosuch://x", "cannot read this URL"),
        ("gotify://", "cannot read this URL"),
    ],
)
def test_what_does_not_go_over_watched_connections_is_no_target(url, reason) -> None:
    with pytest.raises(Unsendable, match=reason) as caught:
        apprise_services.send(Part(text="x", idempotency_key="k"), url, HERE)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        f"workflows://{{host}}/{'a' * 32}/{'b' * 32}/?template={{file}}",
        "fcm://project/device/?keyfile={file}",
        "slack://xoxb-1234-1234-4ddbc191d40ee098cbaae6f3523ada2d/%23x/?template={file}",
    ],
)
def test_a_url_that_names_a_file_of_this_machine_is_refused(platform, tmp_path: Path, url: str) -> None:
    """Services of the library take templates and keys from files: whoever chose the URL could have them sent."""
    secret = tmp_path / "credentials.json"
    secret.write_text('{"type": "message", "attachments": ["secret"]}')
    url = url.format(host=platform.url.removeprefix("http://"), file=secret)
    outcome = apprise_services.send(Part(text="x", idempotency_key="k"), url, HERE)
    assert kind_of(outcome) is SendErrorKind.REFUSED
    assert "would read a file" in outcome.message
    assert platform.received == []


def test_a_watched_thread_opens_only_code_and_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    watch = ConnectionWatch(UrlPolicy())
    with watch_thread(watch):
        assert Path(apprise_services.__file__).read_text()
        for forbidden in (tmp_path / "a", Path("/etc/passwd"), Path("/proc/self/environ")):
            with pytest.raises(PermissionError):
                forbidden.read_bytes()
        with pytest.raises(PermissionError):
            subprocess.run(["true"], check=True)
    assert watch.refusal == "it would start a program of this machine"
    assert (tmp_path / "a").read_text() == "x"


def test_a_file_is_refused() -> None:
    attachment = Attachment(name="a", kind=MediaKind.DOCUMENT, content=b"x")
    with pytest.raises(Unsendable):
        apprise_services.send(Part(text="x", idempotency_key="k", attachment=attachment), url_of("h:1"), HERE)


def test_texts_are_cut_as_the_service_wants_them(tmp_path: Path) -> None:
    pushover = "pover://" + "a" * 30 + "@" + "b" * 30
    dispatcher = Dispatcher(values={}, directory=tmp_path)
    (reference,) = parse_targets(f"apprise:{pushover}")
    assert isinstance(reference, ChatRef)
    assert dispatcher.limit(reference.target).size_max == 1024
    assert apprise_services.find_limit("nosuch://x").size_max == 32_000


def test_without_the_library_the_way_to_get_it_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(ConfigurationError, match=r"hermes-worker\[apprise\]"):
        apprise_services.send(Part(text="x", idempotency_key="k"), url_of("h:1"), HERE)


def test_only_the_watched_thread_is_judged(platform) -> None:
    address = ("127.0.0.1", int(platform.url.rpartition(":")[2]))
    outcome: list[str] = []

    def unwatched() -> None:
        socket.create_connection(address).close()
        outcome.append("connected")

    watch = ConnectionWatch(UrlPolicy())
    with watch_thread(watch):
        other = threading.Thread(target=unwatched)
        other.start()
        other.join()
        with pytest.raises(Exception, match="not a public address"):
            socket.create_connection(address)
    assert outcome == ["connected"]
    assert not watch.has_sent
    socket.create_connection(address).close()
