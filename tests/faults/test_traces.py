"""One trace for what a person asked, whole after kills, with nothing in it that anybody wrote."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.collector import Collector, collecting
from support.rig import Rig, rig_on, sink_call, until

from hermes_worker.core.trace_ids import derive_run_span_id, derive_trace_id
from hermes_worker.lab.plan import FleetRole
from hermes_worker.local.valkey import EmbeddedValkey

pytestmark = pytest.mark.faults
SECRET_WORDS = "swordfish and xyzzy"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


@pytest.fixture
def traced_rig(tmp_path: Path, postgres_url: str, own_valkey: EmbeddedValkey, collector: Collector) -> Iterator[Rig]:
    more = {"HERMES_TRACING_ENDPOINT": collector.url}
    with rig_on(tmp_path, database_url=postgres_url, broker_url=own_valkey.url, work_s=0.05, more_environ=more) as rig:
        yield rig


def test_links_are_whole_after_kills(traced_rig: Rig, collector: Collector) -> None:
    rig, chance = traced_rig, random.Random(16)
    asked = [
        rig.submit(
            [
                {
                    "calls": [sink_call("keyed", f"{number}.{{i}}"), sink_call("pure", SECRET_WORDS)],
                    "repeat": 3,
                    "delay_s": 0.1,
                }
            ],
            final=SECRET_WORDS,
        )
        for number in range(6)
    ]
    for _ in range(4):
        until(lambda: rig.statuses().get("running") or rig.all_ended() or None, "runs at work")
        worker = chance.choice(rig.fleet.workers)
        rig.fleet.kill(worker)
        rig.fleet.replace(worker)
    rig.ended()

    until(lambda: True if len(collector.spans("invoke_agent")) >= len(asked) else None, "the spans of all runs")
    until(lambda: True if not collector.orphans() else None, "the parents of all spans")
    assert {span.trace_id for span in collector.spans()} == {
        derive_trace_id(run_id).to_bytes(16, "big") for run_id in asked
    }
    for run_id in asked:
        steps = [
            span for span in collector.spans() if span.parent_span_id == derive_run_span_id(run_id).to_bytes(8, "big")
        ]
        names = {span.name for span in steps}
        assert {"chat scripted", "execute_tool sink_keyed"} <= names
    assert not [body for body in collector.bodies if b"swordfish" in body or b"xyzzy" in body]


def test_children_and_messages_belong_to_the_trace_of_their_root(traced_rig: Rig, collector: Collector) -> None:
    rig = traced_rig
    for worker in rig.fleet.workers:
        if worker.role is FleetRole.TOOLS:
            rig.fleet.freeze(worker)
    tasks = [{"goal": 'scripted: {"steps": [], "final": "one"}'}]
    root = rig.submit([{"calls": [{"name": "delegate_task", "arguments": {"tasks": tasks}}]}])
    headers = until(lambda: rig.redis.lrange("hermes:tools", 0, -1) or None, "a message for a tool")
    assert "traceparent" in str(headers)
    for worker in rig.fleet.workers:
        rig.fleet.thaw(worker)
    rig.ended(root)

    runs = until(lambda: found if len(found := collector.spans("invoke_agent")) == 2 else None, "both runs")
    assert {span.trace_id for span in collector.spans()} == {derive_trace_id(root).to_bytes(16, "big")}
    child = next(span for span in runs if span.parent_span_id)
    assert child.parent_span_id == derive_run_span_id(root).to_bytes(8, "big")
