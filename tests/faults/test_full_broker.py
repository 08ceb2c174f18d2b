"""A broker that has no memory left (``noeviction``): runs are accepted and wait, and the sweeper starts them later."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.rig import rig_on, sink_call, until
from support.valkey import administrator

from hermes_worker.core.run import RunStatus
from hermes_worker.local.valkey import EmbeddedValkey

pytestmark = pytest.mark.faults

RUNS = 10


def test_what_a_full_broker_refuses_is_sent_again_when_it_has_room(
    tmp_path: Path, database_url: str, own_valkey: EmbeddedValkey
) -> None:
    with (
        rig_on(tmp_path, database_url=database_url, broker_url=own_valkey.url) as rig,
        administrator(own_valkey) as client,
    ):
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", "1mb")
        run_ids = [rig.submit([{"calls": [sink_call("once", f"{number}")]}]) for number in range(RUNS)]
        until(lambda: "OutOfMemoryError" in rig.log_text() or None, "a worker to be refused")
        assert rig.statuses() == {"queued": RUNS}
        client.config_set("maxmemory", "0")
        assert {view.status for view in rig.ended(*run_ids)} == {RunStatus.COMPLETED}
        assert rig.broken_invariants() == []
