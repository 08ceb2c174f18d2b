"""What it costs to listen over an open connection while nobody says anything."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from types import SimpleNamespace

import pytest
from inbound.test_socket_listening import client  # noqa: F401
from support.inbound_cases import CASES
from support.plans import statements
from support.socket_cases import SOCKET_CASES, SocketCase, framed

from hermes_worker.channels.receivers import load_receivers
from hermes_worker.gateway import sockets
from hermes_worker.gateway.inbound import InboundHandler
from hermes_worker.gateway.sockets import SocketAccount, SocketListening
from hermes_worker.net.http import HttpRequest, HttpResponse
from hermes_worker.settings import GatewaySettings
from hermes_worker.store.gateway import GatewayRows
from hermes_worker.wiring import Client

IDLE_S = 1_200.0
KEPT_ALIVE: Mapping[str, str] = {
    "irc": ":irc.test PONG irc.test :hermes-worker",
    "discord": json.dumps({"op": 11}),
    "homeassistant": json.dumps({"id": 2, "type": "pong"}),
    "ntfy": json.dumps({"id": "k", "time": 1_795_600_000, "event": "keepalive", "topic": "mine,other"}),
}
"""What a platform says while nobody says anything."""


class SilentConnection:
    """One on which time passes at once."""

    def __init__(self, case: SocketCase, alive: str | None, stopping: threading.Event) -> None:
        self._frames = [framed(one) for one in case.opening]
        self._alive = alive
        self._stopping = stopping
        self.now = 1_000.0
        self._alive_at = self.now + 20
        self.sent = 0

    def receive(self, timeout_s: float) -> str | None:
        if self._frames:
            return self._frames.pop(0)
        self.now += timeout_s
        if self.now >= 1_000 + IDLE_S:
            self._stopping.set()
        if self._alive is not None and self.now >= self._alive_at:
            self._alive_at = self.now + 20
            return self._alive
        return None

    def send(self, frame: str) -> None:
        self.sent += 1

    def close(self) -> None:
        return


def answered(case: SocketCase) -> Callable[..., HttpResponse]:
    def send(request: HttpRequest, *_: object, **__: object) -> HttpResponse:
        return case.answers(request)

    return send


@pytest.mark.parametrize("name", sorted(SOCKET_CASES))
def test_an_idle_account_costs_at_most_two_statements_a_minute(
    client: Client,  # noqa: F811
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    receiver, case, stopping = load_receivers()[name], SOCKET_CASES[name], threading.Event()
    connection = SilentConnection(case, KEPT_ALIVE.get(name), stopping)
    monkeypatch.setattr(sockets, "time", SimpleNamespace(monotonic=lambda: connection.now))
    monkeypatch.setattr(sockets, "open_frames", lambda *_: connection)
    monkeypatch.setattr(sockets, "send", answered(case))
    rows, lease_s = GatewayRows(client.database), GatewaySettings().lease_s
    hold = rows.acquire_lease(f"{name}:default", mode="socket", token_hash="t", holder="gw", lease_s=lease_s)
    assert hold is not None
    held = SocketAccount(
        account=f"{name}:default",
        platform=name,
        name="default",
        open_talk=lambda: receiver.open_talk(receiver.build_credentials(CASES[name].values)),
        hold=hold,
        lease_s=lease_s,
    )
    with statements(client.database) as asked:
        ended = SocketListening(held, rows, InboundHandler(client), "").listen(stopping)
    assert ended.error is None
    assert connection.now >= 1_000 + IDLE_S
    told = [statement for statement, _ in asked if not statement.startswith("BEGIN")]
    assert 2 <= len(told) <= 2 * IDLE_S / 60
