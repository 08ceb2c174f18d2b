"""What our variant of kombu's Redis transport does differently."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from kombu import Connection, Consumer, Exchange, Queue
from support.logs import kept_log
from support.valkey import for_administrator

from hermes_worker.broker.queue import KEY_PREFIX, QueueName, TaskName, render_envelope
from hermes_worker.broker.transport import POPPED_MAX, QoS, install_transports
from hermes_worker.local import valkey as valkey_module
from hermes_worker.local.valkey import EmbeddedValkey
from hermes_worker.settings.kinds import convert_socket_url

QUEUE = QueueName.MODEL


@contextlib.contextmanager
def consuming(broker_url: str, on_message: Callable[[Any], None], *, prefetch: int = 0) -> Iterator[Connection]:
    install_transports()
    options = {"global_keyprefix": KEY_PREFIX}
    with (
        Connection(
            convert_socket_url(broker_url, "redis+socket", "virtual_host"), transport_options=options
        ) as connection,
        Consumer(connection, [Queue(QUEUE.value)], on_message=on_message, accept=["json"]) as consumer,
    ):
        if prefetch:
            consumer.qos(prefetch_count=prefetch)
        yield connection


def fill(broker_url: str, labels: list[str]) -> redis.Redis:
    client = redis.Redis.from_url(for_administrator(broker_url))
    for label in labels:
        client.lpush(
            f"{KEY_PREFIX}{QUEUE.value}", render_envelope(TaskName.ITERATE, QUEUE, ["run_1", 1, 1, 0.0], label)
        )
    return client


def drain(connection: Connection, seen: list[Any], count: int) -> None:
    with contextlib.suppress(socket.timeout):
        while len(seen) < count:
            connection.drain_events(timeout=5)


def pops(client: redis.Redis) -> int:
    """Commands by which messages were taken so far."""
    stats = client.info("commandstats")
    return sum(int(stats.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in ("blmpop", "brpop"))


def test_messages_that_wait_come_together_and_in_order(broker_url: str) -> None:
    labels = [str(number) for number in range(3 * POPPED_MAX)]
    client = fill(broker_url, labels)
    before = pops(client)
    seen: list[str] = []
    with consuming(broker_url, lambda message: seen.append(message.headers["argsrepr"])) as connection:
        drain(connection, seen, len(labels))
    assert seen == labels
    assert pops(client) - before == 3


def test_no_more_are_taken_than_the_worker_has_room_for(broker_url: str) -> None:
    client = fill(broker_url, ["a", "b", "c"])
    seen: list[str] = []
    with consuming(broker_url, lambda message: seen.append(message.headers["argsrepr"]), prefetch=2) as connection:
        drain(connection, seen, 2)
        assert client.llen(f"{KEY_PREFIX}{QUEUE.value}") == 1
    assert seen == ["a", "b"]


def test_a_message_that_breaks_its_handler_takes_none_along(broker_url: str) -> None:
    fill(broker_url, ["a", "bad", "c"])
    seen: list[str] = []

    def handle(message: Any) -> None:
        if message.headers["argsrepr"] == "bad":
            raise ValueError("cannot be handled")
        seen.append(message.headers["argsrepr"])

    with consuming(broker_url, handle) as connection, pytest.raises(ValueError, match="cannot be handled"):
        drain(connection, seen, 3)
    assert seen == ["a", "c"]


HONEST = {
    "body": "ImhvbmVzdCI=",
    "content-type": "application/json",
    "content-encoding": "utf-8",
    "headers": {},
    "properties": {"delivery_tag": "1", "delivery_info": {}, "body_encoding": "base64"},
}
PICKLED = HONEST | {"content-type": "application/x-python-serialize"}


@pytest.mark.parametrize(
    "text",
    ["x", "null", "1", "[]", "{}", '{"body": 1}', '{"properties": null}', "[" * 100_000, json.dumps(PICKLED), b"\xff"],
    ids=lambda text: str(text)[:20],
)
def test_what_is_no_command_of_remote_control_is_dropped_and_loses_no_connection(
    broker_url: str, text: str | bytes
) -> None:
    install_transports()
    seen: list[str] = []
    queue = Queue("us", Exchange("celery.pidbox", type="fanout", durable=False), auto_delete=True)
    options = {"global_keyprefix": KEY_PREFIX}
    with (
        Connection(
            convert_socket_url(broker_url, "redis+socket", "virtual_host"), transport_options=options
        ) as connection,
        Consumer(connection, [queue], callbacks=[lambda body, _: seen.append(body)], accept=["json"]),
        redis.Redis.from_url(for_administrator(broker_url)) as stranger,
    ):
        with contextlib.suppress(socket.timeout):
            connection.drain_events(timeout=0.05)  # subscribes
        for published in (text, json.dumps(HONEST)):
            assert stranger.publish(f"{KEY_PREFIX}/0.celery.pidbox", published) == 1
        drain(connection, seen, 1)
    assert seen == ["honest"]


def test_a_server_without_blmpop_is_asked_for_one_at_a_time(old_server_url: str) -> None:
    labels = ["a", "b", "c"]
    fill(old_server_url, labels)
    seen: list[str] = []
    with consuming(old_server_url, lambda message: seen.append(message.headers["argsrepr"])) as connection:
        drain(connection, seen, len(labels))
    assert seen == labels


@pytest.fixture
def old_server_url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server that knows as little as Redis 6.2 of what we use."""
    directory = Path(tempfile.mkdtemp(prefix="hermes-vk-"))
    monkeypatch.setattr(valkey_module, "find_version", lambda binary: "6.2.0")
    server = EmbeddedValkey(directory, is_durable=False, has_administrator=True)
    process = subprocess.Popen(
        [*server.prepare(), "--rename-command", "BLMPOP", ""], pass_fds=server.pass_fds, stdout=subprocess.DEVNULL
    )
    try:
        while not server.is_ready():
            assert process.poll() is None
            time.sleep(0.01)
        yield server.url
    finally:
        process.kill()
        process.wait()
        server.release()
        shutil.rmtree(directory, ignore_errors=True)


def test_what_cannot_be_given_back_at_the_end_is_dropped_without_a_file_or_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    class Gone:
        """A channel whose broker is away."""

        do_restore = True
        basic_consume = prefetch_count = None

        def _restore(self, message: object) -> None:
            raise ConnectionRefusedError("the broker is away")

    qos = QoS(Gone())
    qos.append(object(), 1)
    with kept_log() as lines:
        qos.restore_unacked_once()

    assert list(tmp_path.iterdir()) == []
    assert [json.loads(line)["event"] for line in lines.getvalue().splitlines() if "error" in line] == []
    assert "hint.failed" in lines.getvalue()
