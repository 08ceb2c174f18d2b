"""A stack is described by what people know of it: its roles and its work."""

from __future__ import annotations

from hermes_worker.cli.stack_words import describe_roles, describe_silent_workers, describe_work
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


def test_a_worker_whose_process_runs_and_that_no_row_knows_is_named() -> None:
    parts = ["worker tools [2]", "worker model,delivery,system [20]", "api 127.0.0.1:0", "beat"]
    alive = [["system", "model", "delivery"], ["tools"]]
    assert describe_silent_workers(parts, alive) is None
    silent = describe_silent_workers(parts, alive[:1])
    assert silent is not None and silent.startswith("the worker of tools gives no sign of life")
    both = describe_silent_workers(parts, [])
    assert both is not None and both.startswith("the workers of tools and of model,delivery,system give no")
