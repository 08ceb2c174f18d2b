"""Replays of recorded runs by real workers: they send the same bytes again, change nothing, and nothing leaves."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.commandline import CommandLine
from support.rig import Rig, rig_on, sink_call, until

from hermes_worker.features.spend.rows import SpendBy, SpendQuery, load_spend
from hermes_worker.lab.outside import DeliverySink
from hermes_worker.lab.plan import FleetRole
from hermes_worker.local.valkey import EmbeddedValkey
from hermes_worker.store.statistics import count_ended_rows
from hermes_worker.store.tables import deliveries, runs, sessions
from hermes_worker.store.whole_schema import load_schema

pytestmark = pytest.mark.faults
COUNTED = ("statistics", "spending", "memory_versions")
"""Tables that say what production did, and what it knows."""
INDEX = ("search_due", "search_rows")
"""Tables that are written some time after a run has ended."""
QUEUES = {FleetRole.MODEL: ("model", "system"), FleetRole.TOOLS: ("tools", "delivery")}
REMEMBER = {"name": "memory", "arguments": {"target": "memory", "action": "add", "content": "orders are paid"}}
REPLAY_S = 90.0
"""Seconds in which 500 runs are to be replayed, on two processors that do nothing else."""


def digest_originals(rig: Rig) -> dict[str, str]:
    """Digests of all rows of the runs that were submitted, of their conversations, and of what is counted, by table."""
    with rig.client.database.read() as connection:
        own = sa.select(runs.c.pk, runs.c.session_pk).where(runs.c.run_id.in_(rig.submitted))
        found = connection.execute(own).all()
        keys = {"run_pk": {row.pk for row in found}, "session_pk": {row.session_pk for row in found}}
        digests = {}
        for table in (each for each in load_schema().sorted_tables if each.name not in INDEX):
            name = next((name for name in keys if name in table.c), "run_pk" if table is runs else "session_pk")
            column = table.c.get(name, table.c.pk if table in (runs, sessions) else None)
            if column is not None or table.name in COUNTED:
                rows = [
                    row
                    for row in connection.execute(sa.select(table)).mappings()
                    if column is None or row[column] in keys[name]
                ]
                digests[table.name] = hashlib.sha256(repr(sorted(map(repr, rows))).encode()).hexdigest()
        return digests


def is_all_counted(rig: Rig) -> bool:
    count_ended_rows(rig.client.database)
    with rig.client.database.read() as connection:
        return not connection.execute(sa.select(runs.c.pk).where(runs.c.is_counted == 0)).first()


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(6, marks=pytest.mark.nightly),
        pytest.param(500, marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
    ],
)
def test_replays_send_the_same_bytes_and_leave_no_trace(
    tmp_path: Path, postgres_url: str, own_valkey: EmbeddedValkey, count: int
) -> None:
    private = {"HERMES_DELIVERY_ALLOW_PRIVATE_URLS": "true"}
    with (
        DeliverySink() as sink,
        rig_on(
            tmp_path,
            database_url=postgres_url,
            broker_url=own_valkey.url,
            more_environ=private,
            queues=QUEUES,
            keeps_bodies=True,
        ) as rig,
    ):
        for number in range(count):
            steps = [
                {"calls": [sink_call("once", f"pay {number}"), *([REMEMBER] if number == 0 else [])]},
                {"calls": [sink_call("keyed", f"keep {number}"), sink_call("pure", f"read {number}")]},
            ]
            rig.submit(steps, final=f"order {number} is paid", deliver=[sink.target] if number % 2 else [])
        rig.ended()
        until(lambda: len(sink.taken) == count // 2 or None, "the deliveries")
        until(lambda: is_all_counted(rig) or None, "the runs to be counted")
        before, effects = digest_originals(rig), rig.effects()
        asked = {text: list(bodies) for text, bodies in rig.model.bodies.items()}
        query = SpendQuery(by=SpendBy.MODEL, after=0, before=1e12, tenant=None)
        spent = load_spend(rig.client.database, query)

        hermes = CommandLine(rig.directory / "home", rig.client.settings.environ)
        began = time.monotonic()
        played = hermes.inline("runs", "replay", "--limit", str(count), "--grade", "exact", "--json")
        took = time.monotonic() - began
        assert played.out, played.said
        report = json.loads(played.out)
        print(f"{report['runs']} runs were replayed in {took:.1f} s")

        assert (played.code, report["runs"], report["not_played"], report["differing"]) == (0, count, 0, 0), played.said
        assert report["good"] == {"exact": count}
        assert len(asked) == count
        assert {text: bodies + bodies for text, bodies in asked.items()} == rig.model.bodies
        assert digest_originals(rig) == before
        assert rig.effects() == effects
        assert sum(map(len, sink.taken.values())) == count // 2
        assert load_spend(rig.client.database, query) == spent
        with rig.client.database.read() as connection:
            evaluations = sa.select(runs.c.pk).where(runs.c.run_id.not_in(rig.submitted))
            assert len(connection.execute(evaluations).all()) == count
            assert not connection.execute(sa.select(deliveries).where(deliveries.c.run_pk.in_(evaluations))).first()
        if count >= 500:
            assert took <= REPLAY_S
