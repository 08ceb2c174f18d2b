"""Behind PgBouncer, the real one: what is refused, what works, and what of a session reaches nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.pgbouncer import can_keep_statements, pgbouncer
from support.rig import rig_on, sink_call

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.run import RunStatus
from hermes_worker.lab.stack import LabStack
from hermes_worker.local.postgres import EmbeddedPostgres
from hermes_worker.store.engine.database import Database
from hermes_worker.store.engine.pooler import Pooler, detect_pooler, require_statements_kept

pytestmark = pytest.mark.machine

RUNS = 30


@pytest.fixture
def transaction_mode(own_postgres: EmbeddedPostgres) -> Iterator[str]:
    with pgbouncer(own_postgres.build_url(), mode="transaction") as url:
        yield url


def test_a_pooler_that_mixes_up_prepared_statements_is_recognised_and_refused(
    own_postgres: EmbeddedPostgres, transaction_mode: str
) -> None:
    direct, pooled = Database(own_postgres.build_url()), Database(transaction_mode)
    assert detect_pooler(direct) is Pooler.NONE
    assert [detect_pooler(pooled), detect_pooler(pooled)] == [Pooler.FORGETS, Pooler.FORGETS]
    with pytest.raises(ConfigurationError, match=r"set HERMES_DATABASE_PREPARED_STATEMENTS=false"):
        require_statements_kept(pooled)
    require_statements_kept(Database(transaction_mode, prepares=False))
    with pgbouncer(own_postgres.build_url(), mode="session") as url:
        in_session_mode = Database(url)
        assert detect_pooler(in_session_mode) is Pooler.SESSION
        in_session_mode.close()
    direct.close()
    pooled.close()


def test_the_crash_lab_refuses_it_too_and_takes_the_setting(tmp_path: Path, transaction_mode: str) -> None:
    def lab(directory: str, *, prepares: bool) -> LabStack:
        (tmp_path / directory).mkdir()
        options: dict[str, Any] = {"database_url": transaction_mode, "own_postgres": False, "ttl_s": 3.0}
        return LabStack(tmp_path / directory, **options, prepares=prepares)

    with pytest.raises(ConfigurationError, match=r"set HERMES_DATABASE_PREPARED_STATEMENTS=false"):  # noqa: SIM117
        with lab("refused", prepares=True):
            pass
    with lab("works", prepares=False) as stack:
        assert stack.build_environ({})["HERMES_DATABASE_PREPARED_STATEMENTS"] == "false"
        database = stack.open_database()
        assert not database.prepares
        database.close()


def test_a_limit_on_idle_transactions_holds_in_each_of_ours_and_in_nobody_elses(transaction_mode: str) -> None:
    database, others = Database(transaction_mode, prepares=False), Database(transaction_mode, prepares=False)
    database.end_idle_transactions(7)
    limit = sa.text("show idle_in_transaction_session_timeout")
    for _ in range(3):
        with database.write() as connection:
            assert connection.scalar(limit) == "7s"
        with others.write() as connection:
            assert connection.scalar(limit) == "0"
    database.close()
    others.close()


@pytest.mark.parametrize("prepares", [False, True] if can_keep_statements() else [False])
def test_a_fleet_works_behind_it_with_prepared_statements_off_and_where_it_keeps_them_on(
    tmp_path: Path, own_postgres: EmbeddedPostgres, broker_url: str, prepares: bool
) -> None:
    """Debian 12 has a version that keeps none."""
    setting = {"HERMES_DATABASE_PREPARED_STATEMENTS": str(prepares).lower()}
    with (
        pgbouncer(own_postgres.build_url(), mode="transaction", statements_kept=200) as url,
        rig_on(tmp_path, database_url=url, broker_url=broker_url, more_environ=setting) as rig,
    ):
        assert detect_pooler(rig.client.database) is (Pooler.KEEPS if can_keep_statements() else Pooler.FORGETS)
        run_ids = [
            rig.submit([{"calls": [sink_call("once", f"{number}.a"), sink_call("once", f"{number}.b")]}])
            for number in range(RUNS)
        ]
        assert {view.status for view in rig.ended(*run_ids)} == {RunStatus.COMPLETED}
        assert sorted(effect.mark for effect in rig.effects()) == sorted(
            f"{number}.{letter}" for number in range(RUNS) for letter in "ab"
        )
        assert "_pg3_" not in rig.log_text()
        assert rig.broken_invariants() == []
