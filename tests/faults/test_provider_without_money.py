"""A provider that answers 402 and recovers, on real workers: nothing starts that would only fail, one call at a time
tries the key at growing intervals, all runs end complete, and operators are told once, and once that it is over."""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.fault_server import FaultServer, Received, Reply, say_hello
from support.rig import rig_on, until

from hermes_worker.core.run import RunStatus
from hermes_worker.core.run_events import RunEventName
from hermes_worker.store.key_states import KeyStates
from hermes_worker.store.tables import alerts, deliveries

pytestmark = pytest.mark.faults

FIRST_S, MOST_S = 0.5, 4.0
RUNS = 20
KNOWN_S = 2.5
"""After so long every worker knows that the key is closed (docs/providers.md says two seconds). What begins later is a
probe; after the second one, due 1.5 s after the key was closed, the next is no sooner than in 2 s."""


@dataclass
class Provider:
    """Has no money until somebody pays."""

    is_paid: threading.Event = field(default_factory=threading.Event)
    refused_at: list[float] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    """Of those that began when every worker knew."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, request: Received, reply: Reply) -> None:
        if self.is_paid.is_set():
            say_hello(request, reply)
            return
        with self._lock:
            self.refused_at.append(time.monotonic())
            self.at_once += 1
            if len(self.probed_at) > 0:
                self.most_at_once = max(self.most_at_once, self.at_once)
        reply.closing.wait(0.1)  # long enough for a second one to be seen
        with self._lock:
            self.at_once -= 1
        reply.document(402, {"error": {"message": "Insufficient credits", "code": 402}})

    @property
    def probed_at(self) -> list[float]:
        return [at for at in self.refused_at if at - self.refused_at[0] > KNOWN_S]


def test_runs_wait_while_there_is_no_money_and_all_end_complete(
    tmp_path: Path, database_url: str, broker_url: str
) -> None:
    provider = Provider()
    with FaultServer(provider) as server:
        environ = {
            "HERMES_BASE_URL": server.base_url,
            "HERMES_API_KEY": "sk-without-money-0123",
            "HERMES_KEY_PROBE_FIRST_S": str(FIRST_S),
            "HERMES_KEY_PROBE_MAX_S": str(MOST_S),
            "HERMES_ALERT_TARGETS": "local",
        }
        with rig_on(tmp_path, database_url=database_url, broker_url=broker_url, more_environ=environ) as rig:
            database = rig.client.database
            first = rig.submit(())
            until(
                lambda: rig.view(first).status is RunStatus.WAITING_FOR_CAPACITY or None, "the first run to be parked"
            )

            def refused_often() -> bool | None:
                others.extend(rig.submit(()) for _ in range(len(others) < RUNS))
                return len(provider.probed_at) >= 3 or None

            others: list[str] = []
            until(refused_often, "the key to be tried three times more")
            until(
                lambda: {rig.view(run_id).status for run_id in others} == {RunStatus.WAITING_FOR_CAPACITY} or None,
                "all others to be parked",
            )
            told = [
                event for event in rig.client.views.list_events_after(first, 0) if event.name == RunEventName.WAITING
            ]
            assert "has no money" in str(told[-1].data["reason"])
            [row] = KeyStates(database).list_keys()
            assert row.state.is_closed and row.parked >= len(others)
            probed = provider.probed_at
            gaps = [after - before for before, after in itertools.pairwise(probed)]
            assert gaps[0] > 4 * FIRST_S * 0.95 and gaps[-1] > MOST_S * 0.95, gaps
            assert provider.most_at_once == 1, "one call at a time"

            provider.is_paid.set()
            ended = rig.ended(first, *others)
            assert {view.status for view in ended} == {RunStatus.COMPLETED}
            print(
                f"402: {len(ended)} runs, {len(provider.refused_at)} calls refused, gaps {[f'{g:.1f}' for g in gaps]}"
            )

            def clear() -> bool | None:
                with database.write() as connection:
                    # A minute is not waited for.
                    is_clear = alerts.c.clear_since.is_not(None) & alerts.c.recovered_at.is_(None)
                    back = sa.update(alerts).where(is_clear).values(clear_since=alerts.c.clear_since - 61)
                    connection.execute(back)
                    over = sa.select(sa.func.count()).where(alerts.c.recovered_at.is_not(None))
                    return connection.execute(over).scalar_one() == 1 or None

            until(clear, "the alert to be over")
            with database.read() as connection:
                bodies = [row.body for row in connection.execute(sa.select(deliveries).order_by(deliveries.c.pk))]
            assert [body.partition(":")[0] for body in bodies] == ["hermes-worker alert", "hermes-worker, over again"]
