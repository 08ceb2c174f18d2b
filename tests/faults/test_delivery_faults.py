"""Deliveries through everything that can go wrong: none is lost, and what may be a duplicate says so or is recognised.

The receivers fail half of the messages once or twice before they take them: they are busy, say when to come back, hang
up before they have read anything, or take the message and hang up without a word. Meanwhile workers are killed at
random, and where it hurts: after the claim, and after the message went out.
"""

from __future__ import annotations

import json
import random
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.rig import Rig, rig_on, until
from support.smtp_server import smtp_server

from hermes_worker.channels.errors import DUPLICATE_REMARK
from hermes_worker.core.delivery_states import DeliveryState
from hermes_worker.lab.plan import FleetRole
from hermes_worker.local.valkey import EmbeddedValkey
from hermes_worker.store.outbox.deliveries import SETTLED, Deliveries, enqueue_deliveries

pytestmark = pytest.mark.faults

MARK = re.compile(r"message [0-9]{5}")
DELIVERING = {FleetRole.MODEL: ("delivery", "system"), FleetRole.TOOLS: ("delivery",)}
PATIENCE_S = 400.0
_POINTS = ("deliver.after_claim=kill@{n}", "deliver.after_send=kill@{n}", "")


@dataclass
class Receivers:
    """What was taken, by whom, under which message's mark."""

    random: random.Random
    tries_failed: tuple[int, ...]
    """How often a message may fail; one is chosen for each."""
    url: str = ""
    taken: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    keys: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    refused: Counter[str] = field(default_factory=Counter)
    faults: dict[str, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def fault(self, mark: str) -> str:
        """What goes wrong this time."""
        with self.lock:
            left = self.faults.setdefault(mark, self.random.choice(self.tries_failed))
            if left == 0:
                return ""
            self.faults[mark] -= 1
            kind = self.random.choice(("busy", "later", "deaf", "mute"))
            self.refused[kind] += 1
            return kind

    def take(self, mark: str, text: str, key: str = "") -> None:
        with self.lock:
            self.taken[mark].append(text)
            if key:
                self.keys[mark].add(key)


def handler_of(receivers: Receivers) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            document = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            mark = MARK.search(document["text"])
            assert mark is not None
            match receivers.fault(mark[0]):
                case "busy":
                    self._answer(503)
                case "later":
                    self._answer(429)
                case "deaf":
                    self.close_connection = True
                case "mute":
                    receivers.take(mark[0], document["text"], self.headers.get("Idempotency-Key", ""))
                    self.close_connection = True
                case _:
                    receivers.take(mark[0], document["text"], self.headers.get("Idempotency-Key", ""))
                    self._answer(200)

        def _answer(self, status: int) -> None:
            body = b'{"ok": true, "id": "m1", "result": {"message_id": 7}}' if status == 200 else b""
            self.send_response(status)
            if status == 429:
                self.send_header("Retry-After", "1")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Quiet."""

    return Handler


class Receiver(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that was killed in the middle of a request is what this is about."""


@contextmanager
def receiving(seed: int, tries_failed: tuple[int, ...]) -> Iterator[Receivers]:
    receivers = Receivers(random.Random(seed), tries_failed)
    server = Receiver(("127.0.0.1", 0), handler_of(receivers))
    receivers.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield receivers
    server.shutdown()
    server.server_close()


def send_all(rig: Rig, count: int, url: str) -> None:
    """A third each to a webhook, a chat and a mailbox."""
    targets = (f"webhook:{url}/hook", "telegram:123", "email:me@example.org")
    with rig.client.database.write() as connection:
        hints = [
            hint
            for number in range(count)
            for hint in enqueue_deliveries(connection, [targets[number % 3]], body=f"This is message {number:05}.")
        ]
    rig.client.publisher.send(hints)


def break_workers(rig: Rig, seed: int, kills: int, over: threading.Event) -> None:
    """Kill at random, replace at once; every other newcomer has a fault point armed."""
    chosen = random.Random(seed)
    for _ in range(kills):
        if over.wait(chosen.uniform(0.2, 1.0)):
            return
        victim = chosen.choice(rig.fleet.workers)
        rig.fleet.kill(victim)
        plan = chosen.choice(_POINTS).format(n=chosen.randint(1, 8))
        rig.fleet.replace(victim, faults=plan)


def revive(rig: Rig) -> None:
    """Put a worker wherever an armed fault left none."""
    for worker in list(rig.fleet.workers):
        if not rig.fleet.is_alive(worker):
            rig.fleet.replace(worker)


def all_settled(rig: Rig, count: int) -> Counter[DeliveryState]:
    outbox = Deliveries(rig.client.database)

    def settled() -> Counter[DeliveryState] | None:
        revive(rig)
        states = Counter(view.state for view in outbox.list(limit=count))
        return states if set(states) <= SETTLED else None

    return until(settled, f"{count} deliveries to be settled", patience_s=PATIENCE_S)


def through_everything(rig: Rig, receivers: Receivers, mails: list[bytes], *, count: int, kills: int) -> None:
    over = threading.Event()
    send_all(rig, count, receivers.url)
    breaker = threading.Thread(target=break_workers, args=(rig, count, kills, over))
    breaker.start()
    breaker.join()
    over.set()
    all_settled(rig, count)
    outbox = Deliveries(rig.client.database)
    given_up = outbox.list(limit=count, state=DeliveryState.ABANDONED)
    for view in given_up:  # visible, and sent again by whoever looks after it
        rig.client.publisher.send(outbox.retry(view.delivery_id))
    assert all_settled(rig, count) == {DeliveryState.DELIVERED: count}
    judge(receivers, mails, count)


def judge(receivers: Receivers, mails: list[bytes], count: int) -> None:
    taken = {mark: list(texts) for mark, texts in receivers.taken.items()}
    for mail in mails:
        text = mail.decode().replace("=\r\n", "")
        mark = MARK.search(text)
        assert mark is not None
        taken.setdefault(mark[0], []).append(DUPLICATE_REMARK if "may be a duplicate" in text else text)
    lost = {f"message {number:05}" for number in range(count)} - taken.keys()
    assert lost == set()
    for mark, texts in taken.items():
        if int(mark.split()[1]) % 3 == 0:
            assert len(receivers.keys[mark]) == 1, f"{mark}: every copy has the key of the first"
        else:
            unmarked = [text for text in texts if not text.startswith(DUPLICATE_REMARK)]
            assert len(unmarked) <= 1, f"{mark} arrived {len(texts)} times, {len(unmarked)} times without a remark"


@contextmanager
def office(
    tmp_path: Path, database_url: str, broker_url: str, *, count: int, tries_failed: tuple[int, ...]
) -> Iterator[tuple[Rig, Receivers, list[bytes]]]:
    chosen = random.Random(count)
    with ExitStack() as stack:
        receivers = stack.enter_context(receiving(count, tries_failed))
        mailbox = stack.enter_context(smtp_server())
        mailbox.next_replies.extend(chosen.choice(("", "", "450 4.2.0 busy", "drop")) for _ in range(count // 3))
        environ = {
            "HERMES_DELIVERY_ALLOW_PRIVATE_URLS": "true",
            "TELEGRAM_BOT_TOKEN": "1:abc",
            "TELEGRAM_BASE_URL": receivers.url,
            "EMAIL_SMTP_HOST": "127.0.0.1",
            "EMAIL_SMTP_PORT": str(mailbox.port),
            "EMAIL_ADDRESS": "hermes@example.org",
        }
        rig = stack.enter_context(
            rig_on(
                tmp_path,
                database_url=database_url,
                broker_url=broker_url,
                more_environ=environ,
                queues=DELIVERING,
            )
        )
        yield rig, receivers, mailbox.mails


def test_no_delivery_is_lost_and_no_duplicate_is_silent(
    tmp_path: Path, postgres_url: str, own_valkey: EmbeddedValkey
) -> None:
    with office(tmp_path, postgres_url, own_valkey.url, count=60, tries_failed=(0, 1)) as (rig, receivers, mails):
        through_everything(rig, receivers, mails, count=60, kills=4)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
def test_a_thousand_deliveries_are_neither_lost_nor_silently_repeated(
    tmp_path: Path, own_valkey: EmbeddedValkey, request: pytest.FixtureRequest, kind: str
) -> None:
    url = request.getfixturevalue("postgres_url") if kind == "postgresql" else f"sqlite:///{tmp_path / 'soak.db'}"
    with office(tmp_path, url, own_valkey.url, count=1000, tries_failed=(0, 0, 1, 2)) as (rig, receivers, mails):
        through_everything(rig, receivers, mails, count=1000, kills=60)
        copies = sum(len(texts) for texts in receivers.taken.values()) + len(mails)
        print(f"\n{rig.fleet.started} workers; receivers failed {dict(receivers.refused)}; {copies} copies arrived")
