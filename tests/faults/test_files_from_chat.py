"""A document that somebody sends in a chat, on real workers: fetched by one, put into the workspace by another."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa
from support.listening import listening
from support.rig import rig_on, until
from support.sent_files import document
from support.telegram_server import TOKEN, TelegramServer

from hermes_worker.core.run import RunStatus
from hermes_worker.lab.plan import FleetRole
from hermes_worker.local.valkey import EmbeddedValkey
from hermes_worker.store.tables import inbound_files, messages, runs

pytestmark = pytest.mark.faults


def test_a_document_from_a_chat_is_where_the_agent_is_told_that_it_is(
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
        telegram.files.contents["d1"] = b"a,b\n1,2\n"
        with (
            rig_on(
                tmp_path,
                database_url=postgres_url,
                broker_url=own_valkey.url,
                workers_per_role=1,
                more_environ=environ,
                queues={FleetRole.MODEL: ("model", "system"), FleetRole.TOOLS: ("tools", "delivery")},
            ) as rig,
            listening(rig),
        ):
            telegram.write(42, "", caption="what is in it?", **document("d1", "../../numbers.csv"))

            def run_id() -> str | None:
                with rig.client.database.read() as connection:
                    wanted = sa.select(runs.c.run_id).where(runs.c.principal == "telegram:42")
                    found: str | None = connection.execute(wanted).scalar()
                    return found

            [run] = rig.ended(until(run_id, "the run"))
            assert run.status is RunStatus.COMPLETED
            with rig.client.database.read() as connection:
                state, content_hash = connection.execute(
                    sa.select(inbound_files.c.state, inbound_files.c.content_hash)
                ).one()
                bodies = connection.execute(sa.select(messages.c.body).order_by(messages.c.seq)).scalars().all()
            assert (state, content_hash) == ("fetched", None)
            assert 'in your workspace as \\"inbox/numbers-' in bodies[0]
            # The stand-in for a model lists the files of the workspace.
            assert any("inbox/numbers-" in body for body in bodies[1:])
    [kept] = tmp_path.rglob("inbox/numbers-*.csv")
    assert kept.read_bytes() == b"a,b\n1,2\n"
