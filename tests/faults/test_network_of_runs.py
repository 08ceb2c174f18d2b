"""The network of a run's commands follows from who began its chain, on real workers."""

from __future__ import annotations

import json

import pytest
from support.confined import working
from support.rig import Rig

pytestmark = pytest.mark.faults

LOOK = {"name": "terminal", "arguments": {"command": "echo proxy=$https_proxy"}}


def networks(rig: Rig, run_id: str) -> list[str]:
    events = rig.client.views.list_events_after(run_id, 0)
    return [event.data["network"] for event in events if event.name == "tool.completed" and "network" in event.data]


def test_an_event_of_a_webhook_gets_the_proxy_and_a_person_does_not(rig: Rig) -> None:
    working("bubblewrap")
    (rig.directory / "workspace").mkdir(exist_ok=True)
    runs = {
        "proxy": rig.submit([{"calls": [LOOK]}], source="webhook:pull-requests-of-everybody"),
        "open": rig.submit([{"calls": [LOOK]}], source="cli"),
        "none": rig.submit([{"calls": [LOOK]}], source="cron", network="none"),
    }
    rig.ended()
    assert {name: networks(rig, run_id) for name, run_id in runs.items()} == {name: [name] for name in runs}
    [row] = rig.tool_rows(runs["proxy"])
    assert json.loads(row["content"])["output"].strip() == "proxy=http://127.0.0.1:3128"
    assert not rig.broken_invariants()
