"""Real workers beside somebody who can write to the broker, and with a broker that refuses them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.rig import Rig, rig_on, sink_call, until
from support.valkey import administrator

from hermes_worker.broker.queue import CONTROL_CHANNEL, KEY_PREFIX, QueueName, TaskName, render_envelope
from hermes_worker.core.run import RunStatus
from hermes_worker.local.valkey import EmbeddedValkey
from hermes_worker.worker.celery import build_celery_app

pytestmark = pytest.mark.faults


@pytest.fixture
def small_rig(tmp_path: Path, own_valkey: EmbeddedValkey) -> Iterator[Rig]:
    url = f"sqlite:///{tmp_path / 'hermes.db'}"
    with rig_on(tmp_path, database_url=url, broker_url=own_valkey.url, workers_per_role=1) as rig:
        yield rig


def forged(run_id: str) -> Iterator[tuple[QueueName, str]]:
    """Messages that a stranger might send about a run that works."""
    for queue in (QueueName.MODEL, QueueName.TOOLS):
        for arguments in ([], ["x"], [run_id, 1, 1, "soon"], [run_id, 1, 1, 1e300], [run_id, {}, None, 0.0]):
            yield queue, render_envelope(TaskName.ITERATE, queue, arguments, "forged")
        yield queue, render_envelope(TaskName.ITERATE, queue, [run_id, 1, 1, 0.0], "another queue's")
        honest = json.loads(render_envelope(TaskName.ITERATE, queue, [run_id, 99, 99, 0.0], "forged"))
        changes: tuple[dict[str, Any], ...] = (
            {"content-type": "application/x-python-serialize"},
            {"content-encoding": "binary"},
            {"headers": {}},
            {"headers": honest["headers"] | {"eta": "2999-01-01T00:00:00"}},
            {"headers": honest["headers"] | {"task": "os.system"}},
            {"headers": honest["headers"] | {"task": ["x"]}},
            {"headers": honest["headers"] | {"timelimit": [1, 1]}},
            {"properties": {}},
            {"body": "%%%"},
            {"body": with_callback(run_id)},
            {"body": "x" * 5_000_000},
        )
        for change in changes:
            yield queue, json.dumps(honest | change)
        for text in ("", "null", "[]", "1", "{", "\x00", "[" * 10_000):
            yield queue, text


def with_callback(run_id: str) -> str:
    canvas = {"callbacks": [{"task": "hermes.maintain", "args": []}], "errbacks": None, "chain": None, "chord": None}
    return base64.b64encode(json.dumps([[run_id, 1, 1, 0.0], {}, canvas]).encode()).decode()


def test_forged_messages_nudges_and_commands_change_nothing_but_time(
    small_rig: Rig, own_valkey: EmbeddedValkey
) -> None:
    rig = small_rig
    calls = [{"name": "terminal", "arguments": {"command": "touch began; sleep 2; echo through"}}]
    run_id = rig.submit([{"calls": calls}])
    until(lambda: (rig.directory / "workspace" / "began").exists() or None, "the call to begin")
    held = {worker.pid for worker in rig.fleet.workers}
    for queue, message in forged(run_id):
        rig.redis.lpush(f"{KEY_PREFIX}{queue.value}", message)
    for verb in ("stop", "interrupt", "pause", "watch"):
        rig.redis.publish(CONTROL_CHANNEL, f"{verb} {run_id}")
    for text in ("", "null", "1", "[]", "{}", '{"body": 1}', '{"body": "x", "properties": {}}', "{", "[" * 100_000):
        rig.redis.publish(f"{KEY_PREFIX}/0.celery.pidbox", text)
    app = build_celery_app(own_valkey.url)
    for command in ("shutdown", "terminate", "revoke_by_stamped_headers", "pool_restart", "hello", "objgraph"):
        app.control.broadcast(command)

    [run] = rig.ended(run_id)
    assert run.status is RunStatus.COMPLETED
    assert "through" in rig.tool_rows(run_id)[0]["content"]
    [after] = rig.ended(rig.submit([{"calls": [sink_call("once", "after")]}]))
    assert after.status is RunStatus.COMPLETED
    alive = rig.client.workers.list_alive()
    assert len(alive) == len(held) == 2
    log = rig.log_text()
    assert not [said for said in ("worker.stopped", "Unrecoverable", "broker.unreachable") if said in log]
    assert log.count("worker.started") == 2
    assert rig.broken_invariants() == []


def refuse(client: Any, password: str) -> None:
    client.execute_command("ACL", "SETUSER", "hermes", "resetpass", f">{password}")
    client.client_kill_filter(skipme=True)


@pytest.mark.parametrize("how", ["password", "rights"])
def test_a_broker_that_refuses_us_is_reported_and_lived_through(
    small_rig: Rig, own_valkey: EmbeddedValkey, how: str
) -> None:
    rig, admin = small_rig, administrator(own_valkey)
    rig.ended(rig.submit([]))
    password = (own_valkey.directory / "password").read_text()
    rules = admin.execute_command("ACL", "LIST")
    [rule] = [line for line in rules if line.startswith("user hermes ")]
    if how == "password":
        refuse(admin, "another")
    else:
        admin.execute_command("ACL", "SETUSER", "hermes", "-@all")
    meanwhile = rig.submit([{"calls": [sink_call("once", "meanwhile")]}])
    until(lambda: "refuses this user" in rig.log_text() or None, "the workers to say so")
    assert rig.view(meanwhile).status is RunStatus.QUEUED
    if how == "password":
        refuse(admin, password)
    else:
        admin.execute_command("ACL", "SETUSER", *rule.split()[1:])

    [run] = rig.ended(meanwhile)
    assert run.status is RunStatus.COMPLETED
    assert rig.log_text().count("worker.started") == 2
    assert rig.broken_invariants() == []
