"""Three gateways with one token, and the one that listens is killed or frozen again and again: every message becomes
one run, in the order in which its chat wrote it, and nobody asks while another one does.

On PostgreSQL: a process that is frozen while it writes holds SQLite's one lock for as long as it is frozen.
"""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random

import pytest
import sqlalchemy as sa
from support import gateway_replica
from support.migrated import bring_up
from support.rig import until
from support.telegram_server import TOKEN, TelegramServer

from hermes_worker.core.errors import UnavailableError
from hermes_worker.gateway.listening import GatewayListener
from hermes_worker.settings import load_settings
from hermes_worker.store.build import build_database
from hermes_worker.store.engine.database import Database
from hermes_worker.store.gateway import GatewayRows
from hermes_worker.store.runs.inputs import require_spec
from hermes_worker.store.tables import channels, inbound, runs, sessions
from hermes_worker.wiring import open_client

pytestmark = [pytest.mark.faults]

PATIENCE_S = 240.0
LEASE_S = 2.0


class Gateways:
    """Three at a time; whoever is killed is replaced."""

    def __init__(self, environ: dict[str, str], database: Database) -> None:
        self._environ = environ
        self._database = database
        self._numbers = count(1)
        self._alive: dict[str, BaseProcess] = {}
        self.silent_s: list[float] = []
        """How long nobody listened after each hurt."""
        for _ in range(3):
            self._start()

    def _start(self) -> None:
        name = f"gateway{next(self._numbers)}"
        self._alive[name] = gateway_replica.start(name, self._environ)

    def holder(self) -> str | None:
        """Who listens, as far as that is one who can."""
        with self._database.read() as connection:
            name = connection.execute(sa.select(channels.c.holder)).scalar()
        return name if name in self._alive else None

    def kill(self) -> None:
        name = until(self.holder, "somebody to listen", patience_s=PATIENCE_S)
        process = self._alive.pop(name)
        process.kill()
        process.join()
        began = time.monotonic()
        self._start()
        until(self.holder, "somebody else to listen", patience_s=PATIENCE_S)
        self.silent_s.append(time.monotonic() - began)

    def freeze(self) -> None:
        """The one that listens, until another one does."""
        name = until(self.holder, "somebody to listen", patience_s=PATIENCE_S)
        frozen = self._alive.pop(name)
        assert frozen.pid is not None
        os.kill(frozen.pid, signal.SIGSTOP)
        began = time.monotonic()
        try:
            until(self.holder, "somebody else to listen", patience_s=PATIENCE_S)
            self.silent_s.append(time.monotonic() - began)
        finally:
            os.kill(frozen.pid, signal.SIGCONT)
        self._alive[name] = frozen

    def end(self) -> None:
        for process in self._alive.values():
            process.kill()
            process.join()


@contextmanager
def gateways(telegram: TelegramServer, url: str, broker_url: str, directory: Path) -> Iterator[Gateways]:
    (directory / "home").mkdir()
    bring_up(url)
    environ = {
        "HOME": str(directory),
        "PATH": os.environ["PATH"],
        "HERMES_HOME": str(directory / "home"),
        "HERMES_DATABASE_URL": url,
        "HERMES_BROKER_URL": broker_url,
        "HERMES_PROVIDER": "scripted",
        "HERMES_GATEWAY": "true",
        "HERMES_GATEWAY_LEASE_S": f"{LEASE_S:.0f}",
        "HERMES_GATEWAY_BUSY_INPUT_MODE": "queue",
        "HERMES_GATEWAY_BURST_S": "0",
        "GATEWAY_ALLOWED_USERS": "*",
        "TELEGRAM_BOT_TOKEN": TOKEN,
        "TELEGRAM_BASE_URL": telegram.url,
    }
    database = build_database(load_settings(environ))
    running = Gateways(environ, database)
    try:
        yield running
    finally:
        running.end()
        database.close()


def written(database: Database) -> dict[str, list[str]]:
    """What the runs of each session were asked, in order."""
    found = defaultdict(list)
    wanted = sa.select(sessions.c.name, runs.c.pk).join(sessions, sessions.c.pk == runs.c.session_pk)
    with database.read() as connection:
        for name, pk in connection.execute(wanted.order_by(runs.c.pk)).all():
            found[name].append(require_spec(connection, pk).input)
    return dict(found)


