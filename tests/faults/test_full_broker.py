"""A broker that has no memory left (``noeviction``): runs are accepted and wait, and the sweeper starts them later."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
import redis
from support.rig import rig_on, sink_call, until
from support.samples import leave_to_the_night
from support.valkey import administrator

from hermes_worker.broker.queue import FULL_ADVICE
from hermes_worker.core.run import RunStatus
from hermes_worker.local.valkey import EmbeddedValkey

pytestmark = pytest.mark.faults

RUNS = 10
WORKERS = 4


@pytest.mark.parametrize("is_full_from_the_start", leave_to_the_night([False, True], but=1))
def test_what_a_full_broker_refuses_is_sent_again_when_it_has_room(
    tmp_path: Path, own_valkey: EmbeddedValkey, is_full_from_the_start: bool
) -> None:
    def fill(client: redis.Redis) -> None:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", "1mb")

    with administrator(own_valkey) as client, ExitStack() as stack:
        if is_full_from_the_start:
            fill(client)
        url = f"sqlite:///{tmp_path / 'state.db'}"
        rig = stack.enter_context(rig_on(tmp_path, database_url=url, broker_url=own_valkey.url))
        if not is_full_from_the_start:
            until(lambda: rig.log_text().count("worker.started") == WORKERS or None, "the workers to start")
            fill(client)
        run_ids = [rig.submit([{"calls": [sink_call("once", f"{number}")]}]) for number in range(RUNS)]
        until(lambda: FULL_ADVICE in rig.log_text() or None, "a worker to say so")
        assert rig.statuses() == {"queued": RUNS}
        client.config_set("maxmemory", "0")
        assert {view.status for view in rig.ended(*run_ids)} == {RunStatus.COMPLETED}
        assert rig.broken_invariants() == []
        assert rig.log_text().count("worker.stopped") == 0, "nobody was started again"
