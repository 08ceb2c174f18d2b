"""Brokers that others run: Sentinels that promote a replica, a primary that becomes one, a cluster."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import redis
from support.redis_servers import SERVICE, RedisServer, Watched, directory_of_servers, running, watched
from support.rig import Rig, rig_on, sink_call, until

from hermes_worker.broker.queue import CLUSTER_ADVICE, REPLICA_ADVICE, HintPublisher, build_redis_client, refuse_cluster
from hermes_worker.cli.doctor import _check_broker
from hermes_worker.cli.doctor_findings import Grade
from hermes_worker.cli.stack import find_free_port
from hermes_worker.core.effects import Iterate
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.run import RunStatus
from hermes_worker.settings import load_settings
from hermes_worker.store.rows import Hint

pytestmark = pytest.mark.faults

RUNS = 50
HINT = Hint(effect=Iterate(run_id="run_1", iteration=1, attempt=1), at=1.0)


def await_replica(group: Watched) -> None:
    """The Sentinel can promote only a replica that it knows and that is in step."""

    def is_known() -> bool | None:
        with group.sentinel.administrator() as sentinel, group.replica.administrator() as replica:
            [known] = sentinel.sentinel_slaves(SERVICE) or [None]  # type: ignore[no-untyped-call]
            return (known is not None and replica.info("replication")["master_link_status"] == "up") or None

    until(is_known, "the Sentinel to know the replica")


def test_no_run_is_lost_when_sentinels_promote_a_replica(tmp_path: Path) -> None:
    with watched() as group:
        await_replica(group)
        with rig_on(tmp_path, database_url=f"sqlite:///{tmp_path / 'h.db'}", broker_url=group.url) as rig:
            run_ids = [rig.submit([{"calls": [sink_call("once", f"{number}")]}]) for number in range(RUNS)]
            until(lambda: rig.statuses().get("completed", 0) >= RUNS // 10 or None, "some runs to end")
            group.primary.kill()
            assert not rig.all_ended()
            check_all(rig, run_ids)
            with group.replica.administrator() as client:
                assert client.info("replication")["role"] == "master"


def check_all(rig: Rig, run_ids: list[str]) -> None:
    assert {view.status for view in rig.ended(*run_ids)} == {RunStatus.COMPLETED}
    assert sorted(effect.mark for effect in rig.effects()) == sorted(str(number) for number in range(len(run_ids)))
    assert rig.broken_invariants() == []


def test_a_primary_that_becomes_a_replica_is_waited_for(tmp_path: Path) -> None:
    with directory_of_servers() as directory:
        broker, other = RedisServer(directory / "broker"), RedisServer(directory / "other")
        url = f"sqlite:///{tmp_path / 'h.db'}"
        with (
            running(broker, other),
            rig_on(tmp_path, database_url=url, broker_url=broker.url(), workers_per_role=1) as rig,
            broker.administrator() as administrator,
        ):
            rig.ended(rig.submit([]))
            administrator.replicaof("127.0.0.1", other.port)
            until(lambda: "read-only replica" in rig.log_text() or None, "a worker to say so")
            assert HintPublisher(build_redis_client(broker.url())).send([HINT]) == 0
            settings = load_settings({"HERMES_HOME": str(tmp_path), "HERMES_BROKER_URL": broker.url()})
            assert _check_broker(settings) == (Grade.BROKEN, REPLICA_ADVICE)
            run_id = rig.submit([])
            administrator.replicaof("NO", "ONE")
            [view] = rig.ended(run_id)
            assert view.status is RunStatus.COMPLETED
            assert rig.log_text().count("worker.started") == 2, "nobody was started again"


def test_a_replica_is_left_because_its_name_may_be_another_servers_by_now() -> None:
    with directory_of_servers() as directory:
        primary = RedisServer(directory / "primary")
        replica = RedisServer(directory / "replica", [f"replicaof 127.0.0.1 {primary.port}"])
        with (
            running(primary, replica),
            replica.administrator() as administrator,
            build_redis_client(replica.url()) as client,
        ):
            client.llen("hermes:model")
            before = administrator.info("stats")["total_connections_received"]
            client.llen("hermes:model")
            assert administrator.info("stats")["total_connections_received"] == before
            assert HintPublisher(client).send([HINT]) == 0
            assert administrator.info("stats")["total_connections_received"] == before + 1


def refusal_of(url: str) -> str | None:
    try:
        refuse_cluster(url)
    except ConfigurationError as error:
        return str(error)
    return None


def test_a_broker_that_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes_worker.broker.queue.CONNECT_TIMEOUT_S", 0.2)
    monkeypatch.setattr("hermes_worker.broker.queue.SOCKET_TIMEOUT_S", 3_600.0)
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        found = refuse_cluster(f"redis://127.0.0.1:{frozen.getsockname()[1]}/0")
    assert isinstance(found, redis.exceptions.TimeoutError)


def test_a_cluster_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with directory_of_servers() as directory:
        server = RedisServer(directory / "cluster", ["cluster-enabled yes", f"cluster-port {find_free_port()}"])
        with running(server), server.administrator() as administrator:
            # A machine that is busy may not answer in time, and one that does not answer may be no cluster.
            until(lambda: refusal_of(server.url()) == CLUSTER_ADVICE or None, "the cluster to be refused")
            settings = load_settings({"HERMES_HOME": str(tmp_path), "HERMES_BROKER_URL": server.url()})
            until(
                lambda: _check_broker(settings) == (Grade.BROKEN, CLUSTER_ADVICE) or None, "doctor to know the cluster"
            )
            with pytest.raises(redis.exceptions.ClusterDownError):
                administrator.lpush("hermes:model", "x")
            assert HintPublisher(build_redis_client(server.url())).send([HINT]) == 0
