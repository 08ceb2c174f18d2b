"""``/stop`` in a chat, while a worker of another process runs a command for it."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa
from support.listening import listening
from support.rig import rig_on, until
from support.telegram_server import TOKEN, TelegramServer

from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.core.run import RunStatus
from hermes_worker.local.valkey import EmbeddedValkey
from hermes_worker.store.tables import runs

pytestmark = pytest.mark.faults

STOPPED_WITHIN_S = 2.0
"""From the message until the command has ended. On a machine that is busy with other things, no longer than
``RUNS_MEANWHILE`` whole runs that were made just before."""
RUNS_MEANWHILE = 3
SLEEP = "sleep 617.21"


def is_asleep() -> bool:
    """Whether the command is at work."""
    return any(each.info["cmdline"] == SLEEP.split() for each in psutil.process_iter(["cmdline"]))


def test_a_stop_from_a_chat_reaches_a_command_on_a_worker(
    tmp_path: Path, postgres_url: str, own_valkey: EmbeddedValkey
) -> None:
    with TelegramServer() as telegram:
        environ = {
            "HERMES_GATEWAY": "true",
            "HERMES_GATEWAY_LEASE_S": "20",
            "GATEWAY_ALLOWED_USERS": "*",
            "TELEGRAM_BOT_TOKEN": TOKEN,
            "TELEGRAM_BASE_URL": telegram.url,
        }
        with (
            rig_on(tmp_path, database_url=postgres_url, broker_url=own_valkey.url, more_environ=environ) as rig,
            listening(rig),
        ):
            began = time.monotonic()
            rig.ended(rig.submit([]))
            beside_s = time.monotonic() - began
            steps = [{"calls": [{"name": "terminal", "arguments": {"command": SLEEP}}]}]
            telegram.write(42, f"scripted: {dump_canonical_json({'steps': steps})}")
            until(lambda: is_asleep() or None, "the command to begin")
            asked_at = time.monotonic()
            telegram.write(42, "/stop")
            until(lambda: not is_asleep() or None, "the command to end")
            took_s = time.monotonic() - asked_at
            assert took_s <= max(STOPPED_WITHIN_S, RUNS_MEANWHILE * beside_s)
            with rig.client.database.read() as connection:
                wanted = sa.select(runs.c.run_id).where(runs.c.principal == "telegram:42")
                run_id = connection.execute(wanted).scalar_one()
            [run] = rig.ended(run_id)
            assert run.status is RunStatus.CANCELLED
            print(f"stopped within {took_s:.2f} s; a whole run took {beside_s:.2f} s")
