"""What the product asks of its broker, as the broker notes it: every right of its user is used, and none is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import redis
from celery import Celery
from support.rig import Rig, rig_on, sink_call, until
from support.valkey import administrator

from hermes_worker.broker.queue import KEY_PREFIX, TaskName, build_redis_client
from hermes_worker.broker.rights import COMMANDS
from hermes_worker.lab.plan import FleetRole
from hermes_worker.local.paths import get_output_dir
from hermes_worker.local.valkey import EmbeddedValkey
from hermes_worker.models.credentials import CredentialPool
from hermes_worker.models.governor import ConfiguredLimits, CredentialRef, Governor
from hermes_worker.settings import ModelSettings, Settings
from hermes_worker.store.jobs.jobs import Jobs
from hermes_worker.stream.live import Live, make_stream_key
from hermes_worker.worker.celery import build_celery_app
from scheduler import jobs as work
from scheduler import ticking

pytestmark = pytest.mark.faults

ELSEWHERE = {
    "brpop": "servers before 7.0 have no BLMPOP",
    "select": "URLs that name another database than 0",
}
"""Commands that a server like this one is not sent, and who is."""
ALL_QUEUES = {FleetRole.MODEL: ("model", "delivery", "system"), FleetRole.TOOLS: ("tools",)}
LIMITS = {"HERMES_MODEL_REQUESTS_PER_MIN": "6000", "HERMES_MODEL_TOKENS_PER_MIN": "10000000"}


@contextmanager
def fleet(directory: Path, broker: EmbeddedValkey) -> Iterator[Rig]:
    url = f"sqlite:///{directory / 'hermes.db'}"
    with rig_on(
        directory,
        database_url=url,
        broker_url=broker.url,
        workers_per_role=1,
        queues=ALL_QUEUES,
        more_environ=LIMITS,
    ) as rig:
        yield rig


def do_a_run(rig: Rig) -> None:
    """With calls side by side, watched from the side and stopped when it is over."""
    run_id = rig.submit([{"calls": [sink_call("pure", "a"), sink_call("pure", "b")]}])
    rig.client.publisher.nudge("watch", run_id)
    rig.ended(run_id)
    rig.client.publisher.publish_stops([run_id], [])


def do_a_job(rig: Rig) -> None:
    """A script whose output is delivered and kept."""
    home = rig.directory / "home"
    (home / "scripts").mkdir(parents=True)
    (home / "scripts" / "a.sh").write_text("echo all is well")
    jobs = Jobs(rig.client.database)
    more = {"script": "a.sh", "no_agent": True}
    job = work.create(jobs, work.JobRequest(prompt="", schedule="every 1h", deliver="local", more=more))
    work.run_now(jobs, job.job_id)
    settings = Settings(home=home, model=ModelSettings(provider="scripted"))

    def is_kept() -> bool | None:
        rig.client.publisher.send(ticking.tick(jobs, settings).settled.hints)
        return True if list((get_output_dir(home) / job.job_id).glob("*.md")) else None

    until(is_kept, "the job's document")


def use_remote_control(app: Celery, admin: redis.Redis) -> None:
    """And what a Celery program does beside: it hears events for a while, and sweeps what others left behind."""
    app.send_task(TaskName.MAINTAIN.value, ignore_result=True)
    until(lambda: app.control.inspect(timeout=1).ping() or None, "a worker to answer")
    with app.connection_for_read() as connection:
        listening = app.events.Receiver(connection, handlers={}).consumer_context()
        with listening as (hearing, _, _), suppress(TimeoutError):
            hearing.drain_events(timeout=0.1)
        channel = connection.default_channel
        admin.zadd(f"{KEY_PREFIX}{channel.keyprefix_binding_deadlines}", {"gone": 0})
        assert channel.sweep_bindings() == 1


def use_limits_and_keys(client: redis.Redis) -> None:
    governor = Governor(client, ConfiguredLimits(requests_per_min=60, tokens_per_min=1_000, in_flight_max=2))
    place = CredentialRef(provider="p", credential="c")
    waiting = [governor.acquire(place, ticket=f"t{n}", tokens=10, order=n) for n in range(5)]
    governor.withdraw(waiting[-1])
    governor.settle(waiting[0])
    governor.cool_down(place, 1)
    narrow, other = Governor(client, ConfiguredLimits(in_flight_max=1)), CredentialRef(provider="p", credential="d")
    first = narrow.acquire(other, ticket="first", tokens=1, order=0)
    narrow.acquire(other, ticket="second", tokens=1, order=1)
    narrow.settle(first)
    narrow.acquire(other, ticket="third", tokens=1, order=2)
    pool = CredentialPool(client)
    pool.choose_key(("a", "b"), ticket="t")
    pool.rest_key("a", 1)
    pool.release_key("t")


def read_a_preview(client: redis.Redis) -> None:
    Live(client).nudge("run_x")
    assert client.xread({make_stream_key("run_x"): "0"})


def drain(rig: Rig) -> None:
    for worker in list(rig.fleet.workers):
        rig.fleet.terminate(worker)


def test_every_right_of_our_user_is_used_and_none_is_missing(tmp_path: Path, own_valkey: EmbeddedValkey) -> None:
    with administrator(own_valkey) as admin:
        admin.config_resetstat()
        admin.acl_log_reset()
        with fleet(tmp_path, own_valkey) as rig, build_redis_client(own_valkey.url) as client:
            do_a_run(rig)
            do_a_job(rig)
            use_remote_control(build_celery_app(own_valkey.url), admin)
            use_limits_and_keys(client)
            read_a_preview(client)
            drain(rig)
        used = {name.removeprefix("cmdstat_") for name in admin.info("commandstats")}
        refused = [entry["object"] for entry in admin.acl_log()]
    assert refused == []
    assert set(COMMANDS) - used == set(ELSEWHERE)
