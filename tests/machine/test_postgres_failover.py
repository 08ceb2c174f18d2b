"""PostgreSQL with a streaming standby, both Debian's: the primary dies, the standby is promoted."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.debian_postgres import APPLICATION_NAME, DebianPostgres, directory_of_postgres
from support.rig import rig_on, sink_call, until

from hermes_worker.core.errors import UnavailableError
from hermes_worker.core.run import RunStatus
from hermes_worker.settings import load_settings
from hermes_worker.store.engine.database import Database

pytestmark = pytest.mark.machine

RUNS = 30
ACCESS = ("local all all trust", "host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust")


@dataclass(frozen=True)
class Pair:
    primary: DebianPostgres
    standby: DebianPostgres

    def url(self, *servers: DebianPostgres, tmp_path: Path) -> str:
        """What the settings make of libpq's spelling."""
        places = ",".join(f"127.0.0.1:{server.port}" for server in servers)
        given = {"HERMES_HOME": str(tmp_path), "HERMES_DATABASE_URL": f"postgresql://postgres@{places}/postgres"}
        return load_settings(given).database_url


@pytest.fixture
def pair() -> Iterator[Pair]:
    with directory_of_postgres() as directory:
        primary = DebianPostgres(directory / "primary", [f"synchronous_standby_names = {APPLICATION_NAME}"])
        standby = DebianPostgres(directory / "standby")
        try:
            primary.initialise(ACCESS)
            primary.start()
            standby.copy_of(primary)
            standby.start()
            in_step = "select 1 from pg_stat_replication where sync_state = 'sync'"
            until(lambda: primary.execute(in_step) or None, "the standby to be in step")
            yield Pair(primary, standby)
        finally:
            standby.stop()
            primary.stop()


def test_no_run_is_lost_when_the_standby_is_promoted(tmp_path: Path, pair: Pair, broker_url: str) -> None:
    url = pair.url(pair.standby, pair.primary, tmp_path=tmp_path)
    with rig_on(tmp_path, database_url=url, broker_url=broker_url) as rig:
        run_ids = [rig.submit([{"calls": [sink_call("keyed", f"{number}")]}]) for number in range(RUNS)]
        until(lambda: rig.statuses().get("completed", 0) >= RUNS // 10 or None, "some runs to end")
        pair.primary.kill()
        pair.standby.promote()
        assert {view.status for view in rig.ended(*run_ids)} == {RunStatus.COMPLETED}
        assert {effect.mark for effect in rig.effects()} == {str(number) for number in range(RUNS)}
        assert rig.broken_invariants() == []
        assert rig.log_text().count("worker.started") == 4, "nobody was started again"


def test_a_standby_is_an_outage_with_a_sentence_until_it_is_promoted(tmp_path: Path, pair: Pair) -> None:
    database = Database(pair.url(pair.standby, tmp_path=tmp_path))
    makes = sa.text("create table made (number integer)")
    with pytest.raises(UnavailableError, match="the database is a read-only standby; it works again once it is"):  # noqa: SIM117
        with database.write() as connection:
            connection.execute(makes)
    pair.primary.kill()
    pair.standby.promote()
    with database.write() as connection:
        connection.execute(makes)
        assert seconds_unacknowledged(connection) == 30
    database.close()


def seconds_unacknowledged(connection: sa.Connection) -> float:
    """How long the kernel repeats what a server does not acknowledge, before it calls the connection broken."""
    driver: Any = connection.connection.dbapi_connection
    with socket.fromfd(driver.fileno(), socket.AF_INET, socket.SOCK_STREAM) as duplicate:
        return duplicate.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) / 1000
