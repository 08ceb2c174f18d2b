"""From a person's message to the row of its run: ``python -m benchmarks.chats``.

A server that speaks as Telegram's Bot API is written to by many chats on a timetable, and a gateway process of its own
listens. A message counts from the moment at which the server had it until the gateway asked for what comes behind it,
which it does when the row of its run is committed, and those of all that came with it. Nothing runs the runs.
docs/benchmarks.md has the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any

import psutil
import sqlalchemy as sa

from hermes_worker.local.postgres import EmbeddedPostgres
from hermes_worker.local.valkey import EmbeddedValkey
from hermes_worker.store.engine.database import Database
from hermes_worker.store.migrate import migrate
from hermes_worker.store.tables import runs

TOKEN = "77:benchmark"
_LOOKED_MAX = 100
_PATIENCE_S = 120.0


@dataclass
class Messages:
    """What people wrote, until an offset leaves it behind."""

    waiting: list[dict[str, Any]] = field(default_factory=list)
    written_at: dict[int, float] = field(default_factory=dict)
    """By the number of the update, in seconds of the monotonic clock."""
    taken_at: dict[int, float] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)
    number: int = 0
    is_asked: threading.Event = field(default_factory=threading.Event)
    """A gateway has looked once."""

    def write(self, person: int, text: str) -> None:
        with self.changed:
            self.number += 1
            who = {"id": person, "is_bot": False, "first_name": "Ada"}
            message = {"message_id": self.number, "date": int(time.time()), "from": who, "text": text}
            chat = {"id": person, "type": "private"}
            self.waiting.append({"update_id": self.number, "message": {**message, "chat": chat}})
            self.written_at[self.number] = time.monotonic()
            self.changed.notify_all()

    def look(self, offset: int, hold_s: float) -> list[dict[str, Any]]:
        self.is_asked.set()
        with self.changed:
            for one in self.waiting:
                if one["update_id"] < offset:
                    self.taken_at[one["update_id"]] = time.monotonic()
            self.waiting = [one for one in self.waiting if one["update_id"] >= offset]
            self.changed.wait_for(lambda: self.waiting, hold_s)
            return self.waiting[:_LOOKED_MAX]


@contextmanager
def telegram(messages: Messages) -> Iterator[str]:
    """The address of the server."""

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
            looks = self.path.endswith("/getUpdates")
            found: Any = messages.look(asked.get("offset", 0), asked.get("timeout", 0)) if looks else {}
            body = json.dumps({"ok": True, "result": found}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()


@contextmanager
def gateway(environ: Mapping[str, str]) -> Iterator[psutil.Process]:
    """A gateway as people start it."""
    process = subprocess.Popen([sys.executable, "-m", "hermes_worker", "start", "gateway"], env=dict(environ))
    try:
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(30)


def measured(database: Database, messages: Messages, chosen: argparse.Namespace) -> list[float]:
    """Seconds from each message to its run."""
    random = Random(21)
    every = chosen.chats * chosen.messages_per_min / 60
    due = sorted(random.uniform(0, chosen.seconds) for _ in range(int(every * chosen.seconds)))
    began = time.monotonic()
    for number, at in enumerate(due):
        time.sleep(max(0.0, began + at - time.monotonic()))
        messages.write(1 + number % chosen.chats, f"message {number}")
    ends_at = time.monotonic() + _PATIENCE_S
    while len(messages.taken_at) < len(due):
        if time.monotonic() > ends_at:
            raise SystemExit(f"{len(due) - len(messages.taken_at)} messages were not taken")
        time.sleep(0.2)
    with database.read() as connection:
        made = connection.execute(sa.select(sa.func.count()).select_from(runs)).scalar_one()
    if made != len(due):
        raise SystemExit(f"{len(due)} messages became {made} runs")
    return [at - messages.written_at[number] for number, at in messages.taken_at.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chats", type=int, default=200)
    parser.add_argument("--messages-per-min", type=float, default=5.0, help="of each chat")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--sqlite", action="store_true", help="in place of PostgreSQL")
    chosen = parser.parse_args()
    messages = Messages()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        directory.chmod(0o755)  # PostgreSQL runs as a user of its own
        broker = stack.enter_context(EmbeddedValkey(directory / "valkey"))
        url = f"sqlite:///{directory / 'chats.db'}"
        if not chosen.sqlite:
            url = stack.enter_context(EmbeddedPostgres(directory / "postgres")).create_database("chats")
        database = Database(url)
        stack.callback(database.close)
        migrate(database)
        environ = {
            "HOME": str(directory),
            "PATH": os.environ["PATH"],
            "HERMES_HOME": str(directory / "home"),
            "HERMES_DATABASE_URL": url,
            "HERMES_BROKER_URL": broker.url,
            "HERMES_PROVIDER": "scripted",
            "HERMES_LOG_LEVEL": "error",
            "HERMES_GATEWAY": "true",
            "HERMES_GATEWAY_ALLOWED_USERS": "*",
            "HERMES_GATEWAY_BUSY_INPUT_MODE": "queue",
            "TELEGRAM_BOT_TOKEN": TOKEN,
            "TELEGRAM_BASE_URL": stack.enter_context(telegram(messages)),
        }
        listening = stack.enter_context(gateway(environ))
        if not messages.is_asked.wait(_PATIENCE_S):
            raise SystemExit("no gateway asked for messages")
        before = listening.cpu_times()
        took_s = measured(database, messages, chosen)
        after = listening.cpu_times()
    parts = statistics.quantiles(took_s, n=100)
    load = os.getloadavg()[0]
    cpu_ms = (after.user + after.system - before.user - before.system) / len(took_s) * 1000
    sys.stdout.write(
        f"{len(took_s)} messages of {chosen.chats} chats in {chosen.seconds:.0f} s: p50 {parts[49] * 1000:.0f} ms, "
        f"p95 {parts[94] * 1000:.0f} ms, p99 {parts[98] * 1000:.0f} ms, longest {max(took_s) * 1000:.0f} ms; "
        f"{cpu_ms:.1f} ms of the gateway's CPU each; load {load:.0f}\n"
    )


if __name__ == "__main__":
    main()
