"""A stack is described by what people know of it: its roles and its work."""

from __future__ import annotations

from hermes_worker.cli.stack_words import describe_roles, describe_work
from hermes_worker.core.run import RunStatus


def test_roles_are_named_once_and_in_one_order() -> None:
    parts = ["worker tools,system [2]", "worker model [20]", "zygote", "api 127.0.0.1:0", "beat", "valkey-server", ""]
    assert describe_roles(parts) == "API, workers, scheduler, broker"
    assert describe_roles([]) == "none"


def test_work_is_counted_by_what_it_does() -> None:
    statuses = [RunStatus.RUNNING, RunStatus.RUNNING, RunStatus.WAITING_FOR_APPROVAL, RunStatus.STOPPING]
    assert describe_work(statuses, is_cut=False) == "4 open runs: 2 at work, 1 waiting for a permission, 1 stopping"
    assert describe_work([RunStatus.QUEUED], is_cut=False) == "1 open run: 1 queued"
    assert describe_work([RunStatus.QUEUED] * 2, is_cut=True).startswith("more than 2 open runs")
    assert describe_work([], is_cut=False) == "nothing is at work"
