"""What we say to Slack, to a server that somebody else wrote: ``emulate`` of npm. Its events are signed as GitHub signs
its own, so none of them reaches our route (``tests/inbound/test_receiving_contract.py`` has Slack's signatures)."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from support.commandline import wait_for

from hermes_worker.channels.downloads import FileDownloader
from hermes_worker.channels.errors import DeliveryError, SendErrorKind
from hermes_worker.channels.exchange import Attachment, Exchange, Part, Receipt, perform
from hermes_worker.channels.platforms import slack
from hermes_worker.channels.targets import Target
from hermes_worker.core.chat_buttons import ChatButton
from hermes_worker.core.inbound import MediaRef
from hermes_worker.core.media_kinds import MediaKind
from hermes_worker.net.urls import UrlPolicy
from hermes_worker.net.wire import make_sender

pytestmark = pytest.mark.slow

TOKEN = "test_token_admin"


@dataclass
class Workspace:
    """A workspace of Slack's, and what stands in its channels."""

    port: int

    @property
    def api(self) -> str:
        return f"http://127.0.0.1:{self.port}/api"

    @property
    def credentials(self) -> slack.Credentials:
        return slack.Credentials(token=TOKEN, base_url=self.api)

    def ask(self, method: str, **body: str) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.api}/{method}", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=10) as response:
            return dict(json.load(response))

    def channel(self, name: str) -> Target:
        found = next(each for each in self.ask("conversations.list")["channels"] if each["name"] == name)
        return Target(platform="slack", chat=found["id"])

    def texts(self, target: Target) -> list[str]:
        """What a channel says now, the newest first."""
        return [each["text"] for each in self.ask("conversations.history", channel=target.chat)["messages"]]


@pytest.fixture(scope="module")
def workspace() -> Iterator[Workspace]:
    """``HERMES_TEST_EMULATE`` names a directory in which somebody has said ``npm install emulate``."""
    program = Path(os.environ.get("HERMES_TEST_EMULATE", ".")) / "node_modules" / ".bin" / "emulate"
    if shutil.which("node") is None or not program.exists():
        pytest.skip("HERMES_TEST_EMULATE names no directory with 'emulate', or there is no node")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    argv = [str(program), "start", "--service", "slack", "--port", str(port), "--base-url", address]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL) as running:
        try:
            found = Workspace(port)
            wait_for(lambda: _is_up(found))
            yield found
        finally:
            running.terminate()


def _is_up(workspace: Workspace) -> bool:
    with suppress(OSError):
        return bool(workspace.ask("auth.test")["ok"])
    return False


def done(exchange: Exchange) -> Receipt | DeliveryError:
    return perform(exchange, make_sender(UrlPolicy(allows_private=True)))


def part(text: str, **more: Any) -> Part:
    return Part(text=text, idempotency_key="k", **more)


def arrived(exchange: Exchange) -> str:
    found = done(exchange)
    assert isinstance(found, Receipt), found
    assert found.message_id
    return found.message_id


def test_a_message_is_sent_edited_and_removed(workspace: Workspace) -> None:
    general, mine = workspace.channel("general"), workspace.credentials
    ts = arrived(slack.send(part("a *first* try"), general, mine))
    assert workspace.texts(general)[0] == "a _first_ try"
    assert arrived(slack.edit(part("the **answer**"), ts, general, mine)) == ts
    assert workspace.texts(general)[0] == "the *answer*"
    assert arrived(slack.remove(ts, general, mine)) == ts
    assert ts not in str(workspace.ask("conversations.history", channel=general.chat))
    assert arrived(slack.remove(ts, general, mine)) == ts, "what is gone is removed"


def test_an_answer_stands_in_its_thread_and_a_question_has_buttons(workspace: Workspace) -> None:
    general, mine = workspace.channel("general"), workspace.credentials
    ts = arrived(slack.send(part("the question"), general, mine))
    thread = Target(platform="slack", chat=general.chat, thread=ts)
    arrived(slack.send(part("the answer"), thread, mine))
    said = [each["text"] for each in workspace.ask("conversations.replies", channel=general.chat, ts=ts)["messages"]]
    assert said == ["the question", "the answer"]
    buttons = (ChatButton(label="Yes", value="v1"), ChatButton(label="No", value="v2"))
    arrived(slack.send(part("May it?", buttons=buttons), general, mine))
    newest = workspace.ask("conversations.history", channel=general.chat)["messages"][0]
    assert newest["text"] == "May it?"
    assert [each["value"] for each in newest["blocks"][-1]["elements"]] == ["v1", "v2"]


def test_a_file_is_uploaded_and_had_again(workspace: Workspace) -> None:
    general, mine = workspace.channel("general"), workspace.credentials
    file = Attachment(name="notes.txt", kind=MediaKind.DOCUMENT, content=b"what was said")
    file_id = arrived(slack.send(part("here", attachment=file), general, mine))
    values = {"SLACK_BOT_TOKEN": TOKEN, "SLACK_BASE_URL": workspace.api}
    into = BytesIO()
    downloader = FileDownloader(values=values, bytes_max=1_000, total_s=10.0)
    media = MediaRef(kind=MediaKind.DOCUMENT, id=file_id, media_type="text/plain")
    assert downloader.fetch("slack:default", media, into) is None
    assert into.getvalue() == b"what was said"


def test_a_channel_that_is_not_there_is_told(workspace: Workspace) -> None:
    lost = done(slack.send(part("x"), Target(platform="slack", chat="C404"), workspace.credentials))
    assert isinstance(lost, DeliveryError) and lost.kind is SendErrorKind.NOT_FOUND
