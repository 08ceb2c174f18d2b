"""Our account on Telegram against a server that somebody else wrote: ``telegram-test-api`` of npm. It reads the Bot API
for itself: it holds no looks, knows no offsets, and answers an edit with nothing."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.commandline import wait_for
from support.store import Store
from test_listening import approval, asked_by, choices, client, listening, outcomes, rows_of, store, until

from hermes_worker.channels.dispatcher import Dispatcher
from hermes_worker.channels.exchange import Part, Receipt
from hermes_worker.channels.targets import Target
from hermes_worker.core.effects import SendDelivery
from hermes_worker.store.outbox.deliveries import Deliveries
from hermes_worker.store.tables import deliveries, inbound
from hermes_worker.tasks.deliver import DeliveryContext, deliver
from hermes_worker.tasks.leases import Leases
from hermes_worker.wiring import Client

__all__ = ["client", "listening", "store"]
pytestmark = pytest.mark.slow

TOKEN = "77:abc"
_START = (
    "const Server = require(process.argv[1]);"
    "new Server({host: '127.0.0.1', port: Number(process.argv[2]), storeTimeout: 600}).start()"
)


@dataclass
class TestApi:
    """The server, and a person who writes to the bot."""

    __test__ = False

    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def post(self, path: str, body: dict[str, Any]) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        return json.loads(connection.getresponse().read())

    def write(self, text: str) -> None:
        assert self.post("/sendMessage", {**_MESSAGE, "text": text, "date": 1})["ok"] is True

    def press(self, value: str) -> None:
        pressed = {"botToken": TOKEN, "from": _MESSAGE["from"], "data": value}
        assert self.post("/sendCallback", {**pressed, "message": {**_MESSAGE, "message_id": 1}})["ok"] is True

    def said(self) -> list[dict[str, Any]]:
        """What the bot has sent, in order, as it stands now."""
        history = self.post("/getUpdatesHistory", {"token": TOKEN})["result"]
        return [one["message"] for one in history if "chat_id" in one.get("message", {})]


_MESSAGE = {
    "botToken": TOKEN,
    "from": {"id": 42, "first_name": "Ada", "username": "ada", "is_bot": False},
    "chat": {"id": 42, "first_name": "Ada", "username": "ada", "type": "private"},
}


@pytest.fixture
def telegram() -> Iterator[TestApi]:
    """``HERMES_TEST_TELEGRAM_API`` names a directory in which somebody has said ``npm install telegram-test-api``."""
    package = Path(os.environ.get("HERMES_TEST_TELEGRAM_API", ".")) / "node_modules" / "telegram-test-api"
    node = shutil.which("node")
    if node is None or not package.is_dir():
        pytest.skip("HERMES_TEST_TELEGRAM_API names no directory with 'telegram-test-api', or there is no node")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen([node, "-e", _START, str(package.resolve()), str(port)]) as running:
        try:
            found = TestApi(port)
            wait_for(lambda: _is_up(found))
            yield found
        finally:
            running.terminate()


def _is_up(api: TestApi) -> bool:
    try:
        return bool(api.post(f"/bot{TOKEN}/getMe", {})["ok"])
    except OSError:
        return False


def send_all(client: Client, store: Store) -> None:
    """Deliver what is due, as a worker does."""
    leases = Leases(store.workers, name="dispatcher", queues="delivery", ttl_s=1e6)
    leases.register()
    parts = DeliveryContext(
        outbox=Deliveries(client.database),
        views=client.views,
        dispatcher=Dispatcher(values=client.settings.variables, directory=client.settings.home),
        sender=client.publisher,
        leases=leases,
    )
    columns = (deliveries.c.delivery_id, deliveries.c.attempts, deliveries.c.hinted_at, deliveries.c.settled_at)
    for delivery_id, attempts, hinted_at, settled_at in rows_of(client, *columns):
        if hinted_at is not None and settled_at is None:
            deliver(parts, SendDelivery(run_id="", delivery_id=delivery_id, attempt=attempts + 1), hinted_at)


@pytest.mark.usefixtures("listening")
def test_a_person_writes_is_asked_and_presses_a_button(client: Client, telegram: TestApi, store: Store) -> None:
    telegram.write("clean up")
    until(lambda: outcomes(client) == ["run"])
    asked_by(client, store, approval())
    send_all(client, store)
    [question] = telegram.said()
    assert "rm -rf build" in question["text"]
    buttons = [one["callback_data"] for row in question["reply_markup"]["inline_keyboard"] for one in row]
    assert [value.partition(":")[2] for value in buttons] == ["once", "deny"]
    telegram.press(buttons[1])
    until(lambda: outcomes(client) == ["run", "answer"])
    assert choices(client) == ["deny"]
    telegram.press(buttons[0])
    until(lambda: len(outcomes(client)) == 3)
    assert choices(client) == ["deny"]


@pytest.mark.usefixtures("listening")
def test_what_is_said_comes_once_and_is_edited_in_its_place(client: Client, telegram: TestApi) -> None:
    for number in range(20):
        telegram.write(f"/status {number}")
    until(lambda: len(outcomes(client)) == 20)
    assert len({key for (key,) in rows_of(client, inbound.c.event_key)}) == 20
    dispatcher = Dispatcher(values=client.settings.variables, directory=client.settings.home)
    target = Target(platform="telegram", chat="42")
    part = Part(text="**One**", idempotency_key="d:0")
    sent = dispatcher.send(part, target, at=datetime.now(UTC), file_name="x")
    assert isinstance(sent, Receipt)
    assert sent.message_id is not None
    edited = dispatcher.edit(Part(text="Two", idempotency_key="d:0"), sent.message_id, target)
    assert isinstance(edited, Receipt)
    assert telegram.said()[-1]["text"] == "Two"
