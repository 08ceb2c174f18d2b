"""Each role alone, against a PostgreSQL and a Valkey of their own, as in a deployment."""

from __future__ import annotations

import json
import signal
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.commandline import CommandLine, Running, call, script, wait_for

from hermes_worker.core.run import RunStatus
from hermes_worker.store.database import Database
from hermes_worker.store.views import Views

pytestmark = pytest.mark.e2e


@pytest.fixture
def servers(postgres_url: str, broker_url: str) -> dict[str, str]:
    return {"HERMES_DATABASE_URL": postgres_url, "HERMES_BROKER_URL": broker_url}


def status_of(hermes: CommandLine, run_id: str) -> RunStatus:
    database = Database(hermes.environ["HERMES_DATABASE_URL"])
    try:
        return Views(database).run(run_id).status
    finally:
        database.close()


def leaves(process: Running) -> int:
    """Send SIGTERM; the exit code."""
    process.note_tree()
    process._process.send_signal(signal.SIGTERM)
    return process.wait(30)


def test_every_role_runs_alone_against_external_servers(tmp_path: Path, servers: dict[str, str], project: Path) -> None:
    hermes = CommandLine(tmp_path / "home", {**servers, "HERMES_DRAIN_S": "3"}, is_installed=True)
    early = hermes.inline("runs", "list")
    assert early.code == 2
    assert "hermes-worker migrate" in early.err
    migrated = hermes.inline("migrate")
    assert migrated.code == 0, migrated.said
    assert "upgraded from nothing" in migrated.out
    assert "was up to date" in hermes.inline("migrate").out

    with ExitStack() as stack:
        model = stack.enter_context(hermes.started("scripted-model", "--port", "0"))
        hermes.environ["HERMES_BASE_URL"] = model.wait_for_line(r"(http://\S+/v1)")[1]
        hermes.environ["HERMES_MODEL"] = "scripted"
        roles = [
            stack.enter_context(hermes.started(*role))
            for role in (
                ("worker", "--queues", "model", "--pool", "threads", "--concurrency", "20"),
                (
                    "worker",
                    "--queues",
                    "tools,system",
                    "--pool",
                    "prefork",
                    "--concurrency",
                    "2",
                    "--name",
                    "carpenter",
                ),
                ("beat", "--alive-file", str(project / "beat.alive")),
                ("api", "--port", "0"),
            )
        ]
        for role in roles:
            role.wait_for_line("worker.started")
        api = roles[3].wait_for_line(r"url=(http://\S+)")[1]
        watched = hermes.inline("submit", script(call("terminal", command="pwd"), final="Done."), "--watch")
        assert watched.code == 0, watched.said + "".join(role.output for role in roles)
        with urllib.request.urlopen(f"{api}/health", timeout=30) as answer:
            assert json.load(answer)["status"] == "ok"
        healthy = hermes("doctor")
        assert healthy.code == 0, healthy.said
        assert "consuming model, system, tools" in healthy.out
        assert (project / "beat.alive").exists()
        for role in roles:
            assert leaves(role) == 0, role.output
            assert "worker.stopped" in role.output or "prefork" in role.output
            assert not role.survivors()
        assert not any("Traceback" in role.output for role in roles)


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_a_worker_that_is_told_to_leave_hands_its_model_call_over(
    tmp_path: Path, servers: dict[str, str], pool: str
) -> None:
    hermes = CommandLine(tmp_path / "home", {**servers, "HERMES_DRAIN_S": "1"})
    assert hermes.inline("migrate").code == 0
    with hermes.started("scripted-model", "--port", "0") as model:
        hermes.environ["HERMES_BASE_URL"] = model.wait_for_line(r"(http://\S+/v1)")[1]
        hermes.environ["HERMES_MODEL"] = "scripted"
        slow = script({"text": "Slow.", "delay_s": 2, **call("todo")}, final="Done.")
        with hermes.started("worker", "--pool", pool, "--concurrency", "2") as first:
            first.wait_for_line("worker.started")
            run_id = hermes.inline("submit", slow).out.strip()
            wait_for(lambda: status_of(hermes, run_id) is RunStatus.RUNNING)
            with hermes.started("worker") as second:
                second.wait_for_line("worker.started")
                assert leaves(first) == 0, first.output
                watched = hermes.inline("runs", "watch", run_id)
                assert watched.code == 0, watched.said + first.output + second.output
    assert "a worker was lost" not in watched.out