def test_every_message_becomes_one_run_in_its_order(postgres_url: str, broker_url: str, tmp_path: Path) -> None:
    random = Random(21)
    chats, each, hurts = 4, 10, 4
    with (
        TelegramServer(looked_max=4, conflict_odds=0.1) as telegram,
        gateways(telegram, postgres_url, broker_url, tmp_path) as running,
    ):
        write(telegram, chats, each)
        for part in range(1, hurts + 1):
            due = part * chats * each // (hurts + 1)
            until(lambda due=due: taken(running) >= due or None, f"{due} messages to be taken", patience_s=PATIENCE_S)
            running.freeze() if random.random() < 0.5 else running.kill()
        assert_each_is_one_run(telegram, running, chats, each)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_thousand_messages_while_the_listener_is_hurt_every_two_seconds(
    postgres_url: str, broker_url: str, tmp_path: Path
) -> None:
    random = Random(21)
    chats, each = 400, 25
    with (
        TelegramServer(looked_max=20, conflict_odds=0.1) as telegram,
        gateways(telegram, postgres_url, broker_url, tmp_path) as running,
    ):
        write(telegram, chats, each)
        while taken(running) < chats * each:
            until(running.holder, "somebody to listen", patience_s=PATIENCE_S)
            threading.Event().wait(2.0)
            running.freeze() if random.random() < 0.5 else running.kill()
        assert_each_is_one_run(telegram, running, chats, each)
        parts = statistics.quantiles(running.silent_s, n=20)
        print(
            f"{len(running.silent_s)} hurts, {telegram.conflicts} conflicts; nobody listened for "
            f"p50 {parts[9]:.2f} s, p95 {parts[18]:.2f} s, at most {max(running.silent_s):.2f} s"
        )
        assert parts[18] <= LEASE_S + 2.0


def test_a_gateway_that_is_frozen_in_a_transaction_does_not_keep_its_account(
    postgres_url: str, broker_url: str, tmp_path: Path
) -> None:
    """As frozen as can be done within one process: nothing happens in the transaction any more."""
    bring_up(postgres_url)
    environ = {
        "HOME": str(tmp_path),
        "HERMES_HOME": str(tmp_path),
        "HERMES_DATABASE_URL": postgres_url,
        "HERMES_BROKER_URL": broker_url,
        "HERMES_GATEWAY_LEASE_S": f"{LEASE_S:.0f}",
    }
    client, others = open_client(load_settings(environ)), build_database(load_settings(environ))
    GatewayListener(client, [], name="gw", alive_file=None)
    account, how = "telegram:default", {"mode": "poll", "token_hash": "t", "lease_s": LEASE_S}
    assert GatewayRows(client.database).acquire_lease(account, holder="gw", **how) is not None
    with pytest.raises(UnavailableError), client.database.write() as connection:
        connection.execute(sa.update(channels).values(cursor="7"))
        until(lambda: GatewayRows(others).acquire_lease(account, holder="other", **how), "the account to be free")
    with others.read() as connection:
        assert connection.execute(sa.select(channels.c.holder, channels.c.cursor)).all() == [("other", None)]
    client.close()
    others.close()


def write(telegram: TelegramServer, chats: int, each: int) -> None:
    for number in range(each):
        for chat in range(1, chats + 1):
            telegram.write(chat, f"message {number}")


def assert_each_is_one_run(telegram: TelegramServer, running: Gateways, chats: int, each: int) -> None:
    until(lambda: not telegram.updates or None, "everything to be read", patience_s=PATIENCE_S)
    asked = written(running._database)
    assert asked == {
        f"agent:main:telegram:dm:{chat}": [f"message {number}" for number in range(each)]
        for chat in range(1, chats + 1)
    }
    assert taken(running) == chats * each
    assert telegram.overlaps == 0
    assert telegram.conflicts > 0


def taken(running: Gateways) -> int:
    with running._database.read() as connection:
        return connection.execute(sa.select(sa.func.count()).select_from(inbound)).scalar_one()
