"""A gateway keeps a connection open: what comes over it, and what becomes of it when it ends."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.migrated import bring_up
from support.patience import PATIENCE_S
from support.socket_talk import Credentials, Platform, tcp_platform, websocket_platform

from hermes_worker import settings as settings_module
from hermes_worker.channels.inbound.declaration import InboundMode, Receiving
from hermes_worker.channels.receivers import Receiver
from hermes_worker.gateway import listening as listening_module
from hermes_worker.gateway import sockets
from hermes_worker.gateway.listening import GatewayListener, ListenedAccount
from hermes_worker.store.engine.database import db_now
from hermes_worker.store.tables import channels, inbound
from hermes_worker.wiring import Client, open_client

PLATFORMS: dict[str, Callable[[], AbstractContextManager[Platform]]] = {
    "websocket": websocket_platform,
    "irc": lambda: tcp_platform("irc"),
    "events": lambda: tcp_platform("events"),
    "lines": lambda: tcp_platform("lines"),
}


@pytest.fixture
def client(tmp_path: Path, broker_url: str) -> Iterator[Client]:
    url = f"sqlite:///{tmp_path / 'test.db'}"
    bring_up(url)
    environ = {
        "HOME": str(tmp_path),
        "HERMES_HOME": str(tmp_path),
        "HERMES_DATABASE_URL": url,
        "HERMES_BROKER_URL": broker_url,
        "HERMES_PROVIDER": "scripted",
        "HERMES_GATEWAY": "true",
        "HERMES_GATEWAY_LEASE_S": "60",
        "HERMES_GATEWAY_BUSY_INPUT_MODE": "queue",
        "HERMES_GATEWAY_BURST_S": "0",
        "HERMES_GATEWAY_ALLOWED_USERS": "*",
    }
    found = open_client(settings_module.load_settings(environ))
    yield found
    found.close()


@pytest.fixture(autouse=True)
def frequent_renewals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases are renewed each second, and none is lost where a slow machine takes longer."""
    monkeypatch.setattr(sockets, "_RENEWED_PART", 1 / 60)


@contextmanager
def listening_to(client: Client, platform: Platform) -> Iterator[None]:
    row = Receiving(
        modes=(InboundMode.SOCKET,),
        credentials="support.socket_talk:Credentials",
        variables={"url": "TALK_URL"},
        required={InboundMode.SOCKET: ("url",)},
        socket="support.socket_talk:Socket",
    )
    account = ListenedAccount(
        receiver=Receiver(platform="telegram", receiving=row),  # a target that answers can go to
        mode=InboundMode.SOCKET,
        credentials=Credentials(url=platform.url),
        token_hash="t",
    )
    stopping = threading.Event()
    listener = GatewayListener(client, [account], name="gw", alive_file=None)
    thread = threading.Thread(target=listener.run, args=(stopping,))
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def until(holds: Callable[[], object], within_s: float = PATIENCE_S) -> None:
    ends_at = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < ends_at, "it did not come about"
        time.sleep(0.02)


def taken(client: Client) -> list[tuple[str, str]]:
    with client.database.read() as connection:
        rows = connection.execute(sa.select(inbound.c.event_key, inbound.c.outcome).order_by(inbound.c.pk))
        return [(key, outcome) for key, outcome in rows]


def account_row(client: Client) -> tuple[str | None, str | None, str]:
    with client.database.read() as connection:
        row = connection.execute(sa.select(channels.c.cursor, channels.c.error, channels.c.mode)).one()
        return row.cursor, row.error, row.mode


def heard_by(platform: Platform) -> list[str]:
    return [frame.strip() for frame in platform.heard]


@pytest.mark.parametrize("kind", PLATFORMS)
def test_what_a_connection_brings_is_taken_once_and_goes_on_after_its_end(client: Client, kind: str) -> None:
    with PLATFORMS[kind]() as platform, listening_to(client, platform):
        platform.say(1, "hello")
        until(lambda: taken(client) == [("1", "run")])
        platform.frames.put(None)
        platform.say(1, "hello")
        platform.say(2, "again")
        until(lambda: taken(client) == [("1", "run"), ("2", "run")])
        assert platform.connections == 2
        assert account_row(client) == ("2", None, "socket")
        if kind in ("websocket", "irc"):
            for cursor in ("", "1"):
                until(lambda cursor=cursor: json.dumps({"from": cursor}) in heard_by(platform))  # type: ignore[misc]
            until(lambda: any("beat" in frame for frame in platform.heard))


def test_a_message_is_acknowledged_after_its_commit(client: Client) -> None:
    with websocket_platform() as platform, listening_to(client, platform):
        platform.say(1, "hello")
        until(lambda: '{"taken": 1}' in platform.heard)
        assert taken(client) == [("1", "run")]


def test_a_refused_token_is_told_and_tried_again_without_end(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening_module, "LOOK_AGAIN_S_MAX", 0.05)
    monkeypatch.setattr(listening_module, "compute_poll_wait_s", lambda *_: 0.0)
    with websocket_platform() as platform, listening_to(client, platform):
        until(lambda: platform.connections == 1)
        for number in (2, 3, 4):
            platform.frames.put('{"number": 0, "refused": "invalid_auth"}')
            until(lambda number=number: platform.connections == number)  # type: ignore[misc]
        until(lambda: account_row(client)[1] == "invalid_auth")
        platform.say(7, "still there?")
        until(lambda: taken(client) == [("7", "run")])


def test_an_account_that_somebody_else_took_is_let_go_and_taken_when_it_is_free(client: Client) -> None:
    with websocket_platform() as platform, listening_to(client, platform):
        platform.say(1, "hello")
        until(lambda: taken(client) == [("1", "run")])
        with client.database.write() as connection:
            connection.execute(
                sa.update(channels).values(lease_token="theirs", holder="other", lease_until=db_now() + 2)
            )
        until(lambda: platform.connections == 2)
        platform.say(2, "again")
        until(lambda: taken(client) == [("1", "run"), ("2", "run")])
