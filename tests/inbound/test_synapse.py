"""Matrix with a homeserver of the real kind: synapse, which the test starts."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from support.patience import PATIENCE_S

from hermes_worker.channels.errors import DeliveryError, SendErrorKind
from hermes_worker.channels.inbound.matrix import Credentials, poll
from hermes_worker.channels.inbound.receiving import Polled
from hermes_worker.core.inbound import ChatKind, InboundMessage
from hermes_worker.net.http import HttpRequest
from hermes_worker.net.urls import UrlPolicy
from hermes_worker.net.wire import send

pytestmark = pytest.mark.slow


class Homeserver:
    """A synapse, and what its people do."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._sent = 0

    def call(self, method: str, path: str, body: Any = None, token: str = "") -> Any:
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/_matrix/client/{path}", content, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.load(response)

    def login(self, user: str) -> str:
        who = {"type": "m.id.user", "user": user}
        token: str = self.call("POST", "v3/login", {"type": "m.login.password", "identifier": who, "password": "pw"})[
            "access_token"
        ]
        return token

    def say(self, room: str, text: str, token: str) -> None:
        self._sent += 1
        path = f"v3/rooms/{quote(room, safe='')}/send/m.room.message/t{self._sent}"
        self.call("PUT", path, {"msgtype": "m.text", "body": text}, token)


@pytest.fixture(scope="module")
def homeserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Homeserver]:
    pytest.importorskip("synapse", reason="matrix-synapse is not installed: pip install matrix-synapse")
    folder: Path = tmp_path_factory.mktemp("synapse")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = folder / "homeserver.yaml"
    program = [sys.executable, "-m", "synapse.app.homeserver", "--config-path", str(config)]
    subprocess.run(
        [*program, "--server-name", "t.local", "--generate-config", "--report-stats=no"],
        cwd=folder, check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    text = config.read_text().replace("port: 8008", f"port: {port}").replace('- server_name: "matrix.org"', "[]")
    config.write_text(f"{text}\nrc_message:\n  per_second: 100000\n  burst_count: 100000\n")
    url = f"http://127.0.0.1:{port}"
    with (folder / "out").open("wb") as out, subprocess.Popen(program, cwd=folder, stdout=out, stderr=out) as process:
        try:
            _wait_for(url, process)
            for user in ("bot", "ada"):
                register = [sys.executable, "-m", "synapse._scripts.register_new_matrix_user"]
                more = ["-u", user, "-p", "pw", "--no-admin", "-c", str(config), url]
                subprocess.run([*register, *more], check=True, capture_output=True, timeout=60)
            yield Homeserver(url)
        finally:
            process.terminate()


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    ends_at = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends_at and process.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/_matrix/client/versions", timeout=5).close()
            return
        except OSError:
            time.sleep(0.1)
    raise AssertionError("synapse did not begin")


def looked(cursor: str, credentials: Credentials) -> Polled | DeliveryError:
    exchange = poll(cursor, credentials, datetime.now(UTC), 1)
    try:
        request: HttpRequest = next(exchange)
        while True:
            request = exchange.send(send(request, UrlPolicy(allows_private=True)))
    except StopIteration as end:
        found: Polled | DeliveryError = end.value
        return found


def test_an_invitation_is_followed_and_230_messages_between_two_looks_come_in_order(homeserver: Homeserver) -> None:
    ada, bot = homeserver.login("ada"), homeserver.login("bot")
    account = Credentials(homeserver=homeserver.url, access_token=bot)
    first = looked("", account)
    assert isinstance(first, Polled)
    room: str = homeserver.call("POST", "v3/createRoom", {"preset": "private_chat"}, ada)["room_id"]
    homeserver.say(room, "before you came", ada)
    homeserver.call("POST", f"v3/rooms/{quote(room, safe='')}/invite", {"user_id": "@bot:t.local"}, ada)
    invited = looked(first.cursor, account)
    assert isinstance(invited, Polled)
    for number in range(230):
        homeserver.say(room, f"m{number}", ada)
    found, again = looked(invited.cursor, account), looked(invited.cursor, account)
    assert isinstance(found, Polled)
    assert isinstance(again, Polled)
    messages = [one for one in found.inbound if isinstance(one, InboundMessage)]
    assert [one.text for one in messages] == [f"m{number}" for number in range(230)]
    assert {(one.chat.kind, one.sender.id) for one in messages} == {(ChatKind.DIRECT, "@ada:t.local")}
    assert [one.event_key for one in again.inbound] == [one.event_key for one in found.inbound]


def test_a_token_that_is_refused_is_told(homeserver: Homeserver) -> None:
    found = looked("s1", Credentials(homeserver=homeserver.url, access_token="none"))
    assert isinstance(found, DeliveryError)
    assert found.kind is SendErrorKind.AUTH
