"""Approvals and questions with real workers: nothing runs before it is allowed, and no worker waits for it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.questions import open_wait
from support.rig import Rig, rig_on, until

from hermes_worker.core.errors import UnavailableError
from hermes_worker.core.run import RunStatus
from hermes_worker.core.run_views import WaitView
from hermes_worker.local.postgres import EmbeddedPostgres
from hermes_worker.local.valkey import EmbeddedValkey
from hermes_worker.safety.approvals import ApprovalChoice
from hermes_worker.services import answers as answering

pytestmark = pytest.mark.faults


def asked(rig: Rig, run_id: str, status: RunStatus) -> None:
    until(lambda: rig.view(run_id).status is status or None, f"the run to be {status.value}")


def questions(rig: Rig) -> list[WaitView] | None:
    try:
        return rig.client.waits.list_open()
    except UnavailableError:
        return None  # a connection from before the restart


# Three times, because a worker that was not scheduled for most of its lease declines to start what may run once.
DANGEROUS = [{"calls": [{"name": "terminal", "arguments": {"command": "rm -r victim"}}], "repeat": 3}]


def waiting_without_workers(rig: Rig) -> tuple[str, Path]:
    """A run that waits for leave to remove a directory, which is there, while every worker was killed."""
    victim = rig.directory / "workspace" / "victim"
    victim.mkdir(parents=True)
    run_id = rig.submit(DANGEROUS)
    asked(rig, run_id, RunStatus.WAITING_FOR_APPROVAL)
    for worker in rig.fleet.workers:
        rig.fleet.kill(worker)
    return run_id, victim


def test_a_dangerous_command_waits_through_a_restart_of_everything(
    tmp_path: Path, own_postgres: EmbeddedPostgres, own_valkey: EmbeddedValkey
) -> None:
    with rig_on(tmp_path, database_url=own_postgres.build_url(), broker_url=own_valkey.url) as rig:
        run_id, victim = waiting_without_workers(rig)
        own_valkey.kill()
        shutil.rmtree(own_valkey.directory / "appendonlydir")
        own_postgres.kill()
        own_postgres.start()
        own_valkey.start()
        for worker in list(rig.fleet.workers):
            rig.fleet.replace(worker)
        [wait] = until(lambda: questions(rig), "the database to answer")
        assert rig.view(run_id).status is RunStatus.WAITING_FOR_APPROVAL
        assert victim.exists()
        rig.client.publisher.send(
            answering.approve(rig.client.waits, run_id, ApprovalChoice.SESSION, wait_id=wait.wait_id, by="cli:tester")
        )
        [run] = rig.ended(run_id)
        assert run.status is RunStatus.COMPLETED
        assert not victim.exists()


def test_a_dangerous_command_waits_without_a_worker_and_runs_once_allowed(rig: Rig) -> None:
    run_id, victim = waiting_without_workers(rig)
    assert victim.exists()
    for worker in list(rig.fleet.workers):
        rig.fleet.replace(worker)
    wait_id = open_wait(rig.client.database, run_id)
    rig.client.publisher.send(
        answering.approve(rig.client.waits, run_id, ApprovalChoice.SESSION, wait_id=wait_id, by="cli:tester")
    )
    [run] = rig.ended(run_id)
    assert run.status is RunStatus.COMPLETED
    assert not victim.exists()


def test_runs_that_nobody_watches_are_refused_and_others_answer_questions(rig: Rig) -> None:
    dangerous = [{"calls": [{"name": "terminal", "arguments": {"command": "rm -r victim"}}]}]
    unattended = rig.submit(dangerous, source="cron")
    question = {"name": "clarify", "arguments": {"question": "Which?", "choices": ["red", "blue"]}}
    curious = rig.submit([{"calls": [question]}])
    asked(rig, curious, RunStatus.WAITING_FOR_INPUT)
    wait_id = open_wait(rig.client.database, curious)
    rig.client.publisher.send(answering.reply(rig.client.waits, curious, "2", wait_id=wait_id, by="cli:tester"))
    assert [run.status for run in rig.ended(unattended, curious)] == [RunStatus.COMPLETED] * 2
    assert "nobody is there to approve it" in rig.tool_rows(unattended)[0]["content"]
    assert json.loads(rig.tool_rows(curious)[0]["content"])["user_response"] == "blue"
