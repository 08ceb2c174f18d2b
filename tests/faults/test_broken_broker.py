"""A broker that answers and does not do what it is asked: workers wait for it, say why, and are there when it is well.

The rule is by what can be done: everything but a protocol error may pass. These states stand for the class.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import redis
from support.rig import Rig, rig_on, sink_call, until
from support.samples import take_turns
from support.valkey import administrator

from hermes_worker.broker.rights import USER
from hermes_worker.core.run import RunStatus
from hermes_worker.lab.plan import FleetRole
from hermes_worker.local.valkey import EmbeddedValkey

pytestmark = pytest.mark.faults

QUEUES = {FleetRole.MODEL: ("model", "delivery", "system"), FleetRole.TOOLS: ("tools",)}
WORKERS = 2


def disconnect(admin: redis.Redis) -> None:
    """Everybody but us: a state is met by connections that are made in it as well."""
    admin.client_kill_filter(skipme=True)


@contextmanager
def without_replicas(broker: EmbeddedValkey, admin: redis.Redis) -> Iterator[None]:
    admin.config_set("min-replicas-to-write", 1)
    yield
    admin.config_set("min-replicas-to-write", 0)


@contextmanager
def unable_to_save(broker: EmbeddedValkey, admin: redis.Redis) -> Iterator[None]:
    snapshot = broker.directory / "dump.rdb"
    snapshot.unlink(missing_ok=True)
    snapshot.mkdir()  # nothing can take its place
    admin.config_set("stop-writes-on-bgsave-error", "yes")
    admin.config_set("save", "3600 1")
    admin.bgsave()
    until(lambda: admin.info("persistence")["rdb_last_bgsave_status"] == "err" or None, "a snapshot to fail")
    yield
    snapshot.rmdir()
    admin.config_set("save", "")
    admin.config_set("stop-writes-on-bgsave-error", "no")


@contextmanager
def full_of_clients(broker: EmbeddedValkey, admin: redis.Redis) -> Iterator[None]:
    before = admin.config_get("maxclients")["maxclients"]
    admin.config_set("maxclients", 1)
    disconnect(admin)
    yield
    admin.config_set("maxclients", before)


@contextmanager
def with_another_password(broker: EmbeddedValkey, admin: redis.Redis) -> Iterator[None]:
    before = admin.execute_command("ACL", "GETUSER", USER)
    ours = dict(zip(before[::2], before[1::2], strict=True)) if isinstance(before, list) else before
    (digest,) = ours["passwords"]
    admin.execute_command("ACL", "SETUSER", USER, "resetpass", ">another")
    disconnect(admin)
    yield
    admin.execute_command("ACL", "SETUSER", USER, "resetpass", f"#{digest}")


@contextmanager
def a_read_only_replica(broker: EmbeddedValkey, admin: redis.Redis) -> Iterator[None]:
    admin.replicaof("127.0.0.1", 1)
    yield
    admin.replicaof("NO", "ONE")


@contextmanager
def busy_with_a_script(broker: EmbeddedValkey, admin: redis.Redis) -> Iterator[None]:
    admin.config_set("busy-reply-threshold", 50)

    def spin() -> None:
        with administrator(broker) as client, suppress(redis.RedisError):
            client.execute_command("EVAL", "while true do end", 0)

    thread = threading.Thread(target=spin, daemon=True)
    thread.start()

    def is_busy() -> bool | None:
        try:
            admin.ping()
        except redis.ResponseError as error:
            return str(error).startswith("BUSY") or None
        return None

    until(is_busy, "the script to keep it busy")
    yield
    admin.script_kill()
    thread.join()


@dataclass(frozen=True)
class State:
    enter: Callable[[EmbeddedValkey, redis.Redis], AbstractContextManager[None]]
    words: str
    """What the log says to do about it."""


STATES = {
    "NOREPLICAS": State(without_replicas, "replicas"),
    "MISCONF": State(unable_to_save, "snapshot"),
    "maxclients": State(full_of_clients, "maxclients"),
    "WRONGPASS": State(with_another_password, "HERMES_BROKER_URL"),
    "READONLY": State(a_read_only_replica, "read-only replica"),
    "BUSY": State(busy_with_a_script, "script"),
}


@contextmanager
def fleet(directory: Path, broker: EmbeddedValkey) -> Iterator[Rig]:
    url = f"sqlite:///{directory / 'state.db'}"
    with rig_on(directory, database_url=url, broker_url=broker.url, workers_per_role=1, queues=QUEUES) as rig:
        yield rig


@pytest.mark.parametrize(("is_broken_from_the_start", "name"), take_turns([False, True], list(STATES)))
def test_workers_wait_for_a_broker_that_refuses_them_and_say_why(
    tmp_path: Path, own_valkey: EmbeddedValkey, name: str, is_broken_from_the_start: bool
) -> None:
    state = STATES[name]
    with administrator(own_valkey) as admin, ExitStack() as trouble, ExitStack() as stack:
        if is_broken_from_the_start:
            trouble.enter_context(state.enter(own_valkey, admin))
        rig = stack.enter_context(fleet(tmp_path, own_valkey))
        if not is_broken_from_the_start:
            until(lambda: rig.log_text().count("worker.started") == WORKERS or None, "the workers to start")
            trouble.enter_context(state.enter(own_valkey, admin))
        run_id = rig.submit([{"calls": [sink_call("once", "a")]}])
        until(lambda: state.words in rig.log_text() or None, "a worker to say what to do")
        assert_alive(rig)
        trouble.close()
        (view,) = rig.ended(run_id)
        assert view.status is RunStatus.COMPLETED
        assert rig.broken_invariants() == []
        assert "worker.stopped" not in rig.log_text(), "nobody was started again"
        assert_alive(rig)


def assert_alive(rig: Rig) -> None:
    assert all(psutil.pid_exists(worker.pid) for worker in rig.fleet.workers), rig.log_text()[-3000:]
