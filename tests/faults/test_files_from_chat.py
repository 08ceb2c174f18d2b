"""A document that somebody sends in a chat, on real workers: fetched by one, put into the workspace by another."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.fault_server import Reply
from support.listening import listening
from support.patience import PATIENCE_S
from support.rig import Rig, rig_on, until
from support.sent_files import document, plain
from support.telegram_server import TOKEN, TelegramServer

from hermes_worker.core.run import RunStatus
from hermes_worker.lab.plan import FleetRole
from hermes_worker.local.valkey import EmbeddedValkey
from hermes_worker.store.tables import inbound_files, messages, runs

pytestmark = pytest.mark.faults


@contextmanager
def chatting(
    tmp_path: Path, postgres_url: str, broker: EmbeddedValkey, telegram: TelegramServer, **more: str
) -> Iterator[Rig]:
    """Workers, one of which fetches files, and a gateway that listens to the account."""
    environ = {
        "HERMES_GATEWAY": "true",
        "HERMES_GATEWAY_LEASE_S": "20",
        "GATEWAY_ALLOWED_USERS": "*",
        "TELEGRAM_BOT_TOKEN": TOKEN,
        "TELEGRAM_BASE_URL": telegram.url,
        **more,
    }
    with (
        rig_on(
            tmp_path,
            database_url=postgres_url,
            broker_url=broker.url,
            workers_per_role=1,
            more_environ=environ,
            queues={FleetRole.MODEL: ("model", "system"), FleetRole.TOOLS: ("tools", "delivery")},
        ) as rig,
        listening(rig),
    ):
        yield rig


def ended(rig: Rig) -> str:
    """Wait until the turn of the person is over; its run."""

    def run_id() -> str | None:
        with rig.client.database.read() as connection:
            wanted = sa.select(runs.c.run_id).where(runs.c.principal == "telegram:42")
            found: str | None = connection.execute(wanted).scalar()
            return found

    [run] = rig.ended(until(run_id, "the run"))
    assert run.status is RunStatus.COMPLETED
    return run.run_id


def rows(rig: Rig, *columns: sa.Column[Any]) -> list[tuple[Any, ...]]:
    with rig.client.database.read() as connection:
        return [tuple(row) for row in connection.execute(sa.select(*columns).order_by(columns[0]))]


def test_a_document_from_a_chat_is_where_the_agent_is_told_that_it_is(
    tmp_path: Path, postgres_url: str, own_valkey: EmbeddedValkey
) -> None:
    with TelegramServer() as telegram:
        telegram.files.contents["d1"] = b"a,b\n1,2\n"
        with chatting(tmp_path, postgres_url, own_valkey, telegram) as rig:
            telegram.write(42, "", caption="what is in it?", **document("d1", "../../numbers.csv"))
            ended(rig)
            assert rows(rig, inbound_files.c.state, inbound_files.c.content_hash) == [("fetched", None)]
            bodies = [body for _, body in rows(rig, messages.c.seq, messages.c.body)]
            assert 'in your workspace as \\"inbox/numbers-' in bodies[0]
            # The stand-in for a model lists the files of the workspace.
            assert any("inbox/numbers-" in body for body in bodies[1:])
    [kept] = tmp_path.rglob("inbox/numbers-*.csv")
    assert kept.read_bytes() == b"a,b\n1,2\n"


@pytest.mark.nightly
def test_a_file_of_20_mb_comes_through_the_gateway_into_the_workspace(
    tmp_path: Path, postgres_url: str, own_valkey: EmbeddedValkey
) -> None:
    content = os.urandom(20 * 1024**2)
    with TelegramServer() as telegram:
        telegram.files.contents["d1"] = content
        with chatting(tmp_path, postgres_url, own_valkey, telegram) as rig:
            telegram.write(42, "", caption="keep it", **document("d1", "large.bin"))
            ended(rig)
    [kept] = tmp_path.rglob("inbox/large-*.bin")
    assert hashlib.sha256(kept.read_bytes()).digest() == hashlib.sha256(content).digest()


def test_a_fetch_that_is_killed_in_the_middle_leaves_one_file_and_one_turn(
    tmp_path: Path, postgres_url: str, own_valkey: EmbeddedValkey
) -> None:
    content = os.urandom(4 * 1024**2)
    is_half = threading.Event()

    def once_half(reply: Reply) -> None:
        """The first worker that asks gets half of it, and no more."""
        if is_half.is_set():
            plain(content)(reply)
            return
        reply.raw(f"HTTP/1.1 200 OK\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content[: 2 * 1024**2])
        is_half.set()
        reply.block()

    with TelegramServer() as telegram:
        telegram.files.contents["d1"] = once_half
        with chatting(tmp_path, postgres_url, own_valkey, telegram) as rig:
            telegram.write(42, "", caption="keep it", **document("d1", "large.bin"))
            assert is_half.wait(PATIENCE_S)
            victim = rig.fleet.find_worker(FleetRole.TOOLS, 0)
            rig.fleet.kill(victim)
            assert rows(rig, inbound_files.c.state, inbound_files.c.attempts) == [("running", 1)]
            rig.fleet.replace(victim)
            ended(rig)
            assert rows(rig, inbound_files.c.state, inbound_files.c.attempts) == [("fetched", 2)]
            assert len(rows(rig, runs.c.pk)) == 1
            said = [body for _, body in rows(rig, messages.c.seq, messages.c.body) if '"role":"user"' in body]
            assert ["keep it" in body for body in said] == [True], "the turn began once"
            assert telegram.files.fetched == ["d1", "d1"]
            assert rig.broken_invariants() == []
    [kept] = tmp_path.rglob("inbox/large-*.bin")
    assert kept.read_bytes() == content
