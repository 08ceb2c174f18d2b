"""Promises with a size, at that size: a deploy every few seconds, and a backlog nobody keeps up with."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support.rig import Rig, rig_on, sink_call, until

from hermes_worker.core.run import RunStatus
from hermes_worker.local.valkey import EmbeddedValkey

pytestmark = [pytest.mark.faults, pytest.mark.slow]

RUNS = 100
STEPS = 20
BACKLOG = 20_000


@pytest.mark.timeout(900)
def test_a_worker_is_replaced_every_ten_seconds_while_a_hundred_runs_go_on(
    tmp_path: Path, postgres_url: str, own_valkey: EmbeddedValkey
) -> None:
    """Every ten seconds the whole fleet is replaced, one worker after the other, by an orderly leave."""
    with rig_on(
        tmp_path,
        database_url=postgres_url,
        broker_url=own_valkey.url,
        concurrency=8,
        more_environ={"HERMES_LEASE_TTL_S": "15", "HERMES_DRAIN_S": "1"},
    ) as rig:
        for number in range(RUNS):
            calls = [sink_call("once", f"{number}.{{i}}")]
            rig.submit([{"calls": calls, "repeat": STEPS, "delay_s": 0.5}])
        replaced = 0
        while not rig.all_ended():
            began = time.monotonic()
            for worker in list(rig.fleet.workers):
                rig.fleet.terminate(worker)
                until(lambda worker=worker: None if rig.fleet.is_alive(worker) else True, "a worker to leave")
                rig.fleet.replace(worker)
                replaced += 1
            until(lambda began=began: rig.all_ended() or time.monotonic() - began > 10 or None, "the next deploy")
        runs = rig.ended()
        marks = [effect.mark for effect in rig.effects()]
        asked, answered = rig.model.requests.completions, RUNS * (STEPS + 1)
        print(f"{replaced} replacements, {asked - answered} of {asked} model calls repeated")
        assert {run.status for run in runs} == {RunStatus.COMPLETED}
        assert len(marks) == len(set(marks)) == RUNS * STEPS
        assert not [
            call for run in runs for call in rig.client.views.list_calls(run.run_id) if call.status == "unknown"
        ]
        # A replaced worker had at most as many calls in flight as it has threads, each of another run.
        assert asked - answered <= replaced * 8
        assert rig.broken_invariants() == []


@pytest.mark.timeout(900)
def test_a_backlog_of_twenty_thousand_runs_is_not_amplified_by_five_minutes_of_sweeps(
    tmp_path: Path, postgres_url: str, own_valkey: EmbeddedValkey
) -> None:
    with rig_on(
        tmp_path, database_url=postgres_url, broker_url=own_valkey.url, workers_per_role=1, concurrency=1
    ) as rig:
        for _ in range(BACKLOG):
            rig.submit([{"calls": [sink_call("pure", "x")], "delay_s": 0.2}])
        waiting, steps = _waiting(rig), _steps(rig)
        time.sleep(300)  # five minutes of sweeps every quarter of a second; nothing is waited for here
        executed = _steps(rig) - steps
        # Each step took one message out of a queue, and whatever was sent again stands at the end of 20,000.
        published = executed + _waiting(rig) - waiting
        print(f"{published} messages for {executed} steps")
        assert executed > 100
        assert published <= 1.05 * executed


def _waiting(rig: Rig) -> int:
    """Messages in all queues."""
    depths = rig.client.publisher.count_waiting()
    assert depths is not None
    return sum(depths.values())


def _steps(rig: Rig) -> int:
    """Model calls, and tool calls that are over."""
    return rig.model.requests.completions + len(rig.effects())
