"""The runbooks of docs/alerts.md: what each command prints while the fault of its alert lasts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.commandline import CommandLine
from support.prometheus import rules
from support.store import Store

from hermes_worker.core.errors import Failure
from hermes_worker.core.events import RunBroken
from hermes_worker.core.key_states import Finding, KeyCondition
from hermes_worker.core.messages import ModelReply
from hermes_worker.core.pricing import CostStatus
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import ExitReason
from hermes_worker.store.key_states import KeyStates
from hermes_worker.store.outbox.deliveries import enqueue_deliveries
from hermes_worker.store.tables import deliveries, firings, jobs, runs

PAGE = (Path(__file__).parents[2] / "docs" / "alerts.md").read_text(encoding="utf-8")
Names = dict[str, str]
"""What stands for RUN, JOB, KEY and DELIVERY in the commands."""


def list_commands(alert: str) -> list[str]:
    """The commands of an alert's runbook, in order, but for those that start a process."""
    section = PAGE.split(f"\n## {alert}\n", 1)[1].split("\n## ", 1)[0]
    found = re.findall(r"`(hermes-worker [^`]+)`", section)
    return [command for command in found if not command.startswith("hermes-worker start")]


def break_run(store: Store, reason: ExitReason) -> Names:
    run_id = store.submit().run_id
    failure = Failure(kind="x", message="The provider said: pay first")
    store.runs.end_broken(run_id, RunBroken(reason=reason, failure=failure))
    return {"RUN": run_id}


def refuse_model_calls(store: Store) -> Names:
    return break_run(store, ExitReason.MODEL_CALL_REFUSED)


def meet_defect(store: Store) -> Names:
    return break_run(store, ExitReason.INTERNAL_ERROR)


def use_up_budget(store: Store) -> Names:
    return break_run(store, ExitReason.BUDGET_EXHAUSTED)


def leave_queue(store: Store) -> Names:
    return {"RUN": store.submit().run_id}


def lose_worker(store: Store) -> Names:
    """A worker vanishes in the middle of a call that may run only once."""
    run_id = store.with_tools(Replay.ONCE)
    worker = store.worker("lost")
    store.calls.begin(store.claimed_call(run_id, owner=worker.pk))
    store.vanish(worker)
    store.sweep()
    return {"RUN": run_id}


def close_key(store: Store) -> Names:
    finding = Finding(condition=KeyCondition.NO_MONEY)
    KeyStates(store.database).record_failure(("openai", "key1"), finding, run_id="run_1", reason="pay first")
    return {"KEY": "key1"}


def spend(store: Store) -> Names:
    run_id = store.with_tools(Replay.ONCE)
    store.change(runs, run_id, cost_nano_usd=60 * 10**9)
    return {"RUN": run_id}


def call_unpriced_model(store: Store) -> Names:
    run_id = store.submit().run_id
    store.answer(run_id, ModelReply(text="done"))
    store.change(runs, run_id, cost_status=CostStatus.UNKNOWN)
    return {"RUN": run_id}


def fail_delivery(store: Store) -> Names:
    created = store.submit()
    with store.database.write() as connection:
        run_pk = connection.execute(sa.select(runs.c.pk)).scalar_one()
        enqueue_deliveries(connection, ["local"], run=(run_pk, created.run_id), body="Done")
        failed = {"state": "failed", "error_kind": "rejected", "error": "chat not found", "settled_at": 2.0}
        connection.execute(sa.update(deliveries).values(attempts=3, hinted_at=None, **failed))
        return {"DELIVERY": str(connection.execute(sa.select(deliveries.c.delivery_id)).scalar_one())}


def miss_slot(store: Store) -> Names:
    with store.database.write() as connection:
        job_pk, job_id = connection.execute(sa.select(jobs.c.pk, jobs.c.job_id)).one()
        missed = {"slot": 5.0, "outcome": "missed", "reason": "nobody was there", "settled_at": 6.0}
        connection.execute(sa.insert(firings).values(job_pk=job_pk, **missed))
    return {"JOB": job_id}


FAULTS: dict[str, tuple[Callable[[Store], Names], list[str]]] = {
    "HermesNoWorkers": (leave_queue, ["no worker is alive", "."]),
    "HermesQueueStuck": (leave_queue, [r"model +1 +0", "no worker is alive", "no worker"]),
    "HermesRunsFailing": (refuse_model_calls, ["failed", "exit +model_call_refused", "run_"]),
    "HermesDefect": (meet_defect, ["failed", "exit +internal_error"]),
    "HermesTakeovers": (lose_worker, ["alive"]),
    "HermesOutcomeUnknown": (lose_worker, ["run_", "outcome unknown", "unknown"]),
    "HermesModelFailing": (close_key, ["no_money.*pay first", "may be used"]),
    "HermesKeyRested": (close_key, ["key1.*no_money"]),
    "HermesSpending": (spend, [r"60\.00", "run_", "cancelled", "--help"]),
    "HermesUnpriced": (call_unpriced_model, ["1 run"]),
    "HermesBudgetsUsedUp": (use_up_budget, ["failed", "exit +budget_exhausted"]),
    "HermesDeliveriesFailing": (fail_delivery, ["local +chat not found", "no dead targets", "pending"]),
    "HermesSlotsMissed": (miss_slot, ["nightly", "missed.*nobody was there", "."]),
}
"""For each alert whose fault stands in rows: how it comes about, and what its commands print, in order."""


@pytest.mark.parametrize("alert", FAULTS)
def test_the_commands_of_a_runbook_show_the_fault(hermes: CommandLine, store: Store, alert: str) -> None:
    inject, expected = FAULTS[alert]
    if alert == "HermesSlotsMissed":
        assert hermes.inline("cron", "create", "every 1h", "Say hello", "--name", "nightly").code == 0
    names = {"TENANT": "default", **inject(store)}
    commands = list_commands(alert)
    assert len(commands) == len(expected), commands
    for command, pattern in zip(commands, expected, strict=True):
        told = hermes.inline(*(names.get(word, word) for word in shlex.split(command)[1:]))
        assert told.code in (0, 1), told.err
        assert re.search(pattern, told.out + told.err, re.MULTILINE), (command, told.out, told.err)


def test_every_alert_has_a_command_or_says_where_to_look() -> None:
    for alert in rules():
        section = PAGE.split(f"\n## {alert}\n", 1)[1].split("\n## ", 1)[0]
        assert re.search(r"^1\. ", section, re.MULTILINE), alert
