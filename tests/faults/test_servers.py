"""What happens to runs when the broker or the database goes away, and what poison does."""

from __future__ import annotations

import json
import resource
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.rig import Rig, rig_on, sink_call, until

from hermes_worker.broker.queue import KEY_PREFIX, QueueName, TaskName, render_envelope
from hermes_worker.core.effects import Iterate
from hermes_worker.core.events import PlannedCall
from hermes_worker.core.messages import ModelReply, ToolRequest
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import STATE_VERSION, RunStatus
from hermes_worker.local.postgres import EmbeddedPostgres
from hermes_worker.local.valkey import EmbeddedValkey
from hermes_worker.store.tables import events, messages, run_inputs, runs, sessions, tool_calls

pytestmark = pytest.mark.faults

ACTIVE = 50
STEPS = 4


def outages(short_s: float, long_s: float) -> list[Any]:
    """How many runs are at work, and the seconds for which a server is away: enough to see that nothing is lost, at
    night with more runs, and as long as we promise to bear."""
    return [
        (ACTIVE // 4, short_s),
        pytest.param(ACTIVE, short_s, marks=pytest.mark.nightly),
        pytest.param(ACTIVE, long_s, marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
    ]


def submit_many(rig: Rig, count: int = ACTIVE) -> None:
    for number in range(count):
        calls = [sink_call("once", f"{number}.{{i}}.once"), sink_call("pure", f"{number}.{{i}}.pure")]
        rig.submit([{"calls": calls, "repeat": STEPS, "delay_s": 0.05}])


def some_steps_done(rig: Rig, active: int = ACTIVE) -> None:
    until(lambda: len(rig.effects()) > active // 2 or None, "the runs to be under way")


def marks(rig: Rig) -> list[str]:
    return [effect.mark for effect in rig.effects()]


def all_completed(rig: Rig) -> None:
    found = rig.ended()
    assert {run.status for run in found} == {RunStatus.COMPLETED}
    assert rig.broken_invariants() == []


@pytest.fixture
def restartable(tmp_path: Path, own_postgres: EmbeddedPostgres, own_valkey: EmbeddedValkey) -> Iterator[Rig]:
    with rig_on(tmp_path, database_url=own_postgres.build_url(), broker_url=own_valkey.url) as rig:
        yield rig


@pytest.mark.nightly
def test_a_flushed_broker_is_refilled_from_sql(postgres_rig: Rig) -> None:
    submit_many(postgres_rig)
    some_steps_done(postgres_rig)
    postgres_rig.redis.flushall()
    all_completed(postgres_rig)


@pytest.mark.parametrize(("active", "away_s"), outages(6, 60))
def test_a_broker_that_comes_back_empty_is_refilled_and_consumed_again(
    postgres_rig: Rig, own_valkey: EmbeddedValkey, active: int, away_s: float
) -> None:
    """Submits during the outage are accepted, and start when it is over."""
    submit_many(postgres_rig, active)
    some_steps_done(postgres_rig, active)
    own_valkey.kill()
    meanwhile = postgres_rig.submit([{"calls": [sink_call("once", "meanwhile")]}])
    time.sleep(away_s)  # an outage has a length; nothing is waited for here
    assert postgres_rig.view(meanwhile).status is RunStatus.QUEUED
    shutil.rmtree(own_valkey.directory / "appendonlydir")
    own_valkey.start()
    all_completed(postgres_rig)
    assert [effect.mark for effect in postgres_rig.effects()].count("meanwhile") == 1


def test_every_message_delivered_three_times_changes_nothing(rig: Rig) -> None:
    """A thread looks a thousand times a second and copies whatever it finds in the queues, twice."""
    over = threading.Event()
    keys = [f"{KEY_PREFIX}{queue.value}" for queue in QueueName]

    def repeat_everything() -> None:
        seen: set[str] = set()
        while not over.wait(0.001):
            pipeline = rig.redis.pipeline(transaction=False)
            for key in keys:
                pipeline.lrange(key, 0, -1)
            for key, waiting in zip(keys, pipeline.execute(), strict=True):
                for message in waiting:
                    delivery = json.loads(message)["properties"]["delivery_tag"]
                    if delivery not in seen:
                        seen.add(delivery)
                        rig.redis.lpush(key, message, message)

    copier = threading.Thread(target=repeat_everything)
    copier.start()
    try:
        submit_many(rig, 20)
        all_completed(rig)
    finally:
        over.set()
        copier.join()
    # A busy machine may cost a `pure` call its lease: then it is another attempt, and no message's doing.
    attempts = [(effect.mark, effect.attempt) for effect in rig.effects()]
    assert len(attempts) == len(set(attempts))
    assert len({mark for mark, _ in attempts}) == 20 * STEPS * 2
    once = [mark for mark, _ in attempts if mark.endswith("once")]
    assert len(once) == len(set(once))


@pytest.mark.parametrize(("active", "away_s"), outages(5, 20))
def test_a_database_that_is_away_for_a_while_costs_nothing_but_time(
    restartable: Rig, own_postgres: EmbeddedPostgres, active: int, away_s: float
) -> None:
    """Longer than a lease: what workers hold in memory is committed when it is back."""
    submit_many(restartable, active)
    some_steps_done(restartable, active)
    own_postgres.kill()
    time.sleep(away_s)  # an outage has a length; nothing is waited for here
    own_postgres.start()
    all_completed(restartable)
    marks = [effect.mark for effect in restartable.effects() if effect.mark.endswith("once")]
    assert len(marks) == len(set(marks))


def test_poison_hurts_nobody_else(postgres_rig: Rig) -> None:
    """Unknown runs, unknown tasks, nonsense arguments, deleted runs and corrupt rows."""
    rig = postgres_rig
    unknown = ["run_" + "0" * 32, 1, 1, 0.0]
    rig.redis.lpush(f"{KEY_PREFIX}model", render_envelope(TaskName.ITERATE, QueueName.MODEL, unknown, "unknown"))
    rig.redis.lpush(f"{KEY_PREFIX}model", render_envelope(TaskName.ITERATE, QueueName.MODEL, ["x"], "too few"))
    rig.redis.lpush(f"{KEY_PREFIX}model", "{not json")
    strange = render_envelope(TaskName.ITERATE, QueueName.MODEL, unknown, "strange").replace(
        "hermes.iterate", "hermes.later"
    )
    rig.redis.lpush(f"{KEY_PREFIX}model", strange)
    corrupt = rig.submit([{"calls": [sink_call("pure", "corrupt")]}], publish=False)
    with rig.client.database.write() as connection:
        connection.execute(sa.text("delete from messages where run_pk = (select max(pk) from runs)"))
    healthy = rig.submit([{"calls": [sink_call("pure", "healthy")]}])
    [good, bad] = rig.ended(healthy, corrupt)
    assert good.status is RunStatus.COMPLETED
    assert (bad.status, bad.exit_reason) == (RunStatus.FAILED, "corrupt_state")
    assert bad.error and "missing" in bad.error


def test_a_reply_with_two_hundred_calls_fails_its_own_run_with_a_reason(postgres_rig: Rig) -> None:
    calls = [sink_call("pure", f"n{n}") for n in range(200)]
    greedy = postgres_rig.submit([{"calls": calls}])
    modest = postgres_rig.submit([{"calls": calls[:3]}])
    [failed, completed] = postgres_rig.ended(greedy, modest)
    assert (failed.status, failed.failure_kind) == (RunStatus.FAILED, "too_many_tool_calls")
    assert "200 tool calls" in (failed.error or "")
    assert completed.status is RunStatus.COMPLETED


def test_a_result_of_fifty_megabytes_reaches_the_model_as_a_preview(postgres_rig: Rig) -> None:
    command = "head -c 50000000 /dev/zero | tr '\\0' x"
    run_id = postgres_rig.submit([{"calls": [{"name": "terminal", "arguments": {"command": command}}]}])
    [run] = postgres_rig.ended(run_id)
    assert run.status is RunStatus.COMPLETED
    [row] = postgres_rig.tool_rows(run_id)
    assert len(row["content"]) < 120_000


@pytest.fixture
def sqlite_rig(tmp_path: Path, own_valkey: EmbeddedValkey) -> Iterator[Rig]:
    url = f"sqlite:///{tmp_path / 'rig.db'}"
    with rig_on(tmp_path, database_url=url, broker_url=own_valkey.url, workers_per_role=1) as rig:
        yield rig


def limit_files(rig: Rig, bytes_max: int) -> None:
    """The workers can write no file beyond this."""
    for worker in rig.fleet.workers:
        resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (bytes_max, resource.RLIM_INFINITY))


_RESULTS = 10


def test_a_full_disk_is_named_and_waited_for(sqlite_rig: Rig, tmp_path: Path) -> None:
    """What a worker holds in memory is written when there is room; until then nothing is half written."""
    rig = sqlite_rig
    rig.ended(rig.submit([]))
    limit_files(rig, max(path.stat().st_size for path in tmp_path.glob("rig.db*")) + 30_000)
    command = "head -c 90000 /dev/zero | tr '\\0' x; echo x >> ran; : {}"
    calls = [{"name": "terminal", "arguments": {"command": command.format(number)}} for number in range(_RESULTS)]
    # The log may grow as far as the database has grown: so many results are more than that.
    run_id = rig.submit([{"calls": [call]} for call in calls])
    until(lambda: "make room on its disk" in rig.log_text() or None, "a worker to find its disk full")
    assert not rig.view(run_id).status.is_terminal
    limit_files(rig, resource.RLIM_INFINITY)
    [run] = rig.ended(run_id)
    assert run.status is RunStatus.COMPLETED
    ran = (tmp_path / "workspace" / "ran").read_text()
    assert ran.count("x") == _RESULTS, len(ran)
    assert rig.broken_invariants() == []


def test_a_run_that_is_deleted_while_a_tool_works_for_it_disturbs_nobody(postgres_rig: Rig) -> None:
    rig = postgres_rig
    slow = {"name": "terminal", "arguments": {"command": "touch began; sleep 1.5; touch over"}}
    gone, other = rig.submit([{"calls": [slow]}]), rig.submit([{"calls": [sink_call("pure", "other")]}])
    workspace = rig.directory / "workspace"
    until(lambda: (workspace / "began").exists() or None, "the tool to work")
    with rig.client.database.write() as connection:
        pk = connection.execute(sa.select(runs.c.pk).where(runs.c.run_id == gone)).scalar_one()
        for table in (events, messages, tool_calls, run_inputs):
            connection.execute(sa.delete(table).where(table.c.run_pk == pk))
        connection.execute(sa.update(sessions).where(sessions.c.active_run_pk == pk).values(active_run_pk=None))
        connection.execute(sa.delete(runs).where(runs.c.pk == pk))
    rig.submitted.remove(gone)
    until(lambda: (workspace / "over").exists() or None, "the tool to end")
    until(lambda: "tool_call.refused" in rig.log_text() or None, "its result to be refused")
    after = rig.submit([{"calls": [sink_call("pure", "after")]}])
    assert {run.status for run in rig.ended(other, after)} == {RunStatus.COMPLETED}


def test_a_task_of_a_newer_version_is_dropped_and_its_run_goes_on(postgres_rig: Rig) -> None:
    """The message names a task that these workers do not know; the row is due until somebody takes it."""
    rig = postgres_rig
    run_id = rig.submit([{"calls": [sink_call("once", "done")]}], publish=False)
    newer = render_envelope(TaskName.ITERATE, QueueName.MODEL, [run_id, 1, 1, 0.0, "more"], "newer")
    rig.redis.lpush(f"{KEY_PREFIX}model", newer.replace("hermes.iterate", "hermes.iterate_v2"))
    [run] = rig.ended(run_id)
    assert (run.status, run.iteration) == (RunStatus.COMPLETED, 2)


def test_calls_of_a_newer_version_are_left_to_a_worker_that_knows_them(postgres_rig: Rig) -> None:
    """Neither started nor failed, nor resumed, resent or ended by the sweeper of an older version."""
    rig = postgres_rig
    run_id = rig.submit([{"calls": [sink_call("once", "late")]}], publish=False)
    owner = rig.client.workers.register(name="newer", queues="", ttl_s=600.0)
    claim = rig.client.runs.claim_iteration(Iterate(run_id=run_id, iteration=1, attempt=1), owner.pk)
    assert claim is not None
    known = sa.update(runs).where(runs.c.run_id == run_id)
    with rig.client.database.write() as connection:
        connection.execute(known.values(state_version=STATE_VERSION + 1, deadline_at=1.0))
    request = ToolRequest(id="call_1", name="sink_once", arguments='{"mark":"late"}')
    planned = PlannedCall(name="sink_once", replay=Replay.ONCE, segment=0)
    hints = rig.client.runs.commit_reply(claim, ModelReply(text="", tool_requests=(request,)), [planned])
    rig.client.publisher.send(hints)
    rig.ended(rig.submit([{"calls": [sink_call("pure", "other")]}] * 5))
    assert (rig.view(run_id).status, marks(rig).count("late")) == (RunStatus.RUNNING, 0)
    with rig.client.database.write() as connection:
        connection.execute(known.values(state_version=STATE_VERSION, deadline_at=None))
    [run] = rig.ended(run_id)
    assert (run.status, marks(rig).count("late")) == (RunStatus.COMPLETED, 1)


def test_rows_of_a_newer_version_are_left_to_a_worker_that_knows_them(postgres_rig: Rig) -> None:
    rig = postgres_rig
    run_id = rig.submit([], publish=False)
    with rig.client.database.write() as connection:
        connection.execute(sa.update(runs).where(runs.c.run_id == run_id).values(state_version=STATE_VERSION + 1))
    effect = [run_id, 1, 1, 0.0]
    rig.redis.lpush(f"{KEY_PREFIX}model", render_envelope(TaskName.ITERATE, QueueName.MODEL, effect, "newer"))
    other = rig.submit([])
    rig.ended(other)
    assert rig.view(run_id).status is RunStatus.QUEUED
    with rig.client.database.write() as connection:
        connection.execute(sa.update(runs).where(runs.c.run_id == run_id).values(state_version=STATE_VERSION))
    [run] = rig.ended(run_id)
    assert run.status is RunStatus.COMPLETED


@pytest.mark.parametrize(("limit", "reason"), [("wall_s_max", "wall_clock_exceeded"), ("idle_s_max", "idle_exceeded")])
def test_a_run_past_its_limit_expires(postgres_rig: Rig, limit: str, reason: str) -> None:
    slow = [{"calls": [{"name": "terminal", "arguments": {"command": "sleep 30"}}]}]
    run_id = postgres_rig.submit(slow, **{limit: 1.5})
    [run] = postgres_rig.ended(run_id)
    assert (run.status, run.exit_reason) == (RunStatus.EXPIRED, reason)
    with postgres_rig.client.database.read() as connection:
        held = connection.execute(sa.select(tool_calls.c.lease_token).where(tool_calls.c.lease_token.is_not(None)))
        assert held.all() == []
