"""What a child leaves behind when it does not end well."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal

import pytest
from support.store import SPEC, Store, asks

from hermes_worker.core.pricing import Cost, CostStatus
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import CallStatus
from hermes_worker.store.runs.new_children import NewChild
from hermes_worker.store.tables import runs


@pytest.mark.parametrize(("how", "status"), [("stopped", "interrupted"), ("expired", "timeout")])
def test_a_child_that_is_cut_short_leaves_its_words_its_files_and_its_bill(store: Store, how: str, status: str) -> None:
    parent = store.with_tools(Replay.PURE)
    child = NewChild(run_id="run_c", spec=SPEC, system_prompt="", tools="[]", workspace="{}")
    store.calls.delegate(store.call(parent), [child], children_max=1)
    asked = asks(Replay.PURE, Replay.PURE, Replay.PURE, segments=[0, 0, 1])
    requests = tuple(
        replace(request, name="write_file", arguments=json.dumps({"path": path, "content": "x"}))
        for request, path in zip(asked.reply.tool_requests, ("made.txt", "refused.txt", "never.txt"), strict=True)
    )
    calls = tuple(replace(call, name="write_file") for call in asked.calls)
    reply = replace(asked.reply, text="half of the work", tool_requests=requests)
    cost = Cost(usd=Decimal("0.5"), status=CostStatus.ESTIMATED)
    store.runs.commit_reply(store.turn("run_c"), reply, calls, cost)
    store.settle("run_c", 0)
    store.settle("run_c", 1, status=CallStatus.FAILED)
    if how == "stopped":
        store.runs.request_stop("run_c")
    else:
        store.change(runs, "run_c", deadline_at=1.0)
        store.sweep()
    [entry] = json.loads(store.results(parent)[0])["results"]
    assert (entry["status"], entry["summary"]) == (status, "half of the work")
    assert entry["files_changed"] == ["made.txt"]
    assert (entry["cost_usd"], entry["tokens"]) == (0.5, {"input": 10, "output": 5})
    assert [call["status"] for call in entry["tool_trace"]] == ["succeeded", "failed", "cancelled"]
